"""The command that answers at one's own shape: bad input, a run without a GPU, and the same for machines."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from glabench import cli
from glabench.spec import on_the_fly
from glabench.spec.catalog import CATALOG, RIVALS
from glabench.spec.expand import expand

Command = Callable[..., tuple[int, str, str]]
AT = "1,40,2,16,16"

# what follows `glabench compare`, and what the one line says
BAD = {
    "a shape of four": (["4,2048,16,128"], "shape 4,2048,16,128: expected B,T,H,K,V"),
    "an unknown dtype": ([AT, "--dtype", "bf61"], "--dtype: expected bf16, fp16 or fp32, got 'bf61' (did you mean"),
    "gates that grow": ([AT, "--gate-strength", "-1"], "--gate-strength: expected a number >= 0"),
    "gates in words": ([AT, "--gate-strength", "strong"], "--gate-strength: expected a number >= 0"),
    "other gates": ([AT, "--dtype", "bf16", "--gate-dtype", "fp16"], "gate_dtype fp16: expected bf16, as q, or fp32"),
    "an unknown rival": ([AT, "--against", "fla2"], "--against fla2: expected systems, or all (did you mean 'fla'?)"),
    "no dtype": ([AT, "--dtype", ""], "expected bf16, fp16 or fp32"),
    "a model": ([AT, "--against", "gla_lm"], "--against gla_lm: expected systems"),
    "no such mode": ([AT, "--mode", "fdw"], "--mode fdw: expected fwd, bwd, fwdbwd, step (did you mean 'fwd'?)"),
    "a rival without the mode": ([AT, "--against", "fla", "--mode", "step"], "--against fla: has no mode step"),
    "a batch of packed sequences": (["2,40,2,16,16", "--lengths", "20,20"], "lengths 20,20: expected B 1"),
    "no such format": ([AT, "--format", "jsn"], "expected text or json (did you mean 'json'?)"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line(refused: Callable[..., str], name: str) -> None:
    arguments, message = BAD[name]
    assert message in refused("compare", *arguments, "--device", "cpu")


@pytest.mark.usefixtures("forked")
def test_without_a_gpu_ours_is_checked_and_pytorch_timed(command: Command, tmp_path: Path) -> None:
    asked = ("compare", AT, "--against", "chunkwise_torch,fa2", "--mode", "fwd", "--device", "cpu")
    code, first, _ = command(*asked)
    assert code == 0
    rows = [line.split()[2] for line in first.splitlines() if "] ok " in line]
    assert rows == ["gla", "chunkwise_torch"]
    cells = {line.strip().split("  ")[0]: line.split() for line in first.splitlines() if line.startswith("  ")}
    assert cells["GLA, default schedule"][-3:] == ["not", "timed", "yes"]
    assert cells["PyTorch chunkwise C64"][-2:] == ["1.00×", "yes"]
    assert "× fa2" not in first
    assert "Not here: fa2: it needs an NVIDIA GPU" in first
    (path,) = (tmp_path / "results" / "local").iterdir()
    assert path.name.startswith("compare-1x40x2x16x16-cpu-")
    assert len(path.read_text().splitlines()) == 2

    code, again, said = command(*asked, "--format", "json")
    assert code == 0
    lines = [json.loads(line) for line in again.splitlines()]
    assert {line["system"]: line["right"] for line in lines} == {"chunkwise_torch": True, "gla": True}
    timed, checked = lines
    assert timed["kernels_ms"] > 0
    assert timed["over"]["chunkwise_torch"]["times"] == 1
    assert (checked["kernels_ms"], checked["over"]) == (None, {})
    assert "2 of them finished earlier" in said
    assert len(path.read_text().splitlines()) == 2


def test_rivals_are_those_of_the_mode_and_of_the_gates() -> None:
    assert on_the_fly.systems([], ["fwd", "fwdbwd"], gated=True, device="cuda") == ["gla", *RIVALS]
    assert "fla_linear" in on_the_fly.systems([], ["fwd"], gated=False, device="cuda")
    step = on_the_fly.systems([], ["step"], gated=True, device="cuda")
    assert step[0] == "gla_recurrent"
    assert all("step" in CATALOG[name].modes for name in step)
    assert "sdpa" in on_the_fly.systems([], ["fwd"], gated=True, device="cpu")
    every = on_the_fly.systems(["all"], ["fwd"], gated=True, device="cuda")
    assert set(every) == {name for name, info in CATALOG.items() if info.family != "model"}
    assert on_the_fly.systems(["fa2", "gla"], ["fwd"], gated=True, device="cuda") == ["gla", "fa2"]


def test_the_sweep_has_ours_first_and_one_shape() -> None:
    made = on_the_fly.sweep("2x64x4x16x32", ["gla", "fa2"], ["fwd", "step"], "same", "cuda", dtype="fp16")
    cases = expand(made, "cuda").cases
    assert [(case.system, case.mode) for case in cases] == [("gla", "fwd"), ("fa2", "fwd"), ("fa2", "step")]
    assert {(case.B, case.T, case.H, case.K, case.V, case.dtype) for case in cases} == {(2, 64, 4, 16, 32, "fp16")}
    assert made.settings("cuda").max_time_s < 1


def test_it_is_the_first_command_of_the_help() -> None:
    assert next(iter(cli.COMMANDS)) == "compare"
