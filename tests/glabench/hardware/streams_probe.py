"""The measuring kernels, cross-compiled in a process of their own (the tests' process interprets); prints JSON."""

from __future__ import annotations

import json
import re

import torch

from gla_kernels.launch import Launch
from glabench.hardware import streams
from glabench.hardware.crosscompile import cross_compile, specialise
from glabench.hardware.rates import READERS

ARCHS = ("sm_80", "sm_90", "sm_100")


def launches() -> dict[str, Launch]:
    floats = torch.empty(2**20, device="meta")
    found = {f"read {one.block} {one.num_warps}": streams.read_once(floats, one)[0] for one in READERS}
    mark = streams.mark(torch.empty(1, dtype=torch.int32, device="meta"))
    return found | {"exp2": streams.exponentiate(floats, 128), "mark": mark}


def loop(ptx: str) -> str:
    """The lines of the innermost loop: from a label to the branch back to it."""
    found = re.search(r"^(\$L__BB\d+_\d+):(?:(?!^\$L__BB).)*?bra(?:\.uni)?\s+\1;", ptx, re.MULTILINE | re.DOTALL)
    return found[0] if found else ""


def compiled(launch: Launch, arch: str) -> str:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature, constants, attributes = specialise(launch)
    source = ASTSource(launch.kernel, signature=signature, constexprs=constants, attrs=attributes)
    target = GPUTarget("cuda", int(arch.removeprefix("sm_")), 32)
    return str(triton.compile(source, target=target, options={"num_warps": launch.num_warps}).asm["ptx"])


def main() -> None:
    found = {}
    for arch in ARCHS:
        for name, launch in launches().items():
            (entry,) = cross_compile([launch], arch)
            body = loop(compiled(launch, arch))
            found[f"{arch} {name}"] = {
                "error": entry["error"],
                "spill_bytes": entry["spill_bytes"],
                "loads": len(re.findall(r"ld\.global\.cg\.v4\.b32", body)),
                "exps": len(re.findall(r"ex2\.approx", body)),
                "stores": entry["instructions"].get("st.global", 0),
            }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
