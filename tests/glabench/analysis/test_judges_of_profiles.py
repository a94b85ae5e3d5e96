"""Judges of what profiles say: parts of the forward pass, what binds kernels, and their operations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from glabench.analysis.evidence import Evidence, Parts, other_commits, profiles_of, split_by_chunk, taken_apart
from glabench.analysis.frame import frame
from glabench.analysis.judges_of_profiles import BoundBy, MoreFlops, Split
from glabench.analysis.papers import Outcome, Value
from glabench.analysis.statistics import estimate

from .claims_by_hand import FAR, NEAR, OPEN, ms


def profiled(make_row: Any, chunk: int, inter: float, intra: float, **given: Any) -> Any:
    parts = {"inter_ms": ms(inter), "intra_ms": ms(intra)}
    return make_row("gla", chunk=chunk, materialize=True, profile={"parts": parts}, **given)


def test_the_forward_pass_taken_apart_comes_from_profiles(make_row: Any) -> None:
    rows = [profiled(make_row, 256, 1.0, 4.0), profiled(make_row, 16, 5.0, 1.0), make_row("gla", ms(1))]
    rows.append(profiled(make_row, 64, 7.0, 7.0, T=8192))
    rows.append(profiled(make_row, 32, 8.0, 8.0, environment={"device": "NVIDIA A100"}))
    split = split_by_chunk(taken_apart(rows, "NVIDIA H200", NEAR))
    assert {c: (both.inter.median, both.intra.median) for c, both in split.items()} == {16: (5.0, 1.0), 256: (1.0, 4.0)}
    table = frame(rows)
    found = Split()(Evidence(table, split))
    assert found == Outcome("held", (Value("between chunks, 16 to 256", 0.2), Value("inside chunks, 16 to 256", 4.0)))
    assert Split()(Evidence(table)).verdict == "not measured"
    assert "other kernels (commit old)" in Split()(Evidence(table, split, split_commits=("old",))).why


def test_the_forward_pass_taken_apart_comes_from_sweeps_too(make_row: Any) -> None:
    def swept(chunk: int, parts: dict[str, Any]) -> Any:
        time = {"clock": "cuda_events_cold_l2", "samples_ms": ms(6.0), "parts": parts}
        return replace(make_row("gla", chunk=chunk, materialize=True), time=time)

    rows = [swept(16, {"inter_ms": ms(5.0), "intra_ms": ms(1.0)}), swept(64, {"refused": "not ours to take apart"})]
    (row,) = taken_apart(rows, "NVIDIA H200", NEAR)
    assert split_by_chunk([row])[16].inter.median == 5.0


def test_the_intervals_decide_whether_parts_fall_and_grow() -> None:
    def asked(inter: float, intra: float) -> str:
        return Split()(Evidence(frame([]), {16: parts(1.0, 1.0), 256: parts(inter, intra)})).verdict

    assert asked(0.5, 2.0) == "held"
    assert asked(2.0, 4.0) == "not held"
    assert asked(0.999, 1.001) == "too close to call"


def parts(inter: float, intra: float, whole: float = 0.0, tuned: bool = True) -> Parts:
    return Parts(estimate(ms(inter)), estimate(ms(intra)), estimate(ms(whole or inter + intra)), tuned)


def test_parts_must_fall_and_grow_at_every_step() -> None:
    """A chunk size between the ends may go the other way, and the ends do not tell."""
    ends = {16: parts(5.0, 1.0), 64: parts(3.0, 1.001), 256: parts(1.0, 4.0)}
    assert Split()(Evidence(frame([]), ends)).verdict == "held"  # 1 to 1.001 is a tie, as in the paper
    found = Split()(Evidence(frame([]), ends | {64: parts(6.0, 2.0)}))
    assert (found.verdict, found.why) == ("not held", "not at between chunks, 16 to 64")
    assert [value.at for value in found.found] == ["between chunks, 16 to 256", "inside chunks, 16 to 256"]


def test_parts_of_another_program_than_the_one_that_runs_are_not_judged() -> None:
    split = {16: parts(5.0, 1.0), 64: parts(2.0, 2.0, whole=2.5), 256: parts(1.0, 4.0)}
    found = Split()(Evidence(frame([]), split))
    assert (found.verdict, found.why) == (
        OPEN,
        "at chunks of 64 the parts, of another program, come to 1.6 times what runs",
    )
    found = Split()(Evidence(frame([]), {16: parts(5.0, 1.0, tuned=False), 256: parts(1.0, 4.0)}))
    assert (found.verdict, found.why) == (OPEN, "tuned compared with untuned: chunks of 16 are not tuned")
    found = Split()(Evidence(frame([]), {chunk: parts(16 / chunk, chunk, tuned=False) for chunk in (16, 64)}))
    assert (found.verdict, found.why) == (OPEN, "no chunk size is tuned")


CEILINGS = {"hbm_copy_bytes_per_s": 4e12, "l2_read_bytes_per_s": 1e13, "bf16_flops": 8e14, "fp32_flops": 5e13,
            "exps_per_s": 4e12, "launch_gap_s": 1e-6}  # fmt: skip


def kernel(step: str, hbm: float, flops: float, states: float = 0.0, count: int = 1) -> dict[str, Any]:
    """A kernel that needs so many ms for its bytes, of which some are of states, and for its products."""
    work = {"tensor_flops": {"bf16": 8e11 * flops}, "vector_flops": 0, "exps": 0, "requested_bytes": 0,
            "hbm_read_bytes": 2e9 * (hbm + states), "hbm_write_bytes": 2e9 * (hbm + states),
            "tensors": {"s": {"read": 4e9 * states}}}  # fmt: skip
    return {"step": step, "count": count, "work": work, "samples_ms": ms(2 * max(hbm + states, flops))}


def profiles(make_row: Any, *kernels: Any, here: bool = True, **at: Any) -> Any:
    found = {"target": {"name": "NVIDIA H200", "here": here}, "ceilings": CEILINGS, "kernels": list(kernels)}
    return make_row("gla", profile=found, **at)


@pytest.mark.parametrize(
    ("states", "output", "said"),
    [((2.0, 1.0), (1.0, 2.0), "held"), ((1.0, 2.0), (1.0, 2.0), "not held"), ((2.0, 1.0), (2.0, 1.0), "not held")],
)
def test_kernels_are_bound_by_what_they_need_longest(
    make_row: Any, states: tuple[float, float], output: tuple[float, float], said: str
) -> None:
    rows = [
        profiles(
            make_row, kernel("states", *states), kernel("output", *output, states=5.0), chunk=16, materialize=True
        ),
        profiles(make_row, kernel("walk", 1.0, 1.0), chunk=64, materialize=True),
    ]
    found = BoundBy(NEAR)(Evidence(frame([]), profiles=rows))
    assert found.verdict == said
    assert "one kernel does both at chunks of 64" in found.why
    assert BoundBy(NEAR)(Evidence(frame([]), profiles=rows[1:])).verdict == "not measured"
    assert BoundBy(FAR)(Evidence(frame([]), profiles=rows)).verdict == "not measured"


@pytest.mark.parametrize(
    ("again", "said", "better"), [(0.3, "held", False), (0.06, "not held", True), (0.9, "not held", False)]
)
def test_flops_are_those_of_every_launch(make_row: Any, again: float, said: str, better: bool) -> None:
    kept = profiles(make_row, kernel("output", 1.0, 1.0), chunk=64, materialize=True)
    without = profiles(
        make_row, kernel("output", 1.0, 0.5, count=2), kernel("states", 1.0, again), chunk=64, materialize=False
    )
    other = profiles(make_row, kernel("output", 1.0, 9.0), chunk=32, materialize=True)
    asked = MoreFlops(replace(NEAR, chunk=64), 1.2, 1.4)
    found = asked(Evidence(frame([]), profiles=[other, kept, without]))
    assert (found.verdict, found.better) == (said, better)
    assert found.found[0].value == pytest.approx(1 + again)
    assert asked(Evidence(frame([]), profiles=[kept])).verdict == "not measured"


def test_profiles_that_are_modelled_for_a_gpu_come_after_its_own(make_row: Any) -> None:
    here = profiles(make_row, chunk=64)
    modelled = profiles(make_row, here=False, chunk=64, environment={"device": "AMD EPYC", "kind": "cpu"})
    other = profiles(make_row, environment={"device": "NVIDIA A100"})
    assert profiles_of([modelled, other, here], "NVIDIA H200") == [here, modelled]


def test_a_gpu_has_another_name_on_its_datasheet(make_row: Any) -> None:
    modelled = profiles(make_row, here=False, environment={"device": "AMD EPYC", "kind": "cpu"})
    assert modelled.profile is not None
    by_sheet = replace(modelled, profile=modelled.profile | {"target": {"name": "NVIDIA H100 SXM", "here": False}})
    assert profiles_of([modelled, by_sheet], "NVIDIA H100 80GB HBM3") == [by_sheet]
    assert profiles_of([modelled, by_sheet], "NVIDIA H100 PCIe") == []


def test_a_profile_of_other_kernels_is_told(make_row: Any) -> None:
    def at(commit: str, fingerprint: str) -> dict[str, Any]:
        return {"environment": {"device": "NVIDIA H200", "commit": commit, "fingerprint": fingerprint}}

    rows = [profiled(make_row, 16, 5.0, 1.0, **at("a" * 40, "x"))]

    def asked(commit: str, fingerprint: str) -> tuple[str, ...]:
        return other_commits(rows, frame([make_row("gla", ms(1), **at(commit, fingerprint))]).to_dict("records"))

    assert asked("a" * 40, "x") == asked("a" * 7, "x") == ()
    assert asked("b" * 40, "x") == asked("a" * 40, "y") == ("a" * 7,)
