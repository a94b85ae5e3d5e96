"""Where the time of a sweep went: seconds by phase of each system, and what of the wall time is none of its cases'."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from glabench.errors import UserError
from glabench.phases import PHASES, Spent, spent_of
from glabench.store import Row, to_json

PAUSE_S = 10.0  # a sweep that runs waits milliseconds between two cases: it was stopped, and started again later


@dataclass(frozen=True)
class Line:
    """What a system's cases took: of all their processes together, those side by side included."""

    system: str
    cases: int
    seconds: dict[str, float]  # by phase, in the order of PHASES

    @property
    def total_s(self) -> float:
        return sum(self.seconds.values())


@dataclass(frozen=True)
class Wall:
    """From the first start to the last end, without the pauses between two runs of the sweep.

    needed_s: of reference, compilation, gate and samples. idle_s: nothing ran, as while a row is written.
    """

    seconds: float
    needed_s: float
    idle_s: float

    @property
    def overhead(self) -> float:
        """The share of the time that cases did not need."""
        return 1 - self.needed_s / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True)
class Account:
    """All of a sweep. without: rows that do not say where their time went, of an older glabench."""

    lines: tuple[Line, ...]
    wall: Wall
    without: int


def account(rows: Sequence[Row]) -> Account:
    """Where the time of the rows went, systems by what they took. A row that is given twice, as where files lie beside
    what they were merged into, counts once. UserError when no row says."""
    seconds: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    cases: dict[str, int] = defaultdict(int)
    everything: list[Spent] = []
    rows = list({to_json(row): row for row in rows}.values())
    for row in rows:
        try:
            spent = spent_of(row)
        except ValueError as error:
            raise UserError(f"row {row.case_id}: {error}") from None
        if not spent:
            continue
        system = str(row.case.get("system"))
        cases[system] += 1
        everything += spent
        for one in spent:
            for phase, took in one.seconds.items():
                seconds[system][phase] += took
    if not everything:
        raise UserError("no row says where its time went: rows of schema 4 do, of `glabench sweep` from then on")
    lines = [
        Line(system, cases[system], {phase: found[phase] for phase in PHASES if phase in found})
        for system, found in seconds.items()
    ]
    lines.sort(key=lambda line: -line.total_s)
    return Account(tuple(lines), wall(everything), len(rows) - sum(cases.values()))


def wall(spent: Iterable[Spent]) -> Wall:
    """The wall time of processes that ran one after another or side by side.

    Each moment is needed by as much as the processes that then run need of their own time, on average: where kernels
    compile side by side for ten seconds, and each process needs eight of its ten, eight seconds were needed.
    """
    changes: dict[float, list[float]] = defaultdict(lambda: [0.0, 0.0])  # at a time: processes more, needed share more
    for one in spent:
        if one.total_s > 0:
            share = one.needed_s / one.total_s
            for moment, sign in ((one.began, 1), (one.began + one.total_s, -1)):
                changes[moment][0] += sign
                changes[moment][1] += sign * share
    total = needed = idle = running = shares = 0.0
    for (moment, (more, share)), (after, _) in pairwise(sorted(changes.items())):
        running, shares, took = running + more, shares + share, after - moment
        if running:
            needed += took * shares / running
        elif took > PAUSE_S:
            continue
        else:
            idle += took
        total += took
    return Wall(total, needed, idle)
