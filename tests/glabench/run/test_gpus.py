"""Which GPUs ``--gpus`` means, and what it refuses."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from glabench.commands.running import pick_gpus
from glabench.errors import UserError
from glabench.hardware import nvml
from glabench.hardware.environment import device_slug
from glabench.run.gpus import choose, counted_as_by_nvml, only_this, taken

H200 = ["NVIDIA H200"] * 4


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)


def test_all_and_numbers() -> None:
    assert choose("all", H200) == ("0", "1", "2", "3")
    assert choose("3, 1", H200) == ("3", "1")


def test_numbers_count_what_is_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,GPU-5a")
    assert choose("all", H200) == ("2", "GPU-5a")
    assert choose("1", H200) == ("GPU-5a",)


@pytest.mark.parametrize(
    ("wanted", "names", "message"),
    [
        ("0,four", H200, "expected all, or numbers"),
        ("", H200, "expected all, or numbers"),
        ("-1", H200, "expected all, or numbers"),
        ("4", H200, "there is no GPU 4, only 0 to 3"),
        ("1,1", H200, "given twice"),
        ("all", ["NVIDIA H200", "NVIDIA A100"], "NVIDIA A100 and NVIDIA H200 differ"),
    ],
)
def test_what_cannot_be_is_refused(wanted: str, names: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        choose(wanted, names)


def test_the_gpu_that_is_asked_for_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = SimpleNamespace(
        NVMLError=Exception,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=lambda gpu: ("NVIDIA A100", "NVIDIA H200")[gpu],
        nvmlDeviceGetCudaComputeCapability=lambda gpu: ((8, 0), (9, 0))[gpu],
    )
    monkeypatch.setattr(nvml, "_library", lambda: gpus)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    nvml.handle.cache_clear()
    assert device_slug("cuda") == "nvidia-a100"
    assert pick_gpus("1", "cuda") == ("1",)
    assert device_slug("cuda") == "nvidia-h200"
    monkeypatch.undo()
    nvml.handle.cache_clear()


def test_a_worker_sees_its_gpu_by_the_number_of_nvidia_smi() -> None:
    assert only_this("3") == {"CUDA_VISIBLE_DEVICES": "3"}
    assert only_this(None) == {}


@pytest.mark.parametrize(("listed", "first"), [(None, "0"), ("2, 1", "2"), ("GPU-5a", "GPU-5a"), ("", "")])
def test_cuda_takes_the_first_that_is_listed(listed: str | None, first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if listed is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
    assert taken() == first


def test_gpus_are_counted_as_by_nvml_unless_said_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    assert counted_as_by_nvml() == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    assert counted_as_by_nvml() == {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}
