"""What the commands' tests share: a mistake on the command line, and what is said of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from glabench.cli import main


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
