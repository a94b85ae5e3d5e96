"""Tables of tuned plans on disk: whole whatever dies, nothing lost between writers, nothing foreign trusted."""

from __future__ import annotations

import copy
import json
import os
import re
import signal
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import triton

from gla_kernels import Entry, Machine, Schedule, TableError, chosen
from gla_kernels.plan.files import add, own_table, ship, shipped_tables, slug, user_path
from gla_kernels.plan.table import header_of


def in_child(action: Callable[[], object]) -> int:
    """Start a process that does it; its id."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            action()
            code = 0
        finally:
            os._exit(code)
    return child


def test_what_is_written_is_read(tables, machine, entry):
    assert own_table(machine) is None
    path = add([entry(), entry(direction="bwd")], machine)
    assert path.parent == tables
    table = own_table(machine)
    assert table is not None
    assert table.header == header_of(machine)
    assert set(table.entries) == {entry(), entry(direction="bwd")}


def test_entries_are_added_and_replace_those_of_as_many_heads_and_tokens(tables, machine, entry):
    add([entry(), entry(T=256)], machine)
    again = entry(B=entry().work.B * 2, H=entry().work.H // 2, T=256)
    add([entry(T=2100), again], machine)
    table = own_table(machine)
    assert table is not None
    assert set(table.entries) == {entry(), entry(T=2100), again}


@pytest.mark.parametrize("change", ["device", "memory_bytes", "capability", "triton", "kernels", "space"])
def test_anything_that_changes_the_kernels_or_the_gpu_is_another_file(tables, machine, change):
    header = header_of(machine)
    value: Any = "another" if isinstance(getattr(header, change), str) else 1
    other = replace(header, **{change: value})
    assert user_path(other) != user_path(header)


def test_where_the_tables_are(monkeypatch, machine):
    header = header_of(machine)
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    monkeypatch.setenv("GLABENCH_CACHE", "~/mine")
    assert str(user_path(header).parent) == "/home/someone/mine"
    monkeypatch.setenv("GLABENCH_CACHE", "")
    assert str(user_path(header).parent) == "/caches/glabench/tuned"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert str(user_path(header).parent) == "/home/someone/.cache/glabench/tuned"
    assert user_path(header).name.startswith("nvidia_h200-")
    assert slug("NVIDIA GeForce RTX 4090 (Laptop)") == "nvidia_geforce_rtx_4090_laptop"


def test_a_reader_in_the_middle_of_a_write_sees_the_old_table(tables, machine, entry, monkeypatch):
    add([entry()], machine)
    seen: list[tuple[Entry, ...]] = []

    def look(_: int) -> None:
        table = own_table(machine)
        assert table is not None
        seen.append(table.entries)

    monkeypatch.setattr(os, "fsync", look)
    add([entry(T=256)], machine)
    assert seen == [(entry(),)]
    table = own_table(machine)
    assert table is not None
    assert len(table.entries) == 2


def test_a_writer_that_is_killed_leaves_the_table_and_no_lock(tables, machine, entry):
    add([entry()], machine)

    def die() -> None:
        os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # in the child alone
        add([entry(T=256)], machine)

    _, status = os.waitpid(in_child(die), 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    table = own_table(machine)
    assert table is not None
    assert table.entries == (entry(),)
    add([entry(T=512)], machine)
    table = own_table(machine)
    assert table is not None
    assert {one.work.T for one in table.entries} == {2048, 512}


def test_writers_at_the_same_time_lose_nothing(tables, machine, entry):
    def write(writer: int) -> None:
        for step in range(5):
            add([entry(T=64 << step, H=1 << writer, B=1)], machine)

    children = [in_child(lambda writer=writer: write(writer)) for writer in range(4)]  # type: ignore[misc]
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    table = own_table(machine)
    assert table is not None
    assert {(one.work.T, one.work.H) for one in table.entries} == {
        (64 << i, 1 << j) for i in range(5) for j in range(4)
    }


def refused(machine: Machine) -> str:
    """The one warning, a line, of reading the GPU's own table."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        own_table(machine)
    (warning,) = caught
    text = str(warning.message)
    assert "\n" not in text
    assert text.startswith(str(user_path(header_of(machine))))
    return text


def spoil(text: bytes, how: str) -> bytes:
    """What could be in a table's file."""
    values = json.loads(text)
    if how in ("foreign", "format", "extra"):
        name, value = {"foreign": ("device", "NVIDIA A100"), "format": ("format", 2), "extra": ("colour", 1)}[how]
        values["header"][name] = value
        return json.dumps(values).encode()
    return {
        "empty": b"",
        "truncated": text[: len(text) // 2],
        "binary": b"\xff\x00\xfe" * 40,
        "list": b"[]",
        "no entries": json.dumps({"header": values["header"]}).encode(),
        "deep": b"[" * 100_000,
        "many": json.dumps({"header": values["header"], "entries": [0] * 50_001}).encode(),
    }[how]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("empty", "no table of tuned plans"),
        ("truncated", "no table of tuned plans"),
        ("binary", "no table of tuned plans"),
        ("list", "no table of tuned plans"),
        ("no entries", "no table of tuned plans: no 'entries'"),
        ("deep", "no table of tuned plans"),
        ("many", "more than 50,000 entries"),
        ("format", "format 2, this version reads 1"),
        ("extra", "no table of tuned plans.*colour"),
        ("foreign", "written for another GPU.*NVIDIA A100"),
    ],
)
def test_a_file_that_is_no_table_of_this_gpu_is_refused_and_written_anew(tables, machine, entry, how, message):
    path = add([entry()], machine)
    spoilt = spoil(path.read_bytes(), how)
    path.write_bytes(spoilt)
    text = refused(machine)
    assert re.search(message, text)
    assert text.endswith("ignored, `glabench tune` writes it anew")
    with pytest.warns(UserWarning, match="ignored"):
        assert chosen(entry().work, machine).origin == "by the cost model"
    add([entry(T=256)], machine)
    table = own_table(machine)
    assert table is not None
    assert table.entries == (entry(T=256),)
    assert path.with_name(path.name + ".bad").read_bytes() == spoilt


def test_an_entry_that_is_unsound_goes_and_the_others_stay(tables, machine, entry):
    path = add([entry(), entry(T=256)], machine)
    values = json.loads(path.read_text())
    values["entries"][0]["plan"]["block_t"] = 48
    values["entries"] += ["what?", copy.deepcopy(values["entries"][1]), copy.deepcopy(values["entries"][1])]
    values["entries"][-2]["ms"] = 10**300
    values["entries"][-1]["workload"]["T"] = 10**400
    path.write_text(json.dumps(values))
    assert "4 of 5 entries refused, such as entry 1: plan: block_t=48" in refused(machine)
    add([entry(T=512)], machine)
    table = own_table(machine)
    assert table is not None
    assert len(table.entries) == 2
    assert table.refused == ()


def test_a_file_that_cannot_be_read_is_no_table(tables, machine):
    user_path(header_of(machine)).mkdir(parents=True)
    assert "cannot be read: Is a directory" in refused(machine)


def test_a_pipe_is_not_waited_for(tables, machine):
    path = user_path(header_of(machine))
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)
    assert "cannot be read: it is a pipe" in refused(machine)


def test_a_folder_that_cannot_be_written_is_an_error(tables, machine, entry):
    tables.write_text("a file, where the folder should be")
    with pytest.raises(TableError, match=r"nvidia_h200-.*json: cannot be written: (File exists|Not a directory)"):
        add([entry()], machine)


def test_an_entry_that_would_be_refused_is_not_written(tables, machine, entry):
    add([entry()], machine)
    with pytest.raises(TableError, match=r"B=4 T=16 H=16.*: plan: chunk=64 is too long for T=16"):
        add([entry(T=256), entry(T=16, plan=Schedule(64))], machine)
    table = own_table(machine)
    assert table is not None
    assert table.entries == (entry(),)


def test_no_home_is_no_table_and_nowhere_to_write(monkeypatch, machine, entry):
    monkeypatch.setenv("GLABENCH_CACHE", "~nobody-of-that-name/tuned")
    assert own_table(machine) is None
    with pytest.raises(TableError, match=r"no home directory.*GLABENCH_CACHE"):
        add([entry()], machine)


def test_a_shipped_table_outlives_triton_and_kernels_but_not_the_space(tables, machine, entry):
    path = ship([entry(), entry(T=256)], header_of(machine))
    assert path.name == "nvidia_h200.json"
    assert [table.header.outdated for table in shipped_tables()] == [None]
    values = json.loads(path.read_text())
    values["header"] |= {"triton": "2.0", "kernels": "0" * 16}
    path.write_text(json.dumps(values))
    why = f"other kernels and Triton 2.0, and this is {triton.__version__}"
    assert [(table.header.outdated, len(table.entries)) for table in shipped_tables()] == [(why, 2)]
    values["header"]["space"] = "0" * 16
    path.write_text(json.dumps(values))
    with pytest.warns(
        UserWarning, match=r"nvidia_h200.json: written for another .*; ignored, it came with the package"
    ):
        assert shipped_tables() == ()


def test_shipping_again_starts_anew_with_the_last_of_each_workload(tables, machine, entry):
    ship([entry()], header_of(machine))
    path = ship([entry(T=256), entry(T=2000, plan=Schedule(32)), entry(T=2000)], header_of(machine))
    (table,) = shipped_tables()
    assert set(table.entries) == {entry(T=256), entry(T=2000)}
    assert list(path.parent.iterdir()) == [path]


def test_an_entry_that_would_be_refused_is_not_shipped(tables, machine, entry):
    path = ship([entry()], header_of(machine))
    with pytest.raises(TableError, match="chunk=64 is too long for T=16"):
        ship([entry(T=256), entry(T=16, plan=Schedule(64))], header_of(machine))
    assert [table.entries for table in shipped_tables()] == [(entry(),)]
    path.unlink()
    path.parent.rmdir()
    path.parent.write_text("a file, where the folder should be")
    with pytest.raises(TableError, match=r"shipped/nvidia_h200.json: cannot be written: Not a directory"):
        ship([entry()], header_of(machine))
