"""What the kernels that gla() runs need on an A100 and an H100, against what they needed when that was last looked at.

The snapshots are compiled_sm_80.json and compiled_sm_90.json. A change that is meant renews them, so that it shows in
review:  python tests/gla_kernels/test_compiled.py
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gla_kernels import Machine, Workload, chosen
from gla_kernels.plan.apply import launches_of
from gla_kernels.schedule import Direction
from glabench.hardware.crosscompile import cross_compile
from glabench.hardware.environment import package_version

TARGETS = ("sm_80", "sm_90")
# B, T, H, K, V: one shape of the board for each pair of head dimensions.
SHAPES = ((4, 2048, 16, 128, 128), (8, 1024, 8, 64, 64), (32, 2048, 4, 128, 256), (8, 2048, 32, 256, 256))
FEW = (2, 1024, 4, 128, 128)  # chunks, whose o and dv come by kernels of their own on an H100
AT_ONCE = ("output_hopper_kernel", "grad_v_hopper_kernel")
DIRECTIONS: tuple[Direction, ...] = ("fwd", "bwd")
NEEDS = ("registers", "spill_bytes", "shared_bytes")
RENEW = "python tests/gla_kernels/test_compiled.py"

Needs = dict[str, int]


def path(target: str) -> Path:
    return Path(__file__).with_name(f"compiled_{target}.json")


def compile_all(target: str, only: str | None = None) -> dict[str, Needs]:
    """What each kernel needs at every shape, or those of one "KxV", by name such as "fwd 128x256 output". In this
    process: what a sweep has compiled is in Triton's cache, and to start others takes longer than to read it.
    """
    capability = int(target.removeprefix("sm_"))
    entries = {
        f"{direction} {K}x{V} {step}{' of few chunks' if few else ''}": cross_compile([launch], target)[0]
        for few, (B, T, H, K, V) in [*((False, shape) for shape in SHAPES), (True, FEW)]
        if only in (None, f"{K}x{V}")
        for direction in DIRECTIONS
        for work in [Workload(direction, B, T, H, K, V)]
        for step, launch in launches_of(work, chosen(work, Machine(capability)).plan, few=True).items()
        if not few or launch.name in AT_ONCE
    }
    broken = [f"{name}: {entry['error']}" for name, entry in entries.items() if entry["error"]]
    assert not broken, f"{target}: " + "; ".join(broken)
    return {name: {need: entry[need] for need in NEEDS} for name, entry in entries.items()}


def of_shape(name: str) -> str:
    """KxV of a kernel's name."""
    return name.split()[1]


def changes(target: str, before: dict[str, Needs], after: dict[str, Needs]) -> list[str]:
    """A line for each kernel that needs something else than before."""
    lines = []
    for name in {**before, **after}:
        if name not in after or name not in before:
            lines.append(f"{target} {name}: {'is no longer launched' if name in before else 'is new'}")
            continue
        pairs = {need: (before[name][need], after[name][need]) for need in NEEDS}
        told = [f"{need} {old} -> {new}" for need, (old, new) in pairs.items() if old != new]
        if told:
            lines.append(f"{target} {name}: {', '.join(told)}")
    return lines


# At night all shapes, which take minutes where nothing is cached: a change to a kernel shows at one KxV, whose kernels
# for both targets the quick sweep compiles, too.
SOME = [(target, "128x128") for target in TARGETS]


@pytest.mark.exhaustive(only=(None,))
@pytest.mark.parametrize(("target", "only"), [*SOME, *((target, None) for target in TARGETS)])
def test_kernels_need_what_they_needed(target, only, compiling_process: Callable[..., str]):
    snapshot = json.loads(path(target).read_text())
    if package_version("triton") != snapshot["triton"]:
        pytest.skip(f"the snapshot is of triton {snapshot['triton']}, here is {package_version('triton')}")
    # in a process that compiles: where kernels are interpreted, Hopper's own are not launched
    before = {name: needs for name, needs in snapshot["kernels"].items() if only in (None, of_shape(name))}
    found = changes(target, before, json.loads(compiling_process(__file__, target, *([only] if only else []))))
    assert not found, "\n".join(["kernels need something else than in the snapshot:", *found, f"if so meant: {RENEW}"])


PRODUCTS = """
from glabench.tools.loops import report
print(next(report("8,2048,32,256,256", "fwd", "prepare_hopper", "sm_90", "bf16")))
print(next(report("2,16384,16,128,128", "fwd", "states", "sm_90", "bf16")))
"""


@pytest.mark.exhaustive
def test_products_are_waited_for_together(compiling_process: Callable[..., str]):
    """Not each before the next, as where ptxas finds no other way: of what is prepared for a walk of wide heads, whose
    gates may be summed twice, and of states at segments' ends."""
    said = re.findall(r"(\d+) products and (\d+) waits", compiling_process("-c", PRODUCTS))
    assert len(said) == 2
    assert all(4 * int(waits) <= int(products) for products, waits in said), said


@pytest.mark.exhaustive
def test_a_blackwell_gpu_gets_kernels_that_compile(compiling_process: Callable[..., str]):
    """No snapshot: nobody has tuned them there. But what is good on Hopper need not compile (see plan/choose.py): that
    of heads of 64 does not, either, and what does compiles in half the time."""
    assert json.loads(compiling_process(__file__, "sm_100", "64x64"))


def test_a_change_says_which_kernel_and_by_how_much():
    old = {"registers": 255, "spill_bytes": 0, "shared_bytes": 1024}
    more = {"registers": 255, "spill_bytes": 8, "shared_bytes": 2048}
    assert changes("sm_90", {"a": old, "b": old}, {"a": old, "b": more}) == [
        "sm_90 b: spill_bytes 0 -> 8, shared_bytes 1024 -> 2048"
    ]
    assert changes("sm_90", {"a": old}, {"b": old}) == ["sm_90 a: is no longer launched", "sm_90 b: is new"]


KEYS = """
import sys
from gla_kernels.chunk import combine, grad_qk, grad_states, grad_v, output, states
modules = {"states": states, "combine": combine, "output": output, "grad_states": grad_states} | {
    "grad_qk": grad_qk, "grad_v": grad_v
}
names = list(modules)
order = names if sys.argv[1] == "there" else names[::-1]
keys = {name: getattr(modules[name], name + "_kernel").cache_key for name in order}
print([keys[name] for name in names])
"""


@pytest.mark.exhaustive
def test_one_process_finds_what_another_compiled(
    python_process: Callable[..., subprocess.CompletedProcess[str]], compiling_process: Callable[..., str]
):
    """Triton's key of a kernel does not depend on which kernel a process compiles first."""
    assert python_process("-c", KEYS, "there").stdout == compiling_process("-c", KEYS, "back")


def main(arguments: list[str]) -> None:
    """Renew the snapshots, or with a target, and KxV of a shape, say what its kernels need."""
    if arguments:
        target, *only = arguments
        print(json.dumps(compile_all(target, *only)))
        return
    for target in TARGETS:
        written = {"triton": package_version("triton"), "kernels": compile_all(target)}
        path(target).write_text(json.dumps(written, indent=2) + "\n")
        print(f"wrote {path(target).name}")


if __name__ == "__main__":
    main(sys.argv[1:])
