"""A row for each model that is trained, those of a width together. What processes run is here, not in __main__.py: that
is not imported again where they start, and they would not find it."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor

from glabench.errors import in_one_line
from glabench.tools.mqar.question import Question, Run
from glabench.tools.rows import Row

KIND = "mqar"
TOGETHER = 8  # models at most: more gain little, and a wide one has some 4 GB of graphs


def trained_all(question: Question, device: str, processes: int, graphs: bool) -> Iterator[Row]:
    """Rows, one width after another. With several processes, these first compile what the models run."""
    if processes > 1:
        compile_all(question, device, processes, graphs)
    for width in question.widths:
        runs = question.runs(width)
        for start in range(0, len(runs), TOGETHER):
            yield from trained_together(question, runs[start : start + TOGETHER], device, graphs)


def compile_all(question: Question, device: str, processes: int, graphs: bool) -> None:
    """Have a model of each system and width made in processes. Kernels are left in Triton's cache on disk; what fails,
    fails once more where it is trained, and is told there."""
    wide_first = sorted(question.widths, reverse=True)  # those take longest
    first = question.model_copy(update={"learning_rates": question.learning_rates[:1], "seeds": question.seeds[:1]})
    runs = [run for width in wide_first for run in first.runs(width)]
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        for future in [pool.submit(make, question, run, device, graphs) for run in runs]:
            future.exception()


def make(question: Question, run: Run, device: str, graphs: bool) -> None:
    """Make a model and its graphs, and drop them."""
    from glabench.tools.mqar.training import Training

    Training(question, run, device, graphs)


def trained_together(question: Question, runs: Sequence[Run], device: str, graphs: bool) -> list[Row]:
    """The rows of runs, but for the environment. Imports torch."""
    from glabench.tools.mqar.training import Training, train

    trainings, rows = list[Training](), list[Row]()
    for run in runs:
        try:
            trainings.append(Training(question, run, device, graphs))
        except Exception as error:  # whatever it is, the other models are to be trained
            rows.append(failed(question, run, error))
    try:
        took = {"training_s": train(trainings), "trained_together": len(trainings)}
        rows += [training.row() | took for training in trainings]
    except Exception as error:  # on a GPU, that of one is that of all
        rows += [failed(question, training.run, error) for training in trainings]
    return rows


def failed(question: Question, run: Run, error: Exception) -> Row:
    """The row of a run that came to nothing."""
    row: Row = {"kind": KIND, "question": question.model_dump()} | run.model_dump()
    return row | {"accuracy": None, "implementation": "", "error": in_one_line(f"{type(error).__name__}: {error}")}
