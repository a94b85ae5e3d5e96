"""Reading result files: folders, torn lines, and every kind of bad input as one line."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any

import pytest

from glabench import tuning_store
from glabench.analysis.load import files, located, shown_together
from glabench.errors import UserError
from glabench.spec.sweep import find
from glabench.store import read, to_json


def test_a_folder_stands_for_its_result_files(tmp_path: Path, make_row: Any) -> None:
    (tmp_path / "nvidia-h200").mkdir()
    (tmp_path / "a.jsonl").write_text(to_json(make_row("gla", [1.0])) + "\n")
    packed = gzip.compress((to_json(make_row("fla", [2.0])) + "\n").encode())
    (tmp_path / "nvidia-h200" / "b.jsonl.gz").write_bytes(packed)
    (tmp_path / "notes.txt").write_text("not rows")
    (tmp_path / "notes.txt.gz").write_bytes(packed)
    assert [path.name for path in files([tmp_path])] == ["a.jsonl", "b.jsonl.gz"]
    assert [row.case["system"] for _, row in located([tmp_path, tmp_path / "a.jsonl"])] == ["gla", "fla"]


def test_of_a_folder_of_several_kinds_one_is_taken_and_the_others_are_told(
    tmp_path: Path, make_row: Any, make_profile: Any, make_tuning: Any
) -> None:
    rows, profiles, tunings = (tmp_path / f"{name}.jsonl" for name in ("a", "b", "c"))
    failed = make_row("gla", None, status="oom")  # which could be either's
    rows.write_text(to_json(make_row("gla", [1.0])) + "\n")
    profiles.write_text(f"{to_json(failed)}\n{to_json(make_profile())}\n")
    tunings.write_text(tuning_store.to_json(make_tuning()) + "\n")
    told: list[str] = []
    assert shown_together([tmp_path], None, told.append) == [rows]
    assert told == [
        f"{path}: {kind}, left out of a report of rows; `glabench report {path}` shows them"
        for path, kind in ((profiles, "profiles"), (tunings, "tunings"))
    ]
    assert shown_together([tmp_path], "profiles", told.append) == [rows, profiles]
    # what is named is shown, and what a folder adds to it is of its kind
    assert set(shown_together([tmp_path, tunings], None, told.append)) == {tunings}
    assert shown_together([rows, tunings], None, told.append) == [rows, tunings]
    rows.unlink()
    assert shown_together([tmp_path], None, told.append) == [profiles]


def test_a_link_to_nothing_is_not_told_to_be_itself(tmp_path: Path) -> None:
    (tmp_path / "dead.jsonl").symlink_to("gone.jsonl")
    with pytest.raises(UserError, match=r"dead.jsonl: is a link to gone.jsonl, which is not there$"):
        files([tmp_path / "dead.jsonl"])
    with pytest.raises(UserError, match=r"dead.jsonl: is a link to gone.jsonl, which is not there$"):
        list(read(tmp_path / "dead.jsonl"))
    (tmp_path / "dead.yaml").symlink_to("gone.yaml")
    with pytest.raises(UserError, match=r"dead.yaml: is a link to gone.yaml, which is not there$"):
        find(str(tmp_path / "dead.yaml"))


def test_a_torn_last_line_is_told_and_left_out(tmp_path: Path, make_row: Any) -> None:
    line = to_json(make_row("gla", [1.0]))
    (tmp_path / "a.jsonl").write_text(f"{line}\n{line[:40]}")
    told: list[str] = []
    assert len(located([tmp_path], told.append)) == 1
    assert "a.jsonl:2" in told[0]


@pytest.mark.parametrize(
    ("content", "said"),
    [("", "the file is empty"), ("# notes\n", "a.jsonl:1: not a row"), ("[1]\n", "a row is a JSON object")],
)
def test_a_file_without_a_row_is_one_line(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "a.jsonl").write_text(content)
    with pytest.raises(UserError, match=said) as error:
        located([tmp_path / "a.jsonl"])
    assert "\n" not in str(error.value)


def test_a_case_without_a_shape_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(
        '{"schema": 1, "case_id": "77", "sweep": "s", "status": "ok", "case": {"system": "gla", "T": 1}}\n'
    )
    with pytest.raises(UserError, match=r"a.jsonl:1: not a row, skipped: case: has no dtype"):
        located([tmp_path])


def test_a_pipe_is_refused_as_what_it_is(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rows")
    with pytest.raises(UserError, match="rows: is a pipe or a device, expected a file"):
        located([tmp_path / "rows"])


def test_a_folder_within_that_cannot_be_read_is_told(
    tmp_path: Path, make_row: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "closed").mkdir()
    (tmp_path / "a.jsonl").write_text(to_json(make_row("gla", [1.0])) + "\n")
    scandir = os.scandir

    def closed(path: Any) -> Any:  # as to anyone but root
        if Path(path).name == "closed":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", closed)
    with pytest.raises(UserError, match="closed: cannot be read: Permission denied"):
        files([tmp_path])


def test_missing_paths_name_the_nearest(tmp_path: Path, make_row: Any) -> None:
    (tmp_path / "quick-cpu.jsonl").write_text(to_json(make_row("gla", [1.0])) + "\n")
    with pytest.raises(UserError, match=r"did you mean .*quick-cpu\.jsonl"):
        located([tmp_path / "quick-cpu.json"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"no \*\.jsonl file"):
        located([tmp_path / "empty"])


def test_results_without_a_page_are_one_note(tmp_path: Path, make_row: Any) -> None:
    (tmp_path / "a.jsonl").write_text(to_json(make_row("gla", [1.0])) + "\n")
    for name, kind in (("compile-board", "compiled"), ("compile-quick", "compiled"), ("rival", "rival")):
        (tmp_path / f"{name}.jsonl").write_text(f'{{"kind": "{kind}"}}\n' * 3)
    told: list[str] = []
    assert [row.case["system"] for _, row in located([tmp_path], told.append)] == ["gla"]
    (note,) = told
    assert note.startswith(f"{tmp_path / 'compile-board.jsonl'} and 2 more: neither rows nor tunings")
    with pytest.raises(UserError, match=r"rival\.jsonl: neither rows nor tunings"):
        located([tmp_path / "rival.jsonl"])
