"""What all tests share: where kernels run, which tests a machine can run, and clean processes.

Triton decides when it is imported whether kernels are compiled or interpreted. Without a CUDA device this process
interprets them on CPU tensors; a test that compiles asks for ``python_process``, which starts one that does not.
"""

from __future__ import annotations

import fcntl
import gc
import itertools
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch


def own_gpu(worker: str | None, listed: str | None, there: int) -> str | None:
    """What CUDA_VISIBLE_DEVICES is for a process that shares the tests, gw0, gw1 ..: one of the GPUs ``listed`` there,
    or of as many as there are, in turns. None where nothing is to change."""
    gpus = [str(index) for index in range(there)] if listed is None else [one for one in listed.split(",") if one]
    return gpus[int(worker.removeprefix("gw")) % len(gpus)] if worker and len(gpus) > 1 else None


gc.disable()  # until tests are collected: what is imported and collected stays
GPUS = len(list(Path("/proc/driver/nvidia/gpus").glob("*")))  # before CUDA is asked, which looks at the variable once
if (gpu := own_gpu(os.environ.get("PYTEST_XDIST_WORKER"), os.environ.get("CUDA_VISIBLE_DEVICES"), GPUS)) is not None:
    os.environ["CUDA_VISIBLE_DEVICES"] = gpu
CUDA = torch.cuda.is_available()

if not CUDA:
    os.environ.setdefault("TRITON_INTERPRET", "1")
os.environ.setdefault("MPLBACKEND", "Agg")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as it is in the background, and so in all that tests start
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Plans that were tuned on this machine are not for tests: this folder is not there.
os.environ["GLABENCH_CACHE"] = os.path.join(tempfile.gettempdir(), f"glabench-tests-{os.getpid()}")
if "PYTEST_XDIST_WORKER" in os.environ:
    # One core a worker, in the processes that tests start as well.
    torch.set_num_threads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores: some tests wait, for time limits, a browser, or one process that they start."""
    return len(os.sched_getaffinity(0)) + 1


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--exhaustive", action="store_true", help="without a GPU, too, leave out nothing: make test-all")


def pytest_report_header(config: pytest.Config) -> list[str]:
    more = "" if config.option.exhaustive else ", and what make test-all runs besides"
    return [] if CUDA else [f"no CUDA device: tests marked gpu are left out{more}"]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests that compile come first: they are long, and one of the processes that share the tests gets them, which
    starts those to fork from. Where no CUDA device answers, leave out ``gpu`` tests, and unless asked for all the
    ``exhaustive`` ones and of ``pairwise`` and ``each_value`` ones all but what `_covering` leaves."""
    items.sort(key=lambda item: {"compiling_process", "forking"}.isdisjoint(getattr(item, "fixturenames", ())))
    for item in items:
        if not _by_night(item):  # of values that this one has not: -m "not exhaustive", on a GPU, is to run it
            item.own_markers[:] = [mark for mark in item.own_markers if mark.name != "exhaustive"]
    if CUDA:
        return
    left_out = {item for item in items if "gpu" in item.keywords}
    combinations = defaultdict[tuple[str, int], list[pytest.Function]](list)
    together = {"pairwise": 2, "each_value": 1}
    for item in () if config.option.exhaustive else items:
        if _by_night(item):
            left_out.add(item)
        elif item not in left_out and isinstance(item, pytest.Function):
            for mark in together.keys() & set(item.keywords):
                combinations[item.nodeid.partition("[")[0], together[mark]].append(item)
    for (_, size), of_one_test in combinations.items():
        kept = _covering([item.callspec.params for item in of_one_test], size)
        left_out |= {item for place, item in enumerate(of_one_test) if place not in kept}
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]


def _by_night(item: pytest.Item) -> bool:
    """Whether it is marked exhaustive, or for such a value of a parameter: ``exhaustive(gates=(4.0, "resets"))``."""
    given = item.callspec.params if hasattr(item, "callspec") else {}
    marks = [mark.kwargs for mark in item.iter_markers("exhaustive")]
    return any(not which or any(given.get(name) in some for name, some in which.items()) for which in marks)


def _covering(combinations: list[dict[str, object]], size: int = 2) -> set[int]:
    """The places of a few combinations of values, by parameter, that have each pair of values of two parameters that
    any of them has, or with a size of 1 each value, of none much more often than of others. Which ones follows from the
    combinations alone: processes that share tests must agree."""
    named = [[(name, id(one[name])) for name in sorted(one)] for one in combinations]  # not all values can be hashed
    groups = [set(itertools.combinations(one, size)) for one in named]
    missing, kept, seen = set[object]().union(*groups), set[int](), Counter[object]()
    while missing:
        best = max(range(len(groups)), key=lambda i: (len(groups[i] & missing), -sum(seen[one] for one in groups[i])))
        kept.add(best)
        missing -= groups[best]
        seen.update(groups[best])
    return kept


@pytest.fixture(name="own_gpu")
def _own_gpu() -> Callable[[str | None, str | None, int], str | None]:
    return own_gpu


@pytest.fixture(scope="session")
def covering() -> Callable[[list[dict[str, object]]], set[int]]:
    """See `_covering`."""
    return _covering


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


_frozen = 0


def pytest_runtest_setup() -> None:
    """Collections of garbage, of which a case ends with one, need not look at what stays: tests, and modules as they
    are imported."""
    global _frozen
    if len(sys.modules) >= _frozen + 100:
        gc.collect()
        gc.freeze()
        _frozen = len(sys.modules)


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Where kernels run in this session: a CUDA device, or the CPU through Triton's interpreter."""
    return torch.device("cuda" if CUDA else "cpu")


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """Seed torch before each test, so that a failure shows again on its own."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[], Any]], Any]:
    """``made_once("board page", make)``: what ``make()`` answers, for tests that only read it. Of the processes that
    share the tests the first that asks makes it."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # theirs are inside

    def once(name: str, make: Callable[[], Any]) -> Any:
        path = folder / f"{name}.pickle"
        with path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                path.write_bytes(pickle.dumps(make()))
        return pickle.loads(path.read_bytes())

    return once


PythonProcess = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def python_process() -> PythonProcess:
    """Start this Python with the arguments given and wait for it: ``python_process("-c", "import triton")``.

    The process compiles Triton kernels; ``interpret=True`` asks for the interpreter. Unless ``check=False``, an exit
    code other than 0 fails the test and shows what the process printed. Answers the completed process.
    """

    def start(
        *arguments: str, interpret: bool = False, check: bool = True, timeout: float = 240, cwd: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
        if interpret:
            environment["TRITON_INTERPRET"] = "1"
        done = subprocess.run(
            [sys.executable, *arguments],
            env=environment,
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if check and done.returncode != 0:
            pytest.fail(f"exit code {done.returncode} from {arguments}\n{done.stdout}\n{done.stderr}")
        return done

    return start


@pytest.fixture(scope="session")
def compiling_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., str]]:
    """``compiling_process("-c", code)``: what a process prints that compiles, as one of `python_process` does, in a
    fraction of the time: a fork of one that has imported torch, Triton and these packages. For tests that ask nothing
    of how a process starts. An exit code other than 0 fails the test."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    # -P: beside that file lies a folder that is called as a package of ours is
    command = [sys.executable, "-P", str(Path(__file__).with_name("compiling.py"))]
    pipe = subprocess.PIPE
    folder = tmp_path_factory.mktemp("compiling")
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, bufsize=1, env=environment) as server:
        asks, answers = server.stdin, server.stdout
        assert asks is not None
        assert answers is not None

        def start(*arguments: str) -> str:
            files = {name: folder / name for name in ("stdout", "stderr")}
            for file in files.values():
                file.write_text("")
            request = {"arguments": arguments} | {name: str(file) for name, file in files.items()}
            print(json.dumps(request), file=asks, flush=True)
            code = answers.readline().strip()
            said, errors = (file.read_text() for file in files.values())
            if code != "0":
                pytest.fail(f"exit code {code} from {arguments}\n{said}\n{errors}")
            return said

        yield start
        asks.close()
