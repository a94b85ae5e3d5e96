"""Multi-query associative recall: models of one width after another, trained by these kernels, and what they recall.

Says for each system, width and task which share of queries is answered rightly, as Figure 4 of the 2024 GLA paper does,
whose setting is that of Arora et al. 2023 (arXiv 2312.04927). Models of one width are trained together: a small one
leaves most of a GPU idle. Needs a GPU; --tiny tries the program on a CPU.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from glabench.errors import UserError
from glabench.tools.mqar.figure import figure, line_of, show
from glabench.tools.mqar.question import Question, Task, read
from glabench.tools.mqar.runs import KIND, trained_all
from glabench.tools.rows import Row, append, rows_of, wide_enough
from glabench.tools.step import check_names

QUESTION = Path(__file__).with_name("mqar.yaml")
TINY = Question(
    title="Tries the program", tasks=[Task(length=16, pairs=2)], systems=["gla", "fa2"], widths=[32],
    learning_rates=[0.01], steps=4, batch_tokens=32, tests=2, vocabulary=32, layers=1,
)  # fmt: skip

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def mqar(
    file: Annotated[Path, typer.Argument(help="The question.", exists=True, dir_okay=False)] = QUESTION,
    only: Annotated[str | None, typer.Option(help="Comma-separated systems of it.")] = None,
    processes: Annotated[int, typer.Option(help="Processes that compile kernels first.", min=1)] = 8,
    graphs: Annotated[bool, typer.Option(help="Steps as CUDA graphs.")] = True,
    tiny: Annotated[bool, typer.Option("--tiny", help="A tiny question, on a CPU too: tries the program.")] = False,
    out: Annotated[Path | None, typer.Option(help="File that rows are appended to.")] = None,
    image: Annotated[Path | None, typer.Option("--figure", help="Folder that mqar.svg and mqar.png go to.")] = None,
    from_rows: Annotated[
        Path | None, typer.Option("--read", help="File of rows to show; nothing is trained.", exists=True)
    ] = None,
) -> None:
    """Train models and say what they recall. Exit code: 0 done; 1 a model failed; 2 bad input or no GPU."""
    if from_rows is not None:
        rows = rows_of(from_rows, KIND)
    else:
        rows = measured(asked(file, only, tiny), processes, graphs, out)
    show(rows, wide_enough())
    if image is not None:
        from glabench.report.draw import write

        write(figure(rows), image)
    raise typer.Exit(1 if any(row["error"] for row in rows) else 0)


def asked(file: Path, only: str | None, tiny: bool) -> Question:
    """The question. BadParameter for a file that has none, and for what cannot run here."""
    import torch

    from glabench.systems.models.model import SYSTEMS, missing

    if not tiny and not torch.cuda.is_available():
        raise typer.BadParameter("there is no GPU here; only --tiny needs none", param_hint="FILE")
    try:
        question = TINY if tiny else read(file, tuple(SYSTEMS))
    except UserError as error:
        raise typer.BadParameter(str(error), param_hint="FILE") from None
    if only is not None:
        check_names(only.split(","), question.systems, "--only")
        question = question.model_copy(update={"systems": only.split(",")})
    for system in question.systems:
        if why := missing(system):
            raise typer.BadParameter(f"{system!r} cannot run here: {why}", param_hint="--only")
    return question


def measured(question: Question, processes: int, graphs: bool, out: Path | None) -> list[Row]:
    """A row for each run, appended to the file as it is there. One that fails is a row with its error."""
    import torch

    from glabench.hardware.environment import environment

    device = "cuda" if torch.cuda.is_available() else "cpu"
    here = environment(device, bandwidth=False)
    rows = list[Row]()
    count = sum(len(question.runs(width)) for width in question.widths)
    for row in trained_all(question, device, processes, graphs):
        row["environment"] = here
        append([row], out)
        rows.append(row)
        typer.echo(f"{len(rows)} of {count}: {line_of(row)}", err=True)
    return rows


if __name__ == "__main__":
    app()
