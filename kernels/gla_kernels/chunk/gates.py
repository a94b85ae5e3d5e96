"""Decays between rows, from the gates g = log(alpha) <= 0.

Every exponent here is a *sum* of the gates that lie between two rows, never a difference of two running sums. A sum of
numbers of one sign keeps its relative accuracy at any gate strength, and its exponential never exceeds 1; a difference
loses both as soon as one gate in the chunk is a hard reset (g = -1e4: the running sum then has a grid of 1e-3).
The one exception, `centred`, is used only behind the guard that it comes with.

Gates are carried as g*log2(e), so that exp2 serves; that never leaves the kernels.
"""

# mypy: disallow-untyped-defs=False
import triton
import triton.language as tl

from .tiles import load_row, load_tile

LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)

# Largest decay over a block, in powers of two, up to which one anchor in its middle serves the whole block: both
# factors then stay within 2^+-64, far from the ends of float32's (and tf32's) range, 2^+-126, for any sane q and k.
CENTRED_LIMIT: tl.constexpr = tl.constexpr(128.0)

# exp2 of anything below is 0 in float32.
CLOSED: tl.constexpr = tl.constexpr(-150.0)


@triton.jit
def load_gates(p_g, i_row, T, stride, o_k, K: tl.constexpr, BT: tl.constexpr):
    """g*log2(e) of rows i_row.., float32 [BT, BK]; 0 (no decay) outside the sequence."""
    return load_tile(p_g, i_row, T, stride, o_k, K, BT).to(tl.float32) * LOG2E


@triton.jit
def load_gate_row(p_g, i_row, m_row, stride, o_k, K: tl.constexpr):
    """g*log2(e) of one row, float32 [BK]."""
    return load_row(p_g, i_row, m_row, stride, o_k, K) * LOG2E


@triton.jit
def block_decay(p_g, i_row, T, stride, o_k, K: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, GATED: tl.constexpr):
    """Log2 of the decay from the block's start to each row, that row's gate included [BT, BK], and of the whole block
    [BK]; zeros without gates."""
    if GATED:
        b_g = load_gates(p_g, i_row, T, stride, o_k, K, BT)
        b_prefix = tl.cumsum(b_g, axis=0)
        b_total = tl.sum(b_g, axis=0)
    else:
        b_prefix = tl.zeros([BT, BK], dtype=tl.float32)
        b_total = tl.zeros([BK], dtype=tl.float32)
    return b_prefix, b_total


@triton.jit
def decay_to_end(p_g, i_row, T, stride, o_k, K: tl.constexpr, BT: tl.constexpr):
    """Log2 of the decay from each row to the block's last row: sum of the gates of the rows *after* it, [BT, BK]."""
    o_r = tl.arange(0, BT)
    m_g = ((o_r < BT - 1) & (i_row + 1 + o_r < T))[:, None] & (o_k < K)[None, :]
    p_g += (tl.cast(i_row, tl.int64) + 1) * stride
    b_next = tl.load(p_g + o_r[:, None] * stride + o_k[None, :], mask=m_g, other=0.0).to(tl.float32) * LOG2E
    return tl.cumsum(b_next, axis=0, reverse=True)


@triton.jit
def centred(b_prefix, b_total):
    """Log2 of the decay of each row, counted from the middle of the block's decay: prefix - total/2, [BT, BK].

    Differences of these are the decays between rows. Right only where `is_mild(b_total)`.
    """
    return b_prefix - 0.5 * b_total[None, :]


@triton.jit
def is_mild(b_total):
    """Whether no feature of the block decays by more than CENTRED_LIMIT powers of two: the guard of `centred`."""
    return tl.min(b_total, axis=0) > -CENTRED_LIMIT


@triton.jit
def decayed_keys(p_k, p_g, i_row, T, stride, o_k, K: tl.constexpr, BT: tl.constexpr, GATED: tl.constexpr):
    """K e^{(G at the block's end) - G} [BT, BK] and log2 of the block's whole decay [BK]."""
    b_k = load_tile(p_k, i_row, T, stride, o_k, K, BT)
    if GATED:
        b_total = tl.sum(load_gates(p_g, i_row, T, stride, o_k, K, BT), axis=0)
        b_kd = b_k.to(tl.float32) * tl.exp2(decay_to_end(p_g, i_row, T, stride, o_k, K, BT))
    else:
        b_total = tl.zeros([o_k.shape[0]], dtype=tl.float32)
        b_kd = b_k
    return b_kd, b_total


@triton.jit
def decayed_queries(p_q, p_g, i_row, T, stride, o_k, K: tl.constexpr, BT: tl.constexpr, GATED: tl.constexpr):
    """Q e^{G - (G before the block)} [BT, BK] and log2 of the block's whole decay [BK]."""
    b_q = load_tile(p_q, i_row, T, stride, o_k, K, BT)
    if GATED:
        b_g = load_gates(p_g, i_row, T, stride, o_k, K, BT)
        b_total = tl.sum(b_g, axis=0)
        b_qd = b_q.to(tl.float32) * tl.exp2(tl.cumsum(b_g, axis=0))
    else:
        b_total = tl.zeros([o_k.shape[0]], dtype=tl.float32)
        b_qd = b_q
    return b_qd, b_total


@triton.jit
def decay(b_x, b_log2, GATED: tl.constexpr):
    """x e^{log} for one more decay per feature: b_x [BT, BK], b_log2 [BK]."""
    if GATED:
        b_x = b_x * tl.exp2(b_log2)[None, :]
    return b_x
