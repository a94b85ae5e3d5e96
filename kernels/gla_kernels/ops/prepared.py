"""Calls of one signature, prepared: what their launches come to is worked out at the first of them, and kept.

What a call launches depends on shapes, dtypes, flags and the form it takes (`form.Form`), not on where its tensors
lie. So the form's host code is recorded once for each direction (`launch.record`), and a call that was made before
allocates its results and one block of scratch, and fires.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from .. import recurrent
from ..copies import rows_of
from ..launch import Launcher, interpreting
from ..launch.image import Image, Unfit, stream_of
from ..launch.record import Program, Sort, record
from ..launch.run import ALIGNED, listened_to
from .form import Form, Inputs

# Of a backward program's addresses, that of what the forward pass left: the call's tensors and its results have the
# first ones, and the gradients of the results come after it.
LEFT = len(Inputs._fields) + 2

Needed = tuple[bool, ...]  # of which of the call's tensors the gradient is wanted


class Prepared:
    """All calls by one form on one device, of tensors like those of ``inputs``. ``final``: whether they ask for the
    final state. rows: which of the inputs, by position, the forward pass copies in launches of its own, to have both
    passes read the copies; by default those that lie as columns of a matrix (`form.in_rows`).

    Raises what compiling raises, at the first call.
    """

    def __init__(
        self, form: Form, inputs: Inputs, final: bool, device: torch.device, rows: Sequence[int] | None = None
    ) -> None:
        self.form, self.final, self.device = form, final, device
        self.rows = inputs.rows if rows is None else rows
        self._given = [None if x is None else Sort.of(x) for x in inputs]
        self._sorts = [x.contiguous() if x is not None and i in self.rows else x for i, x in enumerate(self._given)]
        self._backward: dict[tuple[bool, Needed], Ready] = {}

    def forward(self, inputs: Inputs, room: int = 0) -> tuple[Tensor, Tensor | None, Tensor | None, Inputs]:
        """o, the final state if it is asked for, a block of bytes that `backward` makes use of, None for none, and the
        inputs as both passes read them: those that do not lie as the first call's did are copied. room: bytes of that
        block, where they are to be more than it needs."""
        inputs = _as(self._given, inputs)
        (o, final_state, *copies), left = self._forward(inputs, room)
        if copies:
            found = list(inputs)
            for i, x in zip(self.rows, copies, strict=True):
                found[i] = x
            inputs = Inputs(*found)  # type: ignore[arg-type]
        return o, final_state, left, inputs

    def backward(
        self, inputs: Inputs, results: tuple[Tensor | None, Tensor | None], left: Tensor | None, do: Tensor,
        d_final: Tensor | None, needed: Needed,
    ) -> Sequence[Tensor | None]:  # fmt: skip
        """The gradients of the call's tensors, in their order; None of what there is not. inputs, left, and results, o
        and the final state: as `forward` returned them, wherever inputs have come to lie since; of results only those
        that `leaves` tells of."""
        inputs = _as(self._sorts, inputs)
        key = d_final is not None, needed
        ready = self._backward.get(key)
        if ready is None:
            ready = self._backward[key] = Ready(self._backward_program(*key), self._sorts, self.device)
        return ready((*inputs, *results, left, do, d_final))[0]

    @property
    def left_bytes(self) -> int:
        """Bytes that a forward pass leaves for the backward one beside its inputs and results."""
        return self._forward.program.left_bytes

    @cached_property
    def leaves(self) -> tuple[bool, bool]:
        """Whether the backward pass needs o, and the final state."""
        program = self._forward.program
        bases = {x.base for x in program.left if x is not None}
        return program.at_results in bases, program.at_results + 1 in bases

    @cached_property
    def _forward(self) -> Ready:
        given = [None if x is None else x.on_meta() for x in self._given]

        def host(launch: Launcher) -> tuple[Sequence[Tensor | None], Sequence[Tensor | None]]:
            inputs = list(given)
            for i in self.rows:
                x = given[i]
                assert x is not None
                copy = inputs[i] = torch.empty(x.shape, dtype=x.dtype, device="meta")
                launch(rows_of(x, copy))
            o, final_state, left = self.form.forward(Inputs(*inputs), self.final, launch)  # type: ignore[arg-type]
            return (o, final_state, *(inputs[i] for i in self.rows)), left

        return Ready(record(host, given, self.device), self._given, self.device)

    def _backward_program(self, d_final: bool, needed: Needed) -> Program:
        """The backward pass, recorded, of what the forward program leaves."""
        forward = self._forward.program
        inputs, (o, state, *_) = self._on_meta(), forward.results
        assert o is not None
        results = o.on_meta(), None if state is None else state.on_meta()
        known: dict[int, Tensor | None] = {**dict(enumerate(inputs)), **dict(enumerate(results, forward.at_results))}
        known |= {forward.at_results + 2 + n: inputs[i] for n, i in enumerate(self.rows)}
        left = [None if x is None else known.get(x.base, x.sort.on_meta()) for x in forward.left]
        do, d_state = o.on_meta(), state.on_meta() if d_final and state is not None else None
        blocks = [
            (tensor, LEFT, one.offset)
            for one, tensor in zip(forward.left, left, strict=True)
            if one is not None and one.base == forward.at_left
        ]

        def host(launch: Launcher) -> tuple[Sequence[Tensor | None], Sequence[Tensor | None]]:
            return self.form.backward(inputs, tuple(left), do, d_state, needed, launch), ()

        return record(host, [*inputs, *results, None, do, d_state], self.device, blocks)

    def _on_meta(self) -> Inputs:
        return Inputs(*(None if x is None else x.on_meta() for x in self._sorts))  # type: ignore[arg-type]


def _as(sorts: Sequence[Sort | None], inputs: Inputs) -> Inputs:
    """The tensors, each as its sort says: those that lie otherwise are copied."""
    for x, sort in zip(inputs, sorts, strict=True):
        if x is None or sort is None or (x.stride() == sort.stride and not x.data_ptr() % ALIGNED and not x.is_neg()):
            continue  # as nearly always, told in few words
        if not sort.describes(x):
            return Inputs(*(None if s is None else s.laid(t) for t, s in zip(inputs, sorts, strict=True)))  # type: ignore[arg-type]
    return inputs


class PreparedStep:
    """All one-token calls on one device, of tensors like those of ``inputs``; the state, which is updated in place, is
    its ``initial_state``."""

    def __init__(self, inputs: Inputs, scale: float, device: torch.device, v_first: bool = False) -> None:
        sorts = [None if x is None else Sort.of(x) for x in inputs]
        x = Inputs(*(None if sort is None else sort.on_meta() for sort in sorts))  # type: ignore[arg-type]

        def host(launch: Launcher) -> tuple[Sequence[Tensor | None], Sequence[Tensor | None]]:
            assert x.initial_state is not None
            return (recurrent.step(x.q, x.k, x.v, x.g, x.initial_state, scale, launch, x.gv, v_first),), ()

        self._run = Ready(record(host, x, device), sorts, device)

    def __call__(self, inputs: Inputs) -> Tensor:
        """o [B, H, V]."""
        o: Tensor = self._run(inputs)[0][0]
        return o


def _like(sort: Sort, inputs: Sequence[Sort | None]) -> tuple[int, int]:
    """Of a contiguous result, an input that is like it and one of its dtype, by position, or -1: PyTorch makes another
    of either in half the time."""
    like = next((i for i, x in enumerate(inputs) if x == sort), -1)
    return like, next((i for i, x in enumerate(inputs) if x is not None and x.dtype == sort.dtype), -1)


class Ready:
    """A program on a device: what is allocated for it, and how its launches are made."""

    def __init__(self, program: Program, inputs: Sequence[Sort | None], device: torch.device) -> None:
        self.program, self.device = program, device
        self.fires = device.type == "cuda" and not interpreting()
        self.image: Image | None = None
        self._results = [None if x is None else (x, *_like(x, inputs)) for x in program.results]

    def __call__(self, inputs: tuple[Tensor | None, ...], room: int = 0) -> tuple[list[Any], Tensor | None]:
        """Run with these inputs: the results, and the block of what is left for later, of so much room at least."""
        program, device = self.program, self.device
        results: list[Tensor | None] = []
        for made in self._results:
            if made is None:
                results.append(None)
                continue
            sort, like, of_dtype = made
            if like >= 0:
                results.append(torch.empty_like(inputs[like]))  # type: ignore[arg-type]
            elif of_dtype >= 0:
                results.append(inputs[of_dtype].new_empty(sort.shape))  # type: ignore[union-attr]
            else:
                results.append(torch.empty(sort.shape, dtype=sort.dtype, device=device))
        left = self._block(max(room, program.left_bytes))
        tensors = (*inputs, *results, left, self._block(program.scratch_bytes))
        if not self.fires or listened_to():
            if device.type != "meta":  # on which there is nothing to compute
                program.run(tensors)
        elif torch._C._cuda_getDevice() == device.index:
            self._fire(tensors)
        else:
            with torch.cuda.device(device):
                self._fire(tensors)
        return results, left

    def _block(self, size: int) -> Tensor | None:
        return torch.empty(size, dtype=torch.uint8, device=self.device) if size else None

    def _fire(self, tensors: tuple[Tensor | None, ...]) -> None:
        if self.image is None:
            try:
                self.image = self.program.image()
            except Unfit:
                self.fires = False
                return self.program.run(tensors)
        at = [0 if x is None else x.data_ptr() for x in tensors]
        self.image.fire((stream_of(self.device.index), *at))
        return None
