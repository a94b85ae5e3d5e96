"""What rows get from the others of their chunk and from the states around it, on either side of the state, at any gate
strength: for chunks that are not mild (mild.py).

    X_i = sum_{j<=i} A_ij e^{c_i - c_j} y_j + scale e^{c_i} (u_i e^{cu_i}) S
    Y_j = sum_{i>=j} A_ij e^{c_i - c_j} x_i + e^{after_j} (w_j e^{afteru_j}) dS

c: the sums of the gates g over the chunk up to a row, "after" those after it; cu, afteru those of the other side's gu.
S: the state before the chunk, dS: the gradient of the state after it. One function is all of these, tile by tile:

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

from ..tiles.gates import frame, limited
from ..tiles.halving import frame_pairs, frame_sums, level_pairs, level_sums, log_decay
from ..tiles.operands import dot_half, load_operand, load_tile, operand, store_tile
from ..tiles.products import product
from .halving import around_sums, gate_gradient, levels
from .walk import decayed_rows, total_decay


@triton.jit
def _inside(
    p_a, b_own, b_partner, b_g, b_dg, C: tl.constexpr, SUB: tl.constexpr, Y: tl.constexpr, GRAD: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """The chunk's own share of X, or of Y, float32 [C, BD], at any gate strength; with GRAD its share of the gradient
    of g is added to b_dg. X's own rows are x and their partners y, of Y's it is the other way round.

    Of the scores p_a [C, C], or for Y of their transpose, each level loads what it takes.
    """
    o_r, o_i, o_j = tl.arange(0, C), tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
    o_a = o_j * C + o_i if Y else o_i * C + o_j
    b_self = tl.load(p_a + o_r * C + o_r)  # no gate between
    b_sum = b_self[:, None] * b_partner.to(tl.float32)
    b_zero = tl.zeros_like(b_sum)
    n_levels = levels(b_g, C, SUB, PRECISION)
    for i_level in tl.range(0, n_levels, num_stages=1):
        half = C >> (i_level + 1)
        b_e = tl.exp2(log_decay(level_sums(half, o_i, o_j), b_g))
        m_a = level_pairs(half, o_j, o_i) if Y else level_pairs(half, o_i, o_j)
        b_a = tl.load(p_a + o_a, mask=m_a, other=0.0)
        b_new = product(b_a, b_partner * b_e, b_zero, tl.float32, PRECISION) * b_e
        b_sum += b_new
        if GRAD:
            b_dg = gate_gradient(level_sums(half, o_j, o_i), b_own * b_new, b_dg, PRECISION)
    rows = C >> n_levels
    b_c = log_decay(frame_sums(rows, o_i, o_j), b_g) * (-1.0 if Y else 1.0)
    m_a = frame_pairs(rows, o_j, o_i) if Y else frame_pairs(rows, o_i, o_j)
    b_a = tl.load(p_a + o_a, mask=m_a, other=0.0)
    b_new = product(b_a, b_partner * tl.exp2(-b_c), b_zero, tl.float32, PRECISION)
    b_sum += b_new * tl.exp2(b_c)
    if GRAD:
        b_p = operand(b_own * tl.exp2(b_c), tl.float32, PRECISION) * b_new * (-1.0 if Y else 1.0)
        b_dg = gate_gradient(frame_sums(rows, o_j, o_i), b_p, b_dg, PRECISION)
    return b_sum, b_dg


@triton.jit
def _state_tile(p_s, p_f, o_e, o_d, E: tl.constexpr, D: tl.constexpr, TRANSPOSED: tl.constexpr, FRAMED: tl.constexpr):
    """A tile [BE, BD] of a state [E, D], or of one that is kept as [D, E]. FRAMED: as it is outside of its chunk's
    frame, of which p_f [V] tells."""
    b_s = tl.trans(load_operand(p_s, o_d, o_e, D, E)) if TRANSPOSED else load_operand(p_s, o_e, o_d, E, D)
    if FRAMED:
        if TRANSPOSED:
            b_f = tl.exp2(-frame(tl.load(p_f + o_e, mask=o_e < E, other=0.0)))[:, None]
        else:
            b_f = tl.exp2(-frame(tl.load(p_f + o_d, mask=o_d < D, other=0.0)))[None, :]
        b_s = b_s.to(tl.float32) * b_f
    return b_s


@triton.jit
def _through_state(
    p_u, p_gu, p_s, p_f, i_row, T, stride, o_d, D: tl.constexpr, E: tl.constexpr, C: tl.constexpr, BE: tl.constexpr,
    UNTIL: tl.constexpr, TRANSPOSED: tl.constexpr, FRAMED: tl.constexpr, GATED_U: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Rows u, decayed from the chunk's start or to its end, times a state: float32 [C, BD]."""
    b_sum = tl.zeros([C, o_d.shape[0]], dtype=tl.float32)
    for i_e in tl.range(0, (E + BE - 1) // BE, num_stages=1):
        o_e = i_e * BE + tl.arange(0, BE)
        b_u, _ = decayed_rows(p_u, p_gu, i_row, T, stride, o_e, E, C, UNTIL, GATED_U, DOT)
        b_s = _state_tile(p_s, p_f, o_e, o_d, E, D, TRANSPOSED, FRAMED)
        b_sum = product(b_u, b_s, b_sum, DOT, PRECISION)
    return b_sum


@triton.jit
def _crossing(
    p_gu, p_s, p_ds, p_f, i_row, T, stride, o_d, D: tl.constexpr, E: tl.constexpr, C: tl.constexpr, BE: tl.constexpr,
    TRANSPOSED: tl.constexpr, FRAMED: tl.constexpr, GATED_U: tl.constexpr,
):  # fmt: skip
    """sum_e S e^{sum of gu} dS, float32 [BD]."""
    b_sum = tl.zeros([o_d.shape[0]], dtype=tl.float32)
    for i_e in tl.range(0, (E + BE - 1) // BE, num_stages=1):
        o_e = i_e * BE + tl.arange(0, BE)
        b_s = _state_tile(p_s, p_f, o_e, o_d, E, D, TRANSPOSED, FRAMED).to(tl.float32)
        b_s *= _state_tile(p_ds, p_f, o_e, o_d, E, D, TRANSPOSED, FRAMED).to(tl.float32)
        if GATED_U:
            b_s *= tl.exp2(total_decay(load_tile(p_gu, i_row, T, stride, o_e, E, C)))[:, None]
        b_sum += tl.sum(b_s, axis=0)
    return b_sum


@triton.jit
def _rows(
    p_own, p_partner, p_g, p_a, p_u, p_gu, p_s, p_f, p_out, b_dg, scale, i_row, T, stride, stride_u, o_d,
    D: tl.constexpr, E: tl.constexpr, C: tl.constexpr, SUB: tl.constexpr, BE: tl.constexpr,
    Y: tl.constexpr, GRAD: tl.constexpr, STORE: tl.constexpr, TRANSPOSED: tl.constexpr, FRAMED: tl.constexpr,
    GATED: tl.constexpr, GATED_U: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """X, or Y, of one chunk, stored with STORE; with GRAD, answers b_dg and what of the gradient of g goes with it."""
    o_i, o_j = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
    b_partner = load_tile(p_partner, i_row, T, stride, o_d, D, C)
    b_state = scale * _through_state(
        p_u, p_gu, p_s, p_f, i_row, T, stride_u, o_d, D, E, C, BE, not Y, TRANSPOSED, FRAMED, GATED_U, DOT, PRECISION
    )
    if GATED:
        b_own = b_partner
        if GRAD:
            b_own = load_tile(p_own, i_row, T, stride, o_d, D, C)
        b_g = limited(load_tile(p_g, i_row, T, stride, o_d, D, C))
        b_state *= tl.exp2(log_decay(around_sums(o_i, o_j, Y), b_g))
        if GRAD:
            b_dg = gate_gradient(around_sums(o_j, o_i, Y), b_own * b_state, b_dg, PRECISION)
        b_sum, b_dg = _inside(p_a, b_own, b_partner, b_g, b_dg, C, SUB, Y, GRAD, PRECISION)
    else:
        b_a = tl.load(p_a + (o_j * C + o_i if Y else o_i * C + o_j))
        b_sum = dot_half(b_a, b_partner, tl.zeros_like(b_state), DOT, PRECISION)
    if STORE:
        store_tile(p_out, b_sum + b_state, i_row, T, stride, o_d, D, C)
    return b_dg


@triton.jit
def apply_tile(
    p_x, p_y, p_g, p_a, p_u, p_w, p_gu, p_s, p_ds, p_f, p_dx, p_dy, p_dg, scale, i_row, T, H, o_d,
    D: tl.constexpr, E: tl.constexpr, C: tl.constexpr, SUB: tl.constexpr, BE: tl.constexpr,
    Y: tl.constexpr, STORE_X: tl.constexpr, TRANSPOSED: tl.constexpr, FRAMED: tl.constexpr,
    GATED: tl.constexpr, GATED_U: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """X, and with Y also Y and the gradient of g, of one chunk and a tile of D.

    p_x, p_y, p_g, and the results p_dx, p_dy, p_dg: [T, H, D] of one head; p_u, p_w, p_gu: [T, H, E]. p_a [C, C]; p_s,
    p_ds [E, D], or [D, E] where TRANSPOSED; p_f: frames of these states where FRAMED. X and Y are made one after the
    other, so that few tiles are in registers at once; X itself is only stored if STORE_X.
    """
    GRAD: tl.constexpr = GATED and Y
    stride, stride_u = H * D, H * E
    b_dg = tl.zeros([C, o_d.shape[0]], dtype=tl.float32)
    if GRAD:
        b_cross = _crossing(p_gu, p_s, p_ds, p_f, i_row, T, stride_u, o_d, D, E, C, BE, TRANSPOSED, FRAMED, GATED_U)
        b_dg += (b_cross * tl.exp2(total_decay(load_tile(p_g, i_row, T, stride, o_d, D, C))))[None, :]
    b_dg = _rows(
        p_x, p_y, p_g, p_a, p_u, p_gu, p_s, p_f, p_dx, b_dg, scale, i_row, T, stride, stride_u, o_d,
        D, E, C, SUB, BE, False, GRAD, STORE_X, TRANSPOSED, FRAMED, GATED, GATED_U, DOT, PRECISION,
    )  # fmt: skip
    if Y:
        b_dg = _rows(
            p_y, p_x, p_g, p_a, p_w, p_gu, p_ds, p_f, p_dy, b_dg, 1.0, i_row, T, stride, stride_u, o_d,
            D, E, C, SUB, BE, True, GRAD, True, TRANSPOSED, FRAMED, GATED, GATED_U, DOT, PRECISION,
        )  # fmt: skip
    if GRAD:
        store_tile(p_dg, b_dg, i_row, T, stride, o_d, D, C)
