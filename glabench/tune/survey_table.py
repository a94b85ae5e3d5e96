"""Compiled kernels as a person reads them: a table, worst first, and one line a target."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from glabench.tune.survey import Kernel

RIGHT = ("regs", "spills", "shared", "progs/SM", "seconds")
COLUMNS = ("kernel", "target", "K×V", "tile", *RIGHT[:4], "limited by", "tensor core", RIGHT[4])
UNKNOWN = "–"


def table(kernels: Iterable[Kernel]) -> Table:
    """A line a kernel, target by target, those that failed first, then those that spill most. Kernels that read the
    same in all but seconds (they differ in what is known of their arguments) share a line; their seconds add up."""
    lines: dict[tuple[str, ...], list[Kernel]] = {}
    for kernel in sorted(kernels, key=_trouble):
        lines.setdefault(_cells(kernel), []).append(kernel)
    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in COLUMNS:
        made.add_column(column, justify="right" if column in RIGHT else "left", no_wrap=True)
    for cells, same in lines.items():
        name = f"{cells[0]} ×{len(same)}" if len(same) > 1 else cells[0]
        style = "red" if same[0].status != "ok" else ""
        made.add_row(*(Text(cell) for cell in (name, *cells[1:], _seconds(same))), style=style)
    return made


def _trouble(kernel: Kernel) -> tuple[str, bool, int, int]:
    return kernel.target, kernel.status == "ok", -(kernel.fact("spill_bytes") or 0), -(kernel.fact("registers") or 0)


def _cells(kernel: Kernel) -> tuple[str, ...]:
    """All of a line but the seconds."""
    work, shared = kernel.workload, kernel.fact("shared_bytes")
    return (
        kernel.step,
        kernel.target,
        f"{work['K']}×{work['V']}",
        tile(kernel),
        _shown(kernel.fact("registers")),
        _shown(kernel.fact("spill_bytes")),
        UNKNOWN if shared is None else f"{shared / 1024:.0f} KiB",
        _shown(kernel.fact("programs_per_sm")),
        _shown(kernel.fact("limited_by")),
        kernel.fact("tensor_core") or UNKNOWN,
    )


def tile(kernel: Kernel) -> str:
    """What one program works on: rows x columns of K x columns of V, warps and stages, and what is unusual."""
    values = kernel.fact("constexprs")
    if not values:
        return UNKNOWN
    size = f"{values['BT']}×{values['BK']}×{values['BV']} {kernel.fact('num_warps')}w {kernel.fact('num_stages')}s"
    unusual = [word for name, word in (("WALK", "walks"), ("FULL", "blocks in sub-chunk")) if values.get(name)]
    dtype = [] if kernel.workload["dtype"] == "bf16" else [kernel.workload["dtype"]]
    return ", ".join([size, *dtype, *unusual, *([] if values["GATED"] else ["no gate"])])


def _shown(value: object) -> str:
    return UNKNOWN if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def _seconds(kernels: Sequence[Kernel]) -> str:
    known = [kernel.fact("compile_s") for kernel in kernels if kernel.fact("compile_s") is not None]
    return f"{sum(known):.1f}" if known else "cached"


def failures(kernels: Iterable[Kernel]) -> list[str]:
    """A line for each kernel that gla() would run and that failed, with the reason."""
    bad = [kernel for kernel in kernels if kernel.origin == "gla" and kernel.status != "ok"]
    return [f"{k.target} {k.step} {k.workload['K']}×{k.workload['V']} {tile(k)}: {k.status}, {k.reason}" for k in bad]


def summary(kernels: Sequence[Kernel]) -> str:
    """One line for the kernels of one target."""
    shipped = [kernel for kernel in kernels if kernel.origin == "gla"]
    others = [kernel for kernel in kernels if kernel.origin != "gla"]
    seconds = sum(kernel.fact("compile_s") or 0 for kernel in kernels)
    text = f"{kernels[0].target}: {_counts(shipped)}"
    if others:
        text += f"; sample of the space: {_counts(others)}"
    return f"{text}; {seconds:.0f} s of compiling"


def _counts(kernels: Sequence[Kernel]) -> str:
    spilling = sum(bool(kernel.fact("spill_bytes")) for kernel in kernels)
    too_large = sum(kernel.status != "ok" and kernel.fact("shared_bytes") is not None for kernel in kernels)
    failed = sum(kernel.status != "ok" for kernel in kernels) - too_large
    return f"{len(kernels)} kernels, {spilling} spill, {too_large} do not fit, {failed} failed"


class Bar:
    """How many kernels are done: a bar on a terminal, now and then a line elsewhere."""

    EVERY = 10  # kernels a line

    def __init__(self, target: str, console: Console) -> None:
        self.target, self.console = target, console
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task(target, total=None)

    def show(self, done: int, total: int) -> None:
        self._bar.update(self._task, completed=done, total=total)
        if not self.console.is_terminal and (done % self.EVERY == 0 or done == total):
            self.console.print(f"{self.target}: {done} of {total} kernels", soft_wrap=True)

    def __enter__(self) -> Bar:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._bar.stop()
