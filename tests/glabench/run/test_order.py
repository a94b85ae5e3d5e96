"""Longest first: by work where kernels do it, by turns where Python loops."""

from __future__ import annotations

from glabench.run.order import longest_first
from glabench.spec.case import Case


def case(system: str, T: int, **more: object) -> Case:
    return Case(system, 1, T, 4, 128, 128, **more)  # type: ignore[arg-type]  # the names are those of Case


def test_more_work_goes_first_and_equal_cases_keep_their_order() -> None:
    short, long, same = case("gla", 1024), case("gla", 65536), case("gla", 1024, seed=1)
    assert longest_first([short, long, same]) == [long, short, same]


def test_a_loop_over_time_takes_longer_than_its_work_says() -> None:
    loop, kernel, step = case("recurrent_torch", 4096), case("gla", 8192), case("recurrent_torch", 4096, mode="step")
    assert longest_first([step, kernel, loop])[0] == loop
