"""The matrix of tunings: workloads down, directions across, the plan in use over the winner in each cell."""

from __future__ import annotations

import math
from collections.abc import Sequence

from glabench.analysis.load import device_name
from glabench.analysis.spread import said
from glabench.analysis.statistics import estimate
from glabench.analysis.tuning import Variant, asked, gain, incumbent, winner
from glabench.report import text
from glabench.report.matrix import Body, Cell, Grid, Shown, heat
from glabench.report.tuning_figures import DIRECTIONS, devices
from glabench.tuning_store import Tuning

CLOCK = "cuda_events_cold_l2"  # of finals, which are timed in turns
NOTE = (
    "Each cell: the time of the plan that was in use over that of the winner, timed in turns, then the winner's median "
    "and schedule. kept: nothing better than the plan in use was found. tie: nearer to 1 than noise parts two runs, or "
    "the intervals of the medians meet. Of several tunings of a workload the last."
)


def grids(tunings: Sequence[Tuning]) -> list[Grid]:
    """A matrix a device."""
    return [_grid(name, [t for t in tunings if device_name(t.environment) == name]) for name in devices(tunings)]


def _grid(device: str, tunings: Sequence[Tuning]) -> Grid:
    lines: dict[tuple[tuple[str, ...], str], dict[str, Tuning]] = {}
    for tuning in sorted(tunings, key=lambda t: (t.workload["H"] * t.workload["V"], t.workload["T"], t.started)):
        work = tuning.workload
        batch, length, *heads = text.shape(work).split()
        held = ", ".join(filter(None, [f"{work['dtype']}{text.gates(work)}", asked(work)]))
        lines.setdefault(((f"{batch} {length}", " ".join(heads)), held), {})[work["direction"]] = tuning
    present = [d for d in DIRECTIONS if any(d in found for found in lines.values())]
    rows = tuple(
        (shape, held, tuple(_cell(found[d]) if d in found else None for d in present))
        for (shape, held), found in lines.items()
    )
    return Grid(device, "workload", tuple(map(text.mode, present)), (("used", "the plan in use"),),
                (Body("In use / tuned", rows),), NOTE)  # fmt: skip


def _cell(tuning: Tuning) -> Cell:
    first = winner(tuning)
    if first is None:
        tip = f"No plan that runs and is right\n{tuning.stopped}"
        return Cell((Shown("", ""),), mark="✗ no plan", failed=True, tip=tip)
    time, plan = estimate(first.samples_ms), _named(Variant.of(first.plan))
    facts = [
        text.workload(tuning.workload),
        f"{plan}, by {tuning.strategy}",
        f"{text.number(time.median)} ms ({time.kind}: {text.number(time.low)} to {text.number(time.high)})",
        f"{text.count(tuning.measured, 'candidate')} of {tuning.feasible:,} measured in {tuning.wall_s:.0f} s",
    ]
    old = incumbent(tuning)
    facts += [f"in use: {_named(Variant.of(old.plan))}, {old.origin}"] if old else []
    return Cell((_shown(tuning),), f"{text.number(time.median)} ms", plan, tip="\n".join(facts))


def _named(variant: Variant) -> str:
    return str(variant).replace("w/ m.", "with states").replace("w/o m.", "without states")


def _shown(tuning: Tuning) -> Shown:
    first, old, ratio = winner(tuning), incumbent(tuning), gain(tuning)
    if first is None or old is None or math.isnan(ratio):
        return Shown("–", "")
    if first is old:
        return Shown("1×", "kept")
    ours, theirs = estimate(first.samples_ms), estimate(old.samples_ms)
    low, high = theirs.low / ours.high, theirs.high / ours.low
    verdict = said(ratio, low, high, CLOCK)
    return Shown(text.times(ratio), verdict, heat(verdict, ratio), f"{text.number(low)} to {text.number(high)}")
