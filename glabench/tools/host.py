"""Where Python's time goes in an eager call of ``gla``: ``python -m glabench.tools.host``. Needs a GPU.

For one shape, medians over calls on an idle GPU, in turns with PyTorch's FlashAttention-2: how long Python takes to
queue a forward and a backward pass, and where in gla that is. Then each pass's launches as the driver takes them, one
by one and as a CUDA graph: what they take Python to queue, and the GPU to run, on the memory of the last call.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from statistics import median
from typing import Annotated, Any
from unittest.mock import patch

import torch
import typer
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import logsigmoid, scaled_dot_product_attention

from gla_kernels import gla
from gla_kernels.launch import cuda
from gla_kernels.launch.image import Bound, Image, make
from gla_kernels.ops import autograd
from gla_kernels.ops.prepared import Prepared
from glabench.hardware.environment import detect_device
from glabench.run.memory import no_collection

PARTS = (
    "until the forward pass runs", "in the forward pass", "until autograd's thread is in the backward pass",
    "in the backward pass", "until the call is back",
)  # fmt: skip
MOST_ATTENDED = 256  # columns of a head of FlashAttention-2
WARM_CALLS = 20  # compile, and meet addresses that come back
IN_A_ROW, SPIN_CYCLES = 10, 20_000_000  # firings between two events, and how long the GPU spins while they are queued

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def host(
    shape: Annotated[str, typer.Option(help="B,T,H,K,V.")] = "8,1024,8,64,64",
    calls: Annotated[int, typer.Option(help="Calls, of which medians are shown.", min=1)] = 60,
) -> None:
    """Say where Python's time goes in an eager call. Exit code: 0 done; 2 bad input, or no GPU."""
    words = shape.split(",")
    if len(words) != 5 or not all(word.isdecimal() and int(word) for word in words):
        raise typer.BadParameter(f"expected B,T,H,K,V, five numbers above 0, got {shape!r}", param_hint="--shape")
    if detect_device() != "cuda":
        typer.echo("error: there is no usable NVIDIA GPU here, whose launches Python's time goes into", err=True)
        raise typer.Exit(2)
    watch = Watch()
    typer.echo("\n".join(report(*measure([int(word) for word in words], calls, watch))))
    for name, (image, addresses) in zip(("forward", "backward"), watch.fired, strict=False):
        typer.echo("\n".join(launched(name, Bound(image, addresses), calls)))


class Watch:
    """Notes of a call of ``gla``: when its passes began and ended, in ns, and what they fired at which addresses."""

    def __init__(self) -> None:
        self.at: list[int] = []
        self.fired: list[tuple[Image, tuple[int, ...]]] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Take notes meanwhile."""
        fire = Image.fire

        def stamped(function: Callable[..., Any]) -> Callable[..., Any]:
            def run(*given: Any) -> Any:
                start = time.perf_counter_ns()
                found = function(*given)
                self.at += [start, time.perf_counter_ns()]
                return found

            return run

        def noted(image: Image, addresses: tuple[int, ...]) -> None:
            self.fired.append((image, addresses))
            fire(image, addresses)

        forward = patch.object(Prepared, "forward", stamped(Prepared.forward))
        backward = patch.object(autograd, "_gradients", stamped(autograd._gradients))
        with forward, backward, patch.object(Image, "fire", noted):
            yield


def queued(forward: Callable[[], Tensor], given: Sequence[Tensor], do: Tensor, watch: Watch) -> list[float]:
    """Microseconds in which Python queues a forward and a backward pass; then those of PARTS, if gla is called."""
    watch.at, watch.fired = [], []
    start = time.perf_counter_ns()
    o = forward()
    between = time.perf_counter_ns()
    _grads = torch.autograd.grad(o, given, do)
    end = time.perf_counter_ns()
    parts = (after - before for before, after in pairwise((start, *watch.at, end)))
    return [ns / 1e3 for ns in (between - start, end - between, *parts)]


def measure(sizes: Sequence[int], calls: int, watch: Watch) -> tuple[list[list[float]], list[list[float]]]:
    """What is `queued` by calls of gla and of attention, in turns, on the current CUDA device."""
    B, T, H, K, V = sizes
    q, k, g, v = (torch.randn(B, T, H, n, device="cuda", dtype=torch.bfloat16) for n in (K, K, K, V))
    a, b, c = (torch.randn(B, H, T, min(V, MOST_ATTENDED), device="cuda", dtype=torch.bfloat16) for _ in range(3))
    x, y = ([one.requires_grad_() for one in given] for given in ((q, k, v, logsigmoid(g)), (a, b, c)))
    do, d_attended, ours, theirs = torch.randn_like(v), torch.randn_like(a), list[list[float]](), list[list[float]]()
    with watch.watching(), sdpa_kernel(SDPBackend.FLASH_ATTENTION), no_collection():
        for _ in range(WARM_CALLS + calls):
            torch.cuda.synchronize()
            ours.append(queued(lambda: gla(q, k, v, x[3])[0], x, do, watch))
            torch.cuda.synchronize()
            theirs.append(queued(lambda: scaled_dot_product_attention(a, b, c, is_causal=True), y, d_attended, Watch()))
    return ours[WARM_CALLS:], theirs[WARM_CALLS:]


def report(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> list[str]:
    """Lines of medians of what was `queued`."""
    (forward, backward, *parts), rival = ([median(each) for each in zip(*one, strict=True)] for one in (ours, theirs))
    return [
        f"{'queued in, us':<50}{'forward':>10}{'backward':>10}",
        f"{'gla':<50}{forward:10.1f}{backward:10.1f}",
        f"{'FlashAttention-2 of PyTorch':<50}{rival[0]:10.1f}{rival[1]:10.1f}",
        *(f"  {name:<48}{us:10.1f}" for name, us in zip(PARTS, parts, strict=True)),
    ]


def launched(name: str, bound: Bound, calls: int) -> list[str]:
    """Lines about a pass's launches, one by one and as a graph."""
    graph, launch = cuda.Graph(bound._fire_on), cuda.driver().cuGraphLaunch
    ways = {"one by one": lambda: make(bound.calls), "as a graph": lambda: cuda.check(launch(graph.made, bound.stream))}
    return [
        f"{f'{name}: {len(bound.calls)} launches, us':<50}{'host':>10}{'GPU':>10}",
        *("  {:<48}{:10.1f}{:10.1f}".format(way, *_us_of(fire, calls)) for way, fire in ways.items()),
    ]


def _us_of(fire: Callable[[], None], calls: int) -> tuple[float, float]:
    """What one firing takes the host, the median of some, and the GPU, of several in a row."""
    host_us = []
    for _ in range(calls):
        torch.cuda.synchronize()
        before = time.perf_counter_ns()
        fire()
        host_us.append((time.perf_counter_ns() - before) / 1e3)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(SPIN_CYCLES)
    start.record()
    for _ in range(IN_A_ROW):
        fire()
    end.record()
    end.synchronize()
    return median(host_us), 1e3 * start.elapsed_time(end) / IN_A_ROW


if __name__ == "__main__":
    app()
