"""The output kernel without what comes through states."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from gla_kernels import Machine, Schedule, Workload, chosen, reference
from gla_kernels.launch import execute
from gla_kernels.plan.apply import launches_of
from glabench.failures import NotMeasured
from glabench.run import forward_parts as parts
from glabench.run import pipeline
from glabench.spec.case import Case
from glabench.spec.settings import Settings
from glabench.systems.base import load
from glabench.systems.inputs import make_inputs

CASE = Case("gla", 1, 96, 2, 16, 16, "fp32", "fwd", chunk=32, sub_chunk=16, materialize=True)


@pytest.mark.parametrize(("chunk", "sub_chunk"), [(32, 16), (64, 16), (32, 32)])
def test_what_is_left_is_each_chunk_by_itself(device: torch.device, chunk: int, sub_chunk: int) -> None:
    case = replace(CASE, T=2 * chunk, chunk=chunk, sub_chunk=sub_chunk)
    inputs = make_inputs(case, "gla", device.type)
    states, output = parts.forward_launches(load("gla"), case, inputs)
    intra = parts.without_states(output)
    execute(states)  # it leaves the row blocks' decays, too
    execute(intra)
    assert inputs.g is not None
    apart = [x.unflatten(1, (2, chunk)).flatten(0, 1).double() for x in (inputs.q, inputs.k, inputs.v, inputs.g)]
    expected, _ = reference.recurrent(*apart)
    found = intra.args["p_o"].unflatten(1, (2, chunk)).flatten(0, 1).double()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def _moves(entry: dict[str, Any], *names: str) -> int:
    return sum(entry["instructions"].get(name, 0) for name in names)


COMPILED = """
import json
from dataclasses import replace
from gla_kernels import Schedule, Workload, chosen, Machine
from gla_kernels.plan.apply import launches_of
from glabench.hardware.crosscompile import cross_compile
from glabench.run.forward_parts import without_states
work = Workload("fwd", 1, 8192, 2, 64, 64, "bf16", True, Schedule(64, 64, True))
plan = chosen(work, Machine(90)).plan
output = launches_of(work, replace(plan, config=replace(plan.config, walk=None)))["output"]
print(json.dumps([cross_compile([launch], "sm_90")[0] for launch in (output, without_states(output))]))
"""


def test_what_is_left_neither_loads_the_state_nor_multiplies_with_it(
    compiling_process: Callable[..., str],
) -> None:
    whole, intra = json.loads(compiling_process("-c", COMPILED).splitlines()[-1])
    assert whole["error"] is None
    assert intra["error"] is None
    assert 0 < intra["instructions"]["wgmma"] < whole["instructions"]["wgmma"]
    assert _moves(intra, "ld.global", "cp.async") < _moves(whole, "ld.global", "cp.async")
    assert _moves(intra, "st.global") == _moves(whole, "st.global")


def test_what_is_begun_before_the_states_are_there_has_no_parts() -> None:
    work = Workload("fwd", 1, 512, 2, 64, 64, "bf16", True, Schedule(64, 64, True))
    plan = chosen(work, Machine(90)).plan
    output = launches_of(work, replace(plan, config=replace(plan.config, walk=None)))["output"]
    with pytest.raises(NotMeasured, match="o of so few chunks"):
        parts.without_states(output)


@pytest.mark.parametrize(
    ("system", "changes", "reason"),
    [
        ("gla", {"materialize": False}, r"w/o m\. runs both passes in turns"),
        ("gla", {"mode": "bwd"}, "mode bwd has no forward"),
        ("gla_recurrent", {"chunk": None, "sub_chunk": None, "materialize": None}, "gla_recurrent is not ours to take"),
    ],
)
def test_what_has_no_such_parts_says_why(system: str, changes: dict[str, object], reason: str) -> None:
    case = replace(CASE, system=system, **changes)  # type: ignore[arg-type]  # fields of Case
    with pytest.raises(NotMeasured, match=reason):
        parts.forward_launches(load(system), case, make_inputs(case, "gla", "cpu"))


def test_samples_of_three_launches_in_turn_make_two_parts() -> None:
    assert parts.split([1.0, 5.0, 3.0, 2.0, 6.0, 3.5]) == {"intra_ms": [3.0, 3.5], "inter_ms": [3.0, 4.5]}


def test_forward_passes_with_states_and_a_chunk_size_are_taken_apart() -> None:
    assert parts.asked(CASE)
    for changes in ({"mode": "fwdbwd"}, {"materialize": False}, {"chunk": None}, {"system": "gla_recurrent"}):
        assert not parts.asked(replace(CASE, **changes))


@pytest.mark.parametrize(
    ("raised", "said"),
    [(NotMeasured("a reason"), "a reason"), (ValueError("no such\nline"), "ValueError: no such")],
)
def test_parts_that_cannot_be_had_cost_no_row(monkeypatch: pytest.MonkeyPatch, raised: Exception, said: str) -> None:
    def measure(*_: object) -> dict[str, list[float]]:
        raise raised

    monkeypatch.setattr(parts, "measure", measure)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    assert pipeline._parts(CASE, Settings(forward_parts=3), load("gla")) == {"refused": said}


@pytest.mark.gpu
def test_a_row_has_both_parts_where_the_settings_ask() -> None:
    case = replace(CASE, T=2048, H=8, K=128, V=128, dtype="bf16", chunk=64)
    row = pipeline.run_case(case, "test", replace(Settings(), max_time_s=0.1, max_wall_s=0.3, forward_parts=3))
    assert row.time is not None
    counts = {len(row.time["parts"][part]) for part in ("intra_ms", "inter_ms")}
    assert counts <= {1, 2, 3}  # a turn that was late does not count
    assert len(counts) == 1


@pytest.mark.gpu
def test_both_parts_are_measured_on_a_gpu() -> None:
    found = parts.measure(load("gla"), replace(CASE, T=2048, H=8, K=128, V=128, dtype="bf16", chunk=64))
    assert parts.SAMPLES / 2 < len(found["intra_ms"]) == len(found["inter_ms"]) <= parts.SAMPLES
    assert min(found["intra_ms"]) > 0
