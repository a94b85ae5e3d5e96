"""Judges of the papers' claims where one side is tuned and the other is not, or neither."""

from __future__ import annotations

from typing import Any

import pytest

from glabench.analysis.evidence import OURS
from glabench.analysis.judges import BestChunk, Compare, Growth
from glabench.analysis.papers import Outcome, Value

from .claims_by_hand import FAR, GIB, NEAR, OPEN, claim, evidence, ms

PLANS = {
    "tuned": "gla_kernels 0.1, triton 3.6.0; fwd 64/64 w/ m. shipped for NVIDIA H200, tuned at B=1 T=1024 H=4",
    "untuned": "gla_kernels 0.1, triton 3.6.0; fwd 64/64 w/ m. by size",
}
RIVALS = {"fixed": "torch 2.11.0 SDPA flash", "untuned": "glabench 0.1 baselines.scan, triton 3.6.0"}


@pytest.mark.parametrize(
    ("own", "rival", "faster", "said"),
    [
        ("tuned", "fixed", 2.0, "held"),
        ("tuned", "fixed", 0.5, "not held"),
        ("tuned", "untuned", 2.0, OPEN),  # tuned, the rival may win
        ("tuned", "untuned", 0.5, "not held"),  # tuned, it would win by more
        ("untuned", "fixed", 2.0, "held"),
        ("untuned", "fixed", 0.5, OPEN),
        ("untuned", "untuned", 2.0, "held"),
        ("untuned", "untuned", 0.5, "not held"),
    ],
)
def test_what_only_tuning_could_tell_is_not_judged(
    make_row: Any, own: str, rival: str, faster: float, said: str
) -> None:
    rows = evidence(
        make_row("gla", ms(1), implementation=PLANS[own]), make_row("scan", ms(faster), implementation=RIVALS[rival])
    )
    found = Compare((OURS,), ("scan",), (NEAR,))(rows)
    assert (found.verdict, found.found) == (said, (Value("T 1024", faster),))
    assert ("tuned compared with untuned: " in found.why) is (said == OPEN)
    words = {"tuned": " (tuned)", "untuned": " (not tuned)", "fixed": ""}
    assert found.pairs == (
        f"GLA, default schedule{words[own]} over Parallel scan, states in HBM{words[rival]}",
    )  # fmt: skip


def test_of_several_schedules_one_is_taken_that_is_as_the_rival(make_row: Any) -> None:
    """A tuned schedule beside a rival that is not would tell nothing; one that is not tuned either does."""
    rows = [make_row("gla", ms(1), implementation=PLANS["tuned"])]
    rows.append(make_row("gla", ms(3), chunk=32, materialize=True, implementation=PLANS["untuned"]))
    rows.append(make_row("scan", ms(6), implementation=RIVALS["untuned"]))
    found = Compare((OURS,), ("scan",), (NEAR,))(evidence(*rows))
    assert found == Outcome("held", (Value("T 1024", 2.0),))
    assert found.pairs == ("GLA with states C32 (not tuned) over Parallel scan, states in HBM (not tuned)",)


def test_memory_does_not_depend_on_tuning(make_row: Any) -> None:
    rows = [
        make_row(name, ms(1), implementation=made, memory={"peak_bytes": size * GIB, "beyond_inputs_bytes": 1})
        for name, made, size in (("gla", PLANS["tuned"], 1), ("scan", RIVALS["untuned"], 9))
    ]
    assert Compare((OURS,), ("scan",), (NEAR,), "peak_mib", (0.0,), (1.0,))(evidence(*rows)).verdict == "held"


def test_growth_between_a_tuned_length_and_another_is_open(make_row: Any) -> None:
    rows = [make_row("gla", ms(1), implementation=PLANS["tuned"])]
    rows.append(make_row("gla", ms(20), T=8192, implementation=PLANS["untuned"]))
    found = Growth((OURS,), NEAR, FAR)(evidence(*rows))
    assert (found.verdict, found.pairs) == (OPEN, ("GLA, default schedule (not tuned or tuned) over itself",))


def schedules(make_row: Any, times: dict[tuple[int, int], float], tuned: set[tuple[int, int]]) -> list[Any]:
    at = {"B": 32, "T": 2048, "mode": "fwdbwd", "materialize": True}
    return [
        make_row("gla", ms(time), chunk=chunk, sub_chunk=sub,
                 implementation=PLANS["tuned" if (chunk, sub) in tuned else "untuned"], **at)
        for (chunk, sub), time in times.items()
    ]  # fmt: skip


TIMES = {(64, 64): 1.0, (128, 64): 0.8, (16, 16): 4.0, (32, 16): 3.0, (64, 16): 2.0, (128, 16): 1.5}


def test_two_levels_are_judged_by_schedules_that_have_them(make_row: Any) -> None:
    judge = claim("two-levels").judge
    alone = schedules(make_row, {(64, 64): 1.0}, set(TIMES))
    direct = make_row("chunkwise_direct", ms(9), B=32, T=2048, mode="fwdbwd", chunk=16)
    assert judge(evidence(*alone, direct)).verdict == "not measured"
    found = judge(evidence(*schedules(make_row, TIMES, set(TIMES))))
    assert found.verdict == "held"
    assert [value.at for value in found.found] == [
        "C128/64 over C64/64", "C128/16 over C16/16", "C64/16 over C16/16", "C32/16 over C16/16"
    ]  # fmt: skip
    slow = judge(evidence(*schedules(make_row, TIMES | {(128, 64): 2.0}, set(TIMES))))
    assert (slow.verdict, slow.why) == ("not held", "not at C128/64 over C64/64")


@pytest.mark.parametrize("tuned", [{(64, 64)}, set()])
def test_two_levels_that_are_not_tuned_are_not_judged(make_row: Any, tuned: set[tuple[int, int]]) -> None:
    """Though each is clearly slower: tiles by size may suit one schedule and not another."""
    slow = {key: 9.0 * chunk for key in TIMES if (chunk := key[0])} | {(64, 64): 1.0, (16, 16): 1.0}
    found = claim("two-levels").judge(evidence(*schedules(make_row, slow, tuned)))
    assert found.verdict == OPEN
    assert ("tuned compared with untuned" if tuned else "neither side is tuned") in found.why
    assert "C128/64" in found.why


def test_the_best_chunk_is_judged_where_all_are_tuned(make_row: Any) -> None:
    def asked(tuned: set[int], fastest: int) -> Outcome:
        rows = [
            make_row("gla", ms(1 if chunk == fastest else 2), chunk=chunk, sub_chunk=16, materialize=True,
                     implementation=PLANS["tuned" if chunk in tuned else "untuned"])
            for chunk in (32, 64, 128)
        ]  # fmt: skip
        return BestChunk("gla:w", NEAR, 128)(evidence(*rows))

    assert asked({32, 64, 128}, 128).verdict == "held"
    assert asked({32, 64, 128}, 64).verdict == "not held"
    assert asked({64}, 64).verdict == asked(set(), 128).verdict == OPEN
    assert asked({32, 64}, 128).verdict == "held"  # though 128 itself is not
    assert asked({128}, 64).verdict == "not held"  # though 64 is not
    assert "C64/16" in asked({128}, 128).why
