"""The functions as operators of PyTorch's own kind: inside torch.compile, where no graph breaks around them, and on
tensors that are not plain (FakeTensor, those of torch.func), which know what to do with an operator. Here is what is
done as a graph is made; the operators are in operators.py.

What a call asks for is handed to its operator as JSON (`settled`). What a forward pass leaves for the backward one has
a size that the graph can work out (`room_of`).

What is wrong with a call is found while its graph is made: an error in what is traced would have the compiler give up
the function that it is in for good, and trace what that calls.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from ..chunk.parted import least_run
from ..launch.record import ALIGNMENT
from ..plan.choose import machine_of
from ..schedule import HOPPER, WALKED_K, WGMMA_ROWS, Schedule
from .form import Inputs, no_tangents
from .operators import MAKERS, Call, asked_for, step
from .validate import check_device, check_flag, no_number, no_tensor, refuse_gradients

STEP_AXES = 3  # of q in `gla.gla_step`
STAND_IN = (2, 3)  # for B and T, which a graph need not know, or for sequences and T where they are packed
Sort = tuple[tuple[int, ...], torch.dtype, torch.device] | str  # of a tensor, or what is wrong with it


def call(
    function: str,
    x: Inputs,
    scale: float | None,
    final: bool,
    schedule: Schedule | None = None,
    recompute: bool | None = None,
    v_first: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """The function of that name in a graph that is being made: o, and the final state or None."""
    _refuse_transforms(function)
    asked: Any = schedule
    if isinstance(schedule, Schedule):  # by its fields: torch 2.13 forgets some of an object that a graph makes
        asked = (schedule.chunk, schedule.sub_chunk, schedule.materialize, schedule.states_every)
    # a graph of torch.func.grad does not say of a tensor that it wants a gradient
    wanted = x.requires_grad or (torch.is_grad_enabled() and torch._C._are_functorch_transforms_active())
    text = settled(function, _sorts(x), final, asked, wanted, recompute, v_first, _wrong(scale))
    room = room_of(function, x, asked, recompute) if wanted and recompute is not True else 0
    rows = list(x.rows)
    given = _distinct([t if t is None or i in rows else t.contiguous() for i, t in enumerate(x)])
    how = _factor(x, scale), final, room, text
    # outside of a graph a function of autograd, in any case: it refuses what the operator would ignore, torch.func.jvp
    by_autograd = wanted or not torch.compiler.is_compiling()
    found = Call.apply(*given, rows, *how) if by_autograd else torch.ops.gla_kernels.forward(*given, rows, *how)
    return found[0], found[1] if final else None


def _refuse_transforms(function: str) -> None:
    """NotImplementedError inside transforms of torch.func that the functions of autograd here have no rule for. A graph
    that is being compiled has none of these, and a function with a rule for forward mode breaks it."""
    if torch.compiler.is_compiling() or not torch._C._are_functorch_transforms_active():
        return
    kinds = torch._C._functorch.TransformType
    active = [level.key() for level in torch._C._functorch.get_interpreter_stack() or ()]
    if kinds.Jvp in active:
        no_tangents()
    if kinds.Functionalize in active:
        raise NotImplementedError(f"{function} has no rule for torch.func.functionalize; expected a call outside of it")


def _distinct(given: list[Tensor | None]) -> list[Tensor | None]:
    """The tensors, none of them twice: a graph takes no tensor for several inputs of a function of autograd."""
    found: list[Tensor | None] = []
    for x in given:
        again = x is not None and any(x is other for other in found)
        found.append(x.view(x.shape) if again and x is not None else x)
    return found


def room_of(function: str, x: Inputs, asked: tuple[Any, ...] | None, recompute: bool | None) -> int:
    """Bytes that what a forward pass leaves may take; of numbers that a graph need not know. asked: the fields of the
    schedule that is asked for."""
    if function == "gla_recurrent":
        return 0
    B, T, H, K = x.q.shape
    V, chunk = x.v.shape[-1], 64 if asked is None else asked[0]
    kept = asked is None or asked[2]
    gates = None if x.g is None or x.gv is not None else x.g.dtype
    if function == "gla" and recompute is None and leads_along(x.q.device, (x.q.dtype, gates), K, V, asked):
        chunks = (T + WGMMA_ROWS - 1) // WGMMA_ROWS
        runs = (chunks + least_run(K, V) - 1) // least_run(K, V)
        return B * H * (runs * K * V * 2 + chunks * K * 4) + 2 * ALIGNMENT
    heads, chunks = B * H, (T + chunk - 1) // chunk + 1
    states = heads * chunks * K * V * (2 if x.q.dtype == torch.bfloat16 else 4) if kept else 0
    if function == "simple_gla":  # and its sums of gates, in float64
        return states + heads * chunks * chunk * 8 + 2 * ALIGNMENT
    if x.gv is not None and x.cu_seqlens is None and _rides(x, asked):  # u, what o is off by, decays of both sides
        in_frames = 0 if x.gv.dtype == torch.bfloat16 else 2  # and o there, where it is no result
        return states + (3 + in_frames) * B * T * H * V + 4 * heads * chunks * (K + 2 * V) + 7 * ALIGNMENT
    if x.gv is not None:  # and the state before the first chunk
        return states + heads * K * V * 4 + 2 * ALIGNMENT if kept else 0
    # and half of the decay of each row block, of 32 rows or more
    return states + heads * 2 * chunks * (chunk // 64 + 1) * K * 4 + 2 * ALIGNMENT if kept else 0


def leads_along(device: torch.device, dtypes: tuple[Any, Any], K: int, V: int, asked: tuple[Any, ...] | None) -> bool:
    """Whether a backward pass leads states along, and the forward one leaves few of them, as plans have it by default:
    `Problem.states_apart`. dtypes: of q, and of gates on the key side alone."""
    if device.type != "cuda" or machine_of(device).capability != HOPPER:
        return False
    ordinary = asked is None or (asked[0] == WGMMA_ROWS and asked[2])
    return ordinary and dtypes[0] == torch.bfloat16 and dtypes[1] is not None and K % WGMMA_ROWS == V % WGMMA_ROWS == 0


def _rides(x: Inputs, asked: tuple[Any, ...] | None) -> bool:
    """Whether gates of the value side may ride on walks of `gla`: value_gates/by_walks.py."""
    dtypes, K = (x.q.dtype, None if x.g is None else x.g.dtype), x.q.shape[-1]
    one_level = asked is None or asked[1] in (None, WGMMA_ROWS)
    return one_level and K <= WALKED_K and leads_along(x.q.device, dtypes, K, x.v.shape[-1], asked)


def call_step(x: Inputs, scale: float | None, v_first: bool) -> Tensor:
    """`gla.gla_step` in a graph that is being made; the state is ``x.initial_state``. Shapes are the operator's to look
    at: one graph serves batches of any size."""
    _refuse_transforms("gla_step")
    given = list(_named(x))[:-1]
    wrong = tuple(None if t is None and name in ("g", "gv") else no_tensor(t) for name, t in given)
    step_settled(wrong, None if wrong[0] else x.q.dim(), x.requires_grad, v_first, _wrong(scale))
    return step(*(t for _, t in given), _factor(x, scale), v_first)


def _named(x: Inputs) -> Iterator[tuple[str, Any]]:
    return zip(Inputs._fields, x, strict=True)


def _sorts(x: Inputs) -> tuple[Sort | None, ...]:
    """The sort of each tensor. B and T, or how many sequences are packed and T, are stood in for where all tensors
    agree on them, so that a graph need not know them."""
    needed = [(name, t) for name, t in _named(x) if t is not None or name in ("q", "k", "v")]
    alike = all(no_tensor(t) is None and _agrees(name, t, x) for name, t in needed)
    sorts = {name: _sort(t, _stands_in(name, x.cu_seqlens is not None) if alike else ()) for name, t in needed}
    return tuple(sorts.get(name) for name in Inputs._fields)


def _agrees(name: str, t: Tensor, x: Inputs) -> bool:
    """Whether a tensor's first axes are as q and cu_seqlens have them."""
    if name == "cu_seqlens":
        return t.dim() == 1 and x.q.dim() > 1 and x.q.shape[0] == 1
    if name != "initial_state":
        return t.shape[:2] == x.q.shape[:2]
    if x.cu_seqlens is not None:
        return t.dim() > 0 and t.shape[0] == x.cu_seqlens.shape[0] - 1
    return t.shape[:1] == x.q.shape[:1]


def _stands_in(name: str, packed: bool) -> tuple[int, ...]:
    """What stands in for a tensor's first axes."""
    n, T = STAND_IN
    rows = (1 if packed else n, T)
    return {"initial_state": (n,), "cu_seqlens": (n + 1,)}.get(name, rows)


def _sort(t: Any, lead: tuple[int, ...]) -> Sort:
    wrong = no_tensor(t)
    if wrong is not None:
        return wrong
    return (*lead, *(operator.index(n) for n in t.shape[len(lead) :])), t.dtype, t.device


def _wrong(scale: float | None) -> str | None:
    """What is wrong with the scale but its value, which is checked as the graph runs: it may be an input."""
    return None if scale is None else no_number(scale)


def _factor(x: Inputs, scale: float | None) -> float:
    return float(x.q.shape[-1] ** -0.5) if scale is None else scale


def settled(
    function: str,
    sorts: Sequence[Sort | None],
    final: bool,
    asked: tuple[Any, ...] | None,
    differentiated: bool,
    recompute: bool | None,
    v_first: bool = False,
    wrong_scale: str | None = None,
) -> str:
    """The demands of a call, as JSON. asked: the fields of the schedule that is asked for. Raises ValueError as the
    call itself would."""
    with ThreadPoolExecutor(1) as aside:  # what torch.export does to tensors, it does to those of its own thread
        aside.submit(_check, function, sorts, final, asked, differentiated, recompute, v_first, wrong_scale).result()
    tensors = [None if sort is None else (list(sort[0]), str(sort[1])) for sort in sorts]  # but for B and T
    told = {"function": function, "schedule": asked, "differentiated": differentiated, "recompute": recompute}
    return json.dumps(told | {"state_v_first": v_first, "tensors": tensors})


def step_settled(
    wrong: Sequence[str | None], axes: int | None, differentiated: bool, v_first: bool, wrong_scale: str | None
) -> str:
    """Nothing, for a step that may be taken. wrong: of each argument, `no_tensor`; axes: of q. Raises ValueError as the
    call itself would."""
    for name, text in zip((*Inputs._fields[:5], "state"), wrong, strict=True):
        _refuse(name, text)
    if axes != STEP_AXES:
        raise ValueError(f"q: expected {STEP_AXES} axes [B, H, K], got {axes}")
    refuse_gradients(differentiated)
    check_flag("state_v_first", v_first)
    _refuse("scale", wrong_scale)
    return ""


# What torch.compiler.assume_constant_result does, but for importing torch._dynamo: two thirds of what it would take to
# import this package, and nobody needs it who compiles nothing.
settled._dynamo_marked_constant = step_settled._dynamo_marked_constant = True  # type: ignore[attr-defined]
leads_along._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _check(
    function: str,
    sorts: Sequence[Sort | None],
    final: bool,
    asked: tuple[Any, ...] | None,
    differentiated: bool,
    recompute: bool | None,
    v_first: bool,
    wrong_scale: str | None,
) -> None:
    """Raises ValueError as the call itself would."""
    for name, sort in zip(Inputs._fields, sorts, strict=True):
        _refuse(name, sort if isinstance(sort, str) else None)
    x = Inputs(*(None if s is None else torch.empty(s[0], dtype=s[1], device="meta") for s in sorts))  # type: ignore[arg-type]
    check_flag("output_final_state", final)
    check_flag("state_v_first", v_first)
    MAKERS[function](x, _device(sorts), 1.0, asked_for(asked), differentiated, recompute, v_first)
    _refuse("scale", wrong_scale)


def _refuse(name: str, wrong: str | None) -> None:
    if wrong is not None:
        raise ValueError(f"{name}: {wrong}")


def _device(sorts: Sequence[Sort | None]) -> torch.device:
    """The one that all tensors are on. Raises ValueError."""
    devices = {name: sort[2] for name, sort in zip(Inputs._fields, sorts, strict=True) if isinstance(sort, tuple)}
    for name, device in devices.items():
        if device != devices["q"]:
            raise ValueError(f"{name}: expected device {devices['q']} as of q, got {device}")
    check_device(devices["q"])
    return devices["q"]
