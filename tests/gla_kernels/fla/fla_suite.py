"""Flash-linear-attention's own tests on these kernels: ``python tests/gla_kernels/fla/fla_suite.py PATH...``.

PATH: files or folders of FLA's repository, at the version that is installed: tests/ops/test_gla.py, test_simple_gla.py,
test_retention.py and test_linear_attn.py, with tests/conftest.py above them, or tests/models/test_modeling_gla.py. They
are collected after `accelerate`; further options are pytest's. FLA's tests compare one function with another;
``--theirs fused_recurrent_gla``, with several names separated by commas, keeps FLA's own of these, so that ours are
compared with theirs. ``--part 2/6`` takes every sixth test from the second on: FLA's kernels take most of the time to
compile, which six processes do at once.

Says how often each function ran these kernels, and what went to FLA's own for which reason. Exit code: that of pytest;
or 1 if something went to FLA's own, or a function that the tests import never ran these kernels.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from gla_kernels.fla import accelerate, calls
from gla_kernels.fla.patch import OURS, _replace
from gla_kernels.fla.which import THEIRS

THEIRS_OPTION = "--theirs"
PART_OPTION = "--part"
GUARD = "_is_called_from_fla"  # of FLA's conftest


class Ours:
    """A plugin of pytest: FLA is accelerated before tests are collected; what the collected ones import is noted."""

    def __init__(self, theirs: set[str], part: slice) -> None:
        self.theirs, self.part = theirs, part
        self.tested: set[str] = set()

    def pytest_configure(self, config: pytest.Config) -> None:
        accelerate()
        _replace({OURS[name]: THEIRS[name] for name in self.theirs})

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = items[self.part]

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for conftest in session.config.pluginmanager.get_plugins():
            if hasattr(conftest, GUARD):
                setattr(conftest, GUARD, not_for_ours(getattr(conftest, GUARD)))
        held = {id(x) for item in session.items for x in vars(getattr(item, "module", sys)).values()}
        self.tested = {name for name, ours in OURS.items() if id(ours) in held}

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.section("which kernels ran")
        for (name, why), count in sorted(calls().items(), key=str):
            terminalreporter.line(f"{count:6} {name}: {'these' if why is None else f'FLA, {why}'}")
        for problem in self.problems():
            terminalreporter.line(problem, red=True)

    def problems(self) -> list[str]:
        """What keeps the run from being one of these kernels."""
        found = calls()
        fell_back = [f"{name} went to FLA's own: {why}" for name, why in found if why is not None]
        never = [f"{name} never ran these kernels" for name in sorted(self.tested) if not found.get((name, None))]
        return fell_back + never + ([] if found else ["no function ran these kernels"])


def not_for_ours(guarded: Callable[[], bool]) -> Callable[[], bool]:
    """FLA's tests fill with NaN what functions of FLA allocate. Ours are asked what they launch before anything runs,
    and cannot have their memory filled meanwhile."""

    def wanted() -> bool:
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            if frame.f_globals.get("__name__", "").startswith("gla_kernels."):
                return False
            frame = frame.f_back
        return guarded()

    return wanted


def take(arguments: list[str], option: str, default: str) -> str:
    """An option's value, taken out of the arguments."""
    if option not in arguments:
        return default
    at = arguments.index(option)
    value = arguments[at + 1] if at + 1 < len(arguments) else ""
    del arguments[at : at + 2]
    return value


def main(arguments: list[str]) -> int:
    theirs = {name for name in take(arguments, THEIRS_OPTION, "").split(",") if name}
    part = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", take(arguments, PART_OPTION, "1/1"))
    if not arguments or not theirs <= set(OURS) or part is None or int(part[1]) > int(part[2]):
        print(__doc__, f"Names: {', '.join(OURS)}", sep="\n", file=sys.stderr)
        return 2
    plugin = Ours(theirs, slice(int(part[1]) - 1, None, int(part[2])))
    code = pytest.main(
        ["-c", os.devnull, "-p", "no:cacheprovider", *arguments], plugins=[plugin]
    )  # FLA's are no tests of ours
    return int(code) or (1 if plugin.problems() else 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
