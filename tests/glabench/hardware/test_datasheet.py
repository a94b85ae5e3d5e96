"""Datasheets: dense figures with sources, and which GPU is which."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import fields

import pytest

from glabench.errors import UserError
from glabench.hardware.datasheet import DATASHEET, datasheet_for, find_datasheet


def test_every_figure_has_a_source() -> None:
    for sheet in DATASHEET.values():
        figures = {field.name for field in fields(sheet)} - {"name", "arch", "sources"}
        assert set(sheet.sources) == figures
        assert all(url.startswith("https://") for url in sheet.sources.values())


@pytest.mark.parametrize("short", DATASHEET)
def test_figures_are_of_the_dense_kind(short: str) -> None:
    # Dense multiply-adds in 16 bits that an SM's tensor cores give in a clock; sparse ones would be twice as many. The
    # boost clocks of tensor and CUDA cores differ by less than a tenth.
    sheet = DATASHEET[short]
    fmas = {"sm_80": 1024, "sm_90": 2048, "sm_100": 4096}[sheet.arch]
    assert sheet.bf16_flops == pytest.approx(2 * fmas * sheet.sms * sheet.boost_hz, rel=0.1)
    assert sheet.fp16_flops == sheet.bf16_flops
    assert sheet.tf32_flops == pytest.approx(sheet.bf16_flops / 2, rel=0.01)


@pytest.mark.parametrize(("short", "mhz"), [("A100", 1410), ("H100", 1980), ("H200", 1980), ("B200", 1980)])
def test_exponentials_go_by_the_boost_clock(short: str, mhz: int) -> None:
    sheet = DATASHEET[short]
    assert sheet.boost_hz == pytest.approx(mhz * 1e6, rel=0.005)
    assert sheet.exps_per_s == pytest.approx(16 * sheet.sms * mhz * 1e6, rel=0.005)


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("H200", "H200"),
        ("h100", "H100"),
        ("NVIDIA H200", "H200"),
        ("nvidia-h200", "H200"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA H100 SXM", "H100"),
    ],
)
def test_a_gpu_is_found_by_its_own_name_and_by_its_short_one(name: str, short: str) -> None:
    assert datasheet_for(name) is DATASHEET[short]


@pytest.mark.parametrize("name", ["NVIDIA H100 PCIe", "NVIDIA H200 NVL", "NVIDIA A100-SXM4-40GB", "NVIDIA H100 MIG 1g"])
def test_another_board_of_the_name_is_another_gpu(name: str) -> None:
    assert find_datasheet(name) is None
    with pytest.raises(UserError, match=r"no datasheet of '.*' \(there is one of the NVIDIA \w+"):
        datasheet_for(name)


def test_an_unknown_gpu_is_one_line_with_the_nearest_name() -> None:
    with pytest.raises(UserError, match=r"^a GPU without a ceiling: .* 'H20' \(did you mean 'H200'\?\)$"):
        datasheet_for("H20")
    with pytest.raises(UserError, match=r"'NVIDIA GH200 480GB' \(one of: A100, B200, H100, H200\)$"):
        datasheet_for("NVIDIA GH200 480GB")


def test_ceilings_and_datasheets_need_no_torch(python_process: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    code = (
        "import sys; from glabench.hardware.ceilings import ceilings_of;"
        "ceilings_of('A100'); print('torch' in sys.modules, 'triton' in sys.modules)"
    )
    assert python_process("-c", code).stdout.split() == ["False", "False"]
