"""Readings of a GPU, from a library that is not NVIDIA's."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from glabench.hardware import nvml


class NVMLError(Exception):
    pass


def refuse(*_: Any) -> Any:
    raise NVMLError("not supported")


def field(code: int, value: int) -> Any:
    """A field's answer: NVML's return code, 0 for success, and the value."""
    return SimpleNamespace(nvmlReturn=code, value=SimpleNamespace(uiVal=value))


def library(**changes: Any) -> Any:
    """An H200 at work, as pynvml would answer."""
    answers = {
        "NVMLError": NVMLError,
        "NVML_CLOCK_SM": 1,
        "NVML_TEMPERATURE_GPU": 0,
        "nvmlDeviceGetHandleByIndex": lambda index: f"gpu {index}",
        "nvmlDeviceGetHandleByUUID": lambda uuid: uuid,
        "nvmlDeviceGetName": lambda gpu: b"NVIDIA H200",
        "nvmlDeviceGetUUID": lambda gpu: "GPU-1234",
        "nvmlDeviceGetMemoryInfo": lambda gpu: SimpleNamespace(total=150 * 10**9),
        "nvmlDeviceGetCudaComputeCapability": lambda gpu: (9, 0),
        "nvmlDeviceGetPersistenceMode": lambda gpu: 1,
        "nvmlSystemGetDriverVersion": lambda: "580.65",
        "nvmlSystemGetCudaDriverVersion_v2": lambda: 13000,
        "nvmlDeviceGetClockInfo": lambda gpu, kind: 1200,
        "nvmlDeviceGetMaxClockInfo": lambda gpu, kind: 1980,
        "nvmlDeviceGetPowerUsage": lambda gpu: 350_500,
        "NVML_FI_DEV_POWER_INSTANT": 186,
        "nvmlDeviceGetFieldValues": lambda gpu, numbers: [field(0, 412_250) for _ in numbers],
        "nvmlDeviceGetEnforcedPowerLimit": lambda gpu: 700_000,
        "nvmlDeviceGetTotalEnergyConsumption": lambda gpu: 123_456_789,
        "nvmlDeviceGetTemperature": lambda gpu, kind: 61,
        "nvmlDeviceGetCurrentClocksEventReasons": lambda gpu: 0x4 | 0x2,
        "nvmlDeviceGetComputeRunningProcesses": lambda gpu: [SimpleNamespace(pid=99_999_999)],
    }
    return SimpleNamespace(**(answers | changes))


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    nvml.handle.cache_clear()
    yield lambda found: monkeypatch.setattr(nvml, "_library", lambda: found)
    nvml.handle.cache_clear()


def test_a_gpu_at_work(use: Any) -> None:
    use(library())
    assert nvml.clocks() == nvml.Clocks(1200.0, 1980.0, 350.5, 61.0, ("power cap",))
    assert nvml.clock_settings() == ("application clocks set",)
    assert nvml.other_processes() == [99_999_999]
    info = nvml.gpu_info()
    assert info is not None
    assert (info.name, info.cuda, info.capability, info.persistence) == ("NVIDIA H200", "13.0", (9, 0), True)


@pytest.mark.parametrize("decodes", [True, False])
def test_a_name_that_is_not_utf_8_is_a_name(use: Any, decodes: bool) -> None:
    name = b"NVIDIA H200 \xff\xfe"
    use(library(nvmlDeviceGetName=lambda gpu: name.decode() if decodes else name, nvmlDeviceGetCount=lambda: 2))
    found = nvml.gpu_info()
    assert found is not None
    assert found.name == "NVIDIA H200 \ufffd\ufffd"
    assert nvml.gpu_names() == [found.name] * 2


def test_a_gpu_that_does_not_answer_keeps_its_number(use: Any) -> None:
    use(library(nvmlDeviceGetHandleByIndex=lambda index: refuse() if index == 0 else index,
                nvmlDeviceGetCount=lambda: 2))  # fmt: skip
    assert nvml.gpu_names() == [nvml.UNKNOWN, "NVIDIA H200"]


def test_without_nvml_every_answer_is_empty(use: Any) -> None:
    use(None)
    assert nvml.clocks() is None
    assert nvml.gpu_info() is None
    assert nvml.other_processes() is None
    assert nvml.clock_settings() == ()
    assert (nvml.energy_j(), nvml.power_w(), nvml.power_limit_w()) == (None, None, None)


def test_energy_and_power_are_in_joules_and_watts(use: Any) -> None:
    use(library())
    assert (nvml.energy_j(), nvml.power_w(), nvml.power_limit_w()) == (123_456.789, 412.25, 700.0)


def test_power_is_the_mean_of_a_second_where_it_is_not_told_for_the_moment(use: Any) -> None:
    unknown = library()
    del unknown.NVML_FI_DEV_POWER_INSTANT
    for found in (
        unknown,
        library(nvmlDeviceGetFieldValues=refuse),
        library(nvmlDeviceGetFieldValues=lambda gpu, numbers: [field(3, 0)]),  # not supported
    ):
        use(found)
        assert nvml.power_w() == 350.5


def test_a_gpu_that_counts_no_energy_has_none(use: Any) -> None:
    use(library(nvmlDeviceGetTotalEnergyConsumption=refuse, nvmlDeviceGetEnforcedPowerLimit=refuse))
    assert (nvml.energy_j(), nvml.power_limit_w()) == (None, None)
    use(library(nvmlDeviceGetFieldValues=refuse, nvmlDeviceGetPowerUsage=refuse))
    assert nvml.power_w() is None


def test_what_a_gpu_does_not_tell_is_left_out(use: Any) -> None:
    use(library(nvmlDeviceGetPowerUsage=refuse, nvmlDeviceGetTemperature=refuse))
    reading = nvml.clocks()
    assert reading is not None
    assert (reading.power_w, reading.temperature_c) == (None, None)
    use(library(nvmlDeviceGetClockInfo=refuse))
    assert nvml.clocks() is None


def test_an_older_driver_names_its_reasons_otherwise(use: Any) -> None:
    old = library(nvmlDeviceGetCurrentClocksThrottleReasons=lambda gpu: 0x40)
    del old.nvmlDeviceGetCurrentClocksEventReasons
    use(old)
    reading = nvml.clocks()
    assert reading is not None
    assert reading.throttle == ("thermal (hardware)",)


def test_readings_are_summed_up() -> None:
    readings = [nvml.Clocks(1000, 2000, 300, 60, ()), nvml.Clocks(2000, 2000, None, 70, ("power cap",))]
    assert nvml.summarise(readings) == {
        "sm_mhz": 1500.0, "sm_mhz_min": 1000, "sm_mhz_max": 2000, "power_w": 300.0, "temperature_c": 70,
        "throttle": ["power cap"],
    }  # fmt: skip
    assert nvml.summarise([]) is None


# --- Which GPU -------------------------------------------------------------------------------------------------------

UUIDS = ["GPU-aaaaaaaa-1111", "GPU-bbbbbbbb-1111"]
SLICE = "MIG-cccccccc-1111"


def two_gpus() -> Any:
    """Two boards, and a slice of the second one that is named by its own UUID alone."""

    def by_uuid(uuid: str) -> str:
        return uuid if uuid in (*UUIDS, SLICE) else refuse()

    return library(
        nvmlDeviceGetCount=lambda: len(UUIDS),
        nvmlDeviceGetHandleByIndex=lambda index: UUIDS[index],
        nvmlDeviceGetHandleByUUID=by_uuid,
        nvmlDeviceGetUUID=lambda gpu: gpu,
        nvmlDeviceGetCudaComputeCapability=lambda gpu: refuse() if gpu == SLICE else (8, UUIDS.index(gpu)),
        nvmlDeviceGetDeviceHandleFromMigDeviceHandle=lambda gpu: UUIDS[1] if gpu == SLICE else refuse(),
    )


@pytest.mark.parametrize(
    ("listed", "found"),
    [
        ("1", UUIDS[1]),
        ("GPU-bbbbbbbb-1111,0", UUIDS[1]),
        ("GPU-bbbb", UUIDS[1]),
        ("GPU-dddd", None),
        (SLICE, SLICE),
        ("MIG-dddd", UUIDS[0]),
    ],
)
def test_the_gpu_that_is_listed_first(use: Any, monkeypatch: pytest.MonkeyPatch, listed: str, found: str) -> None:
    use(two_gpus())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
    assert nvml.handle() == found


def test_a_slice_has_its_board_s_capability(use: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    use(two_gpus())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", SLICE)
    info = nvml.gpu_info()
    assert info is not None
    assert (info.uuid, info.capability) == (SLICE, (8, 1))
    assert nvml.gpu_info("cccccccc-1111") is None  # torch's UUID of it: no board has that
