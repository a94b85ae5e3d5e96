"""Figures: the points are the data, the SVG is themed, the files are what they say."""

from __future__ import annotations

import re
import statistics
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from matplotlib.text import Text

from glabench.analysis.frame import frame
from glabench.report import chart, draw, ticks
from glabench.report.figures import sections
from glabench.report.model import Figure, Panel, Point, Section, Series
from glabench.report.parts import MOST_CATEGORIES
from glabench.report.text import length, number, rate, times
from glabench.store import Row

Figures = dict[str, tuple[Figure, ...]]
FA2 = "fa2:16x64"  # at 4 heads of 128 x 256, as in the papers


def figures(rows: list[Row]) -> Figures:
    return by_name(sections(frame(rows)))


def by_name(found: Iterable[Section]) -> Figures:
    return {section.name: section.figures for section in found}


@pytest.fixture(scope="module")
def board_figures(board_sections: list[Section]) -> Figures:
    return by_name(board_sections)


def panel(figure: Figure, title: str) -> Panel:
    return next(p for p in figure.panels if p.title == title)


def points(panel: Panel, key: str) -> dict[float, float]:
    return {p.at: p.value for p in next(s for s in panel.series if s.key == key).points}


def median(rows: list[Row], system: str, **wanted: object) -> float:
    (row,) = (r for r in rows if r.case["system"] == system and wanted.items() <= r.case.items())
    assert row.time
    return statistics.median(row.time["samples_ms"])


def test_points_over_length_are_medians(board_rows: list[Row], board_figures: Figures) -> None:
    forward = panel(board_figures["speed"][0], "forward")
    drawn = points(forward, FA2)
    assert set(drawn) == {1024, 4096, 16384}
    assert drawn[4096] == median(board_rows, "fa2", B=8, T=4096, H=4, mode="fwd")


def test_the_chart_beside_a_baseline_is_the_ratio_of_medians(board_rows: list[Row]) -> None:
    some = ("fla", "fa2", "gla_recurrent")
    ((_, found),) = chart.choices(frame([row for row in board_rows if row.case["system"] in some]))
    keys = [choice.key for choice in found]
    assert keys[0] == "fla"
    assert keys[-2:] == ["ms", "eager"]
    over_fa2 = next(choice.figure for choice in found if choice.key == "fa2")
    both = panel(over_fa2, "forward + backward")
    at = {"B": 8, "T": 4096, "H": 4, "mode": "fwdbwd"}
    expected = median(board_rows, "fa2", **at) / median(board_rows, "fla", **at)
    assert points(both, "fla")[4096] == pytest.approx(expected)
    assert both.reference == (1.0, "as fast as FlashAttention-2")
    assert "fa2" not in dict(over_fa2.keys)  # it is the line
    times = next(choice.figure for choice in found if choice.key == "ms")
    assert points(panel(times, "forward + backward"), "fla")[4096] == median(board_rows, "fla", **at)


def test_the_chart_has_gates_for_series_where_they_go_across(at_strengths: Callable[..., list[Row]]) -> None:
    rows = [row for row in at_strengths(1.0) if row.case["materialize"]]
    rounded = [replace(row, case=row.case | {"gate_dtype": "fp32"}, case_id=f"{row.case_id}, fp32") for row in rows]
    ((_, found),) = chart.choices(frame([*rows, *rounded]))
    assert {key: title for choice in found for key, title in choice.figure.keys} == {
        "gla:w": "gates in the dtype of q", "gla:w:1 in fp32": "gates in fp32",
    }  # fmt: skip


def test_chunk_figure_takes_the_fastest_sub_chunk(board_rows: list[Row], board_figures: Figures) -> None:
    forward = panel(board_figures["schedule"][0], "forward")
    fastest = min(
        median(board_rows, "gla", T=4096, H=4, mode="fwd", chunk=128, sub_chunk=sub, materialize=True)
        for sub in (16, 64)
    )
    assert points(forward, "gla:w")[128] == fastest
    assert set(points(forward, "gla:w")) == {16, 64, 128, 256}


def test_gate_strengths_are_in_the_order_of_numbers(board_rows: list[Row]) -> None:
    some = [row for row in board_rows if row.case["system"] == "gla" and row.case["T"] == 2048 and row.time][:1]
    rows = [
        replace(row, case_id=str(m), case=row.case | {"gate_strength": m})
        for row in some
        for m in (16.0, 1e4, 4.0, 0.06, None)
    ]
    (figure,) = figures(rows)["speed"]
    ends = [name.split("\nbf16, ")[1] for name in figure.panels[0].categories]
    assert ends == ["no gates", *(f"gate strength {m}" for m in ("0.06", "4", "16", "10000"))]


def test_a_gate_strength_of_1_is_named_beside_others(at_strengths: Callable[..., list[Row]]) -> None:
    def named(*wanted: float | None) -> list[str]:
        (figure,) = figures(at_strengths(*wanted))["speed"]
        return [name for panel in figure.panels for name in panel.categories]

    shape = "B4 T2k H16 128\nbf16"
    assert named(0.3, 1.0) == [f"{shape}, gate strength 0.3", f"{shape}, gate strength 1"]
    assert named(None, 1.0) == [f"{shape}, no gates", shape]
    assert named(1.0) == ["B4 T2k H16 128"]


def test_one_panel_with_many_categories_becomes_two_on_one_scale(
    at_strengths: Callable[..., list[Row]], strengths_sections: list[Section]
) -> None:
    (drawn,) = by_name(strengths_sections)["speed"]
    for figure in (drawn, replace(drawn, title="again")):
        left, right = figure.panels
        assert [len(panel.categories) for panel in figure.panels] == [4, 3]
        assert (left.title, right.title) == ("forward + backward, 1 of 2", "forward + backward, 2 of 2")
        assert [s.key for s in left.series] == [s.key for s in right.series]
        for one, other in zip(left.series, right.series, strict=True):
            assert [p.at for p in one.points] == [0, 1, 2, 3]
            assert [p.at for p in other.points] == [0, 1, 2]
        limits = [axes.get_xlim() for axes in draw.whole(figure).axes]
        assert limits[0] == limits[1]
        values = [p.value for s in (*left.series, *right.series) for p in s.points]
        assert limits[0][0] < min(values) < max(values) < limits[0][1]
    (few,) = figures(at_strengths(0.06, 0.3, 1.0, 4.0, 16.0))["speed"]
    assert len(few.panels) == 1


def test_words_stay_inside_a_panel_with_long_categories() -> None:
    names = tuple(f"B2 T4k H8 128×256 bf16, gate strength 1000{i}" for i in range(3))
    found = Series("gla", "GLA", (Point(0, 0.19), Point(1, 0.3), Point(2, 4.1)))
    label = "speed-up over FlashAttention-2, 16 heads of 64, ×"
    panel = Panel("memory, forward + backward", "", label, (found,), categories=names)
    canvas = draw.whole(Figure("f", "f", "", (panel, panel)))
    half = canvas.bbox.width / 2
    for i, axes in enumerate(canvas.axes):
        texts = [words for words in axes.findobj(Text) if words.get_text() in (panel.title, label)]
        assert len(texts) == 2
        for box in (words.get_window_extent() for words in texts):
            assert i * half <= box.x0 < box.x1 <= (i + 1) * half + 1
        boxes = [words.get_window_extent() for words in axes.get_xticklabels()]
        assert len(boxes) > 1
        assert all(one.x1 < other.x0 for one, other in pairwise(boxes))


def test_a_long_title_stays_inside_its_figure() -> None:
    found = Series("gla", "GLA", (Point(0, 0.19), Point(1, 4.1)))
    panel = Panel("forward", "", "tokens/s", (found,), categories=("one sequence", "packed"))
    short, long = (draw.whole(Figure("f", title, "", (panel,))) for title in ("Packed", "Packed sequences of " * 9))
    for canvas in (short, long):
        (title,) = (words for words in canvas.texts if words.get_text().startswith("Packed"))
        box = title.get_window_extent()
        assert 0 <= box.x0 < box.x1 <= canvas.bbox.width
        assert box.y1 <= canvas.bbox.height + 1
    assert long.get_figheight() > short.get_figheight()


def test_a_panel_on_the_page_has_a_hit_with_values_for_every_point(board_figures: Figures) -> None:
    forward = panel(board_figures["speed"][0], "forward")
    svg = ElementTree.fromstring(draw.panel_svg(forward, "p0"))
    hits = [e for e in svg.iter() if e.get("class") == "hit"]
    assert len(hits) == sum(len(s.points) for s in forward.series)
    width, height = map(float, svg.attrib["viewBox"].split()[2:])
    assert all(0 < float(h.attrib["cx"]) < width and 0 < float(h.attrib["cy"]) < height for h in hits)
    tip = next(h for h in hits if h.attrib["data-s"] == FA2).findtext("title") or ""
    assert tip.startswith("FlashAttention-2, 16 heads of 64\nB32 T1k H4 128×256, forward\n")


def test_hits_lie_on_the_markers() -> None:
    at = tuple(Point(float(2**i), 10.0 ** (i % 3), tip="t") for i in range(8, 13))
    svg = draw.panel_svg(Panel("p", "T", "ms", (Series("fa2", "FA2", at),)), "p")
    (line,) = re.findall(r'<g data-s="fa2">(.*?)</g></g>', svg, re.DOTALL)
    markers = [(float(x), float(y)) for x, y in re.findall(r'<use [^>]*?x="([\d.]+)" y="([\d.]+)"', line)]
    hits = [(float(x), float(y)) for x, y in re.findall(r'class="hit"[^>]*? cx="([\d.]+)" cy="([\d.]+)"', svg)]
    assert len(markers) == len(hits) == 5
    for (mx, my), (hx, hy) in zip(markers, hits, strict=True):
        assert abs(mx - hx) < 0.2
        assert abs(my - hy) < 0.2


def test_colours_on_the_page_are_variables(board_figures: Figures) -> None:
    svg = draw.panel_svg(panel(board_figures["speed"][0], "forward"), "p0")
    assert "var(--c-vermillion)" in svg
    assert not re.search(r"(?:fill|stroke): #[0-9a-f]{6}", svg)
    assert "<style" not in svg  # a style element inside would reach the whole page


def test_ticks_are_plain_numbers_that_tell_values_apart() -> None:
    at = (Point(1024.0, 0.0012), Point(16384.0, 95.0))
    svg = draw.panel_svg(Panel("p", "T", "ms", (Series("gla", "GLA", at),)), "p")
    labels = re.findall(r"<text[^>]*>([^<]*)</text>", svg)
    assert {"1k", "16k", "0.01", "10"} <= set(labels)
    assert len(labels) == len(set(labels))


@pytest.mark.parametrize("values", [(1.0,), (1.0, 1.01), (0.5, 0.9), (1e-4, 1e5)])
def test_any_range_of_values_gets_ticks(values: tuple[float, ...]) -> None:
    at = tuple(Point(1024.0 * 2**i, value) for i, value in enumerate(values))
    svg = draw.panel_svg(Panel("p", "T", "ms", (Series("gla", "GLA", at),)), "p")
    ticks = [label for label in re.findall(r"<text[^>]*>([^<]*)</text>", svg) if re.fullmatch(r"[\d.,]+", label)]
    assert len(ticks) >= 2


def test_values_near_each_other_get_round_ticks() -> None:
    assert ticks.values(540.0, 2700.0, most=6)[1] == ["700", "1,000", "1,500", "2,000"]


def test_each_picture_has_words_of_its_own(board_page: str) -> None:
    found = re.findall(r'role="img" aria-label="([^"]*)"', board_page)
    assert len(set(found)) == len(found) > 10
    assert all(not label.startswith(":") for label in found)


def test_ungated_questions_are_compared_with_linear_attention(board_rows: list[Row]) -> None:
    some = [row for row in board_rows if row.case["system"] in ("fla", "fa2") and row.case["H"] == 4]
    names = {"fla": "gla", "fa2": "fla_linear"}
    rows = [replace(row, case=row.case | {"system": names[row.case["system"]], "gate_strength": None}) for row in some]
    found = figures(rows)
    ((_, choices),) = chart.choices(frame(rows))
    assert choices[0].title == "FLA linear, no gates"
    assert (
        "as fast as those of FLA linear" in found["speed"][0].caption
        or "FLA linear, no gates first" in found["speed"][0].caption
    )


def test_files_are_png_and_svg_with_text(board_figures: Figures, tmp_path: Path) -> None:
    figure = board_figures["speed"][0]
    png, svg = draw.write(figure, tmp_path)
    assert png.read_bytes().startswith(b"\x89PNG")
    tree = ElementTree.parse(svg)
    words = [e.text for e in tree.iter("{http://www.w3.org/2000/svg}text")]
    assert "median time, ms" in words
    assert "FlashAttention-2, 16 heads of 64" in words
    before = svg.read_bytes()
    draw.write(figure, tmp_path)
    assert svg.read_bytes() == before  # the same rows give the same file


def test_wide_intervals_are_drawn_and_narrow_ones_are_not() -> None:
    def bars(low: float, high: float) -> int:
        point = Point(1024.0, 1.0, low, high)
        svg = draw.panel_svg(Panel("p", "T", "ms", (Series("gla", "GLA", (point, Point(2048.0, 1.0))),)), "p")
        return svg.count('<g data-s="gla">')

    assert bars(0.999, 1.001) == 1
    assert bars(0.8, 1.3) > 1


def test_numbers_as_people_write_them() -> None:
    assert [number(x) for x in (0.01234, 1.234, 12.34, 12345.0, 0.0)] == ["0.0123", "1.23", "12.3", "12,345", "0"]
    assert number(float("nan")) == "–"
    assert number(float("inf")) == "∞"
    assert (times(0.654), times(1.0), times(340.2)) == ("0.65×", "1.00×", "340×")
    assert [length(t) for t in (256, 1024, 3001, 16384)] == ["256", "1k", "3001", "16k"]
    assert (rate(13.6e6), rate(850e3), rate(12.0)) == ("13.6 M", "850 k", "12.0")


def test_a_loop_off_the_scale_is_told_not_drawn(
    board_rows: list[Row], board_figures: Figures, quick_rows: list[Row]
) -> None:
    on_gpu = board_figures["speed"][0]
    at = {"H": 4, "K": 128, "mode": "fwd", "system": "recurrent_torch"}
    medians = [statistics.median(r.time["samples_ms"]) for r in board_rows if r.time and at.items() <= r.case.items()]
    assert "recurrent_torch" not in dict(on_gpu.keys)
    assert f"PyTorch recurrent, forward {number(min(medians))} to {number(max(medians))} ms;" in on_gpu.caption
    on_cpu = figures(quick_rows)["speed"][0]
    assert "recurrent_torch" in dict(on_cpu.keys)
    assert "Off the scale" not in on_cpu.caption  # what falls behind along T is what a line is drawn for
    ends = [point for one in on_cpu.panels[0].series if one.key == "parallel_torch" for point in one.points]
    assert max(point.at for point in ends) == 4096


def test_devices_are_told_apart(board_rows: list[Row], quick_rows: list[Row]) -> None:
    on_gpu = [row for row in board_rows if row.case["mode"] == "fwd" and row.case["T"] < 4096]
    both = figures(quick_rows + on_gpu)["speed"]
    assert both[0].title.startswith("NVIDIA H200: ")
    assert both[-1].title.startswith("AMD EPYC 9554: ")
    assert len({figure.name for figure in both}) == len(both)


def test_a_figure_of_more_shapes_than_there_is_room_for_says_so(board_rows: list[Row]) -> None:
    row = next(row for row in board_rows if row.case["system"] == "gla" and row.case["mode"] == "fwd" and row.time)
    for count, says in (
        (MOST_CATEGORIES, "forward, 1"),
        (MOST_CATEGORIES + 2, "forward, the first 24 of 26 shapes, 1"),
    ):
        shapes = [replace(row, case=row.case | {"B": n + 1}, case_id=str(n)) for n in range(count)]
        (found,) = figures(shapes)["speed"]
        assert found.panels[0].title.startswith(says)
        assert sum(len(panel.categories) for panel in found.panels) == MOST_CATEGORIES
