"""Sequences of multi-query associative recall, as section 3 and appendix E of its paper have them (Arora et al. 2023,
arXiv 2312.04927): pairs of a key and its value first, then every key once more, at which its value is to be told."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

POWER = 0.01  # of the power law by which queries come soon after the pairs
FILLER = 0  # the token between queries


class Batch(NamedTuple):
    """tokens [B, T]; queries [B, pairs], where in its row each key stands for the second time; values [B, pairs], what
    is to be told there."""

    tokens: Tensor
    queries: Tensor
    values: Tensor


def draw(length: int, pairs: int, vocabulary: int, count: int, generator: torch.Generator) -> Batch:
    """``count`` sequences on the generator's device. Keys are below vocabulary / 2 and not FILLER, values from there
    on, none twice in a sequence. Needs 4 pairs <= length and 2 pairs < vocabulary: see `question.Task`."""
    half = vocabulary // 2
    keys = _distinct(count, half - 1, pairs, generator) + 1
    values = _distinct(count, vocabulary - half, pairs, generator) + half
    queries = 2 * pairs + 2 * _gaps((length - 2 * pairs) // 2, count, pairs, generator)
    tokens = torch.full((count, length), FILLER, device=generator.device)
    tokens[:, 0 : 2 * pairs : 2], tokens[:, 1 : 2 * pairs : 2] = keys, values
    tokens.scatter_(1, queries, keys)
    return Batch(tokens, queries, values)


def _distinct(count: int, of: int, pairs: int, generator: torch.Generator) -> Tensor:
    """``pairs`` different numbers below ``of``, in any order: [count, pairs]."""
    return torch.rand(count, of, generator=generator, device=generator.device).topk(pairs).indices


def _gaps(space: int, count: int, pairs: int, generator: torch.Generator) -> Tensor:
    """Different places below ``space``, drawn one after another with chances by the power law: [count, pairs].

    The largest sums of log chances and Gumbel noise are such draws, in their order.
    """
    chances = torch.arange(1, space + 1, device=generator.device) ** (POWER - 1)
    noise = torch.rand(count, space, generator=generator, device=generator.device).clamp_min(1e-30)
    return (chances.log() - (-noise.log()).log()).topk(pairs).indices


__all__ = ["FILLER", "Batch", "draw"]
