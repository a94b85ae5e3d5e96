"""What documents say and what rows are committed, for tests that compute the figures of the former from the latter."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from glabench.analysis.compare import answers
from glabench.analysis.frame import frame
from glabench.analysis.load import latest, located

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
H100 = "nvidia-h100-80gb-hbm3"
SHAPE = ["B", "T", "H", "K", "V"]
MODES = {"fwd": "fwd", "fwdbwd": "fwd+bwd"}


@cache
def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@cache
def words(name: str) -> str:
    """A document with one blank between words, as sentences are looked for."""
    return " ".join(text(name).split())


@cache
def table(*names: str) -> pd.DataFrame:
    """The rows of committed folders, of each case the one that counts."""
    return frame(latest(row for _, row in located([RESULTS / name for name in names])))


@cache
def times(*names: str, value: str = "ms") -> pd.DataFrame:
    """By shape and mode, a column a system: the fastest of each at its question, at gates of strength 1."""
    best = answers(table(*names))
    best = best[(best["gate"] == "1") & best["mode"].isin(MODES)]
    best = best.assign(variant=best["variant"].str.replace(":16x64", ""))  # attention of the papers' setting
    return best.pivot_table(index=[*SHAPE, "mode"], columns="variant", values=value, sort=False)


def lines(document: str, heading: str, of: int = 1) -> dict[str, list[str]]:
    """The cells of the first table below a heading, by what stands in the first columns: so many, and the mode."""
    part = text(document).split(f"\n## {heading}\n")[1].split("\n## ")[0]
    cells = [
        [cell.strip() for cell in line.rstrip().strip("|").split("|")] for line in part.splitlines() if line[:1] == "|"
    ]
    first = of + (cells[0][1] == "mode")
    return {", ".join(line[:first]): line[first:] for line in cells[2:]}


def as_printed(value: float, cell: str) -> bool:
    """Whether a figure is what a cell says, at the cell's own precision."""
    decimals = len(cell.rstrip("x").partition(".")[2])
    return f"{value:.{decimals}f}" == cell.rstrip("x")


def spread(values: pd.Series, decimals: int = 2) -> str:
    return f"{values.min():.{decimals}f} to {values.max():.{decimals}f}"


def geomean(values: pd.Series) -> float:
    return float(np.exp(np.log(values).mean()))
