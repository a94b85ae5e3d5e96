"""One sequence over several GPUs by ``gla_kernels.parallel``, beside all of it on one by ``gla_kernels.gla``.

Says for each shape and number of ranks whether results are right (2048 tokens of the same heads against float64, and
the whole sequence against one GPU), what an eager step takes, how many times one GPU's speed that is, which share of it
is communication that nothing hides, waiting for a slower rank among it, and what ranks send and hold. --memory asks
instead which length does not fit on one GPU, and runs that on several. Needs a GPU for each rank; --tiny tries the
program on a CPU.
"""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import typer

from glabench.spec.case import DTYPE_BYTES
from glabench.spec.settings import Device
from glabench.tools.context_parallel.measured import KIND, memory, times
from glabench.tools.context_parallel.question import WAYS, Question, Shape
from glabench.tools.context_parallel.table import figures, line_of, show
from glabench.tools.rows import Row, append, rows_of, wide_enough
from glabench.tools.step import check_names

SHAPES = "1,65536,16,128,128 1,65536,4,256,512"
MODES = ("fwd", "fwdbwd")
TINY = Shape(1, 40, 1, 16, 16)
CALLS, WARM_UP = 5, 20  # of a sample; before the first one

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def context_parallel(
    shapes: Annotated[str, typer.Option(help="B,T,H,K,V of whole sequences, with blanks between.")] = SHAPES,
    ranks: Annotated[str | None, typer.Option(help="Comma-separated; by default 1 and all GPUs.")] = None,
    mode: Annotated[str, typer.Option(help="Comma-separated: fwd, fwdbwd.")] = "fwd,fwdbwd",
    dtype: Annotated[str, typer.Option(help="bf16, fp16 or fp32.")] = "bf16",
    samples: Annotated[int, typer.Option(help="Of each mode, with communication and without.", min=1)] = 30,
    ask_memory: Annotated[
        bool, typer.Option("--memory", help="Which length does not fit on one GPU, and does it on several?")
    ] = False,
    exchange: Annotated[
        str | None,
        typer.Option(help="Comma-separated, in turns: direct, all-gather, ring; by default as the package has it."),
    ] = None,
    tiny: Annotated[bool, typer.Option("--tiny", help="Tiny shapes on the CPU, by gloo: tries the program.")] = False,
    out: Annotated[Path | None, typer.Option(help="File that rows are appended to.", dir_okay=False)] = None,
    read: Annotated[
        Path | None, typer.Option(help="File of rows to show; nothing is run.", exists=True, dir_okay=False)
    ] = None,
) -> None:
    """Measure one sequence over several GPUs. Exit code: 0 done; 1 something was wrong or failed; 2 bad input, or fewer
    GPUs than ranks."""
    if read is not None:
        show(rows_of(read, KIND), [], wide_enough())
        return
    device: Device = "cpu" if tiny else "cuda"
    counts = counts_of(ranks, available(device), 2 if ask_memory or tiny else None)
    modes = mode.split(",")
    check_names(modes, MODES, "--mode")
    check_names([dtype], DTYPE_BYTES, "--dtype")
    ways = exchange.split(",") if exchange is not None else []
    check_names(ways, WAYS, "--exchange")
    asked = [shape_of(words, counts[-1]) for words in shapes.split()]
    if not asked:
        raise typer.BadParameter("expected a shape, got none", param_hint="--shapes")
    how: dict[str, Any] = {"modes": tuple(modes), "dtype": dtype, "device": device, "ways": tuple(ways) or (None,)}
    how |= {"samples": samples, "calls": CALLS, "warm_up": WARM_UP}
    if tiny:
        if ask_memory:
            raise typer.BadParameter("a CPU's memory is not asked for; leave out --tiny", param_hint="--memory")
        if "direct" in ways:
            raise typer.BadParameter("CPUs exchange nothing directly; leave out --tiny", param_hint="--exchange")
        asked = [TINY]
        how |= {"dtype": "fp32", "samples": 1, "calls": 1, "warm_up": 1}  # the interpreter has no products in bf16
    before = rows_of(out, KIND, "--out") if out is not None and out.exists() else []
    facts = here(device)
    rows = list[Row]()
    for shape in asked:
        for count in counts[-1:] if ask_memory else counts:
            question = Question(shape, count, **how)
            for row in memory(question) if ask_memory else times(question):
                row["environment"] = facts
                if row["asked"] == "time" and row["status"] == "ok":
                    found = figures(row, [*before, *rows, row])
                    row |= {key: found[key] for key in ("times_one_gpu", "exposed", "sent_bytes")}
                append([row], out)
                rows.append(row)
                typer.echo(line_of(row), err=True)
    show(rows, before, wide_enough())
    raise typer.Exit(0 if all(sound(row) for row in rows) else 1)


def available(device: Device) -> int | None:
    """How many ranks have a GPU here; None of CPUs, which any number may share. BadParameter where there is none."""
    if device == "cpu":
        return None
    import torch

    if not torch.cuda.is_available():
        raise typer.BadParameter("there is no GPU here; only --tiny needs none", param_hint="--ranks")
    return torch.cuda.device_count()


def counts_of(ranks: str | None, most: int | None, usual: int | None) -> list[int]:
    """Numbers of ranks, rising; without any 1 and the usual one, or one for each GPU."""
    if ranks is None:
        counts = {1, usual or most or 1}
    else:
        words = ranks.split(",")
        if not all(word.strip().isdecimal() and int(word) for word in words):
            raise typer.BadParameter(f"expected numbers above 0, got {ranks!r}", param_hint="--ranks")
        counts = {int(word) for word in words}
    if most is not None and max(counts) > most:
        raise typer.BadParameter(f"{max(counts)} ranks want a GPU each, and there are {most}", param_hint="--ranks")
    return sorted(counts)


def shape_of(text: str, ranks: int) -> Shape:
    """BadParameter for what is none, or has fewer tokens than there are ranks."""
    words = text.split(",")
    if len(words) != 5 or not all(word.isdecimal() and int(word) for word in words):
        raise typer.BadParameter(f"expected B,T,H,K,V, five numbers above 0, got {text!r}", param_hint="--shapes")
    shape = Shape(*map(int, words))
    if ranks > shape.T:
        raise typer.BadParameter(
            f"expected {ranks} tokens or more, one for each rank, got {text!r}", param_hint="--shapes"
        )
    return shape


def here(device: Device) -> dict[str, Any]:
    """The rows' environment. Of a GPU a process looks that ends: this one would hold memory of the first rank's."""
    from glabench.hardware.environment import environment

    if device == "cpu":
        return environment(device, bandwidth=False)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(environment, device, False).result()


def sound(row: Row) -> bool:
    """Whether a row is as it should be. That one GPU's memory is full is an answer."""
    return row["status"] == "ok" or (row["status"] == "oom" and row["asked"] == "memory" and row["ranks"] == 1)


if __name__ == "__main__":
    app()
