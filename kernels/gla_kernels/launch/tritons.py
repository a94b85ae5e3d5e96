"""What Tritons 3.6 to 3.9 call differently, under one name each. All kernels are compiled and interpreted with the
oldest and the newest of them, by `.ci/stack`."""

# mypy: disallow-untyped-defs=False
from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma

# In kernels. Warps wait for each other: thread_barrier in 3.6. A tile comes to shared memory, and leaves it:
# async_copy_.. up to 3.7, which 3.9 has no more.
barrier = getattr(gl, "barrier", None) or gl.thread_barrier
async_load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
async_store = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global
# reinterpret in 3.9, _reinterpret before.
_NAMED = gl.constexpr(hasattr(getattr(gl, "shared_memory_descriptor", None), "reinterpret"))


@gluon.jit
def reinterpreted(s_x, dtype: gl.constexpr, shape: gl.constexpr, layout: gl.constexpr):
    """Shared memory as that of other numbers."""
    if _NAMED:
        return s_x.reinterpret(dtype, shape, layout)
    else:  # noqa: RET505 - only one of both is compiled
        return s_x._reinterpret(dtype, shape, layout)


def masked_load(builder: Any) -> Callable[[Any, Any, Any], Any]:
    """The interpreter's load of a tile from pointers, where the mask is false of another, with nothing said about
    caches, which takes two arguments up to 3.8 and one in 3.9."""
    load = builder.create_masked_load
    caches = len(inspect.signature(load).parameters) - 4  # but for pointers, mask, what is there elsewhere, volatile
    unsaid = [None] * caches
    return lambda pointers, mask, other: load(pointers, mask, other, *unsaid, False)


def masked_store(builder: Any) -> Callable[[Any, Any, Any], Any]:
    """Likewise the interpreter's store: pointers, tile, mask."""
    store = builder.create_masked_store
    caches = len(inspect.signature(store).parameters) - 3
    return lambda pointers, tile, mask: store(pointers, tile, mask, *([None] * caches))


def index_of(number: Any) -> int:
    """An interpreted number of integers as Python's: of the array of one that Triton 3.6 keeps it in NumPy 2.4 makes
    none."""
    return int(number.handle.data.squeeze())
