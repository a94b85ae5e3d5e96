"""What kernels for mild gates alone leave undone: chunks that decay by too much for a frame of their own.

Each kernel here runs after one of those, over the same chunks of one row block. A program looks at its share of a
head's chunks at once, and mostly finds that all are mild. Scores of those that are not are made by halving.

Nothing is hoisted out of the loops here: there are no registers left to keep it in. How many chunks a share has is no
constant of the kernels, which take seconds to compile.
"""

# mypy: disallow-untyped-defs=False
from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import triton
import triton.language as tl

from ..config import Tile, cdiv, padded
from ..launch import interpreting
from .gates import row_block_limit
from .halving import grad_qk_by_halving, grad_v_by_halving, output_by_halving
from .products import load_half, scores_gradient

if TYPE_CHECKING:
    from torch import Tensor

    from ..launch import Launch
    from .problem import Problem
    from .slices import Slice

MOST = tl.constexpr(32)  # chunks a share
TILE = Tile(64, 64, num_warps=8)  # Hopper's kernels leave features undone 64 at a time
# For o and dv two programs fit an SM. Each has a tile of V, and makes the scores again: in a loop over several, Triton
# 3.6 for 4 warps gets all but the first wrong.
V_TILE = Tile(64, 128, num_warps=4)
WARPS = 1024  # about as many as fit a GPU: most programs find nothing to do


def steep_of(p: Problem, kernel: Any, args: dict[str, Any], part: Slice, stored: Tensor) -> Launch:
    """A launch of what Hopper's kernels leave undone of a slice: a program a share of its chunks, and for o and dv a
    tile of V."""
    args, share, tile, columns = args | p.chunks_of(part, stored), MOST.value, TILE, 1
    B, _, H, _, V = p.dims
    if kernel is not grad_qk_steep_kernel:
        tile = replace(V_TILE, block_v=max(TILE.block_v, min(V_TILE.block_v, padded(V))))
        columns = cdiv(V, tile.block_v)
    while share > 1 and cdiv(args["n_here"], share) * columns * B * H * tile.num_warps < WARPS:
        share //= 2
    args["share"], early = share, not interpreting()
    programs = cdiv(args["n_here"], share) * columns
    launch = p.launch_of(kernel, tile, programs, args, CHUNK=p.schedule.chunk, EARLY=early)
    return replace(launch, early=early)


@triton.jit
def _least(p_h, i_first, i_end, K: tl.constexpr, COUNT: tl.constexpr):
    """The least h of the chunks i_first .. i_end-1, which are COUNT at most."""
    PADDED: tl.constexpr = triton.next_power_of_2(K)
    o_c, o_k = i_first + tl.arange(0, COUNT), tl.arange(0, PADDED)
    m_h = (o_c < i_end)[:, None] & (o_k < K)[None, :]
    return tl.min(tl.min(tl.load(p_h + o_c[:, None] * K + o_k[None, :], mask=m_h, other=0.0), axis=1), axis=0)


@triton.jit
def _share_of(p_h, n_blocks, n_here, first_chunk, share, K: tl.constexpr, NV: tl.constexpr):
    """A program's tile of V, its head, its chunks i_first .. i_end-1, the head's h, and the least of it in them."""
    n_shares = tl.cdiv(n_here, share)
    i_p = tl.program_id(0)
    i_v, i_p = i_p % NV, i_p // NV
    i_first, i_bh = (i_p % n_shares) * share, (i_p // n_shares).to(tl.int64)
    i_end = tl.minimum(i_first + share, n_here)
    p_h += (i_bh * n_blocks + first_chunk) * K
    return i_v, i_bh, i_first, i_end, p_h, _least(p_h, i_first, i_end, K, MOST)


@triton.jit(do_not_specialize=["T", "n_blocks", "n_here", "first_chunk", "n_stored", "share"])
def output_steep_kernel(
    p_q, p_k, p_v, p_g, p_s, p_h, p_o, scale, T, H, n_blocks, n_here, first_chunk, n_stored, share,
    K: tl.constexpr, V: tl.constexpr, CHUNK: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    EARLY: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """o [B, T, H, V] of n_here chunks from first_chunk on: of those that are not mild. For the tensors see
    `output.output_kernel`. EARLY: it may have begun before the walk whose states it reads was done."""
    if EARLY:
        tl.extra.cuda.gdc_wait()
    limit = -0.5 * row_block_limit(True, PRECISION)
    NV: tl.constexpr = (V + BV - 1) // BV
    i_v, i_bh, i_first, i_end, p_h, least = _share_of(p_h, n_blocks, n_here, first_chunk, share, K, NV)
    if least <= limit:
        i_row0, o_v = (i_bh // H) * T * H + i_bh % H, i_v * BV + tl.arange(0, BV)
        p_q, p_k, p_v, p_g, p_o = (
            p_q + i_row0 * K,
            p_k + i_row0 * K,
            p_v + i_row0 * V,
            p_g + i_row0 * K,
            p_o + i_row0 * V,
        )
        for i_c in tl.range(i_first, i_end, num_stages=1, disable_licm=True):
            if _least(p_h, i_c, i_end, K, 1) <= limit:
                output_by_halving(
                    p_q, p_k, p_v, p_g, p_s + (i_bh * n_stored + i_c) * K * V, p_o, scale, (first_chunk + i_c) * CHUNK,
                    T, H, o_v, K, V, CHUNK, BK, BV, DOT, PRECISION,
                )  # fmt: skip


@triton.jit(do_not_specialize=["T", "n_blocks", "n_here", "first_chunk", "n_stored", "share"])
def grad_v_steep_kernel(
    p_q, p_k, p_g, p_do, p_ds, p_h, p_dv, scale, T, H, n_blocks, n_here, first_chunk, n_stored, share,
    K: tl.constexpr, V: tl.constexpr, CHUNK: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    EARLY: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dv [B, T, H, V] of n_here chunks from first_chunk on: of those that are not mild. For the tensors see
    `grad_v.grad_v_kernel`. EARLY: it may have begun before the launch before it was done, and so may the next one."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    limit = -0.5 * row_block_limit(True, PRECISION)
    NV: tl.constexpr = (V + BV - 1) // BV
    i_v, i_bh, i_first, i_end, p_h, least = _share_of(p_h, n_blocks, n_here, first_chunk, share, K, NV)
    if least <= limit:
        i_row0, o_v = (i_bh // H) * T * H + i_bh % H, i_v * BV + tl.arange(0, BV)
        for i_c in tl.range(i_first, i_end, num_stages=1, disable_licm=True):
            if _least(p_h, i_c, i_end, K, 1) <= limit:
                grad_v_by_halving(
                    p_q + i_row0 * K, p_k + i_row0 * K, p_g + i_row0 * K, p_do + i_row0 * V,
                    p_ds + (i_bh * n_stored + i_c) * K * V, p_dv + i_row0 * V, scale, (first_chunk + i_c) * CHUNK,
                    T, H, o_v, K, V, CHUNK, BK, BV, DOT, PRECISION,
                )  # fmt: skip
    if EARLY:
        tl.extra.cuda.gdc_wait()  # whoever waits for this launch waits for the one before it


@triton.jit(do_not_specialize=["T", "n_blocks", "n_here", "first_chunk", "n_stored", "share"])
def grad_qk_steep_kernel(
    p_q, p_k, p_v, p_g, p_do, p_s, p_ds, p_h, p_dq, p_dk, p_dg,
    scale, T, H, n_blocks, n_here, first_chunk, n_stored, share,
    K: tl.constexpr, V: tl.constexpr, CHUNK: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    EARLY: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dq, dk and dg [B, T, H, K] of n_here chunks from first_chunk on: of those tiles of BK features that are not mild.
    For the tensors see `grad_qk.grad_qk_kernel`; for EARLY `grad_v_steep_kernel`."""
    limit = -0.5 * row_block_limit(True, PRECISION)
    _, i_bh, i_first, i_end, p_h, least = _share_of(p_h, n_blocks, n_here, first_chunk, share, K, 1)
    if least <= limit:
        i_k0, i_v0 = ((i_bh // H) * T * H + i_bh % H) * K, ((i_bh // H) * T * H + i_bh % H) * V
        for i_c in tl.range(i_first, i_end, num_stages=1, disable_licm=True):
            if _least(p_h, i_c, i_end, K, 1) <= limit:
                i_row, i_state = (first_chunk + i_c) * CHUNK, (i_bh * n_stored + i_c) * K * V
                b_da = scores_gradient(
                    p_do + i_v0, p_v + i_v0, scale, i_row, i_row, T, H * V, V, CHUNK, BV, DOT, PRECISION
                )
                for i_k in tl.range(0, (K + BK - 1) // BK, num_stages=1, disable_licm=True):
                    o_k = i_k * BK + tl.arange(0, BK)
                    if tl.min(load_half(p_h, i_c, o_k, K), axis=0) <= limit:
                        grad_qk_by_halving(
                            p_q + i_k0, p_k + i_k0, p_v + i_v0, p_g + i_k0, p_do + i_v0, p_s + i_state,
                            p_ds + i_state, p_dq + i_k0, p_dk + i_k0, p_dg + i_k0, b_da,
                            scale, i_row, T, H, o_k, K, V, CHUNK, BK, BV, DOT, PRECISION,
                        )  # fmt: skip
    if EARLY:
        tl.extra.cuda.gdc_wait()
