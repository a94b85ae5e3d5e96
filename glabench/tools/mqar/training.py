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
from glabench.tools.learner import BEFORE_GRAPH, Learner
from glabench.tools.mqar.question import HEADS, Question, Run, Task
from glabench.tools.mqar.task import Batch, draw
from glabench.tools.rows import Row

TEST_SEED = 2**31  # of the generator of tests; runs have smaller ones
KEPT = 50  # losses of a row, of each task


def config_of(question: Question, width: int) -> Config:
    """Sizes of a model of that width, heads as the paper has them."""
    hidden = math.ceil(width * 8 / 3 / 64) * 64
    heads = {"gla_heads": HEADS, "retention_heads": HEADS, "attention_heads": HEADS}
    return Config(layers=question.layers, width=width, hidden=hidden, vocabulary=question.vocabulary, **heads)


class Trainer(Learner[Batch]):
    """A model of a question, and what is asked of it."""

    def __init__(self, question: Question, run: Run, device: torch.device) -> None:
        self.question = question

        def model() -> LanguageModel:
            return LanguageModel(config_of(question, run.width), run.system, question.longest)

        super().__init__(model, question.steps, run.learning_rate, run.seed, device)

    def loss(self, batch: Batch) -> Tensor:
        """Of the batch's queries."""
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
