"""Which chunks are mild on both sides: decays may then be counted from a chunk's middle (mild.py).

The walk over time leaves log2 of half of each chunk's decay, a row of features for either side; None of a side without
gates. What is not mild is left to the kernel of strong.py: it runs after those for mild chunks, over the same chunks.
"""

# mypy: disallow-untyped-defs=False
import triton
import triton.language as tl

from ..tiles.gates import row_block_limit


@triton.jit
def load_halves(p_h, i_first, n_here, D: tl.constexpr, SHARE: tl.constexpr):
    """A side's half decays of SHARE chunks from i_first on, of the n_here in p_h [n_here, D]: [SHARE, D padded]. Zeros
    where there are none, and without gates."""
    PADDED: tl.constexpr = triton.next_power_of_2(D)
    o_c, o_d = i_first + tl.arange(0, SHARE), tl.arange(0, PADDED)
    b_h = tl.zeros([SHARE, PADDED], dtype=tl.float32)
    if p_h is not None:
        m_h = (o_c < n_here)[:, None] & (o_d < D)[None, :]
        b_h = tl.load(p_h + o_c[:, None] * D + o_d[None, :], mask=m_h, other=0.0)
    return b_h


@triton.jit
def mild(b_h, b_hu, PRECISION: tl.constexpr):
    """Whether on neither side a feature decays by more than `gates.row_block_limit` over a chunk, from `load_halves` of
    both."""
    return tl.min(least_of(b_h, b_hu), axis=0) > -0.5 * row_block_limit(True, PRECISION)


@triton.jit
def least_of(b_h, b_hu):
    """Of each chunk the least half decay of both sides, float32 [SHARE]."""
    return tl.minimum(tl.min(b_h, axis=1), tl.min(b_hu, axis=1))


@triton.jit
def are_mild(
    p_h, p_hu, i_first, n_here, D: tl.constexpr, E: tl.constexpr, SHARE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Whether all of SHARE chunks from i_first on are: p_h [n_here, D], p_hu [n_here, E], of one head."""
    b_h, b_hu = load_halves(p_h, i_first, n_here, D, SHARE), load_halves(p_hu, i_first, n_here, E, SHARE)
    return mild(b_h, b_hu, PRECISION)


@triton.jit
def mild_each(
    p_h, p_hu, i_first, n_here, D: tl.constexpr, E: tl.constexpr, SHARE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """`are_mild` of each of the chunks, int32 [SHARE]."""
    b_h, b_hu = load_halves(p_h, i_first, n_here, D, SHARE), load_halves(p_hu, i_first, n_here, E, SHARE)
    return (least_of(b_h, b_hu) > -0.5 * row_block_limit(True, PRECISION)).to(tl.int32)
