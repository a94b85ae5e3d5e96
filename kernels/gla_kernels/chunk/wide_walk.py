"""The walks over time of wide heads, forward and back, over what prepare.py makes once for all tiles of V; and those
that find what segments add, from which all of them can start at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from ..launch import Launch, Launcher
from ..schedule import WGMMA_ROWS, Tile
from ..tiles.slices import Slice
from .hopper import (
    grad_states_wide_hopper_kernel,
    grad_walk_wide_hopper_kernel,
    states_wide_hopper_kernel,
    walk_wide_hopper_kernel,
)
from .prepare import Prepared
from .problem import Problem

SHARED_KIB = 225  # of an H100's shared memory, but for barriers and decays
ENDS = Tile(WGMMA_ROWS, WGMMA_ROWS, 4, 1, 128, descriptors=True, hopper=True)
UNITS_OF_ENDS = 10  # tiles of 64 features, 8 KiB each: two programs share a multiprocessor


def units_of(groups: int, stored: bool) -> int:
    """Tiles of 64 features that may be on their way to so many groups of warps, 16 KiB each: as many as there is room
    for beside A, u and z, and two tiles of a state that is stored."""
    kept = 2 * (16 + 8 * groups) + 8 * groups + (16 * groups if stored else 0)
    return (SHARED_KIB - kept) // 16


def _launched(
    p: Problem, made: Prepared | None, kernel: Any, tile: Tile | None, args: dict[str, Any], piece: Slice,
    states: Tensor | None, stored: bool, launch: Launcher, **flags: Any,
) -> bool:  # fmt: skip
    """Launch a walk over what was made for it. Returns False where nothing was, or a tensor bears no descriptor.
    stored: whether states leave it."""
    if made is None:
        return False
    if piece.chunks < p.n_chunks:  # a walk over the slice's rows alone
        i_row, T = piece.first_chunk * WGMMA_ROWS, made.q.shape[1]
        of_rows = {name: args[name][:, i_row : i_row + T] for name in ("p_v", "p_o", "p_do", "p_dv") if name in args}
        args = args | of_rows | {"T": T}
    # a walk that no state of a sequence enters or leaves knows of none
    crossed = any(flags.get(name) for name in ("STORE_ST", "HAS_SN", "STORE_DS0", "HAS_DSN"))
    borders = None if p.packed is None or not crossed else p.packed.borders
    args, flags = args | read_of(made) | {"p_borders": borders}, flags | {"PACKED": borders is not None}
    flags["V_FIRST"] = p.v_first
    walk = p.hopper_launch(kernel, tile, launch_of_groups, p, args, piece, states, stored, **flags)
    if walk is None:
        return False
    launch(walk)
    return True


def read_of(made: Prepared) -> dict[str, Tensor | None]:
    """What walks read of it, by the names of their arguments."""
    return {"p_qd": made.q, "p_kd": made.k, "p_a": made.a, "p_h": made.f, "p_e": made.e}


def launch_of_groups(
    kernel: Any, tile: Tile, p: Problem, args: dict[str, Any], piece: Slice, states: Tensor | None, stored: bool,
    **flags: Any,
) -> Launch:  # fmt: skip
    """A launch of a walk whose programs have a group of warps for each 64 columns of the tile."""
    groups = tile.block_v // WGMMA_ROWS
    programs = p.dims[-1] // tile.block_v * piece.segments
    flags |= {"GROUPS": groups, "UNITS": units_of(groups, stored)}
    launch = p.launch_of(kernel, tile, programs, args | p.walked(piece, states, 1) | {"first_seg": 0}, **flags)
    return replace(launch, blocks={name: (*block[:-1], WGMMA_ROWS) for name, block in launch.blocks.items()})


def wide_scan(
    p: Problem, made: Prepared | None, piece: Slice, args: dict[str, Any], flags: dict[str, bool], launch: Launcher
) -> bool:
    """As `walk.fused_scan`, whose arguments and flags these are."""
    stored = flags["STORE_S"] or flags["STORE_FEW"]
    kernel, tile = walk_wide_hopper_kernel, p.config.walk
    return _launched(p, made, kernel, tile, args, piece, args["p_s"], stored, launch, **flags)


def wide_grad_scan(
    p: Problem, made: Prepared | None, piece: Slice, args: dict[str, Any], flags: dict[str, bool], launch: Launcher
) -> bool:
    """As `grad_walk.fused_grad_scan`, likewise; dv is there of all chunks."""
    kernel, tile = grad_walk_wide_hopper_kernel, p.config.grad_walk
    return _launched(p, made, kernel, tile, args, piece, args["p_ds"], True, launch, **flags)


def wide_ends(
    p: Problem, made: Prepared | None, piece: Slice, do: Tensor | None, added: Tensor, gamma: Tensor | None,
    launch: Launcher,
) -> bool:  # fmt: skip
    """Fill ``added`` and ``gamma`` with what the segments of a slice add, as `make_states` does with ``last``, or with
    ``do`` `make_grad_states`. Returns False as `_launched` does, and where states enter in chunks."""
    if made is None or made.e is not None:
        return False
    kernel = states_wide_hopper_kernel if do is None else grad_states_wide_hopper_kernel
    args = {"p_v": p.v, "p_do": do, "p_s": added, "p_ds": added, "p_gamma": gamma} | read_of(made)
    walk = p.hopper_launch(kernel, ENDS, launch_of_ends, p, args, piece, added)
    if walk is None:
        return False
    launch(walk)
    return True


def launch_of_ends(kernel: Any, tile: Tile, p: Problem, args: dict[str, Any], piece: Slice, added: Tensor) -> Launch:
    """A launch of a walk that leaves what segments add."""
    programs, flags = p.dims[-1] // tile.block_v * piece.segments, {"UNITS": UNITS_OF_ENDS}
    return p.launch_of(kernel, tile, programs, args | p.walked(piece, added, p.seg_chunks), **flags)
