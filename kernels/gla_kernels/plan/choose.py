"""Which plan a call runs, and why: tuned here, tuned before for a shape nearby, or by the cost model.

`chosen` looks for a tuned plan of the workload's shape class, in this GPU's own table and in the one shipped for it,
and in those shipped for other GPUs of the same compute capability, which count as farther away. Where that very shape
was never tuned, the plans of the nearest ones serve, cut into whichever segments: of these the one that is expected to
be fastest, by the cost model and by what it was off by where the plan was tuned. Without any, the cost model decides
alone.

Float32 gates beside 16-bit inputs are served by what was tuned for them where that is of the class, or no farther away
than what was tuned for gates of the inputs' dtype; else, and by the cost model, as if they were of that dtype.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import islice
from pathlib import Path

import torch

from ..cost.model import predict_ms
from ..launch import interpreting
from ..schedule import (
    DEFAULT_SHARED_BYTES,
    HOPPER,
    MAX_ROW_BLOCK,
    MIN_TILE,
    SAFE_COLUMNS,
    SHARED_BYTES,
    WGMMA_ROWS,
    KernelConfig,
    Plan,
    Schedule,
    Tile,
    Workload,
    cdiv,
    padded,
)
from . import files
from .apply import all_launches
from .limits import why_not
from .space import evened, schedules, segments
from .table import Entry, Machine, ShapeClass, Table, shape_class

# How far a tuned class may be to serve another, in factors of two: of T, and of B*H, which count three times.
FARTHEST = 8.0
HEADS_COUNT = 3.0
# How many of the nearest tuned shapes are asked, and what each factor of two away adds to what their plans are expected
# to take. What plans cost that are chosen so: `python -m glabench.tune.held_out`.
ASKED = 5
FARTHER = 0.02
ELSEWHERE = 2.0  # factors of two that a plan tuned on another GPU must be nearer by than one of this GPU, to serve


@dataclass(frozen=True)
class Choice:
    """The plan that one direction of a call runs, and in a line where it comes from.

    here: tuned on this GPU for this shape class. stale: tuned with other kernel sources or another Triton; it runs all
    the same, but another plan may have become faster.
    """

    plan: Plan
    origin: str
    here: bool = False
    stale: bool = False


def chosen(work: Workload, machine: Machine | None = None) -> Choice:
    """The plan that `gla` uses for one direction of a call, and why; of calls without gates, where it goes by plans at
    all. machine: the current GPU by default."""
    return plan_for(work, machine_of() if machine is None else machine)


@lru_cache(maxsize=4096)
def plan_for(work: Workload, machine: Machine) -> Choice:
    """`chosen`, remembered until `refresh`: it is asked at every call."""
    return _choice(work, machine.capability, _sources(machine))


def choice_of(work: Workload, table: Table) -> Choice:
    """The choice that `chosen` would make if this table were all that was ever tuned."""
    return _choice(work, table.header.capability, ((_Source("tuned", table),),))


def _choice(work: Workload, capability: int, groups: Iterable[tuple[_Source, ...]]) -> Choice:
    shape = shape_class(work)
    found = [near for sources in groups if (near := _near(work, shape, sources, capability))]
    if found:
        near = min(enumerate(found), key=lambda group: group[1][0].apart + ELSEWHERE * group[0])[1]
        if near[0].settles(work, shape):
            tuned = near[0].entry
            return near[0].choice(tuned.plan if tuned.work.T == work.T else _evened(work, tuned.plan), work, shape)
        like = replace(work, gate_dtype=near[0].entry.work.gate_dtype)
        _, one, plan = min(_expected(like, near, capability), key=lambda each: each[0])
        return one.choice(plan, work, shape)
    typical = replace(work, B=1, T=shape.T, H=shape.heads)  # a length that is new is not predicted anew
    plan = _expected_best(typical, capability)
    if why_not(plan, work, capability) is not None:
        plan = by_model(work, capability)
    return Choice(_evened(work, plan), "by the cost model" if work.schedule is None else "by size")


def by_model(work: Workload, capability: int) -> Plan:
    """The plan for a workload that nothing like was ever tuned for: of the schedules that it allows, the one that the
    cost model expects to be fastest with the tiles that `default_config` gives it.

    Tiles are not the model's to choose: it knows nothing of what a compiler may get wrong, and nobody checks here.
    """
    work = replace(work, gate_dtype=None)  # the same for float32 gates
    allowed = [work.schedule] if work.schedule is not None else list(schedules(work))
    plans = []
    for schedule in allowed:
        plan = Plan(schedule, default_config(work.K, work.V, work.operand_bytes, schedule, capability))
        plans.append(plan)
        # without gates a state of float32 operands spills where a tuner would see it, and nobody looks here
        walked = replace(plan, config=with_walks(plan.config, work, capability))
        if (work.gated or work.operand_bytes == 2) and why_not(walked, work, capability) is None:
            plans.append(walked)
    return min(plans, key=lambda plan: predicted_ms(work, plan, capability)) if len(plans) > 1 else plans[0]


def predicted_ms(work: Workload, plan: Plan, capability: int) -> float:
    """ms that the cost model expects of a plan: of a backward one after a forward one like it."""
    return sum(predict_ms(launch, capability) for launch in all_launches(work, plan, other=plan))


def keep(entries: Iterable[Entry], machine: Machine | None = None) -> Path:
    """Put tuned plans into this GPU's own table, where `chosen` finds them from now on, in this process too; the
    table's file. Raises TableError when it cannot be written."""
    path = files.add(entries, machine_of() if machine is None else machine)
    refresh()
    return path


def refresh() -> None:
    """Forget what was read, so that tables are read again: another process may have written them."""
    global _generation
    _generation += 1
    plan_for.cache_clear()
    _sources.cache_clear()


_generation = 0


def generation() -> int:
    """The number of times that `refresh` was called: plans chosen before the last time may be others now."""
    return _generation


def machine_of(device: torch.device | None = None) -> Machine:
    """The GPU that a tensor's device is; by default the current one, if kernels are compiled for it.

    Anything but a GPU stands for one of compute capability 9.0: the interpreter takes what an H100 would, and so do
    tensors without data that say that they are on a GPU where there is none.
    """
    if device is None:
        device = torch.device("cuda" if torch.cuda.is_available() and not interpreting() else "cpu")
    if device.type != "cuda" or not torch.cuda.is_available():
        return Machine(90)
    return _gpu(torch.cuda.current_device() if device.index is None else device.index)


@cache
def _gpu(index: int) -> Machine:
    facts = torch.cuda.get_device_properties(index)
    return Machine(10 * facts.major + facts.minor, facts.name, facts.total_memory)


def with_walks(config: KernelConfig, work: Workload, capability: int = HOPPER) -> KernelConfig:
    """The config with fused scans, on a GPU of that compute capability."""
    if work.gated:
        walk = Tile(WGMMA_ROWS, 128 if work.V % 128 == 0 else WGMMA_ROWS, 4, 2, descriptors=True, hopper=True)
        return replace(config, walk=walk, grad_walk=walk)
    walk = Tile(padded(work.K), min(64, padded(work.V)), 4, 3, descriptors=capability == HOPPER)
    return replace(config, walk=walk)


# --- Tuned plans ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Source:
    """A table, and what is said of a plan that comes from it. own: it was tuned on this GPU."""

    name: str
    table: Table
    own: bool = False


@cache
def _sources(machine: Machine) -> tuple[tuple[_Source, ...], ...]:
    """Tables in groups: a plan of the later group is used only where the earlier has none, or none nearly as near."""
    same: list[_Source] = []
    others: list[_Source] = []
    if machine.device is not None:
        own = files.own_table(machine)
        if own is not None:
            same.append(_Source("tuned here", own, own=True))
    for table in files.shipped_tables():
        device = table.header.device
        if device == machine.device:
            same.append(_Source(f"shipped for {device}, tuned", table))
        elif table.header.capability == machine.capability:
            name = f"tuned on {device}" + ("" if machine.device is None else " (same compute capability)")
            others.append(_Source(name, table))
    return tuple(same), tuple(others)


@dataclass(frozen=True)
class _Near:
    """A tuned plan that may serve a workload, so many factors of two away."""

    apart: float
    entry: Entry
    source: _Source

    def settles(self, work: Workload, shape: ShapeClass) -> bool:
        """Whether nothing else needs to be asked: tuned on this GPU for the class, or with as many heads as long."""
        own, tuned = self.source.own and self.entry.shape == shape, self.entry.work
        return own or (tuned.B * tuned.H, tuned.T) == (work.B * work.H, work.T)

    def choice(self, plan: Plan, work: Workload, shape: ShapeClass) -> Choice:
        """The choice of its plan, or of that with other segments."""
        tuned, same, why = self.entry.work, self.entry.shape == shape, self.source.table.header.outdated
        gates = tuned.gate_dtype == work.gate_dtype
        notes = [
            "" if same else ", nearby",
            "" if gates else f", for gates in {tuned.gate_dtype or tuned.dtype}",
            "" if plan == self.entry.plan else ", other segments",
            f", outdated: tuned with {why}" if why else "",
        ]
        at = f"at B={tuned.B} T={tuned.T} H={tuned.H}"
        here = self.source.own and same and gates
        return Choice(plan, f"{self.source.name} {at}{''.join(notes)}", here, why is not None)


def _expected(work: Workload, near: Iterable[_Near], capability: int) -> Iterator[tuple[float, _Near, Plan]]:
    """ms that each plan, and each with other segments, is expected to take: what the cost model says, times what it
    was off by where the plan was tuned. Nearer ones come first, with their own segments."""
    like = _like(work)
    for one in near:
        tuned, plan = one.entry.work, one.entry.plan
        off = one.entry.ms / _predicted(replace(tuned, B=1, H=tuned.B * tuned.H), plan, capability)
        for schedule in (plan.schedule, *_other_segments(work, plan.schedule)):
            cut = replace(plan, schedule=schedule)
            if cut == plan or why_not(cut, work, capability) is None:
                yield _predicted(like, cut, capability) * off * (1.0 + FARTHER * one.apart), one, cut


def _other_segments(work: Workload, schedule: Schedule) -> Iterator[Schedule]:
    """Schedules that the workload allows, and that differ only in how long segments are."""
    if work.schedule is None and schedule.materialize:
        for every in segments(work, schedule.chunk):
            if every != schedule.states_every:
                yield replace(schedule, states_every=every)


def _evened(work: Workload, plan: Plan) -> Plan:
    """The plan, of another length, with as many segments as it cuts the workload into, but of one length."""
    every, chunks = plan.schedule.states_every, cdiv(work.T, plan.schedule.chunk)
    if work.schedule is not None or every is None or every >= chunks:
        return plan
    return replace(plan, schedule=replace(plan.schedule, states_every=evened(chunks, every)))


def _like(work: Workload) -> Workload:
    """The workload that stands for this one where plans are predicted: as many heads, and a length rounded up to a 32nd
    of a power of two, so that new lengths are mostly not predicted anew. Coarser steps would hide how segments end."""
    heads, step = max(1, work.B * work.H), 1 << max(0, work.T.bit_length() - 6)
    return replace(work, B=1, H=heads, T=max(1, -(-work.T // step) * step))


@lru_cache(maxsize=4096)
def _predicted(work: Workload, plan: Plan, capability: int) -> float:
    """`predicted_ms`, remembered."""
    return predicted_ms(work, plan, capability)


def _near(work: Workload, shape: ShapeClass, sources: tuple[_Source, ...], capability: int) -> list[_Near]:
    """`_nearest`, of one dtype of gates: as the module says."""
    own = list(_nearest(work, shape, sources, capability))
    if work.gate_dtype is None or (own and own[0].entry.shape == shape):
        return own
    usual = list(_nearest(replace(work, gate_dtype=None), shape, sources, capability))
    if own and usual:
        return own if own[0].apart <= usual[0].apart else usual
    return own or usual


def _nearest(work: Workload, shape: ShapeClass, sources: Iterable[_Source], capability: int) -> Iterator[_Near]:
    """Entries whose plans may serve the workload: that of its class, then the nearest, `ASKED` in all; a tie goes to
    the earlier source, then to the length that is nearer, then to the smaller class.

    A plan that won with every schedule allowed serves those who ask for its schedule as well.
    """
    found = []
    for rank, source in enumerate(sources):
        for entry in source.table.entries:
            asked = entry.work
            kind = (work.direction, work.dtype, work.gate_dtype, work.gated)
            if (asked.direction, asked.dtype, asked.gate_dtype, asked.gated) != kind:
                continue
            if asked.schedule != work.schedule and (asked.schedule or entry.plan.schedule) != work.schedule:
                continue
            if work.schedule is None and not entry.plan.schedule.materialize:
                continue  # tuned when `schedules` had such
            other = entry.shape
            lengths = _octaves(asked.T, work.T)
            apart = lengths + HEADS_COUNT * _octaves(asked.B * asked.H, work.B * work.H)
            if (other.K, other.V) == (shape.K, shape.V) and apart <= FARTHEST:
                same = other == shape
                order = (
                    not same,
                    rank if same else 0,
                    apart,
                    rank,
                    asked.schedule != work.schedule,
                    lengths,
                    other.T,
                    other.heads,
                )
                found.append((order, _Near(apart, entry, source)))
    ranked = (one for _, one in sorted(found, key=lambda pair: pair[0]))
    return islice((one for one in ranked if why_not(one.entry.plan, work, capability) is None), ASKED)


@lru_cache(maxsize=4096)
def _expected_best(work: Workload, capability: int) -> Plan:
    """`by_model`, remembered."""
    return by_model(work, capability)


def _octaves(a: int, b: int) -> float:
    """The number of factors of two that a and b are apart; an empty tensor counts as one."""
    return abs(math.log2(max(a, 1) / max(b, 1)))


# --- Tiles by size ----------------------------------------------------------------------------------------------------


def default_config(K: int, V: int, operand_bytes: int, schedule: Schedule, capability: int = 90) -> KernelConfig:
    """Tiles that fit an SM for any head dimension, by size alone.

    K, V: head dimensions; operand_bytes: bytes of an element as it enters a product, 2 for bfloat16, else 4 (tf32);
    capability: compute capability, 80 for an A100, 90 for an H100.
    """
    k, v = padded(K), padded(V)
    narrow = operand_bytes == 2
    shared = SHARED_BYTES.get(capability, DEFAULT_SHARED_BYTES)
    block_t = min(schedule.rows, MAX_ROW_BLOCK)
    if (narrow and min(k, v) < SAFE_COLUMNS) or (not narrow and schedule.chunk > block_t):
        block_t = min(block_t, WGMMA_ROWS // 2)
    while block_t > MIN_TILE and block_t * max(min(64, k), min(128, v)) * 4 * (1 if narrow else 2) > shared // 3:
        block_t //= 2
    # by descriptors where that was measured; for Blackwell Triton 3.7 does not compile grad_states with them
    stages, described = 2 if narrow else 1, capability == HOPPER
    by_rows = Tile(min(64 if narrow else 32, k), min(128 if narrow else 64, v), 4, stages, descriptors=described)
    # walks wait for their loads: more steps of them in flight where there is room
    walk = replace(by_rows, block_k=min(64, k), num_stages=2 * stages if shared >= SHARED_BYTES[90] else stages)
    grad_qk = replace(by_rows, block_v=min(64, v))
    if described and narrow and schedule.chunk == block_t == WGMMA_ROWS:
        grad_qk = replace(grad_qk, hopper=K % WGMMA_ROWS == V % WGMMA_ROWS == 0)
        # more and narrower tiles of K in flight, and all of V, or a third program an SM
        by_rows = replace(by_rows, block_k=32, block_v=min(256, v), num_stages=3, max_registers=255 if v > 128 else 168)
    return KernelConfig(block_t, states=walk, grad_states=walk, output=by_rows, grad_qk=grad_qk, grad_v=by_rows)
