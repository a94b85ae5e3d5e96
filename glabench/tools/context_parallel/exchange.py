"""Ways that messages go from rank to rank: as the package has it, or another that is put in its place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch.distributed as dist
from torch import Tensor

from gla_kernels.parallel.peers import exchange_for
from gla_kernels.parallel.ranks import Ranks

Gather = Callable[[Ranks, Tensor], Tensor]


@contextmanager
def going(way: str | None) -> Iterator[None]:
    """Meanwhile messages go so, one of `question.WAYS`; None: as the package decides."""
    if way is None:
        yield
        return
    with patch.object(Ranks, "gathered", GATHERS[way]):
        yield


def way_of(ranks: Ranks, x: Tensor) -> str:
    """Which way the package has for a message."""
    return "all-gather" if exchange_for(ranks.group, ranks.rank, ranks.size, x) is None else "direct"


def direct(ranks: Ranks, x: Tensor) -> Tensor:
    """Raises RuntimeError where the package would have another way."""
    exchange = exchange_for(ranks.group, ranks.rank, ranks.size, x)
    if exchange is None:
        raise RuntimeError(f"these ranks cannot exchange {x.nbytes} bytes directly")
    return exchange(x)


def ring(ranks: Ranks, x: Tensor) -> Tensor:
    """Each rank sends the next one what it has last received, its own message first."""
    found = x.new_empty(ranks.size, x.numel())
    found[ranks.rank] = x
    following, preceding = (dist.get_global_rank(ranks.group, (ranks.rank + step) % ranks.size) for step in (1, -1))
    for step in range(ranks.size - 1):
        out, into = found[(ranks.rank - step) % ranks.size], found[(ranks.rank - step - 1) % ranks.size]
        sent = dist.P2POp(dist.isend, out, following, ranks.group)
        received = dist.P2POp(dist.irecv, into, preceding, ranks.group)
        for work in dist.batch_isend_irecv([sent, received]):
            work.wait()
    return found


GATHERS: dict[str, Gather] = {"direct": direct, "all-gather": Ranks.all_gathered, "ring": ring}
