"""What the doctor finds on machines that are better and worse than this one."""

from __future__ import annotations

from pathlib import Path

import pytest

from glabench.hardware import diagnosis, environment, nvml

H200 = nvml.GpuInfo("NVIDIA H200", "GPU-1", 150 * 10**9, "580.65", "13.0", (9, 0), False)


def fixes() -> list[str]:
    return [finding.fix for finding in diagnosis.examine() if finding.fix is not None]


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without a GPU and without a fault."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(environment, "gpu_name", lambda: None)
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def gpu(clean: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """An H200 beside a torch without CUDA."""
    monkeypatch.setattr(environment, "gpu_name", lambda: H200.name)
    monkeypatch.setattr(environment, "torch_has_cuda", lambda: False)
    monkeypatch.setattr(nvml, "gpu_info", lambda: H200)
    monkeypatch.setattr(nvml, "clocks", lambda: nvml.Clocks(1980, 1980, 120, 45, ()))
    monkeypatch.setattr(nvml, "clock_settings", lambda: ())
    monkeypatch.setattr(nvml, "other_processes", list)


@pytest.mark.usefixtures("clean")
def test_a_sound_machine_without_a_gpu_has_nothing_to_fix() -> None:
    assert fixes() == []
    found = {finding.label: finding.value for finding in diagnosis.examine()}
    assert "cross-compiled" in found["GPU"]


@pytest.mark.usefixtures("gpu")
def test_a_torch_without_cuda_beside_a_gpu() -> None:
    (fix,) = fixes()
    assert fix.startswith("torch is built without CUDA")


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("value", ["", "-1"])
def test_a_gpu_that_is_hidden_is_to_be_shown(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setattr(environment, "torch_has_cuda", lambda: True)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    (fix,) = fixes()
    assert fix.startswith("unset CUDA_VISIBLE_DEVICES")


@pytest.mark.usefixtures("gpu")
def test_which_of_different_gpus_is_used_is_to_be_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "torch_has_cuda", lambda: True)
    monkeypatch.setattr(environment, "detect_device", lambda: "cpu")
    monkeypatch.setattr(nvml, "gpu_names", lambda: ["NVIDIA T400", "NVIDIA H200"])
    (fix,) = fixes()
    assert "UUID" in fix
    for name, value in (("CUDA_DEVICE_ORDER", "PCI_BUS_ID"), ("CUDA_VISIBLE_DEVICES", "GPU-1")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            assert fixes() == []
    monkeypatch.setattr(nvml, "gpu_names", lambda: ["NVIDIA H200"] * 8)
    assert fixes() == []


@pytest.mark.usefixtures("gpu")
def test_where_counters_come_from(monkeypatch: pytest.MonkeyPatch) -> None:
    for tool, said in (("/opt/ncu", "/opt/ncu"), (None, "will have no counters")):
        monkeypatch.setattr(environment, "find_ncu", lambda tool=tool: tool)
        (found,) = (one for one in diagnosis.examine() if one.label == "Nsight Compute")
        assert found.value.endswith(said)
        assert found.fix is None


@pytest.mark.usefixtures("gpu")
def test_a_hot_shared_and_throttled_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "torch_has_cuda", lambda: True)
    monkeypatch.setattr(environment, "detect_device", lambda: "cpu")
    monkeypatch.setattr(nvml, "clocks", lambda: nvml.Clocks(900, 1980, 120, 90, ("thermal (hardware)",)))
    monkeypatch.setattr(nvml, "other_processes", lambda: [42])
    monkeypatch.setattr(nvml, "clock_settings", lambda: ("application clocks set",))
    text = "\n".join(fixes())
    assert "slowed down (thermal (hardware))" in text
    assert "cool down" in text
    assert "end them" in text
    assert "reset-applications-clocks" in text
    assert len(fixes()) == 4


@pytest.mark.usefixtures("clean")
def test_versions_that_are_too_old_are_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"torch": "2.4.1+cu121", "triton": None, "numpy": "2.4.0"}
    monkeypatch.setattr(environment, "package_version", versions.get)
    broken = {finding.label: finding.fix for finding in diagnosis.examine() if finding.broken}
    assert broken == {
        "torch": "pip install 'torch>=2.11': older is not tested",
        "triton": "pip install 'triton>=3.6'",
    }


@pytest.mark.usefixtures("clean")
def test_an_interpreter_that_numpy_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"torch": "2.11.0", "triton": "3.6.0", "numpy": "2.4.1"}
    monkeypatch.setattr(environment, "package_version", versions.get)
    (fix,) = fixes()
    assert fix.endswith("pip install 'numpy<2.4'")


@pytest.mark.usefixtures("clean")
def test_a_cache_that_cannot_be_written_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", "/proc/no/such/cache")
    (finding,) = [finding for finding in diagnosis.examine() if finding.broken]
    assert finding.label == "cache"
    assert finding.fix is not None
    assert "TRITON_CACHE_DIR" in finding.fix
