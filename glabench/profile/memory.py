"""What the peak memory of one call is made of: the allocator's history, replayed to the moment of the peak.

Our kernels' calls allocate their results, a block of what is left for the backward pass, and a block of scratch, which
has the bytes of all buffers that are needed while launches run; buffers that are not in use at the same time share
bytes. What such a block holds is said by the call's program (gla_kernels.launch.record): of scratch, what is held at
the launch for which that is most. Measured is how large the blocks are, and when they are there; one of another size
than the program's is not taken apart.

Sizes are those that were asked for; the allocator rounds each up to 512 bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from glabench.run import oracle
from glabench.run.gate import run_once
from glabench.spec.case import Case
from glabench.systems.base import System
from glabench.systems.inputs import DTYPES, Inputs, input_bytes

if TYPE_CHECKING:
    from gla_kernels.launch.record import Program
    from gla_kernels.ops.form import Inputs as CallInputs

KINDS = ("inputs", "outputs", "gradients", "states", "saved", "workspace")
# Arguments of our kernels that are states, their gradients, and what segments add to them; copies (p_x to p_y) are of
# states alone in the forms whose programs are looked at here.
STATES = frozenset({"p_s", "p_s0", "p_st", "p_ds", "p_ds0", "p_dst", "p_add", "p_first", "p_few", "p_x", "p_y"})


@dataclass(frozen=True)
class Block:
    """A piece of memory that a call allocated. number: of the allocation in the history."""

    number: int
    address: int
    size: int

    def holds(self, addresses: Collection[int]) -> bool:
        return any(self.address <= one < self.address + self.size for one in addresses)


@dataclass(frozen=True)
class Replayed:
    """The history's blocks: at the peak, when the forward had ended, and at the end. backward: whether the peak came
    after the forward's end."""

    peak: tuple[Block, ...]
    after_forward: tuple[Block, ...]
    last: tuple[Block, ...]
    backward: bool


def replay(trace: Sequence[Mapping[str, Any]], forward_ends: int) -> Replayed:
    """Follow allocations and frees. ``trace``: as torch.cuda.memory._snapshot() gives it; ``forward_ends``: how many of
    its entries are of the forward. A free of what was there before is none of the call's."""
    live: dict[int, Block] = {}
    total, most, backward = 0, 0, False
    peak: tuple[Block, ...] = ()
    after_forward: tuple[Block, ...] = ()
    for number, entry in enumerate(trace):
        if number == forward_ends:
            after_forward = tuple(live.values())
        address = entry.get("addr", 0)
        if entry["action"] == "alloc":
            live[address] = Block(number, address, entry["size"])
            total += entry["size"]
        elif entry["action"] == "free_requested" and address in live:
            total -= live.pop(address).size
        if total > most:
            most, peak, backward = total, tuple(live.values()), number >= forward_ends
    last = tuple(live.values())
    return Replayed(peak, after_forward if forward_ends < len(trace) else last, last, backward)


def kinds_of(
    found: Replayed,
    inputs_bytes: int,
    outputs: Collection[int],
    gradients: Collection[int],
    contents: Iterable[Mapping[str, int]] = (),
) -> dict[str, int]:
    """Bytes at the peak by kind. outputs, gradients: addresses of what the call returned. contents: of blocks that hold
    several kinds, the kinds; each is told by its size, and by whether it was kept when the forward had ended."""
    mixed = {("saved" if "saved" in held else "workspace", sum(held.values())): held for held in contents}
    kinds = dict.fromkeys(KINDS, 0) | {"inputs": inputs_bytes}
    kept = {block.number for block in found.last}
    saved = {block.number for block in found.after_forward}
    for block in found.peak:
        if block.number in kept and block.holds(outputs):
            kind = "outputs"
        elif block.number in kept and block.holds(gradients):
            kind = "gradients"
        else:
            kind = "saved" if block.number in saved else "workspace"
        for one, size in mixed.get((kind, block.size), {kind: block.size}).items():
            kinds[one] += size
    return kinds


@dataclass(frozen=True)
class Allocated:
    """What a direction of a call allocates: bytes of its results, and by kind of what it leaves for the backward pass
    and of its scratch."""

    results: int
    left: dict[str, int]
    scratch: dict[str, int]

    @classmethod
    def by(cls, program: Program) -> Allocated:
        """What a program's call allocates."""
        results = sum(prod(x.shape) * x.dtype.itemsize for x in program.results if x is not None)
        left, scratch = _buffers(program, program.at_left), _buffers(program, program.at_left + 1)
        return cls(
            results,
            _contents(left, program.left_bytes, "saved"),
            _contents(_held_at_most(scratch), program.scratch_bytes, "workspace"),
        )


@dataclass(frozen=True)
class Buffer:
    """A tensor that launches share a block for. first, last: the launches between which it is needed; states: whether
    it has states, or their gradients."""

    size: int
    first: int
    last: int
    states: bool


def _buffers(program: Program, block: int) -> list[Buffer]:
    """The buffers that lie in one of a program's blocks."""
    uses: dict[int, list[tuple[int, str]]] = {}  # by the memory, launches and what they call it
    for number, launch in enumerate(program.launches):
        for name, x in launch.args.items():
            if isinstance(x, torch.Tensor):
                uses.setdefault(program.memory.add(x), []).append((number, name))
    return [
        Buffer(program.memory.bytes_of(one), at[0][0], at[-1][0], any(name in STATES for _, name in at))
        for one, at in uses.items()
        if program.places[one][0] == block
    ]


def _held_at_most(buffers: Sequence[Buffer]) -> list[Buffer]:
    """Those that are held at the launch for which they have most bytes. A launch may begin before the one before it is
    done, so each is held for a launch longer than it is needed."""
    moments = [[one for one in buffers if one.first <= begun.first <= one.last + 1] for begun in buffers]
    return max(moments, key=lambda held: sum(one.size for one in held), default=[])


def _contents(held: Sequence[Buffer], size: int, rest: str) -> dict[str, int]:
    """A block's bytes by kind: states, and the ``rest``, with what lies between buffers."""
    states = sum(one.size for one in held if one.states)
    return {"states": states, rest: size - states}


def allocated(system: System, case: Case, arch: str) -> list[Allocated]:
    """What each direction of the case's call allocates on a GPU of ``arch``, the forward one first; none for what is
    not ours, and for those of our functions whose buffers are not told apart here."""
    return [Allocated.by(program) for program in _programs(system, case, arch)]


def _programs(system: System, case: Case, arch: str) -> list[Program]:
    form = system.form_of(case, arch)
    if form is None or case.unplanned:
        return []
    from gla_kernels.ops.prepared import Prepared, PreparedStep  # needs Triton, as our kernels do

    given, meta = _given(case), torch.device("meta")
    if case.mode == "step":
        return [PreparedStep(given, 1.0, meta)._run.program]
    call = Prepared(form, given, case.initial_state, meta)
    forward = call._forward.program
    if case.mode == "fwd":
        return [forward]
    return [forward, call._backward_program(case.initial_state, tuple(x is not None for x in given))]


def _given(case: Case) -> CallInputs:
    """The tensors of the case's call, on the meta device."""
    from gla_kernels.ops.form import Inputs as CallInputs

    lead = (case.B, case.H) if case.mode == "step" else (case.B, case.T, case.H)
    q, k, v, g = (
        torch.empty(*lead, size, dtype=DTYPES[case.dtype], device="meta") for size in (case.K, case.K, case.V, case.K)
    )
    state = None
    if case.initial_state or case.mode == "step":
        state = torch.empty(case.B, case.H, case.K, case.V, device="meta")
    gates = None if case.gate_strength is None else g.to(DTYPES[case.gates])
    return CallInputs(q, k, v, gates, None, state)


def model(case: Case, directions: Sequence[Allocated]) -> dict[str, int] | None:
    """The kinds of a call whose directions allocate so much, at the peak; None for what nothing is known of."""
    if not directions:
        return None
    forward, *back = directions
    known = dict.fromkeys(KINDS, 0) | {"inputs": input_bytes(case), "outputs": forward.results}
    moments = [_sum(known, forward.left, forward.scratch)]
    moments += [_sum(known, {"gradients": one.results}, forward.left, one.scratch) for one in back]
    return max(moments, key=lambda kinds: sum(kinds.values()))


def _sum(*parts: Mapping[str, int]) -> dict[str, int]:
    return {kind: sum(part.get(kind, 0) for part in parts) for kind in KINDS}


def breakdown(system: System, case: Case, arch: str) -> dict[str, Any]:
    """The row's ``memory``: the peak of one call on the current CUDA device, by kind, and the model's.

    Inputs are all that was made for the call; modes bwd and fwdbwd are a forward and its backward. The second call
    counts: the first may autotune.
    """
    inputs = system.draw_inputs(case, "cuda")
    gradients = case.mode in ("bwd", "fwdbwd")
    run_once(system, inputs, case, gradients)
    torch.cuda.synchronize()
    given = inputs.with_grad() if gradients else inputs
    torch.cuda.memory._record_memory_history("all", context=None, stacks="python")
    try:
        before = len(_history())
        o, state = _forward(system, given, case, gradients)
        forward_ends = len(_history())
        found = oracle.collect(given, o, state, gradients)
        trace = _history()
    finally:
        torch.cuda.memory._record_memory_history(None)
    replayed = replay(trace[before:], forward_ends - before)
    outputs, taken = addresses(found)
    directions = allocated(system, case, arch)
    contents = [directions[0].left, directions[replayed.backward].scratch] if directions else []
    kinds = kinds_of(replayed, inputs.nbytes, outputs, taken, contents)
    return {"peak_bytes": sum(kinds.values()), "kinds": kinds, "model": model(case, directions)}


def _history() -> list[dict[str, Any]]:
    """What the allocator did on the current device since its history is recorded."""
    return torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]


def _forward(system: System, given: Inputs, case: Case, gradients: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
    with torch.set_grad_enabled(gradients):
        return system.step(given, case) if case.mode == "step" else system.forward(given, case)


def addresses(found: oracle.Outputs) -> tuple[list[int], list[int]]:
    """Of (outputs, gradients) among what a call returned by name."""
    at = [(name.startswith("d"), x.data_ptr()) for name, x in found.items()]  # gradients are named after inputs
    return [one for gradient, one in at if not gradient], [one for gradient, one in at if gradient]
