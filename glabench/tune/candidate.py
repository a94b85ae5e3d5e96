"""What is searched: for one workload, every launch that any plan could consist of.

The passes of a plan are kernels that run one after another, so the time of a plan is the sum of theirs, and each pass
can be tuned by itself. A `Variant` fixes what all passes of a plan share (schedule and row block); a `Candidate` is
one tile of one pass of a variant. Variants often share a pass: the states pass of chunk 64 is the same kernel on the
same buffers whatever the sub-chunk. Such candidates have the same ``key`` and are measured once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from gla_kernels import KernelConfig, Launch, Plan, Schedule, Tile, Workload, default_config
from gla_kernels.plan.apply import launches_of
from gla_kernels.plan.choose import with_walks
from gla_kernels.plan.space import schedules
from gla_kernels.schedule import BLOCK_TS, MAX_REGISTERS, WGMMA_ROWS, steps_of
from glabench.systems.gla import schedule_name

FEW = ("walk",)  # passes that store as few states as calls keep: the time of storing all would hide the rest


@dataclass(frozen=True)
class Variant:
    """What the passes of a plan have in common. walks: whether there is a fused scan."""

    schedule: Schedule
    block_t: int
    walks: bool = False

    def __str__(self) -> str:
        return f"{schedule_name(self.schedule)}, rows of {self.block_t}{', one walk' if self.walks else ''}"

    @classmethod
    def of(cls, plan: Plan, work: Workload) -> Variant:
        """The variant of the plan of a workload's direction."""
        return cls(plan.schedule, plan.config.block_t, plan.walks(work.direction))

    def steps(self, work: Workload) -> tuple[str, ...]:
        """The passes of the workload's direction, in order."""
        return steps_of(work, self.schedule, self.walks)


@dataclass(frozen=True)
class Candidate:
    """One tile of one pass of a variant."""

    variant: Variant
    step: str  # the pass: a field of KernelConfig
    tile: Tile

    def to_dict(self) -> dict[str, Any]:
        return {
            "schedule": asdict(self.variant.schedule),
            "block_t": self.variant.block_t,
            "walks": self.variant.walks,
            "step": self.step,
            "tile": list(self.tile.values),
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Candidate:
        variant = Variant(Schedule(**values["schedule"]), values["block_t"], values.get("walks", False))
        return cls(variant, values["step"], Tile(*values["tile"]))

    def __str__(self) -> str:
        tile = self.tile
        limit = "" if tile.max_registers == MAX_REGISTERS else f", {tile.max_registers} registers"
        moved = ", by descriptors" if tile.descriptors else ""
        return (
            f"{self.step} {tile.block_k}x{tile.block_v}, {tile.num_warps} warps, {tile.num_stages} stages"
            f"{limit}{moved} ({self.variant})"
        )


def variants(work: Workload) -> Iterator[Variant]:
    """Every variant of the space, or those of the schedule that the workload asks for."""
    for schedule in [work.schedule] if work.schedule is not None else schedules(work):
        for block_t in BLOCK_TS:
            if schedule.rows % block_t == 0:
                yield Variant(schedule, block_t)
                if block_t == schedule.chunk == WGMMA_ROWS and (work.gated or work.direction == "fwd"):
                    yield Variant(schedule, block_t, True)


def base_config(work: Workload, variant: Variant, capability: int) -> KernelConfig:
    """A config of the variant whose tiles are the defaults: what the passes that are not in question run."""
    config = default_config(work.K, work.V, work.operand_bytes, variant.schedule, capability)
    config = replace(config, block_t=variant.block_t)
    return with_walks(config, work, capability) if variant.walks else config


def plan_of(work: Workload, candidates: list[Candidate], capability: int) -> Plan:
    """The plan whose passes are these candidates of one variant."""
    variant = candidates[0].variant
    chosen = {candidate.step: candidate.tile for candidate in candidates}
    return Plan(variant.schedule, replace(base_config(work, variant, capability), **chosen))  # type: ignore[arg-type]  # every field but block_t is a Tile


def candidates_of(work: Workload, plan: Plan, capability: int) -> list[Candidate]:
    """The passes of a plan as candidates, in order."""
    variant = Variant.of(plan, work)
    return [Candidate(variant, step, getattr(plan.config, step)) for step in variant.steps(work)]


def launch_of(work: Workload, candidate: Candidate, capability: int, few: bool = True) -> Launch:
    """The one launch of a candidate, on meta tensors. few: with as few states as in a call, of passes of FEW."""
    few = few and candidate.step in FEW
    return launches_of(work, plan_of(work, [candidate], capability), few=few)[candidate.step]


def key(launch: Launch) -> str:
    """What tells one launch from another, twelve hex digits: candidates with equal keys take the same time."""
    shown = {name: _shown(value) for name, value in launch.args.items()}
    text = repr((launch.name, launch.grid, shown, launch.blocks, launch.constexprs, launch.options))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _shown(value: object) -> object:
    return (tuple(value.shape), value.dtype) if isinstance(value, torch.Tensor) else value
