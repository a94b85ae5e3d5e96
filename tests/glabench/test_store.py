"""Rows survive the disk: strict JSON, checksums, torn lines, two writers, older and newer schemas."""

from __future__ import annotations

import gzip
import json
import lzma
import math
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from glabench import store
from glabench.errors import UserError
from glabench.spec.case import Case
from glabench.store import Appender, Row

ROOT = Path(__file__).parents[2]
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


Pack = Callable[[bytes], bytes]
PACK: dict[str, tuple[str, Pack]] = {"gzip": (".gz", gzip.compress), "xz": (".xz", lzma.compress)}


@pytest.mark.parametrize("how", PACK)
def test_packed_rows_are_read_and_not_appended_to(tmp_path: Path, how: str) -> None:
    suffix, pack = PACK[how]
    path = tmp_path / f"packed.jsonl{suffix}"
    path.write_bytes(pack(f"{store.to_json(row())}\n".encode()))
    assert list(store.read(path, warn=pytest.fail)) == [row()]
    assert store.is_file_of_lines(path)
    with pytest.raises(UserError, match=rf"packed.jsonl{suffix}: nothing is appended to a packed file"):
        Appender(path)


@pytest.mark.parametrize("how", PACK)
@pytest.mark.parametrize("torn", [True, False], ids=["torn", "not packed"])
def test_a_packed_file_that_is_none_or_torn_is_one_line(tmp_path: Path, how: str, torn: bool) -> None:
    suffix, pack = PACK[how]
    path = tmp_path / f"packed.jsonl{suffix}"
    path.write_bytes(pack(b"{}" * 99)[:-9] if torn else b"{}")
    with pytest.raises(UserError, match=rf"packed.jsonl{suffix}: is not packed by {how}, or not all of it is there"):
        list(store.read(path))


def test_xz_without_lzma_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "packed.jsonl.xz"
    path.write_bytes(lzma.compress(b"{}"))
    monkeypatch.setitem(sys.modules, "lzma", None)
    with pytest.raises(UserError, match=r"built without lzma; unpack it first: unxz --keep .*packed.jsonl.xz"):
        list(store.read(path))


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


WHOLE: dict[str, Any] = {
    "accuracy": {
        "passed": False,
        "where": "cpu",
        "shape": {"B": 1},
        "outputs": {"o": {"error": "NaN", "baseline": 0.1}},
    },
    "time": {"clock": "cpu_wall", "samples_ms": [1.0, 2], "dropped": 0, "stopped": "noise", "warmup": 3},
    "memory": {"peak_bytes": 3, "inputs_bytes": 1, "beyond_inputs_bytes": 2},
    "compiled": [{"kernel": "k", "arch": "sm_90", "spill_bytes": 0, "registers": None, "error": None}],
    "work": {"flops": 1, "hbm_bytes": 1},
    "clocks": {"sm_mhz": 1980.0, "sm_mhz_max": 1980.0, "power_w": None, "throttle": ["power cap"]},
    "profile": {"target": {"name": "H200"}, "kernels": [{"name": "k", "samples_ms": None}], "notes": []},
    "environment": {"device": "H200", "driver": None, "copy_bytes_per_s": 1e12},
    "spent": [{"part": "all", "began": 1.0, "seconds": {"gate": 0.5}}],
    "deaths": ["the process was killed by SIGSEGV"],
}


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("case.B", "four", "case.B: expected a valid integer, got 'four'"),
        ("case.T", 10**400, "case.T: expected less than or equal to 1000"),
        ("case.dtype", None, "case.dtype: expected a valid string, got None"),
        ("accuracy.outputs", {"o": {"error": "none"}}, "accuracy.outputs.o.error: expected a valid number, got 'none'"),
        ("accuracy.outputs", [], "accuracy.outputs: expected a mapping"),
        ("time", {"samples_ms": [1.0]}, "time: has no clock"),
        ("time.samples_ms", [], "time.samples_ms: expected at least 1 item, got []"),
        ("time.samples_ms", [0.0, 0.0], "time.samples_ms.0: expected greater than or equal to 0.000000001, got 0.0"),
        ("time.samples_ms", [1.0, -1.0], "time.samples_ms.1: expected greater than"),
        ("time.samples_ms", [1.0, "NaN"], "time.samples_ms.1: expected a finite number, got nan"),
        ("time.samples_ms", [1.0, "2"], "time.samples_ms.1: expected a valid number, got '2'"),
        ("time.eager", {"host_ms": []}, "time.eager.host_ms: expected at least 1 item, got []"),
        ("time.eager", {"wall_ms": [1.0, 0.0]}, "time.eager.wall_ms.1: expected greater than"),
        ("time.host_ms", [1.0], "time.host_ms: expected a valid number"),
        ("memory.kept_bytes", -1, "memory.kept_bytes: expected greater than or equal to 0"),
        ("memory.beyond_inputs_bytes", "much", "memory.beyond_inputs_bytes: expected a valid integer"),
        ("compiled", [1], "compiled.0: expected a mapping"),
        ("compiled", [{"spill_bytes": "8"}], "compiled.0.spill_bytes: expected a valid integer"),
        ("work.hbm_bytes", True, "work.hbm_bytes: expected a valid number, got True"),
        ("clocks", {"sm_mhz_max": 1980.0}, "clocks: has no sm_mhz"),
        ("clocks.sm_mhz_max", "high", "clocks.sm_mhz_max: expected a valid number"),
        ("clocks.throttle", [1], "clocks.throttle.0: expected a valid string"),
        ("profile.kernels", [{}], "profile.kernels.0: has no name"),
        ("environment.fingerprint", ["f"], "environment.fingerprint: expected a valid string"),
        ("environment.copy_bytes_per_s", 0, "environment.copy_bytes_per_s: expected greater than 0"),
        ("spent", [{}], "spent.0: has no part"),
        ("deaths", [1], "deaths.0: expected a valid string"),
        ("wall_s", -1, "wall_s: expected greater than or equal to 0"),
    ],
)
def test_an_odd_value_within_is_no_row(place: str, value: Any, message: str) -> None:
    values = json.loads(store.to_json(row())) | WHOLE | {"schema": 2}
    del values["checksum"]
    assert store.from_json(json.dumps(values)).time == WHOLE["time"]
    *above, last = place.split(".")
    inner = values
    for name in above:
        inner[name] = dict(inner[name])
        inner = inner[name]
    inner[last] = value
    with pytest.raises(ValueError, match=re.escape(message)):
        store.from_json(json.dumps(values))


@pytest.mark.parametrize("path", sorted(ROOT.glob("results/nvidia-h200/p*/*.jsonl*")), ids=lambda it: it.parent.name)
def test_what_is_committed_can_be_read(path: Path) -> None:
    assert list(store.read(path, warn=pytest.fail))


@pytest.mark.parametrize(
    "text", ["title: a sweep\naxes: {}", '{"kind": "tuning"}\n' * 3, "\n{}\n", "no line's end", "\x00" * 40]
)
def test_a_file_of_anything_else_is_left_as_it_is(tmp_path: Path, text: str) -> None:
    path = tmp_path / "model.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=r"model.yaml: no line of it is a row, expected a file of rows"):
        Appender(path)
    assert path.read_text() == text
    assert list(tmp_path.iterdir()) == [path]
    with Appender(path, fresh=True) as out:  # which moves it aside, and loses nothing
        assert out.moved_to is not None
        assert out.moved_to.read_text() == text


@pytest.mark.parametrize("length", [0, 5, 40, -1])
def test_a_file_whose_first_row_is_torn_or_broken_is_a_file_of_rows(tmp_path: Path, length: int) -> None:
    path = tmp_path / "rows.jsonl"
    line = store.to_json(row())
    path.write_text(line[:length] if length >= 0 else line.replace('"ok"', '"oom"') + "\n")
    with Appender(path, warn=lambda message: None) as out:
        out.append(row(case_id="after"))
    assert [item.case_id for item in store.read(path)] == ["after"]


def test_bad_rows_leave_a_file_that_is_a_link_where_it_is(tmp_path: Path) -> None:
    target, link = tmp_path / "disk" / "rows.jsonl", tmp_path / "link.jsonl"
    target.parent.mkdir()
    target.write_text(store.to_json(row()) + "\nbad\n")
    link.symlink_to(target)
    with Appender(link, warn=lambda message: None) as out:
        out.append(row(case_id="after"))
    assert link.is_symlink()
    assert [item.case_id for item in store.read(target)] == [CASE.id, "after"]
    assert (tmp_path / "link.jsonl.bad").read_text() == "bad\n"


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
