"""One model of multi-query associative recall: trained, then tested."""

from __future__ import annotations

import math
import time
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
KEPT = 100  # losses of a row
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
        longest = max(task.length for task in question.tasks)
        with device:
            self.model = LanguageModel(config_of(question, run.width), run.system, longest)
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
    """Steps of one task: a CUDA graph of one, replayed on one batch after another, or the steps themselves."""

    trainer: Trainer
    task: Task
    graph: torch.cuda.CUDAGraph | None = None
    batch: Batch | None = None
    loss: Tensor | None = None
    generator: torch.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.generator = torch.Generator(self.trainer.device)

    def draw(self) -> Batch:
        question = self.trainer.question
        count = sequences(question, self.task)
        return draw(self.task.length, self.task.pairs, question.vocabulary, count, self.generator)

    def capture(self) -> None:
        """Make the graph, after steps at the learning rate of the moment, which is 0 until `set_rate`."""
        self.batch = self.draw()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(BEFORE_GRAPH):
                self.trainer.step(self.batch)
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.loss = self.trainer.step(self.batch)

    def __call__(self) -> Tensor:
        """A step on a new batch; its loss."""
        new = self.draw()
        if self.graph is None or self.batch is None or self.loss is None:
            return self.trainer.step(new)
        for name in ("tokens", "queries", "values"):
            getattr(self.batch, name).copy_(getattr(new, name))
        self.graph.replay()
        return self.loss.clone()


def trained(question: Question, run: Run, device_name: str, graphs: bool) -> Row:
    """The row of a model, but for the environment. graphs: CUDA graphs, which a CPU has not."""
    device = torch.device(device_name)
    start = time.perf_counter()
    trainer = Trainer(question, run, device)
    steppers = [Stepper(trainer, task) for task in question.tasks]
    for i, stepper in enumerate(steppers):
        stepper.generator.manual_seed(run.seed * len(steppers) + i)
        if graphs and device.type == "cuda":
            stepper.capture()
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
