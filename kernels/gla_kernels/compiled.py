"""The functions under torch.compile: operators of PyTorch's own kind, around which no graph breaks.

An operator takes tensors, numbers and text. So the form that a call takes is settled while its graph is made, with
what it leaves for the backward pass, and handed to the operators as JSON: what runs later is what the graph was made
for, even if plans have been tuned since. It is settled by shape, so a new length makes a new graph.

What is wrong with a call is found there, too: an error in what is traced would have the compiler give up the function
that it is in for good, and trace what that calls.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from . import recurrent
from .autograd import Form, Given, laid_out
from .config import Schedule
from .launch import execute
from .validate import check_device, check_flag, check_scale, check_step, no_number, no_tensor, refuse_gradients

# (what is given, on what device, scale, schedule, whether there will be a backward pass, whether that computes states
# again) -> the form that a call takes
Maker = Callable[[Given, torch.device, float, Schedule | None, bool, bool], Form]
MAKERS: dict[str, Maker] = {}  # by the function's name
FORMS: dict[str, Callable[[float, dict[str, Any]], Form]] = {}  # by the form's name: scale and settings -> the form

STEP_AXES = 3  # of q in `api.gla_step`
Sort = tuple[tuple[int, ...], torch.dtype, torch.device] | str | None  # of a tensor, or what is wrong with it


def call(
    function: str, x: Given, scale: float | None, final: bool, schedule: Schedule | None = None, recompute: bool = False
) -> tuple[Tensor, Tensor | None]:
    """The function of that name in a graph that is being made: o, and the final state or None."""
    asked: Any = schedule
    if isinstance(schedule, Schedule):  # by its fields: torch 2.13 forgets some of an object that a graph makes
        asked = (schedule.chunk, schedule.sub_chunk, schedule.materialize, schedule.states_every)
    form = settled(function, _sorts(x), final, asked, x.requires_grad, recompute, _wrong(scale))
    o, *rest = _forward(*x.contiguous(), _factor(x, scale), final, form)
    return o, rest[0] if final else None


def call_step(x: Given, scale: float | None) -> Tensor:
    """`api.gla_step` in a graph that is being made; the state is ``x.initial_state``. Shapes are the operator's to look
    at: one graph serves batches of any size."""
    wrong = tuple(None if t is None and name in ("g", "gv") else no_tensor(t) for name, t in _named(x))
    step_settled(wrong, None if wrong[0] else x.q.dim(), x.requires_grad, _wrong(scale))
    return step(*x, _factor(x, scale))


def _named(x: Given) -> Iterator[tuple[str, Any]]:
    return zip(Given._fields, x, strict=True)


def _sorts(x: Given) -> tuple[Sort, ...]:
    return tuple(None if t is None and name not in ("q", "k", "v") else _sort(t) for name, t in _named(x))


def _sort(t: Any) -> Sort:
    return no_tensor(t) or (tuple(operator.index(n) for n in t.shape), t.dtype, t.device)


def _wrong(scale: float | None) -> str | None:
    """What is wrong with the scale but its value, which is checked as the graph runs: it may be an input."""
    return None if scale is None else no_number(scale)


def _factor(x: Given, scale: float | None) -> float:
    return float(x.q.shape[-1] ** -0.5) if scale is None else scale


def settled(
    function: str,
    sorts: Sequence[Sort],
    final: bool,
    asked: tuple[Any, ...] | None,
    differentiated: bool,
    recompute: bool,
    wrong_scale: str | None = None,
) -> str:
    """The form of a call, and the sorts of what it leaves for the backward pass, as JSON. asked: the fields of the
    schedule that is asked for. Raises ValueError as the call itself would."""
    with ThreadPoolExecutor(1) as aside:  # what torch.export does to tensors, it does to those of its own thread
        return aside.submit(_settled, function, sorts, final, asked, differentiated, recompute, wrong_scale).result()


def step_settled(wrong: Sequence[str | None], axes: int | None, differentiated: bool, wrong_scale: str | None) -> str:
    """Nothing, for a step that may be taken. wrong: of each argument, `no_tensor`; axes: of q. Raises ValueError as the
    call itself would."""
    for name, text in zip((*Given._fields[:-1], "state"), wrong, strict=True):
        _refuse(name, text)
    if axes != STEP_AXES:
        raise ValueError(f"q: expected {STEP_AXES} axes [B, H, K], got {axes}")
    refuse_gradients(differentiated)
    _refuse("scale", wrong_scale)
    return ""


# What torch.compiler.assume_constant_result does, but for importing torch._dynamo: two thirds of what it would take to
# import this package, and nobody needs it who compiles nothing.
settled._dynamo_marked_constant = step_settled._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _settled(
    function: str,
    sorts: Sequence[Sort],
    final: bool,
    asked: tuple[Any, ...] | None,
    differentiated: bool,
    recompute: bool,
    wrong_scale: str | None,
) -> str:
    schedule = Schedule(*asked) if isinstance(asked, tuple) else asked
    for name, sort in zip(Given._fields, sorts, strict=True):
        _refuse(name, sort if isinstance(sort, str) else None)
    x = Given(*(None if s is None else torch.empty(s[0], dtype=s[1], device="meta") for s in sorts))  # type: ignore[arg-type]
    check_flag("output_final_state", final)
    device = _device(sorts)
    form = MAKERS[function](x, device, 1.0, schedule, differentiated, recompute)
    _refuse("scale", wrong_scale)
    between = form.forward(x, final)[2] if differentiated else ()
    left = [None if t is None else [list(t.shape), str(t.dtype).removeprefix("torch.")] for t in between]
    return json.dumps({"form": form.name, "settings": form.settings, "between": left})


def _refuse(name: str, wrong: str | None) -> None:
    if wrong is not None:
        raise ValueError(f"{name}: {wrong}")


def _device(sorts: Sequence[Sort]) -> torch.device:
    """The one that all tensors are on. Raises ValueError."""
    devices = {name: sort[2] for name, sort in zip(Given._fields, sorts, strict=True) if isinstance(sort, tuple)}
    for name, device in devices.items():
        if device != devices["q"]:
            raise ValueError(f"{name}: expected device {devices['q']} as of q, got {device}")
    check_device(devices["q"])
    return devices["q"]


@lru_cache(maxsize=1024)
def _form(text: str, scale: float) -> tuple[Form, list[Any]]:
    found = json.loads(text)
    return FORMS[found["form"]](scale, found["settings"]), found["between"]


@torch.library.custom_op("gla_kernels::forward", mutates_args=())
def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    gv: Tensor | None,
    initial_state: Tensor | None,
    scale: float,
    final: bool,
    form: str,
) -> list[Tensor]:
    """o, the final state if ``final``, and what is left for the backward pass; an empty tensor for a None there."""
    x = Given(q, k, v, g, gv, initial_state).contiguous()
    runs, left = _form(form, check_scale(scale, q.shape[-1]))
    o, final_state, between = runs.forward(x, final)
    results = [o, final_state] if final else [o]
    return _owned([*results, *(between if left else ())], x)


def _owned(results: Sequence[Any], given: Sequence[Tensor | None]) -> list[Tensor]:
    """The results as an operator may return them: none twice, and nothing that it was given."""
    found: list[Tensor] = []
    for tensor in results:
        if tensor is None:
            found.append(results[0].new_empty(0))
        elif any(tensor is other for other in (*given, *found)):
            found.append(tensor.clone())
        else:
            found.append(tensor)
    return found


@_forward.register_fake
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    gv: Tensor | None,
    initial_state: Tensor | None,
    scale: float,
    final: bool,
    form: str,
) -> list[Tensor]:
    B, _, H, K = q.shape
    found = [v.new_empty(v.shape)]
    if final:
        found.append(q.new_empty(B, H, K, v.shape[-1], dtype=torch.float32))
    for sort in _form(form, 1.0)[1]:
        shape, dtype = sort or (0, "float32")
        found.append(q.new_empty(shape, dtype=getattr(torch, dtype)))
    return found


@torch.library.custom_op("gla_kernels::backward", mutates_args=())
def _backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    gv: Tensor | None,
    initial_state: Tensor | None,
    between: list[Tensor],
    do: Tensor,
    d_final: Tensor | None,
    needed: list[bool],
    scale: float,
    form: str,
) -> list[Tensor]:
    """The gradients that are needed, in the order of the inputs."""
    x = Given(q, k, v, g, gv, initial_state).contiguous()
    runs, left = _form(form, scale)
    saved = tuple(None if sort is None else tensor for sort, tensor in zip(left, between, strict=True))
    d_final = None if d_final is None else laid_out(d_final)
    grads = runs.backward(x, saved, laid_out(do), d_final, needed)
    return _owned([grad for grad, wanted in zip(grads, needed, strict=True) if wanted], (*x, *between, do, d_final))


@_backward.register_fake
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    gv: Tensor | None,
    initial_state: Tensor | None,
    between: list[Tensor],
    do: Tensor,
    d_final: Tensor | None,
    needed: list[bool],
    scale: float,
    form: str,
) -> list[Tensor]:
    given = (q, k, v, g, gv, initial_state)
    return [x.new_empty(x.shape) for x, wanted in zip(given, needed, strict=True) if wanted and x is not None]


def _save(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    *given, ctx.scale, ctx.final, ctx.form = inputs
    ctx.save_for_backward(*given, *output[1 + ctx.final :])


def _gradients(ctx: Any, grads: list[Tensor]) -> tuple[Any, ...]:
    saved = ctx.saved_tensors  # read once: a checkpoint hands them out once
    given, between = saved[:6], list(saved[6:])
    needed = [bool(wanted) for wanted in ctx.needs_input_grad[:6]]
    d_final = grads[1] if ctx.final else None
    found = iter(_backward(*given, between, grads[0], d_final, needed, ctx.scale, ctx.form))
    return *(next(found) if wanted else None for wanted in needed), None, None, None


_forward.register_autograd(_gradients, setup_context=_save)


@torch.library.custom_op("gla_kernels::step", mutates_args=("state",))
def step(q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, gv: Tensor | None, state: Tensor, scale: float) -> Tensor:
    """One token of decoding, as `api.gla_step`."""
    x = Given(q, k, v, g, gv, None).contiguous()
    return recurrent.step(x.q, x.k, x.v, x.g, state, check_scale(scale, q.shape[-1]), execute, x.gv)


@step.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, gv: Tensor | None, state: Tensor, scale: float) -> Tensor:
    check_step(q, k, v, g, gv, state)
    return v.new_empty(v.shape)
