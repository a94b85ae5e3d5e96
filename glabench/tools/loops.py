"""What a kernel's loops run in each turn, counted in machine code: ``python -m glabench.tools.loops B,T,H,K,V``.

Registers and spills (``glabench compile``) do not tell whether a change takes more instructions; this does, before a
GPU is asked. Of every kernel that `gla` launches at the shape: its resources, and of its longest loops the instructions
from where the loop begins to the branch back, other loops and branches that are not taken included, with the commonest
opcodes. Of a warp group's products, and of waits for them: as many say that ptxas has each waited for before the next,
as it may without an error. Needs no GPU, and nvdisasm, which comes with Triton.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import typer

from glabench.errors import UserError
from glabench.hardware.descriptors import Instruction, disassemble, parse
from glabench.tools.trees import Gates

LOOPS, OPCODES = 2, 12  # that are shown: of a kernel, and of a loop

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
    gates: Annotated[Gates, typer.Option(help="Beside q, k and v in bf16.")] = "bf16",
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
    such kernel, and without CUDA's tools."""
    import torch

    from gla_kernels.ops.gla import launches
    from glabench.hardware.crosscompile import compile_launch, kernel_key, resources
    from glabench.spec.shape import sizes

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
        try:
            lines = parse(disassemble(cubin))
        except FileNotFoundError as error:
            raise UserError(str(error)) from None
        used = resources(cubin)
        opcodes = Counter(line.operation.split(".")[0] for line in lines)
        waits = sum(line.operation.startswith("WARPGROUP.DEPBAR") for line in lines)
        products = f", {opcodes['HGMMA']} products and {waits} waits for them" if opcodes["HGMMA"] else ""
        yield (
            f"{launch.name}: {used['registers']} registers, {used['spill_bytes']} bytes spilled, "
            f"{compiled.metadata.shared} of shared memory, {len(lines)} instructions{products}"
        )
        for loop in loops_of(lines)[:LOOPS]:
            yield f"  {loop}"


def loops_of(lines: Sequence[Instruction]) -> list[Loop]:
    """The loops of machine code, the longest first, of those that begin at one place the longest: from there to a
    branch back. A branch to itself, which ends each kernel, is none."""
    ends = {to: at + 1 for at, line in enumerate(lines) for to in line.after if to < at}  # by where a loop begins
    opcodes = [line.operation.split(".")[0] for line in lines]
    made = [Loop(end - start, Counter(opcodes[start:end])) for start, end in ends.items()]
    return sorted(made, key=lambda loop: loop.instructions, reverse=True)


if __name__ == "__main__":
    app()
