"""Language models around an operator: what mode "train" measures. ``glabench.systems.models`` has their layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from glabench.hardware.environment import package_version
from glabench.spec.case import Case
from glabench.spec.models import CONFIGS
from glabench.spec.settings import Device
from glabench.systems.base import System, Unavailable, load

if TYPE_CHECKING:
    import torch

    from gla_kernels.launch import Launch
    from glabench.systems.inputs import Inputs, Packed
    from glabench.systems.models.model import LanguageModel
    from glabench.systems.models.operators import Operator

# system -> the name of its layers in ``models.model.SYSTEMS``
LAYERS = {
    "gla_lm": "gla", "gla_lm_fla": "gla", "retnet_lm": "retnet", "linear_lm": "linear", "mamba2_lm": "mamba2",
    "transformer_lm": "fa2",
}  # fmt: skip


class LanguageModelSystem(System):
    """A model of the case's size whose layers run the operator of another system, ``info.inside``.

    in_one_graph: whether ``torch.compile`` takes a block whole; not FLA's operator, around which it breaks.
    whole_layers: whether kernels of a package compute the layer around the operator too. They round elsewhere than
    PyTorch does, and such a step is compared with the whole model in float64.
    """

    in_one_graph = True
    whole_layers = False

    def unavailable(self, device: Device) -> Unavailable | None:
        return self.inside.unavailable(device)

    def unsupported(self, case: Case, device: Device) -> str | None:
        return self.inside.unsupported(self.operator_case(case), device)

    @property
    def inside(self) -> System:
        """The system whose operator the layers run."""
        assert self.info.inside is not None  # of every language model of the catalog
        return load(self.info.inside)

    def operator_case(self, case: Case) -> Case:
        """What one layer asks of its operator."""
        config = CONFIGS[case.model or "tiny"]
        inner = replace(case, system=self.inside.name, mode="fwdbwd", model=None, execution=None, recompute=None)
        if self.inside.info.gated:
            return replace(inner, gate_strength=1.0)
        if self.inside.info.operator == "attention":
            dim = config.width // config.attention_heads
            return replace(inner, attn_heads=config.attention_heads, attn_dim=dim)
        return inner

    def operator_of(self, case: Case) -> tuple[System, Case]:
        return self.inside, self.operator_case(case)

    def implementation(self, case: Case) -> str:
        return f"{self.inside.implementation(self.operator_case(case))}; {self.executed(case)}"

    def executed(self, case: Case) -> str:
        """How the step runs: "torch 2.11.0, compiled"."""
        broken = "" if case.execution is None or self.in_one_graph else " around the operator"
        return f"torch {package_version('torch')}, {case.execution or 'eager'}{broken}"

    def model(self, case: Case) -> LanguageModel:
        """The case's model in its dtype, on PyTorch's default device, with random weights of its default generator."""
        from glabench.systems.inputs import DTYPES
        from glabench.systems.models.model import LanguageModel

        assert case.model is not None  # of every case of mode "train"
        made = LanguageModel(CONFIGS[case.model], LAYERS[self.name], case.T)
        operator = OPERATORS.get(self.name, _none)(case)
        if operator is not None:
            for mixer in made.mixers:
                mixer.operator = operator
        return made.to(DTYPES[case.dtype])

    def forward(self, inputs: Inputs, case: Case) -> tuple[torch.Tensor, torch.Tensor | None]:
        raise TypeError(f"{self.name} is a model, which takes tokens")


class OurModelSystem(LanguageModelSystem):
    """A model whose layers run kernels of ours."""

    def launches(self, case: Case, arch: str) -> list[Launch]:
        return self.inside.launches(self.operator_case(case), arch)


class TransformerSystem(LanguageModelSystem):
    """Transformer++. Its attention is SDPA's flash backend on a GPU, and the plain form on a CPU, whatever packages
    there are."""

    def unavailable(self, device: Device) -> Unavailable | None:
        return None

    def unsupported(self, case: Case, device: Device) -> str | None:
        if device == "cpu":
            return None
        from glabench.systems.models.attention import packs

        lacking = packs() if case.lengths else None
        return lacking or super().unsupported(replace(case, lengths=None), device)

    def implementation(self, case: Case) -> str:
        import torch

        from glabench.systems.models.attention import backend

        cuda = torch.cuda.is_available()
        function = f"SDPA {backend(torch.device('cuda' if cuda else 'cpu')).name}"
        if case.lengths:
            function = "varlen_attn (FlashAttention-2)" if cuda else f"{function} with a mask"
        return f"{function}; {self.executed(case)}"


class UngatedSystem(OurModelSystem):
    """Linear attention."""

    def operator_case(self, case: Case) -> Case:
        return replace(super().operator_case(case), gate_strength=None)


class RetnetSystem(OurModelSystem):
    """RetNet, which has heads of its own."""

    def operator_case(self, case: Case) -> Case:
        config = CONFIGS[case.model or "tiny"]
        heads, width = config.retention_heads, config.width
        return replace(super().operator_case(case), H=heads, K=width // 2 // heads, V=width // heads)


class Mamba2System(LanguageModelSystem):
    """Mamba-2: mamba_ssm's own layer, or the plain one."""

    @property
    def in_one_graph(self) -> bool:  # type: ignore[override]  # a class attribute of all others
        """mamba_ssm's layer is left alone."""
        return not self.whole_layers

    @property
    def autotuned(self) -> bool:
        return self.whole_layers

    @property
    def whole_layers(self) -> bool:  # type: ignore[override]
        """mamba_ssm fuses the convolution, the norm and what is around them with its scan."""
        from glabench.systems.models import mamba2

        return mamba2.official()

    def unavailable(self, device: Device) -> Unavailable | None:
        return None

    def unsupported(self, case: Case, device: Device) -> str | None:
        return None

    def implementation(self, case: Case) -> str:
        from glabench.systems.models import mamba2

        return f"{mamba2.implementation()}; {self.executed(case)}"


class FlaOperatorSystem(LanguageModelSystem):
    """The GLA Transformer by FLA's operator, which ``torch.compile`` is told to leave alone."""

    in_one_graph = False


def _none(case: Case) -> None:
    """The operator that the layer has by itself."""


def _gla(case: Case) -> Operator:
    from gla_kernels import gla
    from glabench.systems.gla import schedule_of

    call = partial(gla, schedule=schedule_of(case), recompute=case.recompute)

    def operator(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, packed: Packed | None = None
    ) -> torch.Tensor:
        return call(q, k, v, g, cu_seqlens=None if packed is None else packed.cu_seqlens)[0]

    return operator


def _fla(case: Case) -> Operator:
    from fla.ops.gla import chunk_gla

    from glabench.systems.fla import packing

    def operator(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, packed: Packed | None = None
    ) -> torch.Tensor:
        o: torch.Tensor = chunk_gla(q, k, v, g, **packing(packed, on_host=True))[0]
        return o

    return operator


# system -> the operator that the case's layers run, where it is not the layer's own
OPERATORS: dict[str, Callable[[Case], Operator | None]] = {"gla_lm": _gla, "gla_lm_fla": _fla}
