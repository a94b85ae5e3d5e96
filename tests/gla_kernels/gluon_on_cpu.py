"""Kernels in Gluon, run on a CPU: their Python source, with stand-ins in PyTorch for the language.

Groups of warps take turns, each as one warp would be; layouts and fences mean nothing. What a GPU does meanwhile is
done as late as it may be: a tile that was sent for comes when a barrier is waited for, and is NaN until then; a product
reads shared memory, and a tile leaves it, when that is waited for. Shared memory is NaN until it is written. Each group
of warps is the slow one once, and the results must be the same. So wrong indices, masks, signs and roundings show, and
most of what is not waited for, but no race between the warps of a group. What is written in assembly is given in
PyTorch (`ASSEMBLY`).
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gla_kernels.launch import Launch

NAN = float("nan")

_now = threading.local()  # of a group of warps: its turns, and what it has begun, products and tiles that leave


# --- Memory -----------------------------------------------------------------------------------------------------------


class Shared:
    """A place in shared memory; all that is made of it is a view."""

    def __init__(self, data: Tensor) -> None:
        self.data = data

    @property
    def shape(self) -> torch.Size:
        return self.data.shape

    @property
    def dtype(self) -> torch.dtype:
        return self.data.dtype

    def index(self, at: Any) -> Shared:
        return Shared(self.data[int(at)])

    def permute(self, order: Sequence[int]) -> Shared:
        return Shared(self.data.permute(*order))

    def slice(self, start: int, length: int, dim: int) -> Shared:
        return Shared(self.data.narrow(dim, start, length))

    def reshape(self, shape: Sequence[int]) -> Shared:
        return Shared(self.data.view(*shape))

    def _reinterpret(self, dtype: torch.dtype, shape: Sequence[int], layout: Any) -> Shared:
        return Shared(self.data.view(-1).view(dtype)[: math.prod(shape)].view(*shape))

    def load(self, layout: Any) -> Tensor:
        return self.data.clone()

    def store(self, x: Tensor) -> None:
        assert x.dtype == self.data.dtype
        self.data.copy_(x)


class Pointer:
    """A place, or a tile of places, in a tensor."""

    def __init__(self, x: Tensor, at: Any = 0) -> None:
        self.x, self.at = x.view(-1), at

    def __add__(self, offset: Any) -> Pointer:
        return Pointer(self.x, self.at + offset)


class Described:
    """A tensor descriptor: rows [B, T, H, D] as [B, T, H*D], or states [.., K, V] as a matrix."""

    layout = None

    def __init__(self, x: Tensor, block: tuple[int, ...]) -> None:
        self.x = x.flatten(-2) if len(block) == 3 else x.view(-1, x.shape[-1])
        self.dtype = x.dtype

    def part(self, at: Sequence[Any], shape: Sequence[int]) -> tuple[Tensor, tuple[slice, ...]]:
        """What of a block from ``at`` on lies in the tensor, and where in the block that is."""
        spans = [(int(i), min(int(i) + n, size)) for i, n, size in zip(at, shape, self.x.shape, strict=True)]
        view = self.x[tuple(slice(i, max(end, i)) for i, end in spans)]
        return view, tuple(slice(0, max(end - i, 0)) for i, end in spans)


def _load(p: Pointer, mask: Any = None, other: float = 0.0) -> Tensor:
    at = torch.as_tensor(p.at)
    if mask is None:
        return p.x[at]
    mask = mask.expand(at.shape)
    return torch.where(mask, p.x[torch.where(mask, at, 0)], other)


def _store(p: Pointer, x: Tensor, mask: Any = True) -> None:
    at = torch.as_tensor(p.at)
    kept = torch.as_tensor(mask).expand(at.shape)
    p.x[at[kept]] = x.expand(at.shape)[kept].to(p.x.dtype)


# --- Barriers, and tiles that come and go -----------------------------------------------------------------------------


class Barrier:
    """A tile that was sent for comes when somebody waits."""

    def __init__(self) -> None:
        self.phase, self.count, self.arrivals, self.bytes = 0, 1, 1, 0
        self.coming: list[tuple[Callable[[], None], int]] = []

    def arrive(self, sent_for: int = 0) -> None:
        self.arrivals -= 1
        self.bytes += sent_for
        self._done()
        _let_others_run()

    def wait(self, parity: int) -> None:
        _let_others_run()
        while self.phase & 1 == parity:
            for come, size in self.coming:
                come()
                self.bytes -= size
            self.coming.clear()
            self._done()
            if self.phase & 1 == parity:
                _wait_until(lambda: self.phase & 1 != parity or self.coming)

    def _done(self) -> None:
        if self.arrivals == self.bytes == 0:
            self.phase, self.arrivals = self.phase + 1, self.count


class Barriers(list[Barrier]):
    """Some of them."""

    def index(self, at: Any) -> Any:  # type: ignore[override]  # as Gluon has it, not as a list does
        return self[int(at)]


class mbarrier:
    MBarrierLayout = staticmethod(lambda: None)

    @staticmethod
    def init(bar: Barrier, count: int) -> None:
        bar.count = bar.arrivals = count

    @staticmethod
    def expect(bar: Barrier, size: int, pred: Any = True) -> None:
        if pred:
            bar.arrive(size)

    @staticmethod
    def arrive(bar: Barrier, count: int = 1, pred: Any = True) -> None:
        if pred:
            bar.arrive()

    @staticmethod
    def wait(bar: Barrier, phase: Any, pred: Any = True) -> None:
        if pred:
            bar.wait(int(phase))


class tma:
    @staticmethod
    def async_load(d_x: Described, at: Sequence[Any], bar: Barrier, s_x: Shared, pred: Any = True) -> None:
        def come() -> None:
            part, where = d_x.part(at, s_x.shape)
            s_x.data.zero_()
            s_x.data[where] = part

        if pred:
            s_x.data.fill_(NAN)
            bar.coming.append((come, s_x.data.numel() * s_x.data.element_size()))

    @staticmethod
    def async_store(d_x: Described, at: Sequence[Any], s_x: Shared) -> None:
        part, where = d_x.part(at, s_x.shape)
        _begun("tiles").append(lambda: part.copy_(s_x.data[where]))

    @staticmethod
    def store_wait(left: int) -> None:
        _wait("tiles", left)


def _begun(kind: str) -> list[Callable[[], Any]]:
    if not hasattr(_now, kind):
        setattr(_now, kind, [])
    begun: list[Callable[[], Any]] = getattr(_now, kind)
    return begun


def _wait(kind: str, left: int) -> None:
    begun = _begun(kind)
    while len(begun) > left:
        begun.pop(0)()


# --- Products ---------------------------------------------------------------------------------------------------------


class Product:
    """acc + a @ b that may not be there yet."""

    def __init__(self, a: Any, b: Shared, acc: Any) -> None:
        self.a, self.b, self.acc = a, b, acc
        self.value: Tensor | None = None

    def make(self) -> None:
        a = self.a.data if isinstance(self.a, Shared) else self.a
        assert a.dtype == self.b.data.dtype == torch.bfloat16
        self.value = a.float() @ self.b.data.float()
        if self.acc is not None:
            self.value = self.value + _there(self.acc)


def _there(x: Any) -> Any:
    if not isinstance(x, Product):
        return x
    return x if x.value is None else x.value


def _multiply(a: Any, b: Shared, acc: Any, use_acc: Any = True, is_async: bool = False) -> Product:
    product = Product(a, b, acc if use_acc else None)
    _begun("products").append(product.make)
    return product


def _waited(left: int, x: Sequence[Any]) -> Any:
    _wait("products", left)
    found = tuple(_there(one) for one in x)
    return found[0] if len(found) == 1 else found


# --- The language -----------------------------------------------------------------------------------------------------


class Groups:
    """Groups of warps: threads that take turns, each until it waits for another. The slow one lets the others run
    before it waits for them and after it has told them something, and has its turn when all of them wait."""

    def __init__(self, parts: Sequence[tuple[Callable[..., None], tuple[Any, ...]]], slow: int) -> None:
        self.slow, self.failed = slow, list[BaseException]()
        self.until: dict[int, Callable[[], Any]] = {i: lambda: True for i in range(len(parts))}  # what those wait for
        self.turn = [threading.Semaphore(0) for _ in parts]
        self.threads = [threading.Thread(target=self._run, args=(i, *part)) for i, part in enumerate(parts)]

    def run(self) -> None:
        for thread in self.threads:
            thread.start()
        self._next()
        for thread in self.threads:
            thread.join()
        if self.failed:
            raise self.failed[0]

    def wait(self, i: int, until: Callable[[], Any]) -> None:
        self.until[i] = until
        self._next()
        self.turn[i].acquire()
        assert not self.failed, "another group failed"

    def _run(self, i: int, function: Callable[..., None], given: tuple[Any, ...]) -> None:
        self.turn[i].acquire()
        _now.groups, _now.i = self, i
        try:
            if not self.failed:
                function(*given)
                _wait("tiles", 0)
        except BaseException as error:
            self.failed.append(error)
        self._next()

    def _next(self) -> None:
        """Hand on the turn; once one has failed, any gets it, and ends."""
        order = sorted(self.until, key=lambda i: i == self.slow)
        ready = [i for i in order if self.failed or self.until[i]()]
        if order and not ready:
            self.failed.append(AssertionError("a barrier was waited for in vain"))
        for i in (ready or order)[:1]:
            del self.until[i]
            self.turn[i].release()


def _wait_until(true: Callable[[], Any]) -> None:
    groups: Groups | None = getattr(_now, "groups", None)
    assert groups is not None, "a barrier was waited for in vain"
    groups.wait(_now.i, true)


def _let_others_run() -> None:
    groups: Groups | None = getattr(_now, "groups", None)
    if groups is not None and groups.slow == _now.i:
        groups.wait(_now.i, lambda: True)


def _specialize(parts: Sequence[tuple[Callable[..., None], tuple[Any, ...]]], *_: Any) -> None:
    """Run the parts side by side."""
    gl.groups = len(parts)
    Groups(parts, gl.slow).run()


def _allocate(dtype: torch.dtype, shape: Sequence[int], layout: Any = None) -> Any:
    if dtype is torch.int64:
        return Barriers(Barrier() for _ in range(shape[0])) if len(shape) > 1 else Barrier()
    return Shared(torch.full(tuple(shape), NAN, dtype=dtype))


class Layout:
    """Of any kind: none of its fields is asked for."""

    def __init__(self, *_: Any) -> None:
        self.value = self


class gl:
    bfloat16, float32, float64 = torch.bfloat16, torch.float32, torch.float64
    int8, int32, int64 = torch.int8, torch.int32, torch.int64
    NVMMADistributedLayout = NVMMASharedLayout = SwizzledSharedLayout = BlockedLayout = Layout
    DotOperandLayout = SliceLayout = DistributedLinearLayout = Layout
    constexpr = staticmethod(lambda x: x)
    static_range = range
    program_id: Callable[[int], Tensor]
    groups, slow = 1, 0  # of warps, and which of them is the slow one
    warp_specialize = staticmethod(_specialize)
    allocate_shared_memory = staticmethod(_allocate)
    load, store = staticmethod(_load), staticmethod(_store)
    to_tensor = staticmethod(torch.as_tensor)
    convert_layout = staticmethod(lambda x, *_: x)
    exp2 = staticmethod(torch.exp2)
    log2 = staticmethod(lambda x: torch.log2(torch.as_tensor(x)))
    arange = staticmethod(lambda start, end, layout=None: torch.arange(start, end, dtype=torch.int32))
    zeros = staticmethod(lambda shape, dtype, layout=None: torch.zeros(*shape, dtype=dtype))
    full = staticmethod(lambda shape, value, dtype, layout=None: torch.full(tuple(shape), value, dtype=dtype))
    where = staticmethod(lambda m, x, y: torch.where(torch.as_tensor(m), x, y))
    sum = staticmethod(lambda x, axis: x.sum(axis))
    min = staticmethod(lambda x, axis: x.amin(axis))
    minimum = staticmethod(lambda x, y: torch.minimum(torch.as_tensor(x), torch.as_tensor(y)))

    @staticmethod
    def maximum(x: Any, y: Any, propagate_nan: Any = None) -> Tensor:
        x = torch.as_tensor(x)
        return torch.maximum(x, torch.as_tensor(y, dtype=x.dtype))


def _leading(x: Tensor) -> Tensor:
    return (x.view(torch.int32) & -0x10000).view(torch.float32)


def _with_rest(x: Tensor, rest: Tensor, at: int) -> Tensor:
    byte = rest.view(torch.int8).unflatten(-1, (-1, 4))[..., at].int()
    return (x.float().view(torch.int32) + (byte << 8) + (byte & 0xFF)).view(torch.float32)


def _cut_off(x: Tensor, rest: Tensor, at: int) -> tuple[Tensor, Tensor]:
    x, rest = (x.view(torch.int32) | 1).view(torch.float32), rest.clone()
    rest.view(torch.int8).unflatten(-1, (-1, 4))[..., at] = (x.view(torch.int32) >> 8).to(torch.int8)
    return x.to(torch.bfloat16), rest


ASSEMBLY: dict[str, Callable[..., Any]] = {
    "wide": lambda x: x.float(),
    "bits": lambda x: x.view(torch.int32),
    "rounded": lambda x: x.to(torch.bfloat16),
    "leading": lambda x: _leading(x).to(torch.bfloat16),
    "rest": lambda x: x - _leading(x),
    "with_rest": _with_rest,
    "cut_off": _cut_off,
    "inverse_exp2": lambda x: torch.exp2(-x),
    "either": lambda x, y, m: torch.where(m, x, y),
    "_kept": lambda x, m: torch.where(m, x, 0),
    "_larger": lambda x, y: torch.maximum(x, y),
    "_fine": lambda x: _leading(x) + _leading(x - _leading(x)),
    "_inverse": lambda x: 1 / x,
    "_prefetch": lambda *_: None,
}
HOPPER: dict[str, Any] = {
    "gl": gl, "mbarrier": mbarrier, "tma": tma, "async_load": tma.async_load, "async_store": tma.async_store,
    "barrier": lambda: None, "fence_async_shared": lambda: None,
    "warpgroup_mma": _multiply, "warpgroup_mma_wait": _waited, "warpgroup_mma_init": lambda x: x,
    "gdc_wait": lambda: None, "gdc_launch_dependents": lambda: None,
}  # fmt: skip


@functools.cache  # kernels share most of what they import, and each launch asks again
def _names(module: Any) -> dict[str, Any]:
    """A module of Gluon's with stand-ins for the language, and what it imports from others of ours, likewise."""
    names: dict[str, Any] = {"__name__": module.__name__}
    tree = ast.parse(inspect.getsource(module))
    kept: list[ast.stmt] = []
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.level:
            other = importlib.import_module("." * node.level + str(node.module), module.__package__)
            used = _names(other) if "gluon" in vars(other) else vars(other)
            names |= {alias.asname or alias.name: used[alias.name] for alias in node.names}
        elif isinstance(node, ast.FunctionDef) and node.name not in ASSEMBLY | HOPPER:
            node.decorator_list = []
            kept.append(node)
        elif isinstance(node, ast.Assign) and not isinstance(node.value, ast.BoolOp):  # names that Triton has or not
            kept.append(node)
    names |= HOPPER | ASSEMBLY
    source = ast.parse("from __future__ import annotations")
    source.body += kept
    exec(compile(ast.fix_missing_locations(source), module.__file__, "exec"), names)
    return names


def run(launch: Launch) -> None:
    """Run a launch of a kernel in Gluon, one program after another, as often as it has groups of warps. Raises
    AssertionError where what comes of it depends on which of these is slow, or where one waits in vain."""
    names, given = _names(inspect.getmodule(launch.kernel.fn)), _given(launch)
    tensors = [x for x in launch.args.values() if isinstance(x, Tensor)]
    gl.groups, gl.slow, before, at_first = 1, 0, None, [x.clone() for x in tensors]
    while gl.slow < gl.groups:
        for x, was in zip(tensors, at_first, strict=True):
            x.copy_(was)  # what is carried on in place
        for program in range(math.prod(launch.grid)):
            gl.program_id = staticmethod(lambda axis, program=program: torch.tensor(program))
            names[launch.kernel.fn.__name__](**given)
            _wait("tiles", 0)
        after = [x.contiguous().view(torch.uint8).clone() for x in tensors]
        assert before is None or all(map(torch.equal, before, after)), "it depends on who is slow"
        gl.slow, before = gl.slow + 1, after


def _given(launch: Launch) -> dict[str, Any]:
    """The kernel's arguments."""
    given: dict[str, Any] = dict(launch.constants)
    for name in launch.kernel.arg_names:
        if name.startswith("d_"):
            x = launch.args[f"p_{name[2:]}"]
            given[name] = None if x is None else Described(x, launch.blocks[name[2:]])
        elif name in launch.args:
            value = launch.args[name]
            given[name] = Pointer(value) if isinstance(value, Tensor) else value
    return given
