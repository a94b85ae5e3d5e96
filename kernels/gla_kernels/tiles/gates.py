"""Decays between rows, from the gates g = log(alpha) <= 0.

Every exponent here is a *sum* of the gates that lie between two rows, never a difference of two running sums. A sum of
numbers of one sign keeps its relative accuracy at any gate strength, and its exponential never exceeds 1; a difference
loses both as soon as one gate in the chunk is a hard reset (g = -1e4: the running sum then has a grid of 1e-3).
The one exception, decays `centred` in the middle of a block, is used only behind its guard.

Gates are carried as g*log2(e), so that exp2 serves; that never leaves the kernels.
"""

# mypy: disallow-untyped-defs=False
import triton
import triton.language as tl

from .operands import load_row, load_tile, split

LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)

# Largest decay over a block of 16 rows, in powers of two, up to which one anchor in its middle serves the whole block:
# both factors then stay within 2^+-64, far from the ends of float32's (and tf32's) range, 2^+-126.
CENTRED_LIMIT: tl.constexpr = tl.constexpr(128.0)

# The same over a row block. For 16-bit inputs: q and k up to 2^22 stay in range; gates logsigmoid(randn), which come
# to 149 +- 9 over 128 rows, are below it. For float32: so that the sums of gates lose no more bits than these.
ROW_BLOCK_LIMIT_16_BIT: tl.constexpr = tl.constexpr(208.0)
# Between the middles of two row blocks of a chunk both halves count, and e to that must not be rounded to 0 (2^-126)
# while rows next to each other on both sides of the border meet: what is lost then is below 2^-22 of what they add.
ROW_BLOCKS_LIMIT_16_BIT: tl.constexpr = tl.constexpr(104.0)
ROW_BLOCK_LIMIT: tl.constexpr = tl.constexpr(48.0)

MIN_COLUMNS: tl.constexpr = tl.constexpr(16)  # of a tensor-core product

# exp2 of anything below is 0 in float32.
CLOSED: tl.constexpr = tl.constexpr(-150.0)

# What is kept of how a column of V decays over a chunk (value_gates/frames.py) is above this where the column has a
# frame of its own.
STRONG_COLUMN: tl.constexpr = tl.constexpr(-64.0)

# A gate counts as this at least: also -inf, whose product with 0 would be no number. Every type of gates holds it.
LEAST_GATE: tl.constexpr = tl.constexpr(-8192.0)
NO_NUMBER: tl.constexpr = tl.constexpr(tl.PropagateNan.ALL)  # what a maximum is where a gate is no number


@triton.jit
def limited(b_g):
    """Gates as they are summed: of none less than LEAST_GATE. One that is no number stays none. Compared in float32, as
    Triton did by itself up to 3.7: the interpreter of 3.9 compares bfloat16 as integers."""
    return tl.where(b_g.to(tl.float32) < LEAST_GATE, tl.full([], LEAST_GATE, tl.float32).to(b_g.dtype), b_g)


@triton.jit
def frame(b_h):
    """Log2 of columns' frames, from what is kept of them."""
    return tl.where(b_h > STRONG_COLUMN, b_h, 0.0)


@triton.jit
def load_gates(p_g, i_row, T, stride, o_k, K: tl.constexpr, BT: tl.constexpr):
    """g*log2(e) of rows i_row.., float32 [BT, BK]; 0 (no decay) outside the sequence."""
    return limited(load_tile(p_g, i_row, T, stride, o_k, K, BT).to(tl.float32)) * LOG2E


@triton.jit
def load_gate_row(p_g, i_row, m_row, stride, o_k, K: tl.constexpr):
    """g*log2(e) of one row, float32 [BK]."""
    return limited(load_row(p_g, i_row, m_row, stride, o_k, K)) * LOG2E


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
    b_next = tl.load(p_g + o_r[:, None] * stride + o_k[None, :], mask=m_g, other=0.0).to(tl.float32)
    return tl.cumsum(limited(b_next) * LOG2E, axis=0, reverse=True)


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


@triton.jit
def triangle(BELOW: tl.constexpr, ABOVE: tl.constexpr, BT: tl.constexpr, TYPE: tl.constexpr):
    """[BT, BT]: BELOW on and below the diagonal, ABOVE above it. Sums over rows are products with such a matrix."""
    o_r = tl.arange(0, BT)
    return tl.where(o_r[:, None] >= o_r[None, :], BELOW, ABOVE).to(TYPE)


@triton.jit
def strict_triangle(BELOW: tl.constexpr, ABOVE: tl.constexpr, BT: tl.constexpr, TYPE: tl.constexpr):
    """[BT, BT]: BELOW below the diagonal, ABOVE on and above it."""
    o_r = tl.arange(0, BT)
    return tl.where(o_r[:, None] > o_r[None, :], BELOW, ABOVE).to(TYPE)


@triton.jit
def bfloat16_parts(b_x):
    """A float32 tile as the sum of three of bfloat16, 8 bits each: exact."""
    b_high = (b_x.to(tl.int32, bitcast=True) & -65536).to(tl.float32, bitcast=True)
    b_rest = b_x - b_high
    b_mid = (b_rest.to(tl.int32, bitcast=True) & -65536).to(tl.float32, bitcast=True)
    return b_high.to(tl.bfloat16), b_mid.to(tl.bfloat16), (b_rest - b_mid).to(tl.bfloat16)


@triton.jit
def summed(b_m, b_g):
    """m @ g for a matrix m of few bits and gates g: sums over rows, each product exact and the sums in float32."""
    if b_g.dtype == tl.float32:
        b_high, b_mid, b_low = bfloat16_parts(b_g)
        b_y = tl.dot(b_m, b_low)
        b_y = tl.dot(b_m, b_mid, b_y)
        b_y = tl.dot(b_m, b_high, b_y)
    else:
        b_y = tl.dot(b_m, b_g)
    return b_y


@triton.jit
def centred_decay(p_g, i_row, T, stride, o_k, K: tl.constexpr, BT: tl.constexpr, DOT: tl.constexpr):
    """Log2 of the decay of each row of a block, counted from the middle of the block's decay: half of what comes up to
    the row, less half of what comes after it, [BT, BK]."""
    return centred_rows(load_tile(p_g, i_row, T, stride, o_k, K, BT), BT, DOT)


@triton.jit
def centred_rows(b_g, BT: tl.constexpr, DOT: tl.constexpr):
    """`centred_decay` of gates [BT, BK] that are loaded already.

    Gates are summed on the tensor cores where those are exact. Elsewhere, for float32 and where the interpreter's
    product is wrong, they are summed along the rows.
    """
    if b_g.dtype == tl.float16 or DOT == tl.bfloat16:
        TYPE: tl.constexpr = tl.bfloat16 if b_g.dtype == tl.float32 else b_g.dtype
        b_c = summed(triangle(0.5, -0.5, BT, TYPE), b_g) * LOG2E
    else:
        b_g = b_g.to(tl.float32) * LOG2E
        b_c = centred(tl.cumsum(b_g, axis=0), tl.sum(b_g, axis=0))
    return b_c


@triton.jit
def after_rows(b_g, p_g, i_row, T, stride, o_k, K: tl.constexpr, BT: tl.constexpr, DOT: tl.constexpr):
    """What `decay_to_end` is, [BT, BK], summed like `centred_rows`: right at any gate strength. b_g: these gates."""
    if b_g.dtype == tl.float16 or DOT == tl.bfloat16:
        TYPE: tl.constexpr = tl.bfloat16 if b_g.dtype == tl.float32 else b_g.dtype
        b_d = summed(tl.trans(strict_triangle(1.0, 0.0, BT, TYPE)), b_g) * LOG2E
    else:
        b_d = decay_to_end(p_g, i_row, T, stride, o_k, K, BT)
    return b_d


@triton.jit
def up_to_rows(b_g, BT: tl.constexpr, DOT: tl.constexpr):
    """Log2 of the decay from the block's start to each row, that row's gate included [BT, BK], summed like
    `after_rows`. b_g: the block's gates."""
    if b_g.dtype == tl.float16 or DOT == tl.bfloat16:
        TYPE: tl.constexpr = tl.bfloat16 if b_g.dtype == tl.float32 else b_g.dtype
        b_d = summed(triangle(1.0, 0.0, BT, TYPE), b_g) * LOG2E
    else:
        b_d = tl.cumsum(b_g.to(tl.float32) * LOG2E, axis=0)
    return b_d


@triton.jit
def whole_decay(b_g, BT: tl.constexpr, DOT: tl.constexpr):
    """Log2 of the decay over all of a block's rows, float32 [BK]. b_g: the block's gates.

    On the tensor cores a product with ones, of whose equal columns one is kept: sums along the rows would have to go
    from one warp to the next.
    """
    if b_g.dtype == tl.float16 or DOT == tl.bfloat16:
        TYPE: tl.constexpr = tl.bfloat16 if b_g.dtype == tl.float32 else b_g.dtype
        b_ones = tl.full([BT, MIN_COLUMNS], 1.0, TYPE)
        if b_g.dtype == tl.float32:
            b_high, b_mid, b_low = bfloat16_parts(tl.trans(b_g))
            b_sum = tl.dot(b_high, b_ones, tl.dot(b_mid, b_ones, tl.dot(b_low, b_ones)))
        else:
            b_sum = tl.dot(tl.trans(b_g), b_ones)
        b_total = tl.max(b_sum, axis=1)
    else:
        b_total = tl.sum(b_g.to(tl.float32), axis=0)
    return b_total * LOG2E


@triton.jit
def wide_decays(b_g, AFTER: tl.constexpr, BT: tl.constexpr):
    """`after_rows`, or without AFTER `up_to_rows`, of a block's float32 gates [BT, BK], and `whole_decay`: float32
    [BT, BK] and [BK], for products of bfloat16.

    Features are the product's rows: gates enter it from registers, and what leaves it has the layout that the decayed
    rows of k or q, turned, have in the product after. Parts of gates in shared memory would take the room of a second
    program. Two leave out 2^-17 of a gate, where k and q lose 2^-9; what the state decays by is a sum of floats.
    """
    b_gt = limited(tl.trans(b_g))
    b_high, b_low = split(b_gt, tl.bfloat16)
    b_m = strict_triangle(1.0, 0.0, BT, tl.bfloat16) if AFTER else tl.trans(triangle(1.0, 0.0, BT, tl.bfloat16))
    b_d = tl.dot(b_high, b_m, tl.dot(b_low, b_m))
    return tl.trans(b_d) * LOG2E, tl.sum(b_gt, axis=1) * LOG2E


@triton.jit
def row_block_limit(SINGLE: tl.constexpr, PRECISION: tl.constexpr):
    """By how many row blocks a chunk has, and what float32 operands are cut to: tf32 for 16-bit inputs."""
    LIMIT_16_BIT: tl.constexpr = ROW_BLOCK_LIMIT_16_BIT if SINGLE else ROW_BLOCKS_LIMIT_16_BIT
    LIMIT: tl.constexpr = LIMIT_16_BIT if PRECISION == "tf32" else ROW_BLOCK_LIMIT
    return LIMIT


@triton.jit
def mild_block(p_h, K: tl.constexpr, PRECISION: tl.constexpr):
    """Whether no feature of a row block decays by more than `row_block_limit`, from log2 of half of its decay as the
    states pass left it in p_h [K]. Enough for the output even where a chunk has several: it leads from one row block to
    another by sums of gates alone."""
    PADDED: tl.constexpr = triton.next_power_of_2(K)
    o_k = tl.arange(0, PADDED)
    return tl.min(tl.load(p_h + o_k, mask=o_k < K, other=0.0), axis=0) > -0.5 * row_block_limit(True, PRECISION)


@triton.jit
def between(p_h, i_from, i_to, o_k, K: tl.constexpr, BK: tl.constexpr):
    """Log2 of the decay over the row blocks i_from .. i_to-1, [BK]."""
    b_sum = tl.zeros([BK], dtype=tl.float32)
    for i in range(i_from, i_to):
        b_sum += tl.load(p_h + i * K + o_k, mask=o_k < K, other=0.0)
    return 2.0 * b_sum
