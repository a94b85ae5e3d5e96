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
from glabench.run.inputs import Inputs, input_bytes, inputs_for
from glabench.spec.case import DTYPE_BYTES, Case
from glabench.systems.base import System

if TYPE_CHECKING:
    from gla_kernels.launch import Launch

KINDS = ("inputs", "outputs", "gradients", "states", "saved", "workspace")
STATE_FUNCTIONS = {"state_buffer", "boundary_buffer", "handed_buffer"}  # of gla_kernels.chunk, which allocate states

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
BOUNDARIES = ("p_s0", "p_st", "p_dst", "p_ds0")  # states, where they are those between slices that take turns


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
    what is not ours."""
    launches = launches_of(system, case, arch)
    if not launches:
        return None
    state = 4 * case.B * case.H * case.K * case.V if case.initial_state and case.mode != "step" else 0
    rows = case.B * case.H * (1 if case.mode == "step" else case.T)
    known = {"inputs": input_bytes(case), "outputs": rows * case.V * DTYPE_BYTES[case.dtype] + state}
    directions = [_tensors([launch for d, launch in launches if d == direction]) for direction in ("fwd", "bwd")]
    return max(directions, key=lambda kinds: sum(kinds.values())) | known


def _tensors(launches: Sequence[Launch]) -> dict[str, int]:
    """Bytes by kind of a direction's tensors, each counted once."""
    kinds, seen = dict.fromkeys(KINDS, 0), set[int]()
    made = any(launch.step == "walk" or launch.constexprs.get("STORE_H") for launch in launches)
    kept = {} if made else {"p_h": "saved"}  # by the forward pass
    for launch in launches:
        states = dict.fromkeys(STATE_TENSORS.get(launch.step, ()), "states")
        between = {name: "states" for name in BOUNDARIES if (x := launch.args.get(name)) is not None and x._is_view()}
        for name, kind in (MODEL_KINDS | kept | states | between).items():
            tensor = launch.args.get(name)
            if isinstance(tensor, torch.Tensor) and name in between:
                tensor = tensor._base
            if isinstance(tensor, torch.Tensor) and id(tensor) not in seen:
                seen.add(id(tensor))
                kinds[kind] += tensor.numel() * tensor.element_size()
    return kinds


def breakdown(system: System, case: Case, arch: str) -> dict[str, Any]:
    """The row's ``memory``: the peak of one call on the current CUDA device, by kind, and the model's.

    Inputs are all that was made for the call; modes bwd and fwdbwd are a forward and its backward. The second call
    counts: the first may autotune.
    """
    inputs = inputs_for(system, case, "cuda")
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
