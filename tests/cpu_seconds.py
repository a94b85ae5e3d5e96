"""A plugin of pytest: the processor seconds of each test, and of the processes that it starts. Wall time says little
where several tests run at once.

    pytest -p tests.cpu_seconds --numprocesses 2 | tail -40
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

MOST = 40  # tests that are listed
SECONDS = pytest.StashKey[dict[str, float]]()  # of tests of this process
_of_tests: dict[str, float] = {}  # of all processes


def used() -> float:
    """Seconds of this process, of its children that have ended, and of those that run."""
    return sum(os.times()[:4]) + sum(map(_running, _children(os.getpid())))


def _children(pid: int) -> list[int]:
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return [int(child) for child in file.read().split()]
    except OSError:
        return []


def _running(pid: int) -> float:
    try:
        with open(f"/proc/{pid}/stat") as file:
            ticks = file.read().rpartition(")")[2].split()[11:15]
    except OSError:
        return 0.0
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK") + sum(map(_running, _children(pid)))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    before = used()
    yield
    item.config.stash.setdefault(SECONDS, {})[item.nodeid] = used() - before


def pytest_sessionfinish(session: pytest.Session) -> None:
    seconds: dict[str, float] = session.config.stash.setdefault(SECONDS, {})
    _of_tests.update(seconds)
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None:  # of a process that another one has started for some of the tests
        output["cpu_seconds"] = seconds


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    _of_tests.update(getattr(node, "workeroutput", {}).get("cpu_seconds", {}))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    terminalreporter.section(f"processor seconds, {sum(_of_tests.values()):.1f} in all")
    for name, seconds in sorted(_of_tests.items(), key=lambda one: -one[1])[:MOST]:
        terminalreporter.write_line(f"{seconds:7.2f} {name}")
