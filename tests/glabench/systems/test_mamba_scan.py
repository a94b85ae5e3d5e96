"""The selective scan against a float64 loop, with all of its gradients, and as a case of its own operator."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from glabench.run import gate, oracle, ssm
from glabench.spec.case import Case
from glabench.spec.catalog import ssm_shape
from glabench.spec.settings import Settings
from glabench.systems import load, mamba_scan
from glabench.systems.baselines import selective_scan as kernels
from glabench.systems.inputs import DTYPES, input_bytes, make_inputs
from glabench.systems.mamba_scan import MambaScan, ssm_parameters

CUDA = torch.cuda.is_available()
SETTINGS = Settings.for_device("cuda" if CUDA else "cpu")
WHERE = "cuda" if CUDA else "interpreter"
CASE = Case("mamba_scan", 2, 20, 1, 8, 2, "fp32", gate_strength=None)


def scan_and_gradients(function: Any, tensors: tuple[torch.Tensor, ...], dy: torch.Tensor) -> list[torch.Tensor]:
    given = [t.detach().requires_grad_() for t in tensors]
    y = function(*given)
    return [y.detach(), *torch.autograd.grad(y, given, dy.to(y.dtype))]


def loop(x: Any, dt: Any, a: Any, b: Any, c: Any, skip: Any) -> torch.Tensor:
    """The recurrence of `ssm`, with one head and the arguments of the kernels."""
    c, b, x, dt = (t[:, :, None] for t in (c, b, x, dt))
    return ssm.recurrent(c, b, x, dt, a, skip)[:, :, 0]


@pytest.mark.parametrize(("dtype", "T", "D", "N"), [("fp32", 13, 3, 16), ("fp32", 70, 3, 2), ("bf16", 10, 5, 4)])
def test_every_gradient_of_inputs_and_parameters(device: torch.device, dtype: str, T: int, D: int, N: int) -> None:
    """Over a border of chunks, with ragged blocks of tokens and channels; steps from tiny to some that forget all."""
    shapes = [(2, T, D), (2, T, D), (2, T, N), (2, T, N), (2, T, D)]
    x, steps, b, c, dy = (torch.randn(shape, device=device) for shape in shapes)
    dt = torch.nn.functional.softplus(3 * steps)
    x, dt, b, c, dy = (t.to(DTYPES[dtype]) for t in (x, dt, b, c, dy))
    a, skip = -torch.rand(D, N, device=device) * 20, torch.randn(D, device=device)
    found = scan_and_gradients(kernels.selective_scan, (x, dt, a, b, c, skip), dy)
    right = scan_and_gradients(loop, tuple(t.double() for t in (x, dt, a, b, c, skip)), dy.double())
    unit = torch.finfo(DTYPES[dtype]).eps if dtype != "fp32" else 2e-6
    for name, out, exact in zip(("y", "dx", "ddt", "da", "db", "dc", "dskip"), found, right, strict=True):
        error = (out.double() - exact).norm() / exact.norm()
        assert error <= unit, f"{name} is off by {error:.1e}"


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_the_gate_passes_it_and_can_fail_it(dtype: Any) -> None:
    system, case = load("mamba_scan"), replace(CASE, dtype=dtype, T=10)
    found = gate.check(system, case, SETTINGS, WHERE)
    assert found.passed, found.reason
    assert set(found.accuracy["outputs"]) == {"o", "dq", "dk", "dv", "dg"}
    assert found.accuracy["reference"] == "float64 selective scan"
    right = system.forward
    system.forward = lambda inputs, case: right(replace(inputs, k=inputs.k * 1.05), case)  # type: ignore[method-assign]
    assert not gate.check(system, replace(case, mode="fwd"), SETTINGS, WHERE).passed


def test_inputs_are_of_twice_the_width_and_sixteen_states() -> None:
    x = make_inputs(CASE, "ssm", "cpu")
    assert ssm_shape(CASE) == (4, 16)
    assert (tuple(x.v.shape), tuple(x.k.shape)) == ((2, 20, 1, 4), (2, 20, 1, 16))
    assert x.g is not None
    assert x.g.min() > 0
    assert input_bytes(CASE) == x.nbytes


def test_the_question_is_of_whole_sequences() -> None:
    question = oracle.ask(replace(CASE, B=3, H=4), "cpu", 5)
    assert question.pairs == ((0, 0), (1, 0), (2, 0))


def test_the_reference_is_the_recurrence_by_hand() -> None:
    c, b, x, dt = (torch.tensor(n, dtype=torch.float64).reshape(1, 2, 1, 1) for n in ([2, 3], [5, 7], [1, 2], [1, 2]))
    a, skip = torch.full((1, 1), -1.0, dtype=torch.float64), torch.full((1,), 10.0, dtype=torch.float64)
    y = ssm.recurrent(c, b, x, dt, a, skip).flatten()
    decay = torch.exp(torch.tensor(-2.0, dtype=torch.float64))
    assert torch.allclose(y, torch.stack([torch.tensor(2 * 5 + 10.0).double(), 3 * (decay * 5 + 28) + 20]))
    begun, ones = ssm_parameters(2, 3, x)
    assert begun.tolist() == [[-1, -2, -3]] * 2
    assert ones.tolist() == [1, 1]


def test_it_says_which_kernel_runs_and_refuses_a_state() -> None:
    system = load("mamba_scan")
    assert isinstance(system, MambaScan)
    assert ("mamba_ssm" in system.implementation(CASE)) != ("triton" in system.implementation(CASE))
    reason = system.unsupported(replace(CASE, initial_state=True), "cuda")
    assert reason is not None
    assert "state" in reason


def test_launches_are_one_a_direction_and_none_of_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    case = replace(CASE, H=16, V=128, dtype="bf16")
    monkeypatch.setattr(mamba_scan, "official", lambda: True)
    assert load("mamba_scan").launches(case, "sm_90") == []
    monkeypatch.setattr(mamba_scan, "official", lambda: False)
    assert [x.name for x in load("mamba_scan").launches(case, "sm_90")] == [
        "selective_forward_kernel", "selective_backward_kernel",
    ]  # fmt: skip


def test_a_package_without_its_extension_is_not_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {mamba_scan.EXTENSION}
    monkeypatch.setattr(mamba_scan, "has_package", lambda: True)
    monkeypatch.setattr(mamba_scan, "installed", there.__contains__)
    assert mamba_scan.official()
    there.clear()
    assert not mamba_scan.official()
    assert "baselines.selective_scan" in load("mamba_scan").implementation(CASE)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize(("T", "H", "V"), [(1001, 2, 100), (300, 8, 128)])
def test_real_sizes(dtype: Any, T: int, H: int, V: int) -> None:
    found = gate.check(load("mamba_scan"), replace(CASE, T=T, H=H, V=V, dtype=dtype), Settings(), "cuda")
    assert found.passed, found.reason
