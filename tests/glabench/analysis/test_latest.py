"""Which of several rows of a case counts."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest

from glabench.analysis.frame import frame
from glabench.analysis.load import latest
from glabench.store import Row


def test_the_latest_row_of_a_case_and_device_counts(make_row: Any) -> None:
    old = make_row("gla", [9.0], started="2026-11-20T09:00:00+00:00")
    new = make_row("gla", [1.0], started="2026-11-21T09:00:00+00:00")
    other = make_row("gla", [5.0], environment={"device": "NVIDIA A100"}, started="2026-11-19T09:00:00+00:00")
    kept = latest([new, old, other])
    assert frame(kept).set_index("device")["ms"].to_dict() == {"NVIDIA H200": 1.0, "NVIDIA A100": 5.0}


def test_of_rows_started_together_the_one_written_last_counts(make_row: Any) -> None:
    assert frame(latest([make_row("gla", [1.0]), make_row("gla", [2.0])]))["ms"].tolist() == [2.0]


def at(hour: int) -> str:
    return f"2026-11-28T{hour:02}:00:00+00:00"


def lacking(make_row: Any, hour: int, older: bool = False) -> Row:
    """A row of a machine without the system, in words of its own; older: of before its environment said so."""
    if older:
        reason = "the package fla is not installed; pip install fla-core einops"
        return make_row("fla", status="unsupported", reason=reason, started=at(hour))
    reason = "Helion's package does not bring its examples"
    environment = {"device": "NVIDIA H200", "lacks": reason}
    return make_row(
        "fla", status="unsupported", reason=f"{reason}; get them", environment=environment, started=at(hour)
    )


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize("status", ["ok", "wrong", "crashed", "oom", "timeout", "compile_error", "unsupported"])
def test_what_a_machine_lacked_hides_no_row_of_one_that_had_it(make_row: Any, status: str, older: bool) -> None:
    measured = make_row("fla", [1.0], status=status, reason="K=512 is too large", started=at(8))
    before, after = (lacking(make_row, hour, older) for hour in (7, 9))
    for rows in permutations([before, measured, after]):
        assert latest(rows) == [measured]


def test_what_a_machine_lacked_is_said_where_no_other_had_it(make_row: Any) -> None:
    first, second = lacking(make_row, 8), lacking(make_row, 9)
    other = replace(second, environment=second.environment | {"device": "NVIDIA A100"})
    assert latest([second, other, first]) == [second, other]


@pytest.mark.parametrize("status", ["wrong", "crashed", "oom", "timeout", "compile_error", "unsupported"])
def test_what_a_case_came_to_later_hides_an_older_time(make_row: Any, status: str) -> None:
    """Even in words of a missing package: only a case that was not run says so of its machine."""
    right = make_row("fla", [1.0], started=at(8))
    reason = "K=512 is too large" if status == "unsupported" else "the package fla is not installed; it says"
    later = make_row("fla", status=status, reason=reason, started=at(9))
    assert latest([right, later]) == latest([later, right]) == [later]


@pytest.mark.parametrize(
    ("reason", "hides"),
    [
        ("the package flash-attn-4 is not installed; pip install --pre 'flash-attn-4[cu13]'", False),
        ("it needs an NVIDIA GPU; run it where there is one", False),
        ("helion 1.5.1 cannot be imported beside torch 2.11.0: cannot import name 'IntelGPUError'; install", False),
        (
            "FLA's backward pass with a gate a head needs triton >= 3.7.1 on Hopper; in fp32 alone tilelang will do",
            True,
        ),
        ("FlashAttention-3 takes head dimensions up to 256, not 512", True),
        ("RuntimeError: No available kernel. Aborting execution.", True),
    ],
)
def test_of_older_rows_the_reason_says_whether_the_machine_lacked_the_system(
    make_row: Any, reason: str, hides: bool
) -> None:
    right = make_row("fla", [1.0], started=at(8))
    later = make_row("fla", status="unsupported", reason=reason, started=at(9))
    assert latest([right, later]) == [later if hides else right]
