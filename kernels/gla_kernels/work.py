"""What one launch of a chunkwise kernel does, counted from its arguments: what the cost model reckons with.

A program goes through its rows in row blocks, one after another, and in a chunk of several row blocks through each pair
of them besides. Counts follow the kernels' loops with whole tiles: padding and the unused half of diagonal blocks are
computed too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import triton.language as tl

from .launch import Launch


@dataclass(frozen=True)
class Step:
    """What a program does for one row block, or for one pair of row blocks.

    dots, wide_dots: FLOP on the tensor core with 16-bit operands, and with tf32 or float32 ones; exps: exponentials;
    loaded: bytes read; stored: bytes written.
    """

    dots: float = 0.0
    wide_dots: float = 0.0
    exps: float = 0.0
    loaded: float = 0.0
    stored: float = 0.0

    def __add__(self, other: Step) -> Step:
        return Step(*(a + b for a, b in zip(_values(self), _values(other), strict=True)))

    def __mul__(self, count: float) -> Step:
        return Step(*(a * count for a in _values(self)))


def _values(step: Step) -> tuple[float, ...]:
    return step.dots, step.wide_dots, step.exps, step.loaded, step.stored


@dataclass(frozen=True)
class Work:
    """Counts of a whole launch.

    total: all programs together; programs; blocks and pairs: how many row blocks, and pairs of them, one program goes
    through in turn; live: float32 numbers that a program keeps in registers from block to block or within one.
    """

    total: Step
    programs: int
    blocks: float
    pairs: float
    live: float


@dataclass(frozen=True)
class _Sizes:
    """A launch's tile sizes and types."""

    BT: int
    BK: int
    BV: int
    gated: bool
    walk: bool
    single: bool
    wide: bool  # operands are float32
    wide_pairs: bool  # and those of products between row blocks
    e: int  # bytes of an element of q, k, v, g
    state: int  # bytes of an element of a state in HBM
    parts: int  # tensor-core products that one product of float32 operands takes

    def dot(self, flop: float, wide: bool) -> Step:
        return Step(wide_dots=flop * self.parts) if wide else Step(dots=flop)

    @property
    def keys(self) -> int:
        return self.BT * self.BK

    @property
    def values(self) -> int:
        return self.BT * self.BV


def work_of(launch: Launch) -> Work:
    """Count a launch of a chunkwise kernel. Raises KeyError for another kernel."""
    s, args = _sizes(launch), launch.args
    block, pair, live = STEPS[launch.step](s)
    programs = math.prod(launch.grid)
    if launch.step in ("states", "grad_states"):
        blocks = math.ceil(args["T"] / s.BT)
        stored = args["n_seg"] * s.BK * s.BV * s.state
        return Work((block * blocks + Step(stored=stored)) * programs, programs, blocks, 0, live)
    per_chunk = min(args["chunk"], max(args["T"], 1)) / s.BT
    chunks = min(args["seg_chunks"], args["T"] / args["chunk"])
    blocks, pairs = chunks * math.ceil(per_chunk), chunks * per_chunk * (per_chunk - 1) / 2
    one = block * blocks + pair * pairs + Step(loaded=s.BK * s.BV * s.state)
    return Work(one * programs, programs, blocks, pairs, live)


def _sizes(launch: Launch) -> _Sizes:
    c, args = launch.constexprs, launch.args
    wide = c["DOT"] == tl.float32
    state = next((args[name] for name in ("p_s", "p_ds") if isinstance(args.get(name), torch.Tensor)), None)
    element = next(x for x in args.values() if isinstance(x, torch.Tensor)).element_size()
    return _Sizes(
        BT=c["BT"],
        BK=c["BK"],
        BV=c["BV"],
        gated=c["GATED"],
        walk=c.get("WALK", False),
        single=c.get("SINGLE", True),
        wide=wide,
        wide_pairs=wide or (c.get("FULL", False) and c["GATED"]),
        e=element,
        state=state.element_size() if state is not None else 4,
        parts={"tf32": 1, "tf32x3": 3, "ieee": 16}[c["PRECISION"]],
    )


def _update(s: _Sizes) -> Step:
    """The state, or its gradient, over one row block."""
    gates = (2 * s.keys * s.e) if s.gated else 0
    return s.dot(2 * s.BT * s.BK * s.BV, s.wide) + Step(
        exps=s.keys if s.gated else 0, loaded=(s.keys + s.values) * s.e + gates
    )


def _rows(s: _Sizes, gates: int) -> Step:
    """Loads of q, k and one or two tiles of values, and ``gates`` decays of the block."""
    return Step(exps=gates * s.keys * s.gated, loaded=(2 * s.keys + s.values + gates * s.keys * s.gated) * s.e)


def _states(s: _Sizes) -> tuple[Step, Step, float]:
    return _update(s), Step(), s.BK * s.BV + s.keys


def _output(s: _Sizes) -> tuple[Step, Step, float]:
    square = s.BT * s.BT
    block = _rows(s, 3) + s.dot(2 * square * s.BK, s.wide or s.gated)
    block += s.dot(2 * square * s.BV, s.wide) + s.dot(2 * s.BT * s.BK * s.BV, s.wide) + Step(stored=s.values * s.e)
    if s.walk:
        block += _update(s)
    pair = _pair(s) + s.dot(2 * square * s.BK, s.wide_pairs) + s.dot(2 * square * s.BV, s.wide)
    return block, pair, square + s.values + 2 * s.keys + s.walk * s.BK * s.BV


def _pair(s: _Sizes) -> Step:
    """Loads of a column block, and its decay."""
    return Step(exps=s.keys * s.gated, loaded=(s.keys * (1 + 2 * s.gated) + s.values) * s.e)


def _grad_q(s: _Sizes) -> tuple[Step, Step, float]:
    square = s.BT * s.BT
    into_state = s.dot(2 * s.BT * s.BK * s.BV, s.wide) * (2 if s.walk else 1)
    block = _rows(s, 3) + Step(loaded=s.values * s.e, stored=s.keys * (s.e + 4 * s.gated))
    block += into_state + s.dot(2 * square * s.BV, s.wide) + s.dot(2 * square * s.BK, s.wide or s.gated)
    if s.walk:
        block += _update(s)
    pair = _pair(s) + s.dot(2 * square * s.BV, s.wide) + s.dot(2 * square * s.BK, s.wide_pairs)
    return block, pair, square + 4 * s.keys + s.walk * s.BK * s.BV


def _grad_k(s: _Sizes) -> tuple[Step, Step, float]:
    block, pair, live = _grad_q(s)
    if s.gated:
        block += Step(loaded=(4 + s.e) * s.keys)  # q dq, and the gates once more for dg
        if not s.single and not s.walk:  # a first round over the chunk for what leaves it
            block += s.dot(2 * s.BT * s.BK * s.BV, s.wide) + Step(exps=s.keys, loaded=(3 * s.keys + s.values) * s.e)
    return block, pair, live + s.keys


def _grad_v(s: _Sizes) -> tuple[Step, Step, float]:
    return _output(s)


STEPS: dict[str, Callable[[_Sizes], tuple[Step, Step, float]]] = {
    "states": _states,
    "output": _output,
    "grad_states": _states,
    "grad_q": _grad_q,
    "grad_k": _grad_k,
    "grad_v": _grad_v,
}
