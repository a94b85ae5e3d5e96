"""``glabench doctor``: what this machine is, and what to fix before trusting its numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from glabench.commands import machines
from glabench.commands.machines import Format

if TYPE_CHECKING:
    from rich.console import Console

    from glabench.hardware.diagnosis import Finding
    from glabench.spec.settings import Device


def doctor(format: Format = "text") -> None:
    """Examine GPU, clocks, driver, versions and baselines; say what to fix. Exit code 1 when something is broken."""
    from rich.console import Console

    from glabench.hardware import diagnosis, environment

    as_json = machines.is_json(format)
    findings = [*diagnosis.examine(), *_plans(), *_systems(environment.detect_device())]
    if as_json:
        for finding in findings:
            machines.say(**asdict(finding))
    else:
        console = Console(highlight=False, markup=False)
        for group in dict.fromkeys(finding.group for finding in findings):
            _print_group(console, group, [finding for finding in findings if finding.group == group])
        _print_fixes(console, [finding for finding in findings if finding.fix is not None])
    if any(finding.broken for finding in findings):
        raise typer.Exit(1)


def _plans() -> Iterator[Finding]:
    """The tuned plans that come with the package, and what they were tuned with: outdated ones run, so nothing is to be
    fixed."""
    try:
        from gla_kernels.plan.files import shipped_tables
    except ImportError:  # of torch or Triton, which is said above
        return
    from glabench.hardware.diagnosis import Finding

    for table in shipped_tables():
        why = table.header.outdated
        how = f"tuned with Triton {table.header.triton}" if why is None else f"outdated: tuned with {why}"
        yield Finding("Plans", table.header.device, f"{len(table.entries)}, {how}")


def _systems(device: Device) -> Iterator[Finding]:
    """Every system by name: a missing rival is no defect, so nothing here is to be fixed."""
    from glabench.hardware.diagnosis import Finding
    from glabench.systems.base import every

    for info, missing in every(device):
        if missing is not None:
            yield Finding("Systems", info.name, f"not here: {missing}")
        elif info.triton and device == "cpu":
            yield Finding("Systems", info.name, "checked and cross-compiled, not timed")
        else:
            yield Finding("Systems", info.name, "ready")


def _print_group(console: Console, group: str, findings: list[Finding]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, min_width=18)
    table.add_column(overflow="fold")
    for finding in findings:
        style = "red" if finding.broken else "yellow" if finding.fix is not None else ""
        table.add_row(f"  {finding.label}", Text(finding.value, style=style))
    console.print(Text(group, style="bold"))
    console.print(table)


def _print_fixes(console: Console, findings: list[Finding]) -> None:
    from rich.text import Text

    if not findings:
        console.print(Text("\nNothing to fix", style="bold green"))
        return
    console.print(Text("\nWhat to fix", style="bold"))
    for number, finding in enumerate(findings, 1):
        mark = "must" if finding.broken else "should"
        console.print(Text(f"  {number}. {mark}: {finding.fix}", style="red" if finding.broken else "yellow"))
