"""Loss beyond the length of training: byte-level language models on the standard library's source, by position.

What Figure 5 of the 2024 GLA paper asks of models of 1.3B parameters, asked of a toy in minutes: models of one width
and depth, of which only the layer that mixes tokens differs, trained on windows of one length for the same number of
steps, then judged on longer documents of files that were held out. Needs a GPU; --tiny tries the program on a CPU.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from glabench.errors import in_one_line
from glabench.tools.extrapolation.figure import TITLES, figure, line_of, show
from glabench.tools.rows import Row, append, rows_of, wide_enough
from glabench.tools.step import check_names

if TYPE_CHECKING:
    from glabench.tools.extrapolation.corpus import Corpus
    from glabench.tools.extrapolation.training import Question, Run

KIND = "extrapolation"
TINY = {"width": 32, "layers": 1, "length": 16, "times": 4, "steps": 4, "batch": 2, "buckets": 2, "documents": 4}

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def extrapolation(
    systems: Annotated[str, typer.Option(help="Comma-separated names of docs/models.md.")] = "gla,retnet,fa2",
    rates: Annotated[str, typer.Option(help="Comma-separated learning rates; the best counts.")] = "0.001,0.002,0.004",
    seeds: Annotated[int, typer.Option(help="Models of each system and rate, from seeds 0, 1, ...", min=1)] = 1,
    width: Annotated[int, typer.Option(help="Of all models; a multiple of 128.", min=32)] = 512,
    layers: Annotated[int, typer.Option(help="Blocks of all models.", min=1)] = 6,
    length: Annotated[int, typer.Option(help="Bytes of a window that models are trained on.", min=2)] = 1024,
    times: Annotated[int, typer.Option(help="How much longer documents are.", min=1)] = 4,
    steps: Annotated[int, typer.Option(help="Of each model; time is what they take.", min=1)] = 2000,
    batch: Annotated[int, typer.Option(help="Windows of a step.", min=1)] = 32,
    buckets: Annotated[int, typer.Option(help="Points of the figure a length of training.", min=1)] = 4,
    documents: Annotated[int, typer.Option(help="That are judged, at most.", min=2)] = 1000,
    graphs: Annotated[bool, typer.Option(help="Steps as CUDA graphs.")] = True,
    tiny: Annotated[bool, typer.Option("--tiny", help="Tiny models, on a CPU too: tries the program.")] = False,
    out: Annotated[Path | None, typer.Option(help="File that rows are appended to.")] = None,
    image: Annotated[Path | None, typer.Option("--figure", help="Folder of extrapolation.svg and .png.")] = None,
    read: Annotated[Path | None, typer.Option(help="File of rows to show; nothing is trained.", exists=True)] = None,
) -> None:
    """Train models and say how their loss goes on beyond the length of training. Exit code: 0 done; 1 a model failed;
    2 bad input or no GPU."""
    if read is not None:
        rows = comparable(rows_of(read, KIND))
    else:
        size = {"width": width, "layers": layers, "length": length, "times": times, "steps": steps, "batch": batch}
        size |= {"buckets": buckets, "documents": documents}
        rows = measured(systems.split(","), rates_of(rates), seeds, TINY if tiny else size, graphs, tiny, out)
    show(rows, wide_enough())
    if image is not None:
        from glabench.report.draw import write

        write(figure(rows), image)
    raise typer.Exit(1 if any(row["error"] for row in rows) else 0)


def rates_of(text: str) -> list[float]:
    """Learning rates. BadParameter for what is none."""
    try:
        found = [float(one) for one in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(0 < rate < 1 for rate in found):
        raise typer.BadParameter(f"expected numbers between 0 and 1, got {text!r}", param_hint="--rates")
    return found


def comparable(rows: list[Row]) -> list[Row]:
    """The rows. BadParameter where they are of several questions, or texts."""
    for key in ("question", "corpus"):
        if any(row[key] != rows[0][key] for row in rows):
            raise typer.BadParameter(f"its rows have not all the same {key}", param_hint="--read")
    return rows


def measured(
    systems: Sequence[str], rates: Sequence[float], seeds: int, size: dict[str, int], graphs: bool, tiny: bool,
    out: Path | None,
) -> list[Row]:  # fmt: skip
    """A row for each model, appended to the file as it is there. BadParameter for what cannot be. Imports torch."""
    import torch

    from glabench.hardware.environment import environment
    from glabench.systems.models.model import missing
    from glabench.tools.extrapolation.corpus import read as corpus_of
    from glabench.tools.extrapolation.training import Question, Run

    check_names(systems, TITLES, "--systems")
    for system in systems:
        if why := missing(system):
            raise typer.BadParameter(f"{system!r} cannot run here: {why}", param_hint="--systems")
    if size["width"] % 128 and not tiny:
        raise typer.BadParameter(f"expected a multiple of 128, got {size['width']}", param_hint="--width")
    if size["length"] % size["buckets"]:
        raise typer.BadParameter(f"expected a divisor of the length, {size['length']}", param_hint="--buckets")
    if not tiny and not torch.cuda.is_available():
        raise typer.BadParameter("there is no GPU here; only --tiny needs none", param_hint="--systems")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    asked, corpus, here = Question(**size), corpus_of(), environment(device, bandwidth=False)
    runs = [Run(system, rate, seed) for system in systems for rate in rates for seed in range(seeds)]
    rows = []
    for run in runs:
        row = train(asked, run, corpus, device, graphs) | {"environment": here}
        append([row], out)
        rows.append(row)
        typer.echo(f"{len(rows)} of {len(runs)}: {line_of(row)}", err=True)
    return rows


def train(asked: Question, run: Run, corpus: Corpus, device: str, graphs: bool) -> Row:
    """The row of a model, but for the environment; of one that fails, with its error. Imports torch."""
    import torch

    from glabench.tools.extrapolation.training import trained

    row: Row = {"kind": KIND, "recorded_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "error": None}
    row |= asdict(run) | {"question": asdict(asked), "corpus": corpus.to_dict()}
    try:
        return row | trained(asked, run, corpus, torch.device(device), graphs)
    except Exception as error:  # whatever it is, the other models are to be trained
        return row | {"error": in_one_line(f"{type(error).__name__}: {error}")}
    finally:
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()  # a graph's memory is its own until then


if __name__ == "__main__":
    app()
