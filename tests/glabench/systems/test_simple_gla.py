"""Systems with one decay a head, ours and FLA's, as cases of operators of their own."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch

from gla_kernels import Launch, reference, retnet_decays
from gla_kernels.launch import interpreting
from glabench.run import gate, oracle, retention
from glabench.spec.case import Case
from glabench.spec.settings import Settings
from glabench.systems import load
from glabench.systems.inputs import input_bytes, make_inputs

CUDA = torch.cuda.is_available()
SETTINGS = Settings.for_device("cuda" if CUDA else "cpu")
WHERE = "cuda" if CUDA else "interpreter"


def case_of(name: str, **changes: Any) -> Case:
    """A small ragged case; of retention, without gates."""
    strength = None if "retention" in name else 1.0
    plain = Case(name, 1, 37, 2, 16, 24, "fp32", chunk=32, materialize=True, gate_strength=strength)
    return replace(plain, **changes)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("simple_gla", {"dtype": "bf16", "gate_strength": 16.0}),
        ("simple_gla", {"H": 1, "materialize": False, "initial_state": True}),
        ("retention", {"H": 3, "T": 20, "initial_state": True}),
        ("retention", {"H": 1, "T": 20, "dtype": "bf16", "materialize": False}),
    ],
)
def test_the_gate_passes_it(name: str, changes: dict[str, Any]) -> None:
    found = gate.check(load(name), case_of(name, **changes), SETTINGS, WHERE)
    assert found.passed, found.reason
    states = {"final_state", "dinitial_state"} if changes.get("initial_state") else set()
    gates = {"dg"} if name == "simple_gla" else set()
    assert set(found.accuracy["outputs"]) == {"o", "dq", "dk", "dv"} | states | gates


@pytest.mark.parametrize("name", ["simple_gla", "retention"])
def test_the_gate_can_fail_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    system, case = load(name), case_of(name, mode="fwd", dtype="bf16", T=20)
    right = system.gates  # type: ignore[attr-defined]
    monkeypatch.setattr(system, "gates", lambda inputs, case: right(inputs, case) * 1.1)
    assert not gate.check(system, case, SETTINGS, WHERE).passed


@pytest.mark.skipif(not interpreting(), reason="on a GPU launches are fired together")
@pytest.mark.parametrize("name", ["simple_gla", "retention", "mamba2_ssd"])
def test_planned_gates_are_those_that_kernels_are_given(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[Launch] = []
    monkeypatch.setattr("gla_kernels.launch.record.execute", launched.append)
    system, case = load(name), case_of(name, mode="fwd", dtype="bf16")
    system.forward(system.draw_inputs(case, "cpu"), case)
    given, planned = (
        [(g.dtype, g.shape, g.stride()) for launch in launches if (g := launch.args.get("p_g")) is not None]
        for launches in (launched, system.launches(case, "sm_90"))
    )
    assert given
    assert given == planned


def test_inputs_have_one_gate_a_head() -> None:
    case = case_of("simple_gla", initial_state=True)
    x = make_inputs(case, "simple", "cpu")
    assert x.g is not None
    assert x.g.shape == (1, 37, 2, 1)
    assert x.g.max() < 0
    assert input_bytes(case) == x.nbytes
    constant = case_of("retention")
    assert make_inputs(constant, "retention", "cpu").g is None
    assert input_bytes(constant) == make_inputs(constant, "retention", "cpu").nbytes


def test_retention_is_asked_of_the_heads_that_are_sampled() -> None:
    """Of four heads the first and the last, each with its own decay: the product of decays by hand."""
    question = oracle.ask(case_of("retention", H=4), "cpu", 2)
    assert question.pairs == ((0, 0), (0, 3))
    assert question.names == "float64 recurrence with RetNet's decays"
    ones = torch.ones(1, 3, 2, 1, dtype=torch.float64)
    o, state = retention.form(reference.recurrent, (0, 3))(ones, ones, ones, None, initial_state=None)
    for place, gamma in ((0, 1 - 2.0**-5), (1, 1 - 2.0**-8)):
        assert o[0, :, place, 0].tolist() == pytest.approx([1.0, 1 + gamma, 1 + gamma + gamma**2])
        assert state[0, place].item() == pytest.approx(1 + gamma + gamma**2)
    assert torch.equal(retention.decays((0, 1, 2), torch.ones(1)).flatten(), retnet_decays(3))


@pytest.mark.parametrize("name", ["fla_simple", "fla_retention"])
def test_fla_is_called_as_its_signature_has_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With functions in the place of fla-core 0.6.0's, which need a GPU."""

    def chunk_simple_gla(q: Any, k: Any, v: Any, g: Any, *, initial_state: Any, output_final_state: bool) -> Any:
        assert g.shape == q.shape[:3]
        o, state = reference.recurrent(q, k, v, g[..., None], initial_state=initial_state)
        return o, state if output_final_state else None

    def chunk_retention(q: Any, k: Any, v: Any, *, initial_state: Any, output_final_state: bool) -> Any:
        g = retnet_decays(q.shape[2], q.device).expand(q.shape[:3])
        return chunk_simple_gla(q, k, v, g, initial_state=initial_state, output_final_state=output_final_state)

    for module, function in (("simple_gla", chunk_simple_gla), ("retention", chunk_retention)):
        fake = ModuleType(f"fla.ops.{module}")
        setattr(fake, function.__name__, function)
        monkeypatch.setitem(sys.modules, fake.__name__, fake)
    for parent in ("fla", "fla.ops"):
        monkeypatch.setitem(sys.modules, parent, ModuleType(parent))
    for states in (True, False):
        case = case_of(name, chunk=None, materialize=None, T=20, initial_state=states)
        found = gate.check(load(name), case, SETTINGS, "cuda" if CUDA else "cpu")
        assert found.passed, found.reason


def test_fla_says_where_its_kernels_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    from glabench.systems import fla

    system, case = load("fla_simple"), case_of("fla_simple")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(fla, "package_version", lambda name: "3.6.0")
    assert "triton >= 3.7.1" in str(system.unsupported(case, "cuda"))
    assert system.unsupported(replace(case, mode="fwd"), "cuda") is None
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)  # tilelang, too
    assert system.unsupported(replace(case, dtype="fp32"), "cuda") is None
    for dtype in ("bf16", "fp16"):
        assert "in fp32 alone" in str(system.unsupported(replace(case, dtype=dtype), "cuda"))
    monkeypatch.setattr(fla, "package_version", lambda name: "3.7.1+git")
    assert system.unsupported(case, "cuda") is None
    assert system.implementation(case).endswith("chunk_simple_gla, triton 3.7.1+git")
    monkeypatch.setattr(fla, "package_version", lambda name: "3.6.0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    assert system.unsupported(case, "cuda") is None


def test_the_mlstm_is_asked_with_forget_gates_before_their_sigmoid(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in with the package's signature: [B, H, T, D], gates [B, H, T]."""

    inputs_open = []

    def mlstm(q: Any, k: Any, v: Any, i: Any, f: Any, **options: Any) -> torch.Tensor:
        inputs_open.append(i)
        assert options == {"normalize": False, "chunk_size": 128, "autocast_kernel_dtype": q.dtype}
        gates = torch.nn.functional.logsigmoid(f)[..., None].transpose(1, 2)
        keys = k * torch.sigmoid(i)[..., None]
        o, _ = reference.chunkwise(q.transpose(1, 2), keys.transpose(1, 2), v.transpose(1, 2), gates)
        return o.transpose(1, 2)

    package = ModuleType("mlstm_kernels.torch.chunkwise")
    package.mlstm_siging_chunkwise__xl_chunk = mlstm  # type: ignore[attr-defined]
    for parent in ("mlstm_kernels", "mlstm_kernels.torch"):
        monkeypatch.setitem(sys.modules, parent, ModuleType(parent))
    monkeypatch.setitem(sys.modules, package.__name__, package)
    system = load("mlstm_tfla")
    for strength in (0.06, 16.0):
        case = case_of("mlstm_tfla", chunk=None, materialize=None, T=128, gate_strength=strength)
        found = gate.check(system, case, SETTINGS, "cuda" if CUDA else "cpu")
        assert found.passed, found.reason
    assert all(one is inputs_open[0] for one in inputs_open)  # made once
    assert "multiples of its chunks of 128" in str(system.unsupported(replace(case, T=100), "cuda"))
    assert "forget gates" in str(system.unsupported(replace(case, gate_strength=None), "cuda"))
    assert "initial state" in str(system.unsupported(replace(case, initial_state=True), "cuda"))


def test_retention_makes_no_gradient_of_its_gates() -> None:
    """Which is summed up over tiles of K."""
    for name, asked in (("simple_gla", True), ("retention", False)):
        launches = {launch.name: launch for launch in load(name).launches(case_of(name), "sm_90")}
        assert launches["simple_grad_qk_kernel"].constants["GRAD_G"] is asked
        assert ("sum_kernel" in launches) is asked


def test_it_says_which_schedule_runs() -> None:
    assert load("simple_gla").implementation(case_of("simple_gla")).endswith("chunks of 32 w/ m.")
    bare = case_of("retention", chunk=None, materialize=None)
    assert load("retention").implementation(bare).endswith("chunks of 64 w/ m.")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize(("T", "K", "V"), [(1001, 64, 64), (1001, 128, 128), (520, 100, 256)])
@pytest.mark.parametrize("materialize", [True, False])
@pytest.mark.parametrize(("name", "strength"), [("simple_gla", 0.06), ("simple_gla", 40.0), ("retention", None)])
def test_real_sizes(
    name: str, strength: float | None, materialize: bool, T: int, K: int, V: int, dtype: Any
) -> None:  # fmt: skip
    sizes = {"B": 2, "T": T, "K": K, "V": V, "chunk": 64, "initial_state": True}
    case = case_of(name, dtype=dtype, materialize=materialize, gate_strength=strength, **sizes)
    found = gate.check(load(name), case, Settings(), "cuda")
    assert found.passed, found.reason
