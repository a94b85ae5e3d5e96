"""Baselines: found by GPU, accepted with who, when and why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from glabench.check import baseline
from glabench.errors import UserError
from glabench.store import read

from .conftest import MakeRun


def test_what_is_accepted_is_found_again_with_who_when_and_why(
    make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTOR", "somebody")
    rows = [make_run(seed=1), make_run(seed=2), make_run(T=64, seed=3)]
    assert baseline.find("auto", rows, tmp_path) is None
    path, _ = baseline.accept(rows, "first baseline", tmp_path)
    assert baseline.find("auto", rows, tmp_path) == path == tmp_path / "nvidia-h200.jsonl"
    assert list(read(path)) == rows
    baseline.accept(rows[:1], "fewer cases", tmp_path)
    assert list(read(path)) == rows[:1]
    log = [json.loads(line) for line in (tmp_path / "nvidia-h200.log").read_text().splitlines()]
    assert [(e["who"], e["why"], e["commit"], e["cases"]) for e in log] == [
        ("somebody", "first baseline", "c0ffee", 2),
        ("somebody", "fewer cases", "c0ffee", 1),
    ]
    assert all(entry["when"].startswith("20") for entry in log)


def test_a_baseline_of_one_sweep_leaves_those_of_others(make_run: MakeRun, tmp_path: Path) -> None:
    board = [make_run(sweep="board", seed=1), make_run(sweep="board", T=64, seed=2)]
    decode = [make_run(sweep="decode", T=32, seed=3, environment={"commit": "0ther"})]
    baseline.accept(board, "the board", tmp_path)
    path, entry = baseline.accept(decode, "decoding", tmp_path)
    assert list(read(path)) == [*board, *decode]
    assert (entry["sweeps"], entry["kept"], entry["cases"]) == (["decode"], ["board"], 1)

    again = [make_run(sweep="board", seed=4)]
    baseline.accept(again, "a smaller board", tmp_path)
    assert list(read(path)) == [*decode, *again]
    # a case that this sweep has not asked before is compared with what another sweep measured of it
    asked = [make_run(sweep="board", seed=5), make_run(sweep="board", T=32, seed=6)]
    assert baseline.relevant(list(read(path)), asked) == [*decode, *again]
    assert baseline.relevant(list(read(path)), asked[:1]) == again
    assert baseline.commit_of(baseline.relevant(list(read(path)), decode), path) == "0ther"


def test_a_line_of_the_baseline_that_cannot_be_read_is_not_lost(make_run: MakeRun, tmp_path: Path) -> None:
    path, _ = baseline.accept([make_run(sweep="board")], "the board", tmp_path)
    with path.open("a") as file:
        file.write("{damaged\n")
    before = path.read_text()
    with pytest.raises(UserError, match="it would be lost"):
        baseline.accept([make_run(sweep="decode")], "decoding", tmp_path)
    assert path.read_text() == before


def test_a_row_does_not_say_where_its_baseline_is_written(make_run: MakeRun, tmp_path: Path) -> None:
    path, _ = baseline.accept([make_run(environment={"device_slug": "../../pwned"})], "x", tmp_path / "baselines")
    assert path == tmp_path / "baselines" / "pwned.jsonl"
    assert [path.name for path in tmp_path.iterdir()] == ["baselines"]


def test_a_case_whose_process_could_not_name_its_commit_does_not_keep_the_others_out(
    make_run: MakeRun, tmp_path: Path
) -> None:
    slow = make_run(T=64, status="timeout", reason="no result after 8 s", time=None, environment={"commit": None})
    _, entry = baseline.accept([slow, make_run()], "x", tmp_path)
    assert (entry["commit"], entry["cases"]) == ("c0ffee", 2)


def test_what_must_not_be_a_baseline_is_refused(make_run: MakeRun, tmp_path: Path) -> None:
    good = make_run()
    wrong = make_run(status="wrong", reason="o is off", time=None)
    other = make_run(T=64, environment={"commit": "bad0"})
    elsewhere = make_run(environment={"device_slug": "nvidia-a100"})
    for rows, why, said in [
        ([good], " ", "expected why"),
        ([good, wrong], "x", "is wrong: o is off"),
        ([good, other], "x", "rows of 2 commits"),
        ([good, elsewhere], "x", "check one device at a time"),
    ]:
        with pytest.raises(UserError, match=said):
            baseline.accept(rows, why, tmp_path)
    assert list(tmp_path.iterdir()) == []
