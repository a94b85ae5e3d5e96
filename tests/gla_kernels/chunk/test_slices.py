"""How much of a problem is worked on at once, where states are not materialized (`chunk.slices.share_of`)."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

import gla_kernels.chunk
from gla_kernels import Plan, Schedule, Workload, default_config
from gla_kernels.chunk.parted import prepared_bytes
from gla_kernels.chunk.problem import Problem
from gla_kernels.launch import Launch
from gla_kernels.plan.apply import problem_of
from gla_kernels.plan.choose import with_walks
from gla_kernels.tiles.slices import LEAST_ROOM, Head, room_for, share_of

MIB = 2**20

# The board's shapes, and heads of width V that FlashAttention-2 has in their place.
SHAPES = [
    (1, 8192, 96, 128, 128),
    (32, 1024, 4, 128, 256),
    (32, 8192, 4, 128, 256),
    (8, 2048, 32, 256, 256),
    (2, 16384, 16, 128, 128),
    (4, 2048, 16, 128, 128),
    (4, 4096, 64, 128, 128),
    (8, 1024, 8, 64, 64),
]


def problem(B: int, T: int, H: int, K: int, V: int) -> Problem:
    """bf16, gated, without materialized states, on the meta device."""
    q = torch.empty(B, T, H, K, dtype=torch.bfloat16, device="meta")
    v = torch.empty(B, T, H, V, dtype=torch.bfloat16, device="meta")
    schedule = Schedule(64, 64, False)
    return problem_of(q, q, v, q, 1.0, None, Plan(schedule, default_config(K, V, 2, schedule)))


def scratch_bytes(p: Problem) -> int:
    """What the backward pass of the first part allocates beside gradients."""
    part, decays = p.head_group(p.head_groups[0]), p.half_decays()
    assert decays is not None
    found = 2 * part.state_buffer().nbytes + decays.nbytes // (p.q.numel() // part.q.numel())
    if part.in_turn:
        B, _, H, K, V = part.dims
        return found + part.boundary_buffer().nbytes + 4 * B * H * K * V  # a gradient that is carried on
    return found + (2 * part.segment_buffer(part.n_seg).nbytes if part.n_seg > 1 else 0)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "-".join(map(str, shape)))
def test_the_backward_pass_needs_no_more_than_flash_attention_2(shape):
    p = problem(*shape)
    results = 2 * p.v.nbytes + 3 * p.q.nbytes  # o, dv and dq, dk, dg
    attention = 6 * p.v.nbytes  # o, dq, dk, dv and dq in float32, at the same width
    assert results + scratch_bytes(p) <= attention


def test_so_it_does_with_what_walks_of_wide_heads_work_on():
    B, T, H, K, V = SHAPES[3]
    passes = problem(B, T, H, K, V)
    config = with_walks(passes.config, Workload("bwd", B, T, H, K, V))
    p, found = replace(passes, config=config), list[Launch]()
    gla_kernels.chunk.backward(p, p.v, None, found.append)
    prepare = next(launch for launch in found if launch.step == "prepare")
    made = sum(prepare.args[f"p_{name}"].nbytes for name in ("qd", "kd", "a", "f"))
    part = p.head_group(p.head_groups[0])
    assert made == prepared_bytes(K) * part.slices[0].chunks * math.prod(part.q.shape[::2])
    assert 2 * p.v.nbytes + 3 * p.q.nbytes + scratch_bytes(p) + made <= 6 * p.v.nbytes


def test_what_fits_is_worked_on_at_once():
    p = problem(1, 8192, 96, 128, 128)
    assert p.head_groups == [None]
    assert p.head_group(None) is p
    assert p.forward(keep=True) is p


def test_parts_cover_all_heads_once():
    p = problem(5, 2048, 32, 256, 256)
    seen = torch.zeros(5, 32)
    assert len(p.head_groups) > 1
    for at in p.head_groups:
        assert at is not None
        seen[at] += 1
        assert p.head_group(at).q.shape == p.q[at[0], :, at[1]].shape
        assert p.head_group(at).heads_a_row == 32
    assert torch.equal(seen, torch.ones(5, 32))
    assert p.forward(keep=True).head_groups == [None]  # the forward pass has room for all


def test_a_forward_pass_alone_is_not_cut_for_a_backward_pass():
    p = problem(8, 1024, 8, 64, 64)
    alone = p.forward(keep=False)
    assert (len(alone.slices), alone.head_groups) == (1, [None])
    assert len(p.forward(keep=True).slices) == len(p.slices) > 1


def head(chunks: int = 32, in_turn: bool = True) -> Head:
    """64 chunks' rows of heads of 128 in bf16."""
    return Head(chunks, 2 * 128 * 128, 4 * 128 * 128, chunks * 4 * 128, 1 if in_turn else 16, in_turn)


def test_slices_get_shorter_before_heads_take_turns():
    ample, less = (share_of(4, 16, 1, head(), 32, room * MIB) for room in (200, 60))
    assert (ample.batches, ample.heads, ample.at_once) == (4, 16, 32)
    assert (less.batches, less.heads) == (4, 16)
    assert less.at_once < 32
    assert 64 * head().scratch(less.at_once) <= 60 * MIB < 64 * head().scratch(2 * less.at_once)


def test_heads_of_one_sequence_take_turns_too():
    share = share_of(1, 512, 1, head(8), 2, 64 * MIB)
    assert (share.batches, share.heads) == (1, 128)  # 256 do not fit
    assert share.heads * head(8).scratch(share.at_once) <= 64 * MIB


def test_few_heads_rather_keep_more_segments_at_once():
    """Half of the heads with four segments of each make more walks than all with one."""
    share = share_of(2, 16, 1, head(256, in_turn=False), 4, 128 * MIB)
    assert (share.batches, share.heads, share.at_once) == (1, 16, 4)


def test_where_nothing_fits_all_heads_are_worked_on():
    share = share_of(2, 3, 1, head(), 7, 0)
    assert (share.batches, share.heads, share.at_once) == (2, 3, 7)


def test_room_is_never_less_than_a_quarter_of_the_inputs():
    assert room_for(100 * MIB, 300 * MIB) == 100 * MIB
    assert room_for(200 * MIB, 300 * MIB) == 500 * MIB
    assert room_for(10 * MIB, 390 * MIB) == 100 * MIB
    assert room_for(0, 0) == LEAST_ROOM


@pytest.mark.parametrize(("B", "H"), [(0, 2), (2, 0)])
def test_no_heads_need_nothing(B, H):
    assert problem(B, 4096, H, 64, 64).head_groups == [None]
