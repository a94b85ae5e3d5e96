"""Tiles by tensor descriptor: one instruction moves a whole tile between HBM and shared memory (TMA).

A kernel takes d_x beside p_x. Where d_x is None, because the GPU has no such instruction, or because a tile is no whole
part of a head (see `blocks`), the pointer serves. Loads run ahead only in a loop that is pipelined; any other one is
waited for at once.
"""

# mypy: disallow-untyped-defs=False
from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import triton
import triton.language as tl

from .operands import load_operand, load_tile, store_state, store_tile

# arguments of kernels by what they hold
ROWS_OF_K = frozenset(("q", "k", "g", "dq", "dk", "dg", "qdq", "qd", "kd"))  # [B, T, H, K]
ROWS_OF_SCORES = frozenset(("a",))  # [B, T, H, two parts of a row block's rows]
ROWS_OF_V = frozenset(("v", "gv", "o", "of", "do", "dv"))  # [B, T, H, V]

ALIGNED = 16  # bytes that a descriptor's base and strides are multiples of
LONGEST = 256  # side of a block
MOST_ROWS = 2**31 - 1  # coordinates are 32-bit integers


def blocks(
    args: dict[str, Any], names: Iterable[str], block_t: int, block_k: int, block_v: int
) -> dict[str, tuple[int, ...]]:
    """Blocks of the tensors p_x of ``args``, x in ``names``, that bear a descriptor (see
    `launch.descriptor`): tiles must not reach across a head's columns, where the next head's would be read."""
    found: dict[str, tuple[int, ...]] = {}
    for name in names:
        x = args[f"p_{name}"]
        if x is None or x.numel() == 0 or x.data_ptr() % ALIGNED:
            continue
        if name in ROWS_OF_K | ROWS_OF_V | ROWS_OF_SCORES:
            block: tuple[int, ...] = (1, block_t, block_v if name in ROWS_OF_V else block_k)
            whole = x.shape[-1] % block[-1] == 0
        else:
            block = (block_k, block_v)
            whole = all(size % part == 0 for size, part in zip(x.shape[-2:], block, strict=True))
            whole = whole and x.numel() // x.shape[-1] <= MOST_ROWS
        if whole and max(block) <= LONGEST:
            found[name] = block
    return found


@triton.jit
def load_rows(d_x, p_x, i_batch, i_h, i_row, T, H, i_d, D: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr):
    """`tiles.load_tile` of columns i_d .. i_d+BD-1. p_x: of the sequence i_batch and the head i_h."""
    if d_x is None:
        b_x = load_tile(p_x, i_row, T, H * D, i_d + tl.arange(0, BD), D, BT)
    else:
        b_x = tl.reshape(d_x.load([i_batch, i_row, i_h * D + i_d]), [BT, BD])
    return b_x


@triton.jit
def store_rows(d_x, p_x, b_x, i_batch, i_h, i_row, T, H, i_d, D: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr):
    """The inverse of `load_rows`."""
    if d_x is None:
        store_tile(p_x, b_x, i_row, T, H * D, i_d + tl.arange(0, BD), D, BT)
    else:
        d_x.store([i_batch, i_row, i_h * D + i_d], tl.reshape(b_x.to(d_x.dtype), [1, BT, BD]))


@triton.jit
def load_state_tile(
    d_s, p_s, i_s, i_k, i_v, K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr
):  # fmt: skip
    """Rows i_k.. and columns i_v.. of the state i_s of all in p_s [., K, V], in the type it is kept in: [BK, BV]."""
    if d_s is None:
        p_s += tl.cast(i_s, tl.int64) * K * V
        b_s = load_operand(p_s, i_k + tl.arange(0, BK), i_v + tl.arange(0, BV), K, V)
    else:
        b_s = d_s.load([tl.cast(i_s, tl.int32) * K + i_k, i_v])
    return b_s


@triton.jit
def store_state_tile(
    d_s, p_s, b_s, i_s, i_k, i_v, K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr
):  # fmt: skip
    """The inverse of `load_state_tile`."""
    if d_s is None:
        p_s += tl.cast(i_s, tl.int64) * K * V
        store_state(p_s, b_s, i_k + tl.arange(0, BK), i_v + tl.arange(0, BV), K, V)
    else:
        d_s.store([tl.cast(i_s, tl.int32) * K + i_k, i_v], b_s.to(d_s.dtype))
