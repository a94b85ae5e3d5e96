"""Stands in for glabench.tune.worker: that one, on the made-up GPU."""

from __future__ import annotations

from functools import partial

from glabench.tune import session
from glabench.tune.compiler import CompilePool
from glabench.tune.gpu import Gpu
from glabench.tune.worker import handle

vars(session).update(
    Gpu=partial(Gpu, module="fake_gpu"),
    CompilePool=partial(CompilePool, module="fake_gpu"),
    this_arch=lambda: "sm_90",
)

__all__ = ["handle"]
