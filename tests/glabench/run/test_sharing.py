"""Which case goes to which GPU: no reference twice where it can be helped, and all are done at about the same time."""

from __future__ import annotations

from itertools import product
from typing import Any

from glabench.run.order import case_s, reference_s
from glabench.run.question import Asked, asked
from glabench.run.sharing import Shared
from glabench.spec.case import Case


def case(system: str, T: int, **more: Any) -> Case:
    return Case(system, 4, T, 4, 64, 64, **more)


def played(cases: list[Case], workers: int) -> tuple[list[float], list[tuple[int, Asked]], list[Case]]:
    """When each worker ends if every guess is right, which references were computed, and the cases in order."""
    shared, ends, known, order = Shared(cases), [0.0] * workers, list[tuple[int, Asked]](), list[Case]()
    running = set(range(workers))
    while running:
        worker = min(running, key=lambda number: ends[number])
        found = shared.take(worker)
        if found is None:
            running.remove(worker)
            continue
        question = asked(found)
        if (worker, question) not in known:
            known.append((worker, question))
            ends[worker] += reference_s(question)
        ends[worker] += case_s(found)
        order.append(found)
    return ends, known, order


def test_forward_and_backward_of_every_schedule_are_one_question_and_attention_is_another() -> None:
    one = asked(case("gla", 512, mode="fwd", chunk=64))
    assert one == asked(case("gla_recurrent", 512, mode="fwdbwd"))
    assert one != asked(case("gla", 512, mode="step"))
    assert one != asked(case("gla", 512, seed=1))
    assert one != asked(case("sdpa", 512))


def test_a_worker_stays_with_its_question() -> None:
    cases = [case(system, T) for system, T in product(("gla", "gla_recurrent", "gla"), (4096, 8192))]
    shared = Shared(cases)
    taken = [[one.T for _ in range(3) if (one := shared.take(worker))] for worker in (0, 1)]
    assert taken == [[8192] * 3, [4096] * 3]
    assert shared.take(0) is None


def test_one_helps_where_that_is_sooner_than_waiting() -> None:
    many = [case("gla", 1024, chunk=chunk) for chunk in (16, 32, 64, 128)]  # the reference takes half a case's time
    shared = Shared(many)
    assert shared.take(0) is not None
    assert asked(many[0]) == asked(shared.take(1) or case("sdpa", 1))
    long = [case("gla", 65536, chunk=chunk) for chunk in (32, 64)]  # and here half a minute
    shared = Shared(long)
    assert shared.take(0) is not None
    assert shared.take(1) is None
    assert shared.take(0) is not None


def test_systems_that_are_compared_are_timed_on_one_gpu() -> None:
    systems, modes, lengths = ("gla", "fa2", "cudnn", "gla_recurrent"), ("fwd", "fwdbwd"), range(512, 8704, 512)
    cases = [case(system, T, mode=mode) for T, mode, system in product(lengths, modes, systems)]
    shared, gpus, ends = Shared(cases), {T: list[int]() for T in lengths}, [0.0, 0.0]
    while (found := shared.take(worker := ends.index(min(ends)))) is not None:
        gpus[found.T].append(worker)
        ends[worker] += case_s(found)
    assert all(len(taken) == len(modes) * len(systems) for taken in gpus.values())
    # but for the last shape, which one begins and the other helps with
    assert sum(len(set(taken)) > 1 for taken in gpus.values()) <= 1
    assert {taken[0] for taken in gpus.values()} == {0, 1}


def test_four_gpus_share_a_sweep_evenly_and_compute_few_references_twice() -> None:
    systems, modes, seeds = ("gla", "gla_recurrent", "fa2", "cudnn"), ("fwd", "fwdbwd"), range(12)
    cases = [case(s, 1024 + 512 * (n % 3), mode=mode, seed=n) for n, s, mode in product(seeds, systems, modes)]
    (alone,), once, _ = played(cases, 1)
    ends, known, order = played(cases, 4)
    assert sorted(one.id for one in order) == sorted(one.id for one in cases)
    assert len(known) <= len(once) + 4
    assert alone / max(ends) > 3.6
