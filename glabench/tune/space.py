"""Every candidate of a workload that can run, each launch once, with the time that the cost model expects of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from typing import Any

from gla_kernels import Launch, Plan, Workload
from gla_kernels.cost.model import predict_ms
from gla_kernels.plan.apply import all_launches, by_pass, launches_of
from gla_kernels.plan.limits import why_not
from gla_kernels.plan.space import tiles
from gla_kernels.schedule import KernelConfig, Tile, states_given
from glabench.tune.candidate import Candidate, Variant, base_config, key, variants


@dataclass(frozen=True)
class Space:
    """The feasible space of a workload.

    candidates: by key, each different launch once. menus: for each variant and pass the keys of its tiles, in the
    space's order, which also breaks ties. predicted_ms: by key. times: for each variant and pass, by prediction, how
    many times the one launch that is measured all that the plan runs of it takes: slices, segments' first walks.
    """

    work: Workload
    capability: int
    candidates: dict[str, Candidate]
    menus: dict[Variant, dict[str, tuple[str, ...]]]
    predicted_ms: dict[str, float]
    times: dict[Variant, dict[str, float]]

    @cached_property
    def homes(self) -> dict[str, list[Variant]]:
        """The variants that each candidate is on the menu of, by key, in the space's order."""
        found: dict[str, dict[Variant, None]] = {}
        for variant, menu in self.menus.items():
            for keys in menu.values():
                for one in keys:
                    found.setdefault(one, {})[variant] = None
        return {one: list(homes) for one, homes in found.items()}

    def total(self, variant: Variant, ms_of: Callable[[str], float], among: Collection[str] = ()) -> float:
        """ms of the variant's best plan, from those of single launches; with the one of ``among``, if it is there.
        States that a forward pass leaves cost nothing, but their pass must have a result: a call may do without."""
        total = 0.0
        for step, keys in self.menus[variant].items():
            ms = self.times[variant][step] * min(ms_of(k) for k in ([k for k in keys if k in among] or keys))
            given = step == "states" and states_given(self.work, variant.schedule) and ms < math.inf
            total += 0.0 if given else ms
        return total

    def predicted_total(self, variant: Variant) -> float:
        """ms of the variant's best plan by prediction."""
        return self.total(variant, self.predicted_ms.__getitem__)

    def member(self, variant: Variant, step: str, chosen: str) -> Candidate:
        """The candidate as one of this variant: a launch that variants share is listed under one of them only."""
        return replace(self.candidates[chosen], variant=variant, step=step)


@dataclass(frozen=True)
class Members:
    """A variant of the space. tiles: (pass, tile, key of its launch, predicted ms) of each that can run. times: see
    `Space.times`."""

    tiles: list[tuple[str, Tile, str, float]]
    times: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        return {"tiles": [(step, tile.values, *rest) for step, tile, *rest in self.tiles], "times": self.times}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Members:
        return cls([(step, Tile(*tile), one, ms) for step, tile, one, ms in values["tiles"]], values["times"])


def space_of(work: Workload, capability: int) -> Space:
    """Enumerate the space."""
    return joined(work, capability, lambda place, variant: members_of(work, variant, capability))


def joined(work: Workload, capability: int, found: Callable[[int, Variant], Members | None]) -> Space:
    """The space, of what ``found`` knows of each of the workload's variants, by its place among them."""
    candidates: dict[str, Candidate] = {}
    predicted: dict[str, float] = {}
    menus: dict[Variant, dict[str, tuple[str, ...]]] = {}
    times: dict[Variant, dict[str, float]] = {}
    for place, variant in enumerate(variants(work)):
        members = found(place, variant)
        if members is None:
            continue
        menu: dict[str, dict[str, None]] = {step: {} for step in variant.steps(work)}
        for step, tile, one, ms in members.tiles:
            candidates.setdefault(one, Candidate(variant, step, tile))
            predicted.setdefault(one, ms)
            menu[step][one] = None
        menus[variant] = {step: tuple(keys) for step, keys in menu.items()}
        times[variant] = members.times
    return Space(work, capability, candidates, menus, predicted, times)


def members_of(work: Workload, variant: Variant, capability: int) -> Members | None:
    """The variant's members; None when one of its passes has no feasible tile."""
    tiles = [
        (candidate.step, candidate.tile, key(launch), predict_ms(launch, capability))
        for candidate, launch in _launches(work, variant, capability)
    ]
    if {step for step, *_ in tiles} != set(variant.steps(work)):
        return None
    return Members(tiles, _times(work, variant, capability))


def _times(work: Workload, variant: Variant, capability: int) -> dict[str, float]:
    """`Space.times`; what has no tiles to choose counts as the last pass."""
    plan = Plan(variant.schedule, base_config(work, variant, capability))
    launches = all_launches(work, plan)
    *others, last = variant.steps(work)
    spent = dict.fromkeys((*others, last), 0.0)
    if states_given(work, variant.schedule):
        spent["states"] = sum(predict_ms(launch, capability) for launch in launches if launch.step == "states")
    for launch in all_launches(work, plan, other=plan):
        spent[launch.step if launch.step in spent else last] += predict_ms(launch, capability)
    measured = by_pass(launches)
    return {step: ms / predict_ms(measured[step], capability) for step, ms in spent.items()}


def _launches(work: Workload, variant: Variant, capability: int) -> Iterator[tuple[Candidate, Launch]]:
    """The variant's feasible candidates with their launches.

    Plans are made for all passes at once, the n-th tile of each, because planning is what takes time here; of those
    that can run: in the place of a walk that cannot, other passes would run, with other launches. By whose kernel dq,
    dk and dg come decides on dv's, too, where chunks are few: other kernels than the default's are planned alone.
    """
    base, steps = base_config(work, variant, capability), variant.steps(work)

    def runs(step: str, tile: Tile) -> bool:
        return why_not(Plan(variant.schedule, _with_tiles(base, {step: tile})), work, capability, step) is None

    menus = ([tile for tile in tiles(step, work.K, work.V, capability) if runs(step, tile)] for step in steps)
    for row in zip_longest(*menus):
        chosen = {step: tile for step, tile in zip(steps, row, strict=True) if tile is not None}
        odd = {step: tile for step, tile in chosen.items() if step == "grad_qk" and tile.hopper != base.grad_qk.hopper}
        for planned in ({step: tile for step, tile in chosen.items() if step not in odd}, odd):
            plan = Plan(variant.schedule, _with_tiles(base, planned))
            for step, launch in launches_of(work, plan).items() if planned else ():
                if step in planned:
                    yield Candidate(variant, step, planned[step]), launch


def _with_tiles(config: KernelConfig, chosen: dict[str, Tile]) -> KernelConfig:
    return replace(config, **chosen)  # type: ignore[arg-type]  # every pass is a Tile
