"""What programs that train models to see what these learn have in common: weights in float32 beside a model in bf16, a
learning rate that rises and falls, and steps as CUDA graphs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from glabench.systems.models.model import LanguageModel

WARMUP = 0.1  # of all steps the learning rate rises, then it falls by a cosine to 0
WEIGHT_DECAY, MOST_GRADIENT = 0.1, 1.0  # of AdamW, and the norm that gradients are clipped to
BEFORE_GRAPH = 3  # steps that compile kernels and settle what they allocate

Batch = TypeVar("Batch", bound=tuple[Tensor, ...])


class Learner(Generic[Batch]):
    """A model in bf16, of whose weights the optimizer has copies in float32. On a CPU, where Triton's interpreter has
    no products in bf16, all is in float32.

    steps: of the whole training; top: the highest learning rate; seed: of the weights.
    """

    def __init__(
        self, model: Callable[[], LanguageModel], steps: int, top: float, seed: int, device: torch.device
    ) -> None:
        self.steps, self.top, self.device = steps, top, device
        torch.manual_seed(seed)
        with device:
            self.model = model()
        self.master = [p.detach().clone().requires_grad_() for p in self.model.parameters()]
        self.gradients = [torch.zeros_like(weight) for weight in self.master]
        for weight, gradient in zip(self.master, self.gradients, strict=True):
            weight.grad = gradient
        if device.type == "cuda":
            self.model.to(torch.bfloat16)
        self.rate = torch.zeros((), device=device)
        self.optimizer = torch.optim.AdamW(
            self.master, lr=self.rate, weight_decay=WEIGHT_DECAY, fused=True, capturable=device.type == "cuda"
        )

    def loss(self, batch: Batch) -> Tensor:
        """The mean loss of a batch, float32."""
        raise NotImplementedError

    def set_rate(self, step: int) -> None:
        """The learning rate of a step."""
        rising = max(1, round(WARMUP * self.steps))
        along = max(0.0, (step - rising) / max(1, self.steps - rising))
        self.rate.fill_(self.top * min((step + 1) / rising, 0.5 + 0.5 * math.cos(math.pi * along)))

    def step(self, batch: Batch) -> Tensor:
        """One step, queued; the loss before it."""
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


@dataclass
class Stepper(Generic[Batch]):
    """Steps on batches as ``draw`` gives them: a CUDA graph of one, replayed, or the steps themselves."""

    learner: Learner[Batch]
    draw: Callable[[], Batch]
    graph: torch.cuda.CUDAGraph | None = None
    batch: Batch | None = None
    loss: Tensor | None = None

    def capture(self) -> None:
        """Make the graph, after steps at the learning rate of the moment, which is 0 until `Learner.set_rate`."""
        self.batch = self.draw()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(BEFORE_GRAPH):
                self.learner.step(self.batch)
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.loss = self.learner.step(self.batch)

    def __call__(self) -> Tensor:
        """A step on a new batch; its loss."""
        new = self.draw()
        if self.graph is None or self.batch is None or self.loss is None:
            return self.learner.step(new)
        for old, value in zip(self.batch, new, strict=True):
            old.copy_(value)
        self.graph.replay()
        return self.loss.clone()


__all__ = ["BEFORE_GRAPH", "Learner", "Stepper"]
