"""``glabench --help`` answers at once, because nothing heavy is imported before a command needs it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import glabench

HEAVY = ("torch", "triton", "pandas", "numpy", "matplotlib", "pydantic", "yaml", "jinja2", "pynvml")
COMMANDS = ("compare", "sweep", "report", "check", "tune", "compile", "ls", "doctor", "schema", "results")

# Runs the command line as the console script does, once for each list of arguments, and says after each how it ended
# and which of the heavy packages have come in.
PROBE = f"""
import json, sys
from glabench.cli import main
for arguments in json.loads(sys.argv[1]):
    try:
        main(arguments)
    except SystemExit as stop:
        print("ended:", stop.code, *(name for name in {HEAVY!r} if name in sys.modules))
"""
Process = Callable[..., subprocess.CompletedProcess[str]]


def helps(python_process: Process, before: str, *commands: str) -> list[tuple[str, list[str]]]:
    """The help of glabench and of its commands, in turn, and how it ended with which heavy packages. One process: each
    package that one brings shows from there on."""
    asked = json.dumps([["--help"], *([command, "--help"] for command in commands)])
    *parts, rest = re.split(r"^ended: (.*)\n", python_process("-c", before + PROBE, asked).stdout, flags=re.MULTILINE)
    assert rest == ""
    return [(text, ended.split()) for text, ended in zip(parts[::2], parts[1::2], strict=True)]


def test_help_imports_nothing_heavy(python_process: Process) -> None:
    """But pydantic, with which some versions of typer convert options of a command themselves."""
    whole, *others = helps(python_process, "", *COMMANDS)
    assert whole[1] == ["0"]
    listed = [name for name in COMMANDS if re.search(rf"^\W*{name}\s", whole[0], re.MULTILINE)]
    assert listed == list(COMMANDS)
    for name, (text, (code, *loaded)) in zip(COMMANDS, others, strict=True):
        assert re.search(rf"Usage: glabench {name}\b", text), name
        assert code == "0", name
        assert set(loaded) <= {"pydantic"}, name


def test_probe_sees_a_heavy_import(python_process: Process) -> None:
    ((text, ended),) = helps(python_process, "import yaml\n")
    assert "Usage:" in text
    assert ended == ["0", "yaml"]


def test_version_is_the_package_version(python_process: Process) -> None:
    done = python_process("-m", "glabench", "--version")
    assert glabench.__version__ in done.stdout.split()


def test_misspelt_command_exits_2(python_process: Process) -> None:
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
    python_process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    assert python_process("-m", "glabench", "ls").stdout.isascii()


def test_what_compiles_imports_no_dynamo(python_process: Process) -> None:
    """It takes as long as torch itself; what is timed by torch.compile or a checkpoint imports it. That a first call of
    the kernels does not is shown where they run beside nothing else (test_packaging.py)."""
    code = """
import sys, glabench.run.pipeline, glabench.run.autotuned
print("torch" in sys.modules, "torch._dynamo" in sys.modules)
"""
    assert python_process("-c", code, interpret=True).stdout.split() == ["True", "False"]
