"""The program of steps with states in a pool: what it asks of each, and what it says of one that is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from gla_kernels.reference import recurrent
from glabench.tools.serving import __main__ as program
from glabench.tools.serving import measure
from glabench.tools.serving.variants import OURS, PLAIN, Drawn, Shape, Variant, drawn, reference, why_not

SHAPE = Shape(2, 2, 16, 16)


@pytest.mark.exhaustive  # every variant over every length; its parts are below
def test_from_options_to_tables(tmp_path: Path) -> None:
    out = tmp_path / "serving.rows"
    done = CliRunner().invoke(program.app, ["--tiny", "--gates", "key", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert CliRunner().invoke(program.app, ["--read", str(out)]).stdout == done.stdout
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    timed = [row for row in rows if row["asked"] == "time"]
    assert [row["variant"] for row in timed if row["status"] == "ok"] == [one.name for one in (*OURS, PLAIN)]
    assert all(0 < row["error"] <= row["allowed"] for row in timed if row["status"] == "ok")
    assert {row["variant"]: row["reason"] for row in timed}["mamba_ssm"].startswith(
        "selective_state_update is measured"
    )
    drifted = {(row["variant"], row["mean"]): row["errors"] for row in rows if row["asked"] == "drift"}
    assert drifted["fp32", 0.5]["16"] < 1e-5 < drifted["bf16", 0.5]["16"] < drifted["fp8", 0.5]["16"] < 0.2


@pytest.mark.parametrize("gates", ["key", "head"])
def test_the_reference_is_that_of_the_kernels(gates: str) -> None:
    shape = Shape(2, 2, 16, 8, gates)
    x = drawn(shape, 5, "cpu", torch.float64)
    o, after = reference(x, torch.zeros(2, 2, 16, 8, dtype=torch.float64), (3, 5))
    q, k, v, g = (y.transpose(0, 1) for y in (x.q, x.k, x.v, x.g))
    g = g if gates == "key" else g[..., None].expand_as(q)
    right, state = recurrent(q, k, v, g)
    torch.testing.assert_close(o.transpose(0, 1), right)
    torch.testing.assert_close(after[5], state)
    assert sorted(after) == [3, 5]


def test_a_step_that_is_wrong_is_a_row_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    right = measure._run

    def late(variant: Variant, shape: Shape, device: str, x: Drawn) -> Tensor:
        return right(variant, shape, device, x).roll(1, 0)

    monkeypatch.setattr(measure, "_run", late)
    (row,) = measure.times(SHAPE, [Variant()], "cpu", 1, 1e12)
    assert row["status"] == "wrong"
    assert "after 16 steps" in row["reason"]


def test_a_rival_that_fails_is_a_row_and_ours_ends_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(variant: Variant, shape: Shape, device: str, x: Drawn) -> Tensor:
        raise TypeError("takes no such argument")

    monkeypatch.setattr(measure, "_run", fails)
    monkeypatch.setattr(measure, "why_not", lambda variant, shape: None)
    (row,) = measure.times(SHAPE, [Variant(rival="fla")], "cpu", 1, 1e12)
    assert (row["status"], row["reason"]) == ("error", "takes no such argument")
    with pytest.raises(TypeError):
        list(measure.times(SHAPE, [Variant()], "cpu", 1, 1e12))


def test_bytes_are_those_that_a_step_moves() -> None:
    elements = 2 * 2 * 16 * 16
    assert Variant().state_bytes(SHAPE) == 8 * elements
    assert Variant("bf16").state_bytes(SHAPE) == 4 * elements
    assert Variant(tail=8).state_bytes(SHAPE) == 4 * elements * (1 + 1 / 8)
    assert measure._token_bytes(Variant(tokens=4, tail=8), SHAPE) == 4 * 2 * 2 * 2 * (3 * 16 + 2 * 16)


def test_what_cannot_be_had_says_why() -> None:
    assert "gates of each feature" in (why_not(PLAIN, Shape(1, 1, 16, 16, "head")) or "")
    assert why_not(PLAIN, SHAPE) is None


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--shapes", "1,2,3"], "expected B,H,K,V, four numbers above 0"),
        (["--shapes", ""], "expected a shape"),
        (["--gates", "value"], "expected key, head or key,head"),
    ],
)
def test_bad_input(given: list[str], says: str) -> None:
    done: Any = CliRunner().invoke(program.app, ["--tiny", *given], env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert says in done.output
