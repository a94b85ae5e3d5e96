"""Data goes one way, and so do imports: a room knows those it stands on, and none above it.

``gla_kernels`` stands below all rooms and names none: the tuner that ``config="tune"`` asks for is an entry point.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# From the ground up. Rooms of one line do not know each other.
FLOORS = (
    ("errors", "failures", "__init__"),
    ("lines", "claims", "spec"),
    ("nested",),
    ("store", "tuning_store"),
    ("phases", "counting", "results", "schema"),
    ("hardware",),
    ("systems",),
    ("run",),
    ("analysis",),
    ("report",),
    ("check", "tune", "profile"),
    ("commands", "tools"),
    ("cli",),
    ("__main__",),
)
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}

# The kernels' rooms, likewise. `reference` stands by itself.
KERNEL_FLOORS = (
    ("schedule", "reference", "projections", "version"),
    ("launch",),
    ("tiles", "copies", "packed"),
    ("chunk", "recurrent", "simple", "low_rank", "pool"),
    ("value_gates",),
    ("cost",),
    ("plan",),
    ("ops",),
    ("parallel", "serving"),
    ("__init__", "fla", "nn"),
)
KERNEL_FLOOR = {room: floor for floor, rooms in enumerate(KERNEL_FLOORS) for room in rooms}
KERNELS = ROOT / "kernels" / "gla_kernels"


def room_of(path: Path) -> str:
    inside = path.relative_to(ROOT / "glabench")
    return inside.stem if len(inside.parts) == 1 else inside.parts[0]


@cache
def imported(path: Path) -> tuple[tuple[int, str], ...]:
    """Every import of the package with its line, those for the type checker alone among them."""
    return tuple(_imported(path))


def _imported(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.level == 0:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        yield from ((node.lineno, name) for name in names if name.split(".")[0] == "glabench")


def test_every_room_has_a_floor() -> None:
    assert {room_of(path) for path in (ROOT / "glabench").rglob("*.py")} == set(FLOOR)


@pytest.mark.parametrize("room", FLOOR)
def test_a_room_knows_none_above_or_beside_it(room: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in (ROOT / "glabench").rglob("*.py")
        if room_of(path) == room
        for line, name in imported(path)
        if (target := name.split(".")[1] if "." in name else "__init__") != room and FLOOR.get(target, 0) >= FLOOR[room]
    ]
    assert not wrong


def test_the_kernels_import_nothing_of_the_harness() -> None:
    assert not [f"{path}:{line}" for path in KERNELS.rglob("*.py") for line, _ in imported(path)]


def kernel_rooms(path: Path) -> Iterator[tuple[int, str]]:
    """Every room that a file of the kernels imports from, with the line: they import each other by relative names."""
    package = path.relative_to(KERNELS).parts[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            above = package[: len(package) - (node.level - 1)]
            found = [*above, *(node.module.split(".") if node.module else [])]
            yield from ((node.lineno, room) for room in (found[:1] or [alias.name for alias in node.names]))


def test_a_room_of_the_kernels_knows_none_above_or_beside_it() -> None:
    rooms = {path: path.relative_to(KERNELS).with_suffix("").parts[0] for path in KERNELS.rglob("*.py")}
    assert set(rooms.values()) == set(KERNEL_FLOOR)
    assert not [
        f"{path.relative_to(ROOT)}:{line} imports from {target}"
        for path, room in rooms.items()
        for line, target in kernel_rooms(path)
        if target != room and KERNEL_FLOOR[target] >= KERNEL_FLOOR[room]
    ]
