"""Histories of an allocator made up by hand, and what the kernels' launches say that it should hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from glabench.profile import memory
from glabench.profile.kernels import launches_of
from glabench.profile.memory import KINDS, addresses, kinds_of, replay
from glabench.spec.case import Case
from glabench.systems.base import load
from glabench.systems.inputs import input_bytes

BLOCKS = 16  # row blocks of 32: heads are narrower than 64
CASE = Case("gla", 2, 512, 4, 32, 64, "bf16", "fwdbwd", chunk=64, sub_chunk=64, materialize=True)


def modelled(case: Case) -> dict[str, int] | None:
    return memory.model(case, memory.allocated(load(case.system), case, "sm_90"))


def alloc(address: int, size: int) -> dict[str, Any]:
    return {"action": "alloc", "addr": address, "size": size, "frames": []}


def free(address: int) -> list[dict[str, Any]]:
    actions = ("free_requested", "free_completed")
    return [{"action": action, "addr": address, "size": 0, "frames": []} for action in actions]


FORWARD = [alloc(0x100, 100), alloc(0x200, 400), *free(0x200), alloc(0x300, 30)]
BACKWARD = [alloc(0x200, 50), alloc(0x400, 70), alloc(0x500, 20), *free(0x400), *free(0x500), *free(0x300)]


def test_the_peak_of_a_forward_is_where_most_was_held() -> None:
    found = replay(FORWARD, len(FORWARD))
    assert [block.address for block in found.peak] == [0x100, 0x200]
    assert [block.address for block in found.last] == [block.address for block in found.after_forward] == [0x100, 0x300]
    assert not found.backward
    kinds = kinds_of(found, 1000, outputs=[0x100], gradients=[])
    assert kinds == dict.fromkeys(KINDS, 0) | {"inputs": 1000, "outputs": 100, "workspace": 400}


def test_the_peak_of_a_backward_knows_what_the_forward_had_kept() -> None:
    first = [alloc(0x100, 100), alloc(0x300, 30)]
    found = replay(first + BACKWARD, len(first))
    assert [block.address for block in found.after_forward] == [0x100, 0x300]
    assert found.backward
    kinds = kinds_of(found, 0, outputs=[0x100], gradients=[0x210])  # a gradient may lie inside its block
    assert kinds == {"inputs": 0, "outputs": 100, "gradients": 50, "states": 0, "saved": 30, "workspace": 90}


def test_blocks_that_hold_several_kinds_are_taken_apart_where_they_are_as_large() -> None:
    first = [alloc(0x100, 100), alloc(0x300, 30)]
    found = replay(first + BACKWARD, len(first))
    left, scratch, other = {"states": 20, "saved": 10}, {"states": 60, "workspace": 10}, {"states": 20, "workspace": 1}
    kinds = kinds_of(found, 0, [0x100], [0x200], [left, scratch])
    assert kinds == {"inputs": 0, "outputs": 100, "gradients": 50, "states": 80, "saved": 10, "workspace": 30}
    assert kinds_of(found, 0, [0x100], [0x200], [other]) == kinds_of(found, 0, [0x100], [0x200])
    as_large = {"states": 30, "workspace": 0}  # as what is saved is: but scratch
    assert kinds_of(found, 0, [0x100], [0x200], [as_large])["saved"] == 30


def test_a_block_that_took_the_place_of_another_is_told_from_it() -> None:
    found = replay([alloc(0x100, 900), *free(0x100), alloc(0x100, 50)], 0)
    kinds = kinds_of(found, 0, outputs=[0x100], gradients=[])
    assert (kinds["workspace"], kinds["outputs"]) == (900, 0)  # the output came later, where the workspace had been


def test_what_was_there_before_and_other_events_change_nothing() -> None:
    trace = [{"action": "snapshot", "size": 0}, *free(0x9), {"action": "segment_alloc", "addr": 0x100, "size": 1 << 20}]
    found = replay([*trace, alloc(0x100, 5)], 0)
    assert [(block.address, block.size) for block in found.peak] == [(0x100, 5)]
    assert replay([], 0).peak == ()


def test_outputs_are_told_from_gradients() -> None:
    found = {name: torch.zeros(1) for name in ("o", "final_state", "dq", "dinitial_state")}
    outputs, gradients = addresses(found)
    assert outputs == [found["o"].data_ptr(), found["final_state"].data_ptr()]
    assert gradients == [found["dq"].data_ptr(), found["dinitial_state"].data_ptr()]


def test_the_model_of_a_forward_holds_its_states() -> None:
    kinds = modelled(replace(CASE, mode="fwd"))
    e, rows = 2, 2 * 512 * 4
    states = 2 * 4 * 8 * 32 * 64 * 2  # one a chunk, in bf16
    assert kinds == dict.fromkeys(KINDS, 0) | {
        "inputs": input_bytes(CASE), "outputs": e * rows * 64, "states": states,
        "workspace": 4 * 2 * 4 * BLOCKS * 32,
    }  # fmt: skip


@pytest.mark.parametrize("mode", ["bwd", "fwdbwd"])
def test_the_model_of_a_backward_holds_both_kinds_of_states(mode: str) -> None:
    case = replace(CASE, mode=mode)  # type: ignore[arg-type]  # a mode from the list above
    kinds = modelled(case)
    rows = 2 * 512 * 4
    assert kinds is not None
    assert kinds["gradients"] == 2 * rows * (3 * 32 + 64)  # dq, dk, dg and dv
    assert kinds["states"] == 2 * (2 * 4 * 8 * 32 * 64 * 2)  # of the forward and of the backward
    assert kinds["saved"] == 4 * 2 * 4 * BLOCKS * 32  # halves of row blocks' decays in float32
    assert kinds["workspace"] == 0
    assert kinds["outputs"] == 2 * rows * 64


def test_an_initial_state_is_an_input_and_its_gradient_is_none_of_the_states() -> None:
    case = replace(CASE, materialize=False, T=64, initial_state=True)
    kinds = modelled(case)
    state = 4 * 2 * 4 * 32 * 64
    assert kinds is not None
    assert kinds["states"] == 2 * (2 * 4 * 1 * 32 * 64 * 2)  # of the only chunk
    assert kinds["outputs"] == 2 * 2 * 64 * 4 * 64 + state
    assert kinds["gradients"] == 2 * 2 * 64 * 4 * (3 * 32 + 64) + state


@pytest.mark.parametrize("mode", ["fwd", "fwdbwd"])
def test_slices_that_take_turns_hand_on_one_state(mode: str) -> None:
    case = replace(CASE, mode=mode, materialize=False, B=16, T=4096, K=128, V=128)  # type: ignore[arg-type]
    kinds = modelled(case)
    chunk, state, decays = 2 * 64 * 128 * 128, 4 * 64 * 128 * 128, 4 * 64 * 64 * 128
    turns = 8  # of 8 chunks: with 4 of 16 the backward pass would take more than the keys do
    of_chunks = 8 * chunk
    alone = 32 * chunk + state  # which one slice takes from the one before, and leaves; no backward pass needs room
    backward = 2 * of_chunks + state + turns * chunk  # the states that the forward pass left, and a gradient
    assert kinds is not None
    assert kinds["states"] == (alone if mode == "fwd" else backward)
    assert 2 * 16 * chunk + state + 4 * chunk + decays > 2 * 16 * 4096 * 4 * 128 >= backward + decays


def test_of_heads_that_take_turns_the_first_ones_count() -> None:
    sizes = {"B": 4, "T": 2048, "H": 16, "K": 128, "V": 128}
    kinds = modelled(replace(CASE, mode="fwdbwd", materialize=False, **sizes))  # type: ignore[arg-type]
    heads, chunk = 32, 2 * 128 * 128  # of 64 heads
    assert kinds is not None
    assert kinds["states"] == heads * (2 * 8 * chunk + 2 * chunk + 4 * chunk)  # 8 at once, one running, four between
    assert kinds["gradients"] == 2 * 4 * 2048 * 16 * 4 * 128


def test_buffers_that_share_bytes_count_where_most_is_held() -> None:
    """In segments without m.: states between them, then states of chunks, whose decays lie where others did."""
    case = replace(CASE, materialize=False, T=4096)
    forward, backward = memory.allocated(load("gla"), case, "sm_90")
    programs = memory._programs(load("gla"), case, "sm_90")
    for program, found in zip(programs, (forward, backward), strict=True):
        buffers = memory._buffers(program, program.at_left + 1)
        assert sum(found.scratch.values()) == program.scratch_bytes
        assert sum(found.left.values()) == program.left_bytes
        assert 0 < found.scratch["states"] <= program.scratch_bytes <= sum(one.size for one in buffers)
    assert backward.results == 2 * 2 * 4096 * 4 * (3 * 32 + 64)


def test_buffers_of_neighbours_are_held_at_the_same_time() -> None:
    first, second, last = (memory.Buffer(100, at, at, at == 1) for at in range(3))
    assert memory._held_at_most([first, second, last]) == [first, second]
    large = replace(last, size=150)
    assert memory._held_at_most([first, second, large]) == [second, large]
    assert memory._contents([second, large], 260, "workspace") == {"states": 100, "workspace": 160}


def test_a_step_of_decoding_allocates_its_output() -> None:
    case = replace(CASE, system="gla_recurrent", mode="step", chunk=None, sub_chunk=None, materialize=None)
    found = modelled(case)
    assert found is not None
    assert found["outputs"] == 2 * 2 * 4 * 64
    assert sum(found.values()) == found["inputs"] + found["outputs"]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"initial_state": True},
        {"gate_strength": None},
        {"materialize": False, "T": 4096},
        {"materialize": False, "B": 16, "T": 4096, "K": 128, "V": 128},
        {"mode": "fwd"},
    ],
)
def test_calls_launch_what_kernels_are_expected_by(changes: dict[str, Any]) -> None:
    """The kernels that a profile joins with the model, and counters with, are those of the call's programs."""
    case = replace(CASE, **changes)
    launched = [launch.name for program in memory._programs(load("gla"), case, "sm_90") for launch in program.launches]
    assert launched == [launch.name for _, launch in launches_of(load("gla"), case, "sm_90")]


def test_what_is_not_ours_has_no_model() -> None:
    assert modelled(replace(CASE, system="sdpa")) is None


@pytest.mark.parametrize("name", ["simple_gla", "recurrent_hbm", "mamba_scan"])
def test_kernels_whose_tensors_are_not_known_have_no_model(name: str) -> None:
    case = replace(CASE, system=name, mode="fwd", sub_chunk=None)
    assert load(name).launches(case, "sm_90")
    assert modelled(case) is None


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["fwd", "fwdbwd"])
@pytest.mark.parametrize("sizes", [{}, {"B": 16, "materialize": False}], ids=["materialized", "turns"])
def test_the_peak_on_a_gpu_is_what_the_model_says(mode: str, sizes: dict[str, Any]) -> None:
    case = replace(CASE, mode=mode, T=4096, **sizes)  # type: ignore[arg-type]  # a mode from the list above
    found = memory.breakdown(load("gla"), case, "sm_90")
    assert found["kinds"] == found["model"]
    assert found["peak_bytes"] == sum(found["kinds"].values())
