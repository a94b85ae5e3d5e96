"""What gates on both sides ask of tiles/halving.py besides scores: decays and gradients of one side, by the same cuts.
Frames are whole chunks, sub-chunks behind log2(C / SUB) levels, or single rows, behind log2(C).

Gradients of gates are products, too: where a row x e^E meets its partners' sum X, E = m @ g, g gets m^T @ (x e^E * X).
What does not pass a gate is never added to its gradient, so nothing has to cancel there; within a frame it is, and both
terms are formed from the same rounded operands.
"""

# Triton's language is not typed.
# mypy: disallow-untyped-defs=False
import triton
import triton.language as tl

from ..tiles.gates import row_block_limit, summed
from ..tiles.halving import INTERPRETED, frame_sums, log_decay
from ..tiles.operands import split


@triton.jit
def around_sums(o_i, o_s, AFTER: tl.constexpr):
    """m, 0 or 1: m @ g are the gates up to each row, its own included, or with AFTER those after it."""
    return tl.where((o_s > o_i) == AFTER, 1.0, 0.0)


@triton.jit
def gate_gradient(b_mt, b_p, b_acc, PRECISION: tl.constexpr):
    """acc + m^T @ p, float32 [C, BD], from m transposed: p exactly, or for 16-bit inputs in two parts of 8 bits."""
    if INTERPRETED:
        b_acc = tl.dot(b_mt, b_p, b_acc, input_precision="ieee")
    elif PRECISION == "tf32":
        b_high, b_low = split(b_p, tl.bfloat16)
        b_acc = tl.dot(b_mt.to(tl.bfloat16), b_low, b_acc)
        b_acc = tl.dot(b_mt.to(tl.bfloat16), b_high, b_acc)
    else:
        b_acc += summed(b_mt.to(tl.bfloat16), b_p)
    return b_acc


@triton.jit
def levels(b_g, C: tl.constexpr, SUB: tl.constexpr, PRECISION: tl.constexpr):
    """How many levels come before the frames, whose rows are C >> levels: the fewest after which all frames are mild.
    Frames of one row have no pairs, and always are."""
    SUB_LEVELS: tl.constexpr = (C // SUB).bit_length() - 1
    ALL_LEVELS: tl.constexpr = C.bit_length() - 1
    o_i, o_s = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
    least = -0.5 * row_block_limit(True, PRECISION)  # where a frame's last row is: half of its decay
    n_levels = tl.full([], 0, tl.int32)
    if tl.min(log_decay(frame_sums(C, o_i, o_s), b_g)) <= least:
        n_levels += SUB_LEVELS
        if tl.min(log_decay(frame_sums(SUB, o_i, o_s), b_g)) <= least:
            n_levels += ALL_LEVELS - SUB_LEVELS
    return n_levels
