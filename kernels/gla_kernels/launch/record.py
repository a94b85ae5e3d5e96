"""Host code run once, on tensors without data, for all that it would launch: a `Program`, fired at addresses later.

Host code allocates tensors and hands launches to a function; which ones depends on shapes, dtypes and flags alone. So
it runs on the meta device, and every tensor that a launch is given is known by its memory: that of an input, that of a
result, or scratch. Scratch becomes one allocation, in which buffers that are not in use at the same time share bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from .image import Image
from .launch import Launch, Launcher
from .run import ALIGNED, compile_launch, execute

ALIGNMENT = 512  # of buffers, as the allocator has it
_FOR_CPU = ContextVar("for_cpu", default=False)

# What host code may ask of PyTorch while it is recorded: memory, and views of it.
ALLOWED = frozenset(
    (
        "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "view", "slice", "select",
        "unsqueeze", "as_strided", "alias", "detach", "_unsafe_view", "permute", "transpose", "t", "expand", "narrow",
    )
)  # fmt: skip


class Memory:
    """Tensors on the meta device by the memory that they are views of."""

    def __init__(self) -> None:
        self._known: list[Tensor] = []  # so that none is freed, and its place taken by another
        self._found: dict[int, int] = {}

    def add(self, x: Tensor) -> int:
        """Which memory the tensor is in, a number that counts from 0."""
        storage = x.untyped_storage()._cdata
        if storage not in self._found:
            self._found[storage] = len(self._known)
            self._known.append(x)
        return self._found[storage]

    def __contains__(self, x: Tensor) -> bool:
        return x.untyped_storage()._cdata in self._found

    def bytes_of(self, memory: int) -> int:
        return int(self._known[memory].untyped_storage().nbytes())


class _OnlyMemory(TorchDispatchMode):
    """Refuses what PyTorch would compute, for nothing of it would be there when the launches are made again."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """From 2.11 on PyTorch's compiler would be imported, for seconds, to leave this out: it does so by itself."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__.partition(".")[0]
        if name not in ALLOWED:
            raise RuntimeError(f"host code computes with PyTorch, {name}, and launches nothing for it")
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True)
class Sort:
    """A tensor without its data."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    stride: tuple[int, ...]

    @classmethod
    def of(cls, x: Tensor) -> Sort:
        """Of a tensor. One that is contiguous gets the strides that it has by itself: an axis of one element may have
        any."""
        sort = cls(tuple(x.shape), x.dtype, tuple(x.stride()))
        return sort.contiguous() if x.is_contiguous() else sort

    @cached_property
    def is_contiguous(self) -> bool:
        return self == self.contiguous()

    def contiguous(self) -> Sort:
        """Of the same shape, contiguous."""
        return Sort(self.shape, self.dtype, tuple(torch.empty(self.shape, device="meta").stride()))

    def describes(self, x: Tensor) -> bool:
        """Whether a tensor lies so, at an address that 16 bytes divide, with no sign that is turned as it is read."""
        lies = x.stride() == self.stride or (x.is_contiguous() and self.is_contiguous)
        return lies and not x.data_ptr() % ALIGNED and not x.is_neg()

    def laid(self, x: Tensor) -> Tensor:
        """The tensor, or a copy of it that lies so; elements that share memory are taken for equal."""
        if self.describes(x):
            return x
        made = torch.empty_strided(self.shape, self.stride, dtype=x.dtype, device=x.device)
        into, of = made, x.expand(self.shape)
        for axis, step in enumerate(self.stride):
            if step == 0 and self.shape[axis]:
                into, of = into.narrow(axis, 0, 1), of.narrow(axis, 0, 1)
        into.copy_(of)
        return made

    def on_meta(self) -> Tensor:
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device="meta")


@dataclass(frozen=True)
class Place:
    """A tensor that is left for later: which of the program's addresses it lies at, and how many bytes behind it."""

    sort: Sort
    base: int
    offset: int


@dataclass(frozen=True)
class Program:
    """All launches of one direction of a call.

    launches: on tensors of the meta device. results: what the host code returned, but for what it left for later, at
    the addresses from at_results on; None of what there is not. places: of each memory, which of the addresses it lies
    at, and how many bytes behind it. left: of the tensors left for later; left_bytes: of the block of those among them
    that are neither inputs nor results; scratch_bytes: of what is needed while the program runs.
    """

    launches: tuple[Launch, ...]
    memory: Memory
    places: dict[int, tuple[int, int]]
    at_results: int
    results: tuple[Sort | None, ...]
    left: tuple[Place | None, ...]
    left_bytes: int
    scratch_bytes: int

    @property
    def at_left(self) -> int:
        """The address of the block of what is left for later: inputs and results come before it, scratch after it."""
        return self.at_results + len(self.results)

    def where(self, x: Tensor) -> tuple[int, int]:
        """Which of the addresses a tensor of a launch lies at, and how many bytes behind it."""
        base, offset = self.places[self.memory.add(x)]
        return base, offset + x.data_ptr()  # on the meta device, counted from the start of its memory

    def image(self) -> Image:
        """The launches, compiled for the current device. Raises `image.Unfit`, and what Triton raises."""
        return Image([(launch, compile_launch(launch)) for launch in self.launches], self.where)

    def run(self, tensors: Sequence[Tensor | None]) -> None:
        """Make the launches one by one, with tensors at the addresses: in Triton's interpreter, or by Triton."""
        for launch in self.launches:
            args = {name: self._at(x, tensors) if isinstance(x, Tensor) else x for name, x in launch.args.items()}
            execute(replace(launch, args=args))

    def _at(self, x: Tensor, tensors: Sequence[Tensor | None]) -> Tensor:
        """The tensor of a launch, at the addresses."""
        base, offset = self.where(x)
        under = tensors[base]
        if under is None:  # a block of no bytes
            assert not x.numel()
            device = next(one.device for one in tensors if one is not None)
            return torch.empty_like(x, device=device)
        first = under.storage_offset() * under.element_size() + offset
        made = torch.empty(0, dtype=x.dtype, device=under.device)
        return made.set_(under.untyped_storage(), first // x.element_size(), x.shape, x.stride())


Host = Callable[[Launcher], tuple[Sequence[Tensor | None], Sequence[Tensor | None]]]


def on_cpu(x: Tensor) -> bool:
    """Whether launches on the tensor are the interpreter's, which knows no Gluon: it is on the CPU, or `record` is at
    work for one."""
    return x.device.type == "cpu" or _FOR_CPU.get()


def record(
    host: Host, inputs: Sequence[Tensor | None], device: torch.device,
    blocks: Sequence[tuple[Tensor | None, int, int]] = (),
) -> Program:  # fmt: skip
    """The program of host code, which returns its results and what it leaves for later. inputs: tensors of the meta
    device, which have the first addresses. device: on which it will run. blocks: further tensors that share one
    address, each with its number and how many bytes behind it it lies. Raises RuntimeError where the host code does
    more than to launch.
    """
    memory, places = Memory(), dict[int, tuple[int, int]]()
    for i, x in enumerate(inputs):
        if x is not None:
            places[memory.add(x)] = (i, 0)
    for x, base, offset in blocks:
        if x is not None:
            places[memory.add(x)] = (base, offset)
    first = 1 + max((len(inputs) - 1, *(base for _, base, _ in blocks)))
    launches: list[Launch] = []
    before = _FOR_CPU.set(device.type == "cpu")
    try:
        with _OnlyMemory():
            results, left = host(lambda launch: launches.append(launch) if prod(launch.grid) else None)
    finally:
        _FOR_CPU.reset(before)
    for i, x in enumerate(results):
        if x is not None:
            if x in memory or x.untyped_storage().nbytes() != x.nbytes or not x.is_contiguous():
                raise RuntimeError("a result shares its memory")
            places[memory.add(x)] = (first + i, 0)
    at_left, at_scratch = first + len(results), first + len(results) + 1
    kept, left_bytes = _keep(left, memory, places, at_left)
    scratch = _uses(launches, memory, places)
    offsets, scratch_bytes = _share(scratch, memory)
    places |= {buffer: (at_scratch, offsets[buffer]) for buffer in offsets}
    sorts = tuple(None if x is None else Sort.of(x) for x in results)
    return Program(tuple(launches), memory, places, first, sorts, kept, left_bytes, scratch_bytes)


def _keep(
    left: Iterable[Tensor | None], memory: Memory, places: dict[int, tuple[int, int]], at_left: int
) -> tuple[tuple[Place | None, ...], int]:
    """Where tensors that are left for later lie, those without a place in one block at an address of its own, and the
    block's bytes. Their places are noted."""
    found, size = list[Place | None](), 0
    for x in left:
        if x is None:
            found.append(None)
            continue
        if not x.is_contiguous() or x.data_ptr() or x.nbytes != x.untyped_storage().nbytes():
            raise RuntimeError("what is left for later shares its memory")
        buffer = memory.add(x)
        if buffer not in places:
            places[buffer] = (at_left, size)
            size += -(-x.nbytes // ALIGNMENT) * ALIGNMENT
        found.append(Place(Sort.of(x), *places[buffer]))
    return tuple(found), size


def _uses(launches: Iterable[Launch], memory: Memory, places: dict[int, Any]) -> dict[int, tuple[int, int]]:
    """The first and the last launch that takes each memory which has no place yet."""
    uses: dict[int, tuple[int, int]] = {}
    for i, launch in enumerate(launches):
        for x in launch.args.values():
            if isinstance(x, Tensor) and (buffer := memory.add(x)) not in places:
                uses[buffer] = (uses.get(buffer, (i, i))[0], i)
    return uses


def _share(uses: dict[int, tuple[int, int]], memory: Memory) -> tuple[dict[int, int], int]:
    """Where buffers lie in one allocation, and its bytes: the largest first, each at the lowest offset where no buffer
    lies that is in use at the same time. A launch may begin before the one before it is done (`Launch.early`), so
    buffers of neighbours share nothing, either."""
    offsets: dict[int, int] = {}
    for buffer in sorted(uses, key=lambda one: -memory.bytes_of(one)):
        size, (first, last) = memory.bytes_of(buffer), uses[buffer]
        beside = [one for one in offsets if uses[one][0] <= last + 1 and first <= uses[one][1] + 1]
        offset = 0
        for one in sorted(beside, key=offsets.__getitem__):
            if offset + size <= offsets[one]:
                break
            offset = max(offset, -(-(offsets[one] + memory.bytes_of(one)) // ALIGNMENT) * ALIGNMENT)
        offsets[buffer] = offset
    return offsets, max((offsets[one] + memory.bytes_of(one) for one in offsets), default=0)
