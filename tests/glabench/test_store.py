"""Rows survive the disk: strict JSON, checksums, torn lines, two writers, older and newer schemas."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from glabench import store
from glabench.errors import UserError
from glabench.spec.case import Case
from glabench.store import Appender, Row

CASE = Case(system="gla", B=1, T=64, H=1, K=16, V=16)


def row(**changes: object) -> Row:
    base = Row(case_id=CASE.id, sweep="tiny", case=CASE.to_dict(), status="ok")
    return replace(base, **changes)  # type: ignore[arg-type]  # the names are those of Row


def reject_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def test_non_finite_numbers_are_strict_json_and_come_back() -> None:
    errors = {"o": {"error": math.nan, "baseline": math.inf, "tolerance": -math.inf, "text": "fine"}}
    line = store.to_json(row(status="wrong", reason="NaN", accuracy={"outputs": errors}))
    json.loads(line, parse_constant=reject_constant)
    back = store.from_json(line)
    assert back.accuracy is not None
    o = back.accuracy["outputs"]["o"]
    assert math.isnan(o["error"])
    assert (o["baseline"], o["tolerance"], o["text"]) == (math.inf, -math.inf, "fine")
    assert back.reason == "NaN"  # a text stays a text


def test_rows_come_back_in_order_and_equal(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "rows.jsonl"
    rows = [row(case_id=str(i), wall_s=i / 3, reason="línea\nzwei") for i in range(5)]
    with Appender(path) as out:
        for item in rows[:3]:
            out.append(item)
    with Appender(path) as out:
        for item in rows[3:]:
            out.append(item)
    assert list(store.read(path)) == rows
    assert len(path.read_bytes().splitlines()) == 5


def test_a_broken_line_in_the_middle_is_skipped_and_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    good = store.to_json(row())
    bad = ["{torn", "[1]", '{"schema": 1}', good.replace('"ok"', '"great"'), good[:-1] + ', "new_key": 1}']
    path.write_bytes("\n".join([good, *bad, good]).encode() + b"\n\xff\xfe\n")
    said: list[str] = []
    assert list(store.read(path, warn=said.append)) == [row(), row()]
    assert [text.split(": ")[0] for text in said] == [f"{path}:{n}" for n in (2, 3, 4, 5, 6, 8)]


def test_any_change_of_a_line_shows() -> None:
    line = store.to_json(row(wall_s=1.5, reason="línea"))
    changed = [line[:i] + chr(ord(line[i]) ^ 1) + line[i + 1 :] for i in range(len(line))]
    for text in changed:
        with pytest.raises((ValueError, UserError)):
            store.from_json(text)
    with pytest.raises(ValueError, match="checksum is missing"):
        store.from_json(line[: line.rindex(", ")] + "}")


def test_half_of_a_surrogate_pair_is_written_and_comes_back_as_something_that_can_be_shown() -> None:
    line = store.to_json(row(reason="caf\udce9 \U0001f600"))
    assert store.from_json(line.encode().decode()).reason == "caf? \U0001f600"


def test_rows_without_a_checksum_are_read_when_they_are_older_than_it() -> None:
    values = json.loads(store.to_json(row())) | {"schema": 2}
    del values["checksum"], values["deaths"], values["spent"]
    assert store.from_json(json.dumps(values)) == row(schema=2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"case": []}, "case: list"),
        ({"wall_s": "long"}, "wall_s: str"),
        ({"environment": None}, "environment: NoneType"),
        ({"schema": True}, "schema: bool"),
    ],
)
def test_a_value_of_another_type_is_no_row(changes: dict[str, object], message: str) -> None:
    values = json.loads(store.to_json(row())) | {"schema": 2} | changes
    del values["checksum"]
    with pytest.raises(ValueError, match=message):
        store.from_json(json.dumps(values))


def test_bad_rows_are_moved_aside_by_the_next_writer(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    lines = [store.to_json(row(case_id=str(i))) for i in range(3)]
    bad = [lines[1].replace('"ok"', '"oom"'), "{}", '["[' * 100_000]
    path.write_text("\n".join([lines[0], bad[0], lines[1], bad[1], bad[2], lines[2]]) + "\n")
    said: list[str] = []
    with Appender(path, warn=said.append) as out:
        with pytest.raises(UserError, match="another glabench is writing"):
            Appender(path)
        out.append(row(case_id="after"))
    assert path.read_text().splitlines() == [*lines, store.to_json(row(case_id="after"))]
    assert (tmp_path / "rows.jsonl.bad").read_text().splitlines() == bad
    assert [text.split(": ")[0] for text in said] == [f"{path}:{n}" for n in (2, 4, 5)]
    assert sorted(found.name for found in tmp_path.iterdir()) == ["rows.jsonl", "rows.jsonl.bad"]


def test_a_file_of_newer_rows_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    text = store.to_json(row(schema=store.SCHEMA + 1)) + "\n{}\n"
    path.write_text(text)
    for _ in range(2):  # the second one finds no lock
        with pytest.raises(UserError, match="upgrade"):
            Appender(path)
    assert path.read_text() == text


def test_a_newer_schema_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(store.to_json(row(schema=store.SCHEMA + 1)) + "\n")
    with pytest.raises(UserError, match=rf"rows.jsonl:1: row of schema {store.SCHEMA + 1}.*upgrade"):
        list(store.read(path))


@pytest.mark.parametrize("what", ["missing", "directory"])
def test_what_is_no_file_of_rows_is_a_user_error(tmp_path: Path, what: str) -> None:
    path = tmp_path if what == "directory" else tmp_path / "none.jsonl"
    with pytest.raises(UserError, match="directory" if what == "directory" else "no such file"):
        list(store.read(path))


def test_a_torn_last_line_is_moved_aside(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    line = store.to_json(row())
    path.write_text(line + "\n" + line[:40])
    said: list[str] = []
    with Appender(path, warn=said.append) as out:
        out.append(row(case_id="after"))
    assert [item.case_id for item in store.read(path)] == [CASE.id, "after"]
    assert (tmp_path / "rows.jsonl.torn").read_text() == line[:40] + "\n"
    assert len(said) == 1


def test_a_whole_last_row_without_its_line_end_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(store.to_json(row()))
    with Appender(path) as out:
        out.append(row(case_id="after"))
    assert [item.case_id for item in store.read(path)] == [CASE.id, "after"]
    assert not (tmp_path / "rows.jsonl.torn").exists()


def test_two_writers_on_one_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    with Appender(path) as out:
        out.append(row())
        with pytest.raises(UserError, match="another glabench is writing"):
            Appender(path)
        with pytest.raises(UserError, match="another glabench is writing"):
            Appender(path, fresh=True)
    with Appender(path):
        pass
    assert list(store.read(path)) == [row()]


def test_fresh_moves_the_old_file_aside_and_never_overwrites(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    for index in range(3):
        with Appender(path, fresh=True) as out:
            out.append(row(case_id=str(index)))
    kept = [[item.case_id for item in store.read(tmp_path / name)] for name in ("rows.jsonl.1", "rows.jsonl.2")]
    assert kept == [["0"], ["1"]]
    assert [item.case_id for item in store.read(path)] == ["2"]


def test_fresh_keeps_the_lock_on_the_new_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    with Appender(path) as out:
        out.append(row())
    with Appender(path, fresh=True), pytest.raises(UserError, match="another glabench"):
        Appender(path)


def test_a_path_that_cannot_be_written_is_a_user_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        Appender(tmp_path / "file" / "rows.jsonl")
    with pytest.raises(UserError, match="cannot be written"):
        Appender(tmp_path)
