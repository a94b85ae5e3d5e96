"""Lines on a disk that fills up, and files too large to be read at once."""

from __future__ import annotations

import fcntl
import io
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from glabench import lines
from glabench.errors import UserError
from glabench.lines import Lines, bounded, keep_results


def test_a_line_that_is_too_long_is_counted_and_not_kept() -> None:
    text = b"short\n" + b"x" * 50 + b"\n" + b"12345678\n" + b"y" * 20
    assert list(bounded(io.BytesIO(text), most=9)) == [(1, b"short\n"), (2, None), (3, b"12345678\n"), (4, None)]


def test_a_file_of_something_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("title: x\nimportant: last line")
    with pytest.raises(UserError, match="holds something else"):
        Lines(path, starts=b'{"a"')
    assert path.read_text() == "title: x\nimportant: last line"
    path.write_text('\n{"')  # torn where it begins
    Lines(path, starts=b'{"a"', warn=lambda message: None).close()
    path.write_text('damaged\n{"a": 1}\n')
    Lines(path, starts=b'{"a"').close()


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="is a pipe or a device"):
        Lines(tmp_path / "pipe")


@pytest.mark.parametrize("start", lines.STARTS)
def test_results_are_kept(tmp_path: Path, start: bytes) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(start)
    with pytest.raises(UserError, match="holds results"):
        keep_results(path)
    path.write_text("case_id,system\n")
    keep_results(path)
    keep_results(tmp_path / "new.csv")


def test_a_torn_line_longer_than_any_block_is_moved_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "BLOCK_BYTES", 7)
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 20)
    path = tmp_path / "lines.jsonl"
    path.write_text('{"a": 1}\n' + "z" * 100)
    with Lines(path, warn=lambda message: None) as file:
        file.write('{"b": 2}')
    assert path.read_text() == '{"a": 1}\n{"b": 2}\n'
    assert (tmp_path / "lines.jsonl.torn").read_text() == "z" * 100 + "\n"


FULL = """
import resource, sys
from glabench.errors import UserError
from glabench.lines import Lines

resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
with Lines(sys.argv[1]) as file:
    try:
        for _ in range(100):
            file.write('{"text": "' + "x" * 90 + '"}')
    except UserError as error:
        print(error)
"""


def test_a_full_disk_is_one_clear_line_and_tears_nothing(
    python_process: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    path = tmp_path / "lines.jsonl"
    done = python_process("-c", FULL, str(path))
    assert done.stdout.startswith(f"{path}: cannot be written: File too large; all lines before are whole")
    assert [len(json.loads(line)["text"]) for line in path.read_text().splitlines()] == [90] * 9
    with Lines(path) as file:  # with room again it goes on
        file.write("{}")
    assert path.read_text().endswith('"}\n{}\n')


def test_a_file_moved_aside_between_opening_and_locking_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text("{}\n")
    flock = fcntl.flock

    def another_was_faster(descriptor: int, how: int) -> None:
        if not path.with_name("aside").exists():
            path.rename(path.with_name("aside"))
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", another_was_faster)
    with Lines(path) as file:
        file.write('{"new": 1}')
    assert path.read_text() == '{"new": 1}\n'
    assert path.with_name("aside").read_text() == "{}\n"
