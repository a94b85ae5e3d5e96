"""Whether the products of a Hopper kernel read their operands from where these lie.

A product of a warp group (wgmma; HGMMA in machine code) reads operands from shared memory, by a descriptor that a pair
of uniform registers holds: the lower has the address, the upper the layout. The ptxas of CUDA 12.8, which comes with
Triton 3.6 and 3.7, may give such registers to another value while loops further on still need them: products there read
what lies elsewhere, results are wrong or the kernel crashes, and nothing says so. That of 12.9, with Triton 3.9, loses
none of the kernels that showed it. So the registers of each product are followed back here to where their values come
from: the address from the program's shared memory, the layout from constants. An address in the place of another one
would not be seen.

    python -m glabench.hardware.descriptors   # every kernel of the plans that come with the package; no GPU
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glabench.hardware.environment import cuobjdump

if TYPE_CHECKING:
    from gla_kernels import Entry, Launch

LINE = re.compile(
    r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?(?P<predicate>U?P\w+)\s+)?(?P<operation>[A-Z][\w.]*)\s*(?P<rest>.*?);"
)
LABEL = re.compile(r"(\.L_x_\d+):")
UNIFORM = re.compile(r"\bUR(\d+)\b")
CARRY = re.compile(r"UR\d+, UR\d+, URZ, URZ, UP\d")  # all that is added to the upper half of a sum
EXCLUSIVE_OR = re.compile(r"UR(\d+), UR(\d+), UR(\d+), URZ, 0x3c")
# What makes an address of others, of one of several buffers by its number, too, but for products that fill a pair; the
# sources of anything else are not followed.
FOLLOWED = ("UMOV", "UIADD3", "UIMAD", "ULOP3", "USHF", "USGXT", "ULEA", "UPRMT", "USEL")
WRITES = (*FOLLOWED, "ULDC", "S2UR", "R2UR", "UFLO", "UBREV", "UPOPC", "UP2UR", "REDUX")
KEPT = "R2UR"  # from a register of each thread, which is not followed
SWAP = "SWAP"  # two registers' values change places: three exclusive ors, read as one (`_swaps`)
# Where an address may come from: shared memory is found by a program's place in its cluster.
PLACES = ("SR_CgaCtaId", KEPT)


@dataclass
class Instruction:
    """A line of machine code: what it does, and the uniform registers that it writes."""

    operation: str
    rest: str
    maybe: bool  # done under a predicate
    writes: frozenset[int] = frozenset()
    after: tuple[int, ...] = ()  # what may come next


@dataclass
class Code:
    """A kernel's instructions, and for each the places that may have written a uniform register last."""

    lines: list[Instruction]
    written: list[dict[int, frozenset[int]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.written = [{} for _ in self.lines]
        left = deque([0] if self.lines else [])
        seen = set(left)
        while left:
            at = left.popleft()
            known = dict(self.written[at])
            line = self.lines[at]
            for register in line.writes:
                known[register] = frozenset([at]) | (known.get(register, frozenset()) if line.maybe else frozenset())
            for place in line.after:
                before = self.written[place]
                more = {r: before.get(r, frozenset()) | by for r, by in known.items() if not by <= before.get(r, set())}
                before.update(more)
                if more or place not in seen:
                    seen.add(place)
                    left.append(place)

    def origins(self, at: int, register: int) -> Iterator[tuple[str, bool]]:
        """What the value of a uniform register at an instruction is made of: operations that are not followed, and
        whether something was added to each, but for what is added to a pair of registers."""
        left, seen = [(at, register, False)], set()
        while left:
            place, name, added = left.pop()
            for by in self.written[place].get(name, ()):
                if (by, name, added) in seen:
                    continue
                seen.add((by, name, added))
                line = self.lines[by]
                pair = line.operation.endswith(".64")
                if line.operation == SWAP:
                    left.extend((by, other, added) for other in line.writes - {name})
                elif line.operation.startswith(FOLLOWED) and "WIDE" not in line.operation:
                    more = added or (line.operation.startswith("UIADD3") and not pair and not CARRY.match(line.rest))
                    high = pair and name != min(line.writes)
                    sources = line.rest.split(",", 1)[-1]
                    left.extend((by, int(found) + high, more) for found in UNIFORM.findall(sources))
                else:
                    yield f"{line.operation} {line.rest}", added

    def describes(self, at: int, lower: int) -> bool:
        """Whether a pair of registers may be a descriptor: an address, and a layout of constants. Either may come back
        from a register of each thread, where it was kept meanwhile."""
        address = any(place in origin for origin, _ in self.origins(at, lower) for place in PLACES)
        return address and all(KEPT in origin and not added for origin, added in self.origins(at, lower + 1))


def lost(cubin: bytes) -> list[str]:
    """The products of a kernel that read shared memory at what is no address of it, a line of machine code each. Raises
    FileNotFoundError without CUDA's tools, which come with Triton."""
    return lost_in(disassemble(cubin))


def lost_in(text: str) -> list[str]:
    """`lost`, of machine code as nvdisasm writes it."""
    code = Code(parse(text))
    found = []
    for at, line in enumerate(code.lines):
        if not line.operation.startswith("HGMMA"):
            continue
        if not all(code.describes(at, register) for register in _descriptors(line.rest)):
            found.append(f"{line.operation} {line.rest}")
    return found


def _descriptors(operands: str) -> list[int]:
    """The lower registers of a product's descriptors: of its second operand, and of the first, which may also lie in
    registers: then it is named before the descriptors."""
    before, name = operands.split("gdesc[UR")
    first = int(name.split("]")[0])
    return [first + 2] if len(re.findall(r"\bR\d+", before)) > 1 else [first, first + 2]


def disassemble(cubin: bytes) -> str:
    """Machine code as nvdisasm writes it."""
    tool = cuobjdump()
    if tool is None:
        raise FileNotFoundError("cuobjdump, and nvdisasm beside it, come with Triton and are missing")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(Path(tool).with_name("nvdisasm")), "--print-code", file.name]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def parse(text: str) -> list[Instruction]:
    """The instructions of a kernel, each with what may come next."""
    lines: list[Instruction] = []
    labels: dict[str, int] = {}
    for row in text.splitlines():
        label, found = LABEL.match(row.strip()), LINE.match(row)
        if label:
            labels[label[1]] = len(lines)
        elif found:
            operation, rest = found["operation"], found["rest"].strip()
            lines.append(Instruction(operation, rest, found["predicate"] is not None, _written(operation, rest)))
    for at, line in enumerate(lines):
        line.after = tuple(place for place in _next(at, line, labels) if place < len(lines))
    _swaps(lines)
    return lines


def _next(at: int, line: Instruction, labels: dict[str, int]) -> Iterator[int]:
    """To one label, or by BRX to one of several."""
    jumps = re.findall(r"\.L_x_\d+", line.rest) if line.operation.startswith(("BRA", "BRX")) else []
    yield from (labels[jump] for jump in jumps)
    conditional = line.maybe or re.match(r"!?U?P\d", line.rest) is not None
    if conditional or not (jumps or line.operation.startswith(("EXIT", "RET"))):
        yield at + 1


def _swaps(lines: list[Instruction]) -> None:
    """Of a ^= b, b ^= a, a ^= b the second becomes the exchange, and the others write nothing."""
    for at, first in enumerate(lines):
        found = _exclusive_or(first)
        if found is None:
            continue
        target, pair = found
        straight = takewhile(lambda line: not line.operation.startswith(("BRA", "BRX", "EXIT", "RET")), lines[at + 1 :])
        after = list(islice((line for line in straight if line.writes & pair), 2))
        if [_exclusive_or(line) for line in after] == [(sum(pair) - target, pair), found]:
            second, third = after
            first.writes = third.writes = frozenset()
            second.operation, second.writes = SWAP, pair


def _exclusive_or(line: Instruction) -> tuple[int, frozenset[int]] | None:
    """Of a ^= b, or a = b ^ a, the register a and both."""
    found = EXCLUSIVE_OR.match(line.rest) if line.operation.startswith("ULOP3") and not line.maybe else None
    if found is None:
        return None
    target, *both = (int(register) for register in found.groups())
    return (target, frozenset(both)) if target in both and len(set(both)) == 2 else None


def _written(operation: str, rest: str) -> frozenset[int]:
    target = re.match(r"UR(\d+)\b", rest)
    if target is None or not operation.startswith(WRITES):
        return frozenset()
    first = int(target[1])
    return frozenset((first, first + 1) if operation.endswith(".64") or "WIDE" in operation else (first,))


def _launches(entry: Entry) -> Iterator[Launch]:
    """What a tuned plan launches, and on Hopper the same call with gates of the value side."""
    import torch

    from gla_kernels import launches
    from gla_kernels.plan.apply import all_launches

    work = entry.work
    yield from all_launches(work, entry.plan, few=True)
    if work.gated and work.dtype == "bf16":
        sizes: dict[str, Any] = {"B": work.B, "T": work.T, "H": work.H, "K": work.K, "V": work.V}
        framed = launches("gla", **sizes, dtype=torch.bfloat16, value_gated=True)
        yield from (launch for launch in framed if launch.in_gluon)


def main() -> int:
    """Go over the plans that come with the package, and the same shapes with gates of the value side; 1 for a kernel
    that has lost an operand."""
    from gla_kernels.plan.files import shipped_tables
    from glabench.hardware.crosscompile import compile_launch, kernel_key

    entries = [entry for table in shipped_tables() for entry in table.entries]
    kernels = {kernel_key(launch): (launch, entry.work) for entry in entries for launch in _launches(entry)}
    wrong = 0
    for number, (launch, work) in enumerate(kernels.values(), 1):
        found = lost(compile_launch(launch, "sm_90").asm["cubin"])
        wrong += bool(found)
        said = f"{len(found)} products have lost an operand, such as {found[0]}" if found else "right"
        print(f"{number} of {len(kernels)}: {launch.step} {work.K}x{work.V} {work.dtype}: {said}", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
