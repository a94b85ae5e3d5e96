"""Compile our kernels for a GPU that is not there, and read what the compiler made of them.

Triton needs no GPU to compile: a launch's arguments give the signature, the architecture is named. Registers and spills
come from the ``cuobjdump`` that Triton's wheel brings along. Must run in a process without TRITON_INTERPRET.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.tools.tensor_descriptor import TensorDescriptor

from gla_kernels.schedule import SHARED_BYTES
from glabench import failures
from glabench.claims import Claims
from glabench.hardware.environment import cuobjdump
from glabench.hardware.occupancy import occupancy
from glabench.phases import Phases

if TYPE_CHECKING:
    from gla_kernels.launch import Launch

POINTER = {
    torch.float64: "*fp64",
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.int64: "*i64",
    torch.int32: "*i32",
    torch.float8_e4m3fn: "*fp8e4nv",
    torch.int8: "*i8",
    torch.uint8: "*u8",
    torch.bool: "*i1",
}
ELEMENT = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}  # of a tensor descriptor
DIVISIBLE = [["tt.divisibility", 16]]

# What of a kernel's PTX is counted: products, traffic to memory and within the program, waits.
INSTRUCTIONS = {
    "tcgen05.mma": r"tcgen05\.mma\b",
    "wgmma": r"wgmma\.mma_async\b",
    "mma.sync": r"mma\.sync\b",
    "ld.global": r"ld\.global\b",
    "st.global": r"st\.global\b",
    "cp.async": r"cp\.async\.(?:ca|cg|bulk)\b",
    "ld.shared": r"ld\.shared\b",
    "st.shared": r"st\.shared\b",
    "ldmatrix": r"ldmatrix\b",
    "shfl.sync": r"shfl\.sync\b",
    "ex2": r"ex2\b",
    "bar.sync": r"bar\.sync\b",
}
ANY_INSTRUCTION = re.compile(rf"(?<![\w.])(?:{'|'.join(f'({pattern})' for pattern in INSTRUCTIONS.values())})")


def cross_compile(
    launches: Iterable[Launch], arch: str, phases: Phases | None = None, claims: Claims | None = None
) -> list[dict[str, Any]]:
    """One entry for each different kernel among the launches, as the row's ``compiled`` keeps them.

    Keys: kernel, arch, registers (a thread), spill_bytes (a thread), shared_bytes (a program), num_warps, num_stages,
    tensor_core ("tcgen05", "wgmma", "mma" or "none"), instructions (how often each of INSTRUCTIONS stands in the PTX),
    programs_per_sm and limited_by (see occupancy), compile_s, constexprs, launches (how often the case launches it)
    and error, which is None when it compiles and fits. What follows from registers is None where cuobjdump is missing,
    compile_s where Triton's cache had the kernel. ``arch`` is "sm_90"; ``phases`` is told what reading facts takes;
    ``claims`` says which kernels other processes compile meanwhile. Raises MemoryError, and OSError for what Triton's
    cache could not do.
    """
    kernels: dict[str, list[Launch]] = {}
    for launch in launches:
        kernels.setdefault(f"{arch} {kernel_key(launch)}", []).append(launch)

    def entry(same: list[Launch]) -> dict[str, Any]:
        return _entry(same[0], arch, phases or Phases()) | {"launches": len(same)}

    return list((claims or Claims()).made(kernels, entry).values())


def kernel_key(launch: Launch) -> str:
    """What tells one compiled kernel from another on the same architecture. Works in the interpreter's process too."""
    signature, constants, attributes = specialise(launch)
    return repr((launch.name, signature, constants, attributes, launch.options))


def _entry(launch: Launch, arch: str, phases: Phases) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "kernel": launch.name,
        "arch": arch,
        "registers": None,
        "spill_bytes": None,
        "shared_bytes": None,
        "num_warps": launch.num_warps,
        "num_stages": launch.num_stages,
        "tensor_core": None,
        "instructions": None,
        "programs_per_sm": None,
        "limited_by": None,
        "compile_s": None,
        "constexprs": {name: value for name, value in launch.constexprs.items() if _plain(value)},
        "launches": 1,
        "error": None,
    }
    try:
        with _fresh_compilations() as fresh:
            began = time.perf_counter()
            compiled = compile_launch(launch, arch)
            took = time.perf_counter() - began
    except MemoryError:
        raise  # says nothing about the kernel
    except Exception as error:
        if failures.of_machine(error):
            raise  # nor does Triton's cache on a full disk
        entry["error"] = failures.one_line(error)
        return entry
    capability, shared, ptx = int(arch.removeprefix("sm_")), compiled.metadata.shared, compiled.asm["ptx"]
    counts = instructions(ptx)
    entry |= {"shared_bytes": shared, "tensor_core": _tensor_core(counts), "instructions": counts}
    with phases("facts"):
        entry |= {"compile_s": round(took, 3) if fresh else None, **resources(compiled.asm["cubin"])}
    if entry["registers"] is not None:
        columns = getattr(compiled.metadata, "tmem_size", None) or 0
        found = occupancy(capability, entry["registers"], shared, launch.num_warps, columns)
        entry["programs_per_sm"], entry["limited_by"] = found or (None, None)
    limit = SHARED_BYTES.get(capability)
    if limit is not None and shared > limit:
        entry["error"] = f"needs {-(-shared // 1024)} KiB of shared memory, {arch} has {limit // 1024}"
    return entry


@contextmanager
def _fresh_compilations() -> Iterator[list[str]]:
    """The names of the kernels that are compiled meanwhile, without those that Triton's cache has."""
    found: list[str] = []
    before = triton.knobs.compilation.listener

    def listen(**event: Any) -> None:
        if not event["cache_hit"]:
            found.append(event["src"].name)
        if before is not None:
            before(**event)

    triton.knobs.compilation.listener = listen
    try:
        yield found
    finally:
        triton.knobs.compilation.listener = before


def _plain(value: object) -> bool:
    return isinstance(value, (bool, int, float, str))


def specialise(launch: Launch) -> tuple[dict[str, str], dict[str, Any], dict[tuple[int, ...], list[list[Any]]]]:
    """(signature, constants, attributes) of a launch, specialised as Triton's JIT does at run time.

    None and the integer 1 become constants; pointers and integers that 16 divides are marked so.
    """
    signature: dict[str, str] = {}
    constants: dict[str, Any] = {}
    attributes: dict[tuple[int, ...], list[list[Any]]] = {}
    params = getattr(launch.kernel, "params", ())  # the interpreter's functions have none
    unspecialised = {p.name for p in params if p.do_not_specialize}
    arguments, constexprs = launch.arguments, launch.constants
    for i, name in enumerate(launch.kernel.arg_names):
        if name in constexprs:
            signature[name], constants[name] = "constexpr", constexprs[name]
            continue
        if name not in arguments:
            raise TypeError(f"{launch.name}: the launch has no argument {name}")
        value = arguments[name]
        special = name not in unspecialised
        if value is None or (special and type(value) is int and value == 1):
            signature[name], constants[name] = "constexpr", value
            continue
        signature[name] = _type(value)
        divides = isinstance(value, torch.Tensor) or (type(value) is int and value % 16 == 0)
        if special and divides:
            attributes[(i,)] = DIVISIBLE
    return signature, constants, attributes


def _type(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return POINTER[value.dtype]
    if hasattr(value, "block_shape"):  # a tensor descriptor; Gluon's says how blocks lie in shared memory, too
        layout = "" if isinstance(value, TensorDescriptor) else f",{value.layout!r}"
        return f"tensordesc<{ELEMENT[value.base.dtype]}{list(value.block_shape)}{layout}>"
    if isinstance(value, bool):
        return "i1"
    if isinstance(value, int):
        return "i32" if -(2**31) <= value < 2**31 else "i64"
    if isinstance(value, float):
        return "fp32"
    raise TypeError(f"no Triton type for a {type(value).__name__}")


def compile_launch(launch: Launch, arch: str) -> Any:
    """The kernel of a launch as Triton keeps it, for "sm_90". Raises what Triton and ptxas raise."""
    if arch == local_arch():
        # through the JIT itself: its cache then has the kernel when the case runs
        return launch.kernel.warmup(**launch.arguments, **launch.constants, **launch.options, grid=launch.grid)
    capability = int(arch.removeprefix("sm_"))
    return triton.compile(source_of(launch), target=GPUTarget("cuda", capability, 32), options=launch.options)


def source_of(launch: Launch) -> Any:
    """What Triton's compiler is given of a launch."""
    signature, constants, attributes = specialise(launch)
    return _source_class(launch)(launch.kernel, signature=signature, constexprs=constants, attrs=attributes)


def _source_class(launch: Launch) -> Any:
    if not launch.in_gluon:
        return ASTSource
    from triton.experimental.gluon._runtime import GluonASTSource

    return GluonASTSource


@cache
def local_arch() -> str | None:
    """The architecture of this machine's GPU, "sm_90"; None without one."""
    if not torch.cuda.is_available():
        return None
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}"


def tensor_core(ptx: str) -> str:
    """The tensor-core instructions that a kernel uses: Blackwell's "tcgen05", Hopper's "wgmma", "mma", or "none"."""
    return _tensor_core(instructions(ptx))


def _tensor_core(counts: dict[str, int]) -> str:
    paths = {"tcgen05.mma": "tcgen05", "wgmma": "wgmma", "mma.sync": "mma"}
    return next((path for name, path in paths.items() if name in counts), "none")


def instructions(ptx: str) -> dict[str, int]:
    """How often each of INSTRUCTIONS stands in the PTX, as written, whatever loops make of it; only what does."""
    found = Counter(match.lastindex for match in ANY_INSTRUCTION.finditer(ptx))
    return {name: found[place] for place, name in enumerate(INSTRUCTIONS, 1) if place in found}


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
