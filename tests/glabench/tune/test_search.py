"""The search: compiled side by side, measured one by one, and what becomes of what does not compile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from gla_kernels import Schedule, Workload
from glabench.tune import search
from glabench.tune.candidate import Candidate, candidates_of
from glabench.tune.history import History
from glabench.tune.search import FAR_BEHIND, Search, Searcher
from glabench.tune.space import Space, space_of
from glabench.tune.stage import reference_plan
from glabench.tune.strategies import Request

Json = dict[str, Any]
WORK = Workload("fwd", 4, 300, 4, 64, 64)
FINE = {"status": "ok", "reason": None, "compiled": {"registers": 64}}
BROKEN = {"status": "compile_error", "reason": "PTXASError: made up", "compiled": None}


@pytest.fixture(scope="module")
def space() -> Space:
    return space_of(WORK, 90)


def some(space: Space, count: int, **wanted: Any) -> list[str]:
    """Keys of candidates whose schedule is as wanted, every seventh."""
    keys = [
        key
        for key, one in space.candidates.items()
        if all(getattr(one.variant.schedule, name) == value for name, value in wanted.items())
    ]
    return keys[::7][:count]


def batches_of(*batches: list[Request]) -> Any:
    return lambda history: iter(batches)


def run(searcher: Searcher, *searches: Search) -> None:
    for one in searches:
        searcher.begin(one)
    searcher.run()


def trials(gpu: Any) -> list[Json]:
    return [request for request in gpu.asked if request["do"] == "trial"]


def test_each_request_is_compiled_then_measured(space: Space, fake, here_gpu, here_compiler) -> None:
    keys, gpu, told = some(space, 5), here_gpu(), []
    history = History(space)
    first, second = [Request(key, 3) for key in keys[:3]], [Request(key, 4) for key in keys[2:]]
    one = Search.of(history, batches_of(first, [], second))
    run(Searcher(gpu, here_compiler(), progress=lambda done: told.append(len(done.history.results))), one)
    assert set(history.results) == set(keys)
    assert one.stopped == "the strategy ended"
    for key in keys:
        ms = fake.ms_of(space.candidates[key].to_dict())
        assert set(history.results[key].samples_ms) == {ms}
        assert history.results[key].compiled == {"registers": 128, "spill_bytes": 0, "shared_bytes": 1024}
    assert len(history.results[keys[2]].samples_ms) == 7  # asked for twice
    assert (len(told), told[:3], told[-1]) == (6, [1, 2, 3], 5)
    assert {Candidate.from_dict(request["candidate"]) for request in trials(gpu)[:3]} == {
        space.candidates[key] for key in keys[:3]
    }


def test_a_kernel_far_behind_the_best_of_its_pass_may_stop_early(space: Space, fake, here_gpu, here_compiler) -> None:
    outputs = [key for key in some(space, 60, chunk=64) if space.candidates[key].step == "output"]
    gpu = here_gpu()
    run(Searcher(gpu, here_compiler()), Search.of(History(space), batches_of([Request(key) for key in outputs])))
    best = float("inf")  # a single launch of each: short sequences are worked on as a whole
    for request in trials(gpu):
        assert request["enough_ms"] == (None if best == float("inf") else FAR_BEHIND * best)
        best = min(best, fake.ms_of(request["candidate"]))


def test_what_does_not_compile_is_not_measured(space: Space, fake, here_gpu, here_compiler) -> None:
    keys = some(space, 6, chunk=32, materialize=True)
    bad = space.candidates[keys[1]]

    def compile_(request: Json) -> Json:
        return BROKEN if Candidate.from_dict(request["candidate"]) == bad else FINE

    gpu, history = here_gpu(), History(space)
    run(Searcher(gpu, here_compiler(compile_)), Search.of(history, batches_of([Request(key) for key in keys])))
    assert (history.results[keys[1]].status, history.results[keys[1]].reason) == ("compile_error", BROKEN["reason"])
    assert [result.status for result in history.results.values()].count("ok") == len(keys) - 1
    assert bad.to_dict() not in [request["candidate"] for request in trials(gpu)]


def test_without_a_reference_plan_nothing_of_its_kind_is_measured(space: Space, here_gpu, here_compiler) -> None:
    of_64, of_32 = some(space, 3, chunk=64, materialize=True), some(space, 3, chunk=32, materialize=True)
    schedule = space.candidates[of_64[0]].variant.schedule
    reference = candidates_of(WORK, reference_plan(WORK, schedule, 90), 90)

    def compile_(request: Json) -> Json:
        return BROKEN if Candidate.from_dict(request["candidate"]) == reference[-1] else FINE

    gpu, history = here_gpu(), History(space)
    requests = [Request(key) for key in of_64 + of_32]
    run(Searcher(gpu, here_compiler(compile_)), Search.of(history, batches_of(requests)))
    assert {history.results[key].status for key in of_32} == {"ok"}
    for key in of_64:
        if space.candidates[key] != reference[-1]:
            assert history.results[key].status == "compile_error"
            assert history.results[key].reason == f"the plan that it is compared with: {BROKEN['reason']}"
    assert len(trials(gpu)) == len(of_32)


def test_what_is_compiled_first_is_measured_first(space: Space, here_gpu, fake) -> None:
    """A slow compilation holds up nothing but its own candidate."""
    keys = some(space, 5, chunk=64, materialize=True)
    slow, others_done = space.candidates[keys[0]], threading.Event()

    class Threads:
        def __init__(self) -> None:
            self.pool = ThreadPoolExecutor(4)

        def submit(self, work: Workload, candidate: Candidate) -> Future[Json]:
            return self.pool.submit(self.compile, candidate)

        def forget(self, future: Future[Json]) -> None:
            future.cancel()

        def compile(self, candidate: Candidate) -> Json:
            if candidate == slow:
                assert others_done.wait(30)
            return FINE

    def handle(request: Json) -> Json:
        if len(gpu.asked) == len(keys) - 1:
            others_done.set()
        answer: Json = fake.handle(request)
        return answer

    gpu = here_gpu(handle)
    run(Searcher(gpu, Threads()), Search.of(History(space), batches_of([Request(key) for key in keys])))
    order = [Candidate.from_dict(request["candidate"]) for request in trials(gpu)]
    assert len(order) == len(keys)
    assert order[-1] == slow


def test_searches_go_on_side_by_side(space: Space, here_gpu, here_compiler) -> None:
    backward = space_of(replace(WORK, direction="bwd", schedule=Schedule(32, 32, True)), 90)
    one = Search.of(History(space), batches_of([Request(key) for key in some(space, 4)]))
    other = Search.of(History(backward), batches_of(*([Request(key)] for key in some(backward, 3))))
    gpu = here_gpu()
    run(Searcher(gpu, here_compiler()), one, other)
    assert (len(one.history.results), len(other.history.results)) == (4, 3)
    assert {request["workload"]["direction"] for request in trials(gpu)} == {"fwd", "bwd"}


def test_after_the_deadline_nothing_is_measured_or_compiled(space: Space, fake, here_gpu, monkeypatch) -> None:
    now = 0.0
    monkeypatch.setattr(search, "time", SimpleNamespace(monotonic=lambda: now))
    reference = candidates_of(WORK, reference_plan(WORK, Schedule(64), 90), 90)
    keys = [key for key in some(space, 9, chunk=64) if space.candidates[key] not in reference]
    waiting: list[Future[Json]] = []

    class Stalled:
        """Compiles the reference plan and three candidates."""

        def submit(self, work: Workload, candidate: Candidate) -> Future[Json]:
            future: Future[Json] = Future()
            if candidate in late:
                waiting.append(future)
            else:
                future.set_result(FINE)
            return future

        def forget(self, future: Future[Json]) -> None:
            future.cancel()

    late = [space.candidates[key] for key in keys[3:]]

    def handle(request: Json) -> Json:
        nonlocal now
        now += 1.0
        answer: Json = fake.handle(request)
        return answer

    def endless(history: History) -> Iterator[list[Request]]:
        while True:
            yield [Request(key) for key in keys]

    one = Search.of(History(space), endless)
    searcher = Searcher(here_gpu(handle), Stalled(), deadline=1.5)
    run(searcher, one)
    assert one.stopped == "the budget was spent"
    assert len(one.history.results) == 2
    assert searcher.measure_s == 2.0
    assert waiting
    assert all(future.cancelled() for future in waiting)
