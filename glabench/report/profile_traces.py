"""Traces to download: in the page itself where they are small, else the name of the file beside the rows."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass

from glabench.analysis.profile import Call
from glabench.report import profile_text

LARGEST = 300_000  # bytes of one trace
MOST = 2_000_000  # of all in one page


@dataclass(frozen=True)
class Trace:
    """A trace: its file's name, the case it is of, and its content as a data: address, "" where the page lacks it."""

    name: str
    case: str
    said: str  # its size, or why it is not here
    address: str


def traces(found: Sequence[Call]) -> list[Trace]:
    """Of every case that has one, in their order."""
    room, done = MOST, []
    for call in found:
        if call.trace is None:
            continue
        where = f"{call.trace.parent.name}/{call.trace.name}"
        try:
            content = call.trace.read_bytes() if call.trace.stat().st_size <= min(LARGEST, room) else None
            size = profile_text.bytes_(call.trace.stat().st_size)
        except OSError:
            done.append(Trace(call.trace.name, profile_text.asked(call), f"not found at {where}", ""))
            continue
        if content is None:
            done.append(Trace(call.trace.name, profile_text.asked(call), f"{size}, in {where}", ""))
            continue
        room -= len(content)
        address = f"data:application/gzip;base64,{base64.b64encode(content).decode()}"
        done.append(Trace(call.trace.name, profile_text.asked(call), size, address))
    return done
