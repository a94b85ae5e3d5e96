"""What a call's kernels take by themselves: replays of a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable


def replayed(call: Callable[[], object], replays: int) -> Callable[[], float]:
    """sample() -> ms of a call that is captured as a graph: the mean of so many replays behind one more. What the call
    reads has to live as long as it does, and it lives as long as ``sample``."""
    import torch

    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())  # which may still make what the call reads
    with torch.cuda.stream(stream):
        call()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        result = call()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def sample() -> float:
        graph.replay()
        start.record()
        for _ in range(replays):
            graph.replay()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / replays

    sample.held = call, result  # type: ignore[attr-defined]  # what the graph reads and writes
    return sample
