"""What a system is: something that computes the operator, and says what it cannot do before it is asked to."""

from __future__ import annotations

import importlib
import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from glabench.spec.axes import AXES, later
from glabench.spec.case import Case
from glabench.spec.catalog import CATALOG, SystemInfo
from glabench.spec.settings import Device

if TYPE_CHECKING:
    import torch

    from gla_kernels.launch import Launch
    from gla_kernels.ops.form import Form
    from glabench.systems.inputs import Inputs


@dataclass(frozen=True)
class Unavailable:
    """Why a system cannot run on this machine at all, and how to get it."""

    reason: str  # "the package flash_attn is not installed"
    remedy: str  # "pip install flash-attn --no-build-isolation", "run on an NVIDIA GPU"

    def __str__(self) -> str:
        return f"{self.reason}; {self.remedy}"


class System(ABC):
    """One implementation under measurement. ``load`` makes it from its catalog entry."""

    imports: tuple[str, ...] = ()  # what its calls import of another package, where that takes seconds

    def __init__(self, info: SystemInfo) -> None:
        self.info = info

    @property
    def name(self) -> str:
        return self.info.name

    def unavailable(self, device: Device) -> Unavailable | None:
        """Why it cannot run here at all, or None. Cheap: imports neither torch nor the package in question."""
        return None

    def unsupported(self, case: Case, device: Device) -> str | None:
        """One line: why it cannot run this case (a head dimension, a dtype ...), or None."""
        return None

    def refusal_by_catalog(self, case: Case) -> str | None:
        """One line: why it cannot run the case's mode, or an axis of it, as far as the catalog says, or None."""
        if case.mode not in self.info.modes:
            return f"{self.name} has no mode {case.mode}"
        lacks = (axis.lacking for name, axis in AXES.items() if name in later(vars(case)).keys() - self.info.takes)
        return next((f"{self.name} has no {what}" for what in lacks), None)

    @abstractmethod
    def implementation(self, case: Case) -> str:
        """What really runs, with its version: "fla-core 0.6.0 chunk_gla"."""

    def lay_out(self, inputs: Inputs) -> Inputs:
        """The same numbers and shapes in the memory layout that is natural to it; gates and clocks start after this."""
        return inputs

    def draw_inputs(self, case: Case, device: str, salt: int = 0) -> Inputs:
        """``make_inputs`` of its operator, laid out in memory as it takes them."""
        from glabench.systems.inputs import make_inputs  # imports torch

        return self.lay_out(make_inputs(case, self.info.operator, device, salt))

    @abstractmethod
    def forward(self, inputs: Inputs, case: Case) -> tuple[torch.Tensor, torch.Tensor | None]:
        """``(o [B,T,H,V], final_state [B,H,K,V] or None)``, differentiable with respect to every input that
        requires a gradient. The final state is returned where the case has an initial state."""

    def operator_of(self, case: Case) -> tuple[System, Case]:
        """The system whose operator the case runs, and what is asked of it: the case itself, but of a model."""
        return self, case

    @property
    def autotuned(self) -> bool:
        """Whether what runs here tunes itself at its first call: its configs are compiled ahead of it."""
        return self.info.autotuned

    def step(self, inputs: Inputs, case: Case) -> tuple[torch.Tensor, torch.Tensor | None]:
        """One token: ``(o [B,H,V], state [B,H,K,V])``. May update ``inputs.initial_state`` in place. Attention, whose
        state is its cache of keys and values, returns None for it.

        Only systems whose catalog entry lists the mode "step" are asked.
        """
        raise TypeError(f"{self.name} has no mode step")

    def launches(self, case: Case, arch: str) -> list[Launch]:
        """The Triton launches of the case on a GPU of ``arch`` ("sm_90"), for compilation.

        Empty for systems that are not our kernels.
        """
        return []

    def form_of(self, case: Case, arch: str) -> Form | None:
        """The form of our kernels that the case's call takes on a GPU of ``arch``, for what it allocates.

        None for systems that are not our kernels, and for those whose buffers nobody asks for.
        """
        return None


def every(device: Device) -> Iterator[tuple[SystemInfo, Unavailable | None]]:
    """All systems of the catalog, in its order, and for each that cannot run on this machine, why."""
    for name, info in CATALOG.items():
        yield info, load(name).unavailable(device)


def load(name: str) -> System:
    """The system of that name in the catalog; its module is imported now. Raises KeyError for an unknown name."""
    info = CATALOG[name]
    module, _, cls = info.module.partition(":")
    made: Any = getattr(importlib.import_module(module), cls)
    system: System = made(info)
    return system


def installed(package: str) -> bool:
    """Whether the import package, or the module, is there; finds it without importing it. An empty module that other
    code put in its place, as some of Helion's examples do, is none."""
    try:
        return importlib.util.find_spec(package) is not None
    except ValueError:  # a module in sys.modules that came from nowhere
        return False


def missing_package(package: str, remedy: str) -> Unavailable | None:
    """Unavailable when the import package is not `installed`."""
    if installed(package):
        return None
    return Unavailable(f"the package {package} is not installed", remedy)


def needs_gpu(device: Device) -> Unavailable | None:
    """Unavailable anywhere but on a CUDA device."""
    return None if device == "cuda" else Unavailable("it needs an NVIDIA GPU", "run it where there is one")
