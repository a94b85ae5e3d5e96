"""Compile our kernels for a GPU that is not there, and read what the compiler made of them.

Triton needs no GPU to compile: a launch's arguments give the signature, the architecture is named. Registers and spills
come from the ``cuobjdump`` that Triton's wheel brings along. Must run in a process without TRITON_INTERPRET.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from gla_kernels.config import SHARED_BYTES
from glabench.hardware.environment import cuobjdump
from glabench.run import failures

if TYPE_CHECKING:
    from gla_kernels.launch import Launch

POINTER = {
    torch.float64: "*fp64",
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.int64: "*i64",
    torch.int32: "*i32",
    torch.int8: "*i8",
    torch.uint8: "*u8",
    torch.bool: "*i1",
}
DIVISIBLE = [["tt.divisibility", 16]]


def cross_compile(launches: Iterable[Launch], arch: str) -> list[dict[str, Any]]:
    """One entry for each different kernel among the launches, as the row's ``compiled`` keeps them.

    Keys: kernel, arch, registers (a thread), spill_bytes (a thread), shared_bytes (a block), num_warps, num_stages,
    tensor_core ("wgmma", "mma" or "none"), constexprs, launches (how often the case launches it) and error, which is
    None when it compiles and fits. Registers and spills are None where cuobjdump is missing. ``arch`` is "sm_90".
    """
    entries: dict[str, dict[str, Any]] = {}
    for launch in launches:
        key = _key(launch)
        if key in entries:
            entries[key]["launches"] += 1
        else:
            entries[key] = _entry(launch, arch)
    return list(entries.values())


def _key(launch: Launch) -> str:
    signature, constants, attributes = specialise(launch)
    return repr((launch.name, signature, constants, attributes, launch.num_warps, launch.num_stages))


def _entry(launch: Launch, arch: str) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "kernel": launch.name,
        "arch": arch,
        "registers": None,
        "spill_bytes": None,
        "shared_bytes": None,
        "num_warps": launch.num_warps,
        "num_stages": launch.num_stages,
        "tensor_core": None,
        "constexprs": {name: value for name, value in launch.constexprs.items() if _plain(value)},
        "launches": 1,
        "error": None,
    }
    try:
        compiled = _compile(launch, arch)
    except Exception as error:
        entry["error"] = failures.one_line(error)
        return entry
    shared, limit = compiled.metadata.shared, SHARED_BYTES.get(int(arch.removeprefix("sm_")))
    entry |= {"shared_bytes": shared, "tensor_core": tensor_core(compiled.asm["ptx"])}
    entry |= resources(compiled.asm["cubin"])
    if limit is not None and shared > limit:
        entry["error"] = f"needs {-(-shared // 1024)} KiB of shared memory, {arch} has {limit // 1024}"
    return entry


def _plain(value: object) -> bool:
    return isinstance(value, (bool, int, float, str))


def specialise(launch: Launch) -> tuple[dict[str, str], dict[str, Any], dict[tuple[int, ...], list[list[Any]]]]:
    """(signature, constants, attributes) of a launch, specialised as Triton's JIT does at run time.

    None and the integer 1 become constants; pointers and integers that 16 divides are marked so.
    """
    signature: dict[str, str] = {}
    constants: dict[str, Any] = {}
    attributes: dict[tuple[int, ...], list[list[Any]]] = {}
    unspecialised = {p.name for p in launch.kernel.params if p.do_not_specialize}
    for i, name in enumerate(launch.kernel.arg_names):
        if name in launch.constexprs:
            signature[name], constants[name] = "constexpr", launch.constexprs[name]
            continue
        if name not in launch.args:
            raise TypeError(f"{launch.name}: the launch has no argument {name}")
        value = launch.args[name]
        special = name not in unspecialised
        if value is None or (special and type(value) is int and value == 1):
            signature[name], constants[name] = "constexpr", value
            continue
        signature[name] = _type(value)
        divides = isinstance(value, torch.Tensor) or (type(value) is int and value % 16 == 0)
        if special and divides:
            attributes[(i,)] = DIVISIBLE
    return signature, constants, attributes


def _type(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return POINTER[value.dtype]
    if isinstance(value, bool):
        return "i1"
    if isinstance(value, int):
        return "i32" if -(2**31) <= value < 2**31 else "i64"
    if isinstance(value, float):
        return "fp32"
    raise TypeError(f"no Triton type for a {type(value).__name__}")


def _compile(launch: Launch, arch: str) -> Any:
    if arch == local_arch():
        # through the JIT itself: its cache then has the kernel when the case runs
        return launch.kernel.warmup(
            **launch.args,
            **launch.constexprs,
            grid=launch.grid,
            num_warps=launch.num_warps,
            num_stages=launch.num_stages,
        )
    signature, constants, attributes = specialise(launch)
    source = ASTSource(launch.kernel, signature=signature, constexprs=constants, attrs=attributes)
    capability = int(arch.removeprefix("sm_"))
    options = {"num_warps": launch.num_warps, "num_stages": launch.num_stages}
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


@cache
def local_arch() -> str | None:
    """The architecture of this machine's GPU, "sm_90"; None without one."""
    if not torch.cuda.is_available():
        return None
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}"


def tensor_core(ptx: str) -> str:
    """Which tensor-core instructions the kernel uses: Hopper's "wgmma", the older "mma", or "none"."""
    if "wgmma.mma_async" in ptx:
        return "wgmma"
    return "mma" if re.search(r"\bmma\.sync", ptx) else "none"


def resources(cubin: bytes) -> dict[str, int | None]:
    """Registers and spilled bytes a thread (the stack frame) of the kernel in a cubin; None without cuobjdump."""
    tool = cuobjdump()
    if tool is None:
        return {"registers": None, "spill_bytes": None}
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([tool, "--dump-resource-usage", file.name], capture_output=True, text=True, timeout=60)
    return parse_resources(done.stdout)


def parse_resources(text: str) -> dict[str, int | None]:
    """cuobjdump's " REG:255 STACK:48 SHARED:0 ..." as numbers; None for what it does not say."""
    registers, stack = re.search(r"\bREG:(\d+)", text), re.search(r"\bSTACK:(\d+)", text)
    return {
        "registers": int(registers[1]) if registers else None,
        "spill_bytes": int(stack[1]) if stack else None,
    }
