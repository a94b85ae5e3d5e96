"""The SM clock during a call, counted by the GPU itself.

What NVML reads is of one moment, and of a call of a millisecond it is mostly another moment. So a kernel of one thread
before the call and one after it note how many cycles their SM has counted (PTX's ``%clock64``) and what time it is
(``%globaltimer``, in ns): cycles over time is the clock at which the call ran. nvbench watches for throttling in the
same way.
"""

# mypy: disallow-untyped-defs=False

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import globaltimer, smid


@dataclass(frozen=True)
class Counted:
    """SM cycles, and the nanoseconds that they took."""

    cycles: int = 0
    ns: int = 0

    @classmethod
    def sum(cls, parts: Iterable[Counted]) -> Counted:
        parts = list(parts)
        return cls(sum(part.cycles for part in parts), sum(part.ns for part in parts))

    @property
    def mhz(self) -> float | None:
        """The mean clock; None where nothing was counted."""
        return 1000 * self.cycles / self.ns if self.ns > 0 else None


NOTHING = Counted()


@triton.jit(do_not_specialize=["index"])
def note_kernel(notes, index):
    """notes: int64 [n, 3], whose row ``index`` becomes this SM's number, its cycles, and the time in ns."""
    row = notes + 3 * index
    cycles = tl.inline_asm_elementwise("mov.u64 $0, %clock64;", "=l", [], dtype=tl.int64, is_pure=False, pack=1)
    tl.store(row + 1, cycles)
    tl.store(row + 2, globaltimer())
    tl.store(row, smid().to(tl.int64))


class Notes:
    """Notes before and after each of ``count`` calls on the current CUDA device."""

    def __init__(self, count: int) -> None:
        self._notes = torch.zeros(2 * count, 3, dtype=torch.int64, device="cuda")
        # launched by what Triton compiled: to find that again each time would take Python longer than to launch it
        self._note = note_kernel[(1,)](self._notes, 0, num_warps=1)[1, 1, 1]

    def take(self, index: int) -> None:
        """Queue the note before the call ``index // 2``, or after it when ``index`` is odd."""
        self._note(self._notes, index)

    def counted(self) -> Counted:
        """During all of the calls, once the GPU is done. Without a call whose notes were taken on two SMs: each counts
        from a start of its own."""
        notes = self._notes.tolist()
        return counted(zip(notes[::2], notes[1::2], strict=True))


def counted(calls: Iterable[tuple[list[int], list[int]]]) -> Counted:
    """Of the notes (SM, cycles, ns) before and after each call."""
    return Counted.sum(
        Counted(after[1] - before[1], after[2] - before[2]) for before, after in calls if before[0] == after[0]
    )
