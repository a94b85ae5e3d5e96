"""CUDA's driver, as far as launches need it: its structures, byte by byte, and its functions through ctypes.

Python hands the driver finished structures, and no compiler runs on the user's machine for it. All of this is the
driver's binary interface, which CUDA keeps (CUDA Driver API, "Execution Control" and "Tensor Map Object Management").
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import byref, c_char, c_char_p, c_int, c_size_t, c_uint, c_uint32, c_uint64, c_void_p
from functools import cache
from typing import Any

import torch

PROGRAMMATIC_STREAM_SERIALIZATION = 6  # the launch attribute that lets a kernel begin before the one before it is done
COOPERATIVE = 2
NON_BLOCKING = 1  # of a stream: it waits for no other
RELAXED = 2  # of a capture
TENSOR_MAP_BYTES = 128
TENSOR_MAP_ALIGNMENT = 64
INVALID_VALUE = 1
INVALID_CONTEXT = 201
L2_PROMOTION_128B = 2  # as Triton encodes its descriptors
TENSOR_MAP_TYPES = {torch.float16: 6, torch.float32: 7, torch.bfloat16: 9}  # CUtensorMapDataType


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig. Its stream and its attributes are addresses."""

    _fields_ = (
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared_bytes", c_uint),
        ("stream", c_void_p),
        ("attributes", c_void_p),
        ("attribute_count", c_uint),
    )


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute, with a value that is a number."""

    _fields_ = (("id", c_int), ("padding", c_char * 4), ("value", c_int), ("rest", c_char * 60))


@cache
def driver() -> Any:
    """CUDA's driver library. Raises OSError where there is none."""
    return ctypes.CDLL("libcuda.so.1")


def check(code: int) -> None:
    """Raises RuntimeError, with the driver's own words, for anything but success."""
    if code:
        text = c_char_p()
        driver().cuGetErrorString(code, byref(text))
        reason = text.value.decode() if text.value else f"error {code}"
        raise RuntimeError(f"CUDA driver: {reason}")


def answer(function: Any, *arguments: Any) -> int:
    """What a function of the driver answers, in a context: a thread that has done nothing with CUDA yet has none, and
    is given that of the current device."""
    code: int = function(*arguments)
    if code == INVALID_CONTEXT:
        _enter(torch._C._cuda_getDevice())
        code = function(*arguments)
    return code


def call(function: Any, *arguments: Any) -> None:
    """Call a function of the driver, in a context. Raises RuntimeError as the driver says."""
    code = answer(function, *arguments)
    if code:
        check(code)


def _enter(index: int) -> None:
    """Make the device's context, that of CUDA's runtime and of PyTorch, the thread's current one."""
    device, context = c_int(), c_void_p()
    check(driver().cuDeviceGet(byref(device), c_int(index)))
    check(driver().cuDevicePrimaryCtxRetain(byref(context), device))
    check(driver().cuCtxSetCurrent(context))


class Graph:
    """Launches as the driver keeps them (a CUDA graph), to be made at once and in order.

    made by: ``launch``, which makes them on a stream that it is given. Raises RuntimeError as the driver says.
    """

    def __init__(self, launch: Callable[[int], None]) -> None:
        cuda, stream, graph, made = driver(), c_void_p(), c_void_p(), c_void_p()
        call(cuda.cuStreamCreate, byref(stream), c_uint(NON_BLOCKING))
        try:
            # relaxed: nothing that other threads do meanwhile is a part of it, or forbidden
            check(cuda.cuStreamBeginCapture_v2(stream, c_int(RELAXED)))
            try:
                launch(stream.value or 0)
            finally:
                code = cuda.cuStreamEndCapture(stream, byref(graph))
            check(code)
            check(cuda.cuGraphInstantiateWithFlags(byref(made), graph, c_uint64(0)))
            check(cuda.cuGraphDestroy(graph))
        finally:
            cuda.cuStreamDestroy_v2(stream)
        self.made, self._destroy = made, cuda.cuGraphExecDestroy

    def __del__(self) -> None:
        if hasattr(self, "made"):
            self._destroy(self.made)


def parameter_sizes(function: int) -> list[int] | None:
    """Bytes of each parameter of a loaded kernel, in order; None where the driver cannot tell (before CUDA 12.4)."""
    ask = getattr(driver(), "cuFuncGetParamInfo", None)
    if ask is None:
        return None
    found: list[int] = []
    offset, size = c_size_t(), c_size_t()
    while (code := answer(ask, c_void_p(function), c_size_t(len(found)), byref(offset), byref(size))) == 0:
        found.append(size.value)
    if code != INVALID_VALUE:  # which says that there are no more
        check(code)
    return found


def tensor_map(
    address: int, dtype: torch.dtype, shape: Sequence[int], strides: Sequence[int], block: Sequence[int], swizzle: int
) -> bytes:
    """A tensor map (CUtensorMap) of a tensor at an address, as tiles of ``block`` elements are copied of it. shape,
    strides and block: in elements, the last axis the one whose elements lie side by side. swizzle: CUtensorMapSwizzle.
    """
    rank, size = len(block), dtype.itemsize
    room = ctypes.create_string_buffer(TENSOR_MAP_BYTES + TENSOR_MAP_ALIGNMENT)
    at = -(-ctypes.addressof(room) // TENSOR_MAP_ALIGNMENT) * TENSOR_MAP_ALIGNMENT
    sizes, boxes = (c_uint64 * rank)(*reversed(shape)), (c_uint32 * rank)(*reversed(block))
    # no stride is asked for the last axis
    steps, ones = (c_uint64 * rank)(*(size * n for n in reversed(strides[:-1])), 0), (c_uint32 * rank)(*([1] * rank))
    call(
        driver().cuTensorMapEncodeTiled,
        c_void_p(at),
        c_int(TENSOR_MAP_TYPES[dtype]),
        c_uint32(rank),
        c_void_p(address),
        sizes,
        steps,
        boxes,
        ones,
        c_int(0),  # not interleaved
        c_int(swizzle),
        c_int(L2_PROMOTION_128B),
        c_int(0),  # zeros outside of the tensor
    )
    return ctypes.string_at(at, TENSOR_MAP_BYTES)
