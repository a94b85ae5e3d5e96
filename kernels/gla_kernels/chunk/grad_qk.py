"""dQ, dK and the gate's gradient: a program for each chunk and tile of K.

    dQ = e^G (scale dO S_{c-1}^T) + [sum_j dA_ij K_j e^{G_i-G_j}]_i,   dA = scale tril(dO V^T)
    dK = e^{gamma-G} (V dS_c^T)   + [sum_i dA_ij Q_i e^{G_i-G_j}]_j
    dg_t = sum_{i>=t} (q_i dq_i - k_i dk_i) + Phi,   Phi = sum_V S_c dS_c at the chunk's end

The gate's gradient needs no state per step: that is the 2024 paper's memory-efficient form (section 4.3; its appendix
C has the sign wrong). In the frame of a row block's middle (products.py), with Q = q e^C and K = k e^-C there:

    X = scale e^{before+h} (dO S^T) + dA K + ...      dq = e^C X
    Y = e^{after+h} (V dS^T) + dA^T Q + ...           dk = e^-C Y          q dq - k dk = Q X - K Y

where ... are the row blocks before and after it in the chunk, each through the decay between the two middles.

What this costs is cancellation. A pair of rows (j, i) with t <= j < i adds to q_i dq_i and to k_j dk_j alike, but has
no part in dg_t; under strong gates such pairs outweigh dg_t by far. They cancel only if both hold the same value for
the pair, so both are formed from the same rounded dA, Q and K (tiles.fine). The same holds for Phi, put together from
what crosses the whole chunk and from the very k dk that are subtracted later:

    Phi = sum_V e^gamma S_{c-1} dS_c + sum_rows K (e^{after+h} V dS_c^T)
"""

# mypy: disallow-untyped-defs=False
from typing import TYPE_CHECKING

import triton
import triton.language as tl
from torch import Tensor

from ..launch import Launcher, settle_keys
from ..schedule import WGMMA_ROWS
from ..tiles.gates import centred_rows, row_block_limit
from ..tiles.operands import load_tile
from ..tiles.products import (
    are_mild,
    load_half,
)
from ..tiles.slices import Slice
from .any_gate import any_gate_grad_qk
from .grad_qk_blocks import inside, phi_at_end, row_block, through_states
from .hopper import grad_qk_hopper_kernel, grad_qk_runs_hopper_kernel, grad_qk_wide_runs_hopper_kernel
from .parted import NARROW

if TYPE_CHECKING:
    from .kept import Gradients
    from .problem import Problem


@triton.jit(do_not_specialize=["T", "n_blocks", "n_here", "first_chunk", "n_stored"])
def grad_qk_kernel(
    p_q, p_k, p_v, p_g, p_do, p_s, p_ds, p_h, p_dq, p_dk, p_dg, d_dq, d_dk, d_dg,
    scale, T, H, n_blocks, n_here, first_chunk, n_stored,
    K: tl.constexpr, V: tl.constexpr, CHUNK: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    GATED: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dq, dk and dg [B, T, H, K] of n_here chunks from first_chunk on.

    p_s [B*H, n_stored, K, V]: the state before each of them; p_ds, the same: the gradient of the state after it.
    p_h [B*H, n_blocks, K]: log2 of half of each row block's decay, from the sequence's start.
    """
    NK: tl.constexpr = (K + BK - 1) // BK
    SINGLE: tl.constexpr = CHUNK == BT
    i_p = tl.program_id(0)
    i_k, i_c, i_bh = i_p % NK, (i_p // NK) % n_here, (i_p // (NK * n_here)).to(tl.int64)
    o_k = i_k * BK + tl.arange(0, BK)
    i_batch, i_h = (i_bh // H).to(tl.int32), (i_bh % H).to(tl.int32)
    i_row0 = (i_bh // H) * T * H + i_bh % H
    p_q, p_k, p_v = p_q + i_row0 * K, p_k + i_row0 * K, p_v + i_row0 * V
    p_do, p_dq, p_dk = p_do + i_row0 * V, p_dq + i_row0 * K, p_dk + i_row0 * K
    i_state = (i_bh * n_stored + i_c) * K * V
    p_s, p_ds = p_s + i_state, p_ds + i_state
    i_chunk = (first_chunk + i_c) * CHUNK
    if GATED:
        p_g, p_dg = p_g + i_row0 * K, p_dg + i_row0 * K
        p_h += (i_bh * n_blocks + i_chunk // BT) * K
    mild = True
    if SINGLE:
        # all loads first, then what the gates have no part in: nothing else waits for memory
        b_k = load_tile(p_k, i_chunk, T, H * K, o_k, K, BT)
        b_q = load_tile(p_q, i_chunk, T, H * K, o_k, K, BT)
        b_half = tl.zeros([BK], dtype=tl.float32)
        b_g = b_k
        if GATED:
            b_half += load_half(p_h, 0, o_k, K)
            b_g = load_tile(p_g, i_chunk, T, H * K, o_k, K, BT)
            mild = tl.min(b_half, axis=0) > -0.5 * row_block_limit(True, PRECISION)
        b_da, b_x, b_y, b_phi = through_states(
            p_v, p_do, p_s, p_ds, i_chunk, T, H, o_k, K, V, BT, BK, BV, GATED, DOT, PRECISION
        )
        if mild:
            b_c = b_x
            if GATED:
                b_c = centred_rows(b_g, BT, DOT)
                b_x *= (scale * tl.exp2(b_half))[None, :]
                b_y *= tl.exp2(b_half)[None, :]
                b_phi *= tl.exp2(2.0 * b_half)
            else:
                b_x *= scale
            inside(
                b_q, b_k, b_c, b_da * scale, b_x, b_y, b_phi, p_dq, p_dk, p_dg, d_dq, d_dk, d_dg,
                i_batch, i_h, i_chunk, T, H, i_k * BK, K, True, BT, BK, GATED, DOT, PRECISION,
            )  # fmt: skip
    else:
        n_own = tl.cdiv(tl.minimum(T - i_chunk, CHUNK), BT)
        if GATED:
            mild = are_mild(p_h, 0, n_own, o_k, K, False, PRECISION)
        if mild:
            b_phi = tl.zeros([BK], dtype=tl.float32)
            b_after = tl.zeros([BK], dtype=tl.float32)
            if GATED:
                b_phi += phi_at_end(
                    p_k, p_v, p_g, p_s, p_ds, p_h, i_chunk, n_own, T, H, o_k, K, V, BT, BK, BV, DOT, PRECISION
                )
            for i_up in tl.range(0, n_own, num_stages=1):
                b_phi, b_after = row_block(
                    p_q, p_k, p_v, p_g, p_do, p_s, p_ds, p_h, p_dq, p_dk, p_dg, d_dq, d_dk, d_dg, b_phi, b_after,
                    scale, i_batch, i_h, i_chunk, n_own - 1 - i_up, n_own, T, H, i_k * BK,
                    K, V, BT, BK, BV, GATED, DOT, PRECISION,
                )  # fmt: skip
    if GATED:
        if not mild:
            any_gate_grad_qk(
                p_q, p_k, p_v, p_g, p_do, p_s, p_ds, p_dq, p_dk, p_dg, scale, i_chunk, T, H, o_k,
                K, V, CHUNK, BK, BV, DOT, PRECISION,
            )  # fmt: skip


settle_keys(grad_qk_kernel)

TILES = 28  # of 64 by 64 numbers of 16 bits in an H100's shared memory, as one program has it


def stages_of(V: int) -> int:
    """Tiles of V on their way in Hopper's own kernels of runs: one where two programs then share a multiprocessor, else
    as many as there is room for, or a few less if they divide the tiles: then each tile always has the same place."""
    if V <= NARROW:
        return 1
    tiles = V // WGMMA_ROWS
    most = (TILES - tiles - 7) // 3  # beside the state, as products read it, are q, k, g, A in two, U and L
    return next((n for n in range(most, 2, -1) if tiles % n == 0), most)


def make_grad_qk(
    p: "Problem", piece: Slice, do: Tensor, few: Tensor, every: int, states: Tensor, grads: Tensor,
    halves: Tensor | None, into: "Gradients", launch: Launcher, kept: int = 1,
) -> bool:  # fmt: skip
    """Fill the slice's rows of the gradients of q, k, g. few [B*H, .., K, V]: the states before every so many chunks,
    or ``kept`` as many, if not every chunk's. Returns whether Hopper's own kernel did, but for what is not mild; it
    fills in ``states`` of that. Any other wants ``states`` of all chunks."""
    args = {
        "p_q": p.q, "p_k": p.k, "p_v": p.v, "p_g": p.g, "p_do": do, "p_s": states, "p_ds": grads, "p_h": halves,
        "p_dq": into.q, "p_dk": into.k, "p_dg": into.g,
    }  # fmt: skip
    args, flags = p.with_sequences(args, "p_sn", p.initial_state)
    tile = p.config.grad_qk
    if every == 1:
        flags["STAGES"] = tile.num_stages
        native = p.hopper_launch(grad_qk_hopper_kernel, tile, p.of_chunks, args, piece, states, **flags)
    else:
        run, V = args | {"p_few": few, "n_few": few.shape[1]}, p.dims[-1]
        kernel = grad_qk_runs_hopper_kernel if V <= NARROW else grad_qk_wide_runs_hopper_kernel
        flags |= {"STAGES": stages_of(V), "KEPT": kept}
        native = p.hopper_launch(kernel, tile, p.of_chunks, run, piece, states, every, **flags)
        assert native is not None  # `Problem.states_apart` has seen to it
    launch(native or p.of_chunks(grad_qk_kernel, tile, args | {"p_g": p.gates}, piece, states))
    return native is not None
