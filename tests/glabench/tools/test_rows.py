"""Rows of maintainers' programs come back as they were written, and what is none is one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from glabench.tools import calls, step
from glabench.tools.rows import append, rows_of

ROWS = Path(__file__).parents[3] / "results" / "nvidia-h100-80gb-hbm3"


def test_rows_come_back(tmp_path: Path) -> None:
    path = tmp_path / "new" / "rows.jsonl"
    append([{"kind": "one", "n": 1}], path)
    append([{"kind": "one", "n": 2}], path)
    assert [row["n"] for row in rows_of(path, "one")] == [1, 2]


@pytest.mark.parametrize("text", ["", "{}\n", "no JSON\n", '{"kind": "another"}\n'])
def test_what_is_no_row_of_the_kind_is_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "rows"
    path.write_text(text)
    result = CliRunner().invoke(calls.app, ["--read", str(path)])
    assert result.exit_code == 2
    assert "--read" in result.output


def test_the_committed_rows_are_shown_without_a_gpu() -> None:
    shown = CliRunner().invoke(calls.app, ["--read", str(ROWS / "calls/2026-11-25-7f20819.rows.xz")])
    assert shown.exit_code == 0
    assert "gla: queued in 0.56x fa2's in the median, 0.87x at most" in shown.output
    shown = CliRunner().invoke(step.app, ["--read", str(ROWS / "step/2026-11-26-dca52ae.rows.xz")])
    assert shown.exit_code == 0
    assert "340m, B8 T2048" in shown.output
