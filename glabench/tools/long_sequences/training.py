"""Steps on a long sequence, whole or by segments, and what a forward pass by segments makes of the logits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from glabench.run.train import SETTLING, Trainer, batch_of, forget_compiled, made, synchronize
from glabench.spec.models import CONFIGS
from glabench.systems.models.model import LanguageModel

SYSTEM = "gla"
WARM_UP = 3  # steps before memory is looked at: the first compiles


@dataclass(frozen=True)
class Way:
    """B sequences of T tokens, in so many segments; 1 is a whole sequence."""

    B: int
    T: int
    segments: int


class Segmented(Trainer):
    """A trainer whose step takes a sequence by segments: each is given the states after the one before, through which
    no gradient goes, and is done with, backward, before the next. One step of the optimizer follows them all."""

    segments = 1

    def _step(self) -> Tensor:
        whole, states = torch.zeros((), device=self.device), None
        for tokens, targets in parts(self.tokens, self.targets, self.segments):
            logits, after = self.model.continued(tokens, states)
            loss = self.model.criterion(logits, targets) / self.segments
            loss.backward()
            states = [state.detach() for state in after]
            whole = whole + loss.detach()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return whole


def parts(tokens: Tensor, targets: Tensor, segments: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Segments of a batch and what comes after each of their tokens, the next segment's first among it."""
    return zip(*(x.tensor_split(segments, 1) for x in (tokens, targets)), strict=True)


def model_of(name: str, way: Way, dtype: torch.dtype) -> Callable[[], LanguageModel]:
    """What makes the model of that size."""
    return lambda: LanguageModel(CONFIGS[name], SYSTEM, way.T).to(dtype)


def trainer_of(name: str, way: Way, device: torch.device, dtype: torch.dtype, compiled: bool) -> Trainer:
    """A trainer with its model, whose blocks and loss are compiled or not."""
    forget_compiled()
    maker = Trainer if way.segments == 1 else Segmented
    sizes = CONFIGS[name].vocabulary, way.B, way.T
    trainer = maker(model_of(name, way, dtype), *sizes, device, "compiled" if compiled and way.segments == 1 else None)
    if isinstance(trainer, Segmented):
        trainer.segments = way.segments
        if compiled:
            trainer.model.compile_parts(segments=True)
    return trainer


def timed(
    name: str, way: Way, device: torch.device, dtype: torch.dtype, compiled: bool, steps: int, rounds: int
) -> dict[str, Any]:
    """Samples of wall time, each of so many steps, peak memory, and the loss before the first step and after the last.
    The trainer is gone afterwards: two would not fit."""
    trainer = trainer_of(name, way, device, dtype, compiled)
    first, peak = float(trainer.step()), None
    if device.type == "cuda":
        for _ in range(WARM_UP - 1):
            trainer.step()
        synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        for _ in range(SETTLING):
            trainer.step()
        synchronize(device)
        peak = torch.cuda.max_memory_allocated(device)
    wall = [trainer.wall_ms(steps) for _ in range(rounds)]
    found = {"parameters": trainer.model.parameter_count, "wall_ms": wall, "peak_bytes": peak}
    return found | {"loss_first": first, "loss_last": float(trainer.step())}


@torch.no_grad()
def forward(name: str, way: Way, device: torch.device, dtypes: Sequence[torch.dtype]) -> dict[str, Any]:
    """How far logits by segments, and whole, are from whole ones in float32, and the mean loss of each segment, by
    dtype; float32 is to be the first. error: ||x - right|| / ||right||, most: the largest difference of a logit."""
    tokens, targets = batch_of(CONFIGS[name].vocabulary, way.B, way.T, device)
    found, right = dict[str, Any](), None
    for dtype in dict.fromkeys(dtypes):
        model = made(model_of(name, way, dtype), device)
        whole = model(tokens)
        right = whole if right is None else right
        both = {"whole": whole, "segments": by_segments(model, tokens, way.segments)}
        found[str(dtype).removeprefix("torch.")] = {
            how: apart(x, right) | {"losses": losses(x, targets, way.segments)} for how, x in both.items()
        }
    return found


def by_segments(model: LanguageModel, tokens: Tensor, segments: int) -> Tensor:
    """Logits of segments one after another, each from the states after the one before."""
    found, states = [], None
    for part in tokens.tensor_split(segments, 1):
        logits, states = model.continued(part, states)
        found.append(logits)
    return torch.cat(found, 1)


def apart(x: Tensor, right: Tensor) -> dict[str, float]:
    """The error of x, a row of the batch at a time: logits of 24,576 tokens are 3 GB in float32."""
    most, off, size = 0.0, 0.0, 0.0
    for one, other in zip(x.flatten(0, 1).split(1024), right.flatten(0, 1).split(1024), strict=True):
        difference = one.double() - other.double()
        most = max(most, float(difference.abs().max()))
        off, size = off + float(difference.square().sum()), size + float(other.double().square().sum())
    return {"error": (off / size) ** 0.5, "most": most}


def losses(logits: Tensor, targets: Tensor, segments: int) -> list[float]:
    """The mean loss of each segment."""
    pairs = zip(logits.tensor_split(segments, 1), targets.tensor_split(segments, 1), strict=True)
    return [F.cross_entropy(x.flatten(0, 1).float(), y.flatten()).item() for x, y in pairs]


__all__ = ["SYSTEM", "Segmented", "Way", "by_segments", "forward", "timed", "trainer_of"]
