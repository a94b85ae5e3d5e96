"""The measuring process's own rules, as far as they need no GPU: what is judged twice, and how failures are told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gla_kernels import Schedule, Tile, Workload
from glabench.hardware.nvml import Clocks
from glabench.run.cold import Batch
from glabench.tune import bench
from glabench.tune.candidate import Candidate, Variant
from glabench.tune.stage import UnequalRuns, WrongResult

WORK = Workload("fwd", 1, 100, 1, 16, 16)
CANDIDATE = Candidate(Variant(Schedule(), 16), "output", Tile(16, 16))


class MadeUpStage:
    """Judges its candidates as given, one after another."""

    def __init__(self, errors: list[Exception | None]) -> None:
        self.errors = errors

    def trial(self, candidate: Candidate) -> Callable[[], None]:
        error = self.errors.pop(0)
        if error is not None:
            raise error
        return lambda: None


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[Exception | None]], dict[str, Any]]:
    """Answer a trial on a stage whose judgements are given; "cleared" is how often everything was made anew."""

    def answer(errors: list[Exception | None]) -> dict[str, Any]:
        cleared = []
        made = MadeUpStage(errors)
        monkeypatch.setattr(bench, "_stage_of", lambda work: made)
        monkeypatch.setattr(bench, "_clear_stages", lambda: cleared.append(1))
        monkeypatch.setattr(bench, "ColdSampler", lambda calls: None)
        monkeypatch.setattr(bench, "_samples", lambda sampler, count: [2.0] * count)
        request = {"do": "trial", "workload": WORK.to_dict(), "candidate": CANDIDATE.to_dict(), "samples": 5}
        return {**bench.handle(request), "cleared": len(cleared), "left": len(errors)}

    return answer


def test_the_victim_of_another_kernel_is_judged_again(stage) -> None:
    found = stage([WrongResult("o is off"), None])
    assert (found["status"], found["samples_ms"], found["cleared"]) == ("ok", [2.0] * 5, 1)


def test_what_is_off_twice_is_wrong(stage) -> None:
    found = stage([WrongResult("o is off"), WrongResult("o is still off"), None])
    assert (found["status"], found["reason"], found["cleared"], found["left"]) == ("wrong", "o is still off", 1, 1)


def test_what_differs_from_itself_gets_no_second_chance(stage) -> None:
    found = stage([UnequalRuns("two runs of the same inputs differ in o"), None])
    assert (found["status"], found["reason"]) == ("wrong", "two runs of the same inputs differ in o")
    assert (found["cleared"], found["left"]) == (0, 1)


def test_any_other_error_is_named_by_its_kind(stage) -> None:
    found = stage([RuntimeError("CUDA error: an illegal memory access was encountered\nmore")])
    assert (found["status"], found["reason"]) == (
        "crashed", "RuntimeError: CUDA error: an illegal memory access was encountered"
    )  # fmt: skip
    found = stage(
        [MemoryError("CUDA out of memory. Tried to allocate 10240.00 GiB. GPU 0 has a total capacity of 1 GiB")]
    )
    assert (found["status"], found["cleared"]) == ("oom", 1)
    assert found["reason"] == "out of memory: 10240.00 GiB more were needed of 1 GiB"


def test_what_is_far_behind_gets_few_samples(stage, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(stage([None])["samples_ms"]) == 5
    request = {"do": "trial", "workload": WORK.to_dict(), "candidate": CANDIDATE.to_dict(), "samples": 5}
    for enough, count in ((2.0, 5), (1.9, bench.FEWEST_SAMPLES), (None, 5)):
        monkeypatch.setattr(bench, "_stage_of", lambda work: MadeUpStage([None]))
        assert len(bench.handle({**request, "enough_ms": enough})["samples_ms"]) == count


# --- Out of memory ---------------------------------------------------------------------------------------------------

BWD = replace(WORK, direction="bwd")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[str, int]]:
    """A request's status, and how often it was tried, on a GPU that has room for no more than so many stages beside
    what is asked for."""

    def answer(do: str, kept: list[Workload], room: int) -> tuple[str, int]:
        tried = []

        def work(work: Workload, request: dict[str, Any]) -> dict[str, Any]:
            tried.append(1)
            if do != "gate":
                bench._stages.setdefault(work, object())  # type: ignore[arg-type]  # nobody looks into it
            if len(bench._stages) > room:
                raise MemoryError("CUDA out of memory")
            return {"status": "ok", "reason": None}

        monkeypatch.setattr(bench, "_stages", dict.fromkeys(kept))
        monkeypatch.setitem(bench.ACTIONS, do, work)
        return bench.handle({"do": do, "workload": WORK.to_dict()})["status"], len(tried)

    return answer


@pytest.mark.parametrize(
    ("do", "kept", "room", "expected"),
    [
        ("gate", [WORK, BWD], 2, ("ok", 1)),  # nothing is made anew where there is room
        ("gate", [WORK], 0, ("ok", 2)),
        ("gate", [], -1, ("oom", 1)),
        ("gate", [WORK], -1, ("oom", 2)),
        ("final", [WORK, BWD], 1, ("ok", 2)),
        ("trial", [WORK, BWD], 1, ("ok", 2)),
        ("trial", [WORK], 0, ("oom", 1)),  # a candidate that is too large by itself
    ],
)
def test_what_is_kept_makes_room(
    small: Callable[..., tuple[str, int]], do: str, kept: list[Workload], room: int, expected: tuple[str, int]
) -> None:
    assert small(do, kept, room) == expected
    assert bench._stages == {} or expected[0] == "ok"


@pytest.mark.parametrize("last", [1900.0, 900.0])
def test_a_batch_that_the_host_or_the_clock_spoiled_is_taken_again_twice_at_most(last: float) -> None:
    def clocks(mhz: float) -> Clocks:
        return Clocks(mhz, 1980.0, 300.0, 50.0, ())

    batches = [
        Batch([1.0, 1.0], clocks(1980.0), [False, True]),
        Batch([2.0, 2.0], clocks(1200.0), [False, False]),
        Batch([3.0, 3.0], clocks(last), [False, False]),
        Batch([4.0, 4.0], clocks(1980.0), [False, False]),
    ]

    class Sampler:
        def batch(self, count: int) -> Batch:
            return batches.pop(0)

    assert bench._samples(Sampler(), 2) == [3.0] * 2  # type: ignore[arg-type]
