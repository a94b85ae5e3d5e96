"""Work against values counted by hand."""

from __future__ import annotations

from typing import Any

import pytest

from glabench.spec.case import Case
from glabench.spec.work import floor_ms, operator_work, work


def of(system: str = "gla", **changes: Any) -> dict[str, int]:
    values: dict[str, Any] = {"B": 2, "T": 100, "H": 3, "K": 8, "V": 16, "dtype": "bf16", "mode": "fwd"} | changes
    return operator_work(Case(system, **values).to_dict())


def test_forward_reads_q_k_g_v_and_writes_o() -> None:
    # 600 tokens and heads; 3*8 + 2*16 = 56 elements of 2 bytes; 4*8*16 + 64*(8+16) FLOP
    assert of() == {"flops": 600 * (512 + 64 * 24), "hbm_bytes": 600 * 56 * 2}


def test_backward_and_both() -> None:
    backward = {"flops": 600 * (10 * 128 + 64 * (24 + 32)), "hbm_bytes": 600 * (48 + 48) * 2}
    assert of(mode="bwd") == backward
    both = of(mode="fwdbwd")
    assert both == {key: of()[key] + backward[key] for key in backward}


def test_the_chunk_counts_in_flops_and_not_in_bytes() -> None:
    small, large = of(chunk=16), of(chunk=100)
    assert large["flops"] - small["flops"] == 600 * (100 - 16) * 24
    assert large["hbm_bytes"] == small["hbm_bytes"]
    assert of(chunk=256) == of(chunk=100)  # no chunk is longer than the sequence


def test_the_recurrence_has_no_scores_and_the_parallel_form_no_state() -> None:
    assert of("gla_recurrent")["flops"] == 600 * 4 * 128
    assert of("parallel_torch")["flops"] == 600 * 100 * 24


def test_no_gate_is_not_read() -> None:
    assert of(gate_strength=None)["hbm_bytes"] == 600 * (2 * 8 + 2 * 16) * 2
    assert of(gate_strength=None, mode="bwd")["hbm_bytes"] == 600 * (4 * 8 + 3 * 16) * 2
    assert of("fla_linear", gate_strength=None) == of(gate_strength=None)


def test_gates_on_the_value_side_are_read_and_have_a_gradient() -> None:
    assert of(value_gate=True)["hbm_bytes"] - of()["hbm_bytes"] == 600 * 16 * 2
    assert of(value_gate=True, mode="bwd")["hbm_bytes"] - of(mode="bwd")["hbm_bytes"] == 600 * 2 * 16 * 2


def test_states_are_float32() -> None:
    states = 6 * 8 * 16 * 4
    assert of(initial_state=True)["hbm_bytes"] - of()["hbm_bytes"] == 2 * states
    assert of(initial_state=True, mode="bwd")["hbm_bytes"] - of(mode="bwd")["hbm_bytes"] == 3 * states


def test_one_step_reads_and_writes_its_state() -> None:
    assert of("gla_recurrent", mode="step") == {"flops": 6 * 512, "hbm_bytes": 6 * (2 * 4 * 128 + 56 * 2)}


def test_one_step_of_attention_reads_its_cache() -> None:
    found = of("fa2", attn_heads=5, attn_dim=32, mode="step")
    assert found == {"flops": 2 * 5 * 100 * 4 * 32, "hbm_bytes": 2 * 5 * (2 * 100 + 2) * 32 * 2}


@pytest.mark.parametrize(("mode", "flops", "elements"), [("fwd", 2, 4), ("bwd", 5, 8), ("fwdbwd", 7, 12)])
def test_causal_attention_with_its_own_heads(mode: str, flops: int, elements: int) -> None:
    found = of("fa2", attn_heads=5, attn_dim=32, mode=mode)
    assert found == {"flops": flops * 2 * 5 * 100 * 100 * 32, "hbm_bytes": elements * 2 * 5 * 100 * 32 * 2}


def test_attention_without_heads_of_its_own_takes_the_case_s() -> None:
    assert of("fa2") == of("fa2", attn_heads=3, attn_dim=16)


def test_float32_doubles_the_bytes() -> None:
    assert of(dtype="fp32")["hbm_bytes"] == 2 * of()["hbm_bytes"]


def test_the_floor_of_a_known_shape() -> None:
    # B=1 T=8192 H=96 K=V=128 bf16: 8192 * 96 * 640 * 2 bytes; at 4.28 TB/s that is 0.235 ms
    found = work(Case("gla", 1, 8192, 96, 128, 128, mode="fwd").to_dict())
    assert found["hbm_bytes"] == 1_006_632_960
    assert floor_ms(found["hbm_bytes"], 4.28e12) == pytest.approx(0.2352, abs=1e-4)


def test_an_unknown_system_is_an_error() -> None:
    with pytest.raises(KeyError):
        of("no_such_system")


@pytest.mark.parametrize(
    ("mode", "flops", "elements"), [("fwd", 7, (3, 2)), ("bwd", 19, (5, 4)), ("fwdbwd", 26, (8, 6))]
)
def test_the_selective_scan_has_twice_the_width_and_sixteen_states(
    mode: str, flops: int, elements: tuple[int, int]
) -> None:  # fmt: skip
    channels = 2 * 3 * 16
    found = of("mamba_scan", mode=mode, gate_strength=None)
    assert found["flops"] == 200 * channels * 16 * flops
    assert found["hbm_bytes"] == 200 * 2 * (channels * elements[0] + 16 * elements[1])


@pytest.mark.parametrize(
    ("mode", "flops", "elements"),
    [
        ("fwd", 3 * (4 * 128 + 64 * 16) + 64 * 8, 2 * 8 + 3 * (2 * 16 + 1)),
        ("bwd", 3 * (10 * 128 + 64 * 32) + 64 * 24, 4 * 8 + 3 * (3 * 16 + 2)),
    ],
)
def test_the_heads_of_ssd_share_b_and_c_and_their_products(mode: str, flops: int, elements: int) -> None:
    found = of("mamba2_ssd", mode=mode)
    assert found == {"flops": 200 * flops, "hbm_bytes": 200 * 2 * elements}
    both = of("mamba2_ssd", mode="fwdbwd")
    assert both == {key: of("mamba2_ssd")[key] + of("mamba2_ssd", mode="bwd")[key] for key in both}


def test_one_gate_a_head_is_one_element_and_a_constant_decay_none() -> None:
    assert of("simple_gla")["hbm_bytes"] == of("fla_simple")["hbm_bytes"] == 600 * (2 * 8 + 1 + 2 * 16) * 2
    assert of("simple_gla", mode="bwd")["hbm_bytes"] == 600 * (4 * 8 + 2 + 3 * 16) * 2
    assert of("simple_gla")["flops"] == of("gla")["flops"]
    assert of("retention", gate_strength=None) == of("fla_linear", gate_strength=None)


def test_the_scan_is_counted_as_a_recurrence_and_the_direct_form_by_its_chunk() -> None:
    assert of("scan") == of("recurrent_hbm") == of("gla_recurrent")
    assert of("parallel_triton") == of("parallel_torch")
    assert of("chunkwise_direct", chunk=16) == of("gla", chunk=16)


def test_gates_in_float32_have_bytes_of_their_own() -> None:
    wide, narrow = of(gate_dtype="fp32"), of()
    assert wide["flops"] == narrow["flops"]
    assert wide["hbm_bytes"] - narrow["hbm_bytes"] == 600 * 8 * 2
    assert of(gate_dtype="fp32", mode="bwd")["hbm_bytes"] - of(mode="bwd")["hbm_bytes"] == 600 * 2 * 8 * 2
    both = of(gate_dtype="fp32", value_gate=True)["hbm_bytes"] - of(value_gate=True)["hbm_bytes"]
    assert both == 600 * (8 + 16) * 2
    assert of("simple_gla", gate_dtype="fp32")["hbm_bytes"] - of("simple_gla")["hbm_bytes"] == 600 * 2
    assert of("fa2", gate_strength=None)["hbm_bytes"] == of("fa2")["hbm_bytes"]


def test_scores_of_packed_sequences_span_no_other_sequence() -> None:
    packed, one = of(B=1, lengths="60,10,30"), of(B=1)
    spans = 60 * 60 + 10 * 10 + 30 * 30  # none is as long as a chunk of 64
    assert packed["flops"] == 3 * (100 * 4 * 8 * 16 + spans * (8 + 16))
    assert of(B=1, lengths="100") == one
    assert packed["hbm_bytes"] == one["hbm_bytes"]
    assert of(B=1, lengths="60,10,30", chunk=16)["flops"] < of(B=1, chunk=16)["flops"]
    assert of("gla_recurrent", B=1, lengths="60,10,30") == of("gla_recurrent", B=1)
    assert of("parallel_torch", B=1, lengths="60,10,30")["flops"] == 3 * spans * 24


def test_a_batch_of_any_size_is_counted_at_once() -> None:
    assert of(B=2**31 - 1, T=1, H=1, initial_state=True)["flops"] == (2**31 - 1) * (512 + 24)
    assert of("fa2", B=2**31 - 1, T=1, H=1)["flops"] == (2**31 - 1) * 2 * 16


def test_packed_sequences_have_a_state_each() -> None:
    states = {n: of(B=1, lengths=f"uniform:{n}", initial_state=True)["hbm_bytes"] for n in (1, 4)}
    assert states[4] - states[1] == 2 * 3 * (3 * 8 * 16 * 4)
    assert states[1] == of(B=1, initial_state=True)["hbm_bytes"]


def test_attention_of_packed_sequences_is_of_each_alone() -> None:
    packed, one = of("fa2", B=1, lengths="60,40"), of("fa2", B=1)
    assert packed["flops"] == 3 * (60 * 60 + 40 * 40) * 16 * 2
    assert one["flops"] == 3 * 100 * 100 * 16 * 2
    assert packed["hbm_bytes"] == one["hbm_bytes"]
