"""The report of tunings: its facts, its page, and its other formats."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from glabench.analysis.retuned import agreement
from glabench.cli import main
from glabench.report import tuning_tables
from glabench.report.tuning import render
from glabench.report.tuning_figures import MOST_POINTS, sections
from glabench.tuning_store import Tuning, from_json, to_json

MakeTuning = Callable[..., Tuning]


@pytest.fixture(scope="module")
def page(made_once: Callable[[str, Callable[[], str]], str], tunings: list[Tuning]) -> str:
    return made_once("tunings page", lambda: render(tunings, sections(tunings)))


@pytest.fixture(scope="module")
def few(tunings: list[Tuning]) -> list[Tuning]:
    """Of one workload: searched twice and measured wholly; and the one without a winner."""
    return [*tunings[:3], tunings[-1]]


@pytest.fixture
def results(few: list[Tuning], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of these, the current directory beside it."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "tune-board-nvidia-h200.jsonl"
    path.write_text("".join(f"{to_json(tuning)}\n" for tuning in few))
    return path


def run(*arguments: object) -> int:
    try:
        main(["report", *map(str, arguments)])
    except SystemExit as exit:
        return int(exit.code or 0)
    return 0


def test_the_page_stands_alone_and_is_well_formed(page: str, outline: Any) -> None:
    found = outline(page)
    assert found.loads == []
    assert found.open == []
    assert len(found.ids) == len(set(found.ids))
    anchors = set(re.findall(r'<a href="#([\w-]+)"', page))
    assert anchors <= set(found.ids)


def test_nothing_from_a_tuning_becomes_markup(page: str) -> None:
    assert "<b>not</b>" not in page
    assert "&lt;b&gt;not&lt;/b&gt; for this shape" in page


def test_every_failure_is_there_with_its_reason(page: str, tunings: list[Tuning]) -> None:
    found = tuning_tables.failures(tunings)
    assert {f.status for f in found} == {
        "wrong result", "crashed", "did not compile", "out of memory", "ran out of time", "cannot run here",
    }  # fmt: skip
    whole = next(f for f in found if f.system.startswith("whole plan"))
    assert whole.system == f"whole plan, {len(tunings[-1].finalists)} times"
    assert "the process was killed by SIGABRT" in page


def test_tunings_of_other_code_are_shown_apart_and_not_counted(tunings: list[Tuning]) -> None:
    again = [replace(one, header={"kernels": "others"}, started=f"{one.started}x") for one in tunings]
    said = {f.lead: f for f in tuning_tables.findings([*tunings, *again])}
    lead = "tunings repeated with the same code came to the same: one plan, or two within 1 %"
    assert said[lead].figure.endswith(" of 16")
    assert "pairs of other kernels or another tuner, which are not counted" in said[lead].sentence
    code = [row[2].text for row in tuning_tables.repeated([*tunings, *again]).rows]
    assert code == sorted(code, reverse=True)  # "the same" first
    assert set(code) == {"the same", "other"}


def test_facts_of_the_headline(tunings: list[Tuning]) -> None:
    said = {f.lead: (f.figure, f.sentence) for f in tuning_tables.findings(tunings)}
    count, sentence = said["workloads tuned"]
    assert count == "9"
    assert sentence.startswith("21 tunings: 17 by model, 4 by exhaustive; 1 workload without a plan")
    same = sum(p.agrees for p in agreement(tunings))
    lead = "tunings repeated with the same code came to the same: one plan, or two within 1 %"
    assert said[lead][0] == f"{same} of 8"
    assert "of the feasible candidates measured by a search (median)" in said
    failures = sum(trial.status != "ok" for tuning in tunings for trial in tuning.trials)
    assert said["candidates gave no time; the tuning went on"][0] == str(failures)


def test_measuring_is_told_as_part_of_the_search(make_tuning: MakeTuning) -> None:
    tuning = replace(make_tuning(), wall_s=40.0, spent_s={"search": 34.0, "measure": 10.0, "finals": 6.0})
    said = {f.lead: f.sentence for f in tuning_tables.findings([tuning])}
    assert said["to search a shape, all its directions together (median)"] == (
        "The longest took 40 s; on average search 34 s, of it measuring 10 s, finals 6 s."
    )


def test_what_is_left_out_of_figures_is_counted_as_it_is_drawn(make_tuning: MakeTuning) -> None:
    many = [make_tuning(direction, seed=B, B=B, most=40) for B in range(1, 31) for direction in ("fwd", "bwd")]
    said = {figure.title: figure.caption for section in sections(many) for figure in section.figures}
    assert said["Time by pass"].endswith(" Of each direction the 12 slowest, 24 of 60 in all.")


def test_one_tuning_alone_gives_a_page(make_tuning: MakeTuning) -> None:
    html = render([make_tuning()], sections([make_tuning()]))
    assert "1 tuning;" in html
    assert "Tuned again" not in html
    bare = replace(make_tuning(), trials=(), finalists=(), winner=None, feasible=0, environment={}, started="")
    assert "Not in these tunings" in render([bare], sections([bare]))


def test_devices_do_not_share_a_figure(make_tuning: MakeTuning, outline: Any) -> None:
    both = [make_tuning(), replace(make_tuning(), environment={"device": "NVIDIA A100"})]
    names = [figure.title for section in sections(both) for figure in section.figures]
    assert names.count("NVIDIA H200: Time by pass") == names.count("NVIDIA A100: Time by pass") == 1
    assert len(names) == len(set(names))
    found = outline(render(both, sections(both)))
    assert len(found.ids) == len(set(found.ids))


def test_records_of_passes_that_are_one_now_give_a_page(make_tuning: MakeTuning) -> None:
    new = make_tuning("bwd")
    old = from_json(to_json(new).replace('"grad_qk"', '"grad_k"'))
    names = [s.key for section in sections([old]) for f in section.figures for p in f.panels for s in p.series]
    assert names.count("grad_k") == 2  # of the winner's time, and of what the model expected
    assert "grad_k" in render([old], sections([old]))


def test_a_large_page_stays_below_half_a_megabyte(make_tuning: MakeTuning) -> None:
    """Of four times as many candidates as are drawn; a tuning more adds 2 KiB."""
    many = [
        make_tuning(direction, seed=i, T=512 * (i + 1), most=300) for i in range(12) for direction in ("fwd", "bwd")
    ]
    found = sections(many)
    (scatter,) = [figure for section in found for figure in section.figures if figure.name == "tuning-model"]
    points = [point for panel in scatter.panels for series in panel.series for point in series.points]
    total = sum(bool(trial.samples_ms) for tuning in many for trial in tuning.trials)
    assert MOST_POINTS / 2 < len(points) <= MOST_POINTS
    assert f"{len(points):,} of {total:,} candidates are drawn" in scatter.caption
    assert len(render(many, found).encode()) < 2**19


def test_the_points_of_the_scatter_are_the_medians(make_tuning: MakeTuning) -> None:
    one = make_tuning(failures=False, most=9)
    (scatter,) = [f for s in sections([one]) for f in s.figures if f.name == "tuning-model"]
    points = {(p.at, p.value) for panel in scatter.panels for s in panel.series for p in s.points}
    assert points == {(t.predicted_ms, sorted(t.samples_ms)[len(t.samples_ms) // 2]) for t in one.trials}


def test_html_with_figures_beside_it(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(results) == 0
    written = Path("reports/local/tune-board-nvidia-h200/index.html")
    assert capsys.readouterr().out.splitlines()[0] == str(written)
    assert "Tuning on NVIDIA H200" in written.read_text()
    kinds = [path.suffix for path in (written.parent / "figures" / written.stem).iterdir()]
    assert kinds.count(".png") == kinds.count(".svg") == written.read_text().count("<figure") == 3


def test_csv_has_a_line_a_tuning(results: Path, few: list[Tuning]) -> None:
    assert run(results, "--format", "csv", "--out", "out.csv") == 0
    lines = list(csv.DictReader(Path("out.csv").read_text().splitlines()))
    assert [line["strategy"] for line in lines] == [tuning.strategy for tuning in few]
    assert [int(line["measured"]) for line in lines] == [tuning.measured for tuning in few]


def test_markdown_and_png(results: Path) -> None:
    assert run(results, "--format", "md", "--out", "out.md") == 0
    text = Path("out.md").read_text()
    assert "| B4 T1k H16 128 | bf16 | forward | open | model |" in text
    assert "## Tuned again" in text
    assert "&lt;b>not&lt;/b>" in text
    assert run(results, "--format", "png", "--out", "figures") == 0
    assert {path.stem for path in Path("figures").iterdir()} == {
        f"tuning-{name}" for name in ("passes", "search", "model")
    }


def test_figures_need_a_time(results: Path, make_tuning: MakeTuning, capsys: pytest.CaptureFixture[str]) -> None:
    bare = replace(make_tuning(), trials=(), finalists=(), winner=None)
    Path("bare.jsonl").write_text(to_json(bare) + "\n")
    assert run("bare.jsonl", "--format", "png") == 2
    assert "no candidate has a time" in capsys.readouterr().err


def test_rows_and_tunings_are_rendered_apart(
    results: Path, board_rows: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    from glabench.store import to_json as row_to_json

    Path("board.jsonl").write_text(row_to_json(board_rows[0]) + "\n")
    assert run(results, "board.jsonl") == 2
    error = capsys.readouterr().err
    assert "render them apart" in error
    assert len(error.splitlines()) == 1
    assert not Path("reports").exists()


@pytest.mark.exhaustive  # as one of rows, by day
def test_a_report_of_tunings_needs_no_torch(results: Path) -> None:
    code = (
        "import sys; from glabench.cli import main\n"
        f"try: main(['report', {str(results)!r}, '--format', 'csv', '--out', 'page'])\n"
        "except SystemExit as e: assert not e.code, e.code\n"
        "assert not {'torch', 'triton'} & set(sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
