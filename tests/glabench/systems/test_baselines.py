"""The papers' rival forms against the float64 recurrence, at every gate strength, and what they say of themselves."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from gla_kernels import reference
from glabench import failures
from glabench.run import gate, oracle
from glabench.run.errors import distance, sizes
from glabench.spec.case import Case, Mode
from glabench.spec.catalog import CATALOG
from glabench.spec.settings import Settings
from glabench.systems import System, load
from glabench.systems.baselines import Form
from glabench.systems.baselines.lightning2 import lightning
from glabench.systems.inputs import DTYPES, Inputs, make_inputs
from glabench.systems.lightning2 import Lightning2

CHUNKED = {"chunkwise_direct": 16}
GATED = ("recurrent_hbm", "scan", "chunkwise_direct", "parallel_triton")
UNGATED = ("lightning2",)
EVERY = GATED + UNGATED
STATEFUL = ("recurrent_hbm", "scan", "chunkwise_direct", "lightning2")
# What takes few seconds and still is several blocks of rows with a ragged rest: two chunks of 16, unless said here. The
# interpreter scans over one number after another.
TOKENS = {"recurrent_hbm": 13, "scan": 20}
DIMS = {"scan": (4, 6)}  # K and V
SHAPES = [(name, 2, 1, 8, 8) for name in EVERY]
SHAPES += [(name, 1, 5, 5, 70) if name == "scan" else (name, 1, 18, 70, 72) for name in EVERY]
REAL = [(name, gates) for name in EVERY for gates in ((None, 1.0, 40.0) if name in GATED else (None,))]
MODES: tuple[Mode, ...] = ("fwd", "bwd", "fwdbwd")
CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"


def case_of(name: str, **changes: Any) -> Case:
    """A small ragged case; of a system without gates, ungated."""
    gates = 1.0 if name in GATED else None
    tokens = TOKENS.get(name, 37)
    K, V = DIMS.get(name, (16, 24))
    plain = Case(name, 1, tokens, 2, K, V, "fp32", chunk=CHUNKED.get(name), gate_strength=gates)
    return replace(plain, **changes)


def inputs_of(case: Case, kind: str = "random") -> Inputs:
    """The case's inputs. "resets": weak gates of which one in eight is -1e4; "closed": all of them are."""
    x = make_inputs(case, "gla", DEVICE)
    if x.g is None or kind == "random":
        return x
    hard = torch.rand(x.g.shape, device=DEVICE) < (0.125 if kind == "resets" else 2.0)
    return replace(x, g=torch.where(hard, torch.full_like(x.g, -1e4), x.g / 16))


def plain_form(q: Any, k: Any, v: Any, g: Any, *, initial_state: Any) -> Any:
    return reference.chunkwise(q, k, v, g, initial_state=initial_state)


def compare(system: System, case: Case, x: Inputs, right: oracle.Form = reference.recurrent) -> None:
    """Every output and gradient is finite and within what the gate allows of ``right`` in float64, as a whole and in
    blocks of 16 rows."""
    doubles = replace(x, **{name: t.double() for name, t in x.tensors()})
    exact = oracle.differentiate(right, doubles)
    plain = oracle.differentiate(plain_form if right is reference.recurrent else right, x)
    found = gate.run_once(system, x, case, gradients=True)
    assert found.keys() == exact.keys()
    unit = gate.FLOOR[case.dtype] * torch.finfo(DTYPES[case.dtype]).eps / 2
    for name, out in found.items():
        assert torch.isfinite(out).all(), f"{name} has values that are not finite"
        mine, ref, rough = (by_pair(t, name) for t in (out, exact[name], plain[name]))
        terms = by_pair(doubles.q * exact["dq"], name) if name == "dg" else None
        against = sizes(ref, name, DTYPES[case.dtype], terms)
        off, usual = distance(mine, ref, against, name), distance(rough, ref, against, name)
        assert off.whole <= max(4 * usual.whole, unit), f"{name}: {off} where PyTorch has {usual}"
        assert off.block <= max(4 * usual.block, 2 * unit), f"{name}: {off} where PyTorch has {usual}"


def by_pair(x: torch.Tensor, name: str) -> torch.Tensor:
    """Heads side by side: [B, T, H, D] -> [1, T, B*H, D], states [B, H, K, V] -> [1, B*H, K, V]."""
    if "state" in name:
        return x.flatten(0, 1)[None]
    return x.transpose(0, 1).flatten(1, 2)[None]


@pytest.mark.parametrize("gates", [None, 1.0, 40.0, "resets", "closed"])
@pytest.mark.parametrize("name", GATED)
def test_every_gate_strength(name: str, gates: Any) -> None:
    strength = 1.0 if isinstance(gates, str) else gates
    case = case_of(name, H=1, gate_strength=strength, initial_state=name in STATEFUL)
    compare(load(name), case, inputs_of(case, gates if isinstance(gates, str) else "random"))


@pytest.mark.each_value  # gates of all kinds are above, in float32
@pytest.mark.parametrize(("dtype", "gates"), [("bf16", "resets"), ("fp16", "random")])
@pytest.mark.parametrize("name", EVERY)
def test_16_bits(name: str, dtype: Any, gates: str) -> None:
    case = case_of(name, dtype=dtype, H=1)
    compare(load(name), case, inputs_of(case, gates))


@pytest.mark.parametrize("name", GATED)
def test_gates_in_float32(name: str) -> None:
    case = case_of(name, dtype="bf16", gate_dtype="fp32", H=1)
    x = inputs_of(case)
    assert x.g is not None
    assert (x.q.dtype, x.g.dtype) == (torch.bfloat16, torch.float32)
    compare(load(name), case, x)
    gates = [one.args["p_g"] for one in load(name).launches(case, "sm_90") if one.args.get("p_g") is not None]
    assert {g.dtype for g in gates} == {torch.float32}


@pytest.mark.parametrize(("name", "B", "T", "K", "V"), SHAPES)
def test_any_shape(name: str, B: int, T: int, K: int, V: int) -> None:
    case = case_of(name, B=B, H=1, T=T, K=K, V=V)
    compare(load(name), case, inputs_of(case))


@pytest.mark.parametrize("chunk", [32, 64])
def test_larger_chunks(chunk: int) -> None:
    case = case_of("chunkwise_direct", H=1, T=70, chunk=chunk, initial_state=True)
    compare(load("chunkwise_direct"), case, inputs_of(case, "resets"))


@pytest.mark.parametrize("name", EVERY)
def test_the_gate_that_precedes_timing_passes_and_can_fail(name: str) -> None:
    settings = Settings.for_device("cuda" if CUDA else "cpu")
    case = case_of(name, dtype="bf16")
    system = load(name)
    found = gate.check(system, case, settings, "cuda" if CUDA else "interpreter")
    assert found.passed, found.reason
    right = system.forward
    system.forward = lambda inputs, case: right(replace(inputs, k=inputs.k * 1.05), case)  # type: ignore[method-assign]
    assert not gate.check(system, replace(case, mode="fwd"), settings, "cuda" if CUDA else "interpreter").passed


@pytest.mark.parametrize("name", EVERY)
def test_launches_are_those_of_each_direction(name: str) -> None:
    system, case = load(name), case_of(name, dtype="bf16", T=300, K=128, V=128)
    forward, backward, both = (
        [launch.name for launch in system.launches(replace(case, mode=mode), "sm_90")] for mode in MODES
    )
    assert forward
    assert backward
    assert both == forward + backward


class Decaying(Lightning2):
    """lightning2 with RetNet's decays."""

    def found(self) -> Form:
        return lightning(retnet_decays())


def retnet_decays() -> torch.Tensor:
    """log(1 - 2^(-5-h)) of two heads, the first of them made stronger; float32 [2]."""
    return torch.tensor([-3.0, math.log(1 - 2.0**-6)], device=DEVICE)


def decaying_form(q: torch.Tensor, k: Any, v: Any, g: None, *, initial_state: Any) -> Any:
    """The recurrence with the decays as gates, the same for all of K."""
    gates = retnet_decays().to(q.dtype)[None, None, :, None].expand_as(q)
    return reference.recurrent(q, k, v, gates, initial_state=initial_state)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("states", [True, False])
def test_decays_of_heads(dtype: Any, states: bool) -> None:
    case = case_of("lightning2", dtype=dtype, T=70, initial_state=states)
    compare(Decaying(CATALOG["lightning2"]), case, inputs_of(case), right=decaying_form)


def test_no_gate_and_states_at_both_ends() -> None:
    case = case_of("lightning2", T=70, B=2, H=1, initial_state=True)
    compare(load("lightning2"), case, inputs_of(case))


@pytest.mark.gpu
def test_states_that_do_not_fit_are_out_of_memory() -> None:
    case = case_of("recurrent_hbm", T=2**18, H=32, K=128, V=128, dtype="bf16")  # states of 275 GB
    x = inputs_of(case)
    with pytest.raises(torch.OutOfMemoryError) as error:
        load("recurrent_hbm").forward(x, case)
    assert failures.classify(error.value) == "oom"


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize(("T", "K", "V"), [(1001, 64, 64), (1001, 128, 128), (520, 100, 256)])
@pytest.mark.parametrize(("name", "gates"), REAL)
def test_real_sizes(name: str, gates: float | None, dtype: Any, T: int, K: int, V: int) -> None:
    sizes = {"T": T, "K": K, "V": V, "chunk": 64 if name in CHUNKED else None}
    case = case_of(name, B=2, dtype=dtype, gate_strength=gates, initial_state=name in STATEFUL, **sizes)
    found = gate.check(load(name), case, Settings(), "cuda")
    assert found.passed, found.reason
