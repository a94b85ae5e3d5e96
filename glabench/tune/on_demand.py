"""Tuning in the middle of a program: what ``gla(..., config="tune")`` calls for a shape that was never tuned here."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import torch
from rich.console import Console

from gla_kernels import Workload
from glabench.errors import UserError
from glabench.tune.session import Session, describe

BUDGET_S = 90.0


def tune(works: Sequence[Workload]) -> None:
    """Tune the directions of one shape on the current CUDA device; gla() finds the winners from then on.

    Says so on stderr, in a line before and one a direction after. Takes up to some 90 s. Raises UserError when the
    search finds a direction no plan that runs and is right, or the winners cannot be kept.
    """
    directions = " and ".join(work.direction for work in works)
    said = f"glabench: tuning {describe(works[0])} {directions} for this GPU, once"
    print(f"{said}; up to {BUDGET_S:.0f} s", file=sys.stderr, flush=True)
    major, minor = torch.cuda.get_device_capability()
    console = Console(stderr=True, highlight=False, markup=False)
    with Session(
        "model", BUDGET_S, console=console, quiet=True, arch=f"sm_{major}{minor}", env=only_device()
    ) as session:
        if not session.run(works):
            raise UserError(f"{describe(works[0])}: found no plan that runs and is right")


def only_device() -> dict[str, str | None]:
    """What makes the current CUDA device the one that a child process sees: where this process sees no other, what it
    was started with, in whatever way that was arranged."""
    if torch.cuda.device_count() == 1:
        return {"CUDA_DEVICE_ORDER": os.environ.get("CUDA_DEVICE_ORDER")}
    uuid = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
    return {"CUDA_VISIBLE_DEVICES": uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"}
