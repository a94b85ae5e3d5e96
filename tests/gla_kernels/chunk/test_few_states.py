"""What is kept between the passes where Hopper's own kernels lead states along: few of them, on the meta device."""

from __future__ import annotations

import math

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from gla_kernels import Schedule, launches
from gla_kernels.chunk import parted
from gla_kernels.chunk.parted import LONGEST_RUN, NARROW, least_run
from gla_kernels.ops.form import Inputs
from gla_kernels.ops.forms import Chunkwise
from gla_kernels.ops.gla_form import form_of
from gla_kernels.ops.library import room_of
from gla_kernels.ops.prepared import Prepared

MIB = 2**20
# B, T, H, K, V, and what flash-linear-attention keeps of it: scores of chunks of 64 rows, in float32
KEPT = {(8, 2048, 4, 128, 256): 16, (4, 4096, 4, 256, 512): 16, (1, 8192, 96, 128, 128): 192, (8, 1024, 8, 64, 64): 16}
RUNS = ("grad_qk_runs_hopper_kernel", "grad_qk_wide_runs_hopper_kernel")
SHAPES = pytest.mark.parametrize("shape", KEPT, ids=str)


def drawn(
    shape: tuple[int, ...], device: str, gates: torch.dtype | None = None, dtype: torch.dtype = torch.bfloat16
) -> Inputs:
    """gates: their type, that of the rest by default."""
    B, T, H, K, V = shape
    q, k, v = (torch.empty(B, T, H, n, dtype=dtype, device=device) for n in (K, K, V))
    return Inputs(q, k, v, torch.empty(B, T, H, K, dtype=gates or dtype, device=device), None, None)


def left_bytes(
    shape: tuple[int, ...],
    recompute: bool | None,
    gates: torch.dtype | None = None,
    dtype: torch.dtype = torch.bfloat16,
) -> int:
    x, meta = drawn(shape, "meta", gates, dtype), torch.device("meta")
    return Prepared(form_of(x, meta, 1.0, None, True, recompute), x, False, meta).left_bytes


@SHAPES
def test_no_more_is_kept_than_flash_linear_attention_keeps(shape):
    B, T, H, K, V = shape
    assert 0 < left_bytes(shape, None) <= KEPT[shape] * MIB == 256 * B * T * H
    assert left_bytes(shape, True) == 0
    states = 2 * B * H * (T // 64) * K * V
    assert states <= left_bytes(shape, False) <= 1.1 * states


def test_all_states_are_kept_where_portable_kernels_serve():
    shape = next(iter(KEPT))
    assert left_bytes(shape, None, dtype=torch.float16) == left_bytes(shape, False, dtype=torch.float16)


@SHAPES
def test_with_gates_in_float32_as_little_is_kept(shape):
    assert left_bytes(shape, None, torch.float32) == left_bytes(shape, None)
    with FakeTensorMode():
        assert room_of("gla", drawn(shape, "cuda", torch.float32), None, None) == room_of(
            "gla", drawn(shape, "cuda"), None, None
        )


@SHAPES
def test_few_states_are_stored_and_led_along(shape):
    found = launches("gla", **dict(zip("BTHKV", shape, strict=True)), dtype=torch.bfloat16)
    runs = [one for one in found if one.name in RUNS]
    assert [one.name for one in runs] == [RUNS[shape[-1] > NARROW]]
    assert runs[0].step == "grad_qk"
    every, few = runs[0].args["every"], runs[0].args["p_few"]
    assert few.shape[1] == math.ceil(math.ceil(shape[1] / 64) / every)
    forward = next(one for one in found if one.args.get("p_few") is not None or one.name == "thin_kernel")
    assert forward.args["every"] == every


@pytest.mark.parametrize("schedule", [Schedule(32), Schedule(64, 64, materialize=False)], ids=str)
def test_other_schedules_ask_for_all_states(schedule):
    found = launches("gla", B=8, T=2048, H=4, K=128, V=256, dtype=torch.bfloat16, schedule=schedule)
    assert not [one for one in found if one.name in RUNS]


@pytest.mark.parametrize("T", [640, 1000, 2048, 8200])  # plans of shorter sequences have shorter chunks
@pytest.mark.parametrize(("K", "V"), [(64, 64), (128, 256), (256, 512), (512, 512)])
def test_a_graph_has_room_for_what_is_kept(T, K, V):
    """And for little more: it works that out of numbers alone."""
    shape = (2, T, 3, K, V)
    with FakeTensorMode():
        room = room_of("gla", drawn(shape, "cuda"), None, None)
    need = left_bytes(shape, None)
    assert need <= room
    assert room <= 256 * 64 * 6 * (math.ceil(T / 64) + least_run(K, V)) + 1024


@pytest.mark.parametrize("T", [0, 64, 6400])
def test_runs_are_no_longer_than_sequences(T):
    x = drawn((1, T, 2, 128, 256), "meta")
    form = form_of(x, torch.device("meta"), 1.0, None, True, None)
    assert isinstance(form, Chunkwise)
    p = form.problem(x, form.backward_plan)
    assert 1 <= p.states_apart <= max(1, min(math.ceil(T / 64), LONGEST_RUN))


def test_without_gluon_all_states_are_asked_for(monkeypatch):
    monkeypatch.setattr(parted, "grad_qk_runs_hopper_kernel", None)
    shape = next(iter(KEPT))
    assert left_bytes(shape, None) == left_bytes(shape, False)
