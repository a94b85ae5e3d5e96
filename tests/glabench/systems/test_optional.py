"""Rivals that are rarely installed, played by modules of their signatures that compute the same with plain PyTorch."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from gla_kernels import reference
from glabench.run import gate
from glabench.spec.case import Case
from glabench.spec.settings import Settings
from glabench.systems import fa2, fa4, jax_bridge, jla, load, tileops
from glabench.systems.inputs import make_inputs

SETTINGS = Settings.for_device("cpu")
CASE = Case("jla", 2, 64, 2, 16, 32, "fp32", "fwdbwd")


def install(monkeypatch: pytest.MonkeyPatch, name: str, **contents: Any) -> None:
    """A module of that dotted name, with its parents."""
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        module = ModuleType(".".join(parts[:end]))
        monkeypatch.setitem(sys.modules, module.__name__, module)
    vars(module).update(contents)


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing of a stand-in is kept, and no variable of JAX's is set."""
    monkeypatch.setenv(jax_bridge.PREALLOCATE, "to be restored")
    monkeypatch.delenv(jax_bridge.PREALLOCATE)
    kept = (jla.bridged, tileops.inference, tileops.training)
    for one in kept:
        one.cache_clear()
    yield
    for one in kept:
        one.cache_clear()


def test_a_missing_package_comes_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(fa4, "package_version", lambda name: None)
    jax = "pip install 'jax-linear-attention[cuda]'"
    said = {
        "jla": f"the package jla is not installed; {jax}",
        "jla_simple": f"the package jla is not installed; {jax}",
        "tileops": "the package tileops is not installed; pip install tileops",
        "fa4": "the package flash-attn-4 is not installed; pip install --pre 'flash-attn-4[cu13]', without [cu13] for"
        " CUDA 12",
    }
    for name, words in said.items():
        assert str(load(name).unavailable("cuda")) == words
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "jax" else name)
    monkeypatch.setattr(fa4, "package_version", lambda name: "4.0.0b36")
    assert str(load("jla").unavailable("cuda")) == f"the package jax is not installed; {jax}"
    for name in ("tileops", "fa4"):
        assert load(name).unavailable("cuda") is None
        assert "NVIDIA GPU" in str(load(name).unavailable("cpu"))


def test_the_row_says_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (fa4, jla, tileops):
        monkeypatch.setattr(module, "package_version", lambda name: f"1 of {name}")
    said = {
        "jla": "jax-linear-attention 1 of jax-linear-attention gla (Mosaic GPU), jax 1 of jax",
        "tileops": "tileops 1 of tileops GLAChunkFwdOp and GLAChunkBwdOp, tilelang 1 of tilelang, tuned by itself",
        "fa4": "flash-attn-4 1 of flash-attn-4, nvidia-cutlass-dsl 1 of nvidia-cutlass-dsl",
    }
    for name, words in said.items():
        assert load(name).implementation(replace(CASE, system=name)) == words
    assert "tileops GLAFwdOp, tilelang" in load("tileops").implementation(replace(CASE, mode="fwd"))


class Jax:
    """Of JAX what is called, where arrays are tensors; what is compiled counts how often it is."""

    compiled = 0

    @staticmethod
    def jit(function: Any) -> Any:
        Jax.compiled += 1
        return function

    @staticmethod
    def vjp(function: Any, *inputs: torch.Tensor) -> Any:
        leaves = [x.clone().requires_grad_() for x in inputs]
        with torch.enable_grad():
            found = function(*leaves)

        def pull(ups: tuple[torch.Tensor, ...]) -> Any:
            return torch.autograd.grad(found, leaves, ups, retain_graph=True)

        return tuple(x.detach() for x in found), pull

    @staticmethod
    def from_dlpack(x: torch.Tensor) -> torch.Tensor:
        assert x.is_contiguous()
        assert not x.requires_grad
        return x


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What jax-linear-attention's function is asked, with JAX and it in place."""
    calls: list[tuple[Any, ...]] = []

    def linear_attention(kind: str, q: Any, k: Any, v: Any, *, impl: str, g: Any, **options: Any) -> Any:
        assert impl == "mosaic_gpu"
        calls.append((kind, tuple(g.shape), sorted(options)))
        gates = g[..., None] if kind == "simple_gla" else g
        q, k = (x.repeat_interleave(v.shape[2] // x.shape[2], 2) for x in (q, k))  # which simple_gla alone takes
        o, state = reference.recurrent(q, k, v, gates, initial_state=options.get("initial_state"))
        return o, state if options.get("output_final_state") else None

    install(monkeypatch, "jax", jit=Jax.jit, vjp=Jax.vjp)
    dlpack = ModuleType("jax.dlpack")
    vars(dlpack).update(from_dlpack=Jax.from_dlpack)
    vars(sys.modules["jax"]).update(dlpack=dlpack)
    install(monkeypatch, "jla.ops", linear_attention=linear_attention)
    return calls


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        *((name, one) for name in ("jla", "jla_simple") for one in ({}, {"mode": "fwd"}, {"initial_state": True})),
        ("jla_simple", {"qk_heads": 1}),
    ],
)
def test_kernels_of_jax_are_asked_what_the_operator_is(
    asked: list[tuple[Any, ...]], name: str, changes: dict[str, Any]
) -> None:
    case = replace(CASE, system=name, **changes)
    verdict = gate.check(load(name), case, SETTINGS, "cpu")
    assert verdict.passed, verdict.reason
    assert ("final_state" in verdict.accuracy["outputs"]) == case.initial_state
    gradients = {"dq", "dk", "dv", "dg"} if case.mode == "fwdbwd" else set()
    assert gradients <= set(verdict.accuracy["outputs"])
    kind, shape = ("gla", (2, 64, 2, 16)) if name == "jla" else ("simple_gla", (2, 64, 2))
    assert set(map(str, asked)) == {
        str((kind, shape, ["initial_state", "output_final_state"] if case.initial_state else []))
    }


def test_gradients_through_jax_are_taken_again_and_nothing_is_compiled_twice(asked: list[tuple[Any, ...]]) -> None:
    system, compiled = load("jla"), Jax.compiled
    inputs = make_inputs(CASE, "gla", "cpu").with_grad()
    o, _ = system.forward(inputs, CASE)
    leaves = list(inputs.leaves().values())
    once = torch.autograd.grad(o, leaves, inputs.do, retain_graph=True)
    turned = inputs.do.transpose(1, 2).contiguous().transpose(1, 2)  # no array lies like that in memory
    again = torch.autograd.grad(o, leaves, turned, retain_graph=True)
    assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))
    system.forward(make_inputs(CASE, "gla", "cpu", salt=1), CASE)
    assert Jax.compiled == compiled + 3


def test_jax_leaves_pytorch_its_memory_unless_somebody_says_otherwise(
    asked: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    jla.bridged("gla")
    assert os.environ[jax_bridge.PREALLOCATE] == "false"
    monkeypatch.setenv(jax_bridge.PREALLOCATE, "true")
    jla.bridged("simple_gla")
    assert os.environ[jax_bridge.PREALLOCATE] == "true"


def test_kernels_of_hoppers_own_are_refused_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    case = replace(CASE, dtype="bf16", K=64, V=64)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for capability, refused in (((8, 0), True), ((9, 0), False), ((10, 0), True)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda found=capability: found)
        for name in ("jla", "jla_simple"):
            assert ("Hopper" in str(load(name).unsupported(case, "cuda"))) == refused


def _recurrence(q: Any, k: Any, v: Any, g: Any, initial_state: Any) -> Any:
    assert q.dtype == k.dtype == v.dtype == g.dtype
    return reference.recurrent(q, k, v, g, initial_state=initial_state)


class TileOp:
    """What operators of TileOPs share; each must be asked to tune itself before it is called."""

    def __init__(self, **options: Any) -> None:
        assert options.pop("chunk_size", 64) == 64
        self.options, self.tuned = options, False

    def request_tune(self) -> None:
        self.tuned = True

    def __call__(self, *inputs: Any) -> Any:
        assert self.tuned
        return self.forward(*inputs)

    def forward(self, *inputs: Any) -> Any:
        raise NotImplementedError


class Inference(TileOp):
    def forward(self, q: Any, k: Any, v: Any, g: Any, initial_state: Any = None) -> Any:
        return _recurrence(q, k, v, g, initial_state)


class ChunkForward(TileOp):
    def forward(self, q: Any, k: Any, v: Any, g: Any, initial_state: Any = None) -> Any:
        o, state = _recurrence(q, k, v, g, initial_state)
        first = torch.zeros_like(state) if initial_state is None else initial_state
        return o, state, torch.stack([first, state], 1)


class ChunkBackward(TileOp):
    def forward(self, do: Any, dfinal_state: Any, q: Any, k: Any, v: Any, g: Any, h: Any) -> Any:
        """From the first state among those that the forward pass handed on; gradients in float32."""
        leaves = [x.detach().clone().requires_grad_() for x in (q, k, v, g, h[:, 0])]
        with torch.enable_grad():
            found = torch.autograd.grad(_recurrence(*leaves), leaves, (do, dfinal_state))
        *numbers, dinitial = (x.float() for x in found)
        return *numbers, dinitial if self.options["has_initial_state"] else None


@pytest.mark.parametrize("changes", [{}, {"mode": "fwd"}, {"initial_state": True}, {"dtype": "bf16"}])
def test_tileops_is_called_as_its_signatures_have_it(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of tileops 0.1.0."""
    names = {"GLAFwdOp": Inference, "GLAChunkFwdOp": ChunkForward, "GLAChunkBwdOp": ChunkBackward}
    case = replace(CASE, system="tileops", **changes)
    unused = {"GLAFwdOp"} if case.mode != "fwd" else {"GLAChunkFwdOp", "GLAChunkBwdOp"}
    install(monkeypatch, "tileops.linear_attention", **{n: None if n in unused else op for n, op in names.items()})
    verdict = gate.check(load("tileops"), case, SETTINGS, "cpu")
    assert verdict.passed, verdict.reason
    assert ("final_state" in verdict.accuracy["outputs"]) == case.initial_state
    if case.mode == "fwdbwd":
        inputs = make_inputs(case, "gla", "cpu").with_grad()
        o, _ = load("tileops").forward(inputs, case)
        leaves = inputs.leaves()
        found = torch.autograd.grad(o, list(leaves.values()), inputs.do, allow_unused=True)
        assert [x.dtype for x in found] == [x.dtype for x in leaves.values()]


def test_flash_attention_4_is_called_as_its_signature_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of flash-attn-4 4.0.0b36, which returns row sums besides, None where nobody asked."""

    def flash_attn_func(q: Any, k: Any, v: Any, *, causal: bool) -> tuple[torch.Tensor, None]:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2), None

    install(monkeypatch, "flash_attn.cute", flash_attn_func=flash_attn_func)
    verdict = gate.check(load("fa4"), replace(CASE, system="fa4", attn_heads=2, attn_dim=16), SETTINGS, "cpu")
    assert verdict.passed, verdict.reason
    assert {"o", "dq", "dk", "dv"} <= set(verdict.accuracy["outputs"])


@pytest.mark.skipif(importlib.util.find_spec("flash_attn") is not None, reason="FlashAttention is installed")
def test_flash_attention_4_alone_is_not_taken_for_the_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "flash_attn" / "cute").mkdir(parents=True)
    (tmp_path / "flash_attn" / "cute" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    assert importlib.util.find_spec("flash_attn") is not None
    second = load("fa2")
    assert isinstance(second, fa2.FlashAttention2)
    assert not second.packaged
    (tmp_path / "flash_attn" / "__init__.py").write_text("")
    importlib.invalidate_caches()
    assert second.packaged
