"""What ranks of a test do, in a file that their processes find: its folder is on the path, and it needs nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def last_is_out_of_memory(question: Any, rank: int, report: Callable[[Any], None]) -> None:
    """The others wait for it inside a collective."""
    import torch
    import torch.distributed as dist

    report({"rank": rank})
    if rank == question.ranks - 1:
        raise torch.OutOfMemoryError("Tried to allocate 4.00 GiB. GPU 0 has a total capacity of 2.00 GiB")
    dist.barrier()
