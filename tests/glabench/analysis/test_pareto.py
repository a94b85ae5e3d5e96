"""The front: what nothing beats in both time and memory."""

from __future__ import annotations

from typing import Any

from glabench.analysis.frame import frame
from glabench.analysis.pareto import with_front


def test_the_front_is_what_nothing_beats_in_both(make_row: Any) -> None:
    costs = {16: (4.0, 1), 32: (2.0, 2), 64: (2.0, 3), 128: (1.0, 4), 256: (3.0, 4)}
    rows = [
        make_row("gla", [ms] * 3, chunk=chunk, memory={"peak_bytes": 2**30, "beyond_inputs_bytes": mib * 2**20})
        for chunk, (ms, mib) in costs.items()
    ]
    rows.append(make_row("gla", [0.5], seed=1))  # no memory is known: neither on the front nor off it
    found = with_front(frame(rows))
    assert dict(zip(found["chunk"], found["front"], strict=True)) == {
        16: True,
        32: True,
        64: False,
        128: True,
        256: False,
    }
    assert found["beyond_mib"].tolist() == [1, 2, 3, 4, 4]


def test_equals_are_both_on_the_front(make_row: Any) -> None:
    memory = {"peak_bytes": 2**30, "beyond_inputs_bytes": 2**20}
    rows = [make_row("gla", [1.0] * 3, chunk=chunk, memory=memory) for chunk in (16, 32)]
    assert with_front(frame(rows))["front"].tolist() == [True, True]
