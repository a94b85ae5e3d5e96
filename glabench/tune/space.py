"""Every candidate of a workload that can run, each launch once, with the time that the cost model expects of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest

from gla_kernels import Launch, Plan, Workload
from gla_kernels.apply import all_launches, by_pass, launches_of
from gla_kernels.config import KernelConfig, Tile, states_given, tiles
from gla_kernels.feasible import feasible
from gla_kernels.model import predict_ms
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


def space_of(work: Workload, capability: int) -> Space:
    """Enumerate the space. A variant one of whose passes has no feasible tile is left out."""
    found: dict[str, Candidate] = {}
    menus: dict[Variant, dict[str, tuple[str, ...]]] = {}
    times: dict[Variant, dict[str, float]] = {}
    predicted: dict[str, float] = {}
    for variant in variants(work):
        menu: dict[str, list[str]] = {}
        for candidate, launch in _members(work, variant, capability):
            one = key(launch)
            if one not in found:
                found[one], predicted[one] = candidate, predict_ms(launch, capability)
            menu.setdefault(candidate.step, []).append(one)
        steps = variant.steps(work)
        if set(menu) == set(steps):
            menus[variant] = {step: tuple(dict.fromkeys(menu[step])) for step in steps}
            times[variant] = _times(work, variant, capability)
    used = {one for menu in menus.values() for keys in menu.values() for one in keys}
    return Space(
        work,
        capability,
        {one: candidate for one, candidate in found.items() if one in used},
        menus,
        {one: ms for one, ms in predicted.items() if one in used},
        times,
    )


def _times(work: Workload, variant: Variant, capability: int) -> dict[str, float]:
    """`Space.times`; what has no tiles to choose counts as the last pass."""
    plan = Plan(variant.schedule, base_config(work, variant, capability))
    launches = all_launches(work, plan)
    *others, last = variant.steps(work)
    spent = dict.fromkeys((*others, last), 0.0)
    if states_given(work, variant.schedule):
        spent["states"] = sum(predict_ms(launch, capability) for launch in launches if launch.step == "states")
    for launch in all_launches(work, plan, forward=plan):
        spent[launch.step if launch.step in spent else last] += predict_ms(launch, capability)
    measured = by_pass(launches)
    return {step: ms / predict_ms(measured[step], capability) for step, ms in spent.items()}


def _members(work: Workload, variant: Variant, capability: int) -> Iterator[tuple[Candidate, Launch]]:
    """The variant's feasible candidates with their launches.

    Plans are made for all passes at once, the n-th tile of each, because planning is what takes time here; of those
    that can run: in the place of a walk that cannot, other passes would run, with other launches.
    """
    base, steps = base_config(work, variant, capability), variant.steps(work)

    def runs(step: str, tile: Tile) -> bool:
        return feasible(step, Plan(variant.schedule, _with_tiles(base, {step: tile})), work, capability) is None

    menus = ([tile for tile in tiles(step, work.K, work.V, capability) if runs(step, tile)] for step in steps)
    for row in zip_longest(*menus):
        chosen = {step: tile for step, tile in zip(steps, row, strict=True) if tile is not None}
        plan = Plan(variant.schedule, _with_tiles(base, chosen))
        for step, launch in launches_of(work, plan).items():
            if step in chosen:
                yield Candidate(variant, step, chosen[step]), launch


def _with_tiles(config: KernelConfig, chosen: dict[str, Tile]) -> KernelConfig:
    return replace(config, **chosen)  # type: ignore[arg-type]  # every pass is a Tile
