"""Which plan a call runs: tiles and schedules by size."""

from __future__ import annotations

from .config import (
    CHUNKS,
    DEFAULT_SHARED_BYTES,
    MAX_ROW_BLOCK,
    MIN_TILE,
    SHARED_BYTES,
    KernelConfig,
    Schedule,
    Tile,
    padded,
)  # fmt: skip


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
    shared = SHARED_BYTES.get(capability, DEFAULT_SHARED_BYTES)
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
    states = Tile(min(64, k), min(128, v), 4, 2 if operand_bytes == 2 else 1)
    return KernelConfig(
        block_t=block_t,
        states=states,
        grad_states=states,
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
