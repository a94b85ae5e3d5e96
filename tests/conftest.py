"""What all tests share: where kernels run, which tests a machine can run, and clean processes.

Triton decides when it is imported whether kernels are compiled or interpreted. Without a CUDA device this process
interprets them on CPU tensors; a test that compiles asks for ``python_process``, which starts one that does not.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable

import pytest
import torch

CUDA = torch.cuda.is_available()

if not CUDA:
    os.environ.setdefault("TRITON_INTERPRET", "1")
os.environ.setdefault("MPLBACKEND", "Agg")
# Plans that were tuned on this machine are not for tests: this folder is not there.
os.environ["GLABENCH_CACHE"] = os.path.join(tempfile.gettempdir(), f"glabench-tests-{os.getpid()}")
if "PYTEST_XDIST_WORKER" in os.environ:
    # One core a worker, in the processes that tests start as well.
    torch.set_num_threads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip ``gpu`` tests where no CUDA device answers."""
    if CUDA:
        return
    skip = pytest.mark.skip(reason="needs a CUDA GPU, and torch finds none")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Where kernels run in this session: a CUDA device, or the CPU through Triton's interpreter."""
    return torch.device("cuda" if CUDA else "cpu")


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """Seed torch before each test, so that a failure shows again on its own."""
    torch.manual_seed(0)


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
