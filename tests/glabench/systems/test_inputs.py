"""Inputs: the same question gives the same numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from glabench.run.fresh import varied
from glabench.run.gate import check, reduced
from glabench.spec.case import Case
from glabench.spec.catalog import CATALOG
from glabench.spec.settings import Settings
from glabench.systems.base import load
from glabench.systems.inputs import forgetting, input_bytes, make_inputs

CASE = Case("gla", 2, 20, 3, 8, 12, "bf16", chunk=64, initial_state=True)


def test_shapes_and_dtypes() -> None:
    inputs = make_inputs(CASE, "gla", "cpu")
    assert {name: tuple(x.shape) for name, x in inputs.tensors()} == {
        "q": (2, 20, 3, 8), "k": (2, 20, 3, 8), "v": (2, 20, 3, 12), "do": (2, 20, 3, 12), "g": (2, 20, 3, 8),
        "initial_state": (2, 3, 8, 12), "dstate": (2, 3, 8, 12),
    }  # fmt: skip
    assert {x.dtype for name, x in inputs.tensors() if "state" not in name} == {torch.bfloat16}
    assert inputs.initial_state is not None
    assert inputs.initial_state.dtype == torch.float32
    assert set(inputs.leaves()) == {"q", "k", "v", "g", "initial_state"}


def test_two_systems_get_the_same_numbers() -> None:
    one = make_inputs(CASE, "gla", "cpu")
    two = make_inputs(replace(CASE, system="gla_recurrent", chunk=None), "gla", "cpu")
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(one.tensors(), two.tensors(), strict=True))


def test_gates_on_the_value_side_leave_the_other_numbers_alone() -> None:
    case = replace(CASE, value_gate=True)
    plain, both = make_inputs(CASE, "gla", "cpu"), make_inputs(case, "gla", "cpu")
    assert all(torch.equal(x, getattr(both, name)) for name, x in plain.tensors())
    assert both.gv is not None
    assert both.gv.shape == both.v.shape
    assert both.gv.max() <= 0
    assert input_bytes(case) == both.nbytes
    alone = make_inputs(replace(case, gate_strength=None), "gla", "cpu")
    assert alone.g is None
    assert alone.gv is not None


@pytest.mark.parametrize("change", [{"seed": 1}, {"salt": 1}])
def test_another_seed_or_set_gives_others(change: dict[str, int]) -> None:
    salt = change.pop("salt", 0)
    other = make_inputs(replace(CASE, **change), "gla", "cpu", salt)  # type: ignore[arg-type]  # integers only
    assert not torch.equal(make_inputs(CASE, "gla", "cpu").q, other.q)


def test_gates_are_never_positive_and_as_strong_as_asked() -> None:
    weak = make_inputs(CASE, "gla", "cpu").g
    strong = make_inputs(replace(CASE, gate_strength=1e4, dtype="fp16"), "gla", "cpu").g
    assert weak is not None
    assert strong is not None
    assert weak.max() <= 0
    assert strong.min() < -1e4
    assert torch.isfinite(strong).all()
    open_gate = make_inputs(replace(CASE, gate_strength=0.0), "gla", "cpu").g
    assert open_gate is not None
    assert (open_gate == 0).all()
    assert make_inputs(replace(CASE, gate_strength=None), "gla", "cpu").g is None


@pytest.mark.parametrize(
    "case",
    [
        CASE,
        replace(CASE, gate_strength=None, initial_state=False),
        replace(CASE, system="gla_recurrent", mode="step", chunk=None),
        Case("fa2", 2, 20, 3, 8, 12, attn_heads=5, attn_dim=16),
        Case("sdpa", 2, 20, 3, 8, 12, "fp32"),
        Case("sdpa", 2, 20, 3, 8, 12, "fp32", "step"),
        Case("mamba2_ssd", 2, 20, 3, 8, 12),
    ],
)
def test_bytes_are_known_before_anything_is_made(case: Case) -> None:
    inputs = make_inputs(case, CATALOG[case.system].operator, "cpu")
    assert input_bytes(case) == inputs.nbytes


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("strength", [1.0, 1e6])
def test_gates_of_either_dtype_are_the_same_but_for_rounding(dtype: Any, strength: float) -> None:
    case = replace(CASE, dtype=dtype, gate_strength=strength, value_gate=True)
    narrow, wide = make_inputs(case, "gla", "cpu"), make_inputs(replace(case, gate_dtype="fp32"), "gla", "cpu")
    for name, x in narrow.tensors():
        other = getattr(wide, name)
        if name in ("g", "gv"):
            assert other.dtype == torch.float32
            assert not torch.equal(other, x.float())
            assert torch.equal(other.to(x.dtype), x)
        else:
            assert torch.equal(other, x)
    assert input_bytes(replace(case, gate_dtype="fp32")) == wide.nbytes


def test_packed_sequences_have_a_state_each_and_the_same_tokens() -> None:
    case = Case("gla", 1, 20, 3, 8, 12, initial_state=True)
    one, packed = make_inputs(case, "gla", "cpu"), make_inputs(replace(case, lengths="12,3,5"), "gla", "cpu")
    assert torch.equal(one.q, packed.q)
    assert packed.initial_state is not None
    assert packed.initial_state.shape == (3, 3, 8, 12)
    assert packed.dstate is not None
    assert packed.dstate.shape == (3, 3, 8, 12)
    assert packed.cu_seqlens is not None
    assert packed.cu_seqlens.dtype == packed.packed.cu_seqlens_cpu.dtype == torch.int32
    assert packed.cu_seqlens.tolist() == packed.packed.cu_seqlens_cpu.tolist() == [0, 12, 15, 20]
    assert packed.packed.longest == 12
    assert one.cu_seqlens is None
    assert input_bytes(replace(case, lengths="12,3,5")) == packed.nbytes


def test_bounds_are_one_tensor_for_all_sets_and_no_leaf() -> None:
    """FLA prepares once for a tensor that it knows."""
    case = Case("gla", 1, 20, 3, 8, 12, lengths="uniform:4")
    one, two = (make_inputs(case, "gla", "cpu", salt) for salt in (0, 1))
    assert not torch.equal(one.q, two.q)
    assert one.cu_seqlens is two.cu_seqlens
    assert one.with_grad().cu_seqlens is one.cu_seqlens
    assert "packed" not in dict(one.tensors())


def test_rows_that_reset_have_gates_of_minus_infinity_and_nothing_else_changes() -> None:
    case = Case("gla", 3, 50, 2, 8, 12, resets=16, seed=4)
    plain, found = make_inputs(replace(case, resets=None), "gla", "cpu"), make_inputs(case, "gla", "cpu")
    assert plain.g is not None
    assert found.g is not None
    rows = forgetting(case)
    assert {tuple(row.nonzero().flatten().diff().tolist()) for row in rows} <= {(16, 16), (16, 16, 16)}
    assert len({int(row.nonzero()[0]) for row in rows}) > 1  # sequences do not all begin alike
    assert torch.equal(found.g.isinf().all(-1).all(-1), rows)
    assert torch.equal(found.g[~rows], plain.g[~rows])
    assert torch.equal(found.v, plain.v)
    assert "g" not in varied(case)  # other numbers in every sample, but not where rows reset
    assert "g" in varied(replace(case, resets=None))
    assert make_inputs(replace(case, system="simple_gla"), "simple", "cpu").g.isinf().sum() == 2 * rows.sum()  # type: ignore[union-attr]


def test_flas_chunks_are_given_finite_gates_that_forget() -> None:
    for name in ("fla", "fla_simple", "fla_recurrent"):
        system, case = load(name), Case(name, 1, 40, 2, 8, 8, resets=8)
        g = system.draw_inputs(case, "cpu").g
        assert g is not None
        assert bool(g.isinf().any()) == (name == "fla_recurrent")
        assert (g.exp() == 0)[:, forgetting(case)[0]].all()
        assert ("-104" in system.implementation(case)) == (name != "fla_recurrent")


@pytest.mark.parametrize("name", ["recurrent_torch", "chunkwise_torch", "parallel_torch"])
def test_what_resets_is_right(name: str) -> None:
    case = Case(name, 1, 80, 2, 16, 16, dtype="fp32", resets=20, chunk=64 if name == "chunkwise_torch" else None)
    assert check(load(name), case, Settings(device="cpu"), "cpu").passed
    fewer = reduced(replace(case, T=4096, resets=512), load(name), Settings(device="cpu"), interpreter=True)
    assert (fewer.T, fewer.resets) == (165, 41)  # so that some rows reset there, too
