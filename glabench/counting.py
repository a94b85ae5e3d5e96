"""Which of several rows of a case counts: the one that was started last, whatever it came to, so that no older time
hides a later crash. But a row that only says what its machine lacked, as a package that was not installed, says nothing
of the case: it counts where the case has no other.
"""

from __future__ import annotations

import re

from glabench.store import Row

# Of a row's environment: what the machine lacked, without which the system runs no case there. A row that says so was
# not run, and is "unsupported", or the import of a package failed as it ran, and it is "crashed", which counts.
LACKS = "lacks"
# How the reasons of such rows begin that are older than LACKS.
OLDER_REASON = re.compile(
    r"the package \S+ is not installed; |it needs an NVIDIA GPU; |helion \S+ cannot be imported beside torch "
)


def lacked(row: Row) -> bool:
    """Whether the row only says what its machine lacked. No lack is what a system answers by itself: that it does not
    take a shape, a mode or an architecture, which is the device's, and so another case."""
    if row.status != "unsupported":
        return False
    return LACKS in row.environment or OLDER_REASON.match(row.reason or "") is not None


def outweighs(row: Row, earlier: Row) -> bool:
    """Whether a row counts in place of one that was written before it, of the same case on the same device."""
    return (not lacked(row), row.started) >= (not lacked(earlier), earlier.started)
