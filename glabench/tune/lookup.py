"""What ``glabench tune --explain`` prints: the newest record of each workload, or what the cost model says without."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from gla_kernels import Choice, Machine, Workload, chosen, machine_of
from gla_kernels.plan.choose import predicted_ms
from gla_kernels.schedule import PASSES
from glabench.analysis.load import load_tunings, only_tunings
from glabench.hardware.environment import detect_device
from glabench.hardware.targets import capability_of
from glabench.report import text
from glabench.store import is_file_of_lines
from glabench.tune.candidate import Variant
from glabench.tune.explain import TOP, explain, facts
from glabench.tune.space import Space, space_of
from glabench.tuning_store import Tuning

PATTERNS = ("local/tune-*", "*/tune-*/*", "*/retune/*")  # in results/, where records are by default
DEFAULT_CAPABILITY = 90
PLANS = 10  # predicted plans that are shown
TILES = 3  # tiles of each pass of the best one
FEW = 2  # workloads, up to which the cost model's tables are shown


def machine(target: str | None) -> Machine:
    """Any GPU of the architecture ("sm_90", or a GPU's name); by default the one that is here, or any of sm_90 where
    there is none. UserError for an architecture that is not known."""
    if target is None:
        return machine_of() if detect_device() == "cuda" else Machine(DEFAULT_CAPABILITY)
    return Machine(capability_of(target))


def read_records(paths: Sequence[Path] | None) -> list[Tuning]:
    """The tunings of files and folders; by default those of results/. UserError for a path that holds none."""
    found = paths or sorted({path for pattern in PATTERNS for path in Path("results").glob(pattern)})
    if not paths:
        # a run that was stopped early leaves an empty file
        found = [path for path in found if is_file_of_lines(path) and path.stat().st_size]
    return load_tunings(only_tunings(found)) if found else []


def explain_all(
    works: Sequence[Workload], tunings: Sequence[Tuning], where: Machine, everything: bool = False,
    console: Console | None = None,
) -> None:  # fmt: skip
    """Print, for each workload, why its newest tuning on such a machine came out as it did, or what is known without
    one. everything: all candidates and not the best alone."""
    out = console or Console(highlight=False, markup=False)
    for number, work in enumerate(works):
        if number:
            out.print()
        found = [one for one in tunings if Workload.from_dict(one.workload) == work and _fits(one, where)]
        if found:
            tuned_on = _machine_of(max(found, key=lambda tuning: tuning.started))
            choice = chosen(work, tuned_on or where)
            explain(found, f"{_plan(choice, work)}; {choice.origin}", None if everything else TOP, out)
        else:
            _without(work, len(tunings), where, everything, len(works) <= FEW, out)


def explained(
    works: Sequence[Workload], tunings: Sequence[Tuning], where: Machine, everything: bool = False
) -> Iterator[dict[str, Any]]:
    """The same for other programs: of each workload which plan gla() would run and why, and what its newest tuning says
    or, without one, what the cost model expects."""
    for work in works:
        found = [one for one in tunings if Workload.from_dict(one.workload) == work and _fits(one, where)]
        tuned_on = _machine_of(max(found, key=lambda tuning: tuning.started)) if found else None
        choice = chosen(work, tuned_on or where)
        told = {"workload": work.to_dict(), "tunings": len(found), "plan": _plan(choice, work), "origin": choice.origin}
        if found:
            yield told | facts(found, None if everything else TOP)
            continue
        space = space_of(work, where.capability)
        best = sorted(space.menus, key=space.predicted_total)[: None if everything else PLANS]
        plans = [{"plan": str(variant), "predicted_ms": space.predicted_total(variant)} for variant in best]
        yield told | {"predicted_ms": predicted_ms(work, choice.plan, where.capability), "plans": plans}


def _machine_of(tuning: Tuning) -> Machine | None:
    """The GPU that the tuning ran on, None when its record does not say."""
    header = tuning.header
    return Machine(header["capability"], header["device"], header["memory_bytes"]) if header else None


def _fits(tuning: Tuning, where: Machine) -> bool:
    """Whether it ran on that GPU, or on one of that architecture."""
    ran = _machine_of(tuning)
    return ran is not None and (ran == where or (where.device is None and ran.capability == where.capability))


def _plan(choice: Choice, work: Workload) -> str:
    return str(Variant.of(choice.plan, work))


def _without(work: Workload, read: int, where: Machine, everything: bool, tables: bool, out: Console) -> None:
    """What there is to say of a workload without a tuning."""
    choice = chosen(work, where)
    place = where.device or f"a GPU of sm_{where.capability}"
    ms = text.number(predicted_ms(work, choice.plan, where.capability))
    out.print(text.workload(work.to_dict()), style="bold", soft_wrap=True)
    looked = f"{text.count(read, 'record')} read, none of them of this" if read else "no records found"
    out.print(f"never tuned on {place}: {looked}", soft_wrap=True)
    out.print(f"gla() would run: {_plan(choice, work)}; {choice.origin}; predicted {ms} ms", soft_wrap=True)
    if not tables:
        return
    space = space_of(work, where.capability)
    best = sorted(space.menus, key=space.predicted_total)
    shown = best if everything else best[:PLANS]
    hidden = f", the best {len(shown)} of {len(best)}" if len(shown) < len(best) else ""
    out.print(f"\nPlans by the cost model{hidden}")
    out.print(_plans(space, shown))
    out.print(f"\nTiles by the cost model for {best[0]}")
    out.print(_tiles(space, best[0], None if everything else TILES))


def _plans(space: Space, variants: Sequence[Variant]) -> Table:
    table = Table("plan", box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in ("predicted ms", "over the first"):
        table.add_column(column, justify="right")
    first = space.predicted_total(variants[0])
    for variant in variants:
        ms = space.predicted_total(variant)
        table.add_row(str(variant), text.number(ms), f"{ms / first:.2f}x")
    return table


def _tiles(space: Space, variant: Variant, most: int | None) -> Table:
    table = Table("pass", "tile", box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("predicted ms", justify="right")
    menu = space.menus[variant]
    for step in (step for step in PASSES if step in menu):
        for key in sorted(menu[step], key=space.predicted_ms.__getitem__)[:most]:
            tile = list(space.member(variant, step, key).to_dict()["tile"])
            table.add_row(step, text.tile(tile), text.number(space.predicted_ms[key]))
    return table
