"""What the commands' tests share: a mistake on the command line, and what is said of it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from glabench.cli import main

Answer = tuple[int, str, str]


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """``refused("sweep", "bad.yaml")``: runs the command line in the test's folder, which must be one line of error and
    exit code 2, with nothing else printed. Answers the line."""

    def call(*arguments: str) -> str:
        monkeypatch.chdir(tmp_path)
        with pytest.raises(SystemExit) as stop:
            main(list(arguments))
        said = capsys.readouterr()
        assert (stop.value.code, said.out) == (2, "")
        (line,) = said.err.splitlines()
        assert line.startswith("glabench: error: ")
        return line

    return call


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., Answer]]:
    """``command("sweep", "tiny.yaml")``: runs the command line in the test's folder, and in this process, which has
    imported what another would take seconds to import, as on one core: for each it would start others. Answers the exit
    code and what was printed."""

    def call(*arguments: str) -> Answer:
        monkeypatch.chdir(tmp_path)
        with pytest.raises(SystemExit) as stop:
            main(list(arguments))
        assert isinstance(stop.value.code, int)
        return stop.value.code, *capsys.readouterr()

    before, cores = signal.getsignal(signal.SIGTERM), os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    yield call
    os.sched_setaffinity(0, cores)
    signal.signal(signal.SIGTERM, before)
