"""Mode "train": what a step of training takes, in time and in memory, and where its time goes."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch

from glabench.hardware import nvml
from glabench.run.measure import StoppingRule, Timing
from glabench.run.memory import no_collection
from glabench.run.step_kernels import kernel_ms, our_kernels
from glabench.run.train import QUEUED, SETTLING, Trainer, forget_compiled, synchronize
from glabench.spec.case import Case
from glabench.spec.models import CONFIGS
from glabench.spec.settings import Settings
from glabench.systems.language_model import LanguageModelSystem

SAMPLE_S = 1.0  # a sample is so many steps as take about this long, and FEWEST at least: steps follow each other
FEWEST = 3
WARM_UP = 3  # steps before a graph is captured, or memory looked at: the first compiles


@dataclass(frozen=True)
class Measured:
    """What the row says of the step."""

    timing: Timing
    memory: dict[str, Any] | None


def measure(system: LanguageModelSystem, case: Case, settings: Settings) -> Measured:
    """Steps on one batch, over and over, of the whole case.

    Raises RuntimeError where the loss does not fall, or is not finite: such a step is not one of training.
    """
    assert case.model is not None
    device = torch.device(settings.device)
    sizes = CONFIGS[case.model].vocabulary, case.B, case.T
    forget_compiled()
    trainer = Trainer(lambda: system.model(case), *sizes, device, case.execution, system.in_one_graph, case.sequences)
    first = float(trainer.step())
    for _ in range(WARM_UP - 1):
        trainer.step()
    memory = _memory(trainer, case)
    timing = _timed(trainer, settings)
    last = float(trainer.step())
    if not last < first:
        raise RuntimeError(f"the loss on one batch is {last:.4g} after training on it, and was {first:.4g} before")
    training: dict[str, Any] = {"parameters": trainer.model.parameter_count, "loss_first": first, "loss_last": last}
    if device.type == "cuda":
        training["kernel_ms"] = kernel_ms(trainer, our_kernels() if system.info.triton else frozenset())
    timing.time["training"] = training
    return Measured(timing, memory)


def _memory(trainer: Trainer, case: Case) -> dict[str, Any] | None:
    """Peak memory of a step; what is there between steps, weights, the optimizer's moments and tokens, as its inputs;
    and what a forward pass keeps for the backward pass. None on a CPU. Captures the graph where there is to be one:
    that step is the one whose peak counts, for its memory is the graph's from then on."""
    if trainer.device.type == "cpu":
        return None
    synchronize(trainer.device)
    with no_collection():
        before = torch.cuda.memory_allocated()
        loss = trainer.forward()
        kept = torch.cuda.memory_allocated() - before
        del loss
        torch.cuda.reset_peak_memory_stats()
        if case.execution == "graph":
            trainer.capture()
        else:
            trainer.step()
        synchronize(trainer.device)
        beyond = torch.cuda.max_memory_allocated() - before
    return {
        "peak_bytes": before + beyond, "inputs_bytes": before, "beyond_inputs_bytes": beyond, "kept_bytes": kept,
    }  # fmt: skip


def _timed(trainer: Trainer, settings: Settings) -> Timing:
    """Samples of wall time, each of several steps between two waits for the GPU, and of the time to queue one."""
    cuda = trainer.device.type == "cuda"
    for _ in range(SETTLING):
        trainer.step()
    queued = [trainer.queue_ms() for _ in range(QUEUED)] if cuda else []
    steps = max(FEWEST if cuda else 1, round(SAMPLE_S * 1e3 / trainer.wall_ms(1)))
    rule, samples, readings = StoppingRule.of(settings), list[float](), list[nvml.Clocks]()
    uuid, began = _uuid() if cuda else None, time.perf_counter()

    def look() -> None:
        reading = None if uuid is None else nvml.clocks(uuid)
        readings.extend([] if reading is None else [reading])

    while (stopped := rule.verdict(samples)) is None:
        if len(samples) >= 2 and time.perf_counter() - began > settings.max_wall_s:
            stopped = f"wall budget of {settings.max_wall_s:g} s"
            break
        samples.append(trainer.wall_ms(steps, look))
    facts: dict[str, Any] = {"clock": "steps_wall", "samples_ms": samples, "steps": steps, "stopped": stopped}
    if cuda:
        facts["eager"] = {"host_ms": queued}
    return Timing(facts, nvml.summarise(readings))


def _uuid() -> str:
    return str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
