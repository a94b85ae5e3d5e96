"""The compile pool: real processes that compile, abort and hang, and what each candidate's future comes to."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest

from gla_kernels import Machine, Schedule, Tile, Workload, chosen
from gla_kernels.tiles import operands
from glabench.tune.candidate import Candidate, Variant
from glabench.tune.compiler import Closed, CompilePool
from glabench.tune.space import space_of

WORK = Workload("fwd", B=1, T=1024, H=2, K=32, V=32)
PLAIN = Variant(Schedule(16, 16, True), 16)

# What it does is chosen by the tile's number of stages. Every request adds a line to the file named by CALLS.
MISBEHAVING = """
import os, signal, sys, time

def handle(request):
    if "part" in request:
        time.sleep(600)
    stages = request["candidate"]["tile"][3]
    with open(os.environ["CALLS"], "a") as file:
        print(stages, os.getpid(), os.environ.get("TRITON_INTERPRET"), os.environ["OMP_NUM_THREADS"], file=file)
    if stages == 2:
        print("LLVM ERROR: out of patience", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGABRT)
    if stages == 3:
        time.sleep(600)
    return {"status": "ok", "reason": None, "compiled": {"kernel": request["candidate"]["step"]}}
"""


def candidate(stages: int, block_v: int = 32, variant: Variant = PLAIN, step: str = "output") -> Candidate:
    return Candidate(variant, step, Tile(32, block_v, 4, stages))


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "hostile_compiler.py").write_text(MISBEHAVING)
    path = tmp_path / "calls"
    path.touch()
    monkeypatch.setenv("CALLS", str(path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    return path


def called(calls: Path) -> list[list[str]]:
    return [line.split() for line in calls.read_text().splitlines()]


def test_a_compiler_that_aborts_or_hangs_costs_its_candidate_alone(calls: Path) -> None:
    with CompilePool("sm_90", jobs=1, limit_s=2, module="hostile_compiler") as pool:
        futures = [pool.submit(WORK, candidate(stages)) for stages in (1, 2, 3, 4)]
        first, aborted, hung, last = (future.result(timeout=60) for future in futures)
    assert first == last == {"status": "ok", "reason": None, "compiled": {"kernel": "output"}}
    assert (aborted["status"], aborted["compiled"]) == ("crashed", None)
    assert aborted["reason"] == "the process was killed by SIGABRT: LLVM ERROR: out of patience"
    assert (hung["status"], hung["compiled"]) == ("timeout", None)
    assert hung["reason"] == "no result after 2 s; the process was killed"
    assert [line[0] for line in called(calls)] == ["1", "2", "3", "4"]  # in the order of submission
    assert len({line[1] for line in called(calls)}) == 3
    assert all(line[2:] == ["None", "1"] for line in called(calls))  # compiles, on one thread


def test_the_same_kernel_is_compiled_once(calls: Path) -> None:
    with CompilePool("sm_90", jobs=1, module="hostile_compiler") as pool:
        asked = pool.submit(WORK, candidate(1))
        assert pool.submit(WORK, candidate(1)) is asked
        # sub-chunks of 32 rows in blocks of 16 differ from sub-chunks of 16; their states pass is the same kernel
        one, other = (Variant(Schedule(32, rows, True), 16) for rows in (16, 32))
        states, output = (pool.submit(WORK, candidate(1, step=step, variant=one)) for step in ("states", "output"))
        assert pool.submit(WORK, candidate(1, step="states", variant=other)) is states
        assert pool.submit(WORK, candidate(1, variant=other)) is not output
        assert pool.submit(WORK, candidate(1, block_v=16)) is not asked
        states.result(timeout=60)


def test_closing_drops_what_has_not_begun(calls: Path) -> None:
    pool = CompilePool("sm_90", jobs=1, limit_s=60, module="hostile_compiler")
    hanging, waiting = pool.submit(WORK, candidate(3)), pool.submit(WORK, candidate(1))
    while not called(calls):
        pass
    pool.close()
    assert waiting.cancelled()
    assert hanging.result(timeout=10)["status"] == "crashed"
    assert [line[0] for line in called(calls)] == ["3"]


@pytest.fixture(scope="module")
def two(forking: Callable[[], AbstractContextManager[None]]) -> Iterator[CompilePool]:
    """Two processes with the real compiler, for a GPU that is not here."""
    with forking(), CompilePool("sm_80", jobs=2) as pool:
        yield pool


def test_candidates_compile_or_say_why_not(two: CompilePool) -> None:
    good = two.submit(WORK, candidate(1))
    crooked = two.submit(WORK, candidate(1, block_v=24))
    absent = two.submit(WORK, candidate(1, step="grad_qk"))
    whole = two.submit_plan(WORK, chosen(WORK, Machine(80)).plan)
    answers = {step: future.result(timeout=120) for step, future in whole.items()}
    assert good.result(timeout=120)["status"] == "ok"
    assert good.result()["compiled"]["arch"] == "sm_80"
    said = crooked.result(timeout=120)
    assert (said["status"], "power of 2" in said["reason"]) == ("compile_error", True)
    assert absent.result(timeout=120) == {"status": "compile_error", "reason": "KeyError: 'grad_qk'", "compiled": None}
    assert set(answers) <= {"states", "output"}
    assert all(answer["status"] == "ok" for answer in answers.values())


def test_a_space_is_the_same_by_several_processes(two: CompilePool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operands, "interpreting", lambda: False)  # as in processes that compile
    work = replace(WORK, schedule=Schedule(64, 64, True))
    found = two.space_of(work)
    here = space_of(work, 80)
    assert found == here
    assert list(found.candidates) == list(here.candidates)


def test_what_a_process_does_not_enumerate_is_enumerated_here(pool: CompilePool) -> None:
    work = replace(WORK, schedule=Schedule(64, 64, True))
    assert pool.space_of(work) == space_of(work, 90)  # these processes are made up, and answer that they crashed


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_space_that_is_being_enumerated_ends_with_the_pool(calls: Path, jobs: int) -> None:
    """By hung processes, by this one alone: on a machine with few cores it would take most of a minute."""
    pool = CompilePool("sm_90", jobs, module="hostile_compiler")
    with ThreadPoolExecutor(1) as beside:
        asked = beside.submit(pool.space_of, replace(WORK, T=8192, K=128, V=128))
        with pytest.raises(TimeoutError):
            asked.result(timeout=0.3)
        pool.close()
        with pytest.raises(Closed):
            asked.result(timeout=10)
    with pytest.raises(Closed):
        pool.space_of(WORK)
