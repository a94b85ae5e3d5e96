"""Kernels that tune themselves at their first call, compiled ahead of it.

Triton's ``@autotune`` compiles one config after another, in the process that times cases: hundreds for a shape of FLA's
GLA, minutes in which the GPU waits. Here the first call is made beforehand, in as many processes as there are cores,
with an autotuner that compiles its configs and launches none. The processes share Triton's cache on the disk, and each
goes through the configs in an order of its own: those that meet at a kernel, of two cases or, where a core has no other
left (``glabench.run.untimed``), of the same, share its work. Which config is the fastest
stays the rival's own finding, at its first call in the process that times.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import torch
from triton.runtime.autotuner import Autotuner

from glabench.run import gate
from glabench.spec.case import Case
from glabench.systems.base import System

LONG = 1024  # tokens; what a kernel is compiled for depends on a length by what divides it, up to this


def compile_ahead(system: System, case: Case) -> None:
    """Compile what the case's first call on this GPU would, and compute nothing.

    Of a long case's tokens only as many as have the same divisors: what compiles side by side shares the GPU's memory.
    Raises what the system raises; an autotuned kernel that does not compile is left to its autotuner.
    """
    short = replace(case, T=min(case.T, LONG + case.T % LONG))
    with compiling():
        gate.run_once(system, system.draw_inputs(short, "cuda"), short, case.mode in ("bwd", "fwdbwd"))
    torch.cuda.synchronize()  # kernels without an autotuner did run


@contextmanager
def compiling() -> Iterator[None]:
    """Meanwhile every autotuner of Triton compiles its configs when it is called, and launches and remembers none."""
    run = Autotuner.run
    Autotuner.run = _compile
    try:
        yield
    finally:
        Autotuner.run = run


def _compile(tuner: Any, *args: Any, **options: Any) -> None:
    """``Autotuner.run``, compiling only."""
    tuner.nargs = dict(zip(tuner.arg_names, args, strict=False))  # what leaves out configs by the arguments reads it
    configs = list(tuner.prune_configs(options) if len(tuner.configs) > 1 else tuner.configs)
    random.Random(os.getpid()).shuffle(configs)
    for config in configs:
        with suppress(Exception):
            tuner.fn.run(*args, **(options | {"warmup": True}), **config.all_kwargs())
    tuner.nargs = None
