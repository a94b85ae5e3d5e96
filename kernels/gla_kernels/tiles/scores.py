"""Gradients of a row block's queries and keys from its own rows, at any gate strength: with da the scores' gradients,

    dq_i = sum over j < i of da_ij k_j exp(G_i - G_j),      dk_j = sum over i > j of da_ij q_i exp(G_i - G_j)

No anchor in a block is safe for every gate. `diagonal_*` therefore choose per tile, on the device: one in the middle of
the block's decay where the block is mild (gates.is_mild), and element by element elsewhere. Scores: halving.py.
"""

# mypy: disallow-untyped-defs=False
import triton
import triton.language as tl

from .gates import centred, is_mild, load_gate_row
from .operands import dot, load_row, operand


@triton.jit
def _exact_grad_q(b_da, p_k, p_g, i_row, T, stride, o_k, K: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr):
    """sum over j < i of da_ij k_j exp(G_i - G_j), column by column from the last one: b_d then holds the decay from
    column j to every row below."""
    o_r = tl.arange(0, BT)
    b_dq = tl.zeros([BT, BK], dtype=tl.float32)
    b_d = tl.zeros([BT, BK], dtype=tl.float32)
    for i_back in range(0, BT):
        j = BT - 1 - i_back
        m_next = (j + 1 < BT) & (i_row + j + 1 < T)
        b_g = load_gate_row(p_g, i_row + j + 1, m_next, stride, o_k, K)
        b_d = tl.where((o_r > j)[:, None], b_d + b_g[None, :], 0.0)
        b_k = load_row(p_k, i_row + j, i_row + j < T, stride, o_k, K)
        b_col = tl.sum(tl.where((o_r == j)[None, :] & (o_r > j)[:, None], b_da, 0.0), axis=1)
        b_dq += b_col[:, None] * b_k[None, :] * tl.exp2(b_d)
    return b_dq


@triton.jit
def diagonal_grad_q(
    b_da, b_q, b_k, b_prefix, b_total, p_k, p_g, i_row, T, stride, o_k,
    K: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr,
    GATED: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dq of a block from its own rows, and q * dq, both *without* j = i: float32 [BT, BK] each.

        dq_i = sum over j < i of da_ij k_j exp(G_i - G_j)

    The term j = i does not pass through any gate. It cancels in q*dq - k*dk only up to rounding, so it is left out of
    the gate's gradient from the start; the caller adds it to dq. For the same reason q*dq is formed from the operands
    that the tensor core sees, as diagonal_grad_k forms k*dk: each pair (i, j) then has the same value in both. (At the
    guard's very limit one kernel's tile may be mild and the other's not, where their tiles of K differ in width:
    test_gates_at_the_limit_of_the_fast_path judges dg there.)
    """
    o_r = tl.arange(0, BT)
    b_da = tl.where(o_r[:, None] > o_r[None, :], b_da, 0.0)
    b_qf = b_q.to(tl.float32)
    if GATED:
        if is_mild(b_total):
            b_c = centred(b_prefix, b_total)
            b_kc = operand(b_k.to(tl.float32) * tl.exp2(-b_c), tl.float32, PRECISION)
            b_dq = dot(operand(b_da, tl.float32, PRECISION), b_kc, tl.float32, PRECISION)
            b_qdq = operand(b_qf * tl.exp2(b_c), tl.float32, PRECISION) * b_dq
            b_dq *= tl.exp2(b_c)
        else:
            b_dq = _exact_grad_q(b_da, p_k, p_g, i_row, T, stride, o_k, K, BT, BK)
            b_qdq = b_qf * b_dq
    else:
        b_dq = dot(b_da, b_k, DOT, PRECISION)
        b_qdq = b_dq  # without a gate nobody asks
    return b_dq, b_qdq


@triton.jit
def _exact_grad_k(b_dat, p_q, p_g, i_row, T, stride, o_k, K: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr):
    """sum over i > j of da_ij q_i exp(G_i - G_j), row by row: b_d holds the decay from every row above to row i."""
    o_r = tl.arange(0, BT)
    b_dk = tl.zeros([BT, BK], dtype=tl.float32)
    b_d = tl.zeros([BT, BK], dtype=tl.float32)
    for i in range(1, BT):
        m_row = i_row + i < T
        b_g = load_gate_row(p_g, i_row + i, m_row, stride, o_k, K)
        b_d = tl.where((o_r < i)[:, None], b_d + b_g[None, :], 0.0)
        b_q = load_row(p_q, i_row + i, m_row, stride, o_k, K)
        b_col = tl.sum(tl.where((o_r == i)[None, :] & (o_r < i)[:, None], b_dat, 0.0), axis=1)
        b_dk += b_col[:, None] * b_q[None, :] * tl.exp2(b_d)
    return b_dk


@triton.jit
def diagonal_grad_k(
    b_dat, b_q, b_k, b_prefix, b_total, p_q, p_g, i_row, T, stride, o_k,
    K: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr,
    GATED: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dk of a block from its own rows, and k * dk, both *without* i = j: float32 [BT, BK] each.

        dk_j = sum over i > j of da_ij q_i exp(G_i - G_j)

    ``b_dat`` is da transposed: [j, i]. See diagonal_grad_q.
    """
    o_r = tl.arange(0, BT)
    b_dat = tl.where(o_r[:, None] < o_r[None, :], b_dat, 0.0)
    b_kf = b_k.to(tl.float32)
    if GATED:
        if is_mild(b_total):
            b_c = centred(b_prefix, b_total)
            b_qc = operand(b_q.to(tl.float32) * tl.exp2(b_c), tl.float32, PRECISION)
            b_dk = dot(operand(b_dat, tl.float32, PRECISION), b_qc, tl.float32, PRECISION)
            b_kdk = operand(b_kf * tl.exp2(-b_c), tl.float32, PRECISION) * b_dk
            b_dk *= tl.exp2(-b_c)
        else:
            b_dk = _exact_grad_k(b_dat, p_q, p_g, i_row, T, stride, o_k, K, BT, BK)
            b_kdk = b_kf * b_dk
    else:
        b_dk = dot(b_dat, b_q, DOT, PRECISION)
        b_kdk = b_dk  # without a gate nobody asks
    return b_dk, b_kdk
