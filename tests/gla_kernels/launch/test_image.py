"""What images hand to CUDA's driver, byte by byte, and what they leave to Triton."""

from __future__ import annotations

import gc
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from gla_kernels.launch import Launch, cuda
from gla_kernels.launch.image import MOST_BOUND, Image, Unfit

FUNCTION, STREAM = 77, 7
OFTEN = 40  # firings of which some are by a graph
WHERE = {"p_x": (0, 0), "p_y": (1, 512)}  # of the tensors: which address, and how far behind it
SIGNATURE = {"p_x": "*bf16", "p_y": "*fp32", "p_z": "constexpr", "scale": "fp32", "T": "i32", "K": "constexpr"}
X = torch.empty(1, 64, 2, 32, dtype=torch.bfloat16, device="meta")
Y = torch.empty(40, device="meta")
MAP = {"block_size": [1, 64, 32], "swizzle": 2, "elem_size": 2, "elem_type": 10, "fp4_padded": False}


class Kernel:
    """Stands for what ``@triton.jit`` makes."""

    def __init__(self, *arg_names: str) -> None:
        self.arg_names, self.fn = list(arg_names), SimpleNamespace(__name__="a_kernel")


def a_launch(**changes: Any) -> Launch:
    args = {"p_x": X, "p_y": Y, "p_z": None, "scale": 0.5, "T": 64}
    names = *args, "K", *(f"d_{x}" for x in changes.get("blocks", ()))
    return replace(Launch(Kernel(*names), (3, 2), args, {"K": 32}), **changes)


def compiled(signature: dict[str, Any] = SIGNATURE, **facts: Any) -> Any:
    """Stands for a compiled kernel."""
    plain = {
        "num_ctas": 1, "global_scratch_size": 0, "profile_scratch_size": 0, "launch_pdl": False,
        "launch_cooperative_grid": False, "num_warps": 4, "shared": 1024, "tensordesc_meta": None,
    }  # fmt: skip
    metadata, src = SimpleNamespace(**{**plain, **facts}), SimpleNamespace(signature=signature)
    return SimpleNamespace(metadata=metadata, src=src, function=FUNCTION, _init_handles=lambda: None)


def where(x: torch.Tensor) -> tuple[int, int]:
    return WHERE["p_x" if x is X else "p_y"]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, fake_cuda: ModuleType) -> Any:
    """Of a kernel with two tensors and two numbers, and two addresses of scratch memory."""
    found = fake_cuda.FakeCuda(sizes={FUNCTION: [8, 8, 4, 4, 8, 8]})
    monkeypatch.setattr(cuda, "driver", lambda: found)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return found


def addressed(*addresses: int) -> tuple[int, ...]:
    return STREAM, *addresses


def test_the_driver_is_handed_the_launch_at_its_addresses(driver: Any) -> None:
    image = Image([(a_launch(), compiled(num_warps=8, launch_pdl=True))], where)
    for x, y in ((0x7F0000000000, 0x7F0000100000), (0x10000, 0x20000)):
        driver.launched.clear()
        image.fire(addressed(x, y))
        (found,) = driver.launched
        assert (found.function, found.grid, found.block) == (FUNCTION, (3, 2, 1), (256, 1, 1))
        assert (found.shared_bytes, found.stream) == (1024, STREAM)
        assert found.attributes == ((cuda.PROGRAMMATIC_STREAM_SERIALIZATION, 1),)
        numbers = struct.pack("<f", 0.5), struct.pack("<i", 64)
        assert found.parameters == (struct.pack("<Q", x), struct.pack("<Q", y + 512), *numbers, bytes(8), bytes(8))


def test_a_descriptor_is_a_tensor_map_and_its_sizes_once_more(driver: Any, fake_cuda: ModuleType) -> None:
    driver.sizes[FUNCTION] = [8, 128, 4, 4, 4, 8, 8, 8, 8, 8]
    launch = a_launch(blocks={"x": (1, 64, 32)})
    kernel = compiled({"p_x": "*bf16", "d_x": "tensordesc<bf16[1, 64, 32]>"}, tensordesc_meta=[MAP])
    launch.kernel.arg_names = ["p_x", "d_x"]
    image = Image([(launch, kernel), (launch, kernel)], where)
    for x in (0x7F0000000000, 0x10000):
        driver.launched.clear()
        image.fire(addressed(x, 0))
        text = fake_cuda.encoded(x, 9, [64, 64, 1], [2 * 64, 2 * 64 * 64], [32, 64, 1], 0, 2, 2, 0)
        for found in driver.launched:
            sizes = [*(struct.pack("<i", n) for n in (1, 64, 64)), *(struct.pack("<q", n) for n in (64 * 64, 64, 1))]
            assert found.parameters[:-2] == (struct.pack("<Q", x), text, *sizes)


def test_launches_come_in_order_and_become_a_graph_in_time(driver: Any) -> None:
    image, fired = Image([(a_launch(grid=(n,)), compiled()) for n in (5, 6)], where), 0
    while not driver.graphs:
        image.fire(addressed(0x1000, 0x2000))
        fired += 1
        assert fired < OFTEN, "no graph is made"
    *before, fifth, sixth = driver.launched
    assert [(one.grid[0], one.stream) for one in before] == [(5, STREAM), (6, STREAM)] * (fired - 1)
    (captured,) = driver.captured
    assert [(one.grid[0], one.stream) for one in (fifth, sixth)] == [(5, captured), (6, captured)]
    for _ in range(2):
        image.fire(addressed(0x1000, 0x2000))
    ((graph, stream),) = set(driver.graphs)
    assert (len(driver.graphs), stream) == (3, STREAM)
    assert len(driver.launched) == 2 * fired
    assert graph not in driver.destroyed
    del image
    gc.collect()
    assert graph in driver.destroyed


def test_other_addresses_are_launched_one_by_one_again(driver: Any) -> None:
    image = Image([(a_launch(), compiled())], where)
    for _ in range(OFTEN):
        image.fire(addressed(0x1000, 0x2000))
    assert driver.graphs
    driver.launched.clear()
    driver.graphs.clear()
    image.fire(addressed(0x1000, 0x4000))
    (found,) = driver.launched
    assert found.parameters[1] == struct.pack("<Q", 0x4000 + 512)
    assert not driver.graphs


def test_a_stream_that_is_being_captured_gets_the_launches(driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    image = Image([(a_launch(), compiled())], where)
    for _ in range(OFTEN):
        image.fire(addressed(0x1000, 0x2000))
    assert [one.stream for one in driver.launched] == [STREAM] * OFTEN
    assert driver.graphs == driver.captured == []


def test_a_graph_of_ours_is_no_part_of_one_that_is_being_captured(driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    image = Image([(a_launch(), compiled())], where)
    for _ in range(OFTEN):
        image.fire(addressed(0x1000, 0x2000))
    assert driver.graphs
    driver.launched.clear()
    driver.graphs.clear()
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    image.fire(addressed(0x1000, 0x2000))
    assert len(driver.launched) == 1
    assert driver.graphs == []


def test_addresses_that_come_and_go_make_no_graphs(driver: Any) -> None:
    image = Image([(a_launch(), compiled())], where)
    for i in range(4 * OFTEN):
        image.fire(addressed(0x1000, 0x1000 * (i // 2)))
    assert len(driver.launched) == 4 * OFTEN
    assert driver.captured == []


def test_no_more_addresses_are_kept_than_a_limit(driver: Any) -> None:
    image = Image([(a_launch(), compiled())], where)
    for i in range(MOST_BOUND + 2):
        image.fire(addressed(0x1000, 0x1000 * i))
    assert len(image._bound) <= MOST_BOUND


def test_what_the_driver_says_is_raised(driver: Any) -> None:
    image = Image([(a_launch(), compiled())], where)
    driver.fails = 700
    for _ in range(2):
        with pytest.raises(RuntimeError, match="CUDA driver: planted error 700"):
            image.fire(addressed(0x1000, 0x2000))


def test_a_thread_without_a_context_enters_that_of_its_device(
    driver: Any, fake_cuda: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a new thread is, whose tensors come from the allocator's cache: to make launches, and to prepare them."""
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 3, raising=False)
    context = fake_cuda.FIRST_HANDLE - 1 - 3
    driver.entered = None
    image = Image([(a_launch(), compiled())], where)
    assert driver.entered == context
    driver.entered = None
    image.fire(addressed(0x1000, 0x2000))
    assert len(driver.launched) == 1
    assert driver.entered == context
    driver.entered = None
    assert len(cuda.tensor_map(0x1000, torch.bfloat16, [64, 64], [64, 1], [64, 64], 3)) == cuda.TENSOR_MAP_BYTES
    assert driver.entered == context


@pytest.mark.parametrize("sizes", [[8, 8, 4, 8, 8, 8], [8, 8, 4, 4, 8, 4], [8, 8, 4], [4, 8, 4, 4]], ids=str)
def test_a_driver_that_knows_other_parameters_is_left_to_triton(driver: Any, sizes: list[int]) -> None:
    driver.sizes[FUNCTION] = sizes
    with pytest.raises(Unfit, match="expected parameters of"):
        Image([(a_launch(), compiled())], where)


def test_a_driver_that_cannot_tell_its_parameters_is_given_two_for_scratch(
    driver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(type(driver), "cuFuncGetParamInfo")  # before CUDA 12.4
    Image([(a_launch(), compiled())], where).fire(addressed(0x1000, 0x2000))
    (found,) = driver.launched
    assert found.parameters[4:] == (bytes(8), bytes(8))


UNFIT: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "clusters": ({}, {"num_ctas": 2}),
    "scratch memory": ({}, {"global_scratch_size": 128}),
    "a profiler's memory": ({}, {"profile_scratch_size": 128}),
    "a default value": ({"BLOCK": "i32"}, {}),
    "a tuple": ({"T": ("i32", "i32")}, {}),
    "a number of 16 bits": ({"scale": "fp16"}, {}),
    "a descriptor in parts": ({"p_x": "tensordesc<bf16[1, 64, 32]>"}, {}),
}


@pytest.mark.parametrize("name", UNFIT)
def test_what_takes_more_than_known_arguments_is_left_to_triton(driver: Any, name: str) -> None:
    kinds, facts = UNFIT[name]
    launch = a_launch()
    launch.kernel.arg_names += [name for name in kinds if name not in launch.kernel.arg_names]
    with pytest.raises(Unfit):
        Image([(launch, compiled({**SIGNATURE, **kinds}, **facts))], where)


MAPS: dict[str, Callable[[int, bytes], bytes]] = {
    "does not begin with": lambda address, text: text[8:] + text[:8],
    "elsewhere, too": lambda address, text: text[:64] + struct.pack("<Q", address) + text[72:],
}


@pytest.mark.parametrize("message", MAPS)
def test_a_tensor_map_that_is_laid_out_otherwise_is_left_to_triton(
    driver: Any, fake_cuda: ModuleType, message: str
) -> None:
    driver.encode = lambda address, *sort: MAPS[message](address, fake_cuda.encoded(address, *sort))
    kernel = compiled({"p_x": "*bf16", "d_x": "tensordesc<bf16[1, 64, 32]>"}, tensordesc_meta=[MAP])
    launch = a_launch(blocks={"x": (1, 64, 32)})
    launch.kernel.arg_names = ["p_x", "d_x"]
    with pytest.raises(Unfit, match=message):
        Image([(launch, kernel)], where)


def test_the_driver_is_handed_what_triton_would_have_handed_it(compiling_process: Callable[..., str]) -> None:
    """Of all launches of both directions of calls, compiled for an H200, at two sets of addresses."""
    compiling_process(str(Path(__file__).parents[1] / "fake_cuda.py"))
