"""A group of ranks: who there is, whether they make the same call, and what each gathers of the others."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..ops.form import Inputs, output_shape
from .peers import exchange_for

# What has to be the same on all ranks, as whole numbers. T is not of it, and nothing sent depends on it.
FIELDS = ("B", "H", "K", "V", "dtype", "g", "gv", "sequences", "state_v_first", "gradients")
KINDS = (None, torch.float32, torch.float16, torch.bfloat16)

_agreed: weakref.WeakKeyDictionary[Any, set[tuple[int, ...]]] = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class Ranks:
    """The ranks of a process group, and this one among them."""

    group: Any
    rank: int
    size: int

    @classmethod
    def of(cls, group: Any) -> Ranks:
        """Raises ValueError for what is no group that this process is in."""
        if not dist.is_available() or not dist.is_initialized():
            raise ValueError("group: expected torch.distributed to be initialized (init_process_group), and it is not")
        group = dist.group.WORLD if group is None else group
        if not isinstance(group, dist.ProcessGroup):
            raise ValueError(
                f"group: expected a process group of torch.distributed that this rank is in, got {group!r:.60}"
            )
        return cls(group, dist.get_rank(group), dist.get_world_size(group))

    @property
    def first(self) -> bool:
        return self.rank == 0

    @property
    def last(self) -> bool:
        return self.rank == self.size - 1

    def gathered(self, x: Tensor) -> Tensor:
        """[ranks, n] of x [n], which is of one size and dtype on all ranks."""
        exchange = exchange_for(self.group, self.rank, self.size, x)
        return self.all_gathered(x) if exchange is None else exchange(x)

    def all_gathered(self, x: Tensor) -> Tensor:
        """The same by `torch.distributed`."""
        found = x.new_empty(self.size * x.numel())
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # its name until torch 2.12
        gather(found, x.contiguous(), group=self.group)
        return found.view(self.size, -1)

    def agree(self, x: Inputs, v_first: bool, differentiated: bool) -> None:
        """Raises ValueError where another rank's call is of another kind: other sizes would be gathered as garbage.
        Waits for the GPU, once for each kind of call."""
        K, (B, _, H, _) = x.q.shape[-1], output_shape(x)
        kinds = [KINDS.index(None if y is None else y.dtype) for y in (x.q, x.g, x.gv)]
        sequences = 0 if x.cu_seqlens is None else x.cu_seqlens.shape[0] - 1
        mine = (B, H, K, x.v.shape[-1], *kinds, sequences, int(v_first), int(differentiated))
        known = _agreed.setdefault(self.group, set())
        if mine in known:
            return
        theirs = self.all_gathered(torch.tensor(mine, device=x.q.device)).tolist()
        for rank, other in enumerate(theirs):
            for name, here, there in zip(FIELDS, mine, other, strict=True):
                if here != there:
                    raise ValueError(_unlike(name, self.rank, here, rank, there))
        known.add(mine)


def _unlike(name: str, rank: int, here: int, other: int, there: int) -> str:
    values: Sequence[Any] = (here, there)
    if name in ("dtype", "g", "gv"):
        values = [KINDS[value] for value in values]
    return (
        f"group: expected the same call on all ranks, got {name} {values[0]} on rank {rank} and {values[1]} on {other}"
    )
