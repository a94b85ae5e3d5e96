"""Packed sequences for tests: lengths, drawn, inputs, and any form of whole sequences as one of packed ones, so that
the judge takes sequence by sequence."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from triton.runtime import interpreter

from gla_kernels.launch import execute, record

MANY_TINY = (3,) * 40


def drawn(seed: int, total: int = 150, chunk: int = 16) -> tuple[int, ...]:
    """Lengths of sequences of about so many rows: none, one, whole chunks, and any."""
    rng, lengths = random.Random(seed), list[int]()
    while sum(lengths) < total:
        lengths.append(rng.choice((0, 1, 2, chunk, 3 * chunk, rng.randint(1, chunk), rng.randint(1, 4 * chunk))))
    return tuple(lengths)


def ends(lengths: tuple[int, ...], device: torch.device | str, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    """Their cu_seqlens."""
    return torch.tensor([0, *accumulate(lengths)], dtype=dtype, device=device)


def inputs(
    make: Callable[..., Any], lengths: tuple[int, ...], dims: tuple[int, int, int], dtype: torch.dtype, gates: Any,
    initial: bool = True, final: bool = True, v_first: bool = False, **more: Any,
) -> Any:  # fmt: skip
    """Inputs of packed sequences by `conftest.make_inputs`; dims: H, K, V."""
    H, K, V = dims
    x = make((1, sum(lengths), H, K, V), dtype, gates, states=False, **more)
    shape = (len(lengths), H, V, K) if v_first else (len(lengths), H, K, V)
    states = [torch.randn(shape, device=x.q.device) if wanted else None for wanted in (initial, final)]
    return replace(x, initial_state=states[0], d_final=states[1])


def one_by_one(form: Callable[..., Any], lengths: tuple[int, ...], v_first: bool = False) -> Callable[..., Any]:
    """A form of whole sequences, applied to each in turn."""

    def run(q: Any, k: Any, v: Any, g: Any, states: Any, gv: Any = None) -> Any:
        o, last = [], []
        for n, (first, end) in enumerate(pairwise([0, *accumulate(lengths)])):
            state = None if states is None else states[n : n + 1].mT if v_first else states[n : n + 1]
            if end > first:
                rows = (None if x is None else x[:, first:end] for x in (q, k, v, g))
                more = () if gv is None else (gv[:, first:end],)
                out, state = form(*rows, state, *more)
                o.append(out)
            elif state is None:
                state = q.new_zeros(1, q.shape[2], q.shape[3], v.shape[3])
            last.append(state.mT if v_first else state)
        return torch.cat(o, 1), torch.cat(last)

    return run


def stay_inside(monkeypatch: Any) -> None:
    """Have Triton's interpreter raise where a program loads or stores outside the tensors of its launch."""
    builder, regions = interpreter.interpreter_builder, list[tuple[int, int]]()

    def watch(name: str, mask_at: int) -> None:
        original = getattr(builder, name)

        @wraps(original)  # Triton's versions are told apart by what it takes
        def run(pointers: Any, *rest: Any, **more: Any) -> Any:
            at = pointers.data[np.broadcast_to(getattr(rest[mask_at], "data", rest[mask_at]), pointers.data.shape)]
            size = pointers.get_element_ty().primitive_bitwidth // 8
            inside = np.zeros(at.shape, dtype=bool)
            for first, end in regions:
                inside |= (at >= first) & (at + size <= end)
            assert inside.all(), f"{name} outside of all tensors"
            return original(pointers, *rest, **more)

        monkeypatch.setattr(builder, name, run, raising=False)

    watch("create_masked_load", 0)
    watch("create_masked_store", 1)

    def run(launch: Any) -> None:
        tensors = [x for x in launch.args.values() if isinstance(x, torch.Tensor)]
        regions[:] = [(x.data_ptr(), x.data_ptr() + x.nbytes) for x in tensors]
        execute(launch)

    monkeypatch.setattr(record, "execute", run)
