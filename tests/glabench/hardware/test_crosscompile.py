"""Cross-compilation of a small kernel of the tests' own, for GPUs that need not be there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glabench.hardware.crosscompile import instructions, parse_resources, tensor_core

PROBE = Path(__file__).with_name("compile_probe.py")


@pytest.fixture(scope="module")
def found(compiling_process: Callable[..., str]) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(compiling_process(str(PROBE)).splitlines()[-1])
    return answer


@pytest.mark.parametrize(
    ("arch", "path", "instruction"),
    [("sm_80", "mma", "mma.sync"), ("sm_90", "wgmma", "wgmma"), ("sm_100", "tcgen05", "tcgen05.mma")],
)
def test_a_kernel_compiles_without_a_gpu(found: dict[str, Any], arch: str, path: str, instruction: str) -> None:
    (entry,) = found[f"twice_{arch}"]
    assert entry["error"] is None
    assert (entry["kernel"], entry["arch"]) == ("product", arch)
    assert 16 < entry["registers"] <= 255
    assert entry["spill_bytes"] == 0
    assert entry["shared_bytes"] > 0
    assert entry["tensor_core"] == path
    assert entry["launches"] == 2  # the same kernel is compiled once
    assert entry["instructions"][instruction] > 0
    assert entry["instructions"]["st.global"] > 0
    assert 1 <= entry["programs_per_sm"] <= 8
    assert entry["limited_by"] in ("registers", "shared memory", "tensor memory", "warps", "programs")
    assert entry["compile_s"] > 0


def test_a_kernel_that_triton_has_in_its_cache_took_no_time(found: dict[str, Any]) -> None:
    assert [entry["compile_s"] for entry in found["again"]] == [None]


def test_launches_that_compile_differently_are_two_entries(found: dict[str, Any]) -> None:
    assert [entry["launches"] for entry in found["two_kinds"]] == [1, 1]


def test_a_kernel_too_large_for_the_gpu_says_what_it_needs(found: dict[str, Any]) -> None:
    (entry,) = found["too_large"]
    assert entry["error"] == "needs 256 KiB of shared memory, sm_80 has 163"
    assert entry["shared_bytes"] == 256 * 1024


def test_a_kernel_that_does_not_compile_is_an_entry_with_its_error(found: dict[str, Any]) -> None:
    (entry,) = found["broken"]
    assert "power of 2" in entry["error"]
    assert "\n" not in entry["error"]
    assert entry["registers"] is None


def test_a_full_disk_is_no_fault_of_the_kernel(found: dict[str, Any]) -> None:
    assert found["full_disk"] == "[Errno 28] No space left on device"


def test_arguments_are_specialised_as_the_jit_does(found: dict[str, Any]) -> None:
    assert found["signature"] == {
        "a": "*bf16", "b": "*bf16", "c": "*fp32", "n": "i32", "stride": "constexpr", "scale": "fp32",
        "BLOCK": "constexpr",
    }  # fmt: skip
    assert found["constants"] == {"stride": 1, "BLOCK": 64}
    assert found["divisible"] == [0, 1, 2, 3]


def test_a_missing_argument_is_named(found: dict[str, Any]) -> None:
    assert found["missing"] == "product: the launch has no argument n"


def test_resource_usage_is_read_from_cuobjdump() -> None:
    text = "Function product:\n  REG:128 STACK:48 SHARED:0 LOCAL:0 CONSTANT[0]:588 TEXTURE:0 SURFACE:0 SAMPLER:0\n"
    assert parse_resources(text) == {"registers": 128, "spill_bytes": 48}
    assert parse_resources("no such file") == {"registers": None, "spill_bytes": None}


def test_the_tensor_core_path_is_read_from_the_ptx() -> None:
    assert tensor_core("\twgmma.mma_async.sync.aligned.m64n64k16") == "wgmma"
    assert tensor_core("\tmma.sync.aligned.m16n8k16.row.col") == "mma"
    assert tensor_core("\ttcgen05.mma.cta_group::1.kind::f16") == "tcgen05"
    assert tensor_core("\tfma.rn.f32") == "none"


def test_instructions_are_counted_as_they_stand_in_the_ptx() -> None:
    ptx = """
        ld.global.v4.b32 {%r1, %r2}, [%rd1];
        @%p1 ld.global.b32 {%r1}, [%rd1];
        cp.async.cg.shared.global [%r1], [%rd1], 16;
        cp.async.commit_group;
        cp.async.wait_group 0;
        bar.sync 0;
        ld.param.b64 %rd1, [output_kernel_param_0];
    """
    assert instructions(ptx) == {"ld.global": 2, "cp.async": 1, "bar.sync": 1}
