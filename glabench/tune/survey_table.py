"""Compiled kernels as a person reads them: a table, worst first, and one line a target."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from glabench.tune.survey import Kernel

RIGHT = ("regs", "spills, B", "shared, KiB", "s")
COLUMNS = ("kernel", "K×V", "tile", *RIGHT[:3], "programs/SM", "tensor op", RIGHT[3])
UNKNOWN = "–"


def table(kernels: Sequence[Kernel]) -> Table:
    """The kernels of one target, a line for each that failed, then the others by spills, the worst first. Kernels of
    one tile that differ only in what is known of their arguments share a line: the worst is shown, and all seconds."""
    lines: dict[tuple[str, ...], list[Kernel]] = {}
    for kernel in sorted(kernels, key=_trouble):
        work = kernel.workload
        lines.setdefault((kernel.step, f"{work['K']}×{work['V']}", tile(kernel)), []).append(kernel)
    made = Table(title=kernels[0].target, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in COLUMNS:
        made.add_column(column, justify="right" if column in RIGHT else "left", no_wrap=True)
    for (step, size, worked_on), same in lines.items():
        name = f"{step} ({len(same)})" if len(same) > 1 else step
        cells = (name, size, worked_on, *_facts(same[0]), _seconds(same))
        made.add_row(*map(Text, cells), style="" if same[0].status == "ok" else "red")
    return made


def _trouble(kernel: Kernel) -> tuple[bool, int, int]:
    return kernel.status == "ok", -(kernel.fact("spill_bytes") or 0), -(kernel.fact("registers") or 0)


def _facts(kernel: Kernel) -> tuple[str, ...]:
    shared, programs, limit = (kernel.fact(name) for name in ("shared_bytes", "programs_per_sm", "limited_by"))
    return (
        _shown(kernel.fact("registers")),
        _shown(kernel.fact("spill_bytes")),
        UNKNOWN if shared is None else f"{shared / 1024:.0f}",
        UNKNOWN if programs is None else f"{programs}, {limit}",
        kernel.fact("tensor_core") or UNKNOWN,
    )


def tile(kernel: Kernel) -> str:
    """What one program works on: rows x columns of K x columns of V, warps and stages, and what is unusual. States have
    no rows."""
    values = kernel.fact("constexprs")
    if not values:
        return UNKNOWN
    # a copy or a sum between passes has a block of elements instead
    sizes = "×".join(str(values[name]) for name in ("BT", "BK", "BV", "BLOCK") if name in values)
    size = f"{sizes} {kernel.fact('num_warps')}w {kernel.fact('num_stages')}s".lstrip()
    dtype = [] if kernel.workload["dtype"] == "bf16" else [kernel.workload["dtype"]]
    gates = kernel.workload.get("gate_dtype")
    wide = [f"gates {gates}"] if gates else []
    gated = values.get("GATED", kernel.workload.get("gated", True))
    return ", ".join([size, *dtype, *wide, *([] if gated else ["no gate"])])


def _shown(value: int | None) -> str:
    return UNKNOWN if value is None else f"{value:,}"


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
