"""Kernels of two trees: what is said of rows, which kernels a tree's process imports, and the errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from glabench.tools import trees

ROOT = Path(__file__).parents[3]


def row(what: str, old: float, new: float) -> dict[str, object]:
    return {"what": what, "old_ms": [old, old], "new_ms": [new, new]}


def test_what_takes_longer_is_named() -> None:
    lines = trees.report([row("a", 1.0, 1.009), row("b", 1.0, 1.02), row("c", 2.0, 1.0)])
    assert lines[-1] == "more than 1.01 times as long: b"
    assert lines[1].split() == ["a", "1.0000", "1.0090", "1.009"]
    assert trees.report([row("a", 1.0, 1.0)])[-1].endswith("none")


def test_what_one_tree_alone_has_is_not_compared() -> None:
    """As a kernel of another name."""
    old, new = {"fwd": 2.0, "fwd: states": 1.0, "fwd: old": 1.0}, {"fwd": 3.0, "fwd: states": 2.0, "fwd: new": 1.0}
    assert trees.compared([old, old], [new, old]) == [
        {"what": "fwd", "old_ms": [2.0, 2.0], "new_ms": [3.0, 2.0]},
        {"what": "fwd: states", "old_ms": [1.0, 1.0], "new_ms": [2.0, 1.0]},
    ]


def test_each_round_leaves_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each new tree, whose turns come in the opposite order in every other round."""
    turns: list[str] = []

    def measured(tree: Path, asked: dict[str, Any]) -> trees.Times:
        assert asked["shapes"] == [(1, 64, 1, 64, 64)]
        assert asked["ways"] == ["fwd"]
        turns.append(tree.name)
        if len(turns) == 6:
            raise KeyboardInterrupt
        return {"fwd": float(len(turns))}

    for name in "abc":
        (tmp_path / name / "kernels" / "gla_kernels").mkdir(parents=True)
    monkeypatch.setattr(trees, "in_tree", measured)
    monkeypatch.setattr("glabench.hardware.environment.detect_device", lambda: "cuda")
    monkeypatch.setattr("glabench.hardware.environment.environment", lambda *_, **__: {"device": "a GPU"})
    out = tmp_path / "trees.rows"
    command = [*(str(tmp_path / name) for name in "abc"), "--shape", "1,64,1,64,64", "--ways", "fwd", "--out", str(out)]
    assert CliRunner().invoke(trees.app, command).exit_code != 0
    assert turns == ["a", "b", "c", "c", "b", "a"]
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(row["round"], row["new"], row["old_ms"], row["new_ms"]) for row in rows] == [
        (0, "b", {"fwd": 1.0}, {"fwd": 2.0}),
        (0, "c", {"fwd": 1.0}, {"fwd": 3.0}),
    ]


def test_a_tree_is_measured_with_its_own_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "kernels" / "gla_kernels"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('these kernels')")
    program = tmp_path / "program.py"  # in the place of a process that needs a GPU
    program.write_text("import gla_kernels")
    monkeypatch.setattr(trees, "__file__", str(program))
    with pytest.raises(Exception, match="returned non-zero exit status 1"):
        trees.in_tree(tmp_path, {"shapes": []})


def test_a_folder_without_kernels_is_one_line(tmp_path: Path) -> None:
    result = CliRunner().invoke(trees.app, [str(tmp_path), str(ROOT)])
    assert result.exit_code == 2
    assert "expected kernels/gla_kernels" in result.output


def test_a_way_that_is_none_is_one_line() -> None:
    result = CliRunner().invoke(trees.app, [str(ROOT), str(ROOT), "--ways", "fwd,bwd"])
    assert result.exit_code == 2
    assert "--ways bwd: expected fwd, both, kept, without" in result.output


def test_a_shape_that_is_none_is_one_line() -> None:
    result = CliRunner().invoke(trees.app, [str(ROOT), str(ROOT), "--shape", "4,2048"])
    assert result.exit_code == 2
    assert result.output.startswith("error: shape 4,2048: expected B,T,H,K,V")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_there_is_one_line() -> None:
    result = CliRunner().invoke(trees.app, [str(ROOT), str(ROOT)])
    assert result.exit_code == 2
    assert result.output.startswith("error: there is no usable NVIDIA GPU here")
