"""The kernels of pools compile for an A100 and an H100, and spill nothing at the sizes of the paper's models."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

CODE = """
import json, sys
import torch
from gla_kernels import pool
from glabench.hardware.crosscompile import cross_compile

def empty(*shape, dtype=torch.bfloat16):
    return torch.empty(*shape, dtype=dtype, device="meta")

B, H, K, V, launches = 8, 4, 128, 128, []
target = sys.argv[1]
indices = empty(B, dtype=torch.int32)
# of an A100 one type: registers are as many as on an H100, where each type is compiled
for dtype in (torch.bfloat16,) if target == "sm_80" else (torch.float32, torch.bfloat16, torch.float8_e4m3fn):
    scales = empty(16, H, V, dtype=torch.float32) if dtype.itemsize == 1 else None
    state, q = empty(16, H, K, V, dtype=dtype), empty(B, H, K)
    pool.step(q, q, q, q, state, indices, 1.0, launches.append, scales=scales)
    counts = empty(16, H, pool.COUNTS, dtype=torch.int32)
    if dtype == torch.bfloat16:
        pool.step(q, q, q, q, state, indices, 1.0, launches.append, times=counts, counted=True)
    for n in (1, 4):
        rows = empty(16, H, pool.rows_of_tail(8, n), K)
        slots = pool.Slots(state, scales, rows, rows, rows, counts, 8, False, False)
        q = empty(B, n, H, K)
        pool.replay(q, q, q, q, slots, indices, indices, 1.0, launches.append)
    pool.write(slots, indices, pool.read(slots, indices, None, launches.append), launches.append)
compiled = cross_compile(launches, target)
print(json.dumps([[one[need] for need in ("kernel", "error", "spill_bytes")] for one in compiled]))
"""


KERNELS = ("pool_step", "pool_tick", "replay", "read", "write")


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_kernels_compile_without_spills(target, compiling_process: Callable[..., str]):
    found = json.loads(compiling_process("-c", CODE, target))
    assert {kernel for kernel, _, _ in found} == {f"{name}_kernel" for name in KERNELS}
    assert [one for one in found if one[1] or one[2]] == []
