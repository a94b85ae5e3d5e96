"""Every launch of every shipped plan, and of calls that no plan is shipped for, as lines of text, on meta tensors."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch

from gla_kernels import Machine, Plan, Schedule, Workload, chosen
from gla_kernels.launch import Launch
from gla_kernels.ops import gla, simple_gla
from gla_kernels.plan.apply import DTYPES, all_launches
from gla_kernels.plan.limits import why_not
from gla_kernels.plan.table import Table
from glabench.hardware.crosscompile import kernel_key

CAPABILITIES = (80, 90)
DIGITS = 16

# Calls that shipped plans say nothing of. B, T, H, K, V, and the type: short and long, many heads, odd head dimensions.
CASES = (
    ((2, 1000, 3, 64, 128), "bf16"), ((2, 1000, 3, 64, 128), "fp16"), ((2, 1000, 3, 64, 128), "fp32"),
    ((1, 300, 2, 50, 72), "bf16"), ((1, 20_000, 2, 128, 128), "bf16"), ((1, 4096, 96, 128, 128), "bf16"),
)  # fmt: skip
SCHEDULES = (None, Schedule(64, materialize=False), Schedule(32, 16), Schedule(128, 64))
VALUE_GATED = {"gated": False, "value_gated": True}


@dataclass(frozen=True)
class Listed:
    """A launch: for which compute capability, and its line."""

    capability: int
    line: str
    launch: Launch

    @property
    def kernel(self) -> tuple[int, str]:
        """What is compiled."""
        return self.capability, kernel_key(self.launch)


def shipped(tables: Iterable[Table], capabilities: Sequence[int] = CAPABILITIES) -> Iterator[Listed]:
    """The launches of all entries: by the entry's plan where a GPU of the capability can run it ("tuned"), else by the
    plan that `chosen` has for such a GPU. For the backward pass once with what the forward one keeps, once without."""
    works: dict[tuple[Workload, Plan], None] = {(entry.work, entry.plan): None for t in tables for entry in t.entries}
    for capability, (work, tuned) in product(capabilities, works):
        fits = why_not(tuned, work, capability) is None
        plan = tuned if fits else chosen(work, Machine(capability)).plan
        for keep, state in product((True, False), (True, False)):
            how = f"{'kept' if keep else 'not kept'}, {'a state' if state else 'no state'}"
            about = f"{_asked(work)} {'tuned' if fits else 'chosen'} {plan_id(plan)} ({how})"
            yield from _lines(capability, about, all_launches(work, plan, state, plan if keep else None, keep))


def others(capabilities: Sequence[int] = CAPABILITIES) -> Iterator[Listed]:
    """The launches of calls of every function of the package, with each kind of gate and schedule: forward without a
    state, and both directions with one."""
    for capability, (shape, dtype), (name, call, asked) in product(capabilities, CASES, _calls()):
        sizes = dict(zip("BTHKV", shape, strict=True))
        for mode, state in (("step", True),) if "gla_step" in name else (("fwd", False), ("fwdbwd", True)):
            given = {**sizes, "dtype": DTYPES[dtype], "mode": mode, "initial_state": state, "capability": capability}
            about = f"{name} {'x'.join(map(str, shape))} {dtype} ({mode}, {'a state' if state else 'no state'})"
            yield from _lines(capability, about, call(**given, **asked))


def _calls() -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Functions, and what else they are asked for."""
    for schedule in SCHEDULES:
        for gates in ({"gated": True}, {"gated": False}):
            yield f"gla {gates} {_schedule(schedule)}", gla.launches, {"op": "gla", "schedule": schedule, **gates}
        yield f"simple_gla {_schedule(schedule)}", simple_gla.launches, {"schedule": schedule}
    for schedule in SCHEDULES[:3]:
        for gates in (VALUE_GATED, {**VALUE_GATED, "gated": True}):
            yield f"gla {gates} {_schedule(schedule)}", gla.launches, {"op": "gla", "schedule": schedule, **gates}
    for op in ("gla_recurrent", "gla_step"):
        for gates in ({"gated": True}, {"gated": False}, VALUE_GATED):
            yield f"{op} {gates}", gla.launches, {"op": op, **gates}


def _lines(capability: int, about: str, launches: Iterable[Launch]) -> Iterator[Listed]:
    memory: dict[int, int] = {}  # of tensors, numbered as launches come to them
    for number, launch in enumerate(launches):
        yield Listed(capability, f"sm_{capability} {about} {number:03} {_described(launch, memory)}", launch)


def plan_id(plan: Plan) -> str:
    """Eight hex digits."""
    return digest(json.dumps(plan.to_dict(), sort_keys=True))[:8]


def digest(text: str) -> str:
    """Sixteen hex digits."""
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def _asked(work: Workload) -> str:
    shape = "x".join(map(str, (work.B, work.T, work.H, work.K, work.V)))
    gates = f"gated in {work.gate_dtype}" if work.gate_dtype else "gated" if work.gated else "ungated"
    return f"{work.direction} {shape} {work.dtype} {gates} {_schedule(work.schedule)}"


def _schedule(schedule: Schedule | None) -> str:
    return "any" if schedule is None else json.dumps(list(vars(schedule).values()), separators=(",", ":"))


def _described(launch: Launch, memory: dict[int, int]) -> str:
    """Name and grid | settings | constants | blocks of descriptors | arguments in the kernel's order."""
    settings = {
        **launch.options,
        "max_registers": launch.max_registers,
        "early": launch.early,
        "gluon": launch.in_gluon,
    }
    args = {name: launch.args[name] for name in launch.kernel.arg_names if name in launch.args}
    parts = (
        f"{launch.name}{list(launch.grid)}",
        _pairs(settings),
        _pairs({name: launch.constants[name] for name in sorted(launch.constants)}),
        _pairs({name: launch.blocks[name] for name in sorted(launch.blocks)}),
        " ".join(f"{name}={_value(x, memory)}" for name, x in args.items()),
    )
    return " | ".join(parts)


def _pairs(values: dict[str, Any]) -> str:
    return " ".join(f"{name}={str(value).replace(' ', '')}" for name, value in values.items())


def _value(x: object, memory: dict[int, int]) -> str:
    if not isinstance(x, torch.Tensor):
        return repr(x)
    at = memory.setdefault(x.untyped_storage()._cdata, len(memory))
    dtype = str(x.dtype).removeprefix("torch.")
    return f"{dtype}{list(x.shape)}{list(x.stride())}@{at}+{x.storage_offset()}".replace(" ", "")
