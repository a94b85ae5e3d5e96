"""What rows get from the others of their chunk and from the states around it, on either side of the state.

    X_i = sum_{j<=i} A_ij e^{c_i - c_j} y_j + scale e^{c_i} (u_i e^{cu_i}) S
    Y_j = sum_{i>=j} A_ij e^{c_i - c_j} x_i + e^{after_j} (w_j e^{afteru_j}) dS

c: the sums of the gates g over the chunk up to a row, "after" those after it; cu, afteru those of the other side's gu.
S: the state before the chunk, dS: the gradient of the state after it. One kernel is all of these:

    x, y, g         A                        u, w, gu         X     Y     the gradient of g
    do, v, gv       scores of (q, k, g)      q, k, g          o     dv    dgv
    q, k, g         scores of (do, v, gv)    do, v, gv        dq    dk    dg

A gate's gradient is what passes through it: between rows of the chunk (halving.py); from S to the rows from its own
on, x_i times X_i's part by S; from the rows before it to dS, y_j times Y_j's part by dS; and from S to dS,
e^{sum of g} sum_e S e^{sum of gu} dS.
"""

# mypy: disallow-untyped-defs=False
import triton
import triton.language as tl

from ..chunk.gates import whole_decay
from ..chunk.products import product
from ..chunk.tiles import dot_half, load_operand, load_tile, operand, store_tile
from .halving import (
    after_row,
    frame_pairs,
    frame_sums,
    frames,
    gate_gradient,
    level_pairs,
    level_sums,
    log_decay,
    up_to_row,
)
from .walk import decayed_rows


@triton.jit
def _inside(
    b_a, b_x, b_y, b_g, C: tl.constexpr, SUB: tl.constexpr, X: tl.constexpr, Y: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The chunk's own share of X and Y and of the gradient of g, float32 [C, BD], at any gate strength."""
    o_r = tl.arange(0, C)
    b_self = tl.sum(tl.where(o_r[:, None] == o_r[None, :], b_a, 0.0), axis=1)[:, None]  # no gate between
    b_dx, b_dy = b_self * b_y, b_self * b_x
    b_zero = tl.zeros_like(b_y)
    b_dg = b_zero
    n_levels, b_c = frames(b_g, C, SUB, DOT, PRECISION)
    for i_level in tl.range(0, n_levels, num_stages=1):
        half = C >> (i_level + 1)
        b_m = level_sums(half, C)
        b_e = tl.exp2(log_decay(b_m, b_g, DOT))
        b_al = tl.where(level_pairs(half, C), b_a, 0.0)
        b_p = b_zero
        if X:
            b_new = product(b_al, b_y * b_e, b_zero, tl.float32, PRECISION) * b_e
            b_dx += b_new
            b_p += b_x * b_new
        if Y:
            b_new = product(tl.trans(b_al), b_x * b_e, b_zero, tl.float32, PRECISION) * b_e
            b_dy += b_new
            b_p += b_y * b_new
        if X and Y:
            b_dg = gate_gradient(b_m, b_p, b_dg, DOT, PRECISION)
    b_af = tl.where(frame_pairs(C >> n_levels, C), b_a, 0.0)
    b_xc = operand(b_x * tl.exp2(b_c), tl.float32, PRECISION)
    b_yc = operand(b_y * tl.exp2(-b_c), tl.float32, PRECISION)
    b_p = b_zero
    if X:
        b_new = product(b_af, b_yc, b_zero, tl.float32, PRECISION)
        b_dx += b_new * tl.exp2(b_c)
        b_p += b_xc * b_new
    if Y:
        b_new = product(tl.trans(b_af), b_xc, b_zero, tl.float32, PRECISION)
        b_dy += b_new * tl.exp2(-b_c)
        b_p -= b_yc * b_new
    if X and Y:
        b_dg = gate_gradient(frame_sums(C >> n_levels, C), b_p, b_dg, DOT, PRECISION)
    return b_dx, b_dy, b_dg


@triton.jit
def _state_tile(p_s, o_e, o_d, E: tl.constexpr, D: tl.constexpr, TRANSPOSED: tl.constexpr):
    """A tile [BE, BD] of a state [E, D], or of one that is kept as [D, E]."""
    if TRANSPOSED:
        b_s = tl.trans(load_operand(p_s, o_d, o_e, D, E))
    else:
        b_s = load_operand(p_s, o_e, o_d, E, D)
    return b_s


@triton.jit
def _through_state(
    p_u, p_gu, p_s, i_row, T, stride, o_d, D: tl.constexpr, E: tl.constexpr, C: tl.constexpr, BE: tl.constexpr,
    UNTIL: tl.constexpr, TRANSPOSED: tl.constexpr, GATED_U: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Rows u, decayed from the chunk's start or to its end, times a state: float32 [C, BD]."""
    b_sum = tl.zeros([C, o_d.shape[0]], dtype=tl.float32)
    for i_e in tl.range(0, (E + BE - 1) // BE, num_stages=1):
        o_e = i_e * BE + tl.arange(0, BE)
        b_u, _ = decayed_rows(p_u, p_gu, i_row, T, stride, o_e, E, C, UNTIL, GATED_U, DOT)
        b_sum = product(b_u, _state_tile(p_s, o_e, o_d, E, D, TRANSPOSED), b_sum, DOT, PRECISION)
    return b_sum


@triton.jit
def _crossing(
    p_gu, p_s, p_ds, i_row, T, stride, o_d, D: tl.constexpr, E: tl.constexpr, C: tl.constexpr, BE: tl.constexpr,
    TRANSPOSED: tl.constexpr, GATED_U: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """sum_e S e^{sum of gu} dS, float32 [BD]."""
    b_sum = tl.zeros([o_d.shape[0]], dtype=tl.float32)
    for i_e in tl.range(0, (E + BE - 1) // BE, num_stages=1):
        o_e = i_e * BE + tl.arange(0, BE)
        b_s = _state_tile(p_s, o_e, o_d, E, D, TRANSPOSED).to(tl.float32)
        b_s *= _state_tile(p_ds, o_e, o_d, E, D, TRANSPOSED).to(tl.float32)
        if GATED_U:
            b_s *= tl.exp2(whole_decay(load_tile(p_gu, i_row, T, stride, o_e, E, C), C, DOT))[:, None]
        b_sum += tl.sum(b_s, axis=0)
    return b_sum


@triton.jit(do_not_specialize=["T", "n_here", "first_chunk"])
def apply_kernel(
    p_x, p_y, p_g, p_a, p_u, p_w, p_gu, p_s, p_ds, p_dx, p_dy, p_dg, scale, T, H, n_here, first_chunk,
    D: tl.constexpr, E: tl.constexpr, C: tl.constexpr, SUB: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
    X: tl.constexpr, Y: tl.constexpr, STORE_X: tl.constexpr, TRANSPOSED: tl.constexpr,
    GATED: tl.constexpr, GATED_U: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """X and Y and the gradient of g for n_here chunks from first_chunk on: a program a chunk and tile of D.

    p_x, p_y, p_g, and the results p_dx, p_dy, p_dg: [B, T, H, D]; p_u, p_w, p_gu: [B, T, H, E]. p_a [B*H, n_here, C, C]
    and p_s, p_ds [B*H, n_here, E, D], or [.., D, E] where TRANSPOSED. X, Y: which of the two are made; with both of
    them and GATED the gradient of g. Arguments that only what is not made would need are None.
    """
    ND: tl.constexpr = (D + BD - 1) // BD
    i_p = tl.program_id(0)
    i_d, i_c, i_bh = i_p % ND, (i_p // ND) % n_here, (i_p // (ND * n_here)).to(tl.int64)
    i_row, i_head = (first_chunk + i_c) * C, (i_bh // H) * T * H + i_bh % H
    i_here = i_bh * n_here + i_c
    i_own, i_other, stride, stride_u = i_head * D, i_head * E, H * D, H * E
    o_d, o_r = i_d * BD + tl.arange(0, BD), tl.arange(0, C)
    b_a = tl.load(p_a + i_here * C * C + o_r[:, None] * C + o_r[None, :])
    b_y = load_tile(p_y + i_own, i_row, T, stride, o_d, D, C)
    b_x = b_y
    if Y:
        b_x = load_tile(p_x + i_own, i_row, T, stride, o_d, D, C)
    if GATED_U:
        p_gu += i_other
    if GATED:
        b_g = load_tile(p_g + i_own, i_row, T, stride, o_d, D, C)
        b_x, b_y = b_x.to(tl.float32), b_y.to(tl.float32)
        b_dx, b_dy, b_dg = _inside(b_a, b_x, b_y, b_g, C, SUB, X, Y, DOT, PRECISION)
    else:
        b_zero = tl.zeros([C, BD], dtype=tl.float32)
        b_dx, b_dy = b_zero, b_zero
        if X:
            b_dx = dot_half(b_a, b_y, b_zero, DOT, PRECISION)
        if Y:
            b_dy = dot_half(tl.trans(b_a), b_x, b_zero, DOT, PRECISION)
    if X:
        b_new = scale * _through_state(
            p_u + i_other, p_gu, p_s + i_here * D * E, i_row, T, stride_u, o_d,
            D, E, C, BE, True, TRANSPOSED, GATED_U, DOT, PRECISION,
        )  # fmt: skip
        if GATED:
            b_new *= tl.exp2(log_decay(up_to_row(C), b_g, DOT))
            if Y:
                b_dg = gate_gradient(up_to_row(C), b_x * b_new, b_dg, DOT, PRECISION)
        if STORE_X:
            store_tile(p_dx + i_own, b_dx + b_new, i_row, T, stride, o_d, D, C)
    if Y:
        b_new = _through_state(
            p_w + i_other, p_gu, p_ds + i_here * D * E, i_row, T, stride_u, o_d,
            D, E, C, BE, False, TRANSPOSED, GATED_U, DOT, PRECISION,
        )  # fmt: skip
        if GATED:
            b_new *= tl.exp2(log_decay(after_row(C), b_g, DOT))
            if X:
                b_dg = gate_gradient(after_row(C), b_y * b_new, b_dg, DOT, PRECISION)
                b_cross = _crossing(
                    p_gu, p_s + i_here * D * E, p_ds + i_here * D * E, i_row, T, stride_u, o_d,
                    D, E, C, BE, TRANSPOSED, GATED_U, DOT,
                )  # fmt: skip
                b_dg += (b_cross * tl.exp2(whole_decay(b_g, C, DOT)))[None, :]
                store_tile(p_dg + i_own, b_dg, i_row, T, stride, o_d, D, C)
        store_tile(p_dy + i_own, b_dy + b_new, i_row, T, stride, o_d, D, C)
