"""Schedules by two costs at once: which are on the front of time and memory, where nothing is better in both."""

from __future__ import annotations

import pandas as pd

COSTS = ["ms", "beyond_mib"]


def with_front(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows that have both a time and memory, by memory, with a column ``front``: no other row is at most as slow and at
    most as large, and better in one of both. Of equals all are on the front. Rows are of one question."""
    known = rows[(rows["ms"] > 0) & (rows["beyond_mib"] > 0)].sort_values([*COSTS[::-1]], kind="stable")
    points = list(zip(known["ms"], known["beyond_mib"], strict=True))
    beaten = [any(other != one and other[0] <= one[0] and other[1] <= one[1] for other in points) for one in points]
    return known.assign(front=[not b for b in beaten])
