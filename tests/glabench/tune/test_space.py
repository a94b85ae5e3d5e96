"""The space of a workload: every launch that can run, each once, and which variants it belongs to."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest

from gla_kernels import Plan, Schedule, Tile, Workload, default_config
from gla_kernels.chunk.problem import THREE
from gla_kernels.plan.choose import predicted_ms
from gla_kernels.plan.limits import why_not
from gla_kernels.plan.space import tiles
from gla_kernels.schedule import SHARED_BYTES, Direction, KernelConfig, steps_of
from glabench.tune.candidate import Candidate, Variant, candidates_of, key, launch_of, plan_of
from glabench.tune.history import History
from glabench.tune.space import Space, joined, members_of, space_of

FWD = Workload("fwd", 2, 1100, 4, 64, 64)
BWD = replace(FWD, direction="bwd")
WIDE = Workload("bwd", 2, 300, 4, 256, 256, schedule=Schedule(64))  # one of many, for the sake of its tiles
LONG = Workload("fwd", 1, 4096, 4, 64, 64)

enumerated = cache(space_of)  # which takes seconds, for tests that only read it


def part(work: Workload, *wanted: Variant) -> Space:
    """The space of these variants alone."""
    return joined(work, 90, lambda _, variant: members_of(work, variant, 90) if variant in wanted else None)


FEW = replace(BWD, T=300, schedule=Schedule(64))  # chunks, of which passes have o and dv made all at once
SPACES = (BWD, FWD, FEW, WIDE, replace(FWD, schedule=Schedule(64, 32, False)))


@pytest.fixture(params=SPACES, ids=str)
def space(request: pytest.FixtureRequest) -> Space:
    return enumerated(request.param, 90)


@pytest.mark.exhaustive(space=(BWD, FWD))  # all schedules take seconds, and here each of a kind does
@pytest.mark.parametrize("space", SPACES, ids=str, indirect=True)
def test_a_menu_has_every_tile_that_can_run_and_no_other(space: Space) -> None:
    work = space.work
    for variant, menu in space.menus.items():
        assert tuple(menu) == variant.steps(work)
        for step, keys in menu.items():
            offered = [space.member(variant, step, one) for one in keys]
            can_run: dict[
                str, Candidate
            ] = {}  # by what is launched: without a GPU, Hopper's kernels are the portable ones
            for tile in tiles(step, work.K, work.V, 90):
                one = Candidate(variant, step, tile)
                if why_not(plan_of(work, [one], 90), work, 90, step) is None:
                    can_run.setdefault(key(launch_of(work, one, 90)), one)
            assert offered == list(can_run.values())


def test_every_launch_is_listed_once_under_the_key_that_tells_it_apart(space: Space) -> None:
    listed = {one for menu in space.menus.values() for keys in menu.values() for one in keys}
    assert listed == set(space.candidates) == set(space.predicted_ms)
    assert all(ms > 0 for ms in space.predicted_ms.values())
    few = list(space.candidates.items())[:: max(1, len(space.candidates) // 40)]
    assert [key(launch_of(space.work, candidate, 90)) for _, candidate in few] == [one for one, _ in few]


def test_a_launch_that_variants_share_is_the_same_in_each_of_them() -> None:
    space = enumerated(FWD, 90)
    homes: dict[str, list[Variant]] = {}
    for variant, menu in space.menus.items():
        for one in menu.get("states", ()):
            homes.setdefault(one, []).append(variant)
    assert any(len(found) > 1 for found in homes.values())
    for one, found in list(homes.items())[:20]:
        members = [space.member(variant, "states", one) for variant in found]
        assert {(member.variant.schedule.chunk, member.variant.block_t) for member in members} == {
            (found[0].schedule.chunk, found[0].block_t)
        }
        assert {key(launch_of(FWD, member, 90)) for member in members} == {one}


def test_sub_chunks_that_make_no_difference_share_their_kernels() -> None:
    menus = enumerated(FWD, 90).menus
    of_32, of_64 = menus[Variant(Schedule(64, 32, True), 16)], menus[Variant(Schedule(64, 64, True), 16)]
    of_16 = menus[Variant(Schedule(64, 16, True), 16)]
    assert of_32 == of_64  # scores beyond the row block are exact in both
    assert of_16["states"] == of_32["states"]
    assert not set(of_16["output"]) & set(of_32["output"])


def test_the_key_tells_what_changes_the_time() -> None:
    variant = Variant(Schedule(64, 64, True), 32)
    one = Candidate(variant, "output", Tile(64, 64, 4, 1))
    others = [
        (FWD, replace(one, tile=Tile(64, 32, 4, 1))),
        (FWD, replace(one, tile=Tile(64, 64, 8, 1))),
        (FWD, replace(one, tile=Tile(64, 64, 4, 2))),
        (FWD, replace(one, variant=Variant(Schedule(64, 64, True), 16))),
        (FWD, replace(one, variant=Variant(Schedule(128, 64, True), 32))),
        (replace(FWD, T=301), one),
        (replace(FWD, B=3), one),
        (replace(FWD, dtype="fp32"), one),
        (replace(FWD, gated=False), one),
    ]
    keys = [key(launch_of(work, candidate, 90)) for work, candidate in [(FWD, one), *others]]
    assert len(set(keys)) == len(keys)
    assert key(launch_of(FWD, one, 90)) == keys[0]
    walked = replace(one, variant=Variant(Schedule(64, 64, False), 32))
    assert key(launch_of(FWD, walked, 90)) == keys[0]  # of a single segment both kinds are the same


def test_a_gpu_with_less_shared_memory_has_a_smaller_space(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SHARED_BYTES, 89, 48 * 1024)
    large = replace(FWD, K=512, V=512, dtype="fp32", schedule=Schedule(64, 64, True))
    roomy, small = space_of(large, 80), space_of(large, 89)
    assert set(small.menus) == set(roomy.menus)
    assert set(small.candidates) < set(roomy.candidates)
    assert {one.tile.block_v for one in small.candidates.values() if one.step == "output"} == {64, 128, 256}


def test_tensor_descriptors_are_for_gpus_that_have_them() -> None:
    newer, older = enumerated(FWD, 90), enumerated(FWD, 80)
    assert {one.tile.descriptors for one in newer.candidates.values() if one.step == "output"} == {True}
    assert {one.tile.descriptors for one in newer.candidates.values() if one.step == "states"} == {True, False}
    assert {one.tile.descriptors for one in older.candidates.values()} == {False}


def test_a_variant_one_of_whose_passes_cannot_run_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = enumerated(FWD, 90)

    def refuse(plan: Plan, work: Workload, capability: int, step: str) -> str | None:
        return "made up" if step == "output" and plan.config.block_t == 64 else why_not(plan, work, capability, step)

    monkeypatch.setattr("glabench.tune.space.why_not", refuse)
    space = space_of(FWD, 90)
    assert set(space.menus) == {one for one in whole.menus if one.block_t != 64 or one.walks}
    assert {one.variant.block_t for one in space.candidates.values() if not one.variant.walks} == {16, 32}


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_segments_of_a_long_sequence_share_all_but_the_walks(direction: Direction) -> None:
    plain, cut = Variant(Schedule(64), 32), Variant(Schedule(64, 64, True, 16), 32)
    space = part(replace(LONG, direction=direction), plain, cut)
    for step, keys in space.menus[plain].items():
        shared = set(keys) & set(space.menus[cut][step])
        assert shared == (set() if step in ("states", "grad_states") else set(keys))


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_beside_a_walk_that_cannot_run_no_pass_is_of_another_plan(direction: Direction) -> None:
    """What segments start from is made by a launch of its own, whichever walk its tile is listed beside."""
    variant, step = Variant(Schedule(64, 64, True, 16), 64, True), "states" if direction == "fwd" else "grad_states"
    space = part(replace(LONG, direction=direction), variant)
    launches = [launch_of(space.work, space.member(variant, step, one), 90) for one in space.menus[variant][step]]
    assert [key(launch) for launch in launches] == list(space.menus[variant][step])
    assert len(launches) > len(space.menus[variant][steps_of(space.work, variant.schedule, True)[-1]])
    assert all(launch.constexprs["LAST"] for launch in launches)


def launched(tile: Tile) -> Tile:
    """With the registers that its launch is limited to, whatever is asked for: `Problem.blocks_of`."""
    return replace(tile, max_registers=THREE) if tile.block_v <= 64 else tile


def test_a_total_counts_launches_that_are_not_measured() -> None:
    work = replace(LONG, direction="bwd")
    for schedule in (Schedule(64), Schedule(64, 64, True, 16), Schedule(64, 64, False), Schedule(64, 64, False, 32)):
        space = space_of(replace(work, schedule=schedule), 90)
        config = default_config(64, 64, 2, schedule)

        def ms_of(one: str, space: Space = space, config: KernelConfig = config) -> float:
            candidate = space.candidates[one]
            same = launched(candidate.tile) == launched(getattr(config, candidate.step))
            return space.predicted_ms[one] if same else float("inf")

        total = space.total(Variant(schedule, 64), ms_of)
        assert total == pytest.approx(predicted_ms(work, Plan(schedule, config), 90))


def test_states_that_a_forward_pass_leaves_cost_a_backward_plan_nothing() -> None:
    space = space_of(replace(BWD, schedule=Schedule(64, 64, True)), 90)
    for variant, menu in space.menus.items():
        times = dict.fromkeys((one for keys in menu.values() for one in keys), 1.0)
        free = sum(space.times[variant][step] for step in menu if step != "states")
        assert space.total(variant, times.__getitem__) == pytest.approx(free)
        not_run = times | dict.fromkeys(menu["states"], float("inf"))
        assert space.total(variant, not_run.__getitem__) == float("inf")
    again = space_of(replace(BWD, T=3000, schedule=Schedule(64, 64, False)), 90)
    for variant in again.menus:
        assert again.total(variant, lambda one: 1.0) == pytest.approx(sum(again.times[variant].values()))


def test_a_schedule_asked_for_is_the_only_one() -> None:
    asked = Schedule(128, 64, False)
    space = space_of(replace(FWD, schedule=asked), 90)
    assert {variant.schedule for variant in space.menus} == {asked}
    assert [variant.block_t for variant in space.menus] == [16, 32, 64]


def test_candidates_and_plans_are_made_of_each_other() -> None:
    space = enumerated(BWD, 90)
    variant = next(v for v in space.menus if v.schedule.materialize and v.block_t == 32)
    chosen = [space.member(variant, step, keys[-1]) for step, keys in space.menus[variant].items()]
    plan = plan_of(BWD, chosen, 90)
    assert (plan.schedule, plan.config.block_t) == (variant.schedule, 32)
    assert candidates_of(BWD, plan, 90) == chosen
    assert Plan.from_dict(plan.to_dict()) == plan
    assert [Candidate.from_dict(one.to_dict()) for one in chosen] == chosen
    assert {one.step for one in chosen} == set(steps_of(BWD, variant.schedule, False))


# --- What is known of it ---------------------------------------------------------------------------------------------


@pytest.fixture
def history() -> History:
    return History(enumerated(replace(FWD, schedule=Schedule(64, 64, True)), 90))


def test_a_plan_takes_the_sum_of_the_best_of_its_passes(history: History) -> None:
    variant, other = list(history.space.menus)[:2]
    menu = history.space.menus[variant]
    assert history.best(variant, "states") == menu["states"][0]
    assert history.total(variant) == float("inf")
    for one, ms in zip(menu["states"], (3.0, 2.0, 4.0), strict=False):
        history.add(one, "ok", None, [ms])
    assert history.total(variant) == float("inf")  # one of its passes has no time
    assert history.ranking() == []
    history.add(menu["output"][5], "ok", None, [7.0])
    assert history.best(variant, "states") == menu["states"][1]
    assert history.total(variant) == 9.0
    for keys in history.space.menus[other].values():
        history.add(keys[0], "ok", None, [4.0])
    assert history.ranking() == [other, variant]
    assert history.fastest == {"states": 2.0, "output": 4.0}


def test_a_launch_over_a_slice_is_a_part_of_its_pass() -> None:
    """What is far behind is judged by all that a plan runs of a pass: slices are short, and have many launches."""
    whole, sliced = Schedule(64, 64), Schedule(64, 64, False)
    for schedule, least, most in ((whole, 1.0, 1.0), (sliced, 1.5, 32.0)):
        history = History(space_of(Workload("fwd", 32, 8192, 4, 128, 256, schedule=schedule), 90))
        space = history.space
        variant = next(v for v in space.menus if v.block_t == 64 and not v.walks)
        launches = space.times[variant]["output"]
        assert least <= launches <= most
        one, other = space.menus[variant]["output"][:2]
        assert history.limit_ms(other, 3.0) is None
        history.add(one, "ok", None, [2.0])
        assert history.fastest == {"output": 2.0 * launches}
        assert history.limit_ms(other, 3.0) == pytest.approx(6.0)


def test_samples_add_up_and_a_failure_is_the_end_of_a_candidate(history: History) -> None:
    one, two = list(history.space.candidates)[:2]
    history.add(one, "ok", None, [5.0, 1.0])
    history.add(one, "ok", None, [2.0])
    assert (history.ms(one), history.results[one].samples_ms) == (2.0, [5.0, 1.0, 2.0])
    history.add(one, "wrong", "o is off")
    assert (history.ms(one), history.results[one].reason) == (float("inf"), "o is off")
    assert history.ms(two) == float("inf")


def test_predictions_rank_variants(history: History) -> None:
    space = history.space
    for variant in space.menus:
        times = space.times[variant]
        cheapest = [
            times[s] * min(map(space.predicted_ms.__getitem__, keys)) for s, keys in space.menus[variant].items()
        ]
        assert space.predicted_total(variant) == pytest.approx(sum(cheapest))
    order = sorted(space.menus, key=space.predicted_total)
    assert all(space.predicted_total(a) <= space.predicted_total(b) for a, b in pairwise(order))
