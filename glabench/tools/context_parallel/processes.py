"""Ranks as processes of this machine, one GPU each, and what each of them found.

They are plain processes that meet in a file, and not torchrun's: that wants a port, starts again what failed, and what
a rank said of its failure is to be in a row. The first rank that fails ends them all.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from unittest.mock import patch

from glabench.tools.context_parallel.question import Finding, Question

PATIENCE_S = 180.0  # of a rank in a collective; others may still be compiling, or the first one judging
LIMIT_S = 900.0  # of all ranks together: one that hangs by itself waits for nobody

Report = Callable[[Finding], None]
Work = Callable[[Question, int, Report], None]  # what the rank of that number does


@dataclass(frozen=True)
class Failure:
    """Why ranks came to nothing more: "oom" or "error", and one line that names the rank."""

    status: str
    reason: str


@dataclass(frozen=True)
class Ended:
    """What each rank reported, in its order; and the failure that ended them, if one did."""

    found: list[list[Finding]]
    failure: Failure | None


def run(work: Work, question: Question, patience: float = PATIENCE_S, limit: float = LIMIT_S) -> Ended:
    """Have every rank do the work. Takes no longer than the limit, in seconds, and leaves no process behind."""
    # NVLink's multicast may put a shared host's GPUs out of service, and a message of a MiB gains little by it
    variables = {"NCCL_NVLS_ENABLE": os.environ.get("NCCL_NVLS_ENABLE", "0")}
    if question.device == "cpu":
        variables["TRITON_INTERPRET"] = "1"
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        given = work, question, folder, patience
        ranks = [context.Process(target=_rank, args=(rank, *given), daemon=True) for rank in range(question.ranks)]
        with patch.dict(os.environ, variables):
            for rank in ranks:
                rank.start()
        try:
            codes = _codes(ranks, limit)
        finally:
            _end(ranks)
        said = [_read(Path(folder, f"{rank}.jsonl")) for rank in range(question.ranks)]
    found = [[one for one in lines if "failed" not in one] for lines in said]
    return Ended(found, _failure(codes, said, limit))


def _codes(ranks: Sequence[BaseProcess], limit: float) -> list[int | None]:
    """Exit codes when all have ended, or one has failed, or time is over; None of a rank that still runs."""
    end = time.monotonic() + limit
    while True:
        codes = [rank.exitcode for rank in ranks]
        if None not in codes or any(codes) or time.monotonic() > end:
            return codes
        running = [rank.sentinel for rank, code in zip(ranks, codes, strict=True) if code is None]
        wait(running, max(0.0, end - time.monotonic()))


def _end(ranks: Sequence[BaseProcess]) -> None:
    for rank in ranks:
        rank.kill()  # one that waits inside a collective hears nothing else
    for rank in ranks:
        rank.join()


def _read(path: Path) -> list[Finding]:
    """Of a rank that was killed while it wrote, all but the last line."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _failure(codes: list[int | None], said: list[list[Finding]], limit: float) -> Failure | None:
    """A rank that is gone without a word failed first: others say that they miss it. Else who said so first."""
    if not any(code != 0 for code in codes):
        return None
    told = [(lines[-1]["failed"], rank) for rank, lines in enumerate(said) if lines and "failed" in lines[-1]]
    for rank, code in enumerate(codes):
        if code and rank not in [teller for _, teller in told]:
            how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            return Failure("error", f"rank {rank} {how}")
    if not told:
        return Failure("error", f"ranks did not end within {limit:g} s")
    first, rank = min(told, key=lambda one: one[0]["at"])
    return Failure(first["status"], f"rank {rank}: {first['reason']}")


def _rank(rank: int, work: Work, question: Question, folder: str, patience: float) -> None:
    """A rank's process. It leaves without tidying up where it failed: the group would wait for the others."""
    report = partial(_report, Path(folder, f"{rank}.jsonl"))
    try:
        _join(rank, question, Path(folder, "group").as_uri(), patience)
        work(question, rank, report)
        _leave(question)
    except Exception as error:
        from glabench.failures import classify, reason

        status = "oom" if classify(error) == "oom" else "error"
        report({"failed": {"status": status, "reason": reason(error), "at": time.time()}})
        os._exit(1)


def _report(path: Path, found: Finding) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(found) + "\n")


def _join(rank: int, question: Question, meet: str, patience: float) -> None:
    """Take this rank's GPU, or one core, and meet the others, if there are any."""
    import torch
    import torch.distributed as dist

    place = None
    if question.device == "cuda":
        place = torch.device("cuda", rank)
        torch.cuda.set_device(place)
    else:
        torch.set_num_threads(1)
    if question.ranks > 1:
        backend, wait_s = "nccl" if question.device == "cuda" else "gloo", timedelta(seconds=patience)
        dist.init_process_group(backend, meet, wait_s, question.ranks, rank, device_id=place)


def _leave(question: Question) -> None:
    if question.ranks > 1:
        import torch.distributed as dist

        dist.barrier()
        dist.destroy_process_group()
