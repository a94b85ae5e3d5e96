"""Processes that share the tests take a machine's GPUs in turns."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.parametrize(
    ("worker", "listed", "there", "gpu"),
    [
        ("gw0", None, 4, "0"),
        ("gw6", None, 4, "2"),
        ("gw3", "1,3", 4, "3"),
        ("gw3", "GPU-5eaa", 4, None),
        ("gw3", "", 4, None),  # none is to be seen
        ("gw3", None, 1, None),
        ("gw3", None, 0, None),
        (None, None, 4, None),  # a process alone sees all of them
    ],
)
def test_each_process_has_one(
    own_gpu: Callable[[str | None, str | None, int], str | None],
    worker: str | None, listed: str | None, there: int, gpu: str | None,
) -> None:  # fmt: skip
    assert own_gpu(worker, listed, there) == gpu
