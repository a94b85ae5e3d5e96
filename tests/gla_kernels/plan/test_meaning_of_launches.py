"""What makes a plan's launches is in the hash that tells whether tuned plans are outdated."""

from __future__ import annotations

import ast
import inspect
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

import pytest

import gla_kernels
from gla_kernels import Plan, Schedule, Workload, default_config, gla, simple_gla
from gla_kernels.chunk.strong_gates import strong_gates_of
from gla_kernels.launch import Launch
from gla_kernels.plan import table
from gla_kernels.plan.apply import all_launches
from gla_kernels.plan.choose import with_walks
from gla_kernels.plan.files import add, own_table, ship, shipped_tables
from gla_kernels.plan.meaning import Package, meaning_of
from gla_kernels.plan.space import TileSpace
from gla_kernels.plan.syntax import Place
from gla_kernels.plan.table import LINEAGE, header_of, kernels_hash
from gla_kernels.tiles import descriptors, gates

FOLDER = Path(gla_kernels.__file__).parent
ROOTS = [Place(x.__module__, x.__name__) for x in (all_launches, Plan, Workload)]


@pytest.fixture(scope="module", autouse=True)
def parsed_once() -> Iterator[None]:
    """Of a file that is as it was the same tree: most of the package is, in all of its copies."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gla_kernels.plan.meaning.ast", SimpleNamespace(**vars(ast) | {"parse": cache(ast.parse)}))
        yield


def works() -> Iterator[tuple[Workload, Plan]]:
    """Workloads that between them take every way through the host code that a plan can."""
    for direction in ("fwd", "bwd"):
        for gated in (True, False):
            for shape in ((2, 100, 3, 64, 128), (1, 8192, 96, 128, 128), (1, 20000, 2, 128, 128)):
                work = Workload(direction, *shape, gated=gated)
                for schedule in (Schedule(64), Schedule(64, materialize=False), Schedule(64, states_every=8)):
                    config = default_config(work.K, work.V, 2, schedule)
                    yield work, Plan(schedule, config)
                    yield work, Plan(schedule, with_walks(config, work))


def top_level(code: CodeType) -> str:
    return code.co_qualname.partition(".")[0]


def test_all_host_code_that_runs_is_reached():
    codes: set[CodeType] = set()

    def note(frame: Any, event: str, arg: object) -> None:
        if event == "call":
            codes.add(frame.f_code)

    asked = list(works())
    sys.setprofile(note)
    try:
        for work, plan in asked:
            for state in (False, True):
                launches = all_launches(work, plan, state, replace(plan), keep=state)
                [(launch.arguments, launch.constants, launch.options) for launch in launches[:4]]
    finally:
        sys.setprofile(None)
    places = Package("gla_kernels", FOLDER).reached(ROOTS)
    reached = {(Path(sys.modules[x.module].__file__ or "").relative_to(FOLDER).as_posix(), x.name) for x in places}
    own = [(Path(code.co_filename), code) for code in codes]
    ran = {(path.relative_to(FOLDER).as_posix(), top_level(code)) for path, code in own if path.is_relative_to(FOLDER)}
    assert len(ran) > 30
    assert ran <= reached


def test_all_that_kernels_call_and_read_is_reached():
    places = Package("gla_kernels", FOLDER).reached(ROOTS)
    reached = {(place.module, place.name) for place in places}
    waiting = [launch.kernel.fn for work, plan in works() for launch in all_launches(work, plan)]
    seen: set[FunctionType] = set()
    while waiting:
        function = waiting.pop()
        if function in seen:
            continue
        seen.add(function)
        assert (function.__module__, function.__name__) in reached
        for name in function.__code__.co_names:
            value = function.__globals__.get(name)
            inner = getattr(value, "fn", None)
            if getattr(inner, "__module__", "").startswith("gla_kernels"):
                waiting.append(inner)
            elif value is not None and not isinstance(value, ModuleType | FunctionType) and name.isupper():
                assert name in {place.name for place in places}
    assert len(seen) > 60


def test_no_shipped_plan_is_outdated_by_sources():
    """Where this fails, see CONTRIBUTING.md, "Move or rename kernels"."""
    meaning = meaning_of(all_launches, Plan, Workload)
    assert kernels_hash() == LINEAGE.get(meaning, meaning)
    assert {found.header.kernels for found in shipped_tables()} == {kernels_hash()}


@pytest.fixture
def means(monkeypatch) -> Iterator[Callable[[str, dict[str, str]], None]]:
    """Let sources have another meaning, and meanings these names."""

    def change(meaning: str, lineage: dict[str, str]) -> None:
        monkeypatch.setattr(table, "meaning_of", lambda *_: meaning)
        monkeypatch.setattr(table, "LINEAGE", lineage)
        kernels_hash.cache_clear()

    yield change
    kernels_hash.cache_clear()


def test_plans_tuned_with_other_sources_are_outdated_unless_these_have_their_name(tables, machine, entry, means):
    before, path = kernels_hash(), add([entry()], machine)
    ship([entry()], header_of(machine))
    means("f" * 16, {})
    assert kernels_hash() == "f" * 16
    assert own_table(machine) is None
    assert [found.header.outdated for found in shipped_tables()] == ["other kernels"]
    means("f" * 16, {"f" * 16: before})
    assert kernels_hash() == before
    assert own_table(machine) is not None
    assert [found.header.outdated for found in shipped_tables()] == [None]
    assert add([entry(T=256)], machine) == path


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FOLDER, tmp_path / "gla_kernels", ignore=shutil.ignore_patterns("__pycache__")))


def append(folder: Path, where: Any, line: str) -> None:
    """To the file where that is defined."""
    with (folder / Path(inspect.getfile(where)).relative_to(FOLDER)).open("a") as source:
        source.write(line)


@pytest.fixture(scope="module")
def meaning() -> str:
    """Of the package as it is: it takes a second to find."""
    return meaning_of(all_launches, Plan, Workload)


@pytest.mark.parametrize(
    ("where", "line"),
    [
        (gates, "LOG2E = tl.constexpr(1.5)\n"),
        (strong_gates_of, "MOST = 64\n"),
        (Schedule, "SEGMENT_ROWS = 2048\n"),
        (descriptors, "ROWS_OF_V = frozenset()\n"),
        (Launch, "MAX_REGISTERS = 128\n"),
    ],
)
def test_what_of_the_package_counts(copied, meaning, where, line):
    append(copied, where, line)
    assert Package("gla_kernels", copied).meaning(ROOTS) != meaning


def test_what_of_the_package_does_not_count(copied, meaning):
    for where, line in (
        (gates, "# a comment\n"),
        (gates, "def another():\n    return 1\n"),
        (TileSpace, "SEGMENTS = (1024,)\n"),  # of the search space, which has a hash of its own
        (gla, "gla = None\n"),
        (simple_gla, "CHUNKS = ()\n"),
    ):
        append(copied, where, line)
    assert Package("gla_kernels", copied).meaning(ROOTS) == meaning


def test_files_of_the_package_may_have_any_names(copied, meaning):
    (copied / "chunk" / "hopper" / "strong_grad_qk.py").rename(copied / "chunk" / "hopper" / "renamed.py")
    (copied / "schedule.py").rename(copied / "config.py")
    for path in copied.rglob("*.py"):
        text = path.read_text().replace("from .strong_grad_qk import", "from .renamed import")
        path.write_text(text.replace("from .schedule import", "from .config import").replace("..schedule", "..config"))
    roots = [replace(root, module=root.module.replace(".schedule", ".config")) for root in ROOTS]
    assert Package("gla_kernels", copied).meaning(roots) == meaning
