"""Calls of gla() without gates that go by the walks of one decay a head, which no plan is tuned for
(``gla_kernels/ops/gla_form.py``): what these launch."""

from __future__ import annotations

from gla_kernels import Launch, Workload
from gla_kernels.ops.gla import launches
from gla_kernels.plan.apply import DTYPES

ROOM = "gla_kernels.simple."  # where their kernels are


def walks_of(work: Workload, mode: str, initial_state: bool, capability: int) -> list[Launch]:
    """The launches of such a call in ``mode``, fwd, bwd or fwdbwd, on meta tensors; none where it goes by plans. The
    direction of ``work`` does not count: whether a backward pass follows decides for both."""
    if work.gated or work.schedule is not None:
        return []
    found = launches(
        "gla", B=work.B, T=work.T, H=work.H, K=work.K, V=work.V, dtype=DTYPES[work.dtype], mode=mode, gated=False,
        initial_state=initial_state, capability=capability,
    )  # fmt: skip
    return found if any(launch.kernel.fn.__module__.startswith(ROOM) for launch in found) else []
