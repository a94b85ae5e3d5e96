"""What a kernel's loops run in each turn, counted in machine code: ``python -m glabench.tools.loops B,T,H,K,V``.

Registers and spills (``glabench compile``) do not tell whether a change takes more instructions; this does, before a
GPU is asked. Of every kernel that `gla` launches at the shape: its resources, and of its longest loops the instructions
from where the loop begins to the branch back, other loops and branches that are not taken included, with the commonest
opcodes. Needs no GPU, and what the compiler brings: nvdisasm of Triton's wheel, or of a CUDA toolkit on the PATH.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

import typer

from glabench.errors import UserError

LOOPS, OPCODES = 2, 12  # that are shown: of a kernel, and of a loop
LABEL = re.compile(r"^\s*(\.L_\w+):")
# "/*0170*/  @!P0 BRA `(.L_x_7) ;": its opcode, and what follows
INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+\{?\s*(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)\S*(.*)")
TARGET = re.compile(r"\.L_\w+")

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass(frozen=True)
class Loop:
    """A loop's instructions: how many, and how often each opcode, the part before its first dot."""

    instructions: int
    opcodes: Counter[str]

    def __str__(self) -> str:
        commonest = ", ".join(f"{name} {count}" for name, count in self.opcodes.most_common(OPCODES))
        return f"loop of {self.instructions}: {commonest}"


@app.command()
def loops(
    shape: Annotated[str, typer.Argument(help="B,T,H,K,V.")],
    mode: Annotated[Literal["fwd", "bwd", "fwdbwd"], typer.Option(help="Of the call.")] = "fwdbwd",
    kernel: Annotated[str, typer.Option(help="Only kernels whose names begin so.")] = "",
    target: Annotated[str, typer.Option(help="Architecture.")] = "sm_90",
    gates: Annotated[Literal["bf16", "fp32", "none"], typer.Option(help="Beside q, k and v in bf16.")] = "bf16",
) -> None:
    """Count instructions of the loops of gla's kernels. Exit code: 0 done; 2 bad input."""
    try:
        for line in report(shape, mode, kernel, target, gates):
            typer.echo(line)
    except UserError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None


def report(shape: str, mode: str, kernel: str, target: str, gates: str) -> Iterator[str]:
    """Lines of each different kernel, in the order of launches. UserError for a shape or target that is none, for no
    such kernel, and without nvdisasm."""
    import torch

    from gla_kernels.ops.gla import launches
    from glabench.hardware.crosscompile import compile_launch, kernel_key, resources
    from glabench.hardware.environment import cuda_tool
    from glabench.spec.shape import sizes

    tool = cuda_tool("nvdisasm")
    if tool is None:
        raise UserError("nvdisasm is neither in Triton's wheel nor on the PATH")
    if re.fullmatch(r"sm_\d+", target) is None:
        raise UserError(f"--target {target}: expected an architecture such as sm_90")
    B, T, H, K, V = sizes(shape)
    capability, gate_dtype = int(target.removeprefix("sm_")), torch.float32 if gates == "fp32" else None
    how = {"mode": mode, "gated": gates != "none", "gate_dtype": gate_dtype, "capability": capability}
    found = launches("gla", B=B, T=T, H=H, K=K, V=V, dtype=torch.bfloat16, **how)  # type: ignore[arg-type]
    different = {kernel_key(launch): launch for launch in reversed(found) if launch.name.startswith(kernel)}
    if not different:
        raise UserError(f"--kernel {kernel}: expected one of {', '.join(dict.fromkeys(one.name for one in found))}")
    for launch in reversed(different.values()):
        compiled = compile_launch(launch, target)
        cubin = compiled.asm["cubin"]
        code = disassembled(cubin, tool)
        used, size = resources(cubin), sum(1 for _ in INSTRUCTION.finditer(code))
        yield (
            f"{launch.name}: {used['registers']} registers, {used['spill_bytes']} bytes spilled, "
            f"{compiled.metadata.shared} of shared memory, {size} instructions"
        )
        for loop in loops_of(code)[:LOOPS]:
            yield f"  {loop}"


def disassembled(cubin: bytes, tool: str) -> str:
    """The machine code of a cubin, with labels."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([tool, "-c", file.name], capture_output=True, text=True, timeout=120)
    if done.returncode:
        raise UserError(f"{tool}: {done.stderr.strip() or f'exit code {done.returncode}'}")
    return done.stdout


def loops_of(code: str) -> list[Loop]:
    """The loops of machine code, the longest first, of those that begin at one label the longest: from a label to a
    branch back to it. A branch to itself, which ends each kernel, is none."""
    labels: dict[str, int] = {}
    opcodes: list[str] = []
    ends: dict[int, int] = {}  # by where a loop begins
    for line in code.splitlines():
        if (label := LABEL.match(line)) is not None:
            labels[label[1]] = len(opcodes)
        elif (found := INSTRUCTION.search(line)) is not None:
            target = TARGET.search(found[2]) if found[1] == "BRA" else None
            if target is not None and labels.get(target[0], len(opcodes)) < len(opcodes):
                ends[labels[target[0]]] = len(opcodes) + 1
            opcodes.append(found[1])
    made = [Loop(end - start, Counter(opcodes[start:end])) for start, end in ends.items()]
    return sorted(made, key=lambda loop: loop.instructions, reverse=True)


if __name__ == "__main__":
    app()
