"""What one launch does, counted from its arguments alone: bytes, products, exponentials, and bytes at HBM.

Counts are exact, for every schedule, ragged ends and head dimensions that are no power of two; `counts` says what is
counted and what is not. Gates are taken to be mild.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import triton.language as tl

from ..launch import Launch
from ..tiles.descriptors import ROWS_OF_K, ROWS_OF_SCORES, ROWS_OF_V
from .counting import GAMMA, HALVES, Count, Sizes
from .counts import KERNELS

TENSOR_PRODUCTS = {"tf32": ("tf32", 1), "tf32x3": ("tf32", 3), "ieee": ("fp32", 1)}  # one product of float32 operands

REGISTERS = 65536  # of an SM
MOST_REGISTERS = 255  # of a thread
OTHER_REGISTERS = 40  # of a thread, for addresses and loop counters
COPIES = frozenset(("copy", "sum", "thin"))  # passes of `copies`
MOST_RESIDENT = 8  # programs of these kernels on one SM, whatever their registers


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes of one tensor. read, write: of what programs touch, each element once; requested: of all their loads and
    stores together."""

    read: int
    write: int
    requested: int


@dataclass(frozen=True)
class Work:
    """Counts of a whole launch.

    tensor_flops: FLOP of tensor-core products by operand type as the hardware sees it, "bf16" (sums of gates in float16
    too) and "tf32"; "fp32" are those in full float32, which CUDA cores do. vector_flops: float32 operations on tiles.
    exps: exponentials. traffic: by tensor, named as in the kernel without the ``p_``; only those that are touched.
    For the cost model: blocks and pairs, row blocks and pairs of them that the longest program goes through in turn;
    tiles and segments, programs that share a sequence, those of other tiles neighbours in the grid; last_blocks, row
    blocks of a sequence's last segment;
    live, float32 numbers that a program keeps in registers from block to block or within one.
    For `hbm_bytes`: revisited_bytes, read from HBM if rows never stayed in the L2 until a program comes back to them;
    window_bytes, what a program touches meanwhile, its share where several work on the same rows.
    """

    programs: int
    tensor_flops: dict[str, int]
    vector_flops: int
    exps: int
    traffic: dict[str, Traffic]
    blocks: int
    pairs: int
    tiles: int
    segments: int
    last_blocks: int
    live: int
    revisited_bytes: int
    window_bytes: float

    @property
    def read_bytes(self) -> int:
        """Bytes read, each element once."""
        return sum(one.read for one in self.traffic.values())

    @property
    def write_bytes(self) -> int:
        """Bytes written, each element once; no program writes what another does."""
        return sum(one.write for one in self.traffic.values())

    @property
    def requested_bytes(self) -> int:
        """Bytes of all loads and stores."""
        return sum(one.requested for one in self.traffic.values())

    def to_dict(self) -> dict[str, Any]:
        """As rows of profiles keep it, without what depends on a GPU (see `profile_of`)."""
        return {
            "programs": self.programs,
            "tensor_flops": dict(self.tensor_flops),
            "vector_flops": self.vector_flops,
            "exps": self.exps,
            "read_bytes": self.read_bytes,
            "write_bytes": self.write_bytes,
            "requested_bytes": self.requested_bytes,
            "tensors": {
                name: {"read": one.read, "write": one.write, "requested": one.requested}
                for name, one in self.traffic.items()
            },
        }


def work_of(launch: Launch) -> Work:
    """Count a launch of a chunkwise or recurrent kernel, or of a copy. Raises KeyError for another kernel."""
    if launch.step in COPIES:
        return _copy_work(launch)
    counter = KERNELS[launch.step]
    s = Sizes(launch)
    c = Count(s)
    counter(c)
    size = {name[2:]: s.heads * x.element_size() for name, x in launch.args.items() if hasattr(x, "element_size")}
    revisited = sum(size[name] * (count - c.again.get(name, 0)) // _sharing(s, name) for name, count in c.read.items())
    return Work(
        programs=s.programs,
        tensor_flops=_tensor_flops(s, c),
        vector_flops=c.vector * s.tiles * s.heads,
        exps=c.exps * s.tiles * s.heads,
        traffic=_traffic(s, c, size),
        blocks=s.turns,
        pairs=s.turn_pairs,
        tiles=s.tiles,
        segments=s.slices,
        last_blocks=s.last_turns,
        live=_live(s, launch.step),
        revisited_bytes=revisited,
        window_bytes=_window_bytes(s, c, size),
    )


def _copy_work(launch: Launch) -> Work:
    """The work of a launch of `copies`."""
    size = launch.args["n"] * launch.constexprs.get("PARTS", 1)
    given, into = launch.args["p_x"], launch.args["p_y"]
    read, written = 0 if given is None else size * given.element_size(), launch.args["n"] * into.element_size()
    traffic = {"y": Traffic(0, written, written)} | ({"x": Traffic(read, 0, read)} if read else {})
    programs = math.prod(launch.grid)
    return Work(programs, {"bf16": 0, "tf32": 0, "fp32": 0}, size, 0, traffic, 1, 0, 1, 1, 1, 64, read, 0.0)


def hbm_bytes(work: Work, launch: Launch, l2_bytes: int, sms: int) -> tuple[int, int]:
    """(read, written): bytes expected at HBM when the launch starts with a cold L2.

    Programs that read the same rows are neighbours in the grid and run at the same time: HBM sees their reads once. A
    program comes back to rows within their chunk, for the row blocks after them and for the state. They are then still
    in the L2 if all that the programs in flight touch meanwhile, a chunk of rows each, fits it. If it does not, each
    visit reads from HBM again. Everything written is written once.
    """
    in_flight = min(work.programs, sms * residents(work, launch.num_warps))
    fits = in_flight * work.window_bytes <= l2_bytes
    return (work.read_bytes if fits else work.revisited_bytes), work.write_bytes


def profile_of(launch: Launch, l2_bytes: int, sms: int) -> dict[str, Any]:
    """All that rows of profiles keep of a launch's work: `Work.to_dict`, hbm_read_bytes and hbm_write_bytes. l2_bytes
    and sms are the GPU's. Raises KeyError for a kernel that is not ours."""
    work = work_of(launch)
    read, written = hbm_bytes(work, launch, l2_bytes, sms)
    return work.to_dict() | {"hbm_read_bytes": read, "hbm_write_bytes": written}


def residents(work: Work, num_warps: int) -> int:
    """Programs that are about to fit on an SM at once, by the registers that they are about to need."""
    registers = min(MOST_REGISTERS, OTHER_REGISTERS + 1.3 * work.live / (32 * num_warps))
    return max(1, min(MOST_RESIDENT, int(REGISTERS / (32 * num_warps * registers))))


def _tensor_flops(s: Sizes, c: Count) -> dict[str, int]:
    programs, flops = s.tiles * s.heads, {"bf16": 0, "tf32": 0, "fp32": 0}
    flops["bf16"] += c.gate_products * programs
    if c.products or c.wide_products:
        kind, times = TENSOR_PRODUCTS[s.constexprs["PRECISION"]]
        flops[kind] += times * c.wide_products * programs
        if s.constexprs["DOT"] == tl.float32:
            flops[kind] += times * c.products * programs
        else:
            flops["bf16"] += c.products * programs
    return flops


def _traffic(s: Sizes, c: Count, size: dict[str, int]) -> dict[str, Traffic]:
    if not s.heads:
        return {}
    found = {}
    for name, count in c.read.items():
        written = c.written.get(name, 0)
        found[name] = Traffic(size[name] * _once(s, c, name), size[name] * written, size[name] * (count + written))
    for name, count in c.written.items():
        if name not in c.read:
            found[name] = Traffic(0, size[name] * count, size[name] * count)
    return found


def _once(s: Sizes, c: Count, name: str) -> int:
    """Elements of a head's tensor that are read at all: all its rows in the slice, or different states, once each."""
    if name in ROWS_OF_K:
        return s.T * s.K
    if name in ROWS_OF_SCORES:
        return s.T * 2 * s.BT
    if name in (HALVES, GAMMA):
        return (s.blocks if name == HALVES else s.turns) * s.K
    return s.T * s.V if name in ROWS_OF_V else c.states[name]


def _sharing(s: Sizes, name: str) -> int:
    """Programs that read the same rows of a tensor."""
    if name in ROWS_OF_K | ROWS_OF_SCORES or name in (HALVES, GAMMA):
        return s.over_v
    return s.over_k if name in ROWS_OF_V else 1


def _window_bytes(s: Sizes, c: Count, size: dict[str, int]) -> float:
    """A chunk's rows of all tensors, shared by the programs that work on them."""
    if not s.heads:
        return 0.0
    names = [name for name in {**c.read, **c.written} if name in ROWS_OF_K or name in ROWS_OF_V]
    row = sum(size[name] * (s.K if name in ROWS_OF_K else s.V) for name in names) / s.heads
    return min(s.chunk, s.T) * row / (s.tiles * s.by_block)


def _live(s: Sizes, step: str) -> int:
    if step in ("states", "grad_states"):
        return s.state + s.keys
    if step in ("output", "grad_v"):
        return s.scores + s.values + 2 * s.keys
    if step in ("walk", "grad_walk"):
        return s.in_k * s.state + s.scores + s.values + 2 * s.keys
    if step == "grad_qk":
        return s.scores + 5 * s.keys
    return s.state
