"""Judges of the papers' claims, by hand: what holds, what does not, and what rows cannot tell."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from glabench.analysis.claims import CLAIMS
from glabench.analysis.evidence import (
    OURS,
    Evidence,
    Parts,
    Place,
    other_commits,
    profiles_of,
    split_by_chunk,
    taken_apart,
)
from glabench.analysis.frame import frame
from glabench.analysis.judges import AsLong, BestChunk, Compare, Growth, RunsOut
from glabench.analysis.judges_of_profiles import BoundBy, MoreFlops, Split
from glabench.analysis.papers import Outcome, Value, judged
from glabench.analysis.statistics import estimate
from glabench.spec.catalog import CATALOG
from glabench.spec.expand import expand
from glabench.spec.sweep import available, load

NEAR, FAR = (Place(f"T {T}", 1, T, 4, 128, 256, mode="fwd") for T in (1024, 8192))
GIB = 2**30


def evidence(*rows: Any) -> Evidence:
    return Evidence(frame(list(rows)))


def ms(value: float) -> list[float]:
    """Samples whose interval is the value within 1 %."""
    return [0.99 * value, value, 1.01 * value]


@pytest.fixture
def attention(make_row: Any) -> Any:
    return lambda samples, **given: make_row("fa2", samples, attn_heads=16, attn_dim=64, **given)


@pytest.mark.parametrize(
    ("own", "rival", "said"),
    [(1.0, 2.0, "held"), (2.0, 1.0, "not held"), (1.0, 1.01, "too close to call")],
)
def test_the_intervals_decide_who_is_faster(make_row: Any, attention: Any, own: float, rival: float, said: str) -> None:
    found = Compare((OURS,), ("fa2",), (NEAR,))(evidence(make_row("gla", ms(own)), attention(ms(rival))))
    assert found == Outcome(said, (Value("T 1024", rival / own),))  # type: ignore[arg-type]


def test_without_an_interval_nothing_is_decided(make_row: Any, attention: Any) -> None:
    found = Compare((OURS,), ("fa2",), (NEAR,))(evidence(make_row("gla", [1.0]), attention([9.0])))
    assert found.verdict == "too close to call"


def test_one_place_that_fails_decides_and_is_named(make_row: Any, attention: Any) -> None:
    rows = [make_row("gla", ms(1), T=T) for T in (1024, 8192)] + [attention(ms(3)), attention(ms(0.5), T=8192)]
    found = Compare((OURS,), ("fa2",), (NEAR, FAR))(evidence(*rows))
    assert (found.verdict, found.why) == ("not held", "not at T 8192")
    assert [value.value for value in found.found] == [3.0, 0.5]


def test_what_is_faster_than_claimed_is_said_to_be(make_row: Any, attention: Any) -> None:
    rows = evidence(make_row("gla", ms(1)), attention(ms(5)))
    found = Compare((OURS,), ("fa2",), (NEAR,), least=(0.7,), most=(1.5,))(rows)
    assert (found.verdict, found.why, found.better) == ("not held", "it is better than that", True)


def test_each_place_has_its_own_limit(make_row: Any) -> None:
    rows = [make_row("gla", ms(1), T=T) for T in (1024, 8192)]
    rows += [make_row("recurrent_hbm", ms(3), T=T) for T in (1024, 8192)]
    over = Compare((OURS,), ("recurrent_hbm",), (NEAR, FAR), least=(2.0, 4.0))(evidence(*rows))
    assert (over.verdict, over.why) == ("not held", "not at T 8192")


def test_memory_is_compared_by_its_peak(make_row: Any, attention: Any) -> None:
    rows = [
        make_row("gla", ms(1), materialize=kept, chunk=64, memory={"peak_bytes": peak, "beyond_inputs_bytes": 1})
        for kept, peak in ((True, 3 * GIB), (False, GIB))
    ]
    rows.append(attention(ms(1), memory={"peak_bytes": 2 * GIB, "beyond_inputs_bytes": 1}))
    found = Compare(("gla:wo",), ("gla:w", "fa2"), (NEAR,), "peak_mib", (0.0,), (1.0,))(evidence(*rows))
    assert found == Outcome(
        "held", (Value("T 1024, over GLA with states", 1 / 3), Value("T 1024, over FlashAttention-2", 0.5))
    )
    more = Compare(("gla:w",), ("fa2",), (NEAR,), "peak_mib", (1.0,), (1.4,))(evidence(*rows))
    assert (more.verdict, more.why) == ("not held", "")


def test_rows_of_another_question_do_not_count(make_row: Any, attention: Any) -> None:
    others: list[dict[str, Any]] = [
        {"mode": "bwd"},
        {"dtype": "fp16"},
        {"B": 2},
        {"gate_strength": 8.0},
        {"initial_state": True},
    ]
    rows = [make_row("gla", ms(1), **other) for other in others]
    rows += [attention(ms(2)), make_row("fa2", ms(1), attn_heads=4, attn_dim=256)]
    assert Compare((OURS,), ("fa2",), (NEAR,))(evidence(*rows)) == Outcome("not measured")


def test_what_failed_is_told_where_a_number_is_missing(make_row: Any, attention: Any) -> None:
    rows = [make_row("gla", ms(1)), make_row("gla", status="oom", T=8192), attention(ms(2)), attention(ms(2), T=8192)]
    found = Compare((OURS,), ("fa2",), (NEAR, FAR))(evidence(*rows))
    assert (found.verdict, found.why) == ("held", "without T 8192: GLA (ours) out of memory")
    alone = Compare((OURS,), ("fa2",), (FAR,))(evidence(*rows))
    assert alone == Outcome("not measured", why="T 8192: GLA (ours) out of memory")


def test_numbers_that_do_not_compare_are_shown_and_not_judged(make_row: Any, attention: Any) -> None:
    rows = evidence(make_row("gla", ms(1)), attention(ms(2)))
    found = Compare((OURS,), ("fa2",), (NEAR,), fair=lambda evidence: "another thing")(rows)
    assert found == Outcome("not comparable here", (Value("T 1024", 2.0),), "another thing")


@pytest.mark.parametrize(("last", "said"), [(34.6, "not comparable here"), (8.0, "held")])
def test_a_rival_that_grows_faster_than_the_length_is_no_chunkwise_form(make_row: Any, last: float, said: str) -> None:
    rows = [make_row("gla", ms(T / 4096), T=T) for T in (1024, 8192)]
    rows += [make_row("chunkwise_torch", ms(5), T=1024), make_row("chunkwise_torch", ms(5 * last), T=8192)]
    fair = AsLong(("chunkwise_torch",), NEAR, FAR)
    found = Compare((OURS,), ("chunkwise_torch",), (NEAR,), fair=fair)(evidence(*rows))
    assert found.verdict == said
    assert ("34.6 times as long for 8 times the tokens" in found.why) is (said != "held")


def test_a_tie_is_neither_held_nor_missed(make_row: Any, attention: Any) -> None:
    """0.994 of the memory is no less of it, and a time half a percent shorter no shorter one."""
    rows = [make_row("gla", ms(1), materialize=True, chunk=64, memory={"peak_bytes": 994, "beyond_inputs_bytes": 1})]
    rows.append(attention([1.005] * 9, memory={"peak_bytes": 1000, "beyond_inputs_bytes": 1}))
    for quantity, most in (("peak_mib", 1.5), ("ms", 9.0)):
        asked = Compare(("gla:w",), ("fa2",), (NEAR,), quantity, (1.0,), (most,))  # type: ignore[arg-type]
        assert asked(evidence(*rows)).verdict == "too close to call"


def test_calls_are_judged_beside_kernels(make_row: Any, attention: Any) -> None:
    def asked(wall: float | None) -> Outcome:
        rows = [make_row("gla", ms(1)), attention(ms(2))]
        if wall:
            eager = [{"eager": {"wall_ms": ms(each), "host_ms": [0.1]}} for each in (wall, 2.1)]
            rows = [replace(row, time=row.time | more) for row, more in zip(rows, eager, strict=True)]
        return Compare((OURS,), ("fa2",), (NEAR,), wall=True)(evidence(*rows))

    assert asked(1.5) == Outcome("held", (Value("T 1024", 2.0), Value("T 1024, wall", pytest.approx(1.4))))  # type: ignore[arg-type]
    assert (asked(4.0).verdict, asked(4.0).why) == ("not held", "not at T 1024, wall")
    assert asked(None) == Outcome(
        "held", (Value("T 1024", 2.0),), "without the wall time of calls, which is not measured"
    )


# --- Tuned and untuned ------------------------------------------------------------------------------------------------

PLANS = {
    "tuned": "gla_kernels 0.1, triton 3.6.0; fwd 64/64 w/ m. shipped for NVIDIA H200, tuned at B=1 T=1024 H=4",
    "untuned": "gla_kernels 0.1, triton 3.6.0; fwd 64/64 w/ m. by size",
}
RIVALS = {"fixed": "torch 2.11.0 SDPA flash", "untuned": "glabench 0.1 baselines.scan, triton 3.6.0"}
OPEN = "not comparable here"


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


def claim(name: str) -> Any:
    return next(one for one in CLAIMS if one.name == name)


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


def test_table_3_is_of_gates_on_both_sides(make_row: Any) -> None:
    judge = claim("over-recurrent").judge
    at = {"B": 32, "T": 1024, "H": 16, "K": 64, "V": 64, "mode": "fwdbwd"}
    rival = make_row("recurrent_hbm", ms(8), **at)
    one_side = judge(evidence(make_row("gla", ms(1), **at), rival))
    assert one_side.verdict == "not measured"
    found = judge(evidence(make_row("gla", ms(2), value_gate=True, **at), make_row("gla", ms(1), **at), rival))
    assert (found.verdict, found.found) == ("held", (Value("T 1k, heads of 64", 4.0),))
    assert "gates on both sides" in found.pairs[0]


def test_throughput_is_that_of_training_and_of_no_operator(make_row: Any) -> None:
    judge = claim("throughput").judge
    at = {"B": 8, "T": 2048, "H": 4, "K": 256, "V": 512}
    rows = [make_row("gla", ms(1 if kept else 2), materialize=kept, chunk=64, **at) for kept in (True, False)]
    rows += [make_row("fa2", ms(3), attn_heads=32, attn_dim=64, **at), make_row("mamba_scan", ms(4), **at)]
    assert judge(evidence(*rows)).verdict == "not measured"
    assert claim("throughput").needs == "glabench sweep training"
    of = {"mode": "train", "model": "1.3b", **at}
    eager = [make_row("gla_lm", ms(1 if kept else 2), materialize=kept, chunk=64, **of) for kept in (True, False)]
    eager += [make_row("transformer_lm", ms(3), **of), make_row("mamba2_lm", ms(4), **of)]
    assert judge(evidence(*eager)).verdict == "not measured"
    steps = [replace(row, case=row.case | {"execution": "compiled"}) for row in eager]
    assert judge(evidence(*steps)).verdict == "held"


def test_growth_is_that_of_the_length_or_more(make_row: Any, attention: Any) -> None:
    def asked(last: float, rival: float) -> Outcome:
        rows = [make_row("gla", ms(1)), make_row("gla", ms(last), T=8192)]
        rows += [attention(ms(1)), attention(ms(rival), T=8192)]
        return Growth((OURS,), NEAR, FAR, faster=("fa2",))(evidence(*rows))

    assert asked(8.0, 40.0) == Outcome("held", (Value("GLA (ours)", 8.0), Value("FlashAttention-2", 40.0)))
    assert asked(12.0, 40.0).why == "not at GLA (ours)"
    assert asked(8.0, 7.0).why == "not at FlashAttention-2"


def test_the_best_chunk_is_the_fastest_or_not_told_from_it(make_row: Any) -> None:
    def asked(*times: float) -> Outcome:
        sizes = zip((32, 64, 128), times, strict=True)
        rows = [make_row("gla", ms(time), chunk=c, sub_chunk=16, materialize=True) for c, time in sizes]
        return BestChunk("gla:w", NEAR, 128)(evidence(*rows))

    assert asked(3, 2, 1) == Outcome("held", (Value("chunk size", 128, ""), Value("time at 64 over it", 2.0)))
    assert asked(3, 1.01, 1).verdict == "too close to call"
    assert asked(3, 1, 2) == Outcome("not held", (Value("chunk size", 64, ""), Value("time at 128 over it", 2.0)))
    assert asked(3, 1, 1.01).verdict == "too close to call"
    assert BestChunk("gla:w", NEAR, 128)(evidence(make_row("gla", ms(1), chunk=128, materialize=True))).found == ()


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


# --- What kernels compute ---------------------------------------------------------------------------------------------

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


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"status": "oom"}, "held"),
        ({"memory": {"peak_bytes": 81e9}}, "held"),  # more than the 80 GB of the largest GPU of the time
        ({"memory": {"peak_bytes": 40e9}}, "not comparable here"),
        ({"status": "crashed"}, "not measured"),
    ],
)
def test_running_out_of_memory_depends_on_how_much_there_is(make_row: Any, given: dict[str, Any], said: str) -> None:
    assert RunsOut("recurrent_hbm", NEAR)(evidence(make_row("recurrent_hbm", ms(1), **given))).verdict == said


def test_without_rows_no_claim_is_judged(make_row: Any) -> None:
    found = judged(CLAIMS, evidence(make_row("gla", ms(1))))
    assert len({one.claim.name for one in found}) == len(found) == len(CLAIMS)
    assert {one.outcome.verdict for one in found} == {"not measured"}


def test_the_sweep_papers_leaves_no_operator_out_and_the_sweep_training_no_model() -> None:
    cases = {name: expand(load(available()[name]), "cuda").cases for name in ("papers", "training")}
    models = {name for name, info in CATALOG.items() if info.family == "model"}
    assert {case.system for case in cases["papers"]} == CATALOG.keys() - models
    assert {case.system for case in cases["training"]} == models
    assert len(cases["papers"]) <= 250  # some 20 minutes on an H200


def test_the_sweep_papers_is_small_on_a_cpu() -> None:
    plan = expand(load(available()["papers"]), "cpu")
    assert len(plan.cases) <= 20
    assert not plan.compiled
