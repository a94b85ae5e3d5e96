"""``glabench ls``: which sweeps there are, and which systems can run here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from glabench.commands import machines
from glabench.commands.machines import Format

if TYPE_CHECKING:
    from rich.table import Table

    from glabench.spec.settings import Device

FAMILIES = {
    "gla": "gated linear attention", "linear": "linear attention", "attention": "softmax attention",
    "ssm": "selective state space", "model": "language model", "scalar": "linear attention with one decay a head",
}  # fmt: skip


def ls(format: Format = "text") -> None:
    """List the sweeps and the systems; for each system that cannot run here, why and how to get it."""
    from rich.console import Console

    from glabench.hardware.environment import detect_device, device_name

    device = detect_device()
    if machines.is_json(format):
        for values in (*_sweeps_here(device), *_systems_here(device)):
            machines.say(**values)
        return
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = max(console.width, 100)  # a pipe has no width: break no line that a grep would look for
    console.print("Sweeps: run one with `glabench sweep NAME`")
    console.print(_sweeps(device))
    console.print(f"\nSystems on {device_name(device)} ({device})", soft_wrap=True)
    console.print(_systems(device))


def _table(*columns: str) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column == "cases" else "left", overflow="fold")
    return table


def _sweeps(device: Device) -> Table:
    from rich.text import Text

    table = _table("name", "cases", "title")
    for one in _sweeps_here(device):
        wrong = one["error"] is not None
        table.add_row(
            one["name"], "-" if wrong else str(one["cases"]), Text(one["error"], style="red") if wrong else one["title"]
        )
    return table


def _sweeps_here(device: Device) -> Iterator[dict[str, Any]]:
    """Name, title and number of cases on this device; a file with a mistake says so instead."""
    from glabench.errors import UserError
    from glabench.spec.expand import expand
    from glabench.spec.sweep import available, load

    for name, path in available().items():
        found: dict[str, Any] = {"kind": "sweep", "name": name, "cases": None, "title": None, "error": None}
        try:
            sweep = load(path)
            found |= {"cases": len(expand(sweep, device).cases), "title": sweep.title}
        except UserError as error:
            found["error"] = str(error)
        yield found


def _systems(device: Device) -> Table:
    from rich.text import Text

    table = _table("name", "system", "here")
    for one in _systems_here(device):
        if one["reason"] is not None:
            here = Text(f"no: {one['reason']}\n→ {one['remedy']}", style="yellow")
        else:
            how = "yes" if one["timed"] else "checked in the interpreter and cross-compiled, not timed"
            here = Text(how, style="green")
        table.add_row(one["name"], f"{one['title']}; {one['family']}", here)
    return table


def _systems_here(device: Device) -> Iterator[dict[str, Any]]:
    """Name, what it is, whether it runs and is timed here, and if not, why and what to do."""
    from glabench.systems.base import every

    for info, missing in every(device):
        here = missing is None
        why = {"reason": None, "remedy": None} if missing is None else asdict(missing)
        named = {"kind": "system", "name": info.name, "title": info.title, "family": FAMILIES[info.family]}
        yield {**named, "here": here, "timed": here and not (info.triton and device == "cpu"), **why}
