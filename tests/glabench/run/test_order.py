"""Longest first: by work where kernels do it, by turns where Python loops."""

from __future__ import annotations

from dataclasses import replace

from glabench.run.order import longest_first, reference_s, sweep_s
from glabench.run.question import asked
from glabench.spec.case import Case
from glabench.spec.settings import Device


def case(system: str, T: int, **more: object) -> Case:
    return Case(system, 1, T, 4, 128, 128, **more)  # type: ignore[arg-type]  # the names are those of Case


def test_more_work_goes_first_and_equal_cases_keep_their_order() -> None:
    short, long, same = case("gla", 1024), case("gla", 65536), case("gla", 1024, seed=1)
    assert longest_first([short, long, same]) == [long, short, same]


def test_a_loop_over_time_takes_longer_than_its_work_says() -> None:
    loop, kernel, step = case("recurrent_torch", 4096), case("gla", 8192), case("recurrent_torch", 4096, mode="step")
    assert longest_first([step, kernel, loop])[0] == loop


def test_a_sweep_takes_longer_with_more_of_what_takes_long() -> None:
    def seconds(*cases: Case, device: Device = "cuda", cores: int = 16) -> float:
        return sweep_s(cases, device, {case.id for case in cases}, 600, cores)

    ours = [Case("gla", 4, T, 16, 128, 128) for T in (1024, 2048)]
    assert 0 == seconds() < seconds(*ours[:1]) < seconds(*ours)
    tuned = [Case("fla", 4, T, 16, 128, 128) for T in (1024, 2048)]
    assert seconds(*tuned) - seconds(*tuned[:1]) < seconds(*tuned[:1])  # configs are compiled once a head dimension
    assert seconds(*tuned, cores=4) > seconds(*tuned)
    loop = Case("recurrent_torch", 4, 2**20, 16, 128, 128)
    assert seconds(loop, device="cpu") - seconds(replace(loop, T=2**21), device="cpu") < 0
    assert sweep_s([loop], "cpu", (), 600, 2) < 600 + reference_s(asked(loop)) + 1  # what takes too long is killed
