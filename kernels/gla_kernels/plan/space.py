"""The search space: the schedules and tiles that are worth trying, declared once for the tuner and the cost model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from ..schedule import (
    CHUNKS,
    DESCRIPTOR_CAPABILITY,
    FEW_WALKS,
    HOPPER,
    MAX_REGISTERS,
    Schedule,
    Tile,
    Workload,
    cdiv,
    padded,
)
from .limits import hopper_takes

SEGMENTS = (1024, 2048, 4096)  # rows of a segment, where walks over time are few: programs of a usual tile
WALK = (64, 128)


@dataclass(frozen=True)
class TileSpace:
    """The tiles worth trying for one pass; sizes above the padded head dimension fall away, and so does what a GPU
    without tensor descriptors lacks."""

    block_k: tuple[int, ...]
    block_v: tuple[int, ...]
    num_warps: tuple[int, ...]
    num_stages: tuple[int, ...]
    max_registers: tuple[int, ...]
    descriptors: tuple[bool, ...]
    hopper: tuple[bool, ...] = (False,)


# What was tried on an H200 and is not here was in no winner of `tune-second-board`: row blocks of 128, whose warps wait
# together; other sizes of tiles; 8 warps outside of passes over time; those with one stage. They may keep pointers:
# their states go through shared memory else, and one program an SM less may fit. 168 registers: three programs an SM.
OVER_TIME = TileSpace((32, 64, 128), (64, 128), (4, 8), (2, 3, 4), (MAX_REGISTERS,), (True, False))
BY_ROWS = TileSpace((32, 64), (64, 128, 256), (4,), (1, 2, 3), (MAX_REGISTERS, 168), (True,))
ON_CHIP = TileSpace((64, 128), (64, 128), (4,), (1, 2, 3, 4), (MAX_REGISTERS, 128), (True, False), (True, False))
SPACE: dict[str, TileSpace] = {
    "states": OVER_TIME,
    "output": BY_ROWS,
    "grad_states": OVER_TIME,
    "grad_qk": TileSpace((32, 64), (32, 64, 128), (4,), (1, 2), (MAX_REGISTERS,), (True,), (True, False)),
    "grad_v": BY_ROWS,
    "walk": ON_CHIP,
    "grad_walk": ON_CHIP,
}


def schedules(work: Workload) -> Iterator[Schedule]:
    """Every schedule worth trying where it is left open: no chunk of more than twice the sequence; segments only where
    walks over all of it are too few to fill a GPU. States are materialized: to leave none saves memory, which is to be
    asked for. At one of 289 forward workloads tuned it won, by 3 %, and the backward pass had to make them then, which
    cost more (kernels/NOTES.md, "States that are kept: few, or none")."""
    for chunk in CHUNKS:
        if chunk < 2 * work.T or chunk == CHUNKS[0]:
            for sub_chunk in (sub for sub in CHUNKS if sub <= chunk):
                for every in segments(work, chunk):
                    yield Schedule(chunk, sub_chunk, True, every)


def segments(work: Workload, chunk: int) -> list[int | None]:
    """Chunks a segment that can make a difference for the workload: None, for no segments, first. As many segments as
    `SEGMENTS` allow, all of one length: 14 chunks each of 54, not 16, 16, 16 and 6, ends sooner
    (kernels/NOTES.md, "Tuning and plans")."""
    if work.B * work.H * cdiv(work.K, WALK[0]) * cdiv(work.V, WALK[1]) >= FEW_WALKS:
        return [None]
    chunks = cdiv(work.T, chunk)
    longest = [rows // chunk for rows in SEGMENTS if rows < work.T]
    return [None, *(evened(chunks, every) for every in longest)]


def evened(chunks: int, every: int) -> int:
    """Chunks a segment where so many are cut into as few segments as ``every`` allows, all of one length."""
    return cdiv(chunks, cdiv(chunks, every))


def tiles(step: str, K: int, V: int, capability: int) -> Iterator[Tile]:
    """The tiles of a pass for head dimensions K and V on a GPU of that compute capability."""
    space = SPACE[step]
    described = space.descriptors if capability >= DESCRIPTOR_CAPABILITY else (False,)
    ks, vs = _sizes(space.block_k, K), _sizes(space.block_v, V)
    native = space.hopper if capability == HOPPER else (False,)
    for sizes in product(ks, vs, space.num_warps, space.num_stages, space.max_registers, described, native):
        tile = Tile(*sizes)
        if not tile.hopper or hopper_takes(step, tile):
            yield tile


def _sizes(choices: tuple[int, ...], dim: int) -> tuple[int, ...]:
    """Sizes of a tile along a head dimension; the padded dimension itself where all choices are larger."""
    return tuple(size for size in choices if size <= padded(dim)) or (padded(dim),)
