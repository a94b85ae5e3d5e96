"""Decays between the rows of a chunk, from one gate a head and token.

With a chunk's running sums c_i = sum of g_s for s <= i, a row j reaches a later row i by e^{c_i - c_j}. That is a
difference of sums, and a hard reset (g = -1e4) in between would leave a float32 sum a grid of 1e-3. So two things hold:

- Sums are float64, of gates cut off at `CLOSED`, whose exponential is 0 in float32 anyway: the sums of 128 such gates
  are right to 1e-10. A matrix of differences is made in float32 from each sum's leading part and its rest, which
  subtract alike; its relative error is that of float32 at any gate strength.
- c falls from row to row, so every exponent that counts is at most 0; those of rows before their own key are masked.

Where sequences are packed, the gate of each one's first row is made lower by `CLOSED`: nothing passes from a sequence
to the next, and the gate itself is still to be had from the sums, for the state before the sequence (edges.py).

Sums are taken once, and cost 8 bytes a head and token. They carry log2(e), so that exp2 serves.
"""

# Triton's language is not typed.
# mypy: disallow-untyped-defs=False
import triton
import triton.language as tl

LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)

# Log2 of a decay that is 0 in float32, whatever it is multiplied with: below the least number that there is, 2^-149.
CLOSED: tl.constexpr = tl.constexpr(-256.0)


@triton.jit(do_not_specialize=["T", "n_chunks"])
def simple_decays_kernel(
    p_g, p_marks, p_c, T, H, n_chunks, stride_b, stride_t, stride_h, C: tl.constexpr, BH: tl.constexpr
):  # fmt: skip
    """p_c [B, H, n_chunks * C] float64: log2 of the decay from the start of a row's chunk to the row, its own gate
    included; from T on, as at T - 1. p_g [B, T, H] by its strides, None for gates of 0; p_marks: of `packed.marks`,
    None for sequences that are not packed. A program has a chunk of BH heads."""
    i_p = tl.program_id(0)
    n_parts = tl.cdiv(H, BH)
    i_part, i_p = i_p % n_parts, i_p // n_parts
    i_c, i_b = i_p % n_chunks, (i_p // n_chunks).to(tl.int64)
    o_t, o_h = (i_c * C + tl.arange(0, C)).to(tl.int64), i_part * BH + tl.arange(0, BH)
    b_g = tl.zeros([C, BH], dtype=tl.float64)
    if p_g is not None:
        p_g += i_b * stride_b + o_t[:, None] * stride_t + o_h[None, :] * stride_h
        b_g = tl.load(p_g, mask=(o_t < T)[:, None] & (o_h < H)[None, :], other=0.0).to(tl.float64) * LOG2E
        b_g = tl.where(b_g < CLOSED, CLOSED, b_g)  # a gate that is no number stays none
    if p_marks is not None:
        b_g += tl.where(tl.load(p_marks + o_t) == o_t, CLOSED, 0.0)[:, None]
    p_c += (i_b * H + o_h[None, :]) * n_chunks * C + o_t[:, None]
    tl.store(p_c, tl.cumsum(b_g, axis=0), mask=(o_h < H)[None, :])


@triton.jit
def load_sums(p_c, i_row, BT: tl.constexpr):
    """The sums of the chunk that begins at i_row, float64 [BT], and of all of it. p_c: of the head."""
    p_c += i_row
    return tl.load(p_c + tl.arange(0, BT)), tl.load(p_c + BT - 1)


@triton.jit
def from_start(b_c):
    """The decay from the chunk's start to each row, float32 [BT], or of a whole chunk from its sum."""
    return tl.exp2(b_c.to(tl.float32))


@triton.jit
def to_end(b_c, b_all):
    """The decay from each row to the chunk's end, float32 [BT]."""
    return tl.exp2((b_all - b_c).to(tl.float32))


@triton.jit
def between(b_c, BT: tl.constexpr, KEYS_FIRST: tl.constexpr = False):
    """The decay from a key's row to a query's, float32 [BT, BT]; 1 in the diagonal, 0 where the key is the later one.
    Queries are along the rows, and along the columns where KEYS_FIRST."""
    b_high = b_c.to(tl.float32)
    b_low = (b_c - b_high.to(tl.float64)).to(tl.float32)
    b_d = (b_high[:, None] - b_high[None, :]) + (b_low[:, None] - b_low[None, :])
    o_r = tl.arange(0, BT)
    if KEYS_FIRST:
        b_d = tl.where(o_r[:, None] <= o_r[None, :], -b_d, CLOSED)
    else:
        b_d = tl.where(o_r[:, None] >= o_r[None, :], b_d, CLOSED)
    return tl.exp2(b_d)
