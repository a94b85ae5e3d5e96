"""Packed sequences: who takes them, in whose words, and that the gate sees what one sequence does to another."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from types import ModuleType
from typing import Any

import pytest
import torch

from gla_kernels import reference, retnet_decays
from glabench.run import gate, oracle
from glabench.spec.case import Case
from glabench.spec.catalog import CATALOG
from glabench.spec.expand import fitted
from glabench.spec.settings import Settings
from glabench.systems import load
from glabench.systems.base import System
from glabench.systems.inputs import Inputs, make_inputs

CUDA = torch.cuda.is_available()
WHERE = "cuda" if CUDA else "cpu"
SETTINGS = Settings.for_device("cuda" if CUDA else "cpu")
LENGTHS = "13,1,40,6"


def case_of(name: str, **changes: Any) -> Case:
    values = {"system": name, "B": 1, "T": 60, "H": 2, "K": 8, "V": 12, "dtype": "fp32", "lengths": LENGTHS}
    return Case(**fitted({**values, **changes}))


def check(system: System, case: Case) -> gate.Verdict:
    return gate.check(system, case, SETTINGS, WHERE)


def test_systems_that_cannot_pack_say_so() -> None:
    can = {name for name in CATALOG if load(name).refusal_by_catalog(case_of(name)) is None}
    assert can == {
        "gla", "gla_recurrent", "recurrent_torch", "chunkwise_torch", "parallel_torch", "simple_gla", "retention",
        "fa2", "fla", "fla_linear", "fla_simple", "fla_retention", "fla_recurrent",
    }  # fmt: skip
    assert load("helion").refusal_by_catalog(case_of("helion")) == "helion has no packed sequences"


def test_systems_without_gates_of_another_dtype_say_so() -> None:
    gated = [name for name, info in CATALOG.items() if info.gated]
    cases = {name: replace(case_of(name, lengths=None, dtype="bf16"), gate_dtype="fp32") for name in gated}
    cannot = {name for name, case in cases.items() if load(name).refusal_by_catalog(case) is not None}
    assert cannot == {"helion", "mamba2_ssd", "tileops"}
    refused = load("helion").refusal_by_catalog(cases["helion"])
    assert refused == "helion has no gates in another dtype than q"


@pytest.mark.parametrize("states", [True, False])
@pytest.mark.parametrize("name", ["recurrent_torch", "chunkwise_torch", "parallel_torch"])
def test_plain_forms_take_one_after_another_and_say_so(name: str, states: bool) -> None:
    case = case_of(name, initial_state=states)
    found = check(load(name), case)
    assert found.passed, found.reason
    assert load(name).implementation(case).endswith(", sequences one after another")
    assert "sequences" not in load(name).implementation(replace(case, lengths=None))


class Leaky(System):
    """The recurrence of packed sequences that begin elsewhere."""

    def __init__(self, bounds: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__(CATALOG["recurrent_torch"])
        self.bounds = bounds

    def implementation(self, case: Case) -> str:
        return "a planted fault"

    def forward(self, x: Inputs, case: Case) -> tuple[torch.Tensor, torch.Tensor]:
        assert x.cu_seqlens is not None
        bounds = self.bounds(x.cu_seqlens)
        return reference.recurrent(x.q, x.k, x.v, x.g, None, x.initial_state, cu_seqlens=bounds)


def test_a_sequence_that_knows_of_another_is_wrong() -> None:
    case = case_of("recurrent_torch", initial_state=True)
    assert check(Leaky(lambda bounds: bounds), case).passed

    def later(bounds: torch.Tensor) -> torch.Tensor:  # by one row, between two of the sequences
        return bounds + torch.tensor([0, 0, 0, 1, 0], dtype=bounds.dtype, device=bounds.device)

    found = check(Leaky(later), case)
    assert not found.passed
    outputs = found.accuracy["outputs"]
    assert {name for name, one in outputs.items() if one["error"] > one["tolerance"]} >= {"o", "final_state", "dk"}


def test_a_state_that_is_another_sequence_s_is_wrong() -> None:
    class Turned(Leaky):
        def forward(self, x: Inputs, case: Case) -> tuple[torch.Tensor, torch.Tensor]:
            o, state = super().forward(x, case)
            return o, state.roll(1, 0)

    found = check(Turned(lambda bounds: bounds), case_of("recurrent_torch", initial_state=True))
    assert not found.passed


@pytest.mark.parametrize("operator", ["gla", "simple", "retention"])
def test_what_is_right_is_right_for_each_sequence_alone(operator: Any) -> None:
    name = {"gla": "gla", "simple": "simple_gla", "retention": "retention"}[operator]
    case = case_of(name, initial_state=True, mode="fwd")
    question = oracle.ask(case, "cpu", 8)
    found = oracle.answer(question).reference
    picked = oracle.picked_of(make_inputs(case, operator, "cpu"), question)
    right, _ = oracle._forms(question)
    start = 0
    assert found["final_state"].shape == (1, 4 * 2, 8, 12)
    for n, length in enumerate(case.sequences or ()):
        rows, state = slice(start, start + length), slice(n, n + 1)
        parts = {key: (x[state] if "state" in key else x[:, rows]).double() for key, x in picked.tensors()}
        alone = right(Inputs(**parts))
        for key, x in alone.items():
            mine = found[key][:, 2 * n : 2 * n + 2] if "state" in key else found[key][:, rows]
            assert torch.allclose(mine, x, rtol=1e-12, atol=1e-12), key
        start += length


def test_attention_of_packed_sequences_is_of_each_alone() -> None:
    case = case_of("fa2", dtype="fp32", attn_heads=2, attn_dim=12)
    found = oracle.answer(oracle.ask(case, "cpu", 8)).reference
    x = make_inputs(case, "attention", "cpu").with_grad()
    parts = []
    start = 0
    for length in case.sequences or ():
        q, k, v = (t[:, start : start + length].double().transpose(1, 2) for t in (x.q, x.k, x.v))
        parts.append(torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2))
        start += length
    o = torch.cat(parts, dim=1)
    grads = torch.autograd.grad(o, [x.q, x.k, x.v], x.do.double())
    for name, expected in zip(("o", "dq", "dk", "dv"), (o, *grads), strict=True):
        assert torch.allclose(found[name], expected.double(), atol=1e-6), name


@pytest.mark.parametrize("interpreter", [True, False])
@pytest.mark.parametrize("lengths", ["one-long:9", "uniform:1024", "8192", "1300,547,2048,963,271,3063"])
def test_a_cpu_compares_the_first_few_sequences_cut_short(lengths: str, interpreter: bool) -> None:
    case = Case("gla", 1, 8192, 96, 128, 128, lengths=lengths)
    found = gate.reduced(case, load("gla"), Settings.for_device("cpu"), interpreter)
    sequences = found.sequences
    assert sequences is not None
    assert len(sequences) == min(4, case.states)
    assert sum(sequences) == found.T <= max(SETTINGS.gate_tokens_cpu, 200)
    assert all(short <= whole for short, whole in zip(sequences, case.sequences or (), strict=False))


def stand_in(monkeypatch: pytest.MonkeyPatch, module: str, name: str, function: Any) -> None:
    """A function of a package that is not here, or needs a GPU."""
    parts = module.split(".")
    for end in range(1, len(parts)):
        parent = ".".join(parts[:end])
        if parent not in sys.modules or parent == parts[0]:
            monkeypatch.setitem(sys.modules, parent, ModuleType(parent))
    fake = sys.modules.get(module) or ModuleType(module)
    setattr(fake, name, function)
    monkeypatch.setitem(sys.modules, module, fake)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("name", ["fla", "fla_linear", "fla_simple", "fla_retention", "fla_recurrent"])
def test_fla_gets_the_same_lengths_on_the_host_too_where_it_takes_them(
    monkeypatch: pytest.MonkeyPatch, name: str, packed: bool
) -> None:
    """With functions of fla-core 0.6.0's signatures in its place."""
    seen = []

    def run(q: Any, k: Any, v: Any, g: Any, state: Any, final: bool, bounds: Any) -> Any:
        seen.append(bounds)
        o, last = reference.recurrent(q, k, v, g, None, state, cu_seqlens=bounds)
        return o, last if final else None

    def both(device: Any, host: Any) -> Any:
        assert (device is None) == (host is None)
        assert device is None or (host.device.type == "cpu" and device.tolist() == host.tolist())
        return device

    def chunk_gla(q: Any, k: Any, v: Any, g: Any, scale: Any = None, initial_state: Any = None,
                  output_final_state: bool = False, state_v_first: bool = False, cu_seqlens: Any = None,
                  cu_seqlens_cpu: Any = None) -> Any:  # fmt: skip
        return run(q, k, v, g, initial_state, output_final_state, both(cu_seqlens, cu_seqlens_cpu))

    def chunk_simple_gla(q: Any, k: Any, v: Any, g: Any = None, initial_state: Any = None,
                         output_final_state: bool = False, cu_seqlens: Any = None,
                         cu_seqlens_cpu: Any = None) -> Any:  # fmt: skip
        gates = g[..., None]
        return run(q, k, v, gates, initial_state, output_final_state, both(cu_seqlens, cu_seqlens_cpu))

    def chunk_linear_attn(q: Any, k: Any, v: Any, scale: Any = None, initial_state: Any = None,
                          output_final_state: bool = False, normalize: bool = True,
                          cu_seqlens: Any = None) -> Any:  # fmt: skip
        assert not normalize
        return run(q, k, v, None, initial_state, output_final_state, cu_seqlens)

    def chunk_retention(q: Any, k: Any, v: Any, scale: Any = None, initial_state: Any = None,
                        output_final_state: bool = False, cu_seqlens: Any = None) -> Any:  # fmt: skip
        g = retnet_decays(q.shape[2], q.device)[:, None].expand(*q.shape[:3], 1)
        return run(q, k, v, g, initial_state, output_final_state, cu_seqlens)

    def fused_recurrent_gla(q: Any, k: Any, v: Any, gk: Any = None, initial_state: Any = None,
                            output_final_state: bool = False, cu_seqlens: Any = None) -> Any:  # fmt: skip
        return run(q, k, v, gk, initial_state, output_final_state, cu_seqlens)

    stand_in(monkeypatch, "fla.ops.gla", "chunk_gla", chunk_gla)
    stand_in(monkeypatch, "fla.ops.gla", "fused_recurrent_gla", fused_recurrent_gla)
    stand_in(monkeypatch, "fla.ops.simple_gla", "chunk_simple_gla", chunk_simple_gla)
    stand_in(monkeypatch, "fla.ops.linear_attn", "chunk_linear_attn", chunk_linear_attn)
    stand_in(monkeypatch, "fla.ops.retention", "chunk_retention", chunk_retention)
    case = case_of(
        name,
        initial_state=True,
        lengths=LENGTHS if packed else None,
        gate_strength=None if name == "fla_linear" else 1.0,
    )
    found = check(load(name), case)
    assert found.passed, found.reason
    assert seen
    assert all((bounds is not None) == packed for bounds in seen)
    assert all(bounds is seen[0] for bounds in seen)


def of_each(q: Any, k: Any, v: Any, bounds: list[int]) -> torch.Tensor:
    """Causal attention of packed sequences, q, k, v [T, heads, dim]."""
    parts = []
    for start, end in pairwise(bounds):
        a, b, c = (x[start:end].transpose(0, 1)[None] for x in (q, k, v))
        o = torch.nn.functional.scaled_dot_product_attention(a, b, c, is_causal=True)
        parts.append(o[0].transpose(0, 1))
    return torch.cat(parts)


def flash_attn_varlen_func(q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, max_seqlen_q: int,
                           max_seqlen_k: int, dropout_p: float = 0.0, softmax_scale: Any = None, causal: bool = False,
                           ) -> torch.Tensor:  # fmt: skip
    assert causal
    assert max_seqlen_q == max_seqlen_k == 40
    return of_each(q, k, v, cu_seqlens_q.tolist())


def of_torch(q: Any, k: Any, v: Any, cu_seq_q: Any, cu_seq_k: Any, max_q: int, max_k: int, *, return_aux: Any = None,
             scale: Any = None, window_size: tuple[int, int] = (-1, -1)) -> torch.Tensor:  # fmt: skip
    assert window_size == (-1, 0)
    assert cu_seq_q.dtype == torch.int32
    return flash_attn_varlen_func(q, k, v, cu_seq_q, cu_seq_k, max_q, max_k, causal=True)


def of_torch_before(q: Any, k: Any, v: Any, cu_seq_q: Any, cu_seq_k: Any, max_q: int, max_k: int,
                    is_causal: bool = False, return_aux: Any = None) -> torch.Tensor:  # fmt: skip
    assert is_causal
    return flash_attn_varlen_func(q, k, v, cu_seq_q, cu_seq_k, max_q, max_k, causal=True)


@pytest.mark.parametrize("function", [flash_attn_varlen_func, of_torch, of_torch_before])
def test_flash_attention_packs_by_either_package(monkeypatch: pytest.MonkeyPatch, function: Any) -> None:
    packaged = function is flash_attn_varlen_func
    system = load("fa2")
    monkeypatch.setattr(type(system), "packaged", packaged)
    if packaged:
        stand_in(monkeypatch, "flash_attn", "flash_attn_varlen_func", function)
    else:
        import torch.nn.attention.varlen as module

        monkeypatch.setattr(module, "varlen_attn", function)
    case = case_of("fa2", dtype="bf16", attn_heads=2, attn_dim=12)
    found = check(system, case)
    assert found.passed, found.reason
    assert set(found.accuracy["outputs"]) == {"o", "dq", "dk", "dv"}
    said = system.implementation(case)
    assert "varlen" in said
    assert "varlen" not in system.implementation(replace(case, lengths=None))


def test_flash_attention_is_refused_where_nothing_packs(monkeypatch: pytest.MonkeyPatch) -> None:
    system, case = load("fa2"), case_of("fa2", dtype="bf16", attn_heads=2, attn_dim=12)
    assert system.unsupported(case, "cuda") is None
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "packs no sequences" in str(system.unsupported(case, "cuda"))
    assert system.unsupported(replace(case, lengths=None), "cuda") is None
