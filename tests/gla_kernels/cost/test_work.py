"""What a launch's counts come to: operand types, bytes at HBM, what profiles keep of them. See test_counts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import triton

from gla_kernels import KernelConfig, Launch, Plan, Schedule, Tile, Workload
from gla_kernels.cost.work import hbm_bytes, profile_of, work_of
from gla_kernels.plan.apply import launches_of
from gla_kernels.schedule import padded
from gla_kernels.tiles import operands


def meta(work: Workload, schedule: Schedule, block_t: int, monkeypatch: pytest.MonkeyPatch) -> dict[str, Launch]:
    """Launches of whole heads as on a GPU: the interpreter's products are all in float32."""
    monkeypatch.setattr(operands, "interpreting", lambda: False)
    whole = Tile(padded(work.K), padded(work.V))
    return launches_of(work, Plan(schedule, KernelConfig(block_t, *5 * (whole,))))


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
@pytest.mark.parametrize("materialize", [True, False])
def test_products_by_operand_type(monkeypatch: pytest.MonkeyPatch, direction: Any, materialize: bool) -> None:
    work, schedule = Workload(direction, 2, 300, 2, 64, 128), Schedule(128, 64, materialize)
    bf16, fp16, fp32 = (
        {step: work_of(one).tensor_flops for step, one in meta(asked, schedule, 64, monkeypatch).items()}
        for asked in (work, replace(work, dtype="fp16"), replace(work, dtype="fp32"))
    )
    heads, blocks, pairs, square = 4, 5, 2, 2 * 64 * 64
    sums = heads * blocks * square * 64  # a product that sums a block's rows
    # bf16 takes scores as two operands; gradients of scores and decayed rows, for dq and for dk, meet in three products
    halves = {"output": square * 128, "grad_v": square * 128, "grad_qk": 2 * 2 * square * 64}
    for step in bf16:
        assert fp16[step]["bf16"] >= sums  # gates, 16 bits in either
        more = heads * (blocks + pairs) * halves.get(step, 0)
        assert bf16[step]["bf16"] + bf16[step]["tf32"] == fp16[step]["bf16"] + fp16[step]["tf32"] + more
        # gradients of gates are summed in two operands, but for fp32, whose three products are enough
        twice = sums if step == "grad_qk" else 0
        assert fp32[step] == {"bf16": 0, "tf32": 3 * (fp16[step]["tf32"] - twice), "fp32": 0}


@pytest.mark.parametrize("gated", [True, False])
def test_scores_inside_a_sub_chunk_are_tf32(monkeypatch: pytest.MonkeyPatch, gated: bool) -> None:
    work = Workload("fwd", 1, 128, 1, 64, 128, gated=gated)
    for block_t, rows in ((64, 64), (32, 32), (32, 64)):
        flops = work_of(meta(work, Schedule(128, rows), block_t, monkeypatch)["output"]).tensor_flops
        blocks = 128 // block_t
        products = blocks + (blocks * (blocks - 1) // 2 if rows > block_t else 0)
        assert flops["tf32"] == (products * 2 * block_t**2 * 64 if gated else 0)


def test_wide_heads_of_float32_take_no_tensor_core(monkeypatch: pytest.MonkeyPatch) -> None:
    for K, kind in ((256, "tf32"), (300, "fp32")):
        for launch in meta(Workload("bwd", 1, 100, 1, K, 64, "fp32"), Schedule(32), 32, monkeypatch).values():
            assert [name for name, flops in work_of(launch).tensor_flops.items() if flops] == [kind]


H200: dict[str, int] = {"l2_bytes": 60 * 10**6, "sms": 132}


def read_at_hbm(launch: Launch, l2_bytes: int) -> int:
    work = work_of(launch)
    read, written = hbm_bytes(work, launch, l2_bytes, sms=132)
    assert written == work.write_bytes
    return read


def test_programs_that_read_the_same_rows_share_them_at_hbm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operands, "interpreting", lambda: False)
    tile = Tile(32, 32)
    config = KernelConfig(64, *5 * (tile,))
    for direction in ("fwd", "bwd"):
        for launch in launches_of(Workload(direction, 8, 1024, 16, 128, 128), Plan(Schedule(64), config)).values():
            work = work_of(launch)
            assert work.requested_bytes > 1.3 * (work.read_bytes + work.write_bytes)
            assert read_at_hbm(launch, 0) == work.read_bytes  # none comes back to anything


def test_rows_that_a_program_comes_back_to_are_read_again_where_the_l2_is_small(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work, element = Workload("fwd", 8, 1024, 64, 64, 128), 2
    rows = work.B * work.T * work.H
    once = rows * element * (3 * 64 + 128)
    halves = work.B * work.H * (work.T // 64) * 64 * 4
    pairs = meta(work, Schedule(256, 64), 64, monkeypatch)["output"]
    states = work.B * work.H * (work.T // 256) * 64 * 128 * element
    assert read_at_hbm(pairs, 10**12) == once + states + halves
    # of four row blocks, six pairs
    assert read_at_hbm(pairs, 0) == once + states + halves + rows * 6 // 4 * element * (2 * 64 + 128)


def test_the_l2_must_hold_a_chunk_of_each_program_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = (Workload("bwd", B, 2048, 16, 128, 128) for B in (1, 64))
    launches = [meta(work, Schedule(256, 64), 64, monkeypatch)["grad_qk"] for work in (few, many)]
    window = 256 * 2 * 8 * 128  # rows of q, k, g, v, do, dq, dk and dg
    assert [work_of(one).window_bytes for one in launches] == [window, window]
    assert read_at_hbm(launches[0], 128 * window) == work_of(launches[0]).read_bytes
    assert read_at_hbm(launches[0], 128 * window - 1) == work_of(launches[0]).revisited_bytes
    assert read_at_hbm(launches[1], 128 * window) == work_of(launches[1]).revisited_bytes
    assert read_at_hbm(launches[1], 132 * 8 * window) == work_of(launches[1]).read_bytes


def test_what_profiles_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = meta(Workload("fwd", 1, 128, 2, 64, 32, gated=False), Schedule(64), 64, monkeypatch)["states"]
    keys, values, states = 128 * 2 * 64 * 2, 128 * 2 * 32 * 2, 2 * 2 * 64 * 32 * 2
    assert profile_of(launch, **H200) == {
        "programs": 2,
        "tensor_flops": {"bf16": 2 * 256 * 64 * 32, "tf32": 0, "fp32": 0},
        "vector_flops": 0,
        "exps": 0,
        "read_bytes": keys + values,
        "write_bytes": states,
        "requested_bytes": keys + values + states,
        "tensors": {
            "k": {"read": keys, "write": 0, "requested": keys},
            "v": {"read": values, "write": 0, "requested": values},
            "s": {"read": 0, "write": states, "requested": states},
        },
        "hbm_read_bytes": keys + values,
        "hbm_write_bytes": states,
    }


def test_nothing_is_moved_where_there_are_no_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    for launch in meta(Workload("bwd", 0, 128, 2, 64, 32), Schedule(64), 64, monkeypatch).values():
        found = profile_of(launch, **H200)
        assert not any(found.pop("tensor_flops").values())
        assert not found.pop("tensors")
        assert not any(found.values())


def test_another_kernel_is_not_ours() -> None:
    @triton.jit
    def add_kernel(p_x: Any) -> None:
        pass

    with pytest.raises(KeyError, match="add"):
        work_of(Launch(add_kernel, (1,), {}))
