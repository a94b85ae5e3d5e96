"""A kernel's bytes: what the model expects at HBM and L2 against what ncu counted, and what explains the difference."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from glabench.analysis.bounds import number, ratio
from glabench.analysis.profile import Call, Kernel

AGREES = 0.10  # of the expected bytes
SMALL = 0.02  # of them: a difference that needs no explanation of its own

# What explains a difference, with the bytes concerned.
WITHIN = "within"
WRITES_IN_L2 = "writes_in_l2"  # still there when the kernel ended
WRITES_LOST = "writes_lost"  # fewer than expected by more than L2 holds
WRITES_SPILLED = "writes_spilled"  # more than expected, by a kernel whose registers spill to local memory
WRITES_MORE = "writes_more"
READS_IN_L2 = "reads_in_l2"  # expected to be read from HBM again, found in L2
READS_LOST = "reads_lost"  # even what has to be read once did not come from HBM
READS_SPILLED = "reads_spilled"  # more than expected, of spilled registers or of what is asked for several times
READS_MISSED = "reads_missed"  # asked for several times, and read from HBM again
READS_MORE = "reads_more"  # nothing asks for a byte twice, and yet
REREADS = "rereads"  # asked for several times, and read from HBM once, as expected


@dataclass(frozen=True)
class Traffic:
    """Bytes of one kernel in one call; NaN where ncu counted nothing."""

    call: Call
    kernel: Kernel

    def _expected(self, name: str) -> float:
        return number(self.kernel.work.get(name))

    def _counted(self, name: str) -> float:
        return self.kernel.count * number(self.kernel.counters.get(name))  # ncu looks at one launch

    @property
    def compulsory(self) -> float:
        return self._expected("read_bytes") + self._expected("write_bytes")

    @property
    def expected_read(self) -> float:
        return self._expected("hbm_read_bytes")

    @property
    def expected_write(self) -> float:
        return self._expected("hbm_write_bytes")

    @property
    def requested(self) -> float:
        return self._expected("requested_bytes")

    @property
    def read(self) -> float:
        return self._counted("hbm_read_bytes")

    @property
    def write(self) -> float:
        return self._counted("hbm_write_bytes")

    @property
    def l2(self) -> float:
        return self._counted("l2_read_bytes") + self._counted("l2_write_bytes")

    @property
    def hits(self) -> float:
        """The share of what is asked of L2 that it had."""
        return number(self.kernel.counters.get("l2_hit_share"))

    @property
    def difference(self) -> float:
        """Counted at HBM over expected, less one; NaN without counters."""
        return ratio(self.read + self.write, self.kernel.hbm_bytes) - 1

    @property
    def spills(self) -> bool:
        """Whether registers spill: local memory passes through L2, and what L2 gives up of it goes to HBM."""
        return number(self.kernel.compiled.get("spill_bytes")) > 0

    @property
    def rereads(self) -> float:
        """Bytes that loads ask for beyond those that each have to be read once."""
        return max(0.0, self.requested - self.compulsory)

    def explained(self) -> list[tuple[str, float]]:
        """What happened, as (one of the constants above, bytes), the verdict first; nothing without counters."""
        if math.isnan(self.difference):
            return []
        found = [(WITHIN, 0.0)] if abs(self.difference) <= AGREES else []
        least = SMALL * self.kernel.hbm_bytes
        return found + self._writes(least) + self._reads(least)

    def _writes(self, least: float) -> list[tuple[str, float]]:
        more = self.write - self.expected_write
        if abs(more) <= least:
            return []
        if more > 0:
            return [(WRITES_SPILLED if self.spills else WRITES_MORE, more)]
        room = number(self.call.ceilings.get("l2_bytes"))
        return [(WRITES_LOST if -more > room else WRITES_IN_L2, -more)]

    def _reads(self, least: float) -> list[tuple[str, float]]:
        more = self.read - self.expected_read
        if more > least and self.spills:
            return [(READS_SPILLED, more)]
        if more > least:
            return [(READS_MISSED if self.rereads > least else READS_MORE, more)]
        again = self.expected_read - self._expected("read_bytes")  # what the model expects to be read anew
        if more < -least:
            return [(READS_IN_L2 if again > 0 else READS_LOST, -more)]
        return [(REREADS, self.rereads)] if self.rereads > least and again <= least else []


def traffic(found: Iterable[Call]) -> list[Traffic]:
    """Of every kernel whose work is known."""
    return [Traffic(call, kernel) for call in found for kernel in call.kernels if kernel.work]
