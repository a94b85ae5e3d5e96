"""``glabench ls``: which sweeps there are, and which systems can run here."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from glabench.spec.settings import Device

FAMILIES = {
    "gla": "gated linear attention", "linear": "linear attention", "attention": "softmax attention",
    "ssm": "selective state space", "model": "language model", "scalar": "linear attention with one decay a head",
}  # fmt: skip


def ls() -> None:
    """List the sweeps and the systems; for each system that cannot run here, why and how to get it."""
    from rich.console import Console

    from glabench.hardware.environment import detect_device, device_name

    device = detect_device()
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
    """Name, title and number of cases on this device; a file with a mistake says so instead."""
    from rich.text import Text

    from glabench.errors import UserError
    from glabench.spec.expand import expand
    from glabench.spec.sweep import available, load

    table = _table("name", "cases", "title")
    for name, path in available().items():
        try:
            sweep = load(path)
            table.add_row(name, str(len(expand(sweep, device).cases)), sweep.title)
        except UserError as error:
            table.add_row(name, "-", Text(str(error), style="red"))
    return table


def _systems(device: Device) -> Table:
    """Name, what it is, and whether it runs here."""
    from rich.text import Text

    from glabench.systems.base import every

    table = _table("name", "system", "here")
    for info, missing in every(device):
        if missing is not None:
            here = Text(f"no: {missing.reason}\n→ {missing.remedy}", style="yellow")
        elif info.triton and device == "cpu":
            here = Text("checked in the interpreter and cross-compiled, not timed", style="green")
        else:
            here = Text("yes", style="green")
        table.add_row(info.name, f"{info.title}; {FAMILIES[info.family]}", here)
    return table
