"""Flash-linear-attention's kernels: chunkwise GLA, the same with one gate a head, with constant decays and without a
gate, and the fused recurrence."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from glabench.hardware.environment import package_version
from glabench.spec.case import Case
from glabench.spec.settings import Device
from glabench.systems.base import System, Unavailable, missing_package, needs_gpu

if TYPE_CHECKING:
    import torch

    from glabench.systems.inputs import Inputs, Packed

INSTALL = "pip install fla-core einops"
# What gates of -inf are for kernels whose sums over them would be no numbers: exp of it is 0 in float32 as well.
FORGETS = -104.0
HOPPER_MAJOR = 9  # of the compute capability


class _Fla(System):
    """What FLA's systems share: the package and the GPU they need."""

    function = ""
    imports = ("fla.ops",)

    def unavailable(self, device: Device) -> Unavailable | None:
        return missing_package("fla", INSTALL) or missing_package("einops", INSTALL) or needs_gpu(device)

    def implementation(self, case: Case) -> str:
        core, full = package_version("fla-core"), package_version("flash-linear-attention")
        heads = ", q and k repeated for all heads of v, which is timed" if case.qk_heads else ""
        return f"{f'fla-core {core}' if core else f'flash-linear-attention {full}'} {self.function}{heads}"


class _SumsGates(_Fla):
    """In chunks gates are summed, and differences of sums with -inf are no numbers: here gates are finite."""

    def implementation(self, case: Case) -> str:
        return f"{super().implementation(case)}{f', gates of -inf as {FORGETS:g}' if case.resets else ''}"

    def draw_inputs(self, case: Case, device: str, salt: int = 0) -> Inputs:
        inputs = super().draw_inputs(case, device, salt)
        if case.resets is None or inputs.g is None:
            return inputs
        return replace(inputs, g=inputs.g.masked_fill(inputs.g.isinf(), FORGETS))


class FlaChunk(_SumsGates):
    """``fla.ops.gla.chunk_gla``; it has no ungated path."""

    function = "chunk_gla"

    def unsupported(self, case: Case, device: Device) -> str | None:
        return "chunk_gla needs gates; fla_linear is FLA without them" if case.gate_strength is None else None

    def forward(self, inputs: Inputs, case: Case) -> tuple[torch.Tensor, torch.Tensor | None]:
        from fla.ops.gla import chunk_gla

        q, k, g = (for_all_heads(x, case) for x in (inputs.q, inputs.k, inputs.g))
        return chunk_gla(
            q,
            k,
            inputs.v,
            g,
            initial_state=inputs.initial_state,
            output_final_state=case.initial_state,
            **packing(inputs.packed, on_host=True),
        )


class FlaLinear(_Fla):
    """``fla.ops.linear_attn.chunk_linear_attn`` without its normalisation, which GLA does not have."""

    function = "chunk_linear_attn"

    def unsupported(self, case: Case, device: Device) -> str | None:
        return None if case.gate_strength is None else "chunk_linear_attn has no gate"

    def forward(self, inputs: Inputs, case: Case) -> tuple[torch.Tensor, torch.Tensor | None]:
        from fla.ops.linear_attn import chunk_linear_attn

        return chunk_linear_attn(
            inputs.q,
            inputs.k,
            inputs.v,
            initial_state=inputs.initial_state,
            output_final_state=case.initial_state,
            normalize=False,
            **packing(inputs.packed),
        )


class FlaSimple(_SumsGates):
    """``fla.ops.simple_gla.chunk_simple_gla``, whose gates are [B, T, H]."""

    function = "chunk_simple_gla"

    def implementation(self, case: Case) -> str:
        """With Triton's version, on which it depends whether there is a backward pass."""
        return f"{super().implementation(case)}, triton {package_version('triton')}"

    def unsupported(self, case: Case, device: Device) -> str | None:
        if case.gate_strength is None:
            return "chunk_simple_gla is measured with gates; fla_linear is FLA without them"
        return odd_refusal(case) or hopper_refusal(case, device)

    def forward(self, inputs: Inputs, case: Case) -> tuple[torch.Tensor, torch.Tensor | None]:
        from fla.ops.simple_gla import chunk_simple_gla

        assert inputs.g is not None  # refused above
        return chunk_simple_gla(
            for_all_heads(inputs.q, case),
            for_all_heads(inputs.k, case),
            inputs.v,
            g=inputs.g.squeeze(-1),
            initial_state=inputs.initial_state,
            output_final_state=case.initial_state,
            **packing(inputs.packed, on_host=True),
        )


class FlaRetention(_Fla):
    """``fla.ops.retention.chunk_retention``, which makes RetNet's decays itself."""

    function = "chunk_retention"

    def unsupported(self, case: Case, device: Device) -> str | None:
        return odd_refusal(case)

    def forward(self, inputs: Inputs, case: Case) -> tuple[torch.Tensor, torch.Tensor | None]:
        from fla.ops.retention import chunk_retention

        return chunk_retention(
            inputs.q,
            inputs.k,
            inputs.v,
            initial_state=inputs.initial_state,
            output_final_state=case.initial_state,
            **packing(inputs.packed),
        )


def for_all_heads(x: torch.Tensor | None, case: Case) -> torch.Tensor | None:
    """q, k or g [B, T, qk_heads, K] for each head of v: FLA's kernels know of no groups."""
    return x if x is None or case.group == 1 else x.repeat_interleave(case.group, 2)


def packing(packed: Packed | None, on_host: bool = False) -> dict[str, torch.Tensor]:
    """The bounds of packed sequences, where there are any. ``on_host``: also there, for functions that take them and
    else read them back from the GPU, once a tensor."""
    if packed is None:
        return {}
    found = {"cu_seqlens": packed.cu_seqlens}
    return found | ({"cu_seqlens_cpu": packed.cu_seqlens_cpu} if on_host else {})


def odd_refusal(case: Case) -> str | None:
    """Why the backward pass of FLA's kernels with one decay a head cannot take the case's head dimensions, or None."""
    if case.mode == "fwd" or case.dtype == "fp32" or not (case.K % 2 or case.V % 2):
        return None
    return f"K={case.K}, V={case.V}: FLA's backward pass takes even ones in 16 bits"


def hopper_refusal(case: Case, device: Device) -> str | None:
    """Why FLA's backward pass with a gate a head raises an error on this GPU, or None: its own check, which finds
    Triton's kernel wrong on Hopper. TileLang's takes states of q's dtype alone, and FLA keeps them in float32."""
    triton = tuple(int(part) for part in re.findall(r"\d+", package_version("triton") or "")[:3])
    if case.mode == "fwd" or device != "cuda" or not (3, 4) <= triton < (3, 7, 1):
        return None
    import torch

    if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != HOPPER_MAJOR:
        return None
    if case.dtype == "fp32" and importlib.util.find_spec("tilelang"):
        return None
    return "FLA's backward pass with a gate a head needs triton >= 3.7.1 on Hopper; in fp32 alone tilelang will do"


class FlaRecurrent(_Fla):
    """``fla.ops.gla.fused_recurrent_gla``; mode "step" is a sequence of one token, whose new state is a new tensor."""

    function = "fused_recurrent_gla"

    def forward(self, inputs: Inputs, case: Case) -> tuple[torch.Tensor, torch.Tensor | None]:
        from fla.ops.gla import fused_recurrent_gla

        return fused_recurrent_gla(
            inputs.q,
            inputs.k,
            inputs.v,
            gk=inputs.g,
            initial_state=inputs.initial_state,
            output_final_state=case.initial_state,
            **packing(inputs.packed),
        )

    def step(self, inputs: Inputs, case: Case) -> tuple[torch.Tensor, torch.Tensor]:
        from fla.ops.gla import fused_recurrent_gla

        g = None if inputs.g is None else inputs.g[:, None]
        o, state = fused_recurrent_gla(
            inputs.q[:, None],
            inputs.k[:, None],
            inputs.v[:, None],
            gk=g,
            initial_state=inputs.initial_state,
            output_final_state=True,
        )
        return o[:, 0], state
