"""Helion's chunkwise GLA: the kernels of ``examples/linear`` in its repository, which the package does not bring.

They run as Helion's own benchmark of them does: chunks of 64, head-first tensors, and the configs that lie beside the
kernels, tuned beforehand for a few GPUs and shapes; a shape that is not among them takes the nearest one's.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glabench.hardware.environment import HELION_EXAMPLES, at_home, cache_folder, folder_digest, package_version
from glabench.spec.case import Case
from glabench.spec.settings import Device
from glabench.systems.base import System, Unavailable, missing_package, needs_gpu

if TYPE_CHECKING:
    import torch

    from glabench.systems.inputs import Inputs

CHECKOUT = f"set {HELION_EXAMPLES} to the folder examples of a checkout of https://github.com/pytorch/helion"
ENGINE = "linear_attention_engine"
CHUNK = 64
EFFORT, CACHE, PRETUNED = "HELION_AUTOTUNE_EFFORT", "HELION_AUTOTUNE_CACHE", "AOTAutotuneCache"
HEADED = ("q", "k", "v", "do", "g")


def example_folder() -> Path | None:
    """The folder of the kernels, as the environment names it; None where it names none."""
    named = os.environ.get(HELION_EXAMPLES)
    return at_home(named, HELION_EXAMPLES).resolve() / "linear" if named else None


def effort() -> str:
    """How the kernels come to their configs: "pretuned", or Helion's word for its own tuning: none, quick, full.

    HELION_AUTOTUNE_EFFORT asks for the latter, and so does any cache but that of pretuned configs.
    """
    asked, cache = (os.environ.get(name, "").strip() for name in (EFFORT, CACHE))
    if asked == "none":  # Helion's defaults: it looks into no cache then
        return asked
    if cache == PRETUNED or not (asked or cache):
        return "pretuned"
    return asked or "full"


def capability() -> int | None:
    """90 on an H100; None without a GPU."""
    import torch

    if not torch.cuda.is_available():
        return None
    major, minor = torch.cuda.get_device_capability()
    return 10 * major + minor


def pretuned_for(capability: int, folder: Path) -> int | None:
    """The compute capability whose pretuned configs Helion takes on a GPU: its own, else the nearest below it."""
    found = [re.search(r"_cuda_sm(\d+)\.py$", path.name) for path in folder.glob(f"_helion_aot_{ENGINE}_cuda_sm*.py")]
    return max((int(one[1]) for one in found if one and int(one[1]) <= capability), default=None)


def variables() -> dict[str, str]:
    """What Helion is to find in the environment where nothing is set; it reads them as the kernels are imported."""
    found = {"HELION_AOT_DATA_DIR": str(cache_folder() / "helion")}  # by default a folder in the working directory
    if effort() != "pretuned":
        return found
    # Nothing is searched for then, but a search is made ready, and the default one needs scikit-learn.
    return found | {CACHE: PRETUNED, "HELION_AUTOTUNER": "PatternSearch"}


@cache
def engine() -> Any:
    """The module of the kernels. Helion's generated code may import it by its name, so its folder joins the path."""
    folder = example_folder()
    assert folder is not None  # the system is not available without it
    for name, value in variables().items():
        if not os.environ.get(name, "").strip():
            os.environ[name] = value
    sys.path.append(str(folder))
    return importlib.import_module(ENGINE)


def import_failure() -> Unavailable | None:
    """What is wrong with Helion where it cannot be imported, as beside a torch that is too old for it."""
    try:
        engine()
    except ImportError as error:
        found = f"helion {package_version('helion')} cannot be imported beside torch {package_version('torch')}"
        reason = (str(error) or type(error).__name__).splitlines()[0]
        return Unavailable(f"{found}: {reason}", "install a version of helion that goes with it")
    return None


def heads_first(x: torch.Tensor) -> torch.Tensor:
    """The same ``[B,T,H,D]`` with each head's tokens side by side in memory."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


class HelionGla(System):
    """``get_helion_fwd_kernel(LinearAttentionVariant.FULL_GLA)``, differentiable by its own autograd function."""

    def unavailable(self, device: Device) -> Unavailable | None:
        missing = missing_package("helion", "pip install helion")
        if missing is not None:
            return missing
        folder = example_folder()
        if folder is None:
            return Unavailable("Helion's package does not bring its examples", CHECKOUT)
        if not (folder / f"{ENGINE}.py").is_file():
            return Unavailable(f"{HELION_EXAMPLES} names a folder without linear/{ENGINE}.py", CHECKOUT)
        return needs_gpu(device) or import_failure()

    def unsupported(self, case: Case, device: Device) -> str | None:
        if case.gate_strength is None:
            return "Helion's full GLA needs gates"
        if case.initial_state and case.mode != "fwd":
            return "Helion's GLA takes no gradients of its states"
        folder, here = example_folder(), capability()
        if effort() == "pretuned" and folder is not None and here is not None and pretuned_for(here, folder) is None:
            return f"no configs for sm_{here} beside Helion's example; {EFFORT}=quick tunes it, for minutes a shape"
        return None

    def implementation(self, case: Case) -> str:
        words = {"none": "not tuned (effort none)", "pretuned": self._pretuned()}
        how = words.get(effort(), f"tuned by itself, effort {effort()}")
        version, digest = package_version("helion"), folder_digest(HELION_EXAMPLES)
        return f"helion {version} full GLA of examples {digest}, chunks of {CHUNK}, {how}"

    @staticmethod
    def _pretuned() -> str:
        folder, here = example_folder(), capability()
        found = pretuned_for(here, folder) if here is not None and folder is not None else None
        return "pretuned configs" if found is None else f"pretuned configs for sm_{found}"

    def lay_out(self, inputs: Inputs) -> Inputs:
        return replace(inputs, **{name: heads_first(x) for name, x in inputs.tensors() if name in HEADED})

    def forward(self, inputs: Inputs, case: Case) -> tuple[torch.Tensor, torch.Tensor | None]:
        assert inputs.g is not None  # cases without gates are refused
        module = engine()
        q, k, v, g = (x.transpose(1, 2) for x in (inputs.q, inputs.k, inputs.v, inputs.g))
        options = {"C": CHUNK, "scale": case.K**-0.5}
        if case.initial_state:
            options |= {"initial_state": inputs.initial_state, "return_final_state": True}
        found = module.get_helion_fwd_kernel(module.LinearAttentionVariant.FULL_GLA)(q, k, v, g, None, **options)
        o, state = found if case.initial_state else (found, None)
        return o.transpose(1, 2), state
