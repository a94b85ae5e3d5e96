"""Mamba-2's SSD against the float64 selective scan, by our kernels and as mamba_ssm is called."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from glabench.run import gate, oracle, ssd
from glabench.spec.case import Case
from glabench.spec.settings import Settings
from glabench.systems import load, mamba2_ssd, mamba_scan
from glabench.systems.base import installed
from glabench.systems.inputs import make_inputs

CUDA = torch.cuda.is_available()
SETTINGS = Settings.for_device("cuda" if CUDA else "cpu")
WHERE = "cuda" if CUDA else "interpreter"
CASE = Case("mamba2_ssd", 1, 37, 2, 16, 24, "fp32")


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our kernels run, whatever is installed."""
    monkeypatch.setattr(mamba_scan, "has_package", lambda: False)


@pytest.mark.usefixtures("ours")
@pytest.mark.parametrize(
    "changes",
    [
        {"T": 70, "gate_strength": 0.06},
        {"B": 2, "H": 3, "T": 20, "gate_strength": 40.0},
        {"dtype": "bf16", "gate_strength": 1e4},
    ],
)
def test_the_gate_passes_our_kernels(changes: dict[str, Any]) -> None:
    found = gate.check(load("mamba2_ssd"), replace(CASE, **changes), SETTINGS, WHERE)
    assert found.passed, found.reason
    assert set(found.accuracy["outputs"]) == {"o", "dq", "dk", "dv", "dg"}
    assert found.accuracy["reference"] == "float64 selective scan with one decay a head"


@pytest.mark.usefixtures("ours")
@pytest.mark.parametrize(("name", "mode"), [("q", "fwd"), ("k", "fwd"), ("g", "fwdbwd")])
def test_the_gate_can_fail_it(name: str, mode: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    system, case = load("mamba2_ssd"), replace(CASE, T=20, dtype="bf16", mode=mode)
    right = system.forward
    wrong = lambda inputs, case: right(replace(inputs, **{name: getattr(inputs, name) * 1.1}), case)  # noqa: E731
    monkeypatch.setattr(system, "forward", wrong)
    assert not gate.check(system, case, SETTINGS, WHERE).passed


def test_the_reference_is_the_recurrence_by_hand() -> None:
    """Two tokens, one state and two heads of one channel, which share B and C."""
    c, b = (torch.tensor(n, dtype=torch.float64).reshape(1, 2, 1, 1) for n in ([2, 3], [5, 7]))
    x, dt = (torch.tensor(n, dtype=torch.float64).reshape(1, 2, 1, 2) for n in ([[1, 10], [2, 20]], [[1, 3], [2, 4]]))
    y, _ = ssd.recurrent(c, b, x, dt, initial_state=None, strength=0.5)
    one, two = torch.tensor([-1.0, -2.0], dtype=torch.float64).exp()
    by_hand = torch.tensor([[10, 3 * (5 * one + 28)], [300, 3 * (150 * two + 560)]], dtype=torch.float64)
    assert torch.allclose(y[0, :, 0].T, by_hand)
    plain, _ = ssd.chunkwise(c, b, x, dt, initial_state=None, strength=0.5)
    assert torch.allclose(plain, y)


def test_inputs_have_one_b_and_c_and_a_step_a_head() -> None:
    x = make_inputs(CASE, "ssd", "cpu")
    assert x.g is not None
    assert [tuple(t.shape[1:]) for t in (x.q, x.k, x.v, x.g)] == [(37, 1, 16), (37, 1, 16), (37, 1, 48), (37, 1, 2)]
    assert x.g.min() > 0
    assert oracle.ask(replace(CASE, B=3, H=4), "cpu", 5).pairs == ((0, 0), (1, 0), (2, 0))


def test_mamba_ssm_is_called_as_its_signature_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a function in the place of mamba_ssm 2.3's, which needs a GPU: the quadratic form of SSD, ngroups = 1."""

    def mamba_chunk_scan_combined(x: Any, dt: Any, A: Any, B: Any, C: Any, chunk_size: int) -> torch.Tensor:
        assert (x.shape, dt.shape, A.shape, chunk_size) == ((1, 20, 2, 24), (1, 20, 2), (2,), 256)
        assert B.shape == C.shape == (1, 20, 1, 16)
        assert A.dtype == torch.float32
        sums = (dt * A).cumsum(1)
        causal = torch.ones(20, 20, device=x.device).tril()[None, :, :, None]
        weights = torch.einsum("btgn,bsgn->bts", C, B)[..., None] * causal * dt[:, None]
        return torch.einsum("btsh,bshv->bthv", weights * (sums[:, :, None] - sums[:, None]).clamp_max(0).exp(), x)

    package = ModuleType("mamba_ssm.ops.triton.ssd_combined")
    package.mamba_chunk_scan_combined = mamba_chunk_scan_combined  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, package.__name__, package)
    for parent in ("mamba_ssm", "mamba_ssm.ops", "mamba_ssm.ops.triton"):
        monkeypatch.setitem(sys.modules, parent, ModuleType(parent))
    monkeypatch.setattr(mamba_scan, "has_package", lambda: True)
    monkeypatch.setattr(mamba2_ssd, "package_version", lambda name: "2.3.2")
    system, case = load("mamba2_ssd"), replace(CASE, T=20, gate_strength=0.5)
    found = gate.check(system, case, SETTINGS, "cuda" if CUDA else "cpu")
    assert found.passed, found.reason
    assert system.implementation(case) == "mamba_ssm 2.3.2 mamba_chunk_scan_combined, chunks of 256"
    assert not system.info.triton
    assert system.launches(case, "sm_90") == []
    assert system.unsupported(replace(case, V=512), "cuda") is None


def test_the_extension_that_was_not_built_is_not_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """mamba_ssm imports it first of all. What stands in for it is not taken for it."""
    folder = tmp_path / "mamba_ssm" / "ops" / "triton"
    folder.mkdir(parents=True)
    (tmp_path / "mamba_ssm" / "__init__.py").write_text(f"import {mamba_scan.EXTENSION}\n")
    (folder / "ssd_combined.py").write_text("def mamba_chunk_scan_combined(): return 'theirs'\n")
    monkeypatch.syspath_prepend(tmp_path)
    packages = ("mamba_ssm", "mamba_ssm.ops", "mamba_ssm.ops.triton")
    for name in (*packages, "mamba_ssm.ops.triton.ssd_combined", mamba_scan.EXTENSION):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))  # and what is imported in its place is gone afterwards
        del sys.modules[name]
    assert mamba2_ssd.package_scan()() == "theirs"
    assert mamba_scan.EXTENSION in sys.modules
    assert not installed(mamba_scan.EXTENSION)


def test_without_mamba_ssm_2_the_row_says_that_simple_gla_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mamba_scan, "has_package", lambda: True)
    monkeypatch.setattr(mamba2_ssd, "package_version", lambda name: "1.2.0")
    system = load("mamba2_ssd")
    assert system.implementation(CASE).endswith("chunks of 64 w/ m., simple_gla with one head of B and C")
    assert system.info.triton
    simple = load("simple_gla").launches(replace(CASE, system="simple_gla", qk_heads=1), "sm_90")
    assert [x.name for x in system.launches(CASE, "sm_90")] == [x.name for x in simple]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("strength", [0.06, 40.0])
@pytest.mark.parametrize(("T", "H", "K", "V"), [(1001, 4, 128, 64), (520, 2, 100, 256)])
def test_real_sizes(T: int, H: int, K: int, V: int, strength: float, dtype: Any) -> None:
    case = replace(CASE, B=2, T=T, H=H, K=K, V=V, gate_strength=strength, dtype=dtype)
    found = gate.check(load("mamba2_ssd"), case, Settings(), "cuda")
    assert found.passed, found.reason
