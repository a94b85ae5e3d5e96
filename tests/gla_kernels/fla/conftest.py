"""A stand-in for flash-linear-attention, and calls counted afresh."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gla_kernels.fla import Acceleration, which

# The parameters in flash-linear-attention 0.6.0.
PARAMETERS = {
    "chunk_gla": "q, k, v, g, scale=None, initial_state=None, output_final_state=False, state_v_first=False, "
    "cu_seqlens=None, cu_seqlens_cpu=None",
    "fused_recurrent_gla": "q, k, v, gk=None, gv=None, scale=None, initial_state=None, output_final_state=False, "
    "reverse=False, state_v_first=False, cu_seqlens=None, **kwargs",
    "fused_chunk_gla": "**kwargs",
    "chunk_simple_gla": "q, k, v, g=None, g_gamma=None, scale=None, initial_state=None, output_final_state=False, "
    "state_v_first=False, cu_seqlens=None, cu_seqlens_cpu=None, **kwargs",
    "fused_recurrent_simple_gla": "q, k, v, g=None, g_gamma=None, scale=None, initial_state=None, "
    "output_final_state=False, reverse=False, state_v_first=False, cu_seqlens=None, **kwargs",
    "chunk_retention": "q, k, v, scale=None, initial_state=None, output_final_state=False, cu_seqlens=None, **kwargs",
    "chunk_linear_attn": "q, k, v, scale=None, initial_state=None, output_final_state=False, normalize=True, "
    "cu_seqlens=None",
}


@pytest.fixture(scope="session")
def parameters() -> dict[str, str]:
    """Of each function, as FLA has them."""
    return PARAMETERS


@pytest.fixture(autouse=True)
def counted_afresh() -> None:
    """No call has been counted, and nothing was warned of."""
    which._calls.clear()


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a package ``fla`` whose functions return their names and what they are given. Its own modules are
    imported from each other, as FLA's are; nothing is imported yet. What is left accelerated ends with it."""
    monkeypatch.setattr(Acceleration, "_under_way", 0)
    hidden = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "fla"}
    loaded = dict(which.THEIRS)
    which.THEIRS.clear()
    for module in sorted(set(which.WHERE.values())):
        folder = tmp_path.joinpath(*module.split("."))
        folder.mkdir(parents=True)
        names = [name for name, where in which.WHERE.items() if where == module]
        (folder / "functions.py").write_text("\n".join(function(name) for name in names))
        (folder / "__init__.py").write_text(f"from .functions import {', '.join(names)}\n")
    for folder in (tmp_path / "fla", tmp_path / "fla" / "ops"):
        (folder / "__init__.py").touch()
    (tmp_path / "fla" / "layers.py").write_text("from fla.ops.gla import chunk_gla\nfrom fla.ops import gla\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield tmp_path
    for name in list(sys.modules):
        if name.split(".")[0] in ("fla", "mine"):
            del sys.modules[name]
    sys.modules.update(hidden)
    which.THEIRS.clear()
    which.THEIRS.update(loaded)


def function(name: str) -> str:
    """Source of a stand-in."""
    given = ", ".join(part.split("=")[0] for part in PARAMETERS[name].split(", ") if "*" not in part)
    more = "kwargs" if "**" in PARAMETERS[name] else "{}"
    return f"def {name}({PARAMETERS[name]}):\n    return {name!r}, ({given}), {more}\n"
