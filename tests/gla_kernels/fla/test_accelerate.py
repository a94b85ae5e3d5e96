"""`accelerate` on a stand-in for flash-linear-attention: who holds which function, and what goes to FLA's own."""

from __future__ import annotations

import importlib
import sys
import warnings
from types import ModuleType
from typing import Any

import pytest
import torch

import gla_kernels.fla
from gla_kernels import Machine
from gla_kernels.fla import FallbackWarning, accelerate, calls, which
from gla_kernels.fla.patch import OURS

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SHAPES = {"q": (1, 10, 2, 16), "k": (1, 10, 2, 16), "v": (1, 10, 2, 24), "g": (1, 10, 2, 16)}


def imported(name: str) -> ModuleType:
    return importlib.import_module(name)


def mine(text: str) -> ModuleType:
    """A user's module."""
    module = ModuleType("mine")
    sys.modules["mine"] = module
    exec(text, vars(module))
    return module


def tensors(dtype: torch.dtype = torch.float32, **shapes: tuple[int, ...]) -> Any:
    drawn = {name: torch.randn(shape, device=DEVICE).to(dtype) for name, shape in (SHAPES | shapes).items()}
    return drawn | {"g": -drawn["g"].abs()}


def test_modules_imported_before_hold_ours_and_get_theirs_back(fake):
    user = mine("from fla.ops.gla import chunk_gla as attention\nimport fla.layers")
    theirs = user.attention
    accelerated = accelerate()
    assert user.attention is OURS["chunk_gla"]
    assert imported("fla.layers").chunk_gla is OURS["chunk_gla"]
    assert imported("fla.ops.gla.functions").fused_recurrent_gla is OURS["fused_recurrent_gla"]
    accelerated.undo()
    assert user.attention is imported("fla.layers").chunk_gla is imported("fla.ops.gla").chunk_gla is theirs


def test_modules_imported_after_hold_ours_and_get_theirs_back(fake):
    with accelerate():
        assert "fla.layers" not in sys.modules
        user = mine("from fla.ops.simple_gla import chunk_simple_gla")
        assert imported("fla.layers").chunk_gla is OURS["chunk_gla"]
        assert user.chunk_simple_gla is OURS["chunk_simple_gla"]
    assert imported("fla.layers").chunk_gla(1, 2, 3, 4)[0] == "chunk_gla"
    assert user.chunk_simple_gla.__module__ == "fla.ops.simple_gla.functions"


def test_every_function_is_ours_meanwhile(fake):
    with accelerate():
        held = {name: getattr(imported(where), name) for name, where in which.WHERE.items()}
        assert held == OURS
    assert not {getattr(imported(where), name) for name, where in which.WHERE.items()} & set(OURS.values())


def test_the_last_to_end_brings_theirs_back(fake):
    gla = imported("fla.ops.gla")
    theirs = gla.chunk_gla
    with accelerate() as outer:
        inner = accelerate()
        with pytest.raises(KeyError), inner:
            raise KeyError
        assert gla.chunk_gla is OURS["chunk_gla"]
        inner.undo()
        assert gla.chunk_gla is OURS["chunk_gla"]
    assert gla.chunk_gla is theirs
    outer.undo()
    with accelerate():
        assert gla.chunk_gla is OURS["chunk_gla"]
    assert gla.chunk_gla is theirs


def test_what_is_imported_from_here_stays(fake):
    user = mine("from gla_kernels.fla import chunk_gla")
    accelerate().undo()
    assert user.chunk_gla is gla_kernels.fla.chunk_gla


def test_ours_computes_and_is_counted(fake):
    x = tensors()
    with accelerate():
        o, final = imported("fla.layers").chunk_gla(**x)
    want, _ = gla_kernels.gla(*x.values())
    assert torch.equal(o, want)
    assert final is None
    assert calls() == {("chunk_gla", None): 1}


def test_what_ours_lacks_goes_to_theirs_as_it_was_given_and_is_said_once(fake):
    x = tensors()
    given = {"scale": 2.0, "output_final_state": True, "reverse": True, "state_v_first": True, "more": 7}
    with accelerate():
        call = imported("fla.ops.gla").fused_recurrent_gla
        with pytest.warns(FallbackWarning, match=r"fused_recurrent_gla runs .* reverse=True") as told:
            name, got, more = call(x["q"], x["k"], x["v"], gk=x["g"], **given)
        assert told[0].filename == __file__
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            call(x["q"], x["k"], x["v"], reverse=True)
    assert name == "fused_recurrent_gla"
    assert all(a is b for a, b in zip(got[:4], [*list(x.values()), None][:4], strict=True))
    assert got[4:] == (None, 2.0, None, True, True, True, None)
    assert more == {"more": 7}
    assert calls() == {("fused_recurrent_gla", "reverse=True"): 2}


HALF, DOUBLE = torch.float16, torch.float64
STATE = torch.zeros(1, 2, 16, 24, device=DEVICE)
LACKING = [
    ("chunk_gla", {"dtype": DOUBLE}, {}, "q is of float64"),
    ("chunk_gla", {}, {"v": HALF}, "v is of float16, q of float32"),
    ("chunk_gla", {}, {"g": HALF}, "gates are of float16, q is of float32"),
    ("chunk_gla", {}, {"initial_state": STATE.double()}, "the initial state is of float64"),
    ("chunk_gla", {"v": (1, 10, 2, 520)}, {}, "V is 520, head dimensions go up to 512"),
    ("fused_recurrent_gla", {}, {"reverse": True}, "reverse=True"),
    ("fused_recurrent_gla", {}, {"initial_state": STATE.double()}, "the initial state is of float64"),
    ("fused_recurrent_simple_gla", {}, {"reverse": True}, "reverse=True"),
    ("chunk_simple_gla", {"v": (1, 10, 2, 264)}, {}, "V is 264, head dimensions go up to 256"),
    ("chunk_retention", {}, {"v": HALF}, "v is of float16, q of float32"),
    ("chunk_retention", {"q": (1, 10, 2, 260), "k": (1, 10, 2, 260)}, {}, "K is 260, head dimensions go up to 256"),
    ("chunk_linear_attn", {}, {"initial_state": (STATE.double(), None)}, "the initial state is of float64"),
]


def asked(name: str, drawn: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call; a dtype in ``more`` is one that a tensor has."""
    x = tensors(**drawn)
    if name in ("chunk_retention", "chunk_linear_attn"):
        del x["g"]
    elif "simple" in name:
        x["g"] = x["g"][..., 0]
    elif name == "fused_recurrent_gla":
        x["gk"] = x.pop("g")
    return x | {key: x[key].to(value) if isinstance(value, torch.dtype) else value for key, value in more.items()}


@pytest.mark.parametrize(("name", "drawn", "more", "why"), LACKING)
def test_each_reason(fake, name, drawn, more, why):
    given = asked(name, drawn, more)
    with accelerate(), pytest.warns(FallbackWarning) as told:
        found = getattr(imported(which.WHERE[name]), name)(**given)
    assert found[0] == name
    assert str(told[0].message).endswith(why)
    assert calls() == {(name, why): 1}


@pytest.mark.parametrize(("name", "drawn", "more", "why"), LACKING)
def test_each_reason_is_an_error_without_fla(no_fla, name, drawn, more, why):
    with pytest.raises(ValueError, match=f"^{name}: .*pip install") as error:
        getattr(gla_kernels.fla, name)(**asked(name, drawn, more))
    assert f"({why})" in str(error.value)
    assert calls() == {}


def test_wide_linear_attention_is_ours(fake):
    """Without gates the kernels are those of `gla`."""
    x = asked("chunk_linear_attn", {"v": (1, 10, 2, 264)}, {})
    assert gla_kernels.fla.chunk_simple_gla(**x)[0].shape == x["v"].shape
    assert calls() == {("chunk_simple_gla", None): 1}


def test_tensors_of_a_cpu_need_the_interpreter(fake, monkeypatch):
    monkeypatch.setattr(gla_kernels.fla.refusals, "interpreting", lambda: False)
    x = {name: tensor.cpu() for name, tensor in tensors().items()}
    with pytest.warns(FallbackWarning, match="a device of the kind cpu"):
        assert gla_kernels.fla.chunk_gla(**x)[0] == "chunk_gla"


def test_gpus_that_the_kernels_are_not_for(monkeypatch):
    lacking = gla_kernels.fla.refusals._no_place
    cuda = torch.device("cuda", 0)
    monkeypatch.setattr(gla_kernels.fla.refusals, "machine_of", lambda device: Machine(75))
    assert lacking(cuda) == "the GPU is of compute capability 7.5, not 8.0 or later"
    monkeypatch.setattr(gla_kernels.fla.refusals, "machine_of", lambda device: Machine(80))
    assert lacking(cuda) is None
    monkeypatch.setattr(torch.version, "hip", "7.0")
    assert lacking(cuda) == "tensors are on a device of the kind hip"
    assert lacking(torch.device("xpu")) == "tensors are on a device of the kind xpu"
    assert lacking(torch.device("meta")) is None


@pytest.fixture
def no_fla(fake, monkeypatch):
    """Nothing of that name can be imported."""
    monkeypatch.setitem(sys.modules, "fla", None)


def test_without_fla_the_error_says_what_to_install(no_fla):
    with pytest.raises(ImportError, match="pip install flash-linear-attention"):
        accelerate()
    assert gla_kernels.fla.chunk_gla(**tensors())[0].isfinite().all()


def test_a_function_with_other_parameters_stays(fake):
    path = fake / "fla" / "ops" / "gla" / "functions.py"
    path.write_text(path.read_text().replace("state_v_first=False, ", "").replace("state_v_first, ", ""))
    with pytest.warns(FallbackWarning, match="stays flash-linear-attention's own") as told:
        accelerated = accelerate()
    with accelerated:
        assert imported("fla.ops.gla").chunk_gla.__module__ == "fla.ops.gla.functions"
        assert imported("fla.ops.simple_gla").chunk_simple_gla is OURS["chunk_simple_gla"]
    assert {str(warning.message).split()[0] for warning in told} == {"chunk_gla", "fused_recurrent_gla"}
    assert told[0].filename == __file__


LAYER = """
import torch
from fla.ops.gla import chunk_gla, fused_recurrent_gla

def layer(q, k, v, g):
    return chunk_gla(q * 2, k, v, g, output_final_state=True)[0] + 1

def backwards(q, k, v, g):
    return q * 2, fused_recurrent_gla(q, k, v, g, reverse=True)[0]
"""


def test_a_compiled_layer_runs_ours_without_a_break_and_theirs_again_afterwards(fake):
    """A graph that was made before is made anew."""
    path = fake / "fla" / "ops" / "gla" / "functions.py"
    path.write_text(
        "import torch\n@torch.compiler.disable\n" + path.read_text().replace("return 'chunk_gla',", "return q,")
    )
    user, x = mine(LAYER), tensors()
    loose = torch.compile(user.layer, backend="aot_eager")
    before = loose(**x)
    assert torch.equal(before, x["q"] * 2 + 1)
    with accelerate():
        whole = torch.compile(user.layer, backend="aot_eager", fullgraph=True)
        want = gla_kernels.gla(x["q"] * 2, x["k"], x["v"], x["g"])[0] + 1
        assert torch.equal(whole(**x), want)
        assert torch.equal(loose(**x), want)
    assert torch.equal(loose(**x), before)


def test_a_graph_that_goes_to_theirs_says_so_as_it_is_made(fake):
    user, x = mine(LAYER), tensors()
    with accelerate():
        whole = torch.compile(user.backwards, backend="aot_eager", fullgraph=True)
        with pytest.warns(FallbackWarning, match="reverse=True"):
            doubled, name = whole(**x)
        whole(**x)
    assert name == "fused_recurrent_gla"
    assert torch.equal(doubled, x["q"] * 2)
    assert calls() == {("fused_recurrent_gla", "reverse=True"): 1}
