"""What a call costs beside its kernels: each panel its own time, all of one case; what is kept."""

from __future__ import annotations

import statistics
from dataclasses import replace

from glabench.analysis.compare import EAGER, answers, eager
from glabench.analysis.frame import frame
from glabench.report.eager import figures, kept
from glabench.report.headline import findings
from glabench.report.model import Figure, Panel
from glabench.store import Row

AT = {"B": 4, "T": 2048, "H": 16, "K": 128, "V": 128, "mode": "fwdbwd"}


def some(board_rows: list[Row]) -> list[Row]:
    """Two shapes, forward and both directions."""
    wanted = ((4, 2048), (1, 8192))
    return [row for row in board_rows if (row.case["B"], row.case["T"]) in wanted and row.case["mode"] != "bwd"]


def values(panel: Panel, key: str) -> list[float]:
    return [point.value for one in panel.series if one.key == key for point in one.points]


def named(found: tuple[Figure, ...], start: str) -> Figure:
    return next(figure for figure in found if figure.name.startswith(start))


def test_the_three_times_of_a_call_are_beside_each_other_on_one_scale(board_rows: list[Row]) -> None:
    figure = named(figures(frame(some(board_rows))), "eager-nvidia")
    assert [panel.title for panel in figure.panels] == ["Kernels", "Queued in", "Wall, eager"]
    assert "forward + backward" in figure.title
    assert len({panel.value_range for panel in figure.panels}) == 1
    (row,) = (row for row in board_rows if AT.items() <= row.case.items() and row.case["system"] == "fla")
    assert row.time
    raw = (row.time["samples_ms"], row.time["eager"]["host_ms"], row.time["eager"]["wall_ms"])
    for panel, samples in zip(figure.panels, raw, strict=True):
        assert statistics.median(samples) in values(panel, "fla")


def test_with_eager_calls_for_kernels_what_follows_from_the_time_does_too(board_rows: list[Row]) -> None:
    table = frame(some(board_rows))
    calls = eager(table)
    assert set(calls["clock"]) == {EAGER}
    timed = table.loc[calls.index]
    assert list(calls["ms"]) == list(timed["wall_ms"])
    ratio = timed["wall_ms"] / timed["ms"]
    assert ((calls["over_floor"] / timed["over_floor"] / ratio).sub(1).abs() < 1e-9).all()
    assert ((calls["tokens_per_s"] / timed["tokens_per_s"] * ratio).sub(1).abs() < 1e-9).all()


def test_rows_without_the_time_of_an_eager_call_give_no_figure(board_rows: list[Row]) -> None:
    rows = [
        replace(row, time=row.time and {key: value for key, value in row.time.items() if key != "eager"})
        for row in some(board_rows)
    ]
    assert figures(frame(rows)) == ()
    assert not any("eager" in finding.lead for finding in findings(frame(rows), "NVIDIA H200"))


def test_what_is_kept_is_drawn_once_a_shape_and_nothing_is_said(board_rows: list[Row]) -> None:
    rows = [row for row in board_rows if AT.items() <= row.case.items()]
    both = [replace(row, case=row.case | {"mode": mode}, case_id=row.case_id + mode) for row in rows for mode in MODES]
    (figure,) = kept(answers(frame(both)))
    (panel,) = figure.panels
    (row,) = (row for row in rows if row.case["system"] == "fla")
    assert row.memory
    assert values(panel, "fla") == [row.memory["kept_bytes"] / 2**20]
    assert values(panel, "gla:wo") == []  # 0 has no place on a log scale
    assert "Nothing, which is not drawn: GLA without states" in figure.caption


MODES = ("bwd", "fwdbwd")
