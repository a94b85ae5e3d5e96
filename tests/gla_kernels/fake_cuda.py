"""A stand-in for CUDA's driver library, which notes what it is handed, and reads it as the driver would.

As a program it compares, on a stand-in for Triton's driver that compiles for an H200, what images hand to CUDA with
what Triton's own launcher would: ``python fake_cuda.py``.
"""

from __future__ import annotations

import ctypes
import hashlib
import inspect
import os
import struct
from ctypes import POINTER, c_uint64, c_void_p, cast, string_at
from dataclasses import dataclass, field
from typing import Any

from gla_kernels.launch import cuda

INVALID_VALUE = 1
FIRST_HANDLE = 1000


@dataclass(frozen=True)
class Launched:
    """A launch as the driver reads it. attributes: number and value; parameters: the bytes of each."""

    function: int
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared_bytes: int
    stream: int
    attributes: tuple[tuple[int, int], ...]
    parameters: tuple[bytes, ...]


def encoded(address: int, *sort: Any) -> bytes:
    """A tensor map of this driver: the address, then what tells one sort of map from another."""
    return (struct.pack("<Q", address) + hashlib.sha512(repr(sort).encode()).digest()).ljust(128, b"\1")


@dataclass
class FakeCuda:
    """sizes: of a function's parameters, by its handle; encode: makes tensor maps; fails: the code that launches end
    with."""

    sizes: dict[int, list[int]] = field(default_factory=dict)
    encode: Any = encoded
    fails: int = 0
    entered: int | None = 1  # the context that is current in the thread
    launched: list[Launched] = field(default_factory=list)
    graphs: list[tuple[int, int]] = field(default_factory=list)  # launched: graph, stream
    captured: list[int] = field(default_factory=list)  # streams
    destroyed: list[int] = field(default_factory=list)
    handles: int = FIRST_HANDLE

    def cuFuncGetParamInfo(self, function: Any, index: Any, offset: Any, size: Any) -> int:
        if self.entered is None:
            return cuda.INVALID_CONTEXT
        sizes = self.sizes[function.value]
        if index.value >= len(sizes):
            return INVALID_VALUE
        size._obj.value = sizes[index.value]
        return 0

    def cuTensorMapEncodeTiled(
        self, at: Any, dtype: Any, rank: Any, address: Any, sizes: Any, steps: Any, boxes: Any, ones: Any,
        interleave: Any, swizzle: Any, l2: Any, fill: Any,
    ) -> int:  # fmt: skip
        if self.entered is None:
            return cuda.INVALID_CONTEXT
        assert at.value % 64 == 0
        assert len(sizes) == len(boxes) == rank.value
        assert list(ones) == [1] * rank.value
        sort = dtype.value, list(sizes), list(steps)[: rank.value - 1], list(boxes)
        text = self.encode(address.value, *sort, interleave.value, swizzle.value, l2.value, fill.value)
        ctypes.memmove(at.value, text, 128)
        return 0

    def cuDeviceGet(self, device: Any, index: Any) -> int:
        device._obj.value = index.value
        return 0

    def cuDevicePrimaryCtxRetain(self, context: Any, device: Any) -> int:
        context._obj.value = FIRST_HANDLE - 1 - device.value
        return 0

    def cuCtxSetCurrent(self, context: Any) -> int:
        self.entered = context.value
        return 0

    def cuLaunchKernelEx(self, at: Any, function: Any, parameters: Any, extra: Any) -> int:
        assert extra is None
        if self.entered is None:
            return cuda.INVALID_CONTEXT
        config = cuda.LaunchConfig.from_buffer_copy(string_at(at.value, ctypes.sizeof(cuda.LaunchConfig)))
        attributes = []
        for i in range(config.attribute_count):
            where = config.attributes + i * ctypes.sizeof(cuda.LaunchAttribute)
            one = cuda.LaunchAttribute.from_buffer_copy(string_at(where, ctypes.sizeof(cuda.LaunchAttribute)))
            attributes.append((one.id, one.value))
        sizes = self.sizes[function.value]
        table = cast(c_void_p(parameters.value), POINTER(c_uint64))
        assert all(table[i] % 64 == 0 for i, size in enumerate(sizes) if size == 128), "a tensor map is not aligned"
        found = tuple(string_at(table[i], size) for i, size in enumerate(sizes))
        self.launched.append(
            Launched(
                function.value,
                tuple(config.grid),
                tuple(config.block),
                config.shared_bytes,
                config.stream or 0,
                tuple(attributes),
                found,
            )
        )
        return self.fails

    def cuGetErrorString(self, code: int, text: Any) -> int:
        text._obj.value = f"planted error {code}".encode()
        return 0

    def cuStreamCreate(self, stream: Any, flags: Any) -> int:
        return self._new(stream)

    def cuStreamBeginCapture_v2(self, stream: Any, mode: Any) -> int:
        self.captured.append(stream.value)
        return 0

    def cuStreamEndCapture(self, stream: Any, graph: Any) -> int:
        return self._new(graph)

    def cuGraphInstantiateWithFlags(self, made: Any, graph: Any, flags: Any) -> int:
        return self._new(made)

    def cuGraphLaunch(self, made: Any, stream: Any) -> int:
        self.graphs.append((made.value, stream.value))
        return self.fails

    def cuGraphDestroy(self, graph: Any) -> int:
        return self._destroy(graph)

    def cuStreamDestroy_v2(self, stream: Any) -> int:
        return self._destroy(stream)

    def cuGraphExecDestroy(self, made: Any) -> int:
        return self._destroy(made)

    def _new(self, handle: Any) -> int:
        self.handles += 1
        handle._obj.value = self.handles
        return 0

    def _destroy(self, handle: Any) -> int:
        self.destroyed.append(handle.value)
        return 0


# --- As a program -----------------------------------------------------------------------------------------------------

KINDS = {"i1": "b", "i8": "b", "i16": "h", "i32": "i", "i64": "q", "fp32": "f", "fp64": "d"}
STREAM = 7


class TritonDriver:
    """Compiles for an H200, gives each kernel a function of its own, and notes what is launched through Triton."""

    def __init__(self) -> None:
        self.launched: list[tuple[Any, Any, tuple[Any, ...]]] = []  # signature, facts, what the launcher is called with
        self.functions = FIRST_HANDLE
        self.utils = self
        self.launch = None

    def launcher_cls(self, src: Any, metadata: Any) -> Any:
        return lambda *values: self.launched.append((src.signature, metadata, values))

    def load_binary(self, *_: Any) -> tuple[int, ...]:
        self.functions += 1
        return 1, self.functions, 128, 0, 1024

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": 232448}

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int = 0) -> int:
        return STREAM

    # as of Triton's own C: what is counted from the last axis on goes to the driver in the other order
    def fill_tma_descriptor_tiled(
        self, address: int, swizzle: int, size: int, dtype: int, block: Any, shape: Any, strides: Any, padding: int
    ) -> bytes:
        steps = [size * n for n in reversed(strides[:-1])]
        return encoded(address, dtype, list(reversed(shape)), steps, list(reversed(block)), 0, swizzle, 2, padding)

    fill_tma_descriptor = fill_tma_descriptor_tiled  # Triton 3.6


@dataclass
class At:
    """A tensor at an address."""

    address: int

    def data_ptr(self) -> int:
        return self.address


def by_triton(launched: tuple[Any, Any, tuple[Any, ...]], address_of: Any) -> Launched:
    """What Triton's launcher would hand to the driver, without what is for scratch memory."""
    from types import SimpleNamespace

    from triton.backends.nvidia.driver import make_tensordesc_arg

    signature, facts, (x, y, z, stream, function, *_, _hook, _exit) = *launched[:2], launched[2][:9]
    maps, found = iter(facts.tensordesc_meta or ()), list[bytes]()
    unused = [None] * (len(inspect.signature(make_tensordesc_arg).parameters) - 2)  # from Triton 3.8 on there is one
    for kind, value in zip(signature.values(), launched[2][9:], strict=True):
        if kind == "constexpr":
            continue
        if kind.startswith("tensordesc"):
            there = SimpleNamespace(**{**vars(value), "base": At(address_of(value.base))})
            text, *numbers = make_tensordesc_arg(there, next(maps), *unused)
            rank = len(value.shape)
            packed = [struct.pack("<i", n) for n in numbers[:rank]] + [struct.pack("<q", n) for n in numbers[rank:]]
            found += [text, *packed]
        elif kind.startswith("*"):
            found.append(struct.pack("<Q", address_of(value)))
        else:
            found.append(struct.pack(f"<{KINDS[kind]}", value))
    early = ((6, 1),) if facts.launch_pdl else ()
    block = (32 * facts.num_warps, 1, 1)
    return Launched(function, (x, y, z), block, facts.shared, stream, early, tuple(found))


def main() -> None:
    """Raises AssertionError where an image and Triton are not of one mind."""
    import torch
    from triton.backends.nvidia.compiler import CUDABackend
    from triton.runtime import driver

    from gla_kernels import Schedule
    from gla_kernels.launch import run
    from gla_kernels.ops.form import Inputs
    from gla_kernels.ops.gla_form import form_of
    from gla_kernels.ops.prepared import Prepared

    CUDABackend.make_cubin = lambda *_: b""  # nothing that is compared depends on machine code, and nobody runs any
    triton, fake = TritonDriver(), FakeCuda()
    driver.set_active(triton)
    cuda.driver = lambda: fake  # type: ignore[assignment]
    torch.cuda.is_current_stream_capturing = lambda: False  # which PyTorch without CUDA cannot tell
    kinds = set()
    for T, D, dtype, schedule in ((256, 64, torch.bfloat16, None), (70, 24, torch.float32, Schedule(16, 16, False))):
        q, k, v, g = (torch.empty(1, T, 2, D, dtype=dtype, device="meta") for _ in range(4))
        given = Inputs(q, k, v, g, None, None)
        form = form_of(given, torch.device("meta"), 0.125, schedule, True, False)
        prepared = Prepared(form, given, True, torch.device("meta"))
        programs = [prepared._forward.program, prepared._backward_program(True, (True,) * 4 + (False,) * 2)]
        for program in programs:
            image = None
            for start, apart in ((0x7F00_0000_0000, 2**28), (0x7E12_3456_7000, 2**30 + 512)):
                addresses = [start + apart * i for i in range(program.at_left + 2)]

                def address_of(x: Any, program: Any = program, addresses: list[int] = addresses) -> int:
                    base, offset = program.where(x)
                    return addresses[base] + offset

                triton.launched.clear()
                for launch in program.launches:
                    run.by_triton(launch)
                    kinds.add((launch.in_gluon, bool(launch.blocks), launch.early))
                expected = [by_triton(one, address_of) for one in triton.launched]
                fake.sizes = {one.function: [*map(len, one.parameters), 8, 8] for one in expected}
                image = image or program.image()
                fake.launched.clear()
                image.fire((STREAM, *addresses))
                assert len(fake.launched) == len(expected) == len(program.launches)
                for launch, got, want in zip(program.launches, fake.launched, expected, strict=True):
                    *parameters, scratch, profile = got.parameters
                    assert scratch == profile == bytes(8), launch.name
                    assert {**vars(got), "parameters": tuple(parameters)} == vars(want), (launch.name, got, want)
    assert {gluon for gluon, _, _ in kinds} == {descriptors for _, descriptors, _ in kinds} == {False, True}
    assert any(early for _, _, early in kinds)


if __name__ == "__main__":
    from triton import knobs

    # Nor on what LLVM makes faster. What is compiled so is kept apart from what runs.
    os.environ |= {"DISABLE_LLVM_OPT": "1", "TRITON_CACHE_DIR": os.path.join(knobs.cache.dir, "without-machine-code")}
    main()
