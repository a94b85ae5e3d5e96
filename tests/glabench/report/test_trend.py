"""The report of a trend: what its lines and rows come to, its page, and its other formats."""

from __future__ import annotations

import csv
import json
import random
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from glabench.analysis.trend import Night, from_json, in_order, nights_of, time_of, trends
from glabench.check.formats import trend_line
from glabench.check.verdict import check
from glabench.cli import main
from glabench.report import trend_figures, trend_tables
from glabench.report.trend import render
from glabench.spec.case import Case
from glabench.store import Row, to_json

NIGHTS = 16
CASES = [Case("gla", 4, t, 16, 128, 128, mode="fwd") for t in (512, 1024, 2048)]
STEADY, SLOWED, HOT = (case.id for case in CASES)


def row(night: int, case: Case, ms: float, device: str = "NVIDIA Test", **fields: Any) -> Row:
    """A case as it was measured in a night; every second commit was measured twice."""
    environment = {"device": device, "commit": f"{night * 2 // 3:07x}{'0' * 33}", "dirty": False, "kind": "cuda",
                   "triton": "3.6.0" if night < 10 else "3.7.0"}  # fmt: skip
    made = Row(case.id, "board", case.to_dict(), "ok", environment=environment,
               started=f"2026-11-{night + 1:02}T02:00:00+00:00",
               time={"clock": "cuda_events_cold_l2", "samples_ms": [ms] * 5})  # fmt: skip
    return replace(made, **fields)


def lines(device: str = "NVIDIA Test") -> list[str]:
    """A steady case; one that is 4 % slower from night 9 on, and crashes in the last two; one that is new in night 4,
    and was held back in night 6."""
    rng = random.Random(3)
    found = []
    for night in range(NIGHTS):
        ms = [base * rng.gauss(1, 0.002) for base in (1.0, 2.0, 4.0)]
        rows = [row(night, CASES[0], ms[0], device)]
        rows.append(row(night, CASES[1], ms[1] * (1.04 if night >= 9 else 1), device))
        if night >= NIGHTS - 2:
            rows[1] = replace(rows[1], status="crashed", reason="signal 11 <b>", time=None)
        if night >= 4:
            slow = {"sm_mhz": 990.0, "sm_mhz_max": 1980.0, "throttle": ["hot"]} if night == 6 else None
            rows.append(row(night, CASES[2], ms[2] * (1.5 if slow else 1), device, clocks=slow))
        line = json.loads(trend_line(check(rows, rows, 0.03)))
        found.append(json.dumps({**line, "when": rows[0].started}))
    return found


@pytest.fixture(scope="module")
def nights() -> list[Night]:
    return [from_json(line) for device in ("NVIDIA Test", "NVIDIA <b>") for line in lines(device)]


@pytest.fixture(scope="module")
def page(made_once: Callable[[str, Callable[[], str]], str], nights: list[Night]) -> str:
    found = trends(nights)
    return made_once("trend page", lambda: render(found, trend_figures.sections(found)))


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of a trend, the current directory beside it."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "h100.jsonl"
    path.write_text("".join(f"{line}\n" for line in lines()))
    return path


def run(*arguments: object) -> int:
    try:
        main(["report", *map(str, arguments)])
    except SystemExit as exit:
        return int(exit.code or 0)
    return 0


def test_a_change_has_its_commits_and_what_else_was_different(nights: list[Night]) -> None:
    trend = trends(nights)[0]
    ((history, moved),) = trend_tables.moves(trend)
    assert history.case_id == SLOWED
    assert (moved.before.name, moved.after.name) == ("0000005", "0000006")
    assert moved.change.ratio == pytest.approx(1.04, abs=0.004)
    assert moved.still is None  # it crashes by now
    assert moved.besides == ()
    slower_later = [replace(night, conditions={"triton": f"3.{i // 9}"}) for i, night in enumerate(nights[:NIGHTS])]
    ((_, moved),) = trend_tables.moves(trends(slower_later)[0])
    assert moved.besides == ("triton 3.0 -> 3.1",)
    one_commit = [replace(night, commit="c0ffee") for night in nights[: NIGHTS - 2]]
    ((_, moved),) = trend_tables.moves(trends(one_commit)[0])
    assert (moved.besides[0], moved.still) == ("the same commit", True)


def test_what_is_new_gone_or_held_back_is_said(nights: list[Night]) -> None:
    trend = trends(nights)[0]
    found = {history.case_id: history for history in trend.histories}
    assert {case_id: trend_tables.measured(one) for case_id, one in found.items()} == {
        STEADY: "always", SLOWED: "not since 0000009: crashed", HOT: "new at 0000002",
    }  # fmt: skip
    assert 6 not in found[HOT].at
    held = next(line for line in trend_tables.nights(trend).rows if line[0].text.startswith("2026-11-07"))
    assert [cell.text for cell in held[2:5]] == ["3", "1", "SM clock at 50.0% of its maximum (hot)"]
    assert "triton 3.6.0 -> 3.7.0" in [line[5].text for line in trend_tables.nights(trend).rows]
    said = trend_tables.answer(trend)
    assert said.startswith("3 cases over 11 commits from 0000000 to 000000a, 2026-11-01 to 2026-11-16 (16 nights): 1 ")
    assert "The largest slow-down is +3.8 % at 0000006 of 2026-11-10, GLA, default schedule, B4 T1k H16 128" in said
    assert "forward, which is no longer measured." in said
    assert "speed-up" not in said
    assert said.endswith("1 case is new. 1 case is no longer measured.")


def test_a_change_that_was_undone_is_no_longer_so(nights: list[Night]) -> None:
    back = [*nights[: NIGHTS - 2], *(replace(nights[i], when=f"2026-12-{i + 1:02}", times={**nights[i].times,
        HOT: nights[-1].times[HOT]}) for i in range(6))]  # fmt: skip
    assert [moved.still for _, moved in trend_tables.moves(trends(back)[0])] == [True, False]  # the newest first


def test_a_night_of_another_sweep_says_nothing_of_a_case(nights: list[Night]) -> None:
    other = replace(nights[0], when="2026-12-01", times={"another": time_of([row(0, CASES[0], 1.0)])})
    trend = trends([*nights[: NIGHTS - 2], other])[0]
    assert {history.gone for history in trend.histories if history.case_id != "another"} == {None}


def test_rows_of_several_commits_are_nights_and_runs_of_one_are_one() -> None:
    rows = [row(night, CASES[0], 1.0) for night in (0, 3)] + [row(0, CASES[0], 1.21), row(0, CASES[1], 2.0)]
    rows.append(row(0, CASES[0], 1.0, "NVIDIA other"))
    found = {(night.device, night.name): night for night in nights_of(rows)}
    assert sorted(found) == [("NVIDIA Test", "0000000"), ("NVIDIA Test", "0000002"), ("NVIDIA other", "0000000")]
    assert found["NVIDIA Test", "0000000"].times[STEADY].ms == pytest.approx(1.1)
    dirty = [replace(rows[0], environment=rows[0].environment | {"dirty": True, "fingerprint": name}) for name in "ab"]
    assert [night.name for night in nights_of(dirty)] == ["0000000+"] * 2


def test_commits_are_in_their_order_where_the_repository_has_them(
    nights: list[Night], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def git(*arguments: str, day: int = 1) -> str:
        times = {f"GIT_{who}_DATE": f"2026-01-{day:02}T00:00:00+00:00" for who in ("AUTHOR", "COMMITTER")}
        who = ("-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false")
        for name, value in times.items():
            monkeypatch.setenv(name, value)
        return subprocess.run(["git", *who, *arguments], check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    commits = []
    for day in (1, 2, 3):
        git("commit", "-q", "--allow-empty", "-m", str(day), day=day)
        commits.append(git("rev-parse", "HEAD"))
    measured = [replace(nights[i], commit=commit) for i, commit in enumerate([commits[2], commits[0], commits[1]])]
    assert [night.commit for night in in_order(measured)] == commits
    unknown = [*measured, nights[3]]
    assert [night.when for night in in_order(reversed(unknown))] == [night.when for night in unknown]


def test_the_page_stands_alone_and_names_the_commits(page: str, outline: Any) -> None:
    found = outline(page)
    assert found.loads == []
    assert found.open == []
    assert len(found.ids) == len(set(found.ids))
    assert page.count('<div class="panel">') == 6  # a case of a device each
    assert page.count(">0000006</text>") == 2  # the change is named in its panel, of either device
    assert "not compared: SM clock at 50.0% of its maximum (hot)" in page
    assert "NVIDIA &lt;b&gt;" in page
    assert "<b>" not in page.replace("<b>glabench", "")


def test_lines_without_fields_are_read_by_their_ids(file: Path) -> None:
    one = {"verdict": "same", "ms": 1.0, "ratio": 1.0}
    old = {"when": "2026-10-01T02:00:00+00:00", "device": "NVIDIA Test", "commit": None, "counts": {"same": 2},
           "cases": {STEADY: one, "0123456789ab": one}}  # fmt: skip
    file.write_text(json.dumps(old) + "\n" + file.read_text() + '{"when": "2026-12-01", "cases": {"x": {"ms": -1}}}\n')
    assert run(file, "--format", "md", "--out", "out.md") == 0
    text = Path("out.md").read_text()
    assert "from unknown to 000000a, 2026-10-01 to" in text
    assert "| case 0123456789ab | not since 0000000: missing |" in text


def test_formats_have_a_line_a_change(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(file, "--format", "csv", "--out", "-") == 0
    (line,) = csv.DictReader(capsys.readouterr().out.splitlines())
    assert (line["case_id"], line["kind"], line["still"], line["T"]) == (SLOWED, "step", "no longer measured", "1024")
    assert line["commit_after"] == f"{6:07x}{'0' * 33}"
    assert run(file, "--format", "json", "--out", "out.json") == 0
    assert json.loads(Path("out.json").read_text())[0]["ratio"] == pytest.approx(float(line["ratio"]))
    assert run(file, "--format", "png", "--out", "figures") == 0
    assert len(list(Path("figures").iterdir())) == 2 * 3  # a shape each


def test_rows_and_trends_are_one_where_the_page_is_asked_for(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("rows.jsonl").write_text("".join(to_json(row(night, CASES[0], 1.0)) + "\n" for night in (17, 19)))
    assert run(file, "rows.jsonl", "--page", "trend", "--format", "md", "--out", "out.md") == 0
    assert "3 cases over 13 commits" in Path("out.md").read_text()
    assert run("rows.jsonl", "--page", "trend", "--format", "md", "--out", "out.md") == 0
    assert "1 case over 2 commits" in Path("out.md").read_text()
    capsys.readouterr()
    Path("tune.jsonl").write_text('{"workload": {}, "kind": "tuning"}\n')
    for arguments, said in (
        ((file, "rows.jsonl"), "holds a trend and rows.jsonl rows; --page trend shows both"),
        ((file, "--page", "papers"), "--page papers is for rows"),
        ((file, "tune.jsonl", "--page", "trend"), "tune.jsonl holds tunings"),
        ((file, "--page", "trends"), "did you mean 'trend'?"),
    ):
        assert run(*arguments) == 2
        assert said in capsys.readouterr().err
    file.rename("trend.csv")
    assert run("trend.csv", "--format", "csv", "--out", "trend.csv") == 2
    assert "holds results, which would be lost" in capsys.readouterr().err
