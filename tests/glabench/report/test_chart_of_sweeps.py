"""The chart of sweeps in which something else than a few shapes varies: contexts, head dimensions, kinds of gates."""

from __future__ import annotations

from collections.abc import Callable

from glabench.analysis import labels
from glabench.analysis.frame import frame
from glabench.report import chart
from glabench.report.lengths import CONTEXT_LABEL
from glabench.report.model import Figure
from glabench.report.parts import MS, US
from glabench.report.shapes import K_LABEL
from glabench.report.style import style
from glabench.spec.case import Case

from .test_schedule_matrix import made_up


def charts(name: str, ms: Callable[[Case], float]) -> dict[str, Figure]:
    """The chart of a sweep, beside ours and FlashAttention-2 alone: each baseline takes its time."""
    rows = [row for row in made_up(name, ms) if row.case["system"] in ("gla", "gla_recurrent", "fa2")]
    ((_, found),) = chart.choices(frame(rows))
    return {choice.key: choice.figure for choice in found}


def test_decoding_begins_with_what_a_token_costs_over_its_context() -> None:
    found = charts("decode", lambda c: c.T / 2**16 if c.attn_heads else 0.01)
    assert next(iter(found)) == chart.TIMES
    panels = found[chart.TIMES].panels
    assert [panel.title for panel in panels] == [f"one decoding step, B{batch} H16 128" for batch in (1, 16, 64)]
    assert {(panel.at_label, panel.value_label) for panel in panels} == {(CONTEXT_LABEL, US)}
    values = {one.key: [round(point.value, 3) for point in one.points] for one in panels[0].series}
    assert values["gla_recurrent"] == [10.0] * 4
    assert values["fa2"] == [15.625, 62.5, 250.0, 1000.0]  # far off at the end, and drawn: that is the news
    slow = charts("decode", lambda c: 5.0)[chart.TIMES].panels[0]
    assert (slow.value_label, slow.series[0].points[0].value) == (MS, 5.0)


def test_head_dimensions_are_lines_that_say_where_they_cross() -> None:
    found = charts("head_dim", lambda c: 1.0 if c.attn_heads else 0.1 * (c.K / 16) if c.chunk is None else 20.0)["fa2"]
    lines = [panel for panel in found.panels if panel.at_label == K_LABEL]
    assert [panel.title for panel in lines] == ["forward", "forward + backward"]
    assert [point.at for point in lines[0].series[0].points] == [32, 64, 128, 256, 512]
    assert "GLA, default schedule falls behind at K ≈ 160 (forward)" in found.caption
    others = [panel.title for panel in found.panels if panel.categories]  # heads that share keys
    assert others == ["forward, other shapes", "forward + backward, other shapes"]


def test_kinds_of_gates_are_lines_in_the_colour_of_their_schedule() -> None:
    figure = charts("value_gates", lambda c: c.T / 2000 if c.attn_heads else 1.5 if c.value_gate else 1.0)["fa2"]
    assert dict(figure.keys)["gla:w:1 + value side"] == "GLA with states, gates on both sides"
    assert "GLA, default schedule, gates on both sides overtakes at T ≈" in figure.caption
    plain, both, kept = (style(key) for key in ("gla", "gla:1 + value side", "gla:w:1 + value side"))
    assert (both.colour, both.filled, plain.filled) == (plain.colour, False, True)
    assert kept.colour == style("gla:w").colour
    assert (
        labels.title("gla:wo:1 + value side in fp32")
        == "GLA without states, gate strength 1 in fp32, gates on both sides"
    )
