"""Steps of training on one batch, over and over: their wall time, the time Python takes to queue one, their memory."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from glabench.systems.models.model import Config, LanguageModel

SETTLING, QUEUED = 3, 5  # steps before a sample, and samples of the time to queue one
LEARNING_RATE, WEIGHT_DECAY = 3e-4, 0.01  # the papers' highest, from the first step on; no clipping of gradients


@dataclass(frozen=True)
class Variant:
    """A system of ``models.model.SYSTEMS``, and whether each block is compiled."""

    system: str
    compiled: bool


class Trainer:
    """A model in bf16 with its optimizer and one batch of random tokens, the same for every system."""

    def __init__(self, variant: Variant, config: Config, batch: int, length: int, device: torch.device) -> None:
        torch.manual_seed(0)
        self.device = device
        tokens = torch.randint(config.vocabulary, (batch, length + 1)).to(device)
        self.tokens, self.targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        with device:
            self.model = LanguageModel(config, variant.system, length).to(torch.bfloat16)
        if variant.compiled:
            for block in self.model.blocks:
                block.compile(fullgraph=True)
        parameters = self.model.parameters()
        self.optimizer = torch.optim.AdamW(parameters, lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY, fused=True)

    def step(self) -> Tensor:
        """One step, queued: nothing here waits for the GPU. The loss before it, float32."""
        loss = self.model.loss(self.tokens, self.targets)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def wall_ms(self, steps: int) -> float:
        """The mean of ``steps`` steps between two waits for the GPU."""
        synchronize(self.device)
        start = time.perf_counter()
        for _ in range(steps):
            self.step()
        synchronize(self.device)
        return (time.perf_counter() - start) * 1e3 / steps

    def queue_ms(self) -> float:
        """Python's time for a step while the GPU had nothing to do before.

        CUDA takes about a thousand launches ahead of the GPU. What a longer step waits for that is in here, too; with a
        batch so small that the GPU is never behind, it is Python's time alone.
        """
        synchronize(self.device)
        start = time.perf_counter()
        self.step()
        elapsed = (time.perf_counter() - start) * 1e3
        synchronize(self.device)
        return elapsed


@dataclass
class Measured:
    """Raw samples of a variant. peak_bytes: of its own, other variants' left out; None on a CPU."""

    system: str
    compiled: bool
    parameters: int
    peak_bytes: int | None
    loss_first: float
    loss_last: float = math.nan
    wall_ms: list[float] = field(default_factory=list)
    queue_ms: list[float] = field(default_factory=list)

    @property
    def trains(self) -> bool:
        """Whether the loss is finite and has fallen on its one batch."""
        return math.isfinite(self.loss_last) and self.loss_last < self.loss_first


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def warmed_up(
    variant: Variant, config: Config, batch: int, length: int, device: torch.device, steps: int
) -> tuple[Trainer, Measured]:
    """A trainer after ``steps`` steps, of which the first compiles, and its peak memory in the last."""
    cuda = device.type == "cuda"
    held = torch.cuda.memory_allocated(device) if cuda else 0
    trainer = Trainer(variant, config, batch, length, device)
    first = float(trainer.step())
    for _ in range(steps - 2):
        trainer.step()
    if cuda:
        torch.cuda.reset_peak_memory_stats(device)
    trainer.step()
    peak = torch.cuda.max_memory_allocated(device) - held if cuda else None
    return trainer, Measured(variant.system, variant.compiled, trainer.model.parameter_count, peak, first)


def measure_in_turns(runs: Sequence[tuple[Trainer, Measured]], steps: int, rounds: int) -> None:
    """A sample of wall time of each in every round, in turns, so that a clock that drifts is the same for all, and
    QUEUED of the time to queue a step, of which one varies by a third.

    The order turns around from round to round. SETTLING steps first bring the caches back, and have PyTorch's allocator
    hand out the addresses that it would without the others in this process.
    """
    for number in range(rounds):
        for trainer, measured in runs if number % 2 == 0 else reversed(runs):
            for _ in range(SETTLING):
                trainer.step()
            measured.queue_ms.extend(trainer.queue_ms() for _ in range(QUEUED))
            measured.wall_ms.append(trainer.wall_ms(steps))
            measured.loss_last = float(trainer.step())


__all__ = ["Measured", "Trainer", "Variant", "measure_in_turns", "synchronize", "warmed_up"]
