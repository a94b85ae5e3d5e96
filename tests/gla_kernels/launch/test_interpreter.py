"""Triton's interpreter without work that changes nothing: the same bits, and Triton as it was afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import wraps
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton._C.libtriton import ir
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter
from triton.runtime.errors import InterpreterError

from gla_kernels import Schedule, gla
from gla_kernels.launch import interpreting, run
from gla_kernels.launch.interpreter import lean

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


# Of Triton's interpreter, which `lean` does without.
OWN_FAULTS = {
    "mask has unsupported dtype": "3.9 refuses the mask of a tile and a number",
    "only 0-dimensional arrays": "3.6 makes no number of an array of one with NumPy 2.4",
}


def state_of_triton() -> tuple[Any, ...]:
    options, broadcast = interpreter.interpreter_builder.options, TritonSemantic.broadcast_impl_value
    described = interpreter._get_np_dtype, tl.block_type.__init__, tl.tensor.__init__, broadcast
    language = tl.core.is_builtin(tl.load), tl.range, hasattr(tl.tensor, "__bool__"), interpreter._patch_lang
    operators = tl.tensor.__add__, tl.tensor.__getitem__, tl.where, tl.core.where, interpreter._patch_attr
    launches = interpreter.inspect, tl.str_to_ty, tl.sum, tl.minimum
    return *language, options, *described, *operators, *launches


@contextmanager
def by_itself() -> Iterator[None]:
    """Triton's interpreter without ours. Skips the test where it is known not to run these kernels."""
    try:
        yield
    except InterpreterError as error:
        fault = next((why for text, why in OWN_FAULTS.items() if text in str(error)), None)
        if fault is None:
            raise
        pytest.skip(f"Triton's interpreter by itself cannot run these kernels: {fault}")


# NumPy has float16 as it has float32: what operators make of it is compared with Triton's below.
@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float32, marks=pytest.mark.exhaustive)], ids=str)
def test_not_a_bit_changes(monkeypatch, inputs, outputs_of, dtype):
    x = inputs((1, 35, 1, 16, 20), dtype, "resets")
    found = outputs_of(form, x)
    monkeypatch.setattr(run, "lean", nullcontext)
    with by_itself():
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


@triton.jit
def operations_kernel(p_x, p_out, N: tl.constexpr, M: tl.constexpr, SCALE: tl.constexpr, LARGE: tl.constexpr):
    """x [N, M]: tiles, numbers, pointers and flags in all the pairs that kernels have. Four results [N, M]."""
    o_n, o_m = tl.arange(0, N), tl.arange(0, M)
    o_x = o_n[:, None] * M + o_m[None, :]
    b_h = tl.load(p_x + o_x, mask=(o_n < N - 1)[:, None] & (o_m < M)[None, :], other=0.0)
    b_x = b_h.to(tl.float32)
    b_t = tl.trans(b_x) * 0.3 + 1  # lies in memory as b_x does, and so is summed in that order
    b_row = tl.sum(b_t, axis=0)
    i_mid, m_mid = tl.program_id(0) + N // 2, tl.program_id(0) < 1
    m_x = (i_mid > o_n)[:, None] & (o_m >= 2)[None, :] & m_mid | (o_x == 7)
    b_y = tl.where(m_x, b_x - b_row[:, None], 0.5) * SCALE - tl.where(m_x, 2.0, b_x) + (1 - b_x) + (3.0 * b_x)
    b_y = tl.where(m_mid, b_y, b_x) + tl.sum(tl.where(m_x, 1.0, 0.0), axis=1)[:, None]
    o_out = tl.cast(i_mid, tl.int64) * M + o_x - i_mid * M
    tl.store(p_out + o_out, b_y)
    m_y = (b_x > b_row[:, None]) | (b_x < -1.0) | (b_x == b_y)
    tl.store(
        p_out + N * M + o_out, tl.where(b_x <= b_h, 2, 0) + tl.where(b_x >= b_h, 4, 0) + tl.where(b_x < b_h, 8, m_y)
    )
    b_mixed = tl.where(m_x, b_h, b_x * SCALE) + b_h * (b_x + SCALE) + (b_h + b_y)
    b_other = tl.load(p_x + o_x, mask=(o_n > 1)[:, None] & (o_m != 3)[None, :], other=7.0)
    tl.store(p_out + 2 * N * M + o_out, b_mixed + b_other)
    o_far = (o_m * tl.cast(LARGE, tl.int64) + tl.cast(LARGE, tl.int64) * o_m) // LARGE  # beyond 32 bits
    tl.store(p_out + 3 * N * M + o_far, tl.sum(b_t + 1.0, axis=1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_operators_compute_what_tritons_own_do(dtype):
    x = torch.randn(16, 8).to(dtype)
    found, right = torch.zeros(4, 16, 8), torch.zeros(4, 16, 8)
    with lean():
        operations_kernel[(1,)](x, found, 16, 8, 0.7, 2**30)
    operations_kernel[(1,)](x, right, 16, 8, 0.7, 2**30)
    assert torch.equal(found, right)
    assert all(len(part.unique()) > 1 for part in right)


@triton.jit
def memory_kernel(p_x, p_i, p_out, N: tl.constexpr, M: tl.constexpr):
    """x and i [N, M] -> out [5, N, M] float32: masks of other shapes than the tile's or none, and every cast."""
    o_n, o_m = tl.arange(0, N), tl.arange(0, M)
    o_x = o_n[:, None] * M + o_m[None, :]
    here, elsewhere = tl.program_id(0) < 1, tl.program_id(0) > 0
    b_x, b_i = tl.load(p_x + o_x), tl.load(p_i + o_x, mask=here, other=0)
    tl.store(p_out + o_x, b_x + tl.load(p_x + o_x, mask=elsewhere, other=0.0))
    p_out += N * M
    tl.store(p_out + o_x, tl.load(p_x + o_x, mask=(o_n < 3)[:, None], other=0.0), mask=(o_m > 1)[None, :])
    p_out += N * M
    tl.store(p_out + o_x, b_x, mask=here)
    tl.store(p_out + o_x, -b_x, mask=elsewhere)
    p_out += N * M
    tl.store(p_out + o_x, b_x.to(tl.int32).to(tl.int8).to(tl.float32) + (b_x > 0).to(tl.int64).to(tl.float64))
    p_out += N * M
    tl.store(p_out + o_x, b_x.to(tl.bfloat16).to(tl.float32) + b_i.to(tl.int64).to(tl.float16))


def test_loads_stores_and_casts_are_those_of_triton():
    x, i = 3 * torch.randn(8, 4), torch.randint(-99, 99, (8, 4), dtype=torch.int32)
    found, right = torch.zeros(5, 8, 4), torch.zeros(5, 8, 4)
    with lean():
        memory_kernel[(1,)](x, i, found, 8, 4)
    with by_itself():
        memory_kernel[(1,)](x, i, right, 8, 4)
    assert torch.equal(found, right)
    assert all(part.any() for part in right)


@triton.jit
def signs_kernel(p_x, p_out, N: tl.constexpr):
    """-x, from the last of x [N] on. Which zero -0 is depends on the Triton."""
    o_n = tl.arange(0, N)
    tl.store(p_out + o_n, -tl.load(p_x + (N - 1) + (0 - o_n)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32], ids=str)
def test_zeros_are_negated_and_tensors_read_backwards_as_triton_does(dtype):
    x = torch.tensor([-0.0, 0.0, 1.0, -7.0]).to(dtype)
    found, right = torch.full((4,), 9).to(dtype), torch.full((4,), 9).to(dtype)
    with lean():
        signs_kernel[(1,)](x, found, 4)
    with by_itself():
        signs_kernel[(1,)](x, right, 4)
    assert torch.equal(found.view(torch.uint8), right.view(torch.uint8))
    assert found.tolist()[:2] == [7, -1]


@triton.jit
def quotients_kernel(p_i, p_out, n, N: tl.constexpr, D: tl.constexpr):
    """i [N] of integers -> out [9, N] int64: quotients and remainders by constants, numbers, tiles, and wider ones, and
    what is negated."""
    o_n = tl.arange(0, N)
    b_i, b_wide, i_0 = tl.load(p_i + o_n), tl.load(p_i + o_n).to(tl.int64), tl.program_id(0) + 7
    tl.store(p_out + o_n, b_i // D)
    tl.store(p_out + N + o_n, b_i % D)
    tl.store(p_out + 2 * N + o_n, b_wide // n + i_0 // n)
    tl.store(p_out + 3 * N + o_n, b_wide % n + i_0 % D)
    tl.store(p_out + 4 * N + o_n, b_wide // (o_n + 1))
    tl.store(p_out + 5 * N + o_n, b_wide % (o_n + 1))
    tl.store(p_out + 6 * N + o_n, b_i // b_i)
    tl.store(p_out + 7 * N + o_n, (b_i[:, None] % (o_n + 1)[None, :]).to(tl.int64).sum(1))
    tl.store(p_out + 8 * N + o_n, -b_i + -(b_wide // (o_n - 9)) + i_0.to(tl.int64) % -i_0)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.int16], ids=str)
def test_quotients_are_cut_off_as_those_of_triton(dtype):
    i = torch.tensor([-7, -6, -1, 1, 2, 6, 7, 2**31 - 1]).to(dtype)
    found, right = torch.zeros(9, 8, dtype=torch.int64), torch.zeros(9, 8, dtype=torch.int64)
    with lean():
        quotients_kernel[(1,)](i, found, 3, 8, 2)
    with by_itself():
        quotients_kernel[(1,)](i, right, 3, 8, 2)
    assert torch.equal(found, right)
    if dtype == torch.int32:
        assert found[0, 0] == -3
        assert found[1, 0] == -1


def test_who_watches_the_builder_sees_every_operation(monkeypatch):
    """Also one that watches later than the first launch, and no longer once that is over."""
    builder, seen = interpreter.interpreter_builder, list[str]()
    x, out = torch.randn(16, 8), torch.zeros(4, 16, 8)
    names = "create_fadd", "create_fmul", "create_icmpSLT", "create_select", "create_masked_load", "create_masked_store"

    def watched(name: str, operation: Any) -> Any:
        @wraps(operation)
        def run(*args: Any, **options: Any) -> Any:
            seen.append(name)
            return operation(*args, **options)

        return run

    def launched() -> int:
        seen.clear()
        with lean():
            operations_kernel[(1,)](x, out, 16, 8, 0.7, 2**30)
        return len(seen)

    assert launched() == 0
    with monkeypatch.context() as patch:
        for name in names:
            patch.setattr(builder, name, watched(name, getattr(builder, name)), raising=False)
        assert launched() > 10
        assert set(seen) == set(names)
    assert launched() == 0


@pytest.mark.parametrize("rounding", [None, *ir.ROUNDING_MODE.__members__.values()], ids=str)
def test_bfloat16_has_the_bits_that_triton_makes(rounding):
    """All numbers of 16 bits, and some of 32; with and without those with an exponent of 0, which Triton takes over."""
    wide = torch.randint(-(2**31), 2**31, (2**16,), dtype=torch.int64).to(torch.int32).numpy().view(np.uint32)
    wide[:8] = 0x7F800000, 0xFF800001, 0x3FFF8000, 0x3F7FFFFF, 0, 0x80000000, 0x00800000, 0x7F7FFFFF
    narrow = np.arange(2**16, dtype=np.uint16)
    for bits, of, to in ((narrow, tl.bfloat16, tl.float32), (wide, tl.float32, tl.bfloat16)):
        normal = bits[(bits >> (7 if of is tl.bfloat16 else 23) & 0xFF != 0) | (bits << 1 == 0)]
        for some in (bits, normal, normal[: normal.size // 4 * 4].reshape(4, -1).T):
            right = interpreter._convert_float(some, of, to, rounding)
            with lean():
                found = interpreter._convert_float(some, of, to, rounding)
            assert (found.dtype, found.strides) == (right.dtype, right.strides)
            assert np.array_equal(found, right)


@triton.jit
def refused_kernel(p_x, WHICH: tl.constexpr):
    b_x = tl.load(p_x + tl.arange(0, 8))
    if WHICH == "and":
        b_x = b_x & b_x
    elif WHICH == "pointers":
        b_x = p_x + p_x
    elif WHICH == "float offset":
        b_x = p_x + b_x
    else:
        b_x = tl.arange(0, 8) + 2**40


@pytest.mark.parametrize("which", ["and", "pointers", "float offset", "range"])
def test_what_triton_refuses_is_still_refused(which):
    said = []
    for running in (lean, nullcontext):
        with pytest.raises(interpreter.InterpreterError) as error, running():
            refused_kernel[(1,)](torch.zeros(8), which)
        said.append(str(error.value))
    assert said[0] == said[1]


@pytest.mark.parametrize("wrong", [(4, 8), (2, 2)], ids=str)
def test_tiles_that_do_not_fit_are_still_refused(wrong):
    with pytest.raises(interpreter.InterpreterError, match="incompatible dimensions"), lean():
        unfit_kernel[(1,)](torch.zeros(8), *wrong)


def test_the_language_is_looked_through_once_and_put_back(monkeypatch):
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
    assert replaced == ["outer_kernel"]  # of what is replaced the second launch knows
    assert state_of_triton() == before
    assert before[0]


@triton.jit
def scaled_kernel(p_x, scale, N: tl.constexpr = 4):
    o_n = tl.arange(0, N)
    tl.store(p_x + o_n, tl.load(p_x + o_n) * scale)


def test_arguments_come_by_place_by_name_or_by_default():
    x = torch.ones(8)
    with lean():
        scaled_kernel[(1,)](x, 2.0)
        scaled_kernel[(1,)](x, scale=3.0, N=2)
        scaled_kernel[(1,)](p_x=x, scale=5.0, N=8)
        with pytest.raises(TypeError, match="scale"):
            scaled_kernel[(1,)](p_x=x, N=8)
    assert x.tolist() == [30.0, 30.0, 10.0, 10.0, 5.0, 5.0, 5.0, 5.0]


def test_a_kernel_may_run_while_another_is_launched():
    """As a stand-in for a kernel does, which runs the real one."""
    before, x = interpreter._patch_lang, torch.zeros(2)
    with lean():
        outer_kernel[(1,)](x, 2)
        with lean():
            outer_kernel[(1,)](x, 2)
        assert interpreter._patch_lang is not before
        outer_kernel[(1,)](x, 2)
    assert interpreter._patch_lang is before
    assert x.tolist() == [6, 6]


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
