"""Launches as the driver takes them: one block of memory that is ready to be fired, but for addresses.

A launch is a structure of numbers (grid, block, shared memory), an array of the addresses of its parameters, and the
parameters themselves, with a tensor map of 128 bytes for each tensor descriptor. All of it is worked out once and kept
as a template with relocations, as a linker keeps a program: which words hold an address, of what, and how far into it.
To bind the template to addresses is one sum over those words; what is bound is kept, for a training step meets the
same addresses again. Firing it is then one call of the driver a launch, with nothing to build or to check.

How Triton passes arguments is read off the compiled kernel and compared with what the driver says of the function;
where the two disagree, as they may with another Triton, `Unfit` is raised and Triton makes its launches itself.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import cuda
from .launch import Launch

# Of each launch the addresses of its structure and of its parameters' addresses, and between them its function.
Calls = tuple[tuple[ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p], ...]
Where = Callable[[Tensor], tuple[int, int]]  # of a tensor: which of the addresses it lies at, and how far behind it

OWN, STREAM, FIRST = 0, 1, 2  # what a word is relative to: the block's own address, the stream, the first address given
WORD = 8
# How often launches are made one by one before a graph is made of them, and how many firings at any addresses lie
# between two graphs: of many launches, which a graph saves more of, and of few.
MANY_LAUNCHES = 12
MANY, FEW = (2, 4), (6, 16)
MOST_BOUND = 256  # kept, of one image: twice the layers of a large model
FORMATS = {
    "i1": "b", "i8": "b", "i16": "h", "i32": "i", "i64": "q", "u1": "B", "u8": "B", "u16": "H", "u32": "I", "u64": "Q",
    "fp32": "f", "f32": "f", "fp64": "d",
}  # fmt: skip
ADDRESSES = (0x7F00_0000_0000, 0x7E12_3456_7000)  # any two


class Unfit(Exception):
    """A launch that cannot be made without Triton, in a line."""


class Bound:
    """Launches at addresses, on a stream. calls: for each its structure, function and parameters, which lie in
    ``memory``.

    What is fired again and again is handed to the driver as a graph (`Image.may_build`), and from then on all launches
    take about as long as one (kernels/NOTES.md, "What Python takes").
    """

    def __init__(self, image: Image, addresses: tuple[int, ...]) -> None:
        self.image, self.addresses = image, addresses
        self.memory, self.calls = image.bind(addresses)
        self.stream = ctypes.c_void_p(addresses[0])
        self.fired = 0
        self.graph: cuda.Graph | None = None

    def fire(self) -> None:
        """Make the launches, in order. Raises RuntimeError as the driver says."""
        if torch.cuda.is_current_stream_capturing():  # into a graph of the caller's
            make(self.calls)
            return
        if self.graph is None:
            self.fired += 1
            if not self.image.may_build(self.fired):
                make(self.calls)
                return
            self.graph = cuda.Graph(self._fire_on)
        cuda.call(cuda.driver().cuGraphLaunch, self.graph.made, self.stream)

    def _fire_on(self, stream: int) -> None:
        _memory, calls = self.image.bind((stream, *self.addresses[1:]))
        make(calls)


class Image:
    """Launches that are compiled, as a template: see this module's words. ``where``: how a tensor's address is found.

    Raises `Unfit`.
    """

    def __init__(self, launches: Sequence[tuple[Launch, Any]], where: Where) -> None:
        maker = _Maker(where)
        self._calls = [maker.add(launch, compiled) for launch, compiled in launches]
        self._compiled = [compiled for _, compiled in launches]  # whose functions these are
        self._template = np.frombuffer(bytes(maker.block), np.uint8)
        at, base, offset = zip(*maker.relocations, strict=True) if maker.relocations else ((), (), ())
        self._at = np.array(at, np.int64) // WORD
        self._base, self._offset = np.array(base, np.int64), np.array(offset, np.uint64)
        self._bound: dict[tuple[int, ...], Bound] = {}
        self._since_graph = 0

    def fire(self, addresses: tuple[int, ...]) -> None:
        """Make the launches on a stream, the first of the addresses, and the tensors' ones after it."""
        bound = self._bound.get(addresses)
        if bound is None:
            if len(self._bound) >= MOST_BOUND:
                del self._bound[next(iter(self._bound))]  # the oldest
            bound = self._bound[addresses] = Bound(self, addresses)
        self._since_graph += 1
        bound.fire()

    def may_build(self, fired: int) -> bool:
        """Whether launches that were fired so often at the same addresses are worth a graph, which takes as long to
        make as some ten firings save. Addresses that come and go are not, and no graphs are made one after another: a
        training step may meet new addresses in all of its layers."""
        times, apart = MANY if len(self._calls) >= MANY_LAUNCHES else FEW
        if fired <= times or self._since_graph < apart:
            return False
        self._since_graph = 0
        return True

    def bind(self, addresses: Sequence[int]) -> tuple[Any, Calls]:
        """The launches at addresses, as `fire` takes them: the memory that they lie in, and `make`'s argument."""
        room = np.empty(len(self._template) + cuda.TENSOR_MAP_BYTES, np.uint8)
        shift = -room.ctypes.data % cuda.TENSOR_MAP_BYTES
        block = room[shift : shift + len(self._template)]
        block[:] = self._template
        own = room.ctypes.data + shift
        bases = np.array([own, *addresses], np.uint64)
        block.view(np.uint64)[self._at] = bases[self._base] + self._offset
        calls = (
            (ctypes.c_void_p(own + config), ctypes.c_void_p(function), ctypes.c_void_p(own + parameters))
            for config, function, parameters in self._calls
        )
        return room, tuple(calls)


def make(calls: Calls) -> None:
    """Make launches, in order. Raises RuntimeError as the driver says."""
    launch = cuda.driver().cuLaunchKernelEx
    for config, function, parameters in calls:
        cuda.call(launch, config, function, parameters, None)


class _Maker:
    """Lays launches down one after another."""

    def __init__(self, where: Where) -> None:
        self.where = where
        self.block = bytearray()
        self.relocations: list[tuple[int, int, int]] = []  # position of a word, what it is relative to, by how much
        self.maps: dict[tuple[Any, ...], int] = {}

    def add(self, launch: Launch, compiled: Any) -> tuple[int, int, int]:
        """Where a launch's structure lies, its function, and where the addresses of its parameters lie."""
        facts = compiled.metadata
        if facts.num_ctas != 1 or facts.global_scratch_size or facts.profile_scratch_size:
            raise Unfit(f"{launch.name}: its launch takes more than its arguments")
        compiled._init_handles()  # loads it, as Triton's own first launch would
        parameters = list(chain.from_iterable(self._argument(launch, compiled)))
        sizes, known = [size for _, size in parameters], cuda.parameter_sizes(compiled.function)
        more = 2 if known is None else len(known) - len(sizes)  # scratch memory, of which there is none
        if known is not None and known != [*sizes, *([WORD] * more)]:
            raise Unfit(f"{launch.name}: expected parameters of {sizes} bytes, the driver says {known}")
        nothing = self._put(bytes(WORD))
        table = self._put(bytes(WORD * (len(sizes) + more)))
        for i, at in enumerate([*(at for at, _ in parameters), *([nothing] * more)]):
            self.relocations.append((table + WORD * i, OWN, at))
        return self._config(launch, facts), compiled.function, table

    def _config(self, launch: Launch, facts: Any) -> int:
        attributes = []
        if facts.launch_pdl:
            attributes.append(cuda.LaunchAttribute(cuda.PROGRAMMATIC_STREAM_SERIALIZATION, b"", 1))
        if facts.launch_cooperative_grid:
            attributes.append(cuda.LaunchAttribute(cuda.COOPERATIVE, b"", 1))
        at_attributes = self._put(b"".join(bytes(one) for one in attributes) or bytes(WORD))
        grid, block = (*launch.grid, 1, 1)[:3], (32 * facts.num_warps, 1, 1)
        config = cuda.LaunchConfig(grid, block, facts.shared, None, None, len(attributes))
        at = self._put(bytes(config))
        self.relocations.append((at + cuda.LaunchConfig.stream.offset, STREAM, 0))
        self.relocations.append((at + cuda.LaunchConfig.attributes.offset, OWN, at_attributes))
        return at

    def _argument(self, launch: Launch, compiled: Any) -> Any:
        """Of each argument, where its parameters lie and how many bytes they have."""
        values, maps = launch.arguments, iter(getattr(compiled.metadata, "tensordesc_meta", None) or ())
        for name, kind in zip(launch.kernel.arg_names, compiled.src.signature.values(), strict=True):
            if kind == "constexpr":
                continue
            if not isinstance(kind, str) or name not in values:
                raise Unfit(f"{launch.name}: {name} is no argument of a known kind, {kind!r}")
            value = values[name]
            if kind.startswith("tensordesc"):
                yield self._descriptor(value, next(maps, None))
            elif kind.startswith("*"):
                yield [self._address(value)]
            else:
                yield [self._number(kind, value)]

    def _address(self, x: Tensor) -> tuple[int, int]:
        at = self._put(bytes(WORD))
        base, offset = self.where(x)
        self.relocations.append((at, FIRST + base, offset))
        return at, WORD

    def _number(self, kind: str, value: float) -> tuple[int, int]:
        if kind not in FORMATS:
            raise Unfit(f"a number of the unknown kind {kind}")
        text = struct.pack(f"<{FORMATS[kind]}", value)
        return self._put(text), len(text)

    def _descriptor(self, value: Any, facts: dict[str, Any] | None) -> list[tuple[int, int]]:
        """Its tensor map, then its shape and its strides once more, as Triton passes them."""
        if facts is None or facts["fp4_padded"] or getattr(value, "round_f32_to_tf32", False):
            raise Unfit("a tensor descriptor of an unknown kind")
        base, offset = self.where(value.base)
        key = (base, offset, value.base.dtype, *value.shape, *value.strides, *facts["block_size"], facts["swizzle"])
        if key not in self.maps:
            text = _without_address(value, facts)
            self.maps[key] = self._put(text, cuda.TENSOR_MAP_BYTES)
            self.relocations.append((self.maps[key], FIRST + base, offset))
        sizes = [self._number("i32", n) for n in value.shape]
        return [(self.maps[key], cuda.TENSOR_MAP_BYTES), *sizes, *(self._number("i64", n) for n in value.strides)]

    def _put(self, text: bytes, alignment: int = WORD) -> int:
        """Where the bytes lie from now on."""
        self.block.extend(bytes(-len(self.block) % alignment))
        at = len(self.block)
        self.block.extend(text)
        self.block.extend(bytes(-len(self.block) % WORD))
        return at


def _without_address(value: Any, facts: dict[str, Any]) -> bytes:
    """A tensor map, whose first word is the tensor's address: that this is so is tried out on two addresses."""
    sort = (value.base.dtype, value.shape, value.strides, facts["block_size"], facts["swizzle"])
    found = [cuda.tensor_map(address, *sort) for address in ADDRESSES]
    if any(text[:WORD] != struct.pack("<Q", address) for text, address in zip(found, ADDRESSES, strict=True)):
        raise Unfit("a tensor map does not begin with its tensor's address")
    if found[0][WORD:] != found[1][WORD:]:
        raise Unfit("a tensor map holds its tensor's address elsewhere, too")
    return bytes(WORD) + found[0][WORD:]


def stream_of(device: int) -> int:
    """The current stream of a CUDA device, as the driver knows it."""
    stream: int = torch._C._cuda_getCurrentRawStream(device)
    return stream
