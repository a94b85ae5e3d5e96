"""What can be found out about this machine before anything is measured, and what of it should be fixed."""

from __future__ import annotations

import os
import platform
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import glabench
from glabench.errors import UserError
from glabench.hardware import environment, nvml
from glabench.spec.settings import Device

# The oldest versions that the kernels and the measuring are tested with.
OLDEST = {"torch": (2, 11), "triton": (3, 6)}
CACHE_BYTES = 2**30  # a board sweep fills some hundred megabytes of Triton's cache
HOT_CELSIUS = 85


@dataclass(frozen=True)
class Finding:
    """One line of the examination. ``fix`` says what to do about it; ``broken``: nothing runs until it is done."""

    group: str
    label: str
    value: str
    fix: str | None = None
    broken: bool = False


def examine() -> list[Finding]:
    """Machine, GPU, software and Triton. Works without a GPU, without torch and without Triton."""
    device = environment.detect_device()
    steps: tuple[Callable[[Device], Iterator[Finding]], ...] = (_machine, _gpu, _versions, _triton_runtime)
    return [finding for step in steps for finding in step(device)]


def _gib(nbytes: int) -> str:
    return f"{nbytes / 2**30:.1f} GiB"


def _machine(device: Device) -> Iterator[Finding]:
    group = "Machine"
    yield Finding(group, "CPU", f"{environment.device_name('cpu')}, {environment.cpu_count()} cores usable")
    yield Finding(group, "memory", _gib(environment.memory_bytes()))
    yield Finding(group, "system", platform.platform(terse=True))
    commit, dirty = environment.git_state()
    if commit is None:
        yield Finding(group, "glabench", f"{glabench.__version__}, not run from a git checkout")
    else:
        state = ", with uncommitted changes" if dirty else ""
        yield Finding(group, "glabench", f"{glabench.__version__}, commit {commit[:10]}{state}")


def _gpu(device: Device) -> Iterator[Finding]:
    group = "GPU"
    name = environment.gpu_name()
    if name is None:
        yield Finding(
            group, "GPU", "none found: PyTorch forms are timed on the CPU; our kernels are checked in Triton's "
            "interpreter and cross-compiled for A100 and H100, not timed"
        )  # fmt: skip
        return
    fix = None
    if not environment.torch_has_cuda():
        fix = "torch is built without CUDA: pip install torch from PyPI, whose Linux build has CUDA"
    yield Finding(group, "GPU", name, fix)
    yield from _visible(group)
    info = nvml.gpu_info()
    if info is None:
        yield Finding(group, "NVML", "does not answer", "pip install nvidia-ml-py: clocks and power go unrecorded")
        return
    major, minor = info.capability
    yield Finding(group, "capability", f"{major}.{minor}, {_gib(info.memory_bytes)}")
    yield Finding(group, "driver", f"{info.driver}, for CUDA up to {info.cuda}")
    yield from _clocks(group)
    yield from _sharing(group, info)
    yield Finding(
        group, "Nsight Compute", environment.find_ncu() or "not found: `glabench profile --ncu` will have no counters"
    )


def _visible(group: str) -> Iterator[Finding]:
    """What of the machine's GPUs a process sees, where that is not plain."""
    label, listed = "CUDA_VISIBLE_DEVICES", os.environ.get("CUDA_VISIBLE_DEVICES")
    if environment.gpus_hidden():
        fix = "unset CUDA_VISIBLE_DEVICES, or name a GPU in it: no GPU is used as it is"
        yield Finding(group, label, f"{listed!r} hides every GPU", fix)
        return
    names = dict.fromkeys(nvml.gpu_names())
    plain = os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or (listed or "").startswith(("GPU-", "MIG-"))
    if len(names) > 1 and not plain:
        fix = (
            "set CUDA_VISIBLE_DEVICES to the UUID of the GPU to be used (nvidia-smi -L): glabench counts them as "
            "nvidia-smi does, other programs may not"
        )
        yield Finding(group, label, f"{listed or 'not set'}, beside GPUs that differ: {', '.join(names)}", fix)


def _clocks(group: str) -> Iterator[Finding]:
    reading = nvml.clocks()
    if reading is None:
        yield Finding(group, "clocks", "not told by this GPU: slow samples cannot be recognised")
        return
    held = f", held back by {', '.join(reading.throttle)}" if reading.throttle else ""
    fix = f"the GPU is slowed down ({', '.join(reading.throttle)}): look at its cooling and power" if held else None
    yield Finding(group, "SM clock", f"{reading.sm_mhz:.0f} of at most {reading.sm_mhz_max:.0f} MHz{held}", fix)
    set_by_hand = nvml.clock_settings()
    if set_by_hand:
        fix = "reset the clocks: nvidia-smi --reset-applications-clocks"
        yield Finding(group, "clock settings", ", ".join(set_by_hand), fix)
    if reading.power_w is not None:
        yield Finding(group, "power", f"{reading.power_w:.0f} W")
    if reading.temperature_c is not None:
        hot = reading.temperature_c >= HOT_CELSIUS
        fix = "let the GPU cool down before measuring" if hot else None
        yield Finding(group, "temperature", f"{reading.temperature_c:.0f} °C", fix)


def _sharing(group: str, info: nvml.GpuInfo) -> Iterator[Finding]:
    others = nvml.other_processes()
    if others is None:
        yield Finding(group, "other processes", "not told by this GPU")
    elif others:
        pids = ", ".join(map(str, others))
        yield Finding(group, "other processes", f"process {pids}", "end them: times on a shared GPU mean nothing")
    else:
        yield Finding(group, "other processes", "none")
    if info.persistence is not None:
        # Without it the driver unloads between processes: the first call is slow, but no sample is.
        value = "on" if info.persistence else "off (a slower start, no effect on times)"
        yield Finding(group, "persistence mode", value)


def _versions(device: Device) -> Iterator[Finding]:
    group = "Software"
    yield Finding(group, "Python", platform.python_version())
    for name, oldest in OLDEST.items():
        installed = environment.package_version(name)
        wanted = ".".join(map(str, oldest))
        if installed is None:
            yield Finding(group, name, "not installed", f"pip install '{name}>={wanted}'", broken=True)
        elif _number(installed) < oldest:
            yield Finding(group, name, installed, f"pip install '{name}>={wanted}': older is not tested", broken=True)
        else:
            yield Finding(group, name, installed)
    yield from _torch_cuda(group, device)
    triton, numpy = environment.package_version("triton"), environment.package_version("numpy")
    if triton is not None and numpy is not None:
        bad = device == "cpu" and _number(triton) < (3, 7) and _number(numpy) >= (2, 4)
        fix = f"Triton {triton}'s interpreter fails with NumPy {numpy}: pip install 'numpy<2.4'" if bad else None
        yield Finding(group, "numpy", numpy, fix)


def _number(version: str) -> tuple[int, ...]:
    """Major and minor version: "2.13.0+cpu" -> (2, 13)."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def _torch_cuda(group: str, device: Device) -> Iterator[Finding]:
    if device != "cuda":
        return
    import torch

    if torch.cuda.is_available():
        yield Finding(group, "CUDA in torch", f"{torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}")
        return
    yield Finding(
        group,
        "CUDA in torch",
        f"{torch.version.cuda}, but torch cannot use the GPU",
        "update the driver, or install a torch built for an older CUDA",
        broken=True,
    )


def _triton_runtime(device: Device) -> Iterator[Finding]:
    group = "Triton"
    interpret = os.environ.get("TRITON_INTERPRET")
    harmful = interpret and device == "cuda"
    fix = "unset TRITON_INTERPRET: your own calls of the kernels would be interpreted" if harmful else None
    yield Finding(group, "TRITON_INTERPRET", interpret or "not set", fix)
    yield _triton_cache(group)
    if environment.package_version("triton") is not None:
        tool = environment.cuobjdump()
        fix = None if tool else "install the CUDA toolkit's cuobjdump: registers and spills go unrecorded"
        yield Finding(group, "cuobjdump", "found" if tool else "missing", fix)


def _triton_cache(group: str) -> Finding:
    try:
        folder = environment.triton_cache()
    except UserError as error:
        return Finding(group, "cache", "no home directory", str(error), broken=True)
    problem = unwritable(folder)
    if problem is not None:
        fix = f"set TRITON_CACHE_DIR to a folder that can be written ({problem})"
        return Finding(group, "cache", str(folder), fix, broken=True)
    free = shutil.disk_usage(nearest(folder)).free
    space = f"free some space for Triton's cache in {folder}" if free < CACHE_BYTES else None
    return Finding(group, "cache", f"{folder}, {_gib(free)} free", space)


def nearest(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())


def unwritable(folder: Path) -> str | None:
    """Why no file can be made in the folder (or where it would be made), or None."""
    try:
        with tempfile.NamedTemporaryFile(dir=nearest(folder)):
            return None
    except OSError as error:
        return error.strerror or str(error)
