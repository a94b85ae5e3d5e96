"""What NVIDIA's management library says about the GPU: clocks, power, temperature, who else is on it.

Every function answers None or an empty value where there is no NVML, so that callers need no second path. NVML counts
the machine's GPUs while CUDA_VISIBLE_DEVICES renumbers them for CUDA: ``handle`` goes by the UUID when it is given one.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from typing import Any

# NVML's bits for why clocks are held back (nvmlClocksEventReasons). Idle, and clocks that somebody set by hand, are
# no throttling of a benchmark in progress and are reported by the doctor alone.
THROTTLE_BITS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "thermal (software)",
    0x40: "thermal (hardware)",
    0x80: "power brake",
}
UNKNOWN = "unknown NVIDIA GPU"
SETTING_BITS = {0x2: "application clocks set", 0x10: "sync boost", 0x100: "display clock"}


@dataclass(frozen=True)
class Clocks:
    """One reading of the GPU while it works."""

    sm_mhz: float
    sm_mhz_max: float
    power_w: float | None
    temperature_c: float | None
    throttle: tuple[str, ...]


@dataclass(frozen=True)
class GpuInfo:
    """The facts about a GPU that do not change while it runs."""

    name: str
    uuid: str
    memory_bytes: int
    driver: str
    cuda: str  # the newest CUDA version the driver serves, "13.0"
    capability: tuple[int, int]
    persistence: bool | None


@cache
def _library() -> Any | None:
    """pynvml, initialised; None where the package, the driver or a GPU is missing."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        if pynvml.nvmlDeviceGetCount() == 0:
            return None
    except pynvml.NVMLError:
        return None
    return pynvml


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


@cache
def handle(uuid: str | None = None) -> Any | None:
    """NVML's handle of the GPU with that UUID; without one, of the first GPU, or slice of one (MIG), that
    CUDA_VISIBLE_DEVICES lists. Without that variable too, of NVML's first, which CUDA, whose first is the fastest, need
    not begin with on a machine of different GPUs."""
    if _library() is None:
        return None
    if uuid is not None:
        return _ask("nvmlDeviceGetHandleByUUID", uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
    if visible.startswith(("GPU-", "MIG-")):
        named = _ask("nvmlDeviceGetHandleByUUID", visible)
        found = _beginning_with(visible) if named is None else named
        if found is not None or visible.startswith("GPU-"):
            return found
    return _ask("nvmlDeviceGetHandleByIndex", int(visible) if visible.isdigit() else 0)


def _beginning_with(uuid: str) -> Any | None:
    """The handle of the GPU whose UUID begins like that, as CUDA allows and NVML does not; None where there is none."""
    gpus = (_ask("nvmlDeviceGetHandleByIndex", index) for index in range(_ask("nvmlDeviceGetCount") or 0))
    return next((gpu for gpu in gpus if _text(_ask("nvmlDeviceGetUUID", gpu) or "").startswith(uuid)), None)


def _ask(name: str, *args: Any) -> Any | None:
    """NVML's answer, or None for a question that this GPU, driver or container does not answer."""
    nvml = _library()
    try:
        return getattr(nvml, name)(*args) if nvml is not None else None
    except UnicodeDecodeError as error:  # pynvml decodes what it is told, which need not be UTF-8
        return _text(error.object)
    except (nvml.NVMLError, AttributeError):  # type: ignore[union-attr]  # nvml is set where the call can raise
        return None


def gpu_info(uuid: str | None = None) -> GpuInfo | None:
    """Name, memory, driver and capability of the GPU, or None without NVML."""
    gpu = handle(uuid)
    if gpu is None:
        return None
    cuda = _ask("nvmlSystemGetCudaDriverVersion_v2") or 0
    memory = _ask("nvmlDeviceGetMemoryInfo", gpu)
    capability = _ask("nvmlDeviceGetCudaComputeCapability", gpu)
    if capability is None:  # of a slice: ask its board
        board = _ask("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", gpu)
        capability = None if board is None else _ask("nvmlDeviceGetCudaComputeCapability", board)
    persistence = _ask("nvmlDeviceGetPersistenceMode", gpu)
    return GpuInfo(
        name=_text(_ask("nvmlDeviceGetName", gpu) or UNKNOWN),
        uuid=_text(_ask("nvmlDeviceGetUUID", gpu) or ""),
        memory_bytes=int(memory.total) if memory is not None else 0,
        driver=_text(_ask("nvmlSystemGetDriverVersion") or "unknown"),
        cuda=f"{cuda // 1000}.{cuda % 1000 // 10}",
        capability=(capability[0], capability[1]) if capability else (0, 0),
        persistence=None if persistence is None else bool(persistence),
    )


def gpu_names() -> list[str]:
    """The names of the machine's GPUs in NVML's order, which is nvidia-smi's; none where NVML does not answer."""
    gpus = (_ask("nvmlDeviceGetHandleByIndex", index) for index in range(_ask("nvmlDeviceGetCount") or 0))
    return [UNKNOWN if gpu is None else _text(_ask("nvmlDeviceGetName", gpu) or UNKNOWN) for gpu in gpus]


def _reason_bits(gpu: Any) -> int:
    bits = _ask("nvmlDeviceGetCurrentClocksEventReasons", gpu)
    if bits is None:  # the name before driver 535
        bits = _ask("nvmlDeviceGetCurrentClocksThrottleReasons", gpu)
    return int(bits or 0)


def clocks(uuid: str | None = None) -> Clocks | None:
    """One reading of SM clock (MHz), power (W), temperature (degrees C) and throttle reasons; None without NVML."""
    gpu = handle(uuid)
    nvml = _library()
    if gpu is None or nvml is None:
        return None
    now = _ask("nvmlDeviceGetClockInfo", gpu, nvml.NVML_CLOCK_SM)
    top = _ask("nvmlDeviceGetMaxClockInfo", gpu, nvml.NVML_CLOCK_SM)
    if now is None or not top:
        return None
    power = _ask("nvmlDeviceGetPowerUsage", gpu)
    temperature = _ask("nvmlDeviceGetTemperature", gpu, nvml.NVML_TEMPERATURE_GPU)
    bits = _reason_bits(gpu)
    return Clocks(
        sm_mhz=float(now),
        sm_mhz_max=float(top),
        power_w=None if power is None else power / 1000,
        temperature_c=None if temperature is None else float(temperature),
        throttle=tuple(name for bit, name in THROTTLE_BITS.items() if bits & bit),
    )


def energy_j(uuid: str | None = None) -> float | None:
    """Joules that the GPU has used since its driver was loaded: to be read twice, seconds apart, for the counter moves
    in steps of many milliseconds. None where the GPU does not count."""
    gpu = handle(uuid)
    used = None if gpu is None else _ask("nvmlDeviceGetTotalEnergyConsumption", gpu)
    return None if used is None else used / 1000


def power_w(uuid: str | None = None) -> float | None:
    """The GPU's power in W: of this moment where the driver tells it, else the mean of its last second. None where the
    GPU does not measure it."""
    gpu = handle(uuid)
    if gpu is None:
        return None
    now = _field(gpu, "NVML_FI_DEV_POWER_INSTANT")
    milliwatts = _ask("nvmlDeviceGetPowerUsage", gpu) if now is None else now
    return None if milliwatts is None else milliwatts / 1000


def power_limit_w(uuid: str | None = None) -> float | None:
    """The power in W at which the GPU lowers its clocks; None where it does not tell."""
    gpu = handle(uuid)
    limit = None if gpu is None else _ask("nvmlDeviceGetEnforcedPowerLimit", gpu)
    return None if limit is None else limit / 1000


def _field(gpu: Any, name: str) -> int | None:
    """A field of NVML's, an unsigned int, by the name of its number; None where pynvml or the GPU does not know it."""
    number = getattr(_library(), name, None)
    values = None if number is None else _ask("nvmlDeviceGetFieldValues", gpu, [number])
    # 0 is NVML_SUCCESS: each field has an answer of its own
    return int(values[0].value.uiVal) if values and values[0].nvmlReturn == 0 else None


def clock_settings(uuid: str | None = None) -> tuple[str, ...]:
    """What holds the clocks by somebody's choice (application clocks, sync boost), for the doctor."""
    gpu = handle(uuid)
    if gpu is None:
        return ()
    bits = _reason_bits(gpu)
    return tuple(name for bit, name in SETTING_BITS.items() if bits & bit)


def other_processes(uuid: str | None = None) -> list[int] | None:
    """Process ids computing on the GPU beside this one; None where NVML does not say (containers often hide them)."""
    gpu = handle(uuid)
    running = None if gpu is None else _ask("nvmlDeviceGetComputeRunningProcesses", gpu)
    return None if running is None else [p.pid for p in running if p.pid != os.getpid()]


def summarise(readings: list[Clocks]) -> dict[str, Any] | None:
    """The row's ``clocks``: mean clock and power, highest temperature, every throttle reason seen; None for none."""
    if not readings:
        return None
    power = [r.power_w for r in readings if r.power_w is not None]
    heat = [r.temperature_c for r in readings if r.temperature_c is not None]
    return {
        "sm_mhz": round(sum(r.sm_mhz for r in readings) / len(readings), 1),
        "sm_mhz_min": min(r.sm_mhz for r in readings),
        "sm_mhz_max": readings[0].sm_mhz_max,
        "power_w": round(sum(power) / len(power), 1) if power else None,
        "temperature_c": max(heat) if heat else None,
        "throttle": sorted({reason for r in readings for reason in r.throttle}),
    }
