"""``glabench ls``: every sweep with its cases, every system with why it cannot run here."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glabench.spec.catalog import CATALOG
from glabench.spec.expand import expand
from glabench.spec.sweep import available, load

Process = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def listing(python_process: Process) -> list[str]:
    return python_process("-m", "glabench", "ls").stdout.splitlines()


def test_every_sweep_with_its_number_of_cases(listing: list[str], device: Any) -> None:
    for name, path in available().items():
        sweep = load(path)
        (line,) = [line for line in listing if line.startswith(f"{name} ")]
        assert line.split()[1] == str(len(expand(sweep, device.type).cases))
        assert sweep.title in line


def test_every_system_says_whether_it_runs_here_and_if_not_how_to_get_it(listing: list[str], device: Any) -> None:
    from glabench.systems.base import load as load_system

    text = " ".join(" ".join(listing).split())
    for name in CATALOG:
        (line,) = [line for line in listing if line.startswith(f"{name} ")]
        missing = load_system(name).unavailable(device.type)
        assert (" no: " in line) == (missing is not None)
        if missing is not None and len(missing.reason) < 30:
            assert missing.reason in text


def test_it_fits_a_pipe_and_a_narrow_terminal(listing: list[str], python_process: Process) -> None:
    assert max(map(len, listing)) <= 100


def test_a_sweep_with_a_mistake_is_listed_with_it(python_process: Process, tmp_path: Path) -> None:
    (tmp_path / "sweeps").mkdir()
    (tmp_path / "sweeps" / "broken.yaml").write_text("titel: x\n")
    text = " ".join(python_process("-m", "glabench", "ls", cwd=str(tmp_path)).stdout.split())
    assert "broken - " in text
    assert "titel" in text
    assert "quick" in text
