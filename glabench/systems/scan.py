"""The recurrence as a parallel scan over time."""

from __future__ import annotations

from glabench.systems.baseline import Baseline


class Scan(Baseline):
    """`baselines.scan`. States, and for the gradients theirs, are in HBM for every token: "oom" is a result."""

    form = "scan:SCAN"
