"""The program that measures steps of training, on a tiny model: rows, table, and what it refuses."""

from __future__ import annotations

import io
import json
import math
import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from gla_kernels import launches
from gla_kernels.low_rank import gates_kernel
from glabench.hardware.environment import detect_device
from glabench.run.gpu_events import Event
from glabench.run.step_kernels import grouped, our_kernels
from glabench.run.train import QUEUED, Measured
from glabench.tools.rows import Row
from glabench.tools.step import app, show

ARGUMENTS = ["--model", "tiny", "--B", "1", "--T", "16", "--steps", "2", "--rounds", "2", "--warmup", "2"]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    """What the program wrote for two systems."""
    out: Path = tmp_path_factory.mktemp("step") / "new" / "rows.jsonl"
    done = CliRunner().invoke(app, [*ARGUMENTS, "--systems", "gla,fa2", "--compile", "none", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "fa2" in done.output
    return [json.loads(line) for line in out.read_text().splitlines()]


@pytest.mark.exhaustive
def test_a_row_a_system_with_raw_samples(rows: list[Row]) -> None:
    assert [(row["system"], row["compiled"]) for row in rows] == [("gla", False), ("fa2", False)]
    for row in rows:
        assert len(row["wall_ms"]) == 2
        assert len(row["queue_ms"]) == 2 * QUEUED
        assert min(row["wall_ms"]) <= row["median_wall_ms"] <= max(row["wall_ms"])
        assert row["tokens_per_s"] == pytest.approx(16 / row["median_wall_ms"] * 1e3)
        assert ("gla_kernels" in row["implementation"]) == (row["system"] == "gla")
        assert {"commit", "dirty", "torch", "triton", "device"} <= set(row["environment"])


@pytest.mark.exhaustive
def test_models_train(rows: list[Row]) -> None:
    for row in rows:
        assert row["trains"]
        assert row["loss_last"] < row["loss_first"] - 0.05


@pytest.mark.exhaustive
@pytest.mark.skipif(detect_device() == "cuda", reason="a GPU's times are shown")
def test_times_of_a_cpu_are_not_shown(rows: list[Row]) -> None:
    assert "x" not in printed(rows).replace("tiny", "")


@pytest.mark.exhaustive
def test_each_row_is_compared_with_the_rival_in_its_mode(rows: list[Row]) -> None:
    measured = {"environment": {"kind": "cuda", "device": "GPU"}, "peak_bytes": 2**31}
    ours = rows[0] | measured | {"median_wall_ms": 30.0, "quartile_queue_ms": 11.0, "kernel_ms": {"operator": 3.0}}
    rival = rows[1] | measured | {"median_wall_ms": 20.0, "quartile_queue_ms": 10.0}
    compiled = rival | {"compiled": True, "median_wall_ms": 10.0}
    text = printed([ours, compiled, rival])
    assert "1.50x" in text
    assert "1.10x" in text
    assert "gla, eager: GPU ms of a step: operator 3.0" in text


def printed(rows: list[Row]) -> str:
    out = io.StringIO()
    show(rows, Console(file=out, width=200))
    return out.getvalue()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--systems", "gla,fa-2"], "did you mean 'fa2'"),
        (["--model", "340"], "did you mean '340m'"),
        (["--compile", "block"], "did you mean 'blocks'"),
    ],
)
def test_misspelt_names_are_told(arguments: list[str], says: str) -> None:
    done = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert says in done.output


def test_a_package_that_is_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fla.layers", None)  # as if it were not there
    done = CliRunner().invoke(app, [*ARGUMENTS, "--systems", "gla,fla"], env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert "'fla' cannot run here" in done.output
    assert "pip install flash-linear-attention" in done.output


@pytest.mark.parametrize(("last", "trains"), [(1.9, True), (2.0, False), (math.nan, False), (-math.inf, False)])
def test_a_model_trains_whose_loss_falls(last: float, trains: bool) -> None:
    assert Measured("gla", False, 1, None, 2.0, last).trains is trains


def test_kernels_by_group() -> None:
    ours = our_kernels()
    assert {one.name for one in launches("gla", B=1, T=64, H=2, K=16, V=32, dtype=torch.bfloat16)} <= ours
    names = {
        next(iter(ours)): "operator",
        "void pytorch_flash::flash_fwd_kernel<...>": "operator",
        "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT": "matrix products",
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<... FusedAdam ...>": "optimizer",
        "triton_red_fused__fused_rms_norm_add_3": "compiled, not products",
        "void at::native::(anonymous namespace)::cunn_SoftMaxForward<...>": "loss",
        "void at::native::vectorized_elementwise_kernel<...>": "elementwise, reductions and copies",
        gates_kernel.fn.__name__: "elementwise, reductions and copies",  # a layer's, and no operator's
        "what nobody knows": "other",
    }
    for name, group in names.items():
        assert grouped([Event(name, 0.0, 250.0), Event(name, 1.0, 250.0)], ours) == {group: 0.5}, name
