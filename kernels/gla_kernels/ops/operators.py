"""The operators of PyTorch's own kind that calls in a graph, and of tensors that are not plain, come to: library.py.

An operator takes tensors, numbers and text. What a call asks for is handed to it as JSON; which plan that comes to is
settled when it runs, by the shapes that it meets then, as in a call without a graph. So one graph serves all batches
and lengths, where they are marked as dynamic. A plan that needs more room for what it leaves than the graph has for it
leaves nothing, and its backward pass computes that again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .. import recurrent
from ..launch import execute
from ..plan import choose
from ..schedule import Schedule
from .form import DIFFERENTIATED, Form, Inputs, laid_out, output_shape, sequences_of, state_shape
from .prepared import Prepared
from .signature import prepared
from .validate import check_scale, check_step

# (inputs, on what device, scale, schedule, whether there will be a backward pass, `recompute` and `state_v_first` as in
# `gla.gla`) -> the form that a call takes
Maker = Callable[[Inputs, torch.device, float, Schedule | None, bool, bool | None, bool], Form]
MAKERS: dict[str, Maker] = {}  # by the function's name


def asked_for(schedule: Any) -> Any:
    """The schedule that is asked for, from its fields."""
    return Schedule(*schedule) if isinstance(schedule, tuple | list) else schedule


def _prepared(inputs: Inputs, rows: Sequence[int], scale: float, final: bool, room: int, text: str) -> Prepared:
    """A call as the text asks for it, which copies ``rows``, and leaves what there is room for. It is known by the
    text, which tells of all tensors what a graph does not leave open, and by what it does."""

    def prepare() -> Prepared:
        told, x = json.loads(text), inputs.readable(rows)
        device = x.q.device
        how = x, device, check_scale(scale, x.q.shape[-1]), asked_for(told["schedule"]), told["differentiated"]
        maker, v_first = MAKERS[told["function"]], told["state_v_first"]
        found = Prepared(maker(*how, told["recompute"], v_first), x, final, device, rows)
        if found.left_bytes > room:
            found = Prepared(maker(*how, True, v_first), x, final, device, rows)
        return found

    q = inputs.q
    strides = [inputs[i].stride(1) for i in rows]  # type: ignore[union-attr]
    sizes = q.shape[0], q.shape[1], sequences_of(inputs)
    known = (text, *sizes, q.device, scale, final, room, *rows, *strides, choose.generation())
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


def _may_leave_o(x: Inputs) -> bool:
    """Whether a backward pass may need o, if anything is left for it (value_gates/by_walks.py)."""
    return x.gv is not None


class Call(torch.autograd.Function):
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
        ctx.save_for_backward(*given, *output[0 if left and _may_leave_o(Inputs(*given)) else 1 : results], *left)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, do: Tensor | None, *grads: Tensor | None) -> tuple[Any, ...]:
        saved = ctx.saved_tensors  # read once: a checkpoint hands them out once
        given, left = saved[:TENSORS_GIVEN], list(saved[TENSORS_GIVEN:])
        needed = [bool(wanted) for wanted in ctx.needs_input_grad[:DIFFERENTIATED]]
        d_final = grads[0] if ctx.final else None
        do = given[2].new_zeros(output_shape(Inputs(*given))) if do is None else do
        how: tuple[Any, ...] = ([], ctx.scale, ctx.final, ctx.room, ctx.text)
        # a graph says itself that it is differentiated once
        run = torch.ops.gla_kernels.backward if torch.compiler.is_compiling() else _Gradients.apply
        found = iter(run(*given, left, do, d_final, needed, *how))
        return *(next(found) if wanted else None for wanted in needed), None, None, None, None, None, None


TENSORS = "Tensor q, Tensor k, Tensor v, Tensor? g, Tensor? gv, Tensor? initial_state, Tensor? cu_seqlens"
TENSORS_GIVEN = len(Inputs._fields)
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
    *tensors, rows, _scale, final, room, text = inputs
    x = Inputs(*tensors)
    found = [x.v.new_empty(output_shape(x))]
    if final:
        shape = state_shape(x, json.loads(text)["state_v_first"])
        found.append(x.q.new_empty(shape, dtype=torch.float32))
    found += [tensors[i].new_empty(tensors[i].shape) for i in rows]
    if not isinstance(room, int) or room:
        found.append(x.q.new_empty(room, dtype=torch.uint8))
    return found


def _backward(*inputs: Any) -> list[Tensor]:
    """The gradients that are needed, in the order of the inputs, of which the copies count where there are such. left:
    what else `_forward` returned, o if it `_may_leave_o`."""
    *tensors, left, do, d_final, needed, rows, scale, final, room, text = inputs
    x = Inputs(*tensors)
    block = laid_out(left[-1]) if room else None
    o = laid_out(left[0]) if room and _may_leave_o(x) else None
    final_state = laid_out(left[0 if o is None else 1]) if final else None
    d_final = None if d_final is None else laid_out(d_final)
    runs = _prepared(x, rows, scale, final, room, text)
    grads = runs.backward(x, (o, final_state), block, laid_out(do), d_final, tuple(needed))
    return [grad for grad, wanted in zip(grads, needed, strict=True) if wanted and grad is not None]


def _backward_shapes(*inputs: Any) -> list[Tensor]:
    *given, _left, _do, _d_final, needed, _rows, _scale, _final, _room, _text = inputs
    given = given[:DIFFERENTIATED]
    return [x.new_empty(x.shape) for x, wanted in zip(given, needed, strict=True) if wanted and x is not None]


def _folded(x: Any, at: int | None, count: int) -> Any:
    """A tensor of torch.func.vmap, [B, ..] with another axis ``at`` or none, as [count * B, ..]."""
    if x is None:
        return None
    x = x.expand(count, *x.shape) if at is None else x.movedim(at, 0)
    return x.reshape(-1, *x.shape[2:])


def _unfolded(x: Tensor, count: int) -> Tensor:
    return x.reshape(count, -1, *x.shape[1:])


def _refuse_packed(cu_seqlens: Tensor | None) -> None:
    if cu_seqlens is not None:  # a batch would have one row of sequences each
        raise ValueError("cu_seqlens: expected no further axis, and torch.func.vmap adds one")


def _forward_of_many(info: Any, in_dims: Any, *inputs: Any) -> tuple[list[Tensor], list[int | None]]:
    """`forward` of one more axis: of more sequences. What it leaves is of all of them, and has no such axis."""
    *tensors, rows, scale, final, room, text = inputs
    count = info.batch_size
    _refuse_packed(tensors[-1])
    given = (_folded(x, at, count) for x, at in zip(tensors, in_dims[:TENSORS_GIVEN], strict=True))
    found = torch.ops.gla_kernels.forward(*given, rows, scale, final, room * count, text)
    results = (2 if final else 1) + len(rows)
    dims: list[int | None] = [0] * results
    return [*(_unfolded(x, count) for x in found[:results]), *found[results:]], dims + [None] * (len(found) - results)


def _backward_of_many(info: Any, in_dims: Any, *inputs: Any) -> tuple[list[Tensor], list[int]]:
    *tensors, left, do, d_final, needed, rows, scale, final, room, text = inputs
    count = info.batch_size
    _refuse_packed(tensors[-1])
    at_left, at_do, at_final = in_dims[TENSORS_GIVEN : TENSORS_GIVEN + 3]
    given = [_folded(x, at, count) for x, at in zip(tensors, in_dims[:TENSORS_GIVEN], strict=True)]
    results = (1 if final else 0) + (1 if room and _may_leave_o(Inputs(*given)) else 0)
    left = [*(_folded(x, at, count) for x, at in zip(left[:results], at_left, strict=False)), *left[results:]]
    if room and left[-1].shape[0] != room * count:  # only this pass is of many: torch.func.jacrev
        # what the forward pass has left is of fewer sequences, and is made again, of all of them
        left = [*left[:-1], torch.ops.gla_kernels.forward(*given, rows, scale, final, room * count, text)[-1]]
    do, d_final = _folded(do, at_do, count), _folded(d_final, at_final, count)
    found = torch.ops.gla_kernels.backward(*given, left, do, d_final, needed, rows, scale, final, room * count, text)
    return [_unfolded(x, count) for x in found], [0] * len(found)


for name, kernel, shapes, many in (
    ("forward", _forward, _forward_shapes, _forward_of_many),
    ("backward", _backward, _backward_shapes, _backward_of_many),
):
    for device in ("CPU", "CUDA"):
        _library.impl(name, kernel, device)
    _library.impl(name, torch.library.fallthrough_kernel, "Autograd")  # `Call` is what is differentiated
    torch.library.register_fake(f"gla_kernels::{name}", shapes, lib=_library)
    torch.library.register_vmap(f"gla_kernels::{name}", many, lib=_library)


@torch.library.custom_op("gla_kernels::step", mutates_args=("state",))
def step(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, gv: Tensor | None, state: Tensor, scale: float, v_first: bool
) -> Tensor:
    """One token of decoding, as `gla.gla_step`."""
    x = Inputs(q, k, v, g, gv, None).readable(())
    return recurrent.step(x.q, x.k, x.v, x.g, state, check_scale(scale, q.shape[-1]), execute, x.gv, v_first)


@step.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, gv: Tensor | None, state: Tensor, scale: float, v_first: bool
) -> Tensor:
    check_step(q, k, v, g, gv, state, v_first)
    return v.new_empty(v.shape)


@step.register_vmap
def _(info: Any, in_dims: Any, *inputs: Any) -> Any:
    raise ValueError("gla_step: expected no further axis, and torch.func.vmap adds one; give sequences as a batch")
