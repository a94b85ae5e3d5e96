"""What the peak memory of one call is made of: the allocator's history, replayed to the moment of the peak.

Sizes are those that tensors asked for; the allocator rounds each up to 512 bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from glabench.profile.kernels import launches_of
from glabench.run import oracle
from glabench.run.gate import run_once
from glabench.spec.case import DTYPE_BYTES, Case
from glabench.systems.base import System
from glabench.systems.inputs import Inputs, input_bytes

if TYPE_CHECKING:
    from gla_kernels.launch import Launch

KINDS = ("inputs", "outputs", "gradients", "states", "saved", "workspace")
# Of gla_kernels.chunk, which allocate states
STATE_FUNCTIONS = {"state_buffer", "boundary_buffer", "handed_buffer", "carried"}

# What our kernels' tensors are to the call; inputs and outputs follow from its shape, states go by who writes them.
MODEL_KINDS = {
    "p_dq": "gradients",
    "p_dk": "gradients",
    "p_dv": "gradients",
    "p_dg": "gradients",
    "p_ds0": "gradients",
    "p_qdq": "workspace",
    "p_h": "workspace",
    "p_gamma": "workspace",
}
# Which tensors of a pass are states; grad_qk has the forward pass's, where those were kept.
STATE_TENSORS = {
    "states": ("p_s",),
    "combine": ("p_s",),
    "walk": ("p_s",),
    "grad_states": ("p_ds",),
    "grad_walk": ("p_ds",),
    "grad_qk": ("p_s",),
}
CARRIED = {"p_s0": "p_st", "p_dst": "p_ds0"}  # states that slices which take turns carry on in place


@dataclass(frozen=True)
class Block:
    """A piece of memory that a call allocated. number: of the allocation in the history."""

    number: int
    address: int
    size: int
    states: bool

    def holds(self, addresses: Collection[int]) -> bool:
        return any(self.address <= one < self.address + self.size for one in addresses)


@dataclass(frozen=True)
class Replayed:
    """The history's blocks: at the peak, when the forward had ended, and at the end."""

    peak: tuple[Block, ...]
    after_forward: tuple[Block, ...]
    last: tuple[Block, ...]


def replay(trace: Sequence[Mapping[str, Any]], forward_ends: int) -> Replayed:
    """Follow allocations and frees. ``trace``: as torch.cuda.memory._snapshot() gives it; ``forward_ends``: how many of
    its entries are of the forward. A free of what was there before is none of the call's."""
    live: dict[int, Block] = {}
    total, most = 0, 0
    peak: tuple[Block, ...] = ()
    after_forward: tuple[Block, ...] = ()
    for number, entry in enumerate(trace):
        if number == forward_ends:
            after_forward = tuple(live.values())
        address = entry.get("addr", 0)
        if entry["action"] == "alloc":
            live[address] = Block(number, address, entry["size"], _allocates_states(entry.get("frames") or ()))
            total += entry["size"]
        elif entry["action"] == "free_requested" and address in live:
            total -= live.pop(address).size
        if total > most:
            most, peak = total, tuple(live.values())
    last = tuple(live.values())
    return Replayed(peak, after_forward if forward_ends < len(trace) else last, last)


def _allocates_states(frames: Iterable[Mapping[str, Any]]) -> bool:
    return any(frame["name"] in STATE_FUNCTIONS and "gla_kernels" in frame["filename"] for frame in frames)


def kinds_of(
    found: Replayed, inputs_bytes: int, outputs: Collection[int], gradients: Collection[int]
) -> dict[str, int]:
    """Bytes at the peak by kind. outputs, gradients: addresses of what the call returned."""
    kinds = dict.fromkeys(KINDS, 0) | {"inputs": inputs_bytes}
    kept = {block.number for block in found.last}
    saved = {block.number for block in found.after_forward}
    for block in found.peak:
        if block.number in kept and block.holds(outputs):
            kind = "outputs"
        elif block.number in kept and block.holds(gradients):
            kind = "gradients"
        elif block.states:
            kind = "states"
        else:
            kind = "saved" if block.number in saved else "workspace"
        kinds[kind] += block.size
    return kinds


def model(system: System, case: Case, arch: str) -> dict[str, int] | None:
    """The kinds by the launches' tensors: those of the direction that needs more, beside inputs and outputs. None for
    what is not ours, and for those of our kernels whose tensors are not known here."""
    launches = launches_of(system, case, arch)
    if not launches:
        return None
    from gla_kernels import counts  # needs Triton, as our kernels do

    if any(launch.step not in counts.KERNELS for _, launch in launches):
        return None
    state = 4 * case.B * case.H * case.K * case.V if case.initial_state and case.mode != "step" else 0
    rows = case.B * case.H * (1 if case.mode == "step" else case.T)
    known = {"inputs": input_bytes(case), "outputs": rows * case.V * DTYPE_BYTES[case.dtype] + state}
    directions = [
        _tensors([launch for d, launch in launches if d == direction], case.initial_state)
        for direction in ("fwd", "bwd")
    ]
    return max(directions, key=lambda kinds: sum(kinds.values())) | known


def _tensors(launches: Sequence[Launch], results: bool) -> dict[str, int]:
    """Bytes by kind of a direction's tensors, each counted once; of groups of heads that take turns, the first one's.
    results: whether states that slices carry on are the caller's in the end."""
    kinds, seen = dict.fromkeys(KINDS, 0), set[int]()
    made = any(launch.step == "walk" or launch.constexprs.get("STORE_H") for launch in launches)
    kept = {} if made else {"p_h": "saved"}  # by the forward pass
    for launch in filter(_of_the_first_heads, launches):
        states = dict.fromkeys(STATE_TENSORS.get(launch.step, ()), "states")
        for name, kind in (MODEL_KINDS | kept | states | _between(launch, results)).items():
            tensor = launch.args.get(name)
            if isinstance(tensor, torch.Tensor) and tensor._is_view():
                tensor = tensor._base
            if isinstance(tensor, torch.Tensor) and id(tensor) not in seen:
                seen.add(id(tensor))
                kinds[kind] += tensor.numel() * tensor.element_size()
    return kinds


def _of_the_first_heads(launch: Launch) -> bool:
    rows = (launch.args.get(name) for name in ("p_q", "p_k"))
    return all(x.storage_offset() == 0 for x in rows if isinstance(x, torch.Tensor))


def _between(launch: Launch, results: bool) -> dict[str, str]:
    """Which of a launch's tensors are states between slices: one of those that were kept, or one that is carried on."""
    args, found = launch.args, set[str]()
    start = args.get("p_s0")
    if start is not None and start._is_view() and start._base.dim() > start.dim():
        found.add("p_s0")
    for start_name, end_name in CARRIED.items():
        if not results and args.get(start_name) is args.get(end_name):
            found |= {start_name, end_name}
    return dict.fromkeys(found, "states")


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
    torch.cuda.memory._record_memory_history("all", context="alloc", stacks="python")
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
    kinds = kinds_of(replayed, inputs.nbytes, outputs, taken)
    return {"peak_bytes": sum(kinds.values()), "kinds": kinds, "model": model(system, case, arch)}


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
