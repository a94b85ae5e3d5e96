"""How far an output is from the right one: relative to its own norm, as a whole and block of rows by block of rows.

Outputs are those of sampled (batch, head) pairs side by side: ``[1,T,P,D]``, states ``[1,P,K,V]``, whose rows are those
of K, and the output of one step ``[1,P,V]``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

BLOCK = 16  # rows that are compared together


@dataclass(frozen=True)
class Distance:
    """``||x - ref|| / ||ref||`` of the worst pair, and of the worst block of 16 rows of any pair."""

    whole: float
    block: float


def block_norms(x: torch.Tensor, name: str) -> torch.Tensor:
    """Squared norms ``[P, blocks]`` of blocks of 16 rows, in float64."""
    if x.dim() == 3:
        x = x.unsqueeze(1)
    rows = x[0] if "state" in name else x[0].transpose(0, 1)
    squares = rows.double().square().sum(-1)
    padded = torch.nn.functional.pad(squares, (0, -squares.shape[1] % BLOCK))
    return padded.unflatten(1, (-1, BLOCK)).sum(-1)


def sizes(ref: torch.Tensor, name: str, dtype: torch.dtype, terms: torch.Tensor | None = None) -> torch.Tensor:
    """What the errors of an output are measured against: the squared norms of its blocks, with two exceptions.

    dg is a sum of differences of q*dq and k*dk, which cancel under strong gates: it is measured against half the norm
    of ``terms``, q*dq, at least, and so is dgv, of do*o. And nothing is measured against less than the dtype's smallest
    normal number, which is as good as zero.
    """
    found = block_norms(ref, name)
    if terms is not None:
        found = torch.maximum(found, block_norms(terms, name) / 4)
    return found.clamp_min(torch.finfo(dtype).tiny ** 2)


def distance(x: torch.Tensor, ref: torch.Tensor, size: torch.Tensor, name: str) -> Distance:
    """How far ``x`` is from ``ref``. A block smaller than the pair's mean block is measured against that."""
    apart = block_norms(x.double() - ref.double(), name)
    whole = (apart.sum(1) / size.sum(1)).sqrt()
    block = (apart / torch.maximum(size, size.mean(1, keepdim=True))).sqrt()
    return Distance(float(whole.max()), float(block.max()))
