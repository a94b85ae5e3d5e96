"""jax-linear-attention's kernels for Hopper, in Pallas Mosaic GPU: GLA, and the same with one gate a head.

They are asked for by name (``impl="mosaic_gpu"``): a call that they do not take is an error, and never XLA's instead.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from glabench.hardware.environment import package_version
from glabench.spec.case import Case
from glabench.spec.settings import Device
from glabench.systems.base import System, Unavailable, missing_package, needs_gpu

if TYPE_CHECKING:
    import torch

    from glabench.systems.inputs import Inputs
    from glabench.systems.jax_bridge import Bridged

INSTALL = "pip install 'jax-linear-attention[cuda]'"
HEAD_DIMS = (64, 128)
SCAN_WIDTH = 128  # of gates that its kernel sums at once, over heads side by side
HOPPER_MAJOR = 9  # of the compute capability


class _Jla(System):
    """What both share; ``kind`` is the package's word for the recurrence."""

    kind = ""
    dtypes: tuple[str, ...] = ("bf16", "fp16")

    def unavailable(self, device: Device) -> Unavailable | None:
        return missing_package("jla", INSTALL) or missing_package("jax", INSTALL) or needs_gpu(device)

    def unsupported(self, case: Case, device: Device) -> str | None:
        if case.gate_strength is None:
            return f"jax-linear-attention's {self.kind} needs gates"
        if case.dtype not in self.dtypes:
            return f"jax-linear-attention's {self.kind} takes {' and '.join(self.dtypes)}, not {case.dtype}"
        if case.K not in HEAD_DIMS or case.V not in HEAD_DIMS:
            return f"K={case.K}, V={case.V}: jax-linear-attention's kernels take head dimensions of 64 and 128"
        return not_hopper(device)

    def implementation(self, case: Case) -> str:
        version, jax = package_version("jax-linear-attention"), package_version("jax")
        return f"jax-linear-attention {version} {self.kind} (Mosaic GPU), jax {jax}"

    def forward(self, inputs: Inputs, case: Case) -> tuple[torch.Tensor, torch.Tensor | None]:
        assert inputs.g is not None  # cases without gates are refused
        states = () if inputs.initial_state is None else (inputs.initial_state,)
        o, *found = bridged(self.kind)(inputs.q, inputs.k, inputs.v, self.gates(inputs.g), *states)
        return o, found[0] if found else None

    def gates(self, g: torch.Tensor) -> torch.Tensor:
        """As the package takes them."""
        return g


class JlaGla(_Jla):
    """``jla.ops.linear_attention("gla", ...)``."""

    kind = "gla"
    dtypes = ("bf16",)

    def unsupported(self, case: Case, device: Device) -> str | None:
        if (case.H * case.K) % SCAN_WIDTH:
            return f"H={case.H}, K={case.K}: jax-linear-attention's gla takes multiples of {SCAN_WIDTH} gates a token"
        return super().unsupported(case, device)


class JlaSimple(_Jla):
    """``jla.ops.linear_attention("simple_gla", ...)``, whose gates are [B, T, H]; q and k may have fewer heads."""

    kind = "simple_gla"

    def gates(self, g: torch.Tensor) -> torch.Tensor:
        return g.squeeze(-1)


@cache
def bridged(kind: str) -> Bridged:
    """The recurrence on tensors: (o,) of q, k, v and g, and (o, final state) where there is an initial state."""
    from glabench.systems.jax_bridge import Bridged  # imports JAX

    def call(q: Any, k: Any, v: Any, g: Any, *states: Any) -> tuple[Any, ...]:
        from jla.ops import linear_attention

        given = {"initial_state": states[0], "output_final_state": True} if states else {}
        o, final = linear_attention(kind, q, k, v, g=g, impl="mosaic_gpu", **given)
        return (o, final) if states else (o,)

    return Bridged(call)


def not_hopper(device: Device) -> str | None:
    """Why this GPU cannot run kernels that are Hopper's own, or None."""
    import torch

    if device != "cuda" or not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] == HOPPER_MAJOR:
        return None
    return "jax-linear-attention's kernels are for Hopper GPUs alone"
