"""Where the GPU time of a step of training goes, by groups of kernels."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable

import torch

from glabench.run.gpu_events import Event, gpu_events
from glabench.run.train import Trainer, synchronize

OPERATOR = "operator"
LAYERS = ("gla_kernels.low_rank",)  # modules of kernels that a layer has beside its operator
# The first group with a word that is part of the kernel's name in lower case. What is in none is "other".
GROUPS = {
    "loss": ("softmax", "nll_loss"),  # compiled or not
    "compiled, not products": ("triton_",),  # before others: these names list what they fuse
    OPERATOR: ("flash", "fmha", "chunk_"),  # attention's, and those of FLA
    "optimizer": ("adam", "multi_tensor"),
    "matrix products": ("gemm", "nvjet", "cutlass", "xmma", "splitk"),
    "norms": ("norm",),
    "elementwise, reductions and copies": ("at::native", "memcpy", "memset", "gates_"),  # the layer's gates
}


def kernel_ms(trainer: Trainer, operator: frozenset[str]) -> dict[str, float]:
    """GPU milliseconds of one step by group, the longest first. operator: names of kernels that are the operator's."""
    synchronize(trainer.device)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        trainer.step()
        synchronize(trainer.device)
    return grouped(gpu_events(profiler.events() or ()), operator)


def grouped(events: Iterable[Event], operator: frozenset[str]) -> dict[str, float]:
    """The events' milliseconds by group, the longest first."""
    found = defaultdict[str, float](float)
    for event in events:
        found[OPERATOR if event.name in operator else _group(event.name.lower())] += event.dur_us / 1e3
    return dict(sorted(found.items(), key=lambda item: item[1], reverse=True))


def _group(name: str) -> str:
    return next((group for group, words in GROUPS.items() if any(word in name for word in words)), "other")


def our_kernels() -> frozenset[str]:
    """Names of the kernels of ``gla_kernels`` that are imported, but for the layer's own: what has run is among them,
    whatever its schedule and however documents are packed."""
    from triton.runtime.jit import KernelInterface  # of the compiler and of the interpreter

    modules = list(sys.modules.items())
    ours = [vars(module) for name, module in modules if name.startswith("gla_kernels.") and name not in LAYERS]
    return frozenset(x.fn.__name__ for names in ours for x in names.values() if isinstance(x, KernelInterface))


__all__ = ["grouped", "kernel_ms", "our_kernels"]
