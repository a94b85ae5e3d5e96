"""Strong gates in passes, row by row: what one product reads from the wrong place is lost in a whole tensor's norm."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from gla_kernels import Plan, Schedule, Tile, Workload, gla, reference
from gla_kernels.plan.apply import launches_of
from gla_kernels.plan.choose import default_config
from gla_kernels.schedule import Direction

SCHEDULE = Schedule(64, 64, True)
TILES = [
    Tile(block_k, block_v, 4, stages, registers, descriptors=True)  # of output and of grad_v
    for block_k, block_v, stages, registers in (
        (32, 128, 3, 168),
        (32, 256, 3, 255),
        (32, 256, 2, 255),
        (64, 128, 3, 255),
    )
]
EPS = torch.finfo(torch.bfloat16).eps


def plan_of(K: int, V: int, tile: Tile) -> Plan:
    tile = replace(tile, block_v=min(tile.block_v, V))
    return Plan(SCHEDULE, replace(default_config(K, V, 2, SCHEDULE), output=tile, grad_v=tile))


@pytest.mark.gpu
@pytest.mark.parametrize("strength", [2.0, 8.0, 40.0])
@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize(("K", "V"), [(128, 128), (128, 256), (256, 256), (256, 512)])
def test_each_row_is_right(K: int, V: int, tile: Tile, strength: float) -> None:
    torch.manual_seed(0)
    q, k, v, g, do = (torch.randn(1, 517, 2, D, device="cuda", dtype=torch.bfloat16) for D in (K, K, V, K, V))
    given = [q, k, v, strength * torch.nn.functional.logsigmoid(g)]

    def made(form: Callable[..., Any], dtype: torch.dtype) -> list[torch.Tensor]:
        leaves = [x.to(dtype).requires_grad_() for x in given]
        o, _ = form(*leaves)
        return [x.double() for x in (o.detach(), *torch.autograd.grad(o, leaves, do.to(dtype)))]

    found = made(lambda *x: gla(*x, config=plan_of(K, V, tile)), torch.bfloat16)
    expected = made(reference.recurrent, torch.float64)
    for name, a, b in zip(("o", "dq", "dk", "dv", "dg"), found, expected, strict=True):
        off = (a - b).norm(dim=-1) / b.norm(dim=-1).amax()  # [B, T, H]
        assert off.max() < 4 * EPS, f"{name}: row {int(off.amax((0, 2)).argmax())} is off by {off.max():.1e}"


@pytest.mark.exhaustive
@pytest.mark.parametrize("K", [128, 64])
def test_products_read_from_where_operands_lie(K: int, compiling_process: Callable[..., str]) -> None:
    """Which the ptxas of CUDA 12.8 gets wrong where it may: glabench/hardware/descriptors.py."""
    assert compiling_process(__file__, str(K)) == "output []\ngrad_v []\n"


def main(K: int) -> None:
    """Print the products of both kernels that have lost an operand."""
    from glabench.hardware.crosscompile import compile_launch
    from glabench.hardware.descriptors import lost

    directions: dict[str, Direction] = {"output": "fwd", "grad_v": "bwd"}
    for step, direction in directions.items():
        launch = launches_of(Workload(direction, 4, 2048, 4, K, 256), plan_of(K, 256, TILES[1]))[step]
        print(step, lost(compile_launch(launch, "sm_90").asm["cubin"]))


if __name__ == "__main__":
    main(int(sys.argv[1]))
