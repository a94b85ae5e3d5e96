"""A small kernel, cross-compiled in a process of its own (the tests' process interprets); prints JSON."""

from __future__ import annotations

import errno
import json
import os
import tempfile

import torch
import triton
import triton.language as tl
from triton.runtime.cache import FileCacheManager

from gla_kernels.launch import Launch
from glabench.hardware.crosscompile import cross_compile, specialise


@triton.jit
def product(a, b, c, n, stride, scale, BLOCK: tl.constexpr):
    rows = tl.arange(0, BLOCK)
    at = rows[:, None] * stride + rows[None, :]
    inside = (rows < n)[:, None]
    x = tl.load(a + at, mask=inside, other=0.0)
    y = tl.load(b + at, mask=inside, other=0.0)
    tl.store(c + at, tl.dot(x, y) * scale, mask=inside)


def launch(
    block: int = 64, n: int = 64, dtype: torch.dtype = torch.bfloat16, without: str = "", warps: int = 4
) -> Launch:
    a, b = (torch.empty(block, block, dtype=dtype, device="meta") for _ in range(2))
    c = torch.empty(block, block, dtype=torch.float32, device="meta")
    args = {"a": a, "b": b, "c": c, "n": n, "stride": 1, "scale": 0.5}
    return Launch(product, (1,), {k: v for k, v in args.items() if k != without}, {"BLOCK": block}, warps, 2)


def on_a_full_disk() -> str:
    """What is raised where Triton's cache cannot be written."""

    def put(*_: object, **__: object) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before, FileCacheManager.put = FileCacheManager.put, put
    try:
        return f"an entry: {cross_compile([launch()], 'sm_90')}"
    except OSError as error:
        return str(error)
    finally:
        FileCacheManager.put = before


def main() -> None:
    signature, constants, attributes = specialise(launch(n=48))
    try:
        specialise(launch(without="n"))
        missing = "no error"
    except TypeError as error:
        missing = str(error)
    found = {
        "full_disk": on_a_full_disk(),
        "twice_sm_80": cross_compile([launch(), launch()], "sm_80"),
        "twice_sm_90": cross_compile([launch(), launch()], "sm_90"),
        "twice_sm_100": cross_compile([launch(), launch()], "sm_100"),
        "again": cross_compile([launch()], "sm_90"),
        "two_kinds": cross_compile([launch(n=64), launch(n=63)], "sm_90"),
        "too_large": cross_compile([launch(block=256, warps=32)], "sm_80"),
        "broken": cross_compile([launch(block=48)], "sm_90"),  # tl.arange wants a power of two
        "signature": signature,
        "constants": constants,
        "divisible": sorted(i for (i,) in attributes),
        "missing": missing,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRITON_CACHE_DIR"] = folder  # an empty one, where every kernel is new
        main()
