"""What kernels for mild gates alone leave undone: chunks that decay by too much for a frame of their own.

Each kernel here runs after one of those, over the same chunks of one row block. A program looks at its share of a
head's chunks at once, and mostly finds that all are mild.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import triton

from ..schedule import WGMMA_ROWS, Tile, cdiv
from .hopper import grad_qk_strong_hopper_kernel, grad_v_strong_hopper_kernel, output_strong_hopper_kernel

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
        tile = replace(tile, block_v=WIDEST if V % WIDEST == 0 else WGMMA_ROWS)
        tiles = V // tile.block_v
        run = run_of(tiles, args["n_here"] * B * H, tile.num_warps)
    share = share_of(args["n_here"], tiles // run * B * H * tile.num_warps, MOST)
    programs = cdiv(args["n_here"], share) * (tiles // run)
    flags = packed | {"MOST": MOST, "STAGES": tile.num_stages, "RUN": run, "EARLY": early}
    launch = p.launch_of(kernel, tile, programs, args | {"share": share}, **flags)
    return replace(launch, early=early)
