"""Every candidate of a workload that can run, each launch once, with the time that the cost model expects of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import zip_longest

from gla_kernels import Launch, Plan, Workload
from gla_kernels.apply import launches_of
from gla_kernels.config import PASSES, KernelConfig, Tile, feasible, tiles
from gla_kernels.model import predict_ms
from glabench.tune.candidate import Candidate, Variant, base_config, key, variants


@dataclass(frozen=True)
class Space:
    """The feasible space of a workload.

    candidates: by key, each different launch once. menus: for each variant and pass the keys of its tiles, in the
    space's order, which also breaks ties. predicted_ms: by key.
    """

    work: Workload
    capability: int
    candidates: dict[str, Candidate]
    menus: dict[Variant, dict[str, tuple[str, ...]]]
    predicted_ms: dict[str, float]

    def predicted_total(self, variant: Variant) -> float:
        """ms of the variant's best plan by prediction."""
        return sum(min(self.predicted_ms[k] for k in keys) for keys in self.menus[variant].values())

    def member(self, variant: Variant, step: str, chosen: str) -> Candidate:
        """The candidate as one of this variant: a launch that variants share is listed under one of them only."""
        return replace(self.candidates[chosen], variant=variant, step=step)


def space_of(work: Workload, capability: int) -> Space:
    """Enumerate the space. A variant one of whose passes has no feasible tile is left out."""
    found: dict[str, Candidate] = {}
    menus: dict[Variant, dict[str, tuple[str, ...]]] = {}
    predicted: dict[str, float] = {}
    for variant in variants(work):
        menu: dict[str, list[str]] = {}
        for candidate, launch in _members(work, variant, capability):
            one = key(launch)
            if one not in found:
                found[one], predicted[one] = candidate, predict_ms(launch, capability)
            menu.setdefault(candidate.step, []).append(one)
        steps = launches_of(work, Plan(variant.schedule, base_config(work, variant, capability)))
        if set(menu) == set(steps):
            menus[variant] = {step: tuple(dict.fromkeys(menu[step])) for step in steps}
    used = {one for menu in menus.values() for keys in menu.values() for one in keys}
    return Space(
        work,
        capability,
        {one: candidate for one, candidate in found.items() if one in used},
        menus,
        {one: ms for one, ms in predicted.items() if one in used},
    )


def _members(work: Workload, variant: Variant, capability: int) -> Iterator[tuple[Candidate, Launch]]:
    """The variant's feasible candidates with their launches.

    Plans are made for all passes at once, the n-th tile of each, because planning is what takes time here.
    """
    base = base_config(work, variant, capability)
    for row in zip_longest(*(tiles(step, work.K, work.V) for step in PASSES)):
        chosen = {step: tile for step, tile in zip(PASSES, row, strict=True) if tile is not None}
        plan = Plan(variant.schedule, _with_tiles(base, chosen))
        for step, launch in launches_of(work, plan).items():
            if step in chosen and feasible(step, plan, work, capability) is None:
                yield Candidate(variant, step, chosen[step]), launch


def _with_tiles(config: KernelConfig, chosen: dict[str, Tile]) -> KernelConfig:
    return replace(config, **chosen)  # type: ignore[arg-type]  # every pass is a Tile
