"""One model of multi-query associative recall: trained, then tested."""

from __future__ import annotations

import math
import time

import torch
from torch import Tensor
from torch.nn import functional as F

from glabench.run.train import synchronize
from glabench.systems.models.model import Config, LanguageModel, implementation
from glabench.tools.learner import Learner, Stepper
from glabench.tools.mqar.question import HEADS, Question, Run, Task
from glabench.tools.mqar.task import Batch, draw
from glabench.tools.rows import Row

TEST_SEED = 2**31  # of the generator of tests; runs have smaller ones
KEPT = 100  # losses of a row


def config_of(question: Question, width: int) -> Config:
    """Sizes of a model of that width, heads as the paper has them."""
    hidden = math.ceil(width * 8 / 3 / 64) * 64
    heads = {"gla_heads": HEADS, "retention_heads": HEADS, "attention_heads": HEADS}
    return Config(layers=question.layers, width=width, hidden=hidden, vocabulary=question.vocabulary, **heads)


class Trainer(Learner[Batch]):
    """A model of a question, and what is asked of it."""

    def __init__(self, question: Question, run: Run, device: torch.device) -> None:
        self.question = question
        longest = max(task.length for task in question.tasks)

        def model() -> LanguageModel:
            return LanguageModel(config_of(question, run.width), run.system, longest)

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


def stepper(trainer: Trainer, task: Task, seed: int) -> Stepper[Batch]:
    """Steps of one task, on sequences of that seed."""
    question, generator = trainer.question, torch.Generator(trainer.device).manual_seed(seed)
    count = sequences(question, task)
    return Stepper(trainer, lambda: draw(task.length, task.pairs, question.vocabulary, count, generator))


def trained(question: Question, run: Run, device_name: str, graphs: bool) -> Row:
    """The row of a model, but for the environment. graphs: CUDA graphs, which a CPU has not."""
    device = torch.device(device_name)
    start = time.perf_counter()
    trainer = Trainer(question, run, device)
    first = run.seed * len(question.tasks)
    steppers = [stepper(trainer, task, first + i) for i, task in enumerate(question.tasks)]
    if graphs and device.type == "cuda":
        for one in steppers:
            one.capture()
    trainer.forget()
    synchronize(device)
    ready = time.perf_counter()
    losses = []
    for step in range(question.steps):
        trainer.set_rate(step)
        losses.append(steppers[step % len(steppers)]())
    kept = torch.stack(losses).tolist()
    trained_at = time.perf_counter()
    accuracy = {task.name: trainer.accuracy(task) for task in question.tasks}
    row: Row = {"kind": "mqar", "recorded_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    row |= run.model_dump() | {"question": question.model_dump(), "parameters": trainer.model.parameter_count}
    row |= {"implementation": implementation(run.system, device), "accuracy": accuracy}
    row["losses"] = kept[:: max(1, len(kept) // KEPT)]
    row |= {"ready_s": ready - start, "training_s": trained_at - ready}
    return row


__all__ = ["Trainer", "config_of", "trained"]
