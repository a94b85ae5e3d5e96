"""Single launches: what is compiled for one serves all that are alike, and others ask again."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gla_kernels.launch import Launch, run
from gla_kernels.launch.image import Image, Unfit
from glabench.spec.case import Case
from glabench.spec.catalog import CATALOG
from glabench.systems.base import load

STREAM = 7


class Kernel:
    """Stands for what ``@triton.jit`` makes; says what it was called with."""

    def __init__(self, *arg_names: str) -> None:
        self.arg_names, self.pre_run_hooks = list(arg_names), list[Any]()
        self.called: list[dict[str, Any]] = []
        self.compiled: list[dict[str, Any]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda **arguments: self.called.append({**arguments, "grid": grid})

    def warmup(self, **arguments: Any) -> Any:
        self.compiled.append(arguments)
        return SimpleNamespace(result=lambda: "compiled")  # as in Triton's AsyncCompileMode


class FakeImage:
    """Stands for an image; says what addresses it was made ready for."""

    def __init__(self, launches: Sequence[tuple[Launch, Any]], where: Any) -> None:
        ((launch, self.compiled),) = launches
        self.places = [where(x) for x in launch.args.values() if isinstance(x, torch.Tensor)]

    def bind(self, addresses: Sequence[int]) -> tuple[None, Any]:
        return None, (self, list(addresses))


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[FakeImage, list[int]]]:
    """What launches come to: the image, and the stream and the addresses that it is made ready for."""
    found: list[tuple[FakeImage, list[int]]] = []
    monkeypatch.setattr(run, "_kept", {})
    monkeypatch.setattr(run, "Image", FakeImage)
    monkeypatch.setattr(run, "make", found.append)
    monkeypatch.setattr(run, "stream_of", lambda device: STREAM + device)
    return found


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


def test_the_second_time_what_was_compiled_is_made_at_other_addresses(kernel: Kernel, made: Any) -> None:
    first, second = a_launch(), a_launch(args={"scale": 0.5})
    run.run(first, 0)
    run.run(second, 0)
    (asked,) = kernel.compiled
    assert (asked["num_warps"], asked["launch_pdl"], asked["grid"]) == (8, True, (3, 2))
    assert (asked["K"], asked["T"], "OTHER" in asked) == (32, 64, False)
    assert asked["d_x"].base is first.args["p_x"]
    assert made[0][0] is made[1][0]
    assert made[0][0].compiled == "compiled"
    assert made[0][0].places == [(0, 0), (1, 0)]
    for launch, (_, addresses) in zip((first, second), made, strict=True):
        assert addresses == [STREAM, launch.args["p_x"].data_ptr(), launch.args["p_y"].data_ptr()]
    assert kernel.called == []


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
    "grid": {"grid": (3, 1)},
    "constant": {"constexprs": {"K": 32, "GATED": False, "OTHER": 1}},
    "warps": {"num_warps": 4},
    "stages": {"num_stages": 2},
    "registers": {"max_registers": 168},
    "early": {"early": False},
    "block": {"blocks": {"x": (1, 32, 32)}},
    "descriptor": {"blocks": {}},
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_kernel_may_be_compiled_for_is_asked_of_triton(kernel: Kernel, made: Any, change: str) -> None:
    run.run(a_launch(), 0)
    run.run(a_launch(**CHANGES[change]), 0)
    assert len(kernel.compiled) == 2
    assert made[0][0] is not made[1][0]


def test_each_gpu_has_its_own_compiled_kernel(kernel: Kernel, made: Any) -> None:
    run.run(a_launch(), 0)
    run.run(a_launch(), 1)
    assert len(kernel.compiled) == 2
    assert [addresses[0] for _, addresses in made] == [STREAM, STREAM + 1]


def test_another_kernel_with_the_same_arguments_is_another_one(kernel: Kernel) -> None:
    run.run(a_launch(), 0)
    other = Kernel(*kernel.arg_names)
    run.run(replace(a_launch(), kernel=other), 0)
    assert len(other.compiled) == 1


def test_a_hook_before_launches_is_triton_s_to_call(kernel: Kernel, made: Any) -> None:
    run.run(a_launch(), 0)
    kernel.pre_run_hooks.append(print)
    run.run(a_launch(), 0)
    assert (len(made), len(kernel.called)) == (1, 1)


@pytest.mark.parametrize("name", ["launch_enter_hook", "launch_exit_hook"])
def test_where_somebody_listens_triton_makes_launches(kernel: Kernel, made: Any, name: str) -> None:
    import triton

    hook = getattr(triton.knobs.runtime, name)
    run.run(a_launch(), 0)
    hook.add(print)
    try:
        run.run(a_launch(), 0)
    finally:
        hook.remove(print)
    run.run(a_launch(), 0)
    assert (len(made), len(kernel.called)) == (2, 1)
    assert kernel.called[0]["grid"] == (3, 2)


def test_what_an_image_does_not_fit_is_triton_s_to_launch(
    kernel: Kernel, made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unfit(*_: Any) -> Image:
        raise Unfit("planted")

    monkeypatch.setattr(run, "Image", unfit)
    for _ in range(2):
        run.run(a_launch(), 0)
    assert (len(kernel.called), len(kernel.compiled), made) == (2, 1, [])


def test_no_tensor_is_kept(kernel: Kernel, made: Any) -> None:
    launch = a_launch()
    tensors = [weakref.ref(x) for x in launch.args.values() if isinstance(x, torch.Tensor)]
    run.run(launch, 0)
    kernel.compiled.clear()
    del launch
    gc.collect()
    assert [x() for x in tensors] == [None] * 2


def test_no_more_are_kept_than_a_limit(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "MOST", 3)
    for T in range(10):
        run.run(a_launch(args={"T": T}), 0)
    assert len(run._kept) <= 3


@pytest.mark.parametrize("system", [name for name, info in CATALOG.items() if info.triton])
def test_every_launch_can_be_told_from_others(system: str) -> None:
    info = CATALOG[system]
    case = Case(system, 1, 512, 2, 64, 64, "bf16", "fwdbwd", chunk=64 if "chunk" in info.axes else None)
    if info.family == "linear":
        case = replace(case, gate_strength=None)
    found = load(system).launches(case, "sm_90")
    if system in ("mamba_scan", "mamba2_ssd") and not found:
        pytest.skip("its own package is installed here, and runs in the place of what is written here")
    assert found
    assert len({run.key_of(launch, 0) for launch in found}) >= len({launch.name for launch in found})
