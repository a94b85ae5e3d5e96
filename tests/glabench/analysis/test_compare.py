"""Who wins: matching of questions, speed-ups, verdicts and crossovers, by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from glabench.analysis.compare import (
    aligned,
    answers,
    crossover,
    crossovers_by_head_dimension,
    curves,
    speedups,
    variants,
    verdict,
    winners,
)
from glabench.analysis.frame import frame


def test_speed_up_is_matched_on_the_same_question(make_row: Any) -> None:
    rows = [
        make_row("gla", [1.0, 1.0], chunk=64, materialize=True),
        make_row("fla", [4.0, 4.0]),
        make_row("fla", [100.0, 100.0], T=2048),  # another question: nothing to compare it with
    ]
    pairs = speedups(answers(frame(rows)), "fla")
    assert pairs[["variant", "T", "speedup", "verdict"]].values.tolist() == [["gla:w", 1024, 4.0, "faster"]]


@pytest.mark.parametrize("changed", [{"B": 2}, {"H": 8}, {"K": 64}, {"V": 64}, {"dtype": "fp16"}, {"mode": "bwd"},
                                     {"gate_strength": 8.0}, {"initial_state": True}])  # fmt: skip
def test_a_different_question_is_not_compared(make_row: Any, changed: dict[str, Any]) -> None:
    rows = [make_row("gla", [1.0, 1.0]), make_row("fla", [4.0, 4.0], **changed)]
    assert speedups(answers(frame(rows)), "fla").empty


def test_another_device_is_not_compared(make_row: Any) -> None:
    rows = [make_row("gla", [1.0]), make_row("fla", [4.0], environment={"device": "NVIDIA A100"})]
    assert speedups(answers(frame(rows)), "fla").empty


def test_attention_answers_every_gate_strength_of_its_shape(make_row: Any) -> None:
    rows = [
        make_row("gla", [1.0, 1.0], gate_strength=1.0),
        make_row("gla", [2.0, 2.0], gate_strength=8.0),
        make_row("fa2", [4.0, 4.0]),
    ]
    pairs = speedups(answers(frame(rows)), "fa2")
    assert dict(zip(pairs["gate"], pairs["speedup"], strict=True)) == {"1": 4.0, "8": 2.0}


def test_attention_with_other_heads_is_another_function_and_no_other_schedule(make_row: Any) -> None:
    rows = [make_row("gla", [9.0, 9.0]), make_row("fa2", [4.0, 4.0], attn_heads=16, attn_dim=64)]
    rows.append(make_row("fa2", [2.0, 2.0], attn_heads=4, attn_dim=256))
    best = answers(frame(rows))
    assert best.sort_values("ms")["label"].tolist() == [
        "FlashAttention-2", "FlashAttention-2, 16 heads of 64", "GLA, default schedule"
    ]  # fmt: skip
    assert variants(best) == ["gla", "fa2", "fa2:16x64"]
    (first,) = winners(best)
    assert (first.variant, first.runner_up, first.entrants) == ("fa2", "fa2:16x64", 3)
    assert speedups(best, "fa2:16x64").set_index("variant")["speedup"].to_dict() == {"fa2": 2.0, "gla": 4 / 9}


def test_attention_alone_keeps_its_row(make_row: Any) -> None:
    table = aligned(frame([make_row("fa2", [4.0])]))
    assert table["gate"].tolist() == ["none"]


def test_the_fastest_schedule_answers_for_its_variant(make_row: Any) -> None:
    rows = [make_row("gla", [ms], chunk=chunk, materialize=True) for chunk, ms in ((16, 3.0), (64, 1.0), (128, 2.0))]
    best = answers(frame(rows))
    assert best[["chunk", "ms"]].values.tolist() == [[64, 1.0]]


def test_interval_of_a_speed_up_takes_the_worst_and_the_best_case(make_row: Any) -> None:
    rows = [make_row("gla", [1.0, 2.0, 4.0]), make_row("fla", [3.0, 6.0, 8.0])]
    (pair,) = speedups(answers(frame(rows)), "fla").to_dict("records")
    assert pair["speedup"] == 3.0
    assert (pair["speedup_lo"], pair["speedup_hi"]) == (3.0 / 4.0, 8.0 / 1.0)
    assert pair["verdict"] == "ambiguous"


def test_verdicts() -> None:
    assert verdict(1.1, 1.3) == "faster"
    assert verdict(0.7, 0.9) == "slower"
    assert verdict(0.9, 1.1) == "ambiguous"
    assert verdict(math.nan, math.nan) == "ambiguous"


def test_a_winner_is_clear_only_where_intervals_do_not_meet(make_row: Any) -> None:
    apart = winners(answers(frame([make_row("gla", [1.0, 1.1]), make_row("fla", [2.0, 2.1])])))[0]
    assert (apart.variant, apart.runner_up, apart.clear) == ("gla", "fla", True)
    assert apart.lead == pytest.approx(2.05 / 1.05)
    meeting = winners(answers(frame([make_row("gla", [1.0, 2.0]), make_row("fla", [1.9, 2.1])])))[0]
    assert not meeting.clear
    single = winners(answers(frame([make_row("gla", [1.0]), make_row("fla", [2.0])])))[0]
    assert not single.clear  # one sample each: no interval, no verdict
    alone = winners(answers(frame([make_row("gla", [1.0, 1.1])])))[0]
    assert (alone.runner_up, alone.clear) == (None, False)


def test_linear_attention_without_gates_never_wins_a_gated_question(make_row: Any) -> None:
    rows = [make_row("gla", [2.0, 2.0]), make_row("fla_linear", [1.0, 1.0]), make_row("fla", [3.0, 3.0])]
    best = answers(frame(rows))
    assert set(best["variant"]) == {"gla", "fla_linear", "fla"}
    assert [w.variant for w in winners(best)] == ["gla"]
    ungated = [make_row("gla", [2.0, 2.0], gate_strength=None), make_row("fla_linear", [1.0, 1.0])]
    assert [w.variant for w in winners(answers(frame(ungated)))] == ["fla_linear"]


def test_one_decay_a_head_never_wins_a_question_of_gated_linear_attention(make_row: Any) -> None:
    rows = [make_row("gla", [2.0, 2.0]), make_row("simple_gla", [1.0, 1.0]), make_row("fla", [3.0, 3.0])]
    rows += [make_row("retention", [0.5, 0.5]), make_row("fa2", [4.0, 4.0])]
    best = answers(frame(rows))
    assert set(best["variant"]) == {"gla", "simple_gla", "retention", "fla", "fa2"}
    assert set(best["gate"]) == {"1"}  # retention knows no gates, and stands beside the question
    (first,) = winners(best)
    assert (first.variant, first.runner_up) == ("gla", "fla")
    assert [w.variant for w in winners(best, "scalar")] == ["retention"]
    assert dict(speedups(best, "fa2")[["variant", "speedup"]].values)["simple_gla"] == 4.0


def test_one_decay_a_head_never_wins_without_gates_either(make_row: Any) -> None:
    rows = [make_row("gla", [2.0, 2.0], gate_strength=None), make_row("retention", [1.0, 1.0])]
    assert [w.variant for w in winners(answers(frame(rows)))] == ["gla"]


def test_a_gate_a_head_is_no_answer_to_another_strength(make_row: Any) -> None:
    rows = [make_row("gla", [2.0, 2.0], gate_strength=8.0), make_row("simple_gla", [1.0, 1.0], gate_strength=1.0)]
    best = answers(frame(rows))
    assert best[["variant", "gate"]].values.tolist() == [["simple_gla", "1"], ["gla", "8"]]


def over_t(make_row: Any, system: str, times: dict[int, float], **given: Any) -> list[Any]:
    return [make_row(system, [ms, ms], T=t, **given) for t, ms in times.items()]


def test_crossover_by_log_log_interpolation(make_row: Any) -> None:
    # Attention is quadratic, 1 ms at 1k; linear 2 ms at 1k: equal at 2k.
    attention = over_t(make_row, "fa2", {1024: 1.0, 4096: 16.0})
    linear = over_t(make_row, "gla", {1024: 2.0, 4096: 8.0})
    found = crossover(speedups(answers(frame(attention + linear)), "fa2"))
    assert found.crossing == pytest.approx(2048)
    assert (found.wins_from, found.first_t, found.last_t, found.last_speedup) == (4096, 1024, 4096, 2.0)


def test_no_crossover_when_one_is_ahead_throughout(make_row: Any) -> None:
    ahead = over_t(make_row, "gla", {1024: 1.0, 2048: 1.0}) + over_t(make_row, "fa2", {1024: 2.0, 2048: 4.0})
    found = crossover(speedups(answers(frame(ahead)), "fa2"))
    assert (found.crossing, found.wins_from) == (None, 1024)
    behind = over_t(make_row, "gla", {1024: 9.0, 2048: 9.0}) + over_t(make_row, "fa2", {1024: 2.0, 2048: 4.0})
    found = crossover(speedups(answers(frame(behind)), "fa2"))
    assert (found.crossing, found.wins_from) == (None, None)


def test_missing_rival_gives_nothing(make_row: Any) -> None:
    best = answers(frame([make_row("gla", [1.0])]))
    assert speedups(best, "fa2").empty


def test_no_timed_row_at_all(make_row: Any) -> None:
    best = answers(frame([make_row("gla", status="oom"), make_row("fa2", status="unsupported")]))
    assert best.empty
    assert winners(best) == []
    assert speedups(best, "fa2").empty
    assert curves(best) == []
    assert answers(frame([])).empty


def test_curves_hold_the_batch_or_the_number_of_tokens(make_row: Any) -> None:
    batch = over_t(make_row, "gla", {1024: 1.0, 2048: 2.0}, B=2)
    assert [(c.held, c.value) for c in curves(frame(batch))] == [("B", 2)]
    tokens = [make_row("gla", [1.0], B=8192 // t, T=t) for t in (1024, 2048, 4096)]
    assert [(c.held, c.value) for c in curves(frame(tokens))] == [("tokens", 8192)]
    assert curves(frame([make_row("gla", [1.0])])) == []  # a single point is no curve


def test_crossovers_by_head_dimension_hold_width_and_tokens(make_row: Any) -> None:
    def both(H: int, D: int, T: int, rival: float, tokens: int = 4096) -> list[Any]:
        at: dict[str, Any] = {"B": tokens // T, "T": T, "H": H, "K": D, "V": D, "mode": "fwdbwd"}
        return [make_row("gla", [1.0], **at), make_row("fa2", [rival], **at)]

    rows = both(16, 64, 1024, 0.5) + both(16, 64, 2048, 2.0)  # crosses in the geometric middle
    rows += both(8, 128, 1024, 3.0) + both(8, 128, 2048, 4.0)  # faster everywhere
    rows += both(8, 128, 1024, 0.1, tokens=8192)  # a batch of other tokens
    rows += both(4, 64, 1024, 0.1) + both(4, 64, 2048, 0.1)  # another width
    other = {"mode": "fwdbwd", "H": 8, "K": 128, "V": 128, "attn_heads": 16, "attn_dim": 64}
    rows += [make_row("fa2", [0.01], B=4096 // T, T=T, **other) for T in (1024, 2048)]  # attention with other heads
    found = crossovers_by_head_dimension(answers(frame(rows)), "gla", "fa2")
    assert list(found) == [64, 128]
    assert found[64].crossing == pytest.approx(math.sqrt(1024 * 2048))
    assert (found[128].crossing, found[128].wins_from) == (None, 1024)
    assert crossovers_by_head_dimension(answers(frame(rows)), "gla", "cudnn") == {}
