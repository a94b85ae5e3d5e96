"""Judges of the papers' claims, by hand: what holds, what does not, and what rows cannot tell."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from glabench.analysis.evidence import OURS
from glabench.analysis.judges import AsLong, BestChunk, Compare, Growth, RunsOut
from glabench.analysis.papers import Outcome, Value

from .claims_by_hand import FAR, GIB, NEAR, evidence, ms


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
