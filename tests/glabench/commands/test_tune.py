"""``glabench tune``: what is asked, what is kept, and what --explain says with and without records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import glabench.tune.compiler
import glabench.tune.gpu
from gla_kernels import Machine, Workload, refresh
from gla_kernels.plan import files
from gla_kernels.plan.table import read
from glabench import tuning_store
from glabench.cli import main
from glabench.tune import lookup, session
from glabench.tune.tuner import Tuner
from glabench.tuning_store import Tuning

FAKES = Path(__file__).parent.parent / "tune"  # fake_gpu, a measuring and a compiling process with made-up times
TINY = """
title: Tiny
defaults: {B: 1, T: 16, K: 16, V: 16, chunk: 16, sub_chunk: 16, materialize: false}
axes: {system: gla, mode: fwd, H: [1, 64]}
"""
SHAPE = {"B": 4, "T": 4096, "H": 16, "K": 128, "V": 128}
WORD = "4,4096,16,128,128"
HEADER = {"device": "NVIDIA H200", "memory_bytes": 2**37, "capability": 90}


def run(*arguments: object) -> int:
    """The exit code of ``glabench tune``."""
    try:
        main(["tune", *map(str, arguments)])
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current directory, with no GPU, no user's table and no shipped ones."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("GLABENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(files, "SHIPPED", tmp_path / "shipped")
    refresh()
    (tmp_path / "tiny.yaml").write_text(TINY)
    yield tmp_path
    refresh()


@pytest.fixture
def gpu(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same with a GPU whose times are made up."""
    monkeypatch.setenv("PYTHONPATH", str(FAKES), prepend=":")
    monkeypatch.setattr("glabench.hardware.environment.require_cuda", lambda why: None)
    monkeypatch.setattr("glabench.hardware.environment.device_slug", lambda kind: "made-up")
    monkeypatch.setattr(session, "this_arch", lambda: "sm_90")
    monkeypatch.setattr(session, "Gpu", partial(glabench.tune.gpu.Gpu, module="fake_gpu"))
    monkeypatch.setattr(session, "CompilePool", partial(glabench.tune.compiler.CompilePool, jobs=1, module="fake_gpu"))
    return here


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["1,2,3"], "shape 1,2,3: expected B,T,H,K,V"),
        (["tiny.yaml", "1,2,3"], "shape 1,2,3: expected B,T,H,K,V"),
        (["tini.yaml"], "did you mean 'tiny.yaml'"),
        (["tiny.yaml", "--mode", "bwd"], "--mode bwd: no case of tiny.yaml"),
        (["tiny.yaml", "--dtype", "fp16"], "--dtype is for a shape"),
        ([WORD, "--strategy", "halfing"], "did you mean 'halving'"),
        ([WORD, "--budget", "soon"], "--budget soon: expected a time > 0"),
        ([WORD, "--all"], "--all needs --explain"),
        ([WORD, "--target", "sm_80"], "--target needs --explain"),
        ([WORD, "--from", "tiny.yaml"], "--from needs --explain"),
        ([WORD, "--explain", "--strategy", "model"], "--strategy says how to tune, and --explain tunes nothing"),
        ([WORD, "--explain", "--budget", "1m"], "--budget says how to tune"),
        ([WORD, "--explain", "--out", "x"], "--out says how to tune"),
        ([WORD, "--explain", "--target", "sm_91"], "--target sm_91: unknown architecture (one of: sm_80"),
        ([WORD, "--explain", "--from", "tine.yaml"], "did you mean tiny.yaml"),
        ([WORD, "--explain", "--from", "tiny.yaml"], "no record of a tuning there"),
        ([WORD], "no usable NVIDIA GPU here"),
    ],
)
def test_bad_calls_are_one_line(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert run(*arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert [path.name for path in here.iterdir()] == ["tiny.yaml"]


# --- Tuning -----------------------------------------------------------------------------------------------------------


def records(path: Path) -> list[Tuning]:
    return [tuning_store.from_json(line) for line in path.read_text().splitlines()]


def heads(folder: Path) -> set[int]:
    """H of what the only table in the folder was tuned for."""
    (path,) = folder.glob("*.json")
    table = read(path)
    assert table is not None
    return {entry.work.H for entry in table.entries}


def test_a_rerun_tunes_again_and_all_winners_are_kept(gpu: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("tiny.yaml", "--strategy", "exhaustive") == 0
    out = Path("results/local/tune-tiny-made-up.jsonl")
    said = capsys.readouterr().out
    assert f"Records: {out}\nReport:  glabench report {out}\n" in said
    assert [one.workload["H"] for one in records(out)] == [1, 64]
    assert heads(gpu / "cache") == {1, 64}

    assert run("tiny.yaml", "--strategy", "exhaustive") == 0
    assert [one.workload["H"] for one in records(out)] == [1, 64] * 2
    assert heads(gpu / "cache") == {1, 64}


def test_ctrl_c_keeps_what_is_tuned(
    gpu: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = Tuner.tune

    def stopped(self: Tuner, works: list[Workload], *more: Any) -> list[Tuning]:
        if works[0].H == 64:
            raise KeyboardInterrupt
        return whole(self, works, *more)

    monkeypatch.setattr(Tuner, "tune", stopped)
    assert run("tiny.yaml", "--strategy", "exhaustive", "--out", "mine.jsonl") == 130
    assert "Stopped; what was tuned before is kept\nRecords: mine.jsonl" in capsys.readouterr().out
    assert [one.workload["H"] for one in records(Path("mine.jsonl"))] == [1]
    assert heads(gpu / "cache") == {1}


def test_a_workload_without_a_plan_is_exit_code_1(gpu: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Tuner.tune

    def lost(self: Tuner, works: list[Workload], *more: Any) -> list[Tuning]:
        return [replace(one, winner=None) if one.workload["H"] == 1 else one for one in whole(self, works, *more)]

    monkeypatch.setattr(Tuner, "tune", lost)
    assert run("tiny.yaml", "--strategy", "exhaustive", "--out", "mine.jsonl") == 1
    assert heads(gpu / "cache") == {64}


# --- Explaining -------------------------------------------------------------------------------------------------------


def write(path: str, *tunings: Tuning) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text("".join(tuning_store.to_json(one) + "\n" for one in tunings))


@pytest.fixture
def tuned(make_tuning: Callable[..., Tuning]) -> Callable[..., Tuning]:
    """A tuning on an H200, with its header as tunings have it."""

    def make(direction: str = "fwd", header: dict[str, Any] | None = None, **given: Any) -> Tuning:
        return replace(make_tuning(direction, **given), header=HEADER if header is None else header)

    return make


def test_the_newest_record_of_each_direction_is_explained(
    here: Path, capsys: pytest.CaptureFixture[str], tuned: Callable[..., Tuning]
) -> None:
    old = tuned(seed=1, strategy="exhaustive", started="2026-11-20T09:00:00+00:00")
    write("results/nvidia-h200/tune-board/2026-11-23-b9eada6.jsonl", tuned("bwd"), tuned(T=2048), tuned(seed=2))
    write("results/local/tune-other.jsonl", old)
    write("results/local/tune-stopped.jsonl")
    assert run(WORD, "--explain") == 0
    said = capsys.readouterr().out
    assert [line for line in said.splitlines() if line.startswith("B4 ")] == [
        "B4 T4k H16 128, bf16, forward",
        "B4 T4k H16 128, bf16, backward",
    ]
    assert "the newest of 2 tunings of this workload" in said
    assert said.count("strategy model") == 2
    assert "strategy exhaustive" not in said
    assert "by the cost model" in said  # no table has a plan here, so gla() does without
    assert "never tuned" not in said

    assert run(WORD, "--explain", "--mode", "fwd", "--from", "results/local/tune-other.jsonl") == 0
    short = capsys.readouterr().out
    assert "strategy exhaustive" in short
    assert "--all shows them" in short
    assert "backward" not in short
    assert run(WORD, "--explain", "--mode", "fwd", "--from", "results/local/tune-other.jsonl", "--all") == 0
    everything = capsys.readouterr().out
    assert len(everything.splitlines()) > len(short.splitlines()) + 50
    assert "--all shows them" not in everything


def test_records_of_another_architecture_or_gpu_say_nothing(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tuned: Callable[..., Tuning]
) -> None:
    small = {"T": 64, "H": 2, "K": 16, "V": 16}  # whose space takes no seconds to enumerate
    there = HEADER | {"device": "NVIDIA A100", "capability": 80}
    write("a100.jsonl", tuned(header=there, **small), tuned(header={}, **small))
    call = ("4,64,2,16,16", "--explain", "--mode", "fwd", "--from", "a100.jsonl")
    assert run(*call) == 0
    assert "never tuned on a GPU of sm_90: 2 records read, none of them of this" in capsys.readouterr().out
    assert run(*call, "--target", "sm_80") == 0
    assert "never tuned" not in capsys.readouterr().out
    monkeypatch.setattr(lookup, "detect_device", lambda: "cuda")
    monkeypatch.setattr(lookup, "machine_of", lambda: Machine(80, "NVIDIA A30", 2**34))
    assert run(*call) == 0
    assert "never tuned on NVIDIA A30" in capsys.readouterr().out


def test_without_a_record_the_cost_model_speaks(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("1,64,2,16,16", "--explain", "--mode", "fwd", "--target", "sm_80") == 0
    said = capsys.readouterr().out
    assert said.startswith(
        "B1 T64 H2 16, bf16, forward\nnever tuned on a GPU of sm_80: no records found\ngla() would run: "
    )
    assert "by the cost model; predicted 0.0" in said
    plans = said.split("Plans by the cost model")[1].split("Tiles by")[0].splitlines()[2:]
    over = [float(line.split()[-1].rstrip("x")) for line in plans if line]
    assert over == sorted(over)
    assert over[0] == 1.0
    tiles = said.split("Tiles by the cost model for ")[1]
    assert {line.split()[0] for line in tiles.splitlines()[2:]} <= {"states", "output"}


def test_a_sweep_is_explained_in_short(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("board", "--explain", "--mode", "bwd") == 0
    said = capsys.readouterr().out
    assert said.count("never tuned") > 10
    assert "Plans by" not in said
    assert "forward" not in said
