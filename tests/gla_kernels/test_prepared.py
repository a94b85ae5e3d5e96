"""Launches that are made again without Triton's look at their arguments get what Triton would have given them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from gla_kernels import Schedule, gla, prepared
from gla_kernels.launch import Launch
from gla_kernels.prepared import key_of, run
from glabench.spec.case import Case
from glabench.spec.catalog import CATALOG
from glabench.systems.base import load


class Compiled:
    """Stands for a compiled kernel; says what it was launched with."""

    def __init__(self) -> None:
        self.launched: list[tuple[tuple[int, ...], tuple[Any, ...]]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*values: Any) -> None:
            self.launched.append((grid, values))

        return launch


class Kernel:
    """Stands for what ``@triton.jit`` makes; says what it was called with."""

    def __init__(self, *arg_names: str) -> None:
        self.arg_names, self.pre_run_hooks = list(arg_names), list[Any]()
        self.asked: list[dict[str, Any]] = []
        self.compiled = Compiled()

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Compiled]:
        def launch(**arguments: Any) -> Compiled:
            self.asked.append(arguments)
            return self.compiled

        return launch


@pytest.fixture(autouse=True)
def empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared, "_kept", {})


def a_launch(**changes: Any) -> Launch:
    """Of a kernel with a tensor that has a descriptor, one that has none, and numbers."""
    x = torch.zeros(1, 64, 2, 32, dtype=torch.bfloat16)
    args = {"p_x": x, "p_y": torch.zeros(40), "p_z": None, "scale": 0.5, "T": 64}
    made = Launch(
        KERNEL, (3, 2), args, {"K": 32, "GATED": True, "OTHER": 1}, num_warps=8, blocks={"x": (1, 64, 32)}, early=True
    )
    return replace(made, args={**args, **changes.pop("args", {})}, **changes)


KERNEL = Kernel("p_x", "p_y", "p_z", "d_x", "scale", "T", "K", "GATED", "d_y")


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    """One of its own for each test."""
    fresh = Kernel(*KERNEL.arg_names)
    monkeypatch.setitem(globals(), "KERNEL", fresh)
    return fresh


def test_the_second_time_the_compiled_kernel_gets_the_arguments_in_order(kernel: Kernel) -> None:
    run(a_launch(), 0)
    (asked,) = kernel.asked
    assert asked["num_warps"] == 8
    assert asked["launch_pdl"]
    second = a_launch(args={"scale": 0.5})
    run(second, 0)
    assert len(kernel.asked) == 1
    ((grid, values),) = kernel.compiled.launched
    assert grid == (3, 2, 1)
    expected = {**second.arguments, **second.constants}
    for name, value in zip(kernel.arg_names, values, strict=True):
        if name != "d_x":
            assert value is expected[name] or value == expected[name]
    descriptor = values[kernel.arg_names.index("d_x")]
    assert type(descriptor) is type(expected["d_x"])
    assert descriptor.base is second.args["p_x"]
    assert {**vars(descriptor), "base": 0} == {**vars(expected["d_x"]), "base": 0}


def wider(x: torch.Tensor) -> torch.Tensor:
    """The same in rows that lie further apart."""
    return torch.zeros(1, 64, 4, 32, dtype=x.dtype)[:, :, :2]


CHANGES: dict[str, dict[str, Any]] = {
    "dtype": {"args": {"p_y": torch.zeros(40, dtype=torch.float16)}},
    "address": {"args": {"p_y": torch.zeros(41)[1:]}},
    "present": {"args": {"p_z": torch.zeros(4)}},
    "absent": {"args": {"p_y": None}},
    "number": {"args": {"T": 63}},
    "float": {"args": {"scale": 1}},
    "bool": {"args": {"T": True}},
    "shape": {"args": {"p_x": torch.zeros(1, 128, 2, 32, dtype=torch.bfloat16)}},
    "strides": {"args": {"p_x": wider(torch.zeros(1, dtype=torch.bfloat16))}},
    "constant": {"constexprs": {"K": 32, "GATED": False, "OTHER": 1}},
    "warps": {"num_warps": 4},
    "stages": {"num_stages": 2},
    "registers": {"max_registers": 168},
    "early": {"early": False},
    "block": {"blocks": {"x": (1, 32, 32)}},
    "descriptor": {"blocks": {}},
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_kernel_may_be_compiled_for_is_asked_of_triton(kernel: Kernel, change: str) -> None:
    run(a_launch(), 0)
    run(a_launch(**CHANGES[change]), 0)
    assert (len(kernel.asked), kernel.compiled.launched) == (2, [])


def test_each_gpu_has_its_own_compiled_kernel(kernel: Kernel) -> None:
    run(a_launch(), 0)
    run(a_launch(), 1)
    assert len(kernel.asked) == 2


def test_another_kernel_with_the_same_arguments_is_another_one(kernel: Kernel) -> None:
    run(a_launch(), 0)
    run(replace(a_launch(), kernel=Kernel(*kernel.arg_names)), 0)
    assert kernel.compiled.launched == []


def test_a_hook_before_launches_is_triton_s_to_call(kernel: Kernel) -> None:
    run(a_launch(), 0)
    kernel.pre_run_hooks.append(print)
    run(a_launch(), 0)
    assert len(kernel.asked) == 2


def test_a_default_value_is_triton_s_to_fill_in(kernel: Kernel) -> None:
    kernel.arg_names.append("BLOCK")
    for _ in range(2):
        run(a_launch(), 0)
    assert len(kernel.asked) == 2


def test_a_kernel_that_is_still_being_compiled_is_triton_s_to_wait_for(kernel: Kernel) -> None:
    kernel.compiled = object()  # type: ignore[assignment]  # as in Triton's AsyncCompileMode
    for _ in range(2):
        run(a_launch(), 0)
    assert len(kernel.asked) == 2


def test_no_tensor_is_kept(kernel: Kernel) -> None:
    launch = a_launch()
    tensors = [weakref.ref(x) for x in launch.args.values() if isinstance(x, torch.Tensor)]
    run(launch, 0)
    kernel.asked.clear()
    del launch
    gc.collect()
    assert [x() for x in tensors] == [None] * 2


def test_no_more_are_kept_than_a_limit(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared, "MOST", 3)
    for T in range(10):
        run(a_launch(args={"T": T}), 0)
    assert len(prepared._kept) <= 3


@pytest.mark.parametrize("system", [name for name, info in CATALOG.items() if info.triton])
def test_every_launch_can_be_told_from_others(system: str) -> None:
    info = CATALOG[system]
    case = Case(system, 1, 512, 2, 64, 64, "bf16", "fwdbwd", chunk=64 if "chunk" in info.axes else None)
    if info.family == "linear":
        case = replace(case, gate_strength=None)
    found = load(system).launches(case, "sm_90")
    assert found
    assert len({key_of(launch, 0) for launch in found}) >= len({launch.name for launch in found})


COMPARE = """
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from gla_kernels import Schedule, prepared, launches

launched = []

class Driver:
    '''Compiles for an H200, and notes what it is to launch.'''
    class utils:
        load_binary = staticmethod(lambda *a: (1, 1, 128, 0, 1024))
        get_device_properties = staticmethod(lambda device: {"max_shared_mem": 232448})
    launcher_cls = staticmethod(lambda src, metadata: lambda *args: launched.append(args))
    get_current_target = staticmethod(lambda: GPUTarget("cuda", 90, 32))
    get_current_device = staticmethod(lambda: 0)
    get_current_stream = staticmethod(lambda device=0: 7)

driver.set_active(Driver())

def told(x):
    if hasattr(x, "block_shape"):
        return type(x), {**vars(x), "base": id(x.base)}
    return id(x) if isinstance(x, torch.Tensor) else x

found = launches("gla", B=1, T=256, H=2, K=128, V=128, dtype=torch.bfloat16, capability=90)
assert any(one.in_gluon for one in found) and any(one.blocks for one in found)
for one in found:
    for _ in range(2):
        prepared.run(one, 0)
    first, second = launched[-2:]
    # all but what hooks are told, which is new each time
    assert [told(x) for x in first[:6]] == [told(x) for x in second[:6]], one.name
    assert [told(x) for x in first[7:]] == [told(x) for x in second[7:]], one.name
assert len(launched) == 2 * len(found)
assert len(prepared._kept) == len(found)
"""


def test_triton_launches_the_same_either_way(python_process: Callable[..., Any]) -> None:
    python_process("-c", COMPARE)


@pytest.mark.gpu
def test_calls_after_the_first_are_right_at_other_addresses(inputs: Any, judge: Any) -> None:
    """New tensors of the same shapes; then some that do not begin at a multiple of 16 bytes."""
    for _ in range(3):
        given = inputs((2, 300, 2, 128, 128), torch.bfloat16, 1.0)
        judge(lambda q, k, v, g, s: gla(q, k, v, g, None, s, True), given)
    for _ in range(2):
        x = inputs((2, 300, 2, 64, 64), torch.bfloat16, 1.0)
        q, k, v, g = (torch.cat([y.new_zeros(1), y.flatten()])[1:].view(y.shape) for y in (x.q, x.k, x.v, x.g))
        whole, _ = gla(x.q, x.k, x.v, x.g, schedule=Schedule(64))
        torch.testing.assert_close(gla(q, k, v, g, schedule=Schedule(64))[0], whole, rtol=2e-2, atol=2e-2)
