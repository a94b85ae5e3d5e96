"""What kernels for mild gates alone leave undone: chunks that decay by too much for a frame of their own.

Each kernel here runs after one of those, over the same chunks of one row block. A program looks at its share of a
head's chunks at once, and mostly finds that all are mild. Where chunks of all heads are few, a program each makes o
and dv of all that passes have, mild or not, and begins before their states are there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import triton

from ..schedule import WALKED_K, WGMMA_ROWS, Tile, cdiv
from ..tiles.descriptors import MOST_ROWS
from .hopper import (
    grad_qk_strong_hopper_kernel,
    grad_v_hopper_kernel,
    grad_v_strong_hopper_kernel,
    output_hopper_kernel,
    output_strong_hopper_kernel,
)

if TYPE_CHECKING:
    from torch import Tensor

    from ..launch import Launch
    from ..tiles.slices import Slice
    from .problem import Problem


@triton.jit
def never_launched() -> None:
    """Stands for all three where there are none: without Gluon there is none that leaves anything undone."""


output_strong_kernel = output_strong_hopper_kernel or never_launched
grad_v_strong_kernel = grad_v_strong_hopper_kernel or never_launched
grad_qk_strong_kernel = grad_qk_strong_hopper_kernel or never_launched

MOST = 32  # chunks a share
WIDEST = 128  # tile of V
WARPS = 1024  # about as many as fit a GPU: most programs find nothing to do
AT_ONCE = 132  # programs that all get an SM of their own, where passes have o and dv of any chunk made here


def share_of(n_here: int, warps: int, most: int) -> int:
    """Chunks that a program looks at, of n_here a head: as many as leave each of them its warps on a GPU, where there
    are so many warps for a chunk of every head; a power of two."""
    share = most
    while share > 1 and cdiv(n_here, share) * warps < WARPS:
        share //= 2
    return share


def run_of(tiles: int, chunks: int, warps: int) -> int:
    """Tiles of V that a program goes through, of so many: all of them, for a chunk's scores are made once a program;
    fewer where chunks of all heads are so few that a GPU takes more programs, each of its warps, at once."""
    runs = [run for run in range(1, tiles + 1) if tiles % run == 0]
    return next((run for run in runs if tiles // run * chunks * warps <= WARPS), tiles)


def strong_gates_of(
    p: Problem, kernel: Any, args: dict[str, Any], piece: Slice, stored: Tensor, early: bool = True
) -> Launch:
    """A launch of what Hopper's kernels leave undone of a slice: a program a share of its chunks and a tile of 64
    features for the gradients of q and k, a run of tiles of V for o and dv. ``early``: it may begin early."""
    B, _, H, K, V = p.dims
    args, packed = p.with_sequences(args | p.chunks_of(piece, stored), "p_sn", None)
    tile = Tile(WGMMA_ROWS, WGMMA_ROWS, num_warps=4, num_stages=2, descriptors=True, hopper=True)
    tiles, run = K // tile.block_k, 1
    if kernel is not grad_qk_strong_kernel:
        tile = replace(tile, block_v=_columns(V))
        tiles = V // tile.block_v
        run = run_of(tiles, args["n_here"] * B * H, tile.num_warps)
    share = share_of(args["n_here"], tiles // run * B * H * tile.num_warps, MOST)
    programs = cdiv(args["n_here"], share) * (tiles // run)
    flags = packed | {"MOST": MOST, "STAGES": tile.num_stages, "RUN": run, "EARLY": early}
    launch = p.launch_of(kernel, tile, programs, args | {"share": share}, **flags)
    return replace(launch, early=early)


def _columns(V: int) -> int:
    """Of a tile of V, where a program makes rows of a chunk."""
    return WIDEST if V % WIDEST == 0 else WGMMA_ROWS


def at_once(p: Problem) -> bool:
    """Whether the passes' o and dv come by `chunk_rows_of`: on Hopper, where a GPU takes all programs at once."""
    B, T, H, K, V = p.dims
    if output_hopper_kernel is None or p.packed is not None or p.frames is not None or T == 0:
        return False
    chunks = B * H * p.n_chunks
    if K > WALKED_K or K % WGMMA_ROWS or V % WGMMA_ROWS or chunks * K > MOST_ROWS or not p.on_hopper(p.config.grad_qk):
        return False
    return chunks * (V // _columns(V)) <= AT_ONCE


def chunk_rows_of(p: Problem, back: bool, args: dict[str, Any], piece: Slice, stored: Tensor) -> Launch | None:
    """A launch that makes o of a slice, or dv, at any gate strength, a program a chunk and tile of V; it begins before
    the pass over states is done. None where tensors cannot bear descriptors."""
    V = p.dims[-1]
    tile = Tile(WGMMA_ROWS, _columns(V), num_warps=4, num_stages=1, descriptors=True, hopper=True)
    args = args | p.chunks_of(piece, stored)
    kernel = grad_v_hopper_kernel if back else output_hopper_kernel
    launch = p.launch_of(kernel, tile, args["n_here"] * (V // tile.block_v), args)
    return replace(launch, early=True) if launch.all_described else None
