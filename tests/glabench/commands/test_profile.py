"""The command on a machine without a GPU: bad input, the model of a shape and of a sweep, reruns."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glabench.commands.profile import parts
from glabench.spec.case import Case

Process = Callable[..., "subprocess.CompletedProcess[str]"]

SHAPE = "1,128,1,32,32"
TINY = """\
title: Tiny
defaults: {B: 1, T: 128, H: 1, dtype: bf16, mode: fwd}
axes: {system: [gla, recurrent_torch], "K,V": [[32, 32], [64, 64]]}
"""

# name -> (arguments after "glabench profile", what the one line says)
BAD: dict[str, tuple[list[str], str]] = {
    "no such sweep": (["bord"], "did you mean 'board'?"),
    "half a shape": (["1,128,1"], "expected B,T,H,K,V"),
    "a system of no shape": ([SHAPE, "--system", "glaa"], "did you mean 'gla'?"),
    "a mode of no shape": ([SHAPE, "--mode", "fwbd"], "did you mean 'fwd'?"),
    "a dtype": ([SHAPE, "--dtype", "bf61"], "did you mean 'bf16'?"),
    "a shape's option of a sweep": (["tiny.yaml", "--mode", "fwd"], "--mode is for a shape"),
    "a sweep's option of a shape": ([SHAPE, "--only", "gla"], "--only is for a sweep"),
    "a case that is not there": (["tiny.yaml", "--case", "abcdef"], "not a case of tiny"),
    "a system that is not there": (["tiny.yaml", "--only", "fa2"], "has no case of it"),
    "a system without a model": (["tiny.yaml", "--only", "recurrent_torch"], "only our own kernels can be profiled"),
    "a GPU without a ceiling": ([SHAPE, "--gpu", "H20"], "(did you mean 'H200'?)"),
    "counters without a GPU": ([SHAPE, "--ncu"], "--ncu: there is no GPU"),
    "a trace without a GPU": ([SHAPE, "--trace"], "--trace: there is no GPU"),
    "out is a directory": ([SHAPE, "--out", "."], "is a directory"),
}


@pytest.fixture
def here(tmp_path: Path, device: Any) -> Path:
    if device.type == "cuda":
        pytest.skip("this is about machines without a GPU")
    (tmp_path / "tiny.yaml").write_text(TINY)
    return tmp_path


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_exit_code_2(refused: Callable[..., str], here: Path, name: str) -> None:
    arguments, message = BAD[name]
    assert message in refused("profile", *arguments)
    assert [path.name for path in here.iterdir()] == ["tiny.yaml"]


def test_what_is_imported_adds_no_line(python_process: Process, here: Path) -> None:
    arguments, message = BAD["counters without a GPU"]
    done = python_process("-m", "glabench", "profile", *arguments, check=False, cwd=str(here))
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_shape_is_modelled_for_a_gpu_that_is_not_there(python_process: Process, here: Path) -> None:
    done = python_process("-m", "glabench", "profile", SHAPE, "--gpu", "a100", cwd=str(here))
    path = here / "results/local/profile-1x128x1x32x32-model-a100.jsonl"
    assert f"Report: glabench report {path.relative_to(here)}" in done.stdout
    (row,) = rows(path)
    profile = row["profile"]
    assert (row["status"], row["time"], profile["samples_ms"]) == ("ok", None, None)
    assert (profile["target"]["arch"], profile["target"]["here"]) == ("sm_80", False)
    assert {kernel["direction"] for kernel in profile["kernels"]} == {"fwd", "bwd"}
    assert all(kernel["work"]["read_bytes"] > 0 for kernel in profile["kernels"])
    assert all(kernel["compiled"]["registers"] > 0 for kernel in profile["kernels"])


def test_a_rerun_does_what_is_missing_and_another_gpu_is_another_question(python_process: Process, here: Path) -> None:
    path = here / "rows.jsonl"
    command = ["-m", "glabench", "profile", "tiny.yaml", "--out", str(path)]
    python_process(*command, cwd=str(here))
    cases = [row["case"] for row in rows(path)]  # as they are done
    assert sorted((case["system"], case["K"]) for case in cases) == [("gla", 32), ("gla", 64)]  # no model of the other
    again = python_process(*command, cwd=str(here))
    assert "2 of them finished earlier" in again.stdout
    assert len(rows(path)) == 2
    python_process(*command, "--gpu", "H100", "--case", rows(path)[0]["case_id"], cwd=str(here))
    assert [row["profile"]["target"]["name"].removesuffix(" SXM") for row in rows(path)] == [
        "NVIDIA H200", "NVIDIA H200", "NVIDIA H100",
    ]  # fmt: skip


def test_what_a_sweep_measured_stays_as_it_was(python_process: Process, here: Path) -> None:
    python_process("-m", "glabench", "sweep", "tiny.yaml", "--only", "recurrent_torch", cwd=str(here))
    (swept,) = (here / "results/local").glob("tiny-*.jsonl")
    before = swept.read_bytes()
    python_process("-m", "glabench", "profile", "tiny.yaml", "--only", "gla", cwd=str(here))
    assert swept.read_bytes() == before
    assert {row["case"]["system"] for row in rows(here / "results/local/profile-tiny-model-h200.jsonl")} == {"gla"}


def test_our_kernels_are_compiled_before_they_are_measured() -> None:
    ours, other = (Case(system, B=1, T=8, H=1, K=8, V=8) for system in ("gla", "fla"))
    assert (parts(ours, "cuda"), parts(other, "cuda")) == (("compile", "all"), ("all",))
    assert parts(ours, "cpu") == ("compile",)
