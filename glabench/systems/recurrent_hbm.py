"""The recurrence that keeps every state in HBM."""

from __future__ import annotations

from glabench.systems.baseline import Baseline


class RecurrentHbm(Baseline):
    """`baselines.recurrent_hbm`. T states of K x V for each head: running out of memory is a result, status "oom"."""

    form = "recurrent_hbm:RECURRENT_HBM"
