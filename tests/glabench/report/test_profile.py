"""The report of profiles: its answer, its figures and tables, its page in a browser, and its other formats."""

from __future__ import annotations

import base64
import csv
import gzip
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from glabench.analysis.load import Profiled
from glabench.analysis.profile import Call, calls
from glabench.cli import main
from glabench.report import bars, draw, profile_answers, profile_tables, profile_text
from glabench.report.model import Panel, Point, Series
from glabench.report.profile import render
from glabench.report.profile_figures import sections
from glabench.report.profile_traces import LARGEST, traces
from glabench.store import Row, to_json

MakeProfile = Callable[..., Row]


def at(rows: list[Row], folder: Path = Path("traces")) -> list[Profiled]:
    return [Profiled(row, folder) for row in rows]


def found(rows: list[Row]) -> list[Call]:
    return calls(at(rows))


def page_of(rows: list[Row], folder: Path = Path("traces")) -> str:
    profiled = at(rows, folder)
    return render(profiled, calls(profiled), sections(calls(profiled)))


@pytest.fixture
def results(profile_rows: list[Row], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of profiles, the current directory beside it."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "profile-board-nvidia-h200.jsonl"
    path.write_text("".join(f"{to_json(row)}\n" for row in profile_rows))
    return path


def run(*arguments: object) -> int:
    try:
        main(["report", *map(str, arguments)])
    except SystemExit as exit:
        return int(exit.code or 0)
    return 0


def test_the_page_stands_alone_and_is_well_formed(profile_page: str, outline: Any) -> None:
    found = outline(profile_page)
    assert found.loads == []
    assert found.open == []
    assert len(found.ids) == len(set(found.ids))
    anchors = set(re.findall(r'<a href="#([\w-]+)"', profile_page))
    assert anchors <= set(found.ids)
    assert {"answer", "roofline", "time", "traffic", "floor", "chunks", "energy", "memory", "ceilings"} <= anchors


def test_nothing_from_a_row_becomes_markup(make_profile: MakeProfile, outline: Any) -> None:
    row = make_profile(ncu=True, trace="<i>t.json.gz")
    assert row.profile is not None
    evil = "<script>x</script> \"><b>'"
    kernels = [{**kernel, "name": evil, "step": evil} for kernel in row.profile["kernels"]]
    target = {**row.profile["target"], "name": evil}
    ceilings = {**row.profile["ceilings"], "conditions": {evil: evil}, "url": evil}
    said = {"version": None, "refused": evil}
    bad = replace(row, profile={**row.profile, "kernels": kernels, "target": target, "ceilings": ceilings,
                                "notes": [evil], "ncu": said})  # fmt: skip
    html = page_of([bad])
    assert "<script>x" not in html
    assert "<b>'" not in html
    assert "<i>t" not in html
    assert outline(html).open == []


def test_what_could_not_be_had_is_said_with_its_reason(profile_page: str, profile_rows: list[Row]) -> None:
    assert "&lt;b&gt;ERR_NVGPUCTRPERM&lt;/b&gt;: counters are for root here" in profile_page
    assert "parts: only the forward of a schedule that materializes is taken apart" in profile_page
    (failure,) = profile_tables.failures(at(profile_rows))
    assert (failure.status, failure.reason) == ("out of memory", "CUDA out of memory: asked for 48.00 GiB")
    refused = [row for row in profile_rows if row.profile and (row.profile["ncu"] or {}).get("refused")]
    assert "ncu was refused, so the model stands alone: &lt;b&gt;" in page_of(refused)
    said = (refused[0].profile or {})["ncu"]["refused"]
    twice = replace(refused[0], profile={**(refused[0].profile or {}), "notes": [f"ncu: {said}"]})
    assert [note for note, _ in profile_tables.notes(found([twice]))] == [f"ncu: {said}"]


def test_the_answer_names_the_kernel_with_most_to_win(make_profile: MakeProfile) -> None:
    (call,) = found([make_profile("fwdbwd", ncu=True)])
    table = profile_answers.table([call])
    lines = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert [line["direction"].text for line in lines] == ["forward (of both)", "backward (of both)"]
    for line, part in zip(lines, call.parts, strict=True):
        most = max(part.kernels, key=lambda kernel: kernel.ms - kernel.bound_ms)
        assert line["improve next"].text == profile_text.kernel(most)
        assert line["win at most, ms"].value == pytest.approx(most.ms - most.bound_ms)
        assert line["win at most %"].value == pytest.approx(100 * (most.ms - most.bound_ms) / part.ms)
    said = {f.lead: (f.figure, f.sentence) for f in profile_answers.findings([call])}
    assert said["is the kernel to improve next, backward"][0] == "grad_qk"
    agreeing = "kernels moved what the model expects, within 10%, by the counters of ncu"
    assert said[agreeing][0] == "5 of 6"
    assert "re-reads went to HBM (hit rate 41%)" in said[agreeing][1]


def test_sums_that_are_off_are_flagged(make_profile: MakeProfile) -> None:
    row = make_profile()
    assert row.profile is not None
    slow = replace(row, profile={**row.profile, "samples_ms": [2 * x for x in row.profile["samples_ms"]]})
    for one, flag in ((row, ""), (slow, "bad")):
        table = profile_tables.sums(found([one]))
        (line,) = table.rows
        assert line[table.columns.index("kernels %")].flag == flag
    assert any("off by more than 5%" in f.sentence for f in profile_answers.findings(found([slow])))


def test_traffic_columns_follow_the_counters(make_profile: MakeProfile) -> None:
    with_counters = profile_tables.traffic_table(found([make_profile(ncu=True)]))
    assert "difference %" in with_counters.columns
    cells = dict(zip(with_counters.columns, with_counters.rows[0], strict=True))
    assert cells["what explains it"].text == "within 10 %; 30.0 MiB of its writes were still in L2 when it ended"
    without = profile_tables.traffic_table(found([make_profile()]))
    assert "difference %" not in without.columns
    assert len(without.rows) == 2
    for table in (with_counters, without):
        assert sum(span for _, span in table.groups) == len(table.columns) == len(table.rows[0])


def test_a_machine_without_a_gpu_predicts_and_says_so(make_profile: MakeProfile) -> None:
    html = page_of([make_profile("fwdbwd", measured=False)])
    assert "Predicted profile on NVIDIA H200" in html
    assert "All times are predicted" in html
    assert "How kernels add up" not in html
    names = [figure.name for s in sections(found([make_profile(measured=False)])) for figure in s.figures]
    assert names == ["profile-roofline", "profile-time"]
    cells = profile_tables.kernels(found([make_profile(measured=False)])).rows[0]
    assert any(cell.text.endswith(" predicted") for cell in cells)


def test_measured_and_predicted_do_not_share_a_figure(profile_rows: list[Row]) -> None:
    titles = [figure.title for section in sections(found(profile_rows)) for figure in section.figures]
    assert titles.count("NVIDIA H200: Roofline") == titles.count("NVIDIA H200, predicted: Roofline") == 1
    assert len(titles) == len(set(titles))


def test_the_roofline_has_every_kernel_under_its_roofs(make_profile: MakeProfile) -> None:
    (call,) = found([make_profile("fwdbwd")])
    (figure,) = next(s for s in sections([call]) if s.name == "roofline").figures
    hbm, _ = figure.panels
    points = {(p.at, p.value) for s in hbm.series for p in s.points}
    assert points == {(k.intensity, k.flops_per_s / 1e12) for k in call.kernels}
    assert [roof.title for roof in hbm.roofs] == [
        "HBM 4.20 TB/s", "bf16 tensor 740 TFLOP/s", "tf32 tensor 380 TFLOP/s", "fp32 CUDA 59.0 TFLOP/s",
    ]  # fmt: skip
    slope = next(roof.rate for roof in hbm.roofs if roof.sloped)
    assert all(value <= at * slope for at, value in points)


def test_bars_add_up_to_the_span(make_profile: MakeProfile) -> None:
    found_calls = found([make_profile("fwdbwd"), make_profile("fwdbwd", T=8192)])
    (figure,) = next(s for s in sections(found_calls) if s.name == "time").figures
    (panel,) = figure.panels
    assert panel.categories == ("B4 T4k H16 128", "B4 T8k H16 128")
    for place, call in enumerate(found_calls):
        length = sum(p.value for s in panel.series for p in s.points if p.at == place)
        assert length == pytest.approx(call.span_ms, rel=1e-3)
    assert [s.key for s in panel.series][-1] == "gaps"


def test_calls_of_very_different_length_are_drawn_as_shares(make_profile: MakeProfile) -> None:
    both = found([make_profile("fwd", B=1, T=128, H=1), make_profile("fwd", B=16, T=16384)])
    (figure,) = next(s for s in sections(both) if s.name == "time").figures
    (panel,) = figure.panels
    assert panel.value_label == "share of the call, %"
    for place in (0, 1):
        assert sum(p.value for s in panel.series for p in s.points if p.at == place) == pytest.approx(100)


def test_pieces_of_a_bar_follow_one_another() -> None:
    states = Series("states", "states", (Point(0, 2.0), Point(1, 1.0), Point(0, 3.0)))
    panel = Panel("", "", "ms", (states, Series("gaps", "gaps", (Point(0, 4.0),))), ("a", "b"), stacked=True)
    placed = [(point.at, start, point.value) for _, point, start in bars.pieces(panel)]
    assert placed == [(0, 0, 2), (1, 0, 1), (0, 2, 3), (0, 5, 4)]


def test_floor_and_chunks_need_several_sizes(profile_rows: list[Row], make_profile: MakeProfile) -> None:
    names = {s.name: [f.name for f in s.figures] for s in sections(found([make_profile()]))}
    assert names["floor"] == names["chunks"] == []
    measured = [row for row in profile_rows if row.profile and row.profile["target"]["here"]]
    by_name = {f.name: f for s in sections(found(measured)) for f in s.figures}
    (panel,) = by_name["profile-chunks"].panels
    assert {s.key: [p.at for p in s.points] for s in panel.series} == {
        "intra": [16, 64, 128, 256], "inter": [16, 64, 128, 256],
    }  # fmt: skip
    lengths = by_name["profile-floor-t"].panels[0].series[0].points
    assert [p.at for p in lengths] == [1024, 4096, 16384]
    assert all(p.value > 1 for p in lengths)
    assert [p.at for p in by_name["profile-floor-chunk"].panels[0].series[0].points] == [16, 64, 128, 256]


def test_energy_a_token_and_memory(make_profile: MakeProfile) -> None:
    (call,) = found([make_profile()])
    energy = profile_tables.energy([call])
    cells = dict(zip(energy.columns, energy.rows[0], strict=True))
    assert cells["mJ a token"].value == pytest.approx(700 / (4 * 4096))
    memory = profile_tables.memory([call])
    kinds = call.profile["memory"]["kinds"]
    assert memory.rows[0][2].value == pytest.approx(sum(kinds.values()) / 2**20)
    assert len(memory.rows[0]) == len(memory.columns) == sum(span for _, span in memory.groups)


def test_small_traces_are_in_the_page_and_others_named(tmp_path: Path, make_profile: MakeProfile) -> None:
    small = gzip.compress(b'{"traceEvents": []}')
    (tmp_path / "small.json.gz").write_bytes(small)
    (tmp_path / "large.json.gz").write_bytes(b"0" * (LARGEST + 1))
    rows = [make_profile(trace=f"{name}.json.gz", T=t) for name, t in (("small", 64), ("large", 128), ("gone", 256))]
    one, large, gone = traces(calls(at(rows, tmp_path)))
    assert base64.b64decode(one.address.removeprefix("data:application/gzip;base64,")) == small
    assert (large.address, gone.address) == ("", "")
    assert large.said.endswith(f"{tmp_path.name}/large.json.gz")
    assert "not found" in gone.said
    html = page_of(rows, tmp_path)
    assert f'<a download="small.json.gz" href="{one.address}">' in html
    assert html.count("data:application/gzip") == 1


def test_a_profile_of_nothing_gives_a_page(make_profile: MakeProfile) -> None:
    row = make_profile()
    assert row.profile is not None
    bare = replace(row, profile={**dict.fromkeys(row.profile), "notes": ["kernels: the profiler saw none"]})
    html = page_of([bare])
    assert "kernels: the profiler saw none" in html
    assert "Nothing can be said of where the time goes." in html


def test_every_table_is_as_wide_as_its_head(profile_rows: list[Row]) -> None:
    everything = found(profile_rows)
    makers = (profile_answers.table, profile_tables.sums, profile_tables.traffic_table, profile_tables.energy,
              profile_tables.memory, profile_tables.parts, profile_tables.kernels)  # fmt: skip
    for make in makers:
        table = make(everything)
        assert table.rows
        assert {len(row) for row in table.rows} == {len(table.columns)} == {len(table.numeric)}
        numeric = [cell for row in table.rows for cell, n in zip(row, table.numeric, strict=True) if n]
        assert all(cell.value is None or math.isfinite(cell.value) for cell in numeric)


def test_html_with_figures_beside_it(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, *_, predicted, _ = results.read_text().splitlines()
    results.write_text(f"{first}\n{predicted}\n")
    assert run(results) == 0
    written = Path("reports/local/profile-board-nvidia-h200/index.html")
    assert capsys.readouterr().out.splitlines()[0] == str(written)
    assert "Profile on NVIDIA H200" in written.read_text()
    kinds = [path.suffix for path in (written.parent / "figures" / written.stem).iterdir()]
    assert kinds.count(".png") == kinds.count(".svg") == written.read_text().count("<figure") == 5


def test_other_formats(results: Path, profile_rows: list[Row]) -> None:
    assert run(results, "--format", "csv", "--out", "out.csv") == 0
    lines = list(csv.DictReader(Path("out.csv").read_text().splitlines()))
    assert len(lines) == sum(len(row.profile["kernels"]) for row in profile_rows if row.profile)
    assert {line["bound_by"] for line in lines} == {"hbm"}
    assert run(results, "--format", "md", "--out", "out.md") == 0
    text = Path("out.md").read_text()
    assert "## What to improve next" in text
    assert "| counted by ncu, MiB: read |" in text
    assert "&lt;b>ERR_NVGPUCTRPERM" in text
    first, *_, predicted, _ = results.read_text().splitlines()
    Path("few.jsonl").write_text(f"{first}\n{predicted}\n")
    assert run("few.jsonl", "--format", "png", "--out", "figures") == 0
    assert "profile-nvidia-h200-roofline" in {path.stem for path in Path("figures").iterdir()}


def test_figures_need_a_time(results: Path, make_profile: MakeProfile, capsys: pytest.CaptureFixture[str]) -> None:
    row = make_profile()
    assert row.profile is not None
    Path("bare.jsonl").write_text(to_json(replace(row, profile=dict.fromkeys(row.profile))) + "\n")
    assert run("bare.jsonl", "--format", "png") == 2
    assert "no kernel has a time" in capsys.readouterr().err


def test_profiles_and_measured_rows_are_rendered_apart(
    results: Path, board_rows: list[Row], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("board.jsonl").write_text(to_json(board_rows[0]) + "\n")
    assert run(results, "board.jsonl") == 2
    error = capsys.readouterr().err
    assert "render them apart" in error
    assert len(error.splitlines()) == 1
    assert not Path("reports").exists()


@pytest.mark.exhaustive  # as one of rows, by day
def test_a_report_of_profiles_needs_no_torch(results: Path) -> None:
    code = (
        "import sys; from glabench.cli import main\n"
        f"try: main(['report', {str(results)!r}, '--format', 'md', '--out', 'page'])\n"
        "except SystemExit as e: assert not e.code, e.code\n"
        "assert not {'torch', 'triton'} & set(sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_names_of_roofs_are_clear_of_points(make_profile: MakeProfile) -> None:
    (call,) = found([make_profile("fwdbwd")])
    (figure,) = next(s for s in sections([call]) if s.name == "roofline").figures
    for axes, panel in zip(draw.whole(figure).axes, figure.panels, strict=True):
        marks = [axes.transData.transform((p.at, p.value)) for s in panel.series for p in s.points]
        titles = [words for words in axes.texts if words.get_text() in {r.title for r in panel.roofs if not r.sloped}]
        assert len(titles) == 3
        for box in (words.get_window_extent() for words in titles):
            assert not [mark for mark in marks if box.x0 <= mark[0] <= box.x1 and box.y0 <= mark[1] <= box.y1]
            assert box.x0 > axes.get_window_extent().x0
