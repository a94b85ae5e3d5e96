"""What gla() itself runs for a workload, with the schedule and the tiles that it chooses."""

from __future__ import annotations

from gla_kernels import Launch, Machine, Workload, chosen
from gla_kernels.apply import launches_of


def shipped_launches(work: Workload, capability: int, initial_state: bool = False) -> dict[str, Launch]:
    """The launches by pass, on meta tensors, on any GPU of that compute capability."""
    return launches_of(work, chosen(work, Machine(capability)).plan, initial_state)
