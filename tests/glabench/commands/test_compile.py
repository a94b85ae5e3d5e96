"""The command as a user meets it: bad input, a small sweep on two targets, a kernel that does not fit."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from gla_kernels import Workload
from gla_kernels.plan.limits import why_not
from gla_kernels.schedule import PASSES, WALKS
from glabench.cli import main
from glabench.spec.expand import expand
from glabench.spec.sweep import find, load
from glabench.tune.candidate import key, launch_of, plan_of
from glabench.tune.space import space_of
from glabench.tune.survey import Asked, Kernel, asked_of, sample
from glabench.tune.survey_table import failures, summary, table, tile

SWEEP = """
title: Tiny
defaults: {B: 1, T: 64, H: 2, K: 16, V: 16, dtype: bf16, chunk: 16}
cases:
  - {system: [gla, gla_recurrent], mode: fwd}
  - {system: gla, mode: fwdbwd, T: 128, K: 600}
  - {system: gla, mode: fwd, initial_state: true, materialize: false}
"""
OTHERS = "title: Others\naxes: {system: recurrent_torch, B: 1, T: 16, H: 1, K: 8, V: 8}\n"

# arguments after "glabench compile" -> what the one line says
BAD = {
    ("tiny.yaml", "--target", "sm_9"): "--target sm_9: unknown architecture (did you mean 'sm_90'?)",
    ("tiny.yaml", "--target", "sm_80,"): "--target : unknown architecture (one of: A10",
    ("tiny.yaml", "--target", "sm_75"): "--target sm_75: unknown architecture (one of: sm_80, sm_86",
    ("tiny.yaml", "--target", "H10O"): "--target H10O: unknown architecture (did you mean 'H100'?)",
    ("tini.yaml",): "did you mean 'tiny.yaml'?",
    ("tiny.yaml", "--dtype", "fp32"): "--dtype is for a shape B,T,H,K,V, and tiny.yaml is none",
    ("1,64,1,16",): "shape 1,64,1,16: expected B,T,H,K,V",
    ("1,64,1,16,1024",): "1,64,1,16,1024: V=1024 is above the largest head dimension",
    ("1,64,1,16,16", "--dtype", "fp8"): "--dtype fp8: unknown dtype",
    ("1,64,1,16,16", "--mode", "step"): "--mode step: unknown mode",
    ("others.yaml",): "has no case of the system gla",
    ("tiny.yaml", "--out", "others.yaml"): "others.yaml: holds something else",
    ("tiny.yaml", "--space", "-1"): "--space",
    ("tiny.yaml", "--out", "."): "cannot be written",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tiny.yaml").write_text(SWEEP)
    (tmp_path / "others.yaml").write_text(OTHERS)
    return tmp_path


@pytest.fixture
def compiled(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """``compiled("tiny.yaml", "--space", "0")``: `glabench compile` in the test's folder, which must end with exit code
    0. Answers what it printed.

    The command runs here, and compiles in processes of its own as ever, but in one at a time: they take longer to start
    than kernels as small as these to compile.
    """

    def call(*arguments: str) -> str:
        monkeypatch.chdir(folder)
        monkeypatch.setattr("glabench.tune.survey.cores", lambda: 1)
        with pytest.raises(SystemExit) as stop:
            main(["compile", *arguments])
        said = capsys.readouterr()
        assert stop.value.code == 0, said.out + said.err
        return said.out

    return call


@pytest.mark.parametrize("arguments", BAD, ids=" ".join)
def test_bad_input_is_one_line_and_exit_code_2(
    refused: Callable[..., str], folder: Path, arguments: tuple[str, ...]
) -> None:
    assert BAD[arguments] in refused("compile", *arguments)
    assert not list(folder.glob("**/*.jsonl"))


@pytest.mark.usefixtures("forked")
def test_a_sweep_compiles_for_every_target(compiled: Callable[..., str], folder: Path) -> None:
    said = compiled("tiny.yaml", "--target", "sm_80,sm_90", "--space", "1")
    assert "Tiny (tiny): 2 cases of gla (2 others skipped) for sm_80, sm_90" in said
    rows = [json.loads(line) for line in (folder / "results/local/compile-tiny.jsonl").read_text().splitlines()]
    assert {(row["kind"], row["sweep"], row["status"]) for row in rows} == {("compiled", "tiny", "ok")}
    for target in ("sm_80", "sm_90"):
        shipped = [row for row in rows if row["target"] == target and row["origin"] == "gla"]
        # with a state to start from, another kernel of the pass that computes states
        assert sorted(row["step"] for row in shipped) == ["output", "states", "states"]
        others = [row for row in rows if row["target"] == target and row["origin"] == "space"]
        assert {row["step"] for row in others} <= {"output", "states"}
        assert all(row["candidate"]["step"] == row["step"] for row in others)
    assert all(row["compiled"]["programs_per_sm"] >= 1 for row in rows)
    assert "sm_80: 3 kernels, 0 spill, 0 do not fit, 0 failed; sample of the space:" in said


def test_a_kernel_that_gla_runs_and_that_does_not_fit_is_exit_code_1(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tiles by size fit every GPU, so that the compiler's answer is made up."""
    found = [kernel(), kernel("compile_error", shared_bytes=300_000)]
    monkeypatch.setattr("glabench.tune.survey.survey", lambda *arguments: iter(found))
    monkeypatch.chdir(folder)
    with pytest.raises(SystemExit) as stop:
        main(["compile", "tiny.yaml", "--target", "sm_90"])
    assert stop.value.code == 1
    assert "compile_error, too large" in capsys.readouterr().out
    rows = [json.loads(line) for line in (folder / "results/local/compile-tiny.jsonl").read_text().splitlines()]
    assert [row["status"] for row in rows] == ["ok", "compile_error"]


def test_json_is_the_kernels_that_gla_runs_and_nothing_else(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = [kernel(), kernel(origin="space"), kernel("compile_error")]
    monkeypatch.setattr("glabench.tune.survey.survey", lambda *arguments: iter(found))
    monkeypatch.chdir(folder)
    with pytest.raises(SystemExit) as stop:
        main(["compile", "tiny.yaml", "--target", "sm_90", "--format", "json"])
    assert stop.value.code == 1
    out, err = capsys.readouterr()
    written = (folder / "results/local/compile-tiny.jsonl").read_text().splitlines()
    assert out.splitlines() == [written[0], written[2]]
    assert "Rows: results/local/compile-tiny.jsonl" in err


def test_a_shape_compiles_as_a_sweep_does(
    compiled: Callable[..., str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler's answer is made up, as the sweep above has real ones."""

    def survey(name: str, asked: list[Asked], target: str, count: int, *_: object) -> Iterator[Kernel]:
        return (replace(kernel(), sweep=name, target=target, workload=one.work.to_dict()) for one in asked)

    monkeypatch.setattr("glabench.tune.survey.survey", survey)
    said = compiled("1,64,1,16,16", "--mode", "fwd", "--dtype", "fp32", "--target", "sm_80", "--space", "0")
    assert said.startswith("1x64x1x16x16: 1 case of gla for sm_80")
    rows = [json.loads(line) for line in (folder / "results/local/compile-1x64x1x16x16.jsonl").read_text().splitlines()]
    (row,) = rows
    assert (row["sweep"], row["target"], row["status"]) == ("1x64x1x16x16", "sm_80", "ok")
    asked = {name: row["workload"][name] for name in ("direction", "B", "T", "H", "K", "V", "dtype")}
    assert list(asked.values()) == ["fwd", 1, 64, 1, 16, 16, "fp32"]


def kernel(status: str = "ok", origin: str = "gla", **facts: Any) -> Kernel:
    known = {"registers": 128, "spill_bytes": 0, "shared_bytes": 2048, "programs_per_sm": 4, "limited_by": "registers",
             "tensor_core": "wgmma", "compile_s": 0.5, "num_warps": 4, "num_stages": 1,
             "constexprs": {"BT": 64, "BK": 32, "BV": 64, "GATED": True}}  # fmt: skip
    work = {"K": 64, "V": 64, "dtype": "bf16"}
    reason = None if status == "ok" else "too large"
    compiled = None if status == "crashed" else known | facts
    return Kernel("tiny", "sm_90", origin, "output", work, None, status, reason, compiled, {})  # type: ignore[arg-type]


def drawn(*kernels: Kernel) -> list[str]:
    console = Console(width=140)
    with console.capture() as text:
        console.print(table(kernels))
    return [" ".join(line.split()) for line in text.get().splitlines()]


def test_the_table_shows_the_worst_first_and_one_line_a_tile() -> None:
    tile = {"BT": 64, "BK": 32, "BV": 128, "GATED": False}
    lines = drawn(
        kernel(),
        kernel(spill_bytes=1200, registers=255, compile_s=None),
        kernel(constexprs=tile, spill_bytes=8, compile_s=None),
        kernel("crashed"),
    )
    assert lines[0] == "sm_90"
    assert lines[2:] == [
        "output 64×64 – – – – – – cached",
        "output (2) 64×64 64×32×64 4w 1s 255 1,200 2 4, registers wgmma 0.5",
        "output 64×64 64×32×128 4w 1s, no gate 128 8 2 4, registers wgmma cached",
    ]


def test_a_kernel_of_states_alone_has_a_tile_without_rows() -> None:
    assert tile(kernel()) == "64×32×64 4w 1s"
    assert tile(kernel(constexprs={"BK": 16, "BV": 64, "GATED": True})) == "16×64 4w 1s"


def test_a_copy_between_passes_has_a_block_of_elements() -> None:
    assert tile(kernel(constexprs={"BLOCK": 4096})) == "4096 4w 1s"


def test_the_summary_counts_and_only_what_gla_runs_is_a_failure() -> None:
    kernels = [
        kernel(spill_bytes=8),
        kernel("compile_error", shared_bytes=300_000),
        kernel("crashed"),
        kernel("crashed", "space"),
    ]
    assert summary(kernels) == (
        "sm_90: 3 kernels, 1 spill, 1 do not fit, 1 failed; sample of the space: 1 kernels, 0 spill, 0 do not fit, "
        "1 failed; 1 s of compiling"
    )
    assert [line.split(": ")[1] for line in failures(kernels)] == ["compile_error, too large", "crashed, too large"]


def test_the_sample_is_the_same_each_time_and_spread_over_the_space() -> None:
    from glabench.spec.case import Case

    cases = [Case("gla", B=1, T=512, H=2, K=64, V=64, mode="fwdbwd"), Case("fla", B=1, T=512, H=2, K=64, V=64)]
    asked, skipped = asked_of(cases)
    assert ([one.work.direction for one in asked], skipped) == (["fwd", "bwd"], 1)
    once, again = (list(sample(asked, 90, 3)) for _ in range(2))
    assert once == again
    assert all(why_not(plan_of(work, [one], 90), work, 90, one.step) is None for work, one in once)
    steps = [candidate.step for _, candidate in once]
    many = sorted(step for step in steps if step not in WALKS)  # of which there are few tiles
    assert many == sorted(["states", "output", "grad_states", "grad_qk", "grad_v"] * 3)
    assert set(steps) - set(many) == set(WALKS)
    assert len(set(once)) == len(once)
    for step in ("output", "grad_qk"):
        chunks = {candidate.variant.schedule.chunk for _, candidate in once if candidate.step == step}
        assert len(chunks) > 1


@pytest.mark.parametrize("capability", [80, 90])
def test_the_sample_of_a_sweep_has_every_pass_and_every_pair_of_head_dimensions(capability: int) -> None:
    asked, _ = asked_of(expand(load(find("board")), "cuda").cases)
    found = list(sample(asked, capability, 1))
    gated_walks = set() if capability == 90 else {"grad_walk"}  # which are Hopper's own
    assert {candidate.step for _, candidate in found} == set(PASSES) - gated_walks
    assert {(work.K, work.V) for work, _ in found} == {(one.work.K, one.work.V) for one in asked}


def test_a_sample_of_more_than_there_is_is_all_of_it() -> None:
    work = Workload("fwd", 1, 16, 1, 16, 16)
    found = list(sample([Asked(work)], 80, 10_000))
    assert len(set(found)) == len(found)
    known = set(space_of(work, 80).candidates)
    assert {key(launch_of(work, candidate, 80)) for _, candidate in found} == known
