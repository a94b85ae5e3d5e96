"""Where a row was made: what must be equal for two rows to be compared. The cheap parts need no torch."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import re
import shutil
import subprocess
from functools import cache
from glob import glob
from pathlib import Path
from typing import Any

import glabench
from glabench.errors import UserError
from glabench.hardware import nvml
from glabench.hardware.bandwidth import copy_bytes_per_s
from glabench.hardware.sources import result_sources
from glabench.spec.settings import Device

# Where Nsight Compute is when it is not on the PATH.
NCU_PLACES = (
    "/usr/local/cuda*/bin/ncu",
    "/opt/nvidia/nsight-compute/*/ncu",
    "/usr/local/NVIDIA-Nsight-Compute*/ncu",
)
# Packages whose version can change a result.
RESULT_PACKAGES = (
    "torch", "triton", "fla-core", "flash-linear-attention", "flash-attn", "flash-attn-3", "helion", "mamba-ssm",
    "causal-conv1d", "mlstm-kernels", "flash-attn-4", "nvidia-cutlass-dsl", "quack-kernels", "jax-linear-attention",
    "jax", "tileops", "tilelang",
)  # fmt: skip
# A folder outside of any package that a variable names, and what in it can change a result.
HELION_EXAMPLES = "GLABENCH_HELION_EXAMPLES"
RESULT_FOLDERS = {
    HELION_EXAMPLES: ("linear/linear_attention_engine.py", "linear/_helion_aot_linear_attention_engine_*.py")
}
# Variables that can change a result, where they are set.
RESULT_VARIABLES = ("HELION_AUTOTUNE_EFFORT", "HELION_AUTOTUNE_CACHE")


def package_version(distribution: str) -> str | None:
    """The installed version of a distribution, without importing it; None when it is not installed."""
    from importlib import metadata  # here: a tenth of the time in which a process that runs cases starts

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def detect_device() -> Device:
    """The default: "cuda" where there is an NVIDIA GPU and a torch built for it, else "cpu". Imports no torch."""
    return "cuda" if gpu_name() is not None and torch_has_cuda() and not gpus_hidden() else "cpu"


def gpus_hidden() -> bool:
    """Whether CUDA_VISIBLE_DEVICES leaves no GPU to see."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in ("", "-1")


def require_cuda(why: str) -> None:
    """UserError when there is no usable GPU. ``why``: what needs it, and what else there is."""
    if detect_device() != "cuda":
        torch = package_version("torch") or "not installed"
        raise UserError(f"no usable NVIDIA GPU here (torch {torch}): {why}; `glabench doctor` says what is missing")


def torch_has_cuda() -> bool:
    """Whether the installed torch is built for CUDA, from its version file, without importing it."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return False
    found = re.search(r"^cuda: .*= *(.+)$", Path(spec.origin).with_name("version.py").read_text(), re.MULTILINE)
    return found is not None and found[1].strip() != "None"


def gpu_name() -> str | None:
    """The GPU's name by NVML, or by the driver's files where NVML does not answer; None without a GPU."""
    info = nvml.gpu_info()
    if info is not None:
        return info.name
    for file in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        found = re.search(r"^Model:\s*(.+)$", _read(file), re.MULTILINE)
        if found:
            return found[1].strip()
    return None


def _read(path: Path) -> str:
    """What a driver or the kernel says, which need not be UTF-8."""
    return path.read_text(encoding="utf-8", errors="replace")


def name_in_use() -> str:
    """The name of the current CUDA device, which need not be NVML's first; a slice's (MIG) says so. Imports torch."""
    import torch

    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    info = nvml.gpu_info(str(properties.uuid))
    if info is not None:
        return info.name
    try:
        return str(properties.name)
    except UnicodeDecodeError:
        return nvml.UNKNOWN


def device_name(kind: Device) -> str:
    """The GPU's name as NVML gives it ("NVIDIA H200"), or the CPU's model. Imports no torch."""
    return gpu_name() or nvml.UNKNOWN if kind == "cuda" else _cpu_model()


def _cpu_model() -> str:
    try:
        text = _read(Path("/proc/cpuinfo"))
    except OSError:
        text = ""
    found = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", text, re.MULTILINE)
    return " ".join(found[1].split()) if found else platform.processor() or platform.machine()


def slug(name: str) -> str:
    """A device name as part of a file name: "NVIDIA H100 80GB HBM3" -> "nvidia-h100-80gb-hbm3"."""
    plain = re.sub(r"\((?:R|TM)\)|@.*$", "", name, flags=re.IGNORECASE)
    return re.sub(r"[^a-z0-9]+", "-", plain.lower()).strip("-") or "unknown"


def device_slug(kind: Device) -> str:
    """The device's name for file names, without torch: "nvidia-h200", "cpu-amd-epyc-7763-64-core-processor"."""
    return slug(device_name(kind)) if kind == "cuda" else f"cpu-{slug(device_name(kind))}"


def _kernels_root() -> Path | None:
    spec = importlib.util.find_spec("gla_kernels")
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def cache_folder() -> Path:
    """Where this machine's ceilings and the like are kept: $GLABENCH_CACHE, or glabench's folder under
    $XDG_CACHE_HOME or ~/.cache."""
    cache_home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return at_home(os.environ.get("GLABENCH_CACHE") or Path(cache_home, "glabench"), "GLABENCH_CACHE")


def at_home(path: str | Path, variable: str) -> Path:
    """The path with ~ for the home of whoever runs this. UserError where there is none, as in a container without HOME
    and without a name for the user; ``variable`` names the folder without it."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise UserError(f"{path}: no home directory; set HOME, or {variable} to a folder of yours") from None


def folder_digest(variable: str) -> str | None:
    """Eight hex digits over what can change a result in the folder that a variable names; None where it names none."""
    named = os.environ.get(variable)
    if not named:
        return None
    digest, root = hashlib.sha256(), at_home(named, variable)
    for path in sorted(path for pattern in RESULT_FOLDERS[variable] for path in root.glob(pattern)):
        digest.update(f"{path.relative_to(root).as_posix()}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:8]


def tuned_folder() -> Path:
    """Where gla_kernels keeps the plans that were tuned on this machine (gla_kernels.plan.files.user_path)."""
    folder = os.environ.get("GLABENCH_CACHE")
    if not folder:
        folder = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "glabench", "tuned")
    return Path(os.path.expanduser(folder))


def triton_cache() -> Path:
    """Where Triton keeps what it compiles (triton.knobs.cache.dir). UserError where there is no home for it."""
    if named := os.environ.get("TRITON_CACHE_DIR"):
        return Path(named)
    return at_home(Path(os.environ.get("TRITON_HOME") or "~", ".triton", "cache"), "TRITON_CACHE_DIR")


@cache
def fingerprint() -> str:
    """Twelve hex digits over what can change a result: the sources, the package versions, the plans tuned on this
    machine, and what variables say of rivals. Imports no torch."""
    digest = hashlib.sha256()
    package = Path(glabench.__file__).parent
    roots = [(package, [*result_sources(package)])]
    kernels = _kernels_root()
    if kernels is not None:
        roots.append((kernels, sorted(p for s in ("*.py", "*.json") for p in kernels.rglob(s))))
    tuned = tuned_folder()
    roots.append((tuned, sorted(tuned.glob("*.json"))))
    for root, paths in roots:
        for path in paths:
            digest.update(f"{root.name}/{path.relative_to(root).as_posix()}\0".encode())
            digest.update(path.read_bytes())
    for name in RESULT_PACKAGES:
        digest.update(f"\0{name}={package_version(name)}".encode())
    outside = {name: folder_digest(name) for name in RESULT_FOLDERS} | {v: os.environ.get(v) for v in RESULT_VARIABLES}
    for name, value in outside.items():
        if value:
            digest.update(f"\0{name}={value}".encode())
    return digest.hexdigest()[:12]


def tried_again(facts: dict[str, Any]) -> dict[str, Any]:
    """The ``environment`` of a row whose case the same sweep is to try again, for it was the machine that failed: no
    code has the fingerprint of none."""
    return {key: value for key, value in facts.items() if key != "fingerprint"}


@cache
def git_state() -> tuple[str | None, bool | None]:
    """(commit, dirty) of the checkout this package runs from; (None, None) when it is installed without one.

    A copy of the sources without their repository (in a container, say) may name its commit in GLABENCH_COMMIT.
    """
    root = Path(glabench.__file__).parent

    def ask(*arguments: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=10, check=True
            )
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.strip()

    # A package installed into somebody else's checkout (a virtual environment inside it) is not that checkout.
    if ask("ls-files", "--error-unmatch", "__init__.py") is None:
        return os.environ.get("GLABENCH_COMMIT") or None, None
    status = ask("status", "--porcelain", "--untracked-files=no")
    return ask("rev-parse", "HEAD"), None if status is None else bool(status)


def memory_bytes() -> int:
    """The machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def cpu_count() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cuobjdump() -> str | None:
    """The cuobjdump of Triton's wheel, or of the CUDA toolkit on the PATH; None when there is neither."""
    spec = importlib.util.find_spec("triton")
    if spec is not None and spec.origin is not None:
        bundled = Path(spec.origin).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
        if os.access(bundled, os.X_OK):
            return str(bundled)
    return shutil.which("cuobjdump")


def find_ncu() -> str | None:
    """ncu on the PATH, else the newest of the usual places."""
    found = shutil.which("ncu")
    places = [path for pattern in NCU_PLACES for path in glob(pattern) if os.access(path, os.X_OK)]
    return found or max(places, key=_version_numbers, default=None)


def _version_numbers(path: str) -> list[int]:
    """A version's numbers in order of weight: 2025.10 is newer than 2025.9."""
    return [int(number) for number in re.findall(r"\d+", path)]


@cache
def environment(device: Device, bandwidth: bool = True) -> dict[str, Any]:
    """The row's ``environment``. Imports torch; on CUDA measures the copy bandwidth once per process, unless
    ``bandwidth`` says not to: several processes at once would hold each other up, and 4 GiB of the GPU each.

    Keys: device, kind, device_slug, memory_bytes, driver, cuda, capability, torch, triton, python, glabench, commit,
    dirty, fingerprint, copy_bytes_per_s (bytes read plus bytes written per second; CUDA only), os, cpu_count, and on
    CUDA gpu_uuid: which of several GPUs of a model it is, for no two are quite as fast.
    """
    import torch

    commit, dirty = git_state()
    facts: dict[str, Any] = {
        "device": device_name(device),
        "kind": device,
        "device_slug": device_slug(device),
        "memory_bytes": memory_bytes(),
        "driver": None,
        "cuda": None,
        "capability": None,
        "torch": torch.__version__,
        "triton": package_version("triton"),
        "python": platform.python_version(),
        "glabench": glabench.__version__,
        "commit": commit,
        "dirty": dirty,
        "fingerprint": fingerprint(),
        "copy_bytes_per_s": None,
        "os": platform.platform(terse=True),
        "cpu_count": cpu_count(),
    }
    if device == "cuda":
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        info = nvml.gpu_info(str(properties.uuid))
        name = name_in_use()
        facts |= {
            "device": name,
            "device_slug": slug(name),
            "memory_bytes": properties.total_memory,
            "gpu_uuid": info.uuid if info is not None else f"GPU-{properties.uuid}",
            "driver": info.driver if info is not None else None,
            "cuda": torch.version.cuda,
            "capability": f"{properties.major}.{properties.minor}",
            "copy_bytes_per_s": copy_bytes_per_s() if bandwidth else None,
        }
    else:
        facts["threads"] = torch.get_num_threads()
    return facts
