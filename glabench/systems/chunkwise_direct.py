"""Chunkwise GLA without sub-chunks."""

from __future__ import annotations

from glabench.spec.case import Case
from glabench.systems.baseline import Baseline

CHUNKS = (16, 32, 64)


class ChunkwiseDirect(Baseline):
    """`baselines.chunkwise_direct`: scores inside a chunk element by element, so that chunks are small."""

    form = "chunkwise_direct:CHUNKWISE_DIRECT"

    def refusal(self, case: Case) -> str | None:
        if case.chunk not in CHUNKS:
            return f"without sub-chunks chunk is one of {', '.join(map(str, CHUNKS))}, not {case.chunk}"
        return None
