"""Verdicts on cases: the worst of their measures, with the reason where there is nothing to compare."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from glabench.check.verdict import CaseVerdict, Check, check
from glabench.check.wording import details, judged_by
from glabench.store import Row

from .conftest import FULL, MakeRun

CAPPED = {**FULL, "sm_mhz": 1700.0, "throttle": ["power cap"]}
KERNEL: dict[str, Any] = {"kernel": "states_kernel", "arch": "sm_90", "spill_bytes": 0, "error": None}


def accuracy(error: float) -> dict[str, Any]:
    output = {"error": error, "baseline": 0.004, "tolerance": 0.016}
    return {"where": "cuda", "shape": {"T": 1}, "reference": "float64", "pairs": 5, "outputs": {"o": output}}


def only(before: list[Row], after: list[Row]) -> tuple[CaseVerdict, Check]:
    found = check(before, after, 0.03)
    assert len(found.cases) == 1
    return found.cases[0], found


def test_the_same_rows_are_the_same(make_run: MakeRun) -> None:
    rows = [make_run(seed=seed) for seed in range(3)]
    case, found = only(rows, rows)
    assert (case.verdict, found.exit_code) == ("same", 0)


def test_a_slow_down_fails(make_run: MakeRun) -> None:
    case, found = only([make_run()], [make_run(ms=1.2)])
    assert (case.verdict, found.exit_code) == ("slower", 1)


def test_a_speed_up_does_not(make_run: MakeRun) -> None:
    case, found = only([make_run()], [make_run(ms=0.8)])
    assert (case.verdict, found.exit_code) == ("faster", 0)


def test_a_case_that_is_gone_fails_and_a_new_one_does_not(make_run: MakeRun) -> None:
    found = check([make_run(T=64)], [make_run(T=128)], 0.03)
    assert {case.pair.case["T"]: case.verdict for case in found.cases} == {64: "missing", 128: "new"}
    assert found.exit_code == 1


@pytest.mark.parametrize("status", ["wrong", "crashed", "timeout", "oom", "compile_error", "unsupported"])
def test_what_was_right_and_is_no_longer_is_wrong(make_run: MakeRun, status: str) -> None:
    case, found = only([make_run()], [make_run(status=status, reason="o is off", time=None)])
    assert (case.verdict, found.exit_code) == ("wrong", 1)
    assert case.reason == f"ok before, {status} now: o is off"


def test_one_bad_run_of_several_is_enough(make_run: MakeRun) -> None:
    bad = make_run(seed=1, status="wrong", reason="o is off", time=None)
    assert only([make_run()], [make_run(), bad, make_run(seed=2)])[0].verdict == "wrong"


def test_what_failed_before_may_fail_still_and_is_new_once_it_runs(make_run: MakeRun) -> None:
    oom = make_run(status="oom", reason="48 GiB", time=None)
    assert only([oom], [oom])[0].verdict == "same"
    assert only([oom], [make_run()])[0].verdict == "new"


@pytest.mark.parametrize("before", ["oom", "unsupported", "timeout"])
@pytest.mark.parametrize("now", ["wrong", "crashed", "compile_error"])
def test_what_did_not_fit_and_is_broken_now_is_wrong(make_run: MakeRun, before: str, now: str) -> None:
    rows = [make_run(status=status, reason="why", time=None) for status in (before, now)]
    case, found = only(rows[:1], rows[1:])
    assert (case.verdict, found.exit_code) == ("wrong", 1)
    assert only(rows[1:], rows[1:])[0].verdict == "same"  # no worse than it was


def test_a_new_case_that_is_wrong_is_wrong(make_run: MakeRun) -> None:
    case, found = only([], [make_run(status="wrong", reason="o is off", time=None)])
    assert (case.verdict, found.exit_code) == ("wrong", 1)


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({"device": "NVIDIA A100"}, "GPU NVIDIA A100 before, NVIDIA H200 now"),
        ({"driver": "570.86"}, "driver 570.86 before, 580.159.04 now"),
        ({"torch": "2.10.0"}, "torch 2.10.0 before, 2.11.0+cu130 now"),
        ({"triton": "3.7.0"}, "triton 3.7.0 before, 3.6.0 now"),
    ],
)
def test_other_conditions_are_not_compared(make_run: MakeRun, environment: dict[str, str], reason: str) -> None:
    case, found = only([make_run(ms=2, environment=environment)], [make_run()])
    assert (case.verdict, case.reason, found.exit_code) == ("not comparable", reason, 3)
    assert case.time is None


def test_a_repair_release_is_no_other_version(make_run: MakeRun) -> None:
    before = make_run(environment={"torch": "2.11.1", "triton": "3.6.2"})
    assert only([before], [make_run()])[0].verdict == "same"


def test_running_out_of_memory_on_a_smaller_gpu_is_no_regression(make_run: MakeRun) -> None:
    small = make_run(status="oom", reason="48 GiB", time=None, environment={"device": "NVIDIA A100"})
    assert only([make_run()], [small])[0].verdict == "not comparable"


@pytest.mark.parametrize("side", [0, 1])
def test_a_throttled_run_is_not_compared(make_run: MakeRun, side: int) -> None:
    sides = [[make_run()], [make_run()]]
    sides[side] = [make_run(ms=1.2, clocks=CAPPED)]
    case, found = only(*sides)
    assert (case.verdict, found.exit_code) == ("not comparable", 3)
    clocks = ("85.9%", "100.0%") if side == 0 else ("100.0%", "85.9%")
    assert case.reason == f"SM clock at {clocks[0]} of its maximum before, {clocks[1]} now"


def test_a_run_that_was_too_hot_is_not_compared(make_run: MakeRun) -> None:
    hot = {**CAPPED, "throttle": ["power cap", "thermal (software)"]}
    case, found = only([make_run(clocks=hot)], [make_run(clocks=hot)])
    assert (case.verdict, found.exit_code) == ("not comparable", 3)
    assert case.reason == "SM clock at 85.9% of its maximum (power cap, thermal (software))"


def test_a_kernel_that_draws_as_much_power_as_before_is_compared(make_run: MakeRun) -> None:
    assert only([make_run(clocks=CAPPED)], [make_run(clocks=CAPPED, seed=1)])[0].verdict == "same"
    assert only([make_run(clocks=CAPPED)], [make_run(clocks=CAPPED, ms=1.1, seed=1)])[0].verdict == "slower"


@pytest.mark.parametrize("capped", [1, 2, 3])
def test_a_throttled_run_beside_good_ones_is_left_out_and_said(make_run: MakeRun, capped: int) -> None:
    after = [make_run(seed=seed) for seed in (1, 2, 3)]
    after[capped - 1] = make_run(ms=1.2, clocks=CAPPED, seed=capped)
    case, _ = only([make_run()], after)
    assert case.verdict == "same"
    assert case.time is not None
    assert case.time.runs == (1, 2)
    assert case.notes == ("SM clock at 85.9% of its maximum before, 100.0% now",)


def on(gpu: str) -> dict[str, str]:
    return {"gpu_uuid": f"GPU-{gpu}"}


@pytest.mark.parametrize(("ms", "expected"), [(1.0, "same"), (1.04, "ambiguous"), (0.96, "ambiguous"), (1.1, "slower")])
def test_of_another_gpu_of_the_model_more_is_asked_and_it_is_said(make_run: MakeRun, ms: float, expected: str) -> None:
    before = [make_run(seed=seed, environment=on("a")) for seed in range(3)]
    after = [make_run(ms=ms, seed=seed, environment=on("b")) for seed in range(3, 6)]
    case, found = only(before, after)
    assert case.verdict == expected
    assert case.time is not None
    assert case.time.needed > 1.035
    assert "the runs before are of another GPU of this model" in details(case)
    assert "Of 1 case the runs before are of another GPU of this model" in judged_by(found)


@pytest.mark.parametrize(
    ("gpu", "ms", "expected"), [("b", 1.9, "ambiguous"), ("b", 4.0, "slower"), ("a", 1.9, "slower")]
)
def test_what_waits_for_its_launches_is_as_fast_as_the_cpu(
    make_run: MakeRun, gpu: str, ms: float, expected: str
) -> None:
    def run(where: str, **given: Any) -> Row:
        made = make_run(environment=on(where), **given)
        return replace(made, time={**(made.time or {}), "launch_bound": True})

    case, found = only([run("a", seed=seed) for seed in range(3)], [run(gpu, ms=ms, seed=seed) for seed in range(3, 6)])
    assert case.verdict == expected
    assert any("perhaps of another CPU" in line for line in details(case)) is (gpu == "b")
    assert ("2 times as slow or fast" in judged_by(found)) is (gpu == "b")


@pytest.mark.parametrize("where", [on("a"), {}])
def test_nothing_is_said_of_the_same_gpu_or_of_one_that_no_row_names(make_run: MakeRun, where: dict[str, str]) -> None:
    for before in ({}, where):
        runs = [make_run(seed=seed, environment=before) for seed in range(3)]
        case, found = only(runs, [make_run(ms=1.04, seed=seed, environment=where) for seed in range(3, 6)])
        assert case.verdict == "slower"
        assert case.notes == ()
        assert "another GPU" not in judged_by(found)


def test_where_both_sides_have_runs_on_one_gpu_these_count(make_run: MakeRun) -> None:
    before = [
        make_run(ms=ms, seed=seed, environment=on(gpu)) for seed, (gpu, ms) in enumerate([("a", 1.0), ("b", 1.1)])
    ]
    after = [make_run(ms=ms, seed=seed, environment=on(gpu)) for seed, (gpu, ms) in enumerate([("c", 1.2), ("b", 1.1)])]
    case, _ = only(before, after)
    assert case.verdict == "same"
    assert case.time is not None
    assert case.time.runs == (1, 1)
    assert case.notes == ("on another GPU of this model, while both sides have runs on one",)


def test_the_reason_names_the_conditions_of_the_baseline(make_run: MakeRun) -> None:
    after = [make_run(seed=seed, environment={"driver": f"{seed}"}) for seed in (1, 2)]
    case, _ = only([make_run(environment={"driver": "0"})], after)
    assert case.reason == "driver 0 before, 2 now"


def test_runs_of_older_sources_in_the_same_file_are_of_other_code(make_run: MakeRun) -> None:
    old = make_run(ms=0.5, environment={"fingerprint": "old"})
    case, _ = only([make_run()], [old, make_run(seed=1)])
    assert case.verdict == "same"
    assert case.time is not None
    assert case.time.runs == (1, 1)


def test_runs_of_other_settings_in_the_same_file_are_no_repeats(make_run: MakeRun) -> None:
    after = [make_run(ms=0.5, environment={"settings": "old"}), make_run(seed=1, environment={"settings": "new"})]
    case, _ = only([make_run()], after)
    assert case.verdict == "same"
    assert case.time is not None
    assert case.time.runs == (1, 1)


@pytest.mark.parametrize(("later_s", "expected"), [(60, "same"), (1, "wrong")])
def test_what_took_too_long_is_forgotten_once_it_had_more_time(make_run: MakeRun, later_s: int, expected: str) -> None:
    slow = make_run(status="timeout", reason="no result after 1 s", time=None, environment={"limit_s": 1})
    case, _ = only([make_run()], [slow, make_run(seed=1, environment={"limit_s": later_s})])
    assert case.verdict == expected


def test_a_row_that_is_given_twice_is_one_run(make_run: MakeRun) -> None:
    before, after = make_run(), make_run(seed=1)
    case, found = only([before, before], [after, after])
    assert case.time is not None
    assert case.time.runs == (1, 1)
    assert found.noise.steady.pooled is None


def waiting(row: Row) -> Row:
    """The run, of a case that waits for its launches."""
    assert row.time is not None
    return replace(row, time={**row.time, "launch_bound": True})


def test_cases_that_wait_for_their_launches_do_not_hide_what_the_gpu_says(make_run: MakeRun) -> None:
    """Ten restless ones beside ten quiet ones, all of them 3 % slower."""
    quiet = [(T, (0.996, 1.0, 1.004)) for T in range(1, 11)]
    loud = [(T, (0.8, 1.0, 1.2)) for T in range(11, 21)]

    def side(by: float, mark: Callable[[Row], Row]) -> list[Row]:
        rows = [make_run(T=T, ms=by * ms, seed=T) for T, runs in quiet for ms in runs]
        return rows + [mark(make_run(T=T, ms=by * ms, seed=T)) for T, runs in loud for ms in runs]

    def slower(mark: Callable[[Row], Row]) -> list[int]:
        found = check(side(1.0, mark), side(1.03, mark), 0.03)
        return [case.pair.case["T"] for case in found.cases if case.verdict == "slower"]

    assert slower(waiting) == list(range(1, 11))
    assert slower(lambda row: row) == []
    said = judged_by(check(side(1.0, waiting), side(1.0, waiting), 0.03))
    assert "of cases that are restless" in said
    assert "restless" not in judged_by(check(side(1.0, lambda row: row), side(1.0, lambda row: row), 0.03))


def test_a_case_that_waits_in_one_of_its_runs_is_one_that_waits(make_run: MakeRun) -> None:
    before, after = [make_run(ms=1.0), make_run(ms=1.1, seed=1)], [make_run(ms=1.0, seed=2), make_run(ms=1.2, seed=3)]
    found = check(before, [after[0], waiting(after[1])], 0.03).noise
    assert (found.steady.repeats, found.restless.repeats) == (0, 2)


def test_a_case_that_waits_has_the_default_of_a_cpu_where_nothing_was_repeated(make_run: MakeRun) -> None:
    before, after = make_run(ms=1.0), make_run(ms=1.05, seed=1)
    assert only([before], [after])[0].verdict == "slower"
    assert only([waiting(before)], [waiting(after)])[0].verdict == "ambiguous"
    again = check([waiting(before)], [waiting(after)], 0.03).noise
    assert again.beside(again).restless.spread("x", "cuda_events_cold_l2") == pytest.approx(0.05)


def test_one_disturbed_run_does_not_make_a_case_restless(make_run: MakeRun) -> None:
    def disturbed(row: Row) -> Row:
        assert row.time is not None
        samples = [ms * (1 + 0.3 * (i % 2)) for i, ms in enumerate(row.time["samples_ms"])]
        return replace(row, time={**row.time, "samples_ms": samples})

    before, after = ([make_run(seed=seed) for seed in seeds] for seeds in ((0, 1, 2), (3, 4, 5)))
    assert check(before, [*after[:2], disturbed(after[2])], 0.03).noise.steady.repeats == 4
    assert check(list(map(disturbed, before)), list(map(disturbed, after)), 0.03).noise.restless.repeats == 4


def test_a_time_that_is_lost_is_said(make_run: MakeRun) -> None:
    case, found = only([make_run()], [make_run(time=None)])
    assert (case.verdict, case.reason, found.exit_code) == ("not comparable", "no time now", 3)


@pytest.mark.parametrize(("mib", "expected"), [(200, "same"), (201, "same"), (203, "worse"), (190, "better")])
def test_memory_beyond_the_inputs(make_run: MakeRun, mib: int, expected: str) -> None:
    memory = {"peak_bytes": 0, "inputs_bytes": 0, "beyond_inputs_bytes": mib << 20}
    case, found = only([make_run()], [make_run(memory=memory)])
    assert (case.verdict, found.exit_code) == (expected, int(expected == "worse"))


@pytest.mark.parametrize(("mib", "expected"), [(64, "same"), (66, "worse"), (16, "better")])
def test_what_is_kept_for_the_backward_pass(make_run: MakeRun, mib: int, expected: str) -> None:
    memory = {"beyond_inputs_bytes": 200 << 20, "kept_bytes": 64 << 20}
    before, older = make_run(memory=memory), make_run(memory={"beyond_inputs_bytes": 200 << 20})
    after = make_run(memory=memory | {"kept_bytes": mib << 20})
    case, _ = only([before], [after])
    assert case.verdict == expected
    assert {f.measure: f.verdict for f in case.measures} == {"memory": "same", "kept": expected}
    words = f"64.0 MiB kept for the backward pass before, {mib}.0 MiB now"
    assert [f.words for f in case.measures if f.measure == "kept"] == [words]
    assert [f.measure for f in only([older], [after])[0].measures] == ["memory"]  # rows before schema 5 do not say
    assert {f.measure for f in only([before, older], [after])[0].measures} == {"memory", "kept"}


def test_any_more_spills_of_a_kernel_fail(make_run: MakeRun) -> None:
    before = make_run(compiled=[KERNEL, {**KERNEL, "kernel": "output_kernel", "spill_bytes": 40}])
    after = make_run(compiled=[{**KERNEL, "spill_bytes": 8}, {**KERNEL, "kernel": "output_kernel"}])
    case, found = only([before], [after])
    assert (case.verdict, found.exit_code) == ("worse", 1)
    assert [f.words for f in case.measures if f.verdict == "worse"] == ["states_kernel (sm_90) spills 8 B, 0 before"]


def test_spills_that_move_to_a_new_kernel_and_shrink_do_not(make_run: MakeRun) -> None:
    before = make_run(compiled=[{**KERNEL, "spill_bytes": 40}])
    after = make_run(compiled=[KERNEL, {**KERNEL, "kernel": "walk_kernel", "spill_bytes": 16}])
    assert only([before], [after])[0].verdict == "better"


def test_spills_are_compared_for_architectures_that_both_have(make_run: MakeRun) -> None:
    new = {**KERNEL, "arch": "sm_100", "spill_bytes": 16}
    assert only([make_run(compiled=[KERNEL])], [make_run(compiled=[KERNEL, new])])[0].verdict == "same"
    old = {**KERNEL, "arch": "sm_80", "spill_bytes": 64}
    more = {**KERNEL, "kernel": "walk_kernel", "spill_bytes": 32}
    case, _ = only([make_run(compiled=[KERNEL, old])], [make_run(compiled=[KERNEL, more])])
    assert case.verdict == "worse"


FAILED = {"spill_bytes": None, "error": "PassManager::run failed\nat line 3"}


def test_a_kernel_that_no_longer_compiles_for_one_architecture_fails(make_run: MakeRun) -> None:
    other = {**KERNEL, "arch": "sm_80"}
    spilling = {**KERNEL, "spill_bytes": 128}
    broken = make_run(compiled=[other, {**KERNEL, **FAILED}])
    case, found = only([make_run(compiled=[other, spilling])], [broken])
    assert (case.verdict, found.exit_code) == ("worse", 1)
    assert [f.words for f in case.measures if f.verdict == "worse"] == [
        "states_kernel (sm_90) no longer compiles: PassManager::run failed at line 3"
    ]
    assert only([broken], [broken])[0].verdict == "same"
    assert only([broken], [make_run(compiled=[other, spilling])])[0].verdict == "same"  # it compiles at last


def test_a_new_kernel_that_does_not_compile_fails(make_run: MakeRun) -> None:
    after = make_run(compiled=[{**KERNEL, **FAILED, "kernel": "walk_kernel"}])
    assert only([make_run(compiled=[KERNEL])], [after])[0].verdict == "worse"
    before = make_run(compiled=[KERNEL, {**KERNEL, **FAILED, "kernel": "old_kernel"}])
    assert only([before], [after])[0].verdict == "same"  # one did not before: it may have another name now


def test_parts_of_rows_that_lack_what_is_compared_are_not_compared(make_run: MakeRun) -> None:
    for odd in (
        make_run(compiled=[{}]),
        make_run(accuracy={"where": "cuda"}),
        make_run(accuracy={"outputs": {"o": {}}}),
    ):
        assert only([odd], [odd])[0].verdict == "same"


def test_spills_of_two_compilers_are_not_compared(make_run: MakeRun) -> None:
    before = make_run(compiled=[KERNEL], environment={"triton": "3.5.0"}, time=None)
    after = make_run(compiled=[{**KERNEL, "spill_bytes": 8}], time=None)
    assert only([before], [after])[0].verdict == "same"


@pytest.mark.parametrize(
    ("now", "expected"), [(0.0040, "same"), (0.0043, "same"), (0.0050, "worse"), (0.0030, "better")]
)
def test_errors_that_grow(make_run: MakeRun, now: float, expected: str) -> None:
    case, _ = only([make_run(accuracy=accuracy(0.0040))], [make_run(accuracy=accuracy(now))])
    assert case.verdict == expected


def test_tiny_errors_may_grow(make_run: MakeRun) -> None:
    case, _ = only([make_run(accuracy=accuracy(1e-6))], [make_run(accuracy=accuracy(5e-6))])
    assert case.verdict == "same"


def test_memory_that_was_refused_is_not_compared(make_run: MakeRun) -> None:
    refused = make_run(memory={"refused": "a peak of 0 bytes beyond the inputs cannot be"})
    for before, after in ((make_run(), refused), (refused, make_run())):
        case, found = only([before], [after])
        assert (case.verdict, found.exit_code) == ("same", 0)


def test_a_last_run_without_a_figure_hides_none(make_run: MakeRun) -> None:
    more = make_run(memory={"peak_bytes": 1 << 32, "inputs_bytes": 1 << 20, "beyond_inputs_bytes": 1 << 30})
    refused = make_run(seed=1, memory={"refused": "a peak of 0 bytes beyond the inputs cannot be"})
    assert only([make_run()], [more, refused])[0].verdict == "worse"


def test_a_slow_down_outweighs_less_memory(make_run: MakeRun) -> None:
    memory = {"peak_bytes": 0, "inputs_bytes": 0, "beyond_inputs_bytes": 0}
    assert only([make_run()], [make_run(ms=1.2, memory=memory)])[0].verdict == "slower"
