"""Judges of the papers' claims, by hand: what holds, what does not, and what rows cannot tell."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from glabench.analysis.claims import CLAIMS
from glabench.analysis.evidence import OURS, Evidence, Parts, Place, other_commits, split_by_chunk, taken_apart
from glabench.analysis.frame import frame
from glabench.analysis.papers import BestChunk, Compare, Growth, Outcome, RunsOut, Split, Value, judged
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
        "held", (Value("T 1024, over GLA w/ m.", 1 / 3), Value("T 1024, over FlashAttention-2", 0.5))
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
    found = Compare((OURS,), ("fa2",), (NEAR,), apart="another thing")(rows)
    assert found == Outcome("not comparable here", (Value("T 1024", 2.0),), "another thing")


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
    assert found == Outcome("held", (Value("between chunks, 16 to 256", 0.2), Value("inside chunks", 4.0)))
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
        first, last = Parts(estimate(ms(1.0)), estimate(ms(1.0))), Parts(estimate(ms(inter)), estimate(ms(intra)))
        return Split()(Evidence(frame([]), {16: first, 256: last})).verdict

    assert asked(0.5, 2.0) == "held"
    assert asked(2.0, 4.0) == "not held"
    assert asked(0.999, 1.001) == "too close to call"


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


def test_the_sweep_papers_leaves_no_system_out() -> None:
    cases = expand(load(available()["papers"]), "cuda").cases
    assert {case.system for case in cases} == set(CATALOG)
    assert len(cases) <= 250  # some 20 minutes on an H200


def test_the_sweep_papers_is_small_on_a_cpu() -> None:
    plan = expand(load(available()["papers"]), "cpu")
    assert len(plan.cases) <= 20
    assert not plan.compiled
