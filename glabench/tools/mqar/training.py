"""Models of multi-query associative recall: trained, then tested."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from glabench.run.train import synchronize
from glabench.systems.models.model import Config, LanguageModel, implementation
from glabench.tools.mqar.question import HEADS, Question, Run, Task
from glabench.tools.mqar.task import Batch, draw
from glabench.tools.rows import Row

WARMUP = 0.1  # of all steps the learning rate rises, then it falls by a cosine to 0
WEIGHT_DECAY, MOST_GRADIENT = 0.1, 1.0  # of AdamW, and the norm that gradients are clipped to
TEST_SEED = 2**31  # of the generator of tests; runs have smaller ones
KEPT = 50  # losses of a row, of each task
BEFORE_GRAPH = 3  # steps that compile kernels and settle what they allocate


def config_of(question: Question, width: int) -> Config:
    """Sizes of a model of that width, heads as the paper has them."""
    hidden = math.ceil(width * 8 / 3 / 64) * 64
    heads = {"gla_heads": HEADS, "retention_heads": HEADS, "attention_heads": HEADS}
    return Config(layers=question.layers, width=width, hidden=hidden, vocabulary=question.vocabulary, **heads)


class Trainer:
    """A model in bf16, of whose weights the optimizer has copies in float32. On a CPU, where Triton's interpreter has
    no products in bf16, all is in float32."""

    def __init__(self, question: Question, run: Run, device: torch.device) -> None:
        self.question, self.device = question, device
        torch.manual_seed(run.seed)
        with device:
            self.model = LanguageModel(config_of(question, run.width), run.system, question.longest)
        self.master = [p.detach().clone().requires_grad_() for p in self.model.parameters()]
        self.gradients = [torch.zeros_like(weight) for weight in self.master]
        for weight, gradient in zip(self.master, self.gradients, strict=True):
            weight.grad = gradient
        if device.type == "cuda":
            self.model.to(torch.bfloat16)
        self.rate, self.top = torch.zeros((), device=device), run.learning_rate
        self.optimizer = torch.optim.AdamW(
            self.master, lr=self.rate, weight_decay=WEIGHT_DECAY, fused=True, capturable=device.type == "cuda"
        )

    def set_rate(self, step: int) -> None:
        """The learning rate of a step."""
        whole, rising = self.question.steps, max(1, round(WARMUP * self.question.steps))
        along = max(0.0, (step - rising) / max(1, whole - rising))
        self.rate.fill_(self.top * min((step + 1) / rising, 0.5 + 0.5 * math.cos(math.pi * along)))

    def step(self, batch: Batch) -> Tensor:
        """One step, queued; the mean loss of the batch's queries before it, float32."""
        loss = self.loss(batch)
        gradients = torch.autograd.grad(loss, list(self.model.parameters()))
        torch._foreach_copy_(self.gradients, gradients)
        torch.nn.utils.clip_grad_norm_(self.master, MOST_GRADIENT, foreach=True)
        self.optimizer.step()
        with torch.no_grad():
            torch._foreach_copy_(list(self.model.parameters()), self.master)
        return loss.detach()

    def forget(self) -> None:
        """The optimizer as it begins. In place: graphs have its addresses."""
        for state in self.optimizer.state.values():
            for value in state.values():
                value.zero_()

    def loss(self, batch: Batch) -> Tensor:
        return F.cross_entropy(self.logits(batch).flatten(0, 1).float(), batch.values.flatten())

    def logits(self, batch: Batch) -> Tensor:
        """[B, pairs, vocabulary], at the queries alone."""
        hidden = self.model.hidden(batch.tokens)
        asked = hidden.gather(1, batch.queries[..., None].expand(-1, -1, hidden.shape[-1]))
        return F.linear(asked, self.model.embedding.weight)

    @torch.no_grad()
    def accuracy(self, task: Task) -> float:
        """The share of queries of sequences it has not seen that are answered rightly."""
        generator = torch.Generator(self.device).manual_seed(TEST_SEED)
        right, left = 0, self.question.tests
        while left:
            count = min(left, sequences(self.question, task))
            batch = draw(task.length, task.pairs, self.question.vocabulary, count, generator)
            right += int((self.logits(batch).argmax(-1) == batch.values).sum())
            left -= count
        return right / (self.question.tests * task.pairs)


def sequences(question: Question, task: Task) -> int:
    """Of a batch."""
    return question.batch_tokens // task.length


@dataclass
class Stepper:
    """Steps of one task, each on a new batch: a CUDA graph of drawing one and learning it, or the steps themselves."""

    trainer: Trainer
    task: Task
    graph: torch.cuda.CUDAGraph | None = None
    loss: Tensor | None = None
    generator: torch.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.generator = torch.Generator(self.trainer.device)

    def step(self) -> Tensor:
        question = self.trainer.question
        count = sequences(question, self.task)
        return self.trainer.step(draw(self.task.length, self.task.pairs, question.vocabulary, count, self.generator))

    def capture(self, stream: torch.cuda.Stream) -> None:
        """Make the graph, after steps at the learning rate of the moment, which is 0 until `set_rate`. It is to be
        replayed on that stream, which must be current: products of all graphs made on one share scratch memory."""
        for _ in range(BEFORE_GRAPH):
            self.step()
        self.graph = torch.cuda.CUDAGraph()
        self.graph.register_generator_state(self.generator)
        with torch.cuda.graph(self.graph, stream=stream):
            self.loss = self.step()

    def __call__(self) -> Tensor:
        """A step; its loss, which the next one may overwrite."""
        if self.graph is None or self.loss is None:
            return self.step()
        self.graph.replay()
        return self.loss


class Training:
    """A model that can be trained, on a stream of its own. graphs: CUDA graphs, which a CPU has not."""

    def __init__(self, question: Question, run: Run, device_name: str, graphs: bool) -> None:
        start = time.perf_counter()
        self.question, self.run, self.device = question, run, torch.device(device_name)
        self.stream = torch.cuda.Stream() if self.device.type == "cuda" else None
        with torch.cuda.stream(self.stream):
            self.trainer = Trainer(question, run, self.device)
            self.steppers = [Stepper(self.trainer, task) for task in question.taught]
            for i, stepper in enumerate(self.steppers):
                if graphs and self.stream is not None:
                    stepper.capture(self.stream)
                stepper.generator.manual_seed(run.seed * len(self.steppers) + i)
            self.trainer.forget()
            self.losses = torch.zeros(question.steps, device=self.device)
        synchronize(self.device)
        self.ready_s = time.perf_counter() - start

    def step(self, step: int) -> None:
        """Queue a step."""
        with torch.cuda.stream(self.stream):
            self.trainer.set_rate(step)
            self.losses[step] = self.steppers[self.question.taught_at(step)]()

    def row(self) -> Row:
        """The row of the model when it is trained, but for the environment and how long it took."""
        row: Row = {"kind": "mqar", "recorded_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        row |= {"question": self.question.model_dump()} | self.run.model_dump()
        row |= {"parameters": self.trainer.model.parameter_count}
        row["implementation"] = implementation(self.run.system, self.device)
        row["accuracy"] = {task.name: self.trainer.accuracy(task) for task in self.question.tasks}
        row["losses"] = self.losses_by_task()
        return row | {"ready_s": self.ready_s, "error": None}

    def losses_by_task(self) -> dict[str, list[float]]:
        """Losses of steps of each task, KEPT of them or somewhat more, at like distances."""
        found: dict[str, list[float]] = {}
        for step, loss in enumerate(self.losses.tolist()):
            found.setdefault(self.question.taught[self.question.taught_at(step)].name, []).append(loss)
        return {name: losses[:: max(1, len(losses) // KEPT)] for name, losses in found.items()}


def train(trainings: Sequence[Training]) -> float:
    """Train models, a step of each in turn; how many seconds it took. A small model leaves most of a GPU idle, and on
    streams they share it; models of different processes would take turns on it."""
    start = time.perf_counter()
    for training in trainings:  # what was before is done
        synchronize(training.device)
    for step in range(max((training.question.steps for training in trainings), default=0)):
        for training in trainings:
            training.step(step)
    for training in trainings:
        synchronize(training.device)
    return time.perf_counter() - start


__all__ = ["Trainer", "Training", "config_of", "train"]
