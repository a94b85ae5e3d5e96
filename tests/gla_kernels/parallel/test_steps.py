"""The steps of a rank's call as they are recorded for an H100, on tensors without data: nothing is launched."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gla_kernels import Machine, Workload
from gla_kernels.ops.form import Inputs
from gla_kernels.ops.forms import Chunkwise
from gla_kernels.parallel.chunkwise import InSteps, Steps, fits
from gla_kernels.parallel.ranks import Ranks
from gla_kernels.plan.choose import chosen

H100 = Machine(90, "NVIDIA H100 80GB HBM3")
SHAPES = [  # walks of both kinds, in segments and not; and passes
    (1, 32768, 16, 128, 128), (1, 32768, 4, 256, 512), (8, 2048, 32, 256, 256), (2, 640, 2, 32, 64),
]  # fmt: skip


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_step_is_recorded(shape: tuple[int, ...], rank: int, keep: bool) -> None:
    B, T, H, K, V = shape
    fwd, bwd = (chosen(Workload(direction, B, T, H, K, V), H100).plan for direction in ("fwd", "bwd"))
    form = Chunkwise(K**-0.5, fwd, bwd, keep)
    assert fits(form)
    q, k, g, v = (torch.empty(B, T, H, size, dtype=torch.bfloat16, device="meta") for size in (K, K, K, V))
    state = torch.empty(B, H, K, V, device="meta")
    call = InSteps(Steps(form), Ranks(None, rank, 3), Inputs(q, k, v, g, None, state))
    o, final = call.forward(gathered(call.message()))
    assert (o.shape, final.shape) == (v.shape, state.shape)
    call.take(call.left())
    *found, _, d_initial = call.gradients(gathered(call.owed(torch.empty_like(v), state)), state)
    assert [None if x is None else x.shape for x in found] == [q.shape, k.shape, v.shape, g.shape]
    assert d_initial is not None
    assert d_initial.shape == state.shape


def gathered(message: Tensor) -> Tensor:
    return message.new_empty(3, message.numel())
