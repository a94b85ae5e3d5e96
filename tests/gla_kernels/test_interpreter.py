"""Triton's interpreter without work that changes nothing: the same bits, and Triton as it was afterwards."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter

from gla_kernels import Schedule, gla, launch
from gla_kernels.interpreter import lean
from gla_kernels.launch import interpreting

if not interpreting():
    pytest.skip("about Triton's interpreter; kernels are compiled here", allow_module_level=True)


@triton.jit
def inner(x):
    return x + 1


@triton.jit
def outer_kernel(p_x, n):
    for i in range(n):
        tl.store(p_x + i, inner(inner(tl.load(p_x + i))))


@triton.jit
def unfit_kernel(p_x, N: tl.constexpr, M: tl.constexpr):
    b_x = tl.load(p_x + tl.arange(0, N))
    tl.store(p_x + tl.arange(0, N), b_x + tl.load(p_x + tl.arange(0, 2 * M)))


@triton.jit
def broken_kernel(p_x):
    tl.store(p_x, inner(tl.load(p_x)))
    tl.static_assert(False)


def form(q, k, v, g, s):
    return gla(q, k, v, g, None, s, True, schedule=Schedule(32, 16))


def state_of_triton() -> tuple[Any, ...]:
    options, broadcast = interpreter.interpreter_builder.options, TritonSemantic.broadcast_impl_value
    described = interpreter._get_np_dtype, tl.block_type.__init__, tl.tensor.__init__, broadcast
    language = tl.core.is_builtin(tl.load), tl.range, hasattr(tl.tensor, "__bool__"), interpreter._patch_lang
    return *language, options, *described


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_not_a_bit_changes(monkeypatch, inputs, outputs_of, dtype):
    x = inputs((1, 35, 1, 16, 20), dtype, "resets")
    found = outputs_of(form, x)
    monkeypatch.setattr(launch, "running", nullcontext)
    plain = outputs_of(form, x)
    assert found.keys() == plain.keys()
    for name, out in found.items():
        assert torch.equal(out, plain[name]), name


@triton.jit
def shapes_kernel(p_x, p_out, N: tl.constexpr):
    """x [N] int32, sums with itself along rows and columns, and flags of one bit."""
    o_n = tl.arange(0, N)
    b_x = tl.load(p_x + o_n)
    b_xx = b_x[:, None] * 2 + b_x[None, :].to(tl.int64)
    b_xx = tl.where((b_xx > 3) & (o_n >= 1)[:, None], b_xx, -b_xx)
    tl.store(p_out + o_n[:, None] * N + o_n[None, :], b_xx + tl.sum(b_x))


@pytest.mark.parametrize("N", [1, 2, 8])
def test_types_and_shapes_that_are_remembered_are_not_mixed_up(N):
    """The same elements in several shapes, the same shapes of several elements, one launch after another."""
    for dtype in (torch.int32, torch.int16):
        x, out = torch.arange(N, dtype=dtype), torch.zeros(N, N, dtype=torch.int64)
        with lean():
            shapes_kernel[(1,)](x, out, N)
        expected = x[:, None].long() * 2 + x[None, :]
        expected = torch.where((expected > 3) & (x >= 1)[:, None], expected, -expected) + x.sum()
        assert torch.equal(out, expected)


@pytest.mark.parametrize("wrong", [(4, 8), (2, 2)], ids=str)
def test_tiles_that_do_not_fit_are_still_refused(wrong):
    with pytest.raises(interpreter.InterpreterError, match="incompatible dimensions"), lean():
        unfit_kernel[(1,)](torch.zeros(8), *wrong)


def test_the_language_is_replaced_once_a_launch_and_put_back(monkeypatch):
    replaced: list[str] = []

    def patch(fn: Any, original: Any = interpreter._patch_lang) -> Any:
        replaced.append(fn.__name__)
        return original(fn)

    monkeypatch.setattr(interpreter, "_patch_lang", patch)
    before = state_of_triton()
    x = torch.arange(3.0)
    for _ in range(2):
        with lean():
            outer_kernel[(2,)](x, 3)
    assert x.tolist() == [8.0, 9.0, 10.0]
    assert replaced == ["outer_kernel"] * 2
    assert state_of_triton() == before
    assert before[0]


def test_a_kernel_that_fails_leaves_triton_as_it_was():
    before = state_of_triton()
    with pytest.raises(interpreter.InterpreterError), lean():
        broken_kernel[(1,)](torch.zeros(1))
    assert state_of_triton() == before


@pytest.mark.parametrize("debug", [True, False])
def test_integers_are_checked_where_the_answer_is_read(monkeypatch, debug):
    builder = interpreter.interpreter_builder
    monkeypatch.setattr(builder, "options", replace(builder.options, debug=debug))
    with lean():
        assert builder.options == replace(builder.options, debug=debug, sanitize_overflow=debug)
    assert builder.options.sanitize_overflow


def test_where_triton_has_moved_its_names_it_runs_as_it_does(monkeypatch):
    monkeypatch.delattr(interpreter, "_LangPatchScope")
    patch, options = interpreter._patch_lang, interpreter.interpreter_builder.options
    with lean():
        assert (interpreter._patch_lang, interpreter.interpreter_builder.options) == (patch, options)
