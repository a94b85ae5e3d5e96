"""``glabench --help`` answers at once, because nothing heavy is imported before a command needs it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import glabench

HEAVY = ("torch", "triton", "pandas", "numpy", "matplotlib", "pydantic", "yaml", "jinja2", "pynvml")
COMMANDS = ("compare", "sweep", "report", "check", "tune", "compile", "ls", "doctor", "schema", "results")

# Runs the command line as the console script does, then says which of the heavy packages came in with it.
PROBE = f"""
import sys
from glabench.cli import main
sys.argv = ["glabench", *sys.argv[1:]]
try:
    main()
except SystemExit as stop:
    code = stop.code
else:
    code = 0
loaded = [name for name in {HEAVY!r} if name in sys.modules]
print("loaded:", " ".join(loaded))
sys.exit(code)
"""


def test_help_imports_nothing_heavy(python_process: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = python_process("-c", PROBE, "--help")
    assert "Usage:" in done.stdout
    assert done.stdout.splitlines()[-1].split() == ["loaded:"]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_imports_nothing_heavy(
    python_process: Callable[..., subprocess.CompletedProcess[str]], command: str
) -> None:
    """But pydantic, with which some versions of typer convert options themselves."""
    done = python_process("-c", PROBE, command, "--help")
    assert "Usage:" in done.stdout
    assert set(done.stdout.splitlines()[-1].split()) <= {"loaded:", "pydantic"}


def test_probe_sees_a_heavy_import(python_process: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = python_process("-c", "import yaml\n" + PROBE, "--help")
    assert done.stdout.splitlines()[-1].split() == ["loaded:", "yaml"]


def test_help_lists_every_command(python_process: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = python_process("-m", "glabench", "--help")
    listed = [name for name in COMMANDS if re.search(rf"^\W*{name}\s", done.stdout, re.MULTILINE)]
    assert listed == list(COMMANDS)


def test_version_is_the_package_version(python_process: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = python_process("-m", "glabench", "--version")
    assert glabench.__version__ in done.stdout.split()


def test_misspelt_command_exits_2(python_process: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = python_process("-m", "glabench", "swep", check=False)
    assert done.returncode == 2
    assert "swep" in done.stderr


def test_a_reader_that_went_away_is_told_as_a_shell_expects() -> None:
    script = 'set -o pipefail; { sleep 0.3; exec "$0" -m glabench ls; } | true'
    done = subprocess.run(["bash", "-c", script, sys.executable], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
@pytest.mark.parametrize("arguments", [("--version",), ("ls",)])
def test_a_full_disk_behind_our_output_is_one_line(arguments: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "glabench", *arguments]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines() == ["glabench: error: output: No space left on device"]


def test_a_terminal_that_knows_only_ascii_gets_question_marks(
    python_process: Callable[..., subprocess.CompletedProcess[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    assert python_process("-m", "glabench", "ls").stdout.isascii()
