"""A row for each model that is trained, several at a time. What processes run is here, not in __main__.py: that is not
imported again where they start, and they would not find it."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool

from glabench.errors import in_one_line
from glabench.tools.mqar.question import Question, Run
from glabench.tools.rows import Row

KIND = "mqar"


def trained_all(question: Question, runs: Sequence[Run], device: str, processes: int, graphs: bool) -> Iterator[Row]:
    """Rows in the order in which they are done; in this process where one at a time is asked for."""
    if processes == 1:
        yield from (train(question, run, device, graphs) for run in runs)
        return
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        futures = {pool.submit(train, question, run, device, graphs): run for run in runs}
        for future in as_completed(futures):
            try:
                yield future.result()
            except BrokenProcessPool as error:  # one process died; it is not said which
                yield failed(question, futures[future], error)


def train(question: Question, run: Run, device: str, graphs: bool) -> Row:
    """The row of a run, but for the environment. Imports torch."""
    from glabench.tools.mqar.training import trained

    try:
        return trained(question, run, device, graphs) | {"error": None}
    except Exception as error:  # whatever it is, the other models are to be trained
        return failed(question, run, error)


def failed(question: Question, run: Run, error: Exception) -> Row:
    """The row of a run that came to nothing."""
    row: Row = {"kind": KIND, "question": question.model_dump()} | run.model_dump()
    return row | {"accuracy": None, "implementation": "", "error": in_one_line(f"{type(error).__name__}: {error}")}
