"""A GPU and a compiler that are made up: in processes of their own as in a tuning, or in the test's own process."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gla_kernels import Plan, Workload
from glabench.tune.candidate import Candidate
from glabench.tune.compiler import CompilePool
from glabench.tune.gpu import Gpu
from glabench.tune.space import Space, space_of

Json = dict[str, Any]
HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def fake() -> ModuleType:
    """The module `fake_gpu`, which the processes import by that name."""
    spec = importlib.util.spec_from_file_location("fake_gpu", HERE / "fake_gpu.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["fake_gpu"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class HereGpu(Gpu):
    """A Gpu whose requests are answered by a function in this process; ``asked`` keeps them."""

    def __init__(self, handle: Callable[[Json], Json]) -> None:
        super().__init__()
        self.handle = handle
        self.asked: list[Json] = []

    def _ask(self, work: Workload | None, request: Json, limit_s: float) -> Json:
        request = request | ({} if work is None else {"workload": work.to_dict()})
        self.asked.append(request)
        return self.handle(request)


class HereCompiler:
    """A compiler whose futures a function in this process fulfils at once; ``asked`` keeps the candidates, ``plans``
    whole plans that nobody waits for."""

    def __init__(self, handle: Callable[[Json], Json]) -> None:
        self.handle = handle
        self.asked: list[Candidate] = []
        self.plans: list[tuple[Workload, Plan]] = []

    def submit(self, work: Workload, candidate: Candidate) -> Future[Json]:
        self.asked.append(candidate)
        future: Future[Json] = Future()
        future.set_result(self.handle({"candidate": candidate.to_dict(), "workload": work.to_dict()}))
        return future

    def space_of(self, work: Workload) -> Space:
        return space_of(work, 90)

    def submit_plan(self, work: Workload, plan: Plan) -> dict[str, Future[Json]]:
        self.plans.append((work, plan))
        return {}

    def forget(self, future: Future[Json]) -> None:
        future.cancel()


@pytest.fixture
def here_gpu(plant: Any, fake: ModuleType) -> Callable[..., HereGpu]:
    """``here_gpu()``, or ``here_gpu(handle)``: a Gpu in this process."""
    return lambda handle=fake.handle: HereGpu(handle)


@pytest.fixture
def here_compiler(plant: Any, fake: ModuleType) -> Callable[..., HereCompiler]:
    """``here_compiler()``, or ``here_compiler(handle)``: a compiler in this process."""
    return lambda handle=fake.handle: HereCompiler(handle)


@pytest.fixture(scope="session")
def _faults_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The file that the fake processes of this session read their faults from."""
    path = tmp_path_factory.mktemp("faults") / "faults.json"
    path.write_text("{}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAKE_FAULTS", str(path))
        patch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]))
        yield path


@pytest.fixture
def plant(_faults_file: Path, fake: ModuleType) -> Iterator[Callable[[dict[Candidate, str]], None]]:
    """``plant({candidate: fault, ...})``: what goes wrong until the test's end."""

    def write(found: dict[Candidate, str]) -> None:
        _faults_file.write_text(json.dumps({fake.name_of(one.to_dict()): fault for one, fault in found.items()}))

    yield write
    write({})


@pytest.fixture(scope="session")
def gpu(_faults_file: Path) -> Iterator[Gpu]:
    """A fake GPU in a process of its own."""
    made = Gpu(module="fake_gpu", trial_limit_s=2)
    yield made
    made.close()


@pytest.fixture
def pool(_faults_file: Path) -> Iterator[CompilePool]:
    """Fake compilers in processes of their own."""
    with CompilePool("sm_90", 2, limit_s=2, module="fake_gpu") as made:
        yield made
