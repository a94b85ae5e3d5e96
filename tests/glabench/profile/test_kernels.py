"""The model's kernels joined with what a profiler and ncu saw."""

from __future__ import annotations

from dataclasses import replace

import pytest

from glabench.profile.kernels import add_counters, joined, kernel, launches_of, modelled
from glabench.profile.launches import Launched
from glabench.run.gpu_events import Event
from glabench.spec.case import Case
from glabench.systems.base import load

CASE = Case("gla", 1, 256, 2, 32, 32, "bf16", "fwdbwd", chunk=64, sub_chunk=64, materialize=True)
BOTH = ["states", "output", "states", "grad_states", "grad_qk", "grad_v"]
MODEL = [kernel(f"{step}_kernel", step=step, direction="fwd" if place < 2 else "bwd", work={"programs": place})
         for place, step in enumerate(BOTH)]  # fmt: skip


def call(*names: str, us: float = 10.0) -> Launched:
    return Launched(tuple(Event(name, 20.0 * place, us + place) for place, name in enumerate(names)))


@pytest.mark.parametrize(
    ("mode", "materialize", "steps"),
    [
        ("fwd", True, BOTH[:2]),
        ("bwd", True, BOTH[3:]),  # states are those of the forward pass
        ("fwdbwd", True, BOTH[:2] + BOTH[3:]),
        ("bwd", False, BOTH[2:]),
        ("fwdbwd", False, BOTH),
    ],
)
def test_the_model_has_one_entry_a_launch(mode: str, materialize: bool, steps: list[str]) -> None:
    case = replace(CASE, mode=mode, materialize=materialize)  # type: ignore[arg-type]  # a mode from the list above
    found, notes = modelled(load("gla"), case, "sm_90", 50 * 2**20, 132)
    assert [entry["step"] for entry in found] == steps
    assert [entry["direction"] for entry in found] == [("fwd" if mode != "bwd" and i < 2 else "bwd")
                                                       for i in range(len(steps))]  # fmt: skip
    assert all(entry["name"] == f"{entry['step']}_kernel" for entry in found)
    assert all(entry["work"]["hbm_read_bytes"] > 0 and entry["predicted_ms"] > 0 for entry in found)
    assert notes == []


def test_a_call_that_returns_its_state_is_noted() -> None:
    _, notes = modelled(load("gla"), replace(CASE, initial_state=True), "sm_90", 50 * 2**20, 132)
    assert notes == ["the model is of a call that does not return its final state; this one does"]


def test_a_forward_pass_that_a_backward_one_follows_leaves_it_states() -> None:
    case = Case("simple_gla", 16, 2048, 16, 64, 64)
    _, walk = (launch for direction, launch in launches_of(load(case.system), case, "sm_90") if direction == "fwd")
    assert walk.constexprs["STORE_S"]
    _, alone = launches_of(load(case.system), replace(case, mode="fwd"), "sm_90")
    assert not alone[1].constexprs["STORE_S"]


def test_what_is_not_ours_has_no_launches() -> None:
    assert launches_of(load("sdpa"), replace(CASE, system="sdpa"), "sm_90") == []


def test_a_pass_of_both_directions_is_two_kernels() -> None:
    names = [entry["name"] for entry in MODEL]
    found, notes = joined(MODEL, [call(*names), call(*names, us=20.0)])
    assert notes == []
    assert [(entry["step"], entry["direction"]) for entry in found] == [(m["step"], m["direction"]) for m in MODEL]
    assert found[0]["samples_ms"] == pytest.approx([0.010, 0.020])
    assert found[2]["samples_ms"] == pytest.approx([0.012, 0.022])
    assert [entry["work"]["programs"] for entry in found] == list(range(6))
    assert all(entry["count"] == 1 for entry in found)


def test_kernels_of_others_are_summed_by_name_where_they_first_ran() -> None:
    found, notes = joined(MODEL[:2], [call("fill", "states_kernel", "fill", "output_kernel", "copy")])
    assert notes == []
    assert [(entry["name"], entry["count"]) for entry in found] == [
        ("fill", 2), ("states_kernel", 1), ("output_kernel", 1), ("copy", 1)
    ]  # fmt: skip
    assert found[0]["samples_ms"] == pytest.approx([0.010 + 0.012])
    assert found[0]["work"] is None
    assert found[1]["step"] == "states"


@pytest.mark.parametrize("names", [("output_kernel", "states_kernel"), ("output_kernel",), ("fill",)])
def test_other_launches_than_the_models_are_noted_and_get_no_model(names: tuple[str, ...]) -> None:
    found, (note,) = joined(MODEL[:2], [call(*names)])
    assert note.endswith("where states_kernel, output_kernel was expected; kernels have no model")
    assert [entry["name"] for entry in found] == list(names)
    assert all(entry["work"] is None and entry["step"] is None for entry in found)
    assert all(entry["samples_ms"] for entry in found)


def test_a_case_without_a_model_has_its_times() -> None:
    found, notes = joined([], [call("flash_fwd", "flash_fwd")])
    assert notes == []
    assert [(entry["name"], entry["count"]) for entry in found] == [("flash_fwd", 2)]


def test_counters_go_to_the_launch_that_they_are_of() -> None:
    kernels = [kernel("states_kernel"), kernel("void f<int, 4>(int)", count=2), kernel("states_kernel"), kernel("gone"),
               kernel("Memset (Device)")]  # fmt: skip
    counted = [("states_kernel", {"ms": 1}), ("void f<int,4>(int)", {"ms": 2}), ("void f<int,4>(int)", {"ms": 3}),
               ("states_kernel", {"ms": 4})]  # fmt: skip
    notes = add_counters(kernels, counted)
    assert [entry["counters"] for entry in kernels] == [{"ms": 1}, {"ms": 2}, {"ms": 4}, None, None]
    assert notes == ["ncu: no counters of gone"]
