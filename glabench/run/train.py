"""Steps of training on one batch, over and over: their wall time, the time Python takes to queue one, their memory."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from glabench.spec.axes import Execution
from glabench.systems.inputs import packed
from glabench.systems.models.model import NO_TARGET, Config, LanguageModel, in_one_graph

SETTLING, QUEUED = 3, 5  # steps before a sample, and samples of the time to queue one
LEARNING_RATE, WEIGHT_DECAY = 3e-4, 0.01  # the papers' highest, from the first step on; no clipping of gradients


@dataclass(frozen=True)
class Variant:
    """A system of ``models.model.SYSTEMS``, and whether each block and the loss are compiled."""

    system: str
    compiled: bool


def batch_of(
    vocabulary: int, batch: int, length: int, device: torch.device, documents: Sequence[int] | None = None
) -> tuple[Tensor, Tensor]:
    """Random tokens [batch, length], and those that come after each of them: the same for every system. After the last
    token of a document, where a batch of one is made of documents of these lengths, comes none of its own."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(vocabulary, (batch, length + 1), generator=generator)
    tokens, targets = drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous()
    if documents is not None:
        targets = targets.index_fill(1, torch.tensor(documents).cumsum(0) - 1, NO_TARGET)
    return tokens.to(device), targets.to(device)


def made(model: Callable[[], LanguageModel], device: torch.device) -> LanguageModel:
    """The model on the device, with the same random weights each time."""
    torch.manual_seed(0)
    with device:
        return model()


def forget_compiled() -> None:
    """Forget what was compiled of other models. torch.compile keeps a few variants of a function, and runs what comes
    after them as it is, without a word: here that is an error."""
    torch._dynamo.reset()
    torch._dynamo.config.fail_on_recompile_limit_hit = True


class Trainer:
    """A model with its optimizer and one batch of random tokens.

    execution: see ``Case``; "graph" begins as "compiled", and goes into a CUDA graph with ``capture``. in_one_graph:
    whether a block that does not compile whole is an error. documents: lengths of those that the batch of one is
    made of.
    """

    def __init__(
        self, model: Callable[[], LanguageModel], vocabulary: int, batch: int, length: int, device: torch.device,
        execution: Execution | None = None, in_one_graph: bool = True, documents: tuple[int, ...] | None = None,
    ) -> None:  # fmt: skip
        self.device = device
        self.tokens, self.targets = batch_of(vocabulary, batch, length, device, documents)
        self.packed = None if documents is None else packed(documents, str(device))
        self.model = made(model, device)
        if execution is not None:
            self.model.compile_parts(in_one_graph)
        parameters, captured = self.model.parameters(), execution == "graph"
        self.optimizer = torch.optim.AdamW(
            parameters, lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY, fused=True, capturable=captured
        )
        self.graph: torch.cuda.CUDAGraph | None = None
        self.loss: Tensor | None = None  # of the graph's last step

    @classmethod
    def of(cls, variant: Variant, config: Config, batch: int, length: int, device: torch.device) -> Trainer:
        """The trainer of a variant, in bf16."""

        def model() -> LanguageModel:
            return LanguageModel(config, variant.system, length).to(torch.bfloat16)

        execution: Execution | None = "compiled" if variant.compiled else None
        return cls(model, config.vocabulary, batch, length, device, execution, in_one_graph(variant.system))

    def step(self) -> Tensor:
        """One step, queued: nothing here waits for the GPU. The loss before it, float32."""
        if self.graph is None:
            return self._step()
        assert self.loss is not None
        self.graph.replay()
        return self.loss

    def forward(self) -> Tensor:
        """The loss on the batch, whose graph is there."""
        return self.model.loss(self.tokens, self.targets, self.packed)

    def _step(self) -> Tensor:
        loss = self.forward()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def capture(self) -> None:
        """Put the step into a CUDA graph, which every later step replays. After some steps: these compile, and make the
        optimizer's moments."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # what is made at the first call on a stream is made before the capture
            self._step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.loss = self._step()
        self.graph = graph

    def wall_ms(self, steps: int, queued: Callable[[], None] = lambda: None) -> float:
        """The mean of ``steps`` steps between two waits for the GPU. ``queued`` is called while it works on them."""
        synchronize(self.device)
        start = time.perf_counter()
        for _ in range(steps):
            self.step()
        queued()
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
    trainer = Trainer.of(variant, config, batch, length, device)
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


__all__ = [
    "Measured",
    "Trainer",
    "Variant",
    "batch_of",
    "forget_compiled",
    "made",
    "measure_in_turns",
    "synchronize",
    "warmed_up",
]
