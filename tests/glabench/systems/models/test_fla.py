"""FLA's layer in our blocks, on a stand-in for the package: which operator runs in which, in one process."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import gla_kernels.fla
from gla_kernels.fla import calls, which
from glabench.systems.models.fla import FlaLayer
from glabench.systems.models.model import CONFIGS, LanguageModel, implementation

LAYER = """
import torch
from fla.ops.gla import chunk_gla

class GatedLinearAttention(torch.nn.Module):
    def __init__(self, *, hidden_size, expand_k, expand_v, num_heads, norm_eps):
        super().__init__()
        self.heads, self.keys = num_heads, int(hidden_size * expand_k)
        self.project = torch.nn.Linear(hidden_size, 3 * self.keys + hidden_size)

    def forward(self, hidden_states, attention_mask=None, **kwargs):
        sizes = (self.keys, self.keys, self.keys, hidden_states.shape[-1])
        q, k, g, v = (x.unflatten(-1, (self.heads, -1)) for x in self.project(hidden_states).split(sizes, -1))
        o, _ = chunk_gla(q=q, k=k, v=v, g=torch.nn.functional.logsigmoid(g))
        return o.flatten(-2), None, None
"""


@pytest.fixture
def fla(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package ``fla`` with a layer, whose own operator computes the recurrence."""
    folder = tmp_path / "fla"
    (folder / "ops").mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "ops" / "__init__.py").touch()
    (folder / "layers.py").write_text(LAYER)
    for name, where in which.WHERE.items():
        with folder.joinpath("ops", where.split(".")[-1]).with_suffix(".py").open("a") as file:
            file.write(stand_in(name))
    hidden = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "fla"}
    loaded = dict(which.THEIRS)
    which.THEIRS.clear()
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    which.THEIRS.clear()
    which.THEIRS.update(loaded)
    for name in list(sys.modules):
        if name.split(".")[0] == "fla":
            del sys.modules[name]
    sys.modules.update(hidden)


def stand_in(name: str) -> str:
    """The source of a function with the parameters of ours; one of them computes."""
    found = inspect.signature(getattr(gla_kernels.fla, name)).parameters.values()
    given = ", ".join(str(x.replace(annotation=inspect.Parameter.empty)) for x in found)
    body = (
        "CALLS.append(q.shape); return chunkwise(q, k, v, g)[0], None"
        if name == "chunk_gla"
        else "raise AssertionError"
    )
    return f"from gla_kernels.reference import chunkwise\nCALLS = []\ndef {name}({given}):\n    {body}\n"


def test_each_layer_runs_its_own_operator_and_both_give_the_same(fla: None) -> None:
    theirs, ours = (FlaLayer(32, 2, accelerated) for accelerated in (False, True))
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(1, 70, 32)
    before = calls().get(("chunk_gla", None), 0)
    ran = sys.modules["fla.ops.gla"].CALLS
    right = theirs(x)
    assert len(ran) == 1
    torch.testing.assert_close(ours(x), right)
    assert len(ran) == 1  # not FLA's own again
    assert calls()["chunk_gla", None] == before + 1
    theirs(x)
    assert len(ran) == 2  # FLA itself is as it was


def test_models_of_fla_s_layer(fla: None) -> None:
    model = LanguageModel(CONFIGS["tiny"], "fla", 16)
    assert model(torch.zeros(1, 16, dtype=torch.long)).shape == (1, 16, CONFIGS["tiny"].vocabulary)
    names = [implementation(system, torch.device("cpu")) for system in ("fla", "fla-accelerated")]
    assert ["gla_kernels" in name for name in names] == [False, True]


def test_without_the_package_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fla.layers", None)  # as if it were not there
    with pytest.raises(ValueError, match=r"system: 'fla-accelerated' cannot run here: .*: pip install flash-"):
        LanguageModel(CONFIGS["tiny"], "fla-accelerated", 16)
