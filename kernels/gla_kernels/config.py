"""How the operator is scheduled, and the tiles its kernels use: plain data, no kernel in sight.

`Schedule` is the algorithm a user chooses (the papers' chunk size, sub-chunk size, materialized or not). `KernelConfig`
is how one GPU runs it: it changes speed, never the result's accuracy class.
"""

from __future__ import annotations

from dataclasses import dataclass

CHUNKS = (16, 32, 64, 128, 256)
MAX_HEAD_DIM = 512

# Tensor-core products need at least 16 rows and columns.
MIN_TILE = 16
MAX_ROW_BLOCK = 64

# Shared memory that one program may take, in bytes, by compute capability (CUDA C++ Programming Guide, "technical
# specifications per compute capability", less the 1 KiB that the system keeps).
SHARED_BYTES = {
    80: 163 * 1024,
    86: 99 * 1024,
    87: 163 * 1024,
    89: 99 * 1024,
    90: 227 * 1024,
    100: 227 * 1024,
    103: 227 * 1024,
    120: 99 * 1024,
}


@dataclass(frozen=True)
class Schedule:
    """Two-level chunking of the time axis (Yang et al. 2024, sections 3.2 and 4.2).

    chunk: rows a chunk; a state is read and written once a chunk. One of 16, 32, 64, 128, 256.
    sub_chunk: rows a sub-chunk: scores inside a sub-chunk are computed in full precision (tf32 for 16-bit inputs),
        scores between sub-chunks in the inputs' precision or better. At least 16, at most ``chunk``, and a divisor of
        it. None: min(chunk, 64).
    materialize: True keeps every chunk's state in HBM and works on all chunks at once; False walks over the chunks with
        the state on chip.

    Raises ValueError for any other combination.
    """

    chunk: int = 64
    sub_chunk: int | None = None
    materialize: bool = True

    def __post_init__(self) -> None:
        if self.chunk not in CHUNKS or isinstance(self.chunk, bool):
            raise ValueError(f"chunk: expected one of {', '.join(map(str, CHUNKS))}, got {self.chunk!r}")
        if self.sub_chunk is None:
            object.__setattr__(self, "sub_chunk", min(self.chunk, 64))
        sub = self.sub_chunk
        if not isinstance(sub, int) or isinstance(sub, bool) or sub < MIN_TILE or sub > self.chunk or self.chunk % sub:
            raise ValueError(
                f"sub_chunk: expected a divisor of chunk={self.chunk} from {MIN_TILE} to {self.chunk}, got {sub!r}"
            )
        if not isinstance(self.materialize, bool):
            raise ValueError(f"materialize: expected True or False, got {self.materialize!r}")

    @property
    def rows(self) -> int:
        """The sub-chunk's rows, never None."""
        assert self.sub_chunk is not None
        return self.sub_chunk


@dataclass(frozen=True)
class Tile:
    """What one program of one kernel works on: columns of K and of V, and how it is compiled."""

    block_k: int
    block_v: int
    num_warps: int = 4
    num_stages: int = 1


@dataclass(frozen=True)
class KernelConfig:
    """Tiles of every pass. ``block_t`` rows make a row block; it divides the sub-chunk."""

    block_t: int
    states: Tile
    output: Tile
    grad_q: Tile
    grad_k: Tile
    grad_v: Tile


def padded(dim: int) -> int:
    """The power of two, at least 16, that a head dimension is padded to in registers."""
    return max(MIN_TILE, 1 << (dim - 1).bit_length())


def _power_of_two_at_most(limit: int, low: int, high: int) -> int:
    """The largest power of two in [low, high] that is <= limit; low if there is none."""
    best = low
    while best * 2 <= min(limit, high):
        best *= 2
    return best


def default_config(K: int, V: int, operand_bytes: int, schedule: Schedule, capability: int = 90) -> KernelConfig:
    """Tiles that fit an SM for any head dimension, by size alone.

    K, V: head dimensions; operand_bytes: bytes of an element as it enters a product, 2 for bfloat16, else 4 (tf32);
    capability: compute capability, 80 for an A100, 90 for an H100. Found by timing each pass alone on an H200 with
    chunks of 64 at (K, V) = (128, 128), (128, 256) and (256, 256).
    """
    k, v = padded(K), padded(V)
    shared = SHARED_BYTES.get(capability, 99 * 1024)
    # Rows of q and k are held as they are and decayed, in float32 on the diagonal, and off it too where the sub-chunk
    # is larger than any row block; rows of v and do less often.
    roomy = shared >= 227 * 1024 and operand_bytes == 2 and schedule.rows <= MAX_ROW_BLOCK
    row_bytes = 32768 if roomy else 16384 if shared >= 163 * 1024 else 8192
    rows = min(row_bytes // k, 32768 // v) // operand_bytes
    block_t = _power_of_two_at_most(rows, MIN_TILE, min(schedule.rows, MAX_ROW_BLOCK))
    single = block_t == schedule.chunk

    def split(elements: int, full: int, other: int) -> int:
        """Columns of the dimension that is cut, for a state's tile of at most so many elements."""
        return _power_of_two_at_most(elements * 2 // (operand_bytes * full), MIN_TILE, min(other, 128))

    def warps(full: int) -> int:
        return 8 if full > 256 or (operand_bytes == 4 and full > 128) else 4

    state = 32768 if roomy and k == 256 else min(16384, row_bytes)
    by_k = warps(k) if k < 256 else 8
    # With more than one row block a chunk, Triton 3.6 miscompiles grad_k at V = 256 with 32 columns of K and 4 warps.
    grad_k = Tile(split(8192, v, k), v, warps(v)) if single or v < 256 else Tile(split(16384, v, k), v, 8)
    return KernelConfig(
        block_t=block_t,
        states=Tile(min(64, k), min(128, v), 4, 2 if operand_bytes == 2 else 1),
        output=Tile(k, split(state, k, v), by_k if schedule.materialize else 8),
        grad_q=Tile(split(8192 if v <= 128 else 16384, v, k), v, warps(v), 2 if v <= 128 and operand_bytes == 2 else 1),
        grad_k=grad_k,
        grad_v=Tile(k, split(state, k, v), by_k),
    )


def default_schedule(B: int, T: int, H: int, K: int, V: int) -> Schedule:
    """A sensible schedule for a shape: materialized chunks of 64 rows, shorter for short sequences.

    B sequences of T tokens, H heads of K (keys) and V (values).
    """
    chunk = next((c for c in CHUNKS if c >= T), 64)
    return Schedule(chunk=min(chunk, 64), materialize=T > 64)
