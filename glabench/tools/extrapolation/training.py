"""One model: trained on windows of the text, then its loss on the text held out, by position in documents that are
longer than any window."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from glabench.run.train import synchronize
from glabench.spec.models import Config
from glabench.systems.models.model import LanguageModel, implementation
from glabench.tools.extrapolation.corpus import Corpus
from glabench.tools.learner import Learner, Stepper
from glabench.tools.rows import Row

VOCABULARY = 256  # bytes
HEAD = 64  # of attention; linear attention has heads twice as wide, keys of 64
KEPT = 100  # losses of a row
Batch = tuple[Tensor, Tensor]  # tokens and targets, both [B, T]


@dataclass(frozen=True)
class Question:
    """What is asked of every system: models of that size, trained for so many steps on ``batch`` windows of ``length``
    tokens each, then judged on documents ``times`` as long. buckets: of positions, that a length is cut into;
    documents: that are judged, at most."""

    width: int
    layers: int
    length: int
    times: int
    steps: int
    batch: int
    buckets: int
    documents: int


@dataclass(frozen=True)
class Run:
    """One model of a question."""

    system: str
    learning_rate: float
    seed: int


def config_of(asked: Question) -> Config:
    """The same width and depth for all."""
    heads = max(1, asked.width // HEAD)
    linear = {"gla_heads": max(1, heads // 2), "retention_heads": max(1, heads // 2)}
    hidden = math.ceil(asked.width * 8 / 3 / 64) * 64
    return Config(
        layers=asked.layers, width=asked.width, hidden=hidden, attention_heads=heads, vocabulary=VOCABULARY, **linear
    )


class Trainer(Learner[Batch]):
    """A model of a question."""

    def __init__(self, asked: Question, run: Run, device: torch.device) -> None:
        def model() -> LanguageModel:
            return LanguageModel(config_of(asked), run.system, asked.times * asked.length)

        super().__init__(model, asked.steps, run.learning_rate, run.seed, device)

    def loss(self, batch: Batch) -> Tensor:
        return self.model.loss(*batch)

    @torch.no_grad()
    def losses(self, documents: Tensor, tokens: int) -> Tensor:
        """The loss at each position of documents [n, T + 1], [n, T] in float32, some ``tokens`` at a time."""
        count = max(1, tokens // (documents.shape[1] - 1))
        return torch.cat([self._losses(some.to(self.device).long()) for some in documents.split(count)])

    def _losses(self, documents: Tensor) -> Tensor:
        logits, targets = self.model(documents[:, :-1]), documents[:, 1:]
        return F.cross_entropy(logits.float().mT, targets, reduction="none")


def rows_of(text: bytes, length: int, most: int) -> Tensor:
    """The text cut into rows of length + 1 bytes, uint8, what is left over left out. ValueError where it has none."""
    count = min(len(text) // (length + 1), most)
    if count < 2:
        raise ValueError(f"length: expected two documents of {length + 1} bytes in {len(text)} held out")
    return torch.frombuffer(bytearray(text[: count * (length + 1)]), dtype=torch.uint8).view(count, length + 1)


def by_position(losses: Tensor, bucket: int) -> dict[str, list[float]]:
    """Means of losses [n, T] over buckets of so many positions, the error of each mean from document to document, and
    where each bucket ends."""
    each = losses.double().unflatten(1, (-1, bucket)).mean(-1)
    ends = [bucket * (i + 1) for i in range(each.shape[1])]
    error = each.std(0) / math.sqrt(len(each))
    return {"positions": ends, "loss": each.mean(0).tolist(), "standard_error": error.tolist()}


def trained(asked: Question, run: Run, corpus: Corpus, device: torch.device, graphs: bool) -> Row:
    """What came of a model: its loss and times."""
    start = time.perf_counter()
    short = rows_of(corpus.held_out, asked.length, asked.times * asked.documents)
    documents = rows_of(corpus.held_out, asked.times * asked.length, asked.documents)
    trainer = Trainer(asked, run, device)
    text = torch.frombuffer(bytearray(corpus.training), dtype=torch.uint8).to(device)
    generator = torch.Generator(device).manual_seed(run.seed)
    offsets = torch.arange(asked.length + 1, device=device)

    def draw() -> Batch:
        """Windows that begin anywhere: the same for every model of that seed."""
        starts = torch.randint(len(text) - asked.length, (asked.batch, 1), generator=generator, device=device)
        found = text[starts + offsets].long()
        return found[:, :-1].contiguous(), found[:, 1:].contiguous()

    stepper = Stepper(trainer, draw)
    if graphs and device.type == "cuda":
        stepper.capture()
    trainer.forget()
    synchronize(device)
    ready = time.perf_counter()
    losses = []
    for step in range(asked.steps):
        trainer.set_rate(step)
        losses.append(stepper())
    kept = torch.stack(losses).tolist()
    done = time.perf_counter()
    row: Row = {"config": asdict(config_of(asked)), "parameters": trainer.model.parameter_count}
    row |= {"implementation": implementation(run.system, device)}
    row |= {"losses": kept[:: max(1, len(kept) // KEPT)], "ready_s": ready - start, "training_s": done - ready}
    # at the length of training, by which learning rates are chosen, and by position beyond it
    tokens = asked.batch * asked.length
    row |= {"validation_loss": trainer.losses(short, tokens).mean().item(), "documents": len(documents)}
    return row | by_position(trainer.losses(documents, tokens), asked.length // asked.buckets)


__all__ = ["Question", "Run", "Trainer", "by_position", "config_of", "rows_of", "trained"]
