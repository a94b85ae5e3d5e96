"""What rows get from the others of their chunk and from the states around it, where a chunk is mild on both sides.

The sums X and Y of apply.py, with every decay counted from the middle of the chunk's (tiles/products.py): c and cu of a
row, h and hu half of the chunk's. Whole products then, as without gates of the values, and the scores are made here:

    A   = scale tril((u e^cu) (w e^-cu)^T)
    X   = A (y e^-c)   + e^h scale (u e^{cu + hu}) S          X_i of apply.py is e^c times this one
    Y   = A^T (x e^c)  + e^h (w e^{hu - cu}) dS               and Y_j e^-c times this one

    d g_t = sum over rows i >= t of ((x e^c) X - (y e^-c) Y)_i + Phi
    Phi   = e^{2h} sum_e S e^{2hu} dS + sum over all rows of (y e^-c) (e^h (w e^{hu - cu}) dS)

What is added for a pair of rows before t cancels in the gates' gradient only if both terms hold the same value for it:
so both are formed of the same parts of A, x and y (see chunk/grad_qk.py).
"""

# mypy: disallow-untyped-defs=False
import triton
import triton.language as tl

from ..tiles.gates import centred_rows
from ..tiles.operands import cut, fine, load_operand, load_tile, store_tile
from ..tiles.products import dot_rows, load_half, product, sums_from
from .guard import load_halves, mild


@triton.jit
def _by_other_side(
    p_u, p_w, p_gu, p_hu, p_s, p_ds, scale, i_row, T, stride, o_d,
    D: tl.constexpr, E: tl.constexpr, C: tl.constexpr, BE: tl.constexpr, Y: tl.constexpr, TRANSPOSED: tl.constexpr,
    GATED_U: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A, float32 [C, C]; what X, and with Y also Y, get through the states but for e^h [C, BD]; and with Y the sum over
    e of S e^{2hu} dS [BD]."""
    o_r = tl.arange(0, C)
    b_a = tl.zeros([C, C], dtype=tl.float32)
    b_x = tl.zeros([C, o_d.shape[0]], dtype=tl.float32)
    b_y = tl.zeros([C, o_d.shape[0]], dtype=tl.float32)
    b_phi = tl.zeros([o_d.shape[0]], dtype=tl.float32)
    for i_e in range(0, (E + BE - 1) // BE):
        o_e = i_e * BE + tl.arange(0, BE)
        b_u = load_tile(p_u, i_row, T, stride, o_e, E, C)
        b_w = load_tile(p_w, i_row, T, stride, o_e, E, C)
        b_s = _state_tile(p_s, o_e, o_d, E, D, TRANSPOSED)
        b_ds = _state_tile(p_ds, o_e, o_d, E, D, TRANSPOSED) if Y else b_s
        b_gu = load_tile(p_gu, i_row, T, stride, o_e, E, C) if GATED_U else b_u
        b_half = tl.exp2(load_half(p_hu, 0, o_e, E)) if GATED_U else tl.full([BE], 1.0, tl.float32)
        if Y:  # before the products, so that the states leave the registers
            b_cross = b_s.to(tl.float32) * b_ds.to(tl.float32)
            b_phi += tl.sum(b_cross * (b_half * b_half)[:, None], axis=0)
        if GATED_U:
            b_c = centred_rows(b_gu, C, DOT)
            b_u = b_u.to(tl.float32) * tl.exp2(b_c)
            b_w = b_w.to(tl.float32) * tl.exp2(-b_c)
            b_a = product(b_u, tl.trans(b_w), b_a, tl.float32, PRECISION)
            b_u *= b_half[None, :]
            b_w *= b_half[None, :]
        else:
            b_a = product(b_u, tl.trans(b_w), b_a, DOT, PRECISION)
        b_x = product(b_u, b_s, b_x, DOT, PRECISION)
        if Y:
            b_y = product(b_w, b_ds, b_y, DOT, PRECISION)
    # above the diagonal the product grows instead of decaying; it may overflow and is thrown away here
    b_a = tl.where(o_r[:, None] >= o_r[None, :], b_a * scale, 0.0)
    return b_a, b_x * scale, b_y, b_phi


@triton.jit
def _state_tile(p_s, o_e, o_d, E: tl.constexpr, D: tl.constexpr, TRANSPOSED: tl.constexpr):
    """A tile [BE, BD] of a state [E, D], or of one that is kept as [D, E]."""
    return tl.trans(load_operand(p_s, o_d, o_e, D, E)) if TRANSPOSED else load_operand(p_s, o_e, o_d, E, D)


@triton.jit
def _own_rows(
    p_x, p_y, p_g, i_row, T, stride, o_d, D: tl.constexpr, C: tl.constexpr, Y: tl.constexpr, GATED: tl.constexpr
):  # fmt: skip
    """x, y and g of the chunk; y in place of what is not needed."""
    b_y = load_tile(p_y, i_row, T, stride, o_d, D, C)
    b_x = load_tile(p_x, i_row, T, stride, o_d, D, C) if Y else b_y
    b_g = load_tile(p_g, i_row, T, stride, o_d, D, C) if GATED else b_y
    return b_x, b_y, b_g


@triton.jit
def _gated(
    b_a, b_x, b_y, b_phi, b_own_x, b_own_y, b_g, p_h, p_dx, p_dy, p_dg, i_row, T, stride, o_d,
    D: tl.constexpr, C: tl.constexpr, Y: tl.constexpr, STORE_X: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """X stored, and with Y also Y and the gradient of g: what is left to add is the rows' own share."""
    b_c = centred_rows(b_g, C, DOT)
    b_half = tl.exp2(load_half(p_h, 0, o_d, D))
    b_ah, b_al = cut(b_a, DOT, PRECISION)
    b_own_y = b_own_y.to(tl.float32) * tl.exp2(-b_c)
    b_x = dot_rows(b_ah, b_al, b_own_y, b_x * b_half[None, :], True, DOT, PRECISION)
    if STORE_X:
        store_tile(p_dx, b_x * tl.exp2(b_c), i_row, T, stride, o_d, D, C)
    if Y:
        b_own_x = b_own_x.to(tl.float32) * tl.exp2(b_c)
        b_diff = fine(b_own_x, DOT, PRECISION) * b_x
        b_y *= b_half[None, :]
        b_own_y = fine(b_own_y, DOT, PRECISION)
        b_phi = b_phi * (b_half * b_half) + tl.sum(b_own_y * b_y, axis=0)
        b_y = dot_rows(tl.trans(b_ah), tl.trans(b_al), b_own_x, b_y, True, DOT, PRECISION)
        store_tile(p_dy, b_y * tl.exp2(-b_c), i_row, T, stride, o_d, D, C)
        b_diff -= b_own_y * b_y
        b_dg = sums_from(b_diff, C, DOT, PRECISION) + b_phi[None, :]
        store_tile(p_dg, b_dg, i_row, T, stride, o_d, D, C)


@triton.jit
def _ungated(
    b_a, b_x, b_y, b_own_x, b_own_y, p_dx, p_dy, i_row, T, stride, o_d,
    D: tl.constexpr, C: tl.constexpr, Y: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """X and with Y also Y stored, of a side without gates."""
    b_ah, b_al = cut(b_a, DOT, PRECISION)
    b_x = dot_rows(b_ah, b_al, b_own_y, b_x, False, DOT, PRECISION)
    store_tile(p_dx, b_x, i_row, T, stride, o_d, D, C)
    if Y:
        b_y = dot_rows(tl.trans(b_ah), tl.trans(b_al), b_own_x, b_y, False, DOT, PRECISION)
        store_tile(p_dy, b_y, i_row, T, stride, o_d, D, C)


@triton.jit(do_not_specialize=["T", "n_here", "first_chunk"])
def gv_mild_kernel(
    p_x, p_y, p_g, p_h, p_u, p_w, p_gu, p_hu, p_s, p_ds, p_dx, p_dy, p_dg, scale, T, H, n_here, first_chunk,
    D: tl.constexpr, E: tl.constexpr, C: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
    Y: tl.constexpr, STORE_X: tl.constexpr, TRANSPOSED: tl.constexpr,
    GATED: tl.constexpr, GATED_U: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """X, and with Y also Y and the gradient of g, of n_here chunks from first_chunk on, of those that are mild: a
    program a chunk and tile of D.

    Tensors and flags are those of `apply.gv_apply_kernel`; p_h [B*H, n_here, D] and p_hu [B*H, n_here, E], float32:
    log2 of half of each chunk's decay, None of a side without gates. Whether the chunk is mild is asked last, so that
    nothing else waits for the answer, but for float32, where most are not. With Y the own rows are loaded first, for
    the same reason; X alone comes in tiles of twice the columns, and has no room for them.
    """
    ND: tl.constexpr = (D + BD - 1) // BD
    i_p = tl.program_id(0)
    i_d, i_c, i_bh = i_p % ND, (i_p // ND) % n_here, (i_p // (ND * n_here)).to(tl.int64)
    i_row, i_head = (first_chunk + i_c) * C, (i_bh // H) * T * H + i_bh % H
    i_here = i_bh * n_here + i_c
    i_own, i_other, i_state, stride = i_head * D, i_head * E, i_here * D * E, H * D
    o_d = i_d * BD + tl.arange(0, BD)
    if GATED:
        p_g, p_h = p_g + i_own, p_h + i_here * D
    if GATED_U:
        p_gu, p_hu = p_gu + i_other, p_hu + i_here * E
    if Y:
        p_x, p_ds, p_dy = p_x + i_own, p_ds + i_state, p_dy + i_own
        if GATED:
            p_dg += i_own
    if STORE_X:
        p_dx += i_own
    b_halves, b_halves_u = load_halves(p_h, 0, 1, D, 1), load_halves(p_hu, 0, 1, E, 1)
    p_y += i_own
    if PRECISION != "tf32":
        if not mild(b_halves, b_halves_u, PRECISION):
            return
    if Y:
        b_own_x, b_own_y, b_g = _own_rows(p_x, p_y, p_g, i_row, T, stride, o_d, D, C, Y, GATED)
    b_a, b_x, b_y, b_phi = _by_other_side(
        p_u + i_other, p_w + i_other, p_gu, p_hu, p_s + i_state, p_ds, scale, i_row, T, H * E, o_d,
        D, E, C, BE, Y, TRANSPOSED, GATED_U, DOT, PRECISION,
    )  # fmt: skip
    if not Y:
        b_own_x, b_own_y, b_g = _own_rows(p_x, p_y, p_g, i_row, T, stride, o_d, D, C, Y, GATED)
    if mild(b_halves, b_halves_u, PRECISION):
        if GATED:
            _gated(
                b_a, b_x, b_y, b_phi, b_own_x, b_own_y, b_g, p_h, p_dx, p_dy, p_dg, i_row, T, stride, o_d,
                D, C, Y, STORE_X, DOT, PRECISION,
            )  # fmt: skip
        else:
            _ungated(b_a, b_x, b_y, b_own_x, b_own_y, p_dx, p_dy, i_row, T, stride, o_d, D, C, Y, DOT, PRECISION)
