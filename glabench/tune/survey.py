"""What `glabench compile` looks at: the kernels that gla() runs for the cases of a sweep, and a sample of the others.

Results are JSON, one object a kernel and line (``"kind": "compiled"``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, as_completed
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from typing import Any, Literal

from gla_kernels import Machine, Workload, chosen
from gla_kernels.plan.limits import why_not
from gla_kernels.plan.space import tiles
from gla_kernels.schedule import PASSES
from glabench.run.processes import cores
from glabench.spec.case import Case
from glabench.spec.catalog import CATALOG
from glabench.systems.gla import Gla
from glabench.tune.candidate import Candidate, plan_of, variants
from glabench.tune.compiler import Answer, CompilePool
from glabench.tune.works import DIRECTIONS, is_planned

SCHEMA = 1
Found = tuple[Workload, Candidate]

GOLDEN = 0.6180339887498949  # multiples of it, modulo 1, lie evenly however many are taken


@dataclass(frozen=True)
class Kernel:
    """One kernel as it was compiled for one target.

    origin: "gla" when gla() runs it for a case of the sweep, "space" when it is of the sample. workload: the first
    that asked for it. status and reason: as a row's. compiled: an entry of glabench.hardware.crosscompile.
    """

    sweep: str
    target: str
    origin: Literal["gla", "space"]
    step: str
    workload: dict[str, Any]
    candidate: dict[str, Any] | None
    status: str = "ok"
    reason: str | None = None
    compiled: dict[str, Any] | None = None
    environment: dict[str, Any] = field(default_factory=dict)
    kind: str = "compiled"
    schema: int = SCHEMA

    def to_json(self) -> str:
        """One line of strict JSON, without the line's end."""
        return json.dumps(asdict(self), allow_nan=False)

    def fact(self, name: str) -> Any:
        """A value of the compiled entry; None where nothing was compiled."""
        return (self.compiled or {}).get(name)


@dataclass(frozen=True)
class Asked:
    """A workload, whether its calls start from a state, which makes kernels of its own, and which passes they have."""

    work: Workload
    initial_state: bool = False
    mode: str = "fwdbwd"


def asked_of(cases: Iterable[Case]) -> tuple[list[Asked], int]:
    """What the cases of gla() ask for, each once, and the number of cases that were skipped: of other systems, or of
    schedules and sizes that the kernels do not take."""
    system, found, skipped = Gla(CATALOG["gla"]), dict[Asked, None](), 0
    for case in cases:
        if not is_planned(case) or system.unsupported(case, "cuda") is not None:
            skipped += 1
            continue
        work = system.workload(case)
        for direction in DIRECTIONS[case.mode]:
            found[Asked(replace(work, direction=direction), case.initial_state, case.mode)] = None
    return list(found), skipped


def sample(asked: Sequence[Asked], capability: int, count: int) -> Iterator[Found]:
    """``count`` candidates of each pass, at the pairs of head dimensions in turn, spread evenly over the feasible
    space: the same ones each time. The first workload of its kind, with its schedule left open, stands for all. It
    looks at no more of the space than it needs: to enumerate it takes minutes."""
    kinds: dict[tuple[Any, ...], Workload] = {}
    for one in asked:
        work = replace(one.work, schedule=None)
        kinds.setdefault((work.K, work.V, work.direction, work.dtype, work.gate_dtype, work.gated), work)
    pairs = list(dict.fromkeys((work.K, work.V) for work in kinds.values()))
    looked_at: set[Found] = set()
    for draw in range(count * len(PASSES)):
        turn, place = divmod(draw, len(PASSES))
        start = (GOLDEN * turn + place / len(PASSES)) % 1  # not the same schedule for every pass
        turned = pairs[draw % len(pairs) :] + pairs[: draw % len(pairs)]
        # the next pair where the first one has no such pass, or no more of it
        works = sorted(kinds.values(), key=lambda work: turned.index((work.K, work.V)))
        found = _next(PASSES[place], works, capability, start, looked_at)
        if found is not None:
            yield found


def _next(step: str, works: list[Workload], capability: int, start: float, looked_at: set[Found]) -> Found | None:
    """The first feasible candidate of a pass that was not looked at, from that share of the way through the space on;
    None when there are no more. Adds what it looks at."""
    for work in works:
        members = _members(work, step, capability)
        offset = int(start * len(members))
        for candidate in members[offset:] + members[:offset]:
            if (work, candidate) not in looked_at:
                looked_at.add((work, candidate))
                if why_not(plan_of(work, [candidate], capability), work, capability, step) is None:
                    return work, candidate
    return None


@cache
def _members(work: Workload, step: str, capability: int) -> tuple[Candidate, ...]:
    """Every candidate of a pass, feasible or not, in the space's order."""
    found = [variant for variant in variants(work) if step in variant.steps(work)]
    return tuple(
        Candidate(variant, step, tile) for variant in found for tile in tiles(step, work.K, work.V, capability)
    )


def survey(
    sweep: str,
    asked: Sequence[Asked],
    target: str,
    count: int,
    environment: dict[str, Any],
    progress: Callable[[int, int], None],
) -> Iterator[Kernel]:
    """Compile for one target, "sm_90", on every core: what gla() runs and a sample of ``count``. Each different
    kernel comes once, in the order in which they are done; ``progress`` is told how many of how many are."""

    def draft(work: Workload, step: str, candidate: Candidate | None = None) -> Kernel:
        asked_for = None if candidate is None else candidate.to_dict()
        origin: Literal["gla", "space"] = "gla" if candidate is None else "space"
        return Kernel(sweep, target, origin, step, work.to_dict(), asked_for, environment=environment)

    capability = int(target.removeprefix("sm_"))
    with CompilePool(target, jobs=cores()) as pool:
        found: dict[Future[Answer], Kernel] = {}
        for one in asked:
            kernels = pool.submit_walks(one.work, one.mode, one.initial_state)
            if not kernels:
                plan = chosen(one.work, Machine(capability)).plan
                kernels = list(pool.submit_plan(one.work, plan, one.initial_state).items())
            for step, future in kernels:
                found.setdefault(future, draft(one.work, step))
        for work, candidate in sample(asked, capability, count):
            found.setdefault(pool.submit(work, candidate), draft(work, candidate.step, candidate))
        progress(0, len(found))
        for done, future in enumerate(as_completed(found), start=1):
            progress(done, len(found))
            yield replace(found[future], **future.result())
