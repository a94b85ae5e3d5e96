"""How the operator can be scheduled and tiled: plain data, no kernel in sight.

`Schedule` is the algorithm a user chooses (the papers' chunk size, sub-chunk size, materialized or not). `KernelConfig`
is how one GPU runs it: it changes speed, never the result's accuracy class. A `Plan` is both: what one direction of a
call runs, and what tuning finds for a `Workload`. What is tried
is in plan/space.py, why something cannot run in plan/limits.py.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

CHUNKS = (16, 32, 64, 128, 256)
BLOCK_TS = (16, 32, 64)  # rows of a row block
MAX_HEAD_DIM = 512

# Rows of a segment where states are not materialized, a multiple of every chunk. At K = V = 128 the states at their
# boundaries are 5 % of the inputs.
SEGMENT_ROWS = 1024

MAX_REGISTERS = 255  # of a thread, whatever one asks for
LEAST_REGISTERS = 32  # that a limit may leave
DESCRIPTOR_CAPABILITY = 90  # the first compute capability with tensor descriptors (TMA)
HOPPER = 90  # compute capability of an H100 and H200, whose own product instructions no other GPU has

# Tensor-core products need at least 16 rows and columns.
MIN_TILE = 16
MAX_ROW_BLOCK = 64

# An H100's own product instruction takes that many rows; with fewer columns than these it is not to be trusted.
WGMMA_ROWS = 64

WALKED_K = 128  # of a state that stays on chip while outputs are made of q, k and g
WIDE_K = 256  # and while they are made of what was prepared of these: see chunk/prepare.py
SAFE_COLUMNS = 64

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
DEFAULT_SHARED_BYTES = 99 * 1024  # for a GPU that is not in the list


@dataclass(frozen=True)
class Schedule:
    """Two-level chunking of the time axis (Yang et al. 2024, sections 3.2 and 4.3).

    chunk: rows a chunk; a state is read and written once a chunk. One of 16, 32, 64, 128, 256.
    sub_chunk: rows a sub-chunk: scores inside a sub-chunk are computed in full precision (tf32 for 16-bit inputs),
        scores between sub-chunks in the inputs' precision or better. At least 16, at most ``chunk``, and a divisor of
        it. None: min(chunk, 64).
    materialize: True keeps every chunk's state in HBM and works on all chunks at once; False works on a slice of the
        sequence after another, whose chunks' states share a small buffer, and keeps one state a slice. Where there are
        too few heads to fill a GPU so (see `in_turn`), one state in 1024 rows comes first, from a walk of its own.
    states_every: chunks a segment. The walk over time that makes the states is cut into segments, which are walked over
        in parallel, twice: a first time for what each of them adds to the state. Worth it for few heads and a long
        sequence. None: one walk.

    Raises ValueError for any other combination.
    """

    chunk: int = 64
    sub_chunk: int | None = None
    materialize: bool = True
    states_every: int | None = None

    def __post_init__(self) -> None:
        # 64.0 equals 64: it would be taken from every cache that knows the schedule, and no kernel takes it
        if type(self.chunk) is not int or self.chunk not in CHUNKS:
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
        every = self.states_every
        if every is not None and (not isinstance(every, int) or isinstance(every, bool) or every < 1):
            raise ValueError(f"states_every: expected a number of chunks > 0 or None, got {every!r}")

    @property
    def rows(self) -> int:
        """The sub-chunk's rows, never None."""
        assert self.sub_chunk is not None
        return self.sub_chunk

    @property
    def segment_rows(self) -> float:
        """Rows of a segment; infinite where a walk goes over the whole sequence."""
        if self.states_every is not None:
            return self.states_every * self.chunk
        return math.inf if self.materialize else SEGMENT_ROWS


@dataclass(frozen=True)
class Tile:
    """The tile that one program of one kernel works on: columns of K and of V, and how it is compiled."""

    block_k: int
    block_v: int
    num_warps: int = 4
    num_stages: int = 1  # iterations of a loop whose loads are in flight at once
    max_registers: int = MAX_REGISTERS  # of a thread; fewer let more programs share an SM
    descriptors: bool = False  # whether tiles come and go by tensor descriptors, as an H100 and later GPUs have them
    hopper: bool = False  # whether a kernel of Hopper's own serves where it can: see `plan.limits`

    @property
    def values(self) -> tuple[int, int, int, int, int, bool, bool]:
        """All of it in order. `dataclasses.astuple` copies each value, which takes many times as long."""
        sizes = (self.block_k, self.block_v, self.num_warps, self.num_stages, self.max_registers)
        return (*sizes, self.descriptors, self.hopper)


@dataclass(frozen=True)
class KernelConfig:
    """Tiles of every pass, named like its kernel. ``block_t`` rows make a row block; it divides the sub-chunk.

    walk, grad_walk: of a fused scan (`WALKS`); None for those two.
    """

    block_t: int
    states: Tile
    output: Tile
    grad_states: Tile
    grad_qk: Tile
    grad_v: Tile
    walk: Tile | None = None
    grad_walk: Tile | None = None

    def tiles(self) -> dict[str, Tile]:
        """The tiles that there are, by pass."""
        found = {name: getattr(self, name) for name in PASSES}
        return {name: tile for name, tile in found.items() if tile is not None}

    @property
    def numbers(self) -> list[int]:
        """The rows of a row block, and all that is a number in the tiles."""
        return [self.block_t, *(n for tile in self.tiles().values() for n in tile.values[:-2])]

    @property
    def whole(self) -> bool:
        """Whether the numbers are integers > 0. What comes out of a file, or from a caller, need not be."""
        return all(type(n) is int and n > 0 for n in self.numbers)


PASSES = tuple(f.name for f in fields(KernelConfig) if f.name != "block_t")

# What a walk does at once: a state stays on chip from where it is made to where it is read.
WALKS = {"walk": ("states", "output"), "grad_walk": ("grad_states", "grad_v")}

Direction = Literal["fwd", "bwd"]
DTYPES = ("bf16", "fp16", "fp32")
MAX_SIZE = 2**40  # of B, T and H: no tensor has as many rows
SIZES = {"B": (0, MAX_SIZE), "T": (0, MAX_SIZE), "H": (0, MAX_SIZE), "K": (1, MAX_HEAD_DIM), "V": (1, MAX_HEAD_DIM)}

WALK_OF: dict[Direction, str] = {"fwd": "walk", "bwd": "grad_walk"}


@dataclass(frozen=True)
class Plan:
    """The schedule and tiles of one direction of a call. The forward and the backward pass may follow different plans:
    what a forward pass leaves for the backward one (`chunk.Kept`) is used only where it fits."""

    schedule: Schedule
    config: KernelConfig

    def walks(self, direction: Direction) -> bool:
        """whether there is a fused scan in that direction."""
        return getattr(self.config, WALK_OF[direction]) is not None

    def steps(self, work: Workload) -> tuple[str, ...]:
        """The passes that the workload's direction runs by this plan: `steps_of`."""
        return steps_of(work, self.schedule, self.walks(work.direction))

    def to_dict(self) -> dict[str, Any]:
        """{"schedule": {...}, "block_t": rows, "tiles": {pass: [block_k, block_v, num_warps, num_stages, max_registers,
        descriptors, hopper]}}; no walk that the plan does without."""
        tiles = {name: list(tile.values) for name, tile in self.config.tiles().items()}
        return {"schedule": asdict(self.schedule), "block_t": self.config.block_t, "tiles": tiles}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Plan:
        """The inverse of ``to_dict``. Raises ValueError, TypeError or KeyError for what is none."""
        given = set(values["tiles"])
        if given | set(WALKS) != set(PASSES):
            raise ValueError(f"tiles: expected {', '.join(PASSES)}, got {', '.join(sorted(given))}")
        tiles = {name: Tile(*sizes) for name, sizes in values["tiles"].items()}
        config = KernelConfig(block_t=values["block_t"], **tiles)
        if not config.whole:
            raise ValueError(f"block_t and tiles: expected positive integers, got {config.numbers}")
        if not all(type(flag) is bool for tile in tiles.values() for flag in tile.values[-2:]):
            raise ValueError("tiles: expected true or false for descriptors and hopper, the last two entries")
        return cls(Schedule(**values["schedule"]), config)


@dataclass(frozen=True)
class Workload:
    """The work asked of the operator in one direction: all that a plan is chosen by.

    B sequences of T tokens, H heads of K (queries, keys, gates) and V (values). dtype: "bf16", "fp16" or "fp32".
    schedule: what the user asks for; None leaves it open. gate_dtype: "fp32" for float32 gates beside 16-bit inputs;
    None, and the dtype itself, for gates of that dtype. Raises ValueError for another direction, dtype or size.
    """

    direction: Direction
    B: int
    T: int
    H: int
    K: int
    V: int
    dtype: str = "bf16"
    gated: bool = True
    schedule: Schedule | None = None
    gate_dtype: str | None = None

    def __post_init__(self) -> None:
        if self.direction not in WALK_OF:
            raise ValueError(f"direction: expected fwd or bwd, got {self.direction!r}")
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype: expected {', '.join(DTYPES)}, got {self.dtype!r}")
        for name, (least, most) in SIZES.items():
            size = getattr(self, name)
            if type(size) is not int or not least <= size <= most:
                raise ValueError(f"{name}: expected an integer from {least} to {most}, got {size!r:.60}")
        if not isinstance(self.gated, bool):
            raise ValueError(f"gated: expected True or False, got {self.gated!r}")
        if self.gate_dtype not in (None, self.dtype, "fp32"):
            raise ValueError(f"gate_dtype: expected {self.dtype}, fp32 or None, got {self.gate_dtype!r}")
        if self.gate_dtype == self.dtype or not self.gated:
            object.__setattr__(self, "gate_dtype", None)  # one name for one workload

    @property
    def operand_bytes(self) -> int:
        """Bytes of an element as it enters a tensor-core product: bfloat16 as it is, everything else as tf32."""
        return 2 if self.dtype == "bf16" else 4

    def to_dict(self) -> dict[str, Any]:
        """Its fields; no ``gate_dtype`` where it is None, as in tables and records of before there was one."""
        values = asdict(self)
        if self.gate_dtype is None:
            del values["gate_dtype"]
        return values

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Workload:
        """The inverse of ``to_dict``. Raises ValueError or TypeError for what is none."""
        schedule = values.get("schedule")
        return cls(**{**values, "schedule": None if schedule is None else Schedule(**schedule)})


def cdiv(a: int, b: int) -> int:
    """a / b, rounded up. Triton's own is for kernels, and takes a hundred times as long."""
    return -(-a // b)


def padded(dim: int) -> int:
    """The power of two, at least 16, that a head dimension is padded to in registers."""
    return max(MIN_TILE, 1 << (dim - 1).bit_length())


HOPPER_SMS = 132  # of an H100 and an H200, of the boards with NVLink
FEW_WALKS = 2 * HOPPER_SMS


HEADS_IN_TURN = 64  # of all sequences, of 128 columns of V: fewer walks over time leave half of an H100 idle


def in_turn(schedule: Schedule, heads: int, V: int) -> bool:
    """Whether each slice starts from the state that the one before it left. heads: of all sequences."""
    if schedule.materialize or schedule.states_every is not None:
        return False
    return heads * cdiv(V, 128) >= HEADS_IN_TURN


def steps_of(work: Workload, schedule: Schedule, walks: bool) -> tuple[str, ...]:
    """The passes that the workload's direction runs, in order; those that tiles are chosen for. ``walks``: in a
    fused scan. The backward one's states pass runs only where the forward one has not left its states
    (`chunk.kept.Kept`)."""
    if not walks:
        return ("states", "grad_states", "grad_qk", "grad_v") if work.direction == "bwd" else ("states", "output")
    # what segments start from comes from a pass of its own
    cut = schedule.segment_rows < work.T and not in_turn(schedule, work.B * work.H, work.V)
    if work.direction == "bwd":
        return ("states", *(("grad_states",) if cut else ()), "grad_walk", "grad_qk")
    return ("states", "walk") if cut else ("walk",)


def states_given(work: Workload, schedule: Schedule) -> bool:
    """Whether the states that a backward pass needs are there already, as a forward pass of such a schedule leaves
    them."""
    return work.direction == "bwd" and schedule.materialize
