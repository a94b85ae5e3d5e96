"""Ceilings: what they are counted from, how they are kept, and whose they are."""

from __future__ import annotations

import json
import math
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from glabench.errors import UserError
from glabench.hardware import ceilings, environment, nvml, rates
from glabench.hardware.ceilings import Ceilings, ceilings_of, kept, kept_path
from glabench.hardware.datasheet import DATASHEET, find_datasheet

FACTS = {"device": "NVIDIA H200", "memory_bytes": 150 * 10**9, "driver": "580.65", "torch": "2.11.0+cu130"}
MEASURED = Ceilings(
    device="NVIDIA H200",
    source="measured",
    conditions={"driver": "580.65", "sm_mhz": 1980.0},
    url=None,
    hbm_copy_bytes_per_s=4.25e12,
    hbm_read_bytes_per_s=4.5e12,
    l2_read_bytes_per_s=7e12,
    l2_bytes=60 * 2**20,
    bf16_flops=7e14,
    fp16_flops=7.1e14,
    tf32_flops=3.9e14,
    fp32_flops=5e13,
    exps_per_s=4e12,
    launch_gap_s=2e-6,
    launch_host_s=1.5e-5,
)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GLABENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """An element for each time that ceilings were measured."""
    calls: list[None] = []

    def measure() -> Ceilings:
        calls.append(None)
        return MEASURED

    monkeypatch.setattr(ceilings, "measure", measure)
    return calls


def test_ceilings_survive_json() -> None:
    for one in (MEASURED, Ceilings.from_datasheet(DATASHEET["B200"])):
        assert Ceilings.from_dict(json.loads(json.dumps(one.to_dict()))) == one


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"bf16_flops": 0}, "bf16_flops is 0"),
        ({"bf16_flops": None}, "bf16_flops is None"),
        ({"hbm_read_bytes_per_s": float("nan")}, "hbm_read_bytes_per_s is nan"),
        ({"launch_gap_s": "fast"}, "launch_gap_s is 'fast'"),
        ({"source": "guessed"}, "source is 'guessed'"),
        ({"device": None}, "device is None"),
        ({"conditions": []}, "conditions is"),
        ({"extra": 1}, "expected the keys device, source"),
    ],
)
def test_what_are_no_ceilings_is_said(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Ceilings.from_dict(MEASURED.to_dict() | change)


def test_a_missing_key_is_an_error() -> None:
    values = MEASURED.to_dict()
    del values["l2_bytes"]
    with pytest.raises(ValueError, match="l2_bytes"):
        Ceilings.from_dict(values)


def test_a_datasheet_says_what_it_can() -> None:
    found = Ceilings.from_datasheet(DATASHEET["H200"])
    assert (found.source, found.device, found.conditions) == ("datasheet", "NVIDIA H200 SXM", None)
    assert found.hbm_copy_bytes_per_s == found.hbm_read_bytes_per_s == 4.8e12
    assert (found.l2_read_bytes_per_s, found.launch_gap_s, found.launch_host_s) == (None, None, None)
    assert found.url is not None
    assert found.url.startswith("https://www.nvidia.com/")


def test_ceilings_are_measured_once_and_kept(cache: Path, measured: list[None]) -> None:
    assert kept(FACTS) == MEASURED
    assert kept(FACTS) == MEASURED
    assert len(measured) == 1
    assert [path.parent for path in cache.rglob("*")] == [cache, cache / "ceilings"]  # the folder and one file
    assert kept_path(FACTS).name.startswith("nvidia-h200-")


@pytest.mark.parametrize("name", FACTS)
def test_another_gpu_driver_or_torch_has_ceilings_of_its_own(cache: Path, name: str) -> None:
    assert kept_path(FACTS | {name: "other"}) != kept_path(FACTS)
    assert kept_path(FACTS | {"commit": "other"}) == kept_path(FACTS)


def test_another_method_measures_anew(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = kept_path(FACTS)
    monkeypatch.setattr(ceilings, "METHOD", ceilings.METHOD + 1)
    assert kept_path(FACTS) != before


@pytest.mark.parametrize("name", ["GLABENCH_CACHE", "XDG_CACHE_HOME", "HOME"])
def test_ceilings_are_kept_where_the_user_wants_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for variable in ("GLABENCH_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv(name, str(tmp_path))
    folder = {"GLABENCH_CACHE": "ceilings", "XDG_CACHE_HOME": "glabench/ceilings", "HOME": ".cache/glabench/ceilings"}
    assert kept_path(FACTS).parent == tmp_path / folder[name]


@pytest.mark.parametrize(
    "content",
    [
        "",
        '{"device": "NVIDIA H200"',
        json.dumps(MEASURED.to_dict() | {"bf16_flops": -1}),
        json.dumps(replace(MEASURED, device="NVIDIA H100").to_dict()),
        json.dumps(replace(MEASURED, source="datasheet").to_dict()),
    ],
)
def test_a_corrupted_file_is_refused_and_written_anew(cache: Path, measured: list[None], content: str) -> None:
    path = kept_path(FACTS)
    path.parent.mkdir(parents=True)
    path.write_text(content)
    with pytest.warns(UserWarning, match="measured anew") as warned:
        assert kept(FACTS) == MEASURED
    assert len(warned) == 1
    assert Ceilings.from_dict(json.loads(path.read_text())) == MEASURED
    assert len(measured) == 1


def test_a_cache_that_cannot_be_written_does_not_stop_the_work(cache: Path, measured: list[None]) -> None:
    cache.write_text("a file where the folder should be")
    with pytest.warns(UserWarning, match="cannot be kept"):
        assert kept(FACTS) == MEASURED


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(ceilings, "SHIPPED", tmp_path)
    ceilings.write(tmp_path / "nvidia-h200.json", MEASURED)
    return tmp_path


@pytest.mark.parametrize("name", ["NVIDIA H200", "nvidia-h200", "H200"])
def test_a_gpu_whose_ceilings_came_with_the_package_has_measured_ones(shipped: Path, name: str) -> None:
    assert ceilings_of(name) == MEASURED


@pytest.mark.parametrize(
    ("name", "device"), [("H100", "NVIDIA H100 SXM"), ("NVIDIA A100-SXM4-80GB", "NVIDIA A100 80GB SXM")]
)
def test_any_other_has_its_datasheet_s(shipped: Path, name: str, device: str) -> None:
    assert (ceilings_of(name).source, ceilings_of(name).device) == ("datasheet", device)


def test_a_board_of_the_name_is_not_taken_for_what_was_measured(shipped: Path) -> None:
    with pytest.raises(UserError, match="a GPU without a ceiling"):
        ceilings_of("NVIDIA H200 NVL")
    ceilings.write(shipped / "nvl.json", replace(MEASURED, device="NVIDIA H200 NVL"))
    assert ceilings_of("NVIDIA H200 NVL").device == "NVIDIA H200 NVL"


def test_a_shipped_file_that_is_broken_is_warned_of(shipped: Path) -> None:
    (shipped / "nvidia-h200.json").write_text("{}")
    with pytest.warns(UserWarning, match="it came with the package"):
        assert ceilings_of("H200").source == "datasheet"


def test_what_is_shipped_is_as_it_should_be() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for path in ceilings.SHIPPED.glob("*.json"):
            found = Ceilings.from_dict(json.loads(path.read_text()))
            assert (path.stem, found.source) == (environment.slug(found.device), "measured")
            assert ceilings_of(found.device) == found


def test_conditions_are_plain_values(monkeypatch: pytest.MonkeyPatch) -> None:
    info = nvml.GpuInfo("NVIDIA H200", "GPU-1", 2**37, "580.65", "13.0", (9, 0), True)
    monkeypatch.setattr(nvml, "gpu_info", lambda uuid: info)
    monkeypatch.setattr(nvml, "power_limit_w", lambda uuid: 700.0)
    readings = [nvml.Clocks(1900, 1980, 600, 60, ("power cap",)), nvml.Clocks(1980, 1980, None, 64, ())]
    found = ceilings.conditions("1", readings)
    assert found | {"date": "", "torch": "", "triton": ""} == {
        "date": "", "torch": "", "triton": "", "driver": "580.65", "power_limit_w": 700.0, "sm_mhz": 1940.0,
        "sm_mhz_min": 1900, "sm_mhz_max": 1980, "power_w": 600.0, "temperature_c": 64, "throttle": "power cap",
    }  # fmt: skip
    monkeypatch.setattr(nvml, "gpu_info", lambda uuid: None)
    monkeypatch.setattr(nvml, "power_limit_w", lambda uuid: None)
    assert set(ceilings.conditions("1", [])) == {"date", "torch", "triton"}


def test_without_a_gpu_there_is_one_clear_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(environment, "gpu_name", lambda: None)
    with pytest.raises(SystemExit) as stopped:
        ceilings.main([])
    said = capsys.readouterr()
    assert (stopped.value.code, said.out, said.err.count("\n")) == (2, "", 1)
    assert "no usable NVIDIA GPU here" in said.err


def test_the_module_prints_or_writes_what_it_measured(
    measured: list[None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ceilings.main([])
    assert Ceilings.from_dict(json.loads(capsys.readouterr().out)) == MEASURED
    ceilings.main(["--out", str(tmp_path / "new" / "file.json")])
    assert Ceilings.from_dict(json.loads((tmp_path / "new" / "file.json").read_text())) == MEASURED
    (tmp_path / "taken").write_text("")
    with pytest.raises(SystemExit) as stopped:
        ceilings.main(["--out", str(tmp_path / "taken" / "file.json")])
    assert stopped.value.code == 2


def test_every_ceiling_is_what_was_measured_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = SimpleNamespace(uuid="1", readings=[nvml.Clocks(1980, 1980, 600, 60, ())], l2_bytes=60 * 2**20)
    products = {
        (torch.bfloat16, "ieee"): 7e14, (torch.float16, "ieee"): 7.1e14,
        (torch.float32, "tf32"): 3.9e14, (torch.float32, "ieee"): 5e13,
    }  # fmt: skip
    fakes: dict[str, Any] = {
        "Stopwatch": lambda: watch,
        "wake": lambda: None,
        "hbm_read_bytes_per_s": lambda watch: 4.5e12,
        "l2_read_bytes_per_s": lambda watch: 7e12,
        "product_flops": lambda watch, dtype, precision="ieee": products[dtype, precision],
        "exps_per_s": lambda watch: 4e12,
        "launch_seconds": lambda watch: (2e-6, 1.5e-5),
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(rates, name, fake)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(ceilings, "require_cuda", lambda why: None)
    monkeypatch.setattr(ceilings, "copy_bytes_per_s", lambda: 4.25e12)
    monkeypatch.setattr(ceilings, "name_in_use", lambda: "NVIDIA H200")
    found = ceilings.measure()
    assert replace(found, conditions=MEASURED.conditions) == MEASURED
    assert found.conditions is not None
    assert (found.conditions["samples"], found.conditions["sm_mhz"]) == (rates.SAMPLES, 1980)


def test_interpreted_kernels_measure_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "require_cuda", lambda why: None)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(UserError, match="TRITON_INTERPRET"):
        ceilings.measure()


@pytest.mark.gpu
def test_a_gpu_is_between_nothing_and_its_datasheet() -> None:
    found = ceilings.measure()
    assert Ceilings.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    sheet = find_datasheet(found.device)
    promised = {} if sheet is None else Ceilings.from_datasheet(sheet).to_dict()
    for name, value in found.to_dict().items():
        if name.endswith(("_flops", "_per_s")):
            assert 1e9 < value < 1.1 * (promised.get(name) or math.inf), name
    assert found.l2_read_bytes_per_s is not None
    assert found.l2_read_bytes_per_s > found.hbm_read_bytes_per_s
    assert 0 < (found.launch_gap_s or 0) < 1e-3
    assert 0 < (found.launch_host_s or 0) < 1e-2
    assert found.tf32_flops > found.fp32_flops
