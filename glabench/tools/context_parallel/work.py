"""What a rank does: it is checked, then timed, or takes ever longer sequences until its memory is full."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor

from gla_kernels.parallel.ranks import Ranks
from glabench.run.memory import no_collection
from glabench.spec.case import Mode
from glabench.tools.context_parallel.check import checked, far_from_one_gpu, wrong
from glabench.tools.context_parallel.exchange import going, way_of
from glabench.tools.context_parallel.processes import Report
from glabench.tools.context_parallel.question import MOST, Finding, Question
from glabench.tools.context_parallel.tokens import DRAWN, Step, drawn, step


def timed(question: Question, rank: int, report: Report) -> None:
    """Report the check, then each mode that was right, once for each way that messages go."""
    with going(question.ways[0]):
        check = checked(question, rank)
    reasons = [{mode: wrong(check, mode == "fwdbwd") for mode in question.modes}]
    if question.ranks > 1:
        dist.broadcast_object_list(reasons)
    report({"check": check, "wrong": reasons[0], "device": device_name(question)})
    x = drawn(question, rank, question.shape.T)
    for mode in question.modes:
        if reasons[0][mode] is None:
            for found in _timed(question, rank, mode, step(question, x, mode)):
                report({"mode": mode} | found)


def _timed(question: Question, rank: int, mode: Mode, call: Step) -> list[Finding]:
    """Of each way that messages go, what `_looked_at` finds, and samples of the step, in turns with those of the other
    ways and of the step alone."""
    found, without = list[Finding](), list[dict[str, float]]()
    for way in question.ways:
        with going(way):
            found.append(_looked_at(question, rank, mode, call, way))
    with alone():
        for _ in range(question.warm_up):
            call()
    with no_collection():
        for _ in range(question.samples):
            for one in found:
                with going(one["way"]):
                    one["samples"].append(sample(question, call))
            if question.ranks > 1:
                with alone():
                    without.append(sample(question, call))
    return [one | {"alone": without} for one in found]


def _looked_at(question: Question, rank: int, mode: Mode, call: Step, way: str | None) -> Finding:
    """How far the step's results are from one GPU's, bytes of its messages, and of memory."""
    found: Finding = {"way": way, "apart": None, "samples": []}
    if question.ranks > 1:
        found["apart"] = far_from_one_gpu(question, rank, mode, call())
    for _ in range(question.warm_up):
        call()
    found |= {"same_bits": repeats(call), "peak_bytes": peak_bytes(question, call)}
    with listening(way) as messages:
        call()
    return found | {"message_bytes": [size for size, _ in messages], "exchange": sorted({how for _, how in messages})}


def sample(question: Question, call: Step) -> dict[str, float]:
    """Milliseconds of a call, of some one after another that all ranks begin together: ``ms`` by the GPU's clock,
    ``wall_ms`` until the GPU is idle. Nothing is flushed from L2: a rank's tokens are some times
    as large."""
    if question.ranks > 1:
        dist.barrier()
    on_gpu = question.device == "cuda"
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if on_gpu else []
    _synchronize(question)
    began = time.perf_counter()
    for event in events[:1]:
        event.record()
    for _ in range(question.calls):
        call()
    for event in events[1:]:
        event.record()
    _synchronize(question)
    wall = 1e3 * (time.perf_counter() - began) / question.calls
    ms = events[0].elapsed_time(events[1]) / question.calls if on_gpu else wall
    return {"ms": ms, "wall_ms": wall}


@contextmanager
def alone() -> Iterator[None]:
    """Meanwhile a rank gathers copies of its own message, and nothing is sent. Results are wrong then."""

    def copied(ranks: Ranks, x: Tensor) -> Tensor:
        found = x.new_empty(ranks.size, x.numel())  # memory as `gathered` takes it
        return found.copy_(x)

    with patch.object(Ranks, "gathered", copied):
        yield


@contextmanager
def listening(way: str | None) -> Iterator[list[tuple[int, str]]]:
    """The bytes of each message that this rank has the others gather meanwhile, and how; None: as the package does."""
    gathered: Callable[[Ranks, Tensor], Tensor] = Ranks.gathered
    messages: list[tuple[int, str]] = []

    def noted(ranks: Ranks, x: Tensor) -> Tensor:
        messages.append((x.nbytes, way or way_of(ranks, x)))
        return gathered(ranks, x)

    with patch.object(Ranks, "gathered", noted):
        yield messages


def repeats(call: Step) -> bool:
    """Whether two runs give the same bits. What the first gave waits in the host's memory."""
    first = [x.cpu() for x in call()]
    return all(torch.equal(x, y.cpu()) for x, y in zip(first, call(), strict=True))


def peak_bytes(question: Question, call: Step) -> int | None:
    """Of PyTorch's allocator during a call, what it is given included; None on a CPU."""
    if question.device == "cpu":
        return None
    with no_collection():
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        call()
        torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated())


def fitted(question: Question, rank: int, report: Report) -> None:
    """Report each length that there is memory for to run forward and backward: of one rank from the shape's own on,
    always twice as many tokens, until there is none and this raises; of several ranks that length alone."""
    tokens = question.shape.T
    while True:
        report({"T": tokens, "device": device_name(question)} | _fitted(question, rank, tokens))
        tokens *= 2
        if question.ranks > 1 or tokens > MOST:
            return


def _fitted(question: Question, rank: int, tokens: int) -> Finding:
    """Whether results are finite, and what memory they took. Nothing is held afterwards."""
    if question.device == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    with going(question.ways[0]):
        results = step(question, drawn(question, rank, tokens), "fwdbwd")()
    peak = torch.cuda.max_memory_allocated() if question.device == "cuda" else None
    finite = all(bool(part.isfinite().all()) for x in results for part in x.split(DRAWN, 1))
    return {"peak_bytes": peak, "finite": finite}


def device_name(question: Question) -> str:
    return torch.cuda.get_device_name() if question.device == "cuda" else "CPU"


def _synchronize(question: Question) -> None:
    if question.device == "cuda":
        torch.cuda.synchronize()
