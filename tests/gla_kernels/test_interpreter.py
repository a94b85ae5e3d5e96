"""Triton's interpreter without work that changes nothing: the same bits, and Triton as it was afterwards."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
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
def broken_kernel(p_x):
    tl.store(p_x, inner(tl.load(p_x)))
    tl.static_assert(False)


def form(q, k, v, g, s):
    return gla(q, k, v, g, None, s, True, schedule=Schedule(32, 16))


def state_of_triton() -> tuple[Any, ...]:
    options = interpreter.interpreter_builder.options
    return tl.core.is_builtin(tl.load), tl.range, hasattr(tl.tensor, "__bool__"), options, interpreter._patch_lang


def test_not_a_bit_changes(monkeypatch, inputs, outputs_of):
    x = inputs((1, 35, 1, 16, 20), torch.float16, "resets")
    found = outputs_of(form, x)
    monkeypatch.setattr(launch, "running", nullcontext)
    plain = outputs_of(form, x)
    assert found.keys() == plain.keys()
    for name, out in found.items():
        assert torch.equal(out, plain[name]), name


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
