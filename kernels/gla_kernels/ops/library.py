"""The functions as operators of PyTorch's own kind: inside torch.compile, where no graph breaks around them, and on
tensors that are not plain (FakeTensor, those of torch.func), which know what to do with an operator.

An operator takes tensors, numbers and text. What a call asks for is handed to it as JSON; which plan that comes to is
settled when it runs, by the shapes that it meets then, as in a call without a graph. So one graph serves all batches
and lengths, where they are marked as dynamic. What a forward pass leaves for the backward one has a size that the graph
can work out (`room_of`); a plan that needs more leaves nothing, and its backward pass computes that again.

What is wrong with a call is found while its graph is made: an error in what is traced would have the compiler give up
the function that it is in for good, and trace what that calls.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from .. import recurrent
from ..chunk.problem import least_run
from ..launch import execute
from ..launch.record import ALIGNMENT
from ..plan import choose
from ..plan.choose import machine_of
from ..schedule import HOPPER, WGMMA_ROWS, Schedule
from .form import Form, Inputs, laid_out
from .prepared import Prepared
from .signature import prepared
from .validate import check_device, check_flag, check_scale, check_step, no_number, no_tensor, refuse_gradients

# (inputs, on what device, scale, schedule, whether there will be a backward pass, `recompute` as in `gla.gla`) -> the
# form that a call takes
Maker = Callable[[Inputs, torch.device, float, Schedule | None, bool, bool | None], Form]
MAKERS: dict[str, Maker] = {}  # by the function's name

STEP_AXES = 3  # of q in `gla.gla_step`
STAND_IN = (2, 3)  # for B and T, which a graph need not know
Sort = tuple[tuple[int, ...], torch.dtype, torch.device] | str  # of a tensor, or what is wrong with it


def call(
    function: str,
    x: Inputs,
    scale: float | None,
    final: bool,
    schedule: Schedule | None = None,
    recompute: bool | None = None,
) -> tuple[Tensor, Tensor | None]:
    """The function of that name in a graph that is being made: o, and the final state or None."""
    asked: Any = schedule
    if isinstance(schedule, Schedule):  # by its fields: torch 2.13 forgets some of an object that a graph makes
        asked = (schedule.chunk, schedule.sub_chunk, schedule.materialize, schedule.states_every)
    wanted = x.requires_grad
    text = settled(function, _sorts(x), final, asked, wanted, recompute, _wrong(scale))
    room = room_of(function, x, asked, recompute) if wanted and recompute is not True else 0
    rows = list(x.rows)
    given = _distinct([t if t is None or i in rows else t.contiguous() for i, t in enumerate(x)])
    how = _factor(x, scale), final, room, text
    # outside of a graph a function of autograd, in any case: it refuses what the operator would ignore, torch.func.jvp
    by_autograd = wanted or not torch.compiler.is_compiling()
    found = _Call.apply(*given, rows, *how) if by_autograd else torch.ops.gla_kernels.forward(*given, rows, *how)
    return found[0], found[1] if final else None


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
    return ordinary and dtypes == (torch.bfloat16, torch.bfloat16) and K % WGMMA_ROWS == V % WGMMA_ROWS == 0


def call_step(x: Inputs, scale: float | None) -> Tensor:
    """`gla.gla_step` in a graph that is being made; the state is ``x.initial_state``. Shapes are the operator's to look
    at: one graph serves batches of any size."""
    wrong = tuple(None if t is None and name in ("g", "gv") else no_tensor(t) for name, t in _named(x))
    step_settled(wrong, None if wrong[0] else x.q.dim(), x.requires_grad, _wrong(scale))
    return step(*x, _factor(x, scale))


def _named(x: Inputs) -> Iterator[tuple[str, Any]]:
    return zip(Inputs._fields, x, strict=True)


def _sorts(x: Inputs) -> tuple[Sort | None, ...]:
    """The sort of each tensor. B and T are stood in for where all tensors agree on them, so that a graph need not know
    them."""
    needed = [(name, t) for name, t in _named(x) if t is not None or name in ("q", "k", "v")]
    alike = all(no_tensor(t) is None and _leads(name, t) == _leads(name, x.q) for name, t in needed)
    sorts = {name: _sort(name, t, alike) for name, t in needed}
    return tuple(sorts.get(name) for name in Inputs._fields)


def _leads(name: str, t: Tensor) -> Any:
    """B and T of a tensor, or B of a state."""
    return t.shape[: 1 if name == "initial_state" else 2]


def _sort(name: str, t: Any, alike: bool) -> Sort:
    wrong = no_tensor(t)
    if wrong is not None:
        return wrong
    lead = len(_leads(name, t)) if alike else 0
    return (*STAND_IN[:lead], *(operator.index(n) for n in t.shape[lead:])), t.dtype, t.device


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
    wrong_scale: str | None = None,
) -> str:
    """The demands of a call, as JSON. asked: the fields of the schedule that is asked for. Raises ValueError as the
    call itself would."""
    with ThreadPoolExecutor(1) as aside:  # what torch.export does to tensors, it does to those of its own thread
        aside.submit(_check, function, sorts, final, asked, differentiated, recompute, wrong_scale).result()
    tensors = [None if sort is None else (list(sort[0]), str(sort[1])) for sort in sorts]  # but for B and T
    told = {"function": function, "schedule": asked, "differentiated": differentiated, "recompute": recompute}
    return json.dumps(told | {"tensors": tensors})


def step_settled(wrong: Sequence[str | None], axes: int | None, differentiated: bool, wrong_scale: str | None) -> str:
    """Nothing, for a step that may be taken. wrong: of each argument, `no_tensor`; axes: of q. Raises ValueError as the
    call itself would."""
    for name, text in zip((*Inputs._fields[:-1], "state"), wrong, strict=True):
        _refuse(name, text)
    if axes != STEP_AXES:
        raise ValueError(f"q: expected {STEP_AXES} axes [B, H, K], got {axes}")
    refuse_gradients(differentiated)
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
    wrong_scale: str | None,
) -> None:
    """Raises ValueError as the call itself would."""
    for name, sort in zip(Inputs._fields, sorts, strict=True):
        _refuse(name, sort if isinstance(sort, str) else None)
    x = Inputs(*(None if s is None else torch.empty(s[0], dtype=s[1], device="meta") for s in sorts))  # type: ignore[arg-type]
    check_flag("output_final_state", final)
    MAKERS[function](x, _device(sorts), 1.0, _schedule(asked), differentiated, recompute)
    _refuse("scale", wrong_scale)


def _schedule(asked: Any) -> Any:
    return Schedule(*asked) if isinstance(asked, tuple | list) else asked


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


# --- The operators ----------------------------------------------------------------------------------------------------


def _prepared(inputs: Inputs, rows: Sequence[int], scale: float, final: bool, room: int, text: str) -> Prepared:
    """A call as the text asks for it, which copies ``rows``, and leaves what there is room for. It is known by the
    text, which tells of all tensors what a graph does not leave open, and by what it does."""

    def prepare() -> Prepared:
        told, x = json.loads(text), inputs.readable(rows)
        device = x.q.device
        how = x, device, check_scale(scale, x.q.shape[-1]), _schedule(told["schedule"]), told["differentiated"]
        found = Prepared(MAKERS[told["function"]](*how, told["recompute"]), x, final, device, rows)
        if found.left_bytes > room:
            found = Prepared(MAKERS[told["function"]](*how, True), x, final, device, rows)
        return found

    q = inputs.q
    strides = [inputs[i].stride(1) for i in rows]  # type: ignore[union-attr]
    known = (text, q.shape[0], q.shape[1], q.device, scale, final, room, *rows, *strides, choose.generation())
    return prepared(known, prepare)


class _Gradients(torch.autograd.Function):
    """The gradients that are needed, by the operator, which have no gradients themselves."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, ...]:
        return tuple(torch.ops.gla_kernels.backward(*inputs))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None: ...

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        raise RuntimeError("gla is differentiable once, and the gradient of its gradient is asked for")


class _Call(torch.autograd.Function):
    """o, the final state if it is asked for, copies of rows, and what is left for the backward pass if there is room,
    by the operators."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, ...]:
        return tuple(torch.ops.gla_kernels.forward(*inputs))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        *given, rows, ctx.scale, ctx.final, ctx.room, ctx.text = inputs
        results = 2 if ctx.final else 1
        copies, left = output[results : results + len(rows)], output[results + len(rows) :]
        # of rows, the backward pass reads the copies
        given = [copies[rows.index(i)] if i in rows else x for i, x in enumerate(given)]
        ctx.mark_non_differentiable(*copies, *left)
        ctx.save_for_backward(*given, *output[1:results], *left)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, do: Tensor | None, *grads: Tensor | None) -> tuple[Any, ...]:
        saved = ctx.saved_tensors  # read once: a checkpoint hands them out once
        given, left = saved[:6], list(saved[6:])
        needed = [bool(wanted) for wanted in ctx.needs_input_grad[:6]]
        d_final = grads[0] if ctx.final else None
        do = torch.zeros_like(given[2]) if do is None else do
        how: tuple[Any, ...] = ([], ctx.scale, ctx.final, ctx.room, ctx.text)
        # a graph says itself that it is differentiated once
        run = torch.ops.gla_kernels.backward if torch.compiler.is_compiling() else _Gradients.apply
        found = iter(run(*given, left, do, d_final, needed, *how))
        return *(next(found) if wanted else None for wanted in needed), None, None, None, None, None


TENSORS = "Tensor q, Tensor k, Tensor v, Tensor? g, Tensor? gv, Tensor? initial_state"
HOW = "int[] rows, float scale, bool final, SymInt room, str text"
_library = torch.library.Library("gla_kernels", "DEF")
_library.define(f"forward({TENSORS}, {HOW}) -> Tensor[]")
_library.define(f"backward({TENSORS}, Tensor[] left, Tensor do, Tensor? d_final, bool[] needed, {HOW}) -> Tensor[]")


def _forward(*inputs: Any) -> list[Tensor]:
    """o, the final state if it is asked for, a copy of each input of rows, and a block of bytes for the backward pass
    if there is room for one."""
    *tensors, rows, scale, final, room, text = inputs
    x = Inputs(*tensors)
    o, final_state, left, read = _prepared(x, rows, scale, final, room, text).forward(x, room)
    found = [o, final_state, *(read[i] for i in rows), left]
    return [t for t in found if t is not None]


def _forward_shapes(*inputs: Any) -> list[Tensor]:
    *tensors, rows, _scale, final, room, _text = inputs
    x = Inputs(*tensors)
    B, _, H, K = x.q.shape
    found = [x.v.new_empty(x.v.shape)]
    if final:
        found.append(x.q.new_empty(B, H, K, x.v.shape[-1], dtype=torch.float32))
    found += [tensors[i].new_empty(tensors[i].shape) for i in rows]
    if not isinstance(room, int) or room:
        found.append(x.q.new_empty(room, dtype=torch.uint8))
    return found


def _backward(*inputs: Any) -> list[Tensor]:
    """The gradients that are needed, in the order of the inputs, of which the copies count where there are such. left:
    what else `_forward` returned after o."""
    *tensors, left, do, d_final, needed, rows, scale, final, room, text = inputs
    x = Inputs(*tensors)
    final_state, block = laid_out(left[0]) if final else None, laid_out(left[-1]) if room else None
    d_final = None if d_final is None else laid_out(d_final)
    runs = _prepared(x, rows, scale, final, room, text)
    grads = runs.backward(x, final_state, block, laid_out(do), d_final, tuple(needed))
    return [grad for grad, wanted in zip(grads, needed, strict=True) if wanted and grad is not None]


def _backward_shapes(*inputs: Any) -> list[Tensor]:
    *given, _left, _do, _d_final, needed, _rows, _scale, _final, _room, _text = inputs
    return [x.new_empty(x.shape) for x, wanted in zip(given, needed, strict=True) if wanted and x is not None]


def _folded(x: Any, at: int | None, count: int) -> Any:
    """A tensor of torch.func.vmap, [B, ..] with another axis ``at`` or none, as [count * B, ..]."""
    if x is None:
        return None
    x = x.expand(count, *x.shape) if at is None else x.movedim(at, 0)
    return x.reshape(-1, *x.shape[2:])


def _unfolded(x: Tensor, count: int) -> Tensor:
    return x.reshape(count, -1, *x.shape[1:])


def _forward_of_many(info: Any, in_dims: Any, *inputs: Any) -> tuple[list[Tensor], list[int | None]]:
    """`forward` of one more axis: of more sequences. What it leaves is of all of them, and has no such axis."""
    *tensors, rows, scale, final, room, text = inputs
    count = info.batch_size
    given = (_folded(x, at, count) for x, at in zip(tensors, in_dims[:6], strict=True))
    found = torch.ops.gla_kernels.forward(*given, rows, scale, final, room * count, text)
    results = (2 if final else 1) + len(rows)
    dims: list[int | None] = [0] * results
    return [*(_unfolded(x, count) for x in found[:results]), *found[results:]], dims + [None] * (len(found) - results)


def _backward_of_many(info: Any, in_dims: Any, *inputs: Any) -> tuple[list[Tensor], list[int]]:
    *tensors, left, do, d_final, needed, rows, scale, final, room, text = inputs
    count = info.batch_size
    given = [_folded(x, at, count) for x, at in zip(tensors, in_dims[:6], strict=True)]
    if final:
        left = [_folded(left[0], in_dims[6][0], count), *left[1:]]
    if room and left[-1].shape[0] != room * count:  # only this pass is of many: torch.func.jacrev
        # what the forward pass has left is of fewer sequences, and is made again, of all of them
        left = [*left[:-1], torch.ops.gla_kernels.forward(*given, rows, scale, final, room * count, text)[-1]]
    do, d_final = _folded(do, in_dims[7], count), _folded(d_final, in_dims[8], count)
    found = torch.ops.gla_kernels.backward(*given, left, do, d_final, needed, rows, scale, final, room * count, text)
    return [_unfolded(x, count) for x in found], [0] * len(found)


for name, kernel, shapes, many in (
    ("forward", _forward, _forward_shapes, _forward_of_many),
    ("backward", _backward, _backward_shapes, _backward_of_many),
):
    for device in ("CPU", "CUDA"):
        _library.impl(name, kernel, device)
    _library.impl(name, torch.library.fallthrough_kernel, "Autograd")  # `_Call` is what is differentiated
    torch.library.register_fake(f"gla_kernels::{name}", shapes, lib=_library)
    torch.library.register_vmap(f"gla_kernels::{name}", many, lib=_library)


@torch.library.custom_op("gla_kernels::step", mutates_args=("state",))
def step(q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, gv: Tensor | None, state: Tensor, scale: float) -> Tensor:
    """One token of decoding, as `gla.gla_step`."""
    x = Inputs(q, k, v, g, gv, None).contiguous()
    return recurrent.step(x.q, x.k, x.v, x.g, state, check_scale(scale, q.shape[-1]), execute, x.gv)


@step.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, gv: Tensor | None, state: Tensor, scale: float) -> Tensor:
    check_step(q, k, v, g, gv, state)
    return v.new_empty(v.shape)
