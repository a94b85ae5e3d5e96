"""Bad calls: a ValueError that names the argument, what was expected and what came.

The tensors are on torch's meta device: nothing is computed, and no GPU is needed to be told off.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad

from gla_kernels import Schedule, Workload, gla, gla_recurrent, gla_step, launches
from gla_kernels.ops import simple_gla as simple_ops


def zeros(*shape: int, device: str = "meta", **options: Any) -> torch.Tensor:
    return torch.zeros(*shape, device=device, **options)


def good(**changes: Any) -> dict[str, Any]:
    q, v = zeros(2, 8, 3, 16), zeros(2, 8, 3, 24)
    return {"q": q, "k": q.clone(), "v": v, "g": q.clone()} | changes


BAD_CALLS = [
    ({"q": zeros(2, 8, 16)}, r"q: expected 4 axes \[B, T, H, K\], got shape \[2, 8, 16\]"),
    ({"q": None}, "q: expected a tensor, got NoneType"),
    ({"k": zeros(2, 8, 3, 32)}, r"k: expected shape \[2, 8, 3, 16\].*got \[2, 8, 3, 32\]"),
    ({"v": zeros(2, 9, 3, 24)}, r"v: expected shape \[2, 8, 3, V\].*got \[2, 9, 3, 24\]"),
    ({"g": zeros(2, 8, 3)}, r"g: expected shape \[2, 8, 3, 16\].*got \[2, 8, 3\]"),
    ({"k": zeros(2, 8, 3, 16).half()}, "k: expected dtype torch.float32 as of q, got torch.float16"),
    ({"g": zeros(2, 8, 3, 16).half()}, "g: expected dtype torch.float32.*got torch.float16"),
    ({"initial_state": zeros(2, 3, 24, 16)}, r"initial_state: expected shape \[2, 3, 16, 24\].*got"),
    ({"initial_state": zeros(2, 3, 16, 24).half()}, "initial_state: expected dtype torch.float32|float32, got"),
    ({"scale": "big"}, "scale: expected a number or None, got str"),
    ({"output_final_state": "False"}, "output_final_state: expected True or False, got 'False'"),
    ({"output_final_state": zeros(2)}, "output_final_state: expected True or False, got Tensor"),
    ({"scale": math.nan}, "scale: expected a number that float32 holds, got nan"),
    ({"scale": 10**400}, "scale: expected a number that float32 holds, got 1000"),
    ({"q": zeros(2, 8, 3, 16, device="cpu").to_sparse()}, "q: expected a dense tensor, got torch.sparse_coo"),
    ({"v": zeros(2, 8, 3, 24, device="cpu")}, "v: expected device meta as of q, got cpu"),
]


@pytest.mark.parametrize("call", [gla, gla_recurrent])
@pytest.mark.parametrize(("changes", "message"), BAD_CALLS)
def test_bad_call(call, changes, message):
    with pytest.raises(ValueError, match=message):
        call(**good(**changes))


@pytest.mark.parametrize("call", [gla, gla_recurrent])
def test_a_nested_tensor(call):
    nested = torch.nested.nested_tensor([torch.zeros(8, 3, 24)], layout=torch.jagged)  # imports Dynamo
    with pytest.raises(ValueError, match="v: expected a dense tensor, got a nested one"):
        call(**good(v=nested))


def test_head_dimension_too_large():
    q = zeros(1, 2, 1, 513)
    with pytest.raises(ValueError, match=r"q: expected a head dimension .* from 1 to 512, got 513"):
        gla(q, q, q, q)


def test_integer_inputs():
    q = zeros(1, 2, 1, 16, dtype=torch.int32)
    with pytest.raises(ValueError, match="q: expected float32, float16 or bfloat16, got torch"):
        gla(q, q, q, q)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"chunk": 48}, "chunk: expected one of 16, 32, 64, 128, 256, got 48"),
        ({"chunk": 64.0, "sub_chunk": 16}, "chunk: expected one of 16, 32, 64, 128, 256, got 64.0"),
        ({"chunk": 64, "sub_chunk": 48}, "sub_chunk: expected a divisor of chunk=64 from 16 to 64, got 48"),
        ({"chunk": 32, "sub_chunk": 64}, "sub_chunk: expected a divisor of chunk=32 from 16 to 32, got 64"),
        ({"chunk": 64, "sub_chunk": 8}, "sub_chunk: expected a divisor of chunk=64 from 16 to 64, got 8"),
        ({"materialize": "yes"}, "materialize: expected True or False, got 'yes'"),
        ({"states_every": 0}, "states_every: expected a number of chunks > 0 or None, got 0"),
        ({"states_every": True}, "states_every: expected a number of chunks > 0 or None, got True"),
        ({"states_every": 2.0}, "states_every: expected a number of chunks > 0 or None, got 2.0"),
    ],
)
def test_bad_schedule(arguments, message):
    with pytest.raises(ValueError, match=message):
        Schedule(**arguments)


def test_schedule_of_the_wrong_type():
    with pytest.raises(ValueError, match="schedule: expected a Schedule or None, got int"):
        gla(**good(schedule=64))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"direction": "forward"}, "direction: expected fwd or bwd, got 'forward'"),
        ({"dtype": torch.bfloat16}, "dtype: expected bf16, fp16, fp32, got torch.bfloat16"),
        ({"gated": None}, "gated: expected True or False, got None"),
        ({"T": 10**400}, "T: expected an integer from 0 to 1099511627776, got 1000"),
        ({"K": 1000}, "K: expected an integer from 1 to 512, got 1000"),
        ({"V": 64.0}, "V: expected an integer from 1 to 512, got 64.0"),
    ],
)
def test_bad_workload(changes, message):
    with pytest.raises(ValueError, match=message):
        Workload(**{"direction": "fwd", "B": 1, "T": 8, "H": 1, "K": 16, "V": 16} | changes)


def test_step_needs_its_state():
    q = zeros(1, 2, 16)
    with pytest.raises(ValueError, match="state: expected a tensor"):
        gla_step(q, q, q, q, None)  # type: ignore[arg-type]  # that is the point
    with pytest.raises(ValueError, match="state: expected a contiguous tensor"):
        gla_step(q, q, q, q, zeros(1, 2, 16, 16).mT)


def test_step_refuses_gradients():
    q = zeros(1, 2, 16, requires_grad=True)
    with pytest.raises(ValueError, match="without gradients"):
        gla_step(q, q, q, q, zeros(1, 2, 16, 16))


def test_step_refuses_tangents():
    q = zeros(1, 2, 16)
    with forward_ad.dual_level(), pytest.raises(ValueError, match="without gradients"):
        gla_step(forward_ad.make_dual(q, q.clone()), q, q, q, zeros(1, 2, 16, 16))


def test_step_refuses_a_state_that_is_negated_as_it_is_read():
    q = zeros(1, 2, 16)
    with pytest.raises(ValueError, match=r"state: .*got one that PyTorch negates"):
        gla_step(q, q, q, q, torch._neg_view(zeros(1, 2, 16, 16)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"T": -1}, "T: expected a number of 0 or more, got -1"),
        ({"H": 1.5}, "H: expected a number of 0 or more, got 1.5"),
        ({"capability": "90"}, "capability: expected a number of 0 or more, got '90'"),
    ],
)
def test_launches_of_no_shape(changes, message):
    sizes: dict[str, Any] = {"B": 1, "T": 8, "H": 1, "K": 16, "V": 16, "dtype": torch.float32} | changes
    with pytest.raises(ValueError, match=message):
        launches("gla", **sizes)
    with pytest.raises(ValueError, match=message):
        simple_ops.launches(**sizes)


def test_launches_of_an_unknown_operator():
    with pytest.raises(ValueError, match="op: expected gla, gla_recurrent or gla_step, got 'gal'"):
        launches("gal", B=1, T=8, H=1, K=16, V=16, dtype=torch.float32)


def test_launches_are_what_the_passes_need():
    def names(mode: str, materialize: bool) -> list[str]:
        schedule = Schedule(64, 16, materialize)
        found = launches("gla", B=1, T=512, H=2, K=64, V=64, dtype=torch.bfloat16, mode=mode, schedule=schedule)
        return [launch.name for launch in found]

    assert names("fwd", True) == ["states_kernel", "output_kernel"]
    assert names("fwd", False) == ["states_kernel", "output_kernel"]
    assert names("bwd", False) == ["states_kernel", "grad_states_kernel", "grad_qk_kernel", "grad_v_kernel"]
