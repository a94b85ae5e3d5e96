"""The table of eager calls: which cases a shape has, what is shown of rows, and the error without a GPU."""

from __future__ import annotations

import io

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from glabench.tools import calls
from glabench.tools.calls import DEFAULT, RECOMPUTED, RIVAL, WITHOUT, by_shape, show, summary
from glabench.tools.rows import Row

HOST_MS = {DEFAULT: 0.2, RECOMPUTED: 0.3, WITHOUT: 0.25, RIVAL: 0.4}


def rows(factor: float = 1.0) -> list[Row]:
    """Of one shape, in the order in which they are measured; each has a slow round."""
    case = dict(zip("BTHKV", (1, 64, 2, 16, 16), strict=True))
    return [
        {"system": name, "case": case, "kernel_ms": [0.1], "kept_bytes": 2**20, "wall_ms": [[0.2]]}
        | {"host_ms": [[ms * factor], [ms * factor] * 2, [9.0]], "environment": {"device": "a GPU"}}
        for name, ms in HOST_MS.items()
    ]


def test_every_shape_of_the_sweep_has_gla_without_states_and_attention() -> None:
    found = by_shape()
    assert len(found) == 12
    for cases in found:
        assert list(cases) == [DEFAULT, WITHOUT, RIVAL]
        assert len({(case.B, case.T) for case in cases.values()}) == 1
        assert cases[WITHOUT].materialize is False


def test_ratios_are_to_the_rival_and_the_default_of_the_same_shape() -> None:
    found = summary([*rows(), *rows(2.0)])
    for first, second in zip(found[:4], found[4:], strict=True):
        assert second["host_ms"] == pytest.approx(2 * first["host_ms"])
        assert second["of_rival"] == first["of_rival"]
    by_name = {one["system"]: one for one in found[:4]}
    assert by_name[DEFAULT]["of_rival"] == pytest.approx(0.5)
    assert by_name[RECOMPUTED]["of_default"] == pytest.approx(1.5)
    assert by_name[RIVAL]["of_rival"] is None


def test_the_table_says_the_median_and_the_worst() -> None:
    text = io.StringIO()
    show(rows(), Console(file=text, width=200))
    assert "gla: queued in 0.50x fa2's in the median, 0.50x at most" in text.getvalue()
    assert "1.25x gla's in the median" in text.getvalue()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_there_is_one_line() -> None:
    result = CliRunner().invoke(calls.app, [])
    assert result.exit_code == 2
    assert result.output.startswith("error: there is no usable NVIDIA GPU here")
