"""The command on a machine without a GPU: bad input, the model of a shape and of a sweep, reruns."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import chdir, redirect_stdout
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from glabench import store
from glabench.cli import main
from glabench.commands.profile import _shape, parts
from glabench.spec.case import Case
from glabench.spec.catalog import CATALOG
from glabench.systems import load

Process = Callable[..., "subprocess.CompletedProcess[str]"]

SHAPE = "1,128,1,16,16"
TINY = """\
title: Tiny
defaults: {B: 1, T: 64, H: 1, dtype: bf16, mode: fwd}
axes: {system: [gla_recurrent, sdpa], "K,V": [[16, 16], [32, 32]]}
settings: {min_time_s: 0.02, max_time_s: 0.02}
"""


def on_one_core(folder: Path, *arguments: str) -> str:
    """What the command line prints in a folder. It runs in this process, which has imported what another would take
    seconds to import; one that compiles takes longer to start than these kernels, our smallest, to compile, and there
    is one a core."""
    cores, said, before = os.sched_getaffinity(0), io.StringIO(), signal.getsignal(signal.SIGTERM)
    os.sched_setaffinity(0, {min(cores)})
    try:
        with chdir(folder), redirect_stdout(said), pytest.raises(SystemExit) as stop:
            main(list(arguments))
    finally:
        os.sched_setaffinity(0, cores)
        signal.signal(signal.SIGTERM, before)
    assert stop.value.code == 0, said.getvalue()
    return said.getvalue()


# name -> (arguments after "glabench profile", what the one line says)
BAD: dict[str, tuple[list[str], str]] = {
    "no such sweep": (["bord"], "did you mean 'board'?"),
    "a shape that is too large": (["99999999999,1,1,16,16"], "99999999999 is too large, expected integers < 2^31"),
    "half a shape": (["1,128,1"], "expected B,T,H,K,V"),
    "a system of no shape": ([SHAPE, "--system", "glaa"], "did you mean 'gla'?"),
    "a mode of no shape": ([SHAPE, "--mode", "fwbd"], "did you mean 'fwd'?"),
    "a dtype": ([SHAPE, "--dtype", "bf61"], "did you mean 'bf16'?"),
    "a shape's option of a sweep": (["tiny.yaml", "--mode", "fwd"], "--mode is for a shape"),
    "a sweep's option of a shape": ([SHAPE, "--only", "gla"], "--only is for a sweep"),
    "a case that is not there": (["tiny.yaml", "--case", "abcdef"], "not a case of tiny"),
    "a system that is not there": (["tiny.yaml", "--only", "fa2"], "has no case of it"),
    "a system without a model": (["tiny.yaml", "--only", "sdpa"], "only our own kernels can be profiled"),
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


@pytest.fixture
def command(here: Path) -> Callable[..., str]:
    """``command("profile", "tiny.yaml")``: `glabench profile tiny.yaml` in the test's folder. Answers its output."""
    return partial(on_one_core, here)


class Ran(NamedTuple):
    """What `glabench sweep tiny.yaml --only sdpa` and after it `glabench profile tiny.yaml` wrote."""

    swept: bytes  # before there were profiles
    swept_at_last: bytes
    profiled: str


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, device: Any, forking: Callable[[], Any]) -> Ran:
    """Seconds of work, done once in one folder."""
    if device.type == "cuda":
        pytest.skip("this is about machines without a GPU")
    folder = tmp_path_factory.mktemp("profiled")
    (folder / "tiny.yaml").write_text(TINY)
    with forking():
        on_one_core(folder, "sweep", "tiny.yaml", "--only", "sdpa")
        (swept,) = (folder / "results/local").glob("tiny-*.jsonl")
        before = swept.read_bytes()
        on_one_core(folder, "profile", "tiny.yaml")
    profiled = folder / "results/local/profile-tiny-model-h200.jsonl"
    return Ran(before, swept.read_bytes(), profiled.read_text())


@pytest.mark.usefixtures("forked")
def test_a_shape_is_modelled_for_a_gpu_that_is_not_there(command: Callable[..., str], here: Path) -> None:
    said = command("profile", SHAPE, "--system", "gla_recurrent", "--gpu", "a100")
    path = here / "results/local/profile-1x128x1x16x16-model-a100.jsonl"
    assert f"Report: glabench report {path.relative_to(here)}" in said
    (row,) = rows(path)
    profile = row["profile"]
    assert (row["status"], row["time"], profile["samples_ms"]) == ("ok", None, None)
    assert (profile["target"]["arch"], profile["target"]["here"]) == ("sm_80", False)
    assert {kernel["direction"] for kernel in profile["kernels"]} == {"fwd", "bwd"}
    assert all(kernel["work"]["read_bytes"] > 0 for kernel in profile["kernels"])
    assert all(kernel["compiled"]["registers"] > 0 for kernel in profile["kernels"])


def test_a_shape_is_both_directions_of_gla_unless_said_otherwise(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Case] = []
    monkeypatch.setattr("glabench.commands.profile._run", lambda name, limit_s, cases, *rest: asked.extend(cases))
    monkeypatch.chdir(here)
    with pytest.raises(SystemExit):
        main(["profile", SHAPE])
    assert asked == [Case("gla", 1, 128, 1, 16, 16, dtype="bf16", mode="fwdbwd")]


def test_a_shape_s_case_is_one_that_its_system_takes() -> None:
    """A system without a gate is asked without one; one of small chunks alone, for such."""
    for name, info in CATALOG.items():
        if info.operator == "gla" and info.triton:
            (case,) = _shape(SHAPE, name, "fwd", "bf16")[2]
            assert load(name).unsupported(case, "cuda") is None
            assert (case.gate_strength is None) == (not info.gated)


def test_a_rerun_does_what_is_missing(command: Callable[..., str], here: Path, ran: Ran) -> None:
    path = here / "rows.jsonl"
    path.write_text(ran.profiled)
    cases = [row["case"] for row in rows(path)]  # as they are done
    ours = [("gla_recurrent", 16), ("gla_recurrent", 32)]
    assert sorted((case["system"], case["K"]) for case in cases) == ours  # no model of the other
    assert {row["profile"]["target"]["name"].removesuffix(" SXM") for row in rows(path)} == {"NVIDIA H200"}
    assert "2 of them finished earlier" in command("profile", "tiny.yaml", "--out", str(path))
    assert path.read_text() == ran.profiled


@pytest.fixture
def finished(monkeypatch: pytest.MonkeyPatch, here: Path) -> Callable[..., list[str]]:
    """``finished("profile", "tiny.yaml")``: the cases that `glabench profile tiny.yaml` would not do again."""

    def call(*arguments: str) -> list[str]:
        found: list[str] = []
        monkeypatch.setattr("glabench.commands.profile.run_cases", lambda _, done, *rest: found.extend(done))
        monkeypatch.chdir(here)
        with pytest.raises(SystemExit) as stop:
            main(list(arguments))
        assert stop.value.code == 0
        return found

    return call


def test_another_gpu_is_another_question(finished: Callable[..., list[str]], here: Path, ran: Ran) -> None:
    path = here / "rows.jsonl"
    path.write_text(ran.profiled)
    again = ("profile", "tiny.yaml", "--out", str(path))
    assert sorted(finished(*again)) == sorted(row["case_id"] for row in rows(path))
    assert finished(*again, "--gpu", "H100") == []
    first, _ = store.read(path)
    assert first.profile is not None
    there = {**first.profile, "target": {**first.profile["target"], "name": "NVIDIA H100 SXM"}}
    with path.open("a") as file:
        file.write(store.to_json(replace(first, profile=there)) + "\n")
    assert finished(*again, "--gpu", "H100") == [first.case_id]
    assert sorted(finished(*again)) == sorted({row["case_id"] for row in rows(path)})


@pytest.mark.parametrize("profile", [{}, {"target": None}, {"target": {"here": False}}])
def test_a_row_that_does_not_say_what_it_profiled_is_done_again(
    finished: Callable[..., list[str]], here: Path, ran: Ran, profile: dict[str, Any]
) -> None:
    path = here / "rows.jsonl"
    path.write_text(ran.profiled)
    first, second = store.read(path)
    path.write_text("".join(store.to_json(row) + "\n" for row in (replace(first, profile=profile), second)))
    assert finished("profile", "tiny.yaml", "--out", str(path)) == [second.case_id]


def test_what_a_sweep_measured_stays_as_it_was(refused: Callable[..., str], here: Path, ran: Ran) -> None:
    assert ran.swept_at_last == ran.swept
    swept, profiled = here / "swept.jsonl", here / "profiled.jsonl"
    swept.write_bytes(ran.swept)
    profiled.write_text(ran.profiled)
    assert "holds measured rows" in refused("profile", "tiny.yaml", "--out", str(swept))
    assert "holds profiles" in refused("sweep", "tiny.yaml", "--out", str(profiled))
    assert (swept.read_bytes(), profiled.read_text()) == (ran.swept, ran.profiled)


def test_the_systems_of_a_sweep_that_are_asked_for_are_profiled(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Case] = []
    monkeypatch.setattr("glabench.commands.profile._run", lambda name, limit_s, cases, *rest: asked.extend(cases))
    monkeypatch.chdir(here)
    both = TINY.replace("[gla_recurrent, sdpa]", "[gla_recurrent, simple_gla, sdpa]")
    (here / "tiny.yaml").write_text(both)
    with pytest.raises(SystemExit):
        main(["profile", "tiny.yaml", "--only", "gla_recurrent"])
    assert [(case.system, case.K) for case in asked] == [("gla_recurrent", 16), ("gla_recurrent", 32)]


def test_our_kernels_are_compiled_before_they_are_measured() -> None:
    ours, other = (Case(system, B=1, T=8, H=1, K=8, V=8) for system in ("gla", "fla"))
    assert (parts(ours, "cuda"), parts(other, "cuda")) == (("compile", "all"), ("all",))
    assert parts(ours, "cpu") == ("compile",)
