"""The SM clock during a call, counted by the GPU itself.

What NVML reads is of one moment, and of a call of a millisecond it is mostly another moment. So a kernel before the
call and one after it, of a program an SM, note how many cycles each SM has counted (PTX's ``%clock64``) and what time
it is (``%globaltimer``, in ns): cycles over time is the clock at which the call ran, as nvbench watches it on one SM.
Here it is the mean over SMs: under load they run at eight clocks (one a GPC, it seems), up to 2 % apart on an H100.
"""

# mypy: disallow-untyped-defs=False

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import globaltimer, smid


@dataclass(frozen=True)
class Counted:
    """SM cycles, and the nanoseconds that they took, summed over SMs."""

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
SMS = 1024  # more than %smid can be on any GPU


@triton.jit(do_not_specialize=["after"])
def note_kernel(table, after):
    """table: int64 [SMS, 4] of a call, a row an SM: its cycles and the time in ns before the call, and the cycles and
    the ns that the call took. Without a note before it (0 ns), one ``after`` a call says nothing."""
    row = table + 4 * smid().to(tl.int64)
    cycles = tl.inline_asm_elementwise("mov.u64 $0, %clock64;", "=l", [], dtype=tl.int64, is_pure=False, pack=1)
    ns = globaltimer()
    if after:
        before_ns = tl.load(row + 1)
        if before_ns != 0:
            tl.store(row + 2, tl.load(row + 2) + cycles - tl.load(row))
            tl.store(row + 3, tl.load(row + 3) + ns - before_ns)
            tl.store(row + 1, 0)
    else:
        tl.store(row, cycles)
        tl.store(row + 1, ns)


class Notes:
    """Notes before and after each of some calls on the current CUDA device."""

    def __init__(self) -> None:
        programs = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
        self.clear(1)
        # launched by what Triton compiled: to find that again each time would take Python longer than to launch it
        self._note = note_kernel[(programs,)](self._tables[0], 1, num_warps=1)[programs, 1, 1]

    def clear(self, calls: int) -> None:
        """Begin anew, with so many calls."""
        self._all = torch.zeros(calls, SMS, 4, dtype=torch.int64, device="cuda")
        self._tables = self._all.unbind()

    def before(self, index: int) -> None:
        """Queue a note before call ``index``."""
        self._note(self._tables[index], 0)

    def after(self, index: int) -> None:
        """Queue the note after it."""
        self._note(self._tables[index], 1)

    def counted(self, calls: Sequence[bool]) -> Counted:
        """During those calls that are true in ``calls``, once the GPU is done."""
        took = self._all[:, :, 2:].sum(1).tolist()
        return Counted.sum(Counted(cycles, ns) for (cycles, ns), one in zip(took, calls, strict=True) if one)
