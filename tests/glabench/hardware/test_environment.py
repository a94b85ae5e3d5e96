"""The environment of a row, and the names that files carry."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import glabench
from gla_kernels import Machine
from gla_kernels.plan import files as table_files
from gla_kernels.plan.table import header_of
from glabench.errors import UserError
from glabench.hardware import diagnosis, environment, nvml


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("NVIDIA H200", "nvidia-h200"),
        ("NVIDIA H100 80GB HBM3", "nvidia-h100-80gb-hbm3"),
        ("Intel(R) Xeon(R) CPU E5-2690 v4 @ 2.60GHz", "intel-xeon-cpu-e5-2690-v4"),
        ("", "unknown"),
    ],
)
def test_device_names_become_file_names(name: str, slug: str) -> None:
    assert environment.slug(name) == slug


def test_the_environment_of_a_cpu() -> None:
    found = environment.environment("cpu")
    assert found["kind"] == "cpu"
    assert found["device_slug"].startswith("cpu-")
    assert found["device_slug"] == environment.device_slug("cpu")
    assert found["memory_bytes"] > 2**28
    assert found["glabench"] == glabench.__version__
    assert found["fingerprint"] == environment.fingerprint()
    assert found["copy_bytes_per_s"] is None  # measured on a GPU only
    assert found["cpu_count"] >= 1


def test_the_cheap_facts_need_no_torch(python_process: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    code = (
        "import sys; from glabench.hardware import environment as e;"
        "e.fingerprint(); e.device_slug(e.detect_device()); print('torch' in sys.modules, 'triton' in sys.modules)"
    )
    assert python_process("-c", code).stdout.split() == ["False", "False"]


def test_the_fingerprint_follows_what_can_change_a_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "glabench"
    written = {"run/pipeline.py": "from glabench.run import gate", "run/gate.py": "1", "report/page.py": "1"}
    for name, text in written.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    monkeypatch.setattr(glabench, "__file__", str(package / "__init__.py"))
    fresh = environment.fingerprint.__wrapped__
    before = fresh()
    (package / "report/page.py").write_text("2")
    assert fresh() == before
    (package / "run/gate.py").write_text("2")
    after = fresh()
    assert after != before
    monkeypatch.setenv("GLABENCH_CACHE", str(tmp_path / "tuned"))
    assert fresh() == after
    (tmp_path / "tuned").mkdir()
    (tmp_path / "tuned" / "nvidia_h200-01234567.json").write_text("{}")
    tuned = fresh()
    assert tuned != after
    monkeypatch.setattr(environment, "package_version", lambda name: f"{name} of another version")
    assert fresh() != tuned


def test_the_fingerprint_follows_a_rival_s_files_where_a_variable_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (environment.HELION_EXAMPLES, *environment.RESULT_VARIABLES):
        monkeypatch.delenv(name, raising=False)
    fresh = environment.fingerprint.__wrapped__
    found = [fresh()]
    assert environment.folder_digest(environment.HELION_EXAMPLES) is None
    source = tmp_path / "linear" / "linear_attention_engine.py"
    source.parent.mkdir()
    source.write_text("1")
    monkeypatch.setenv(environment.HELION_EXAMPLES, str(tmp_path))
    found.append(fresh())
    source.write_text("2")
    found.append(fresh())
    monkeypatch.setenv("HELION_AUTOTUNE_EFFORT", "quick")
    found.append(fresh())
    assert len(set(found)) == len(found)
    (tmp_path / "linear" / "example_kda.py").write_text("another kernel's")
    assert fresh() == found[-1]


@pytest.mark.parametrize("name", ["GLABENCH_CACHE", "XDG_CACHE_HOME", "HOME"])
def test_tuned_plans_are_looked_for_where_they_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for variable in ("GLABENCH_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv(name, str(tmp_path))
    machine = Machine(90, "NVIDIA H200", 2**37)
    assert environment.tuned_folder() == table_files.user_path(header_of(machine)).parent


def test_what_the_driver_says_need_not_be_utf_8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "proc/driver/nvidia/gpus/0000:01:00.0/information"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"Model: \t NVIDIA \xff H200\n")
    monkeypatch.setattr(nvml, "gpu_info", lambda: None)
    monkeypatch.setattr(environment, "Path", lambda path: tmp_path / str(path).lstrip("/"))
    assert environment.gpu_name() == "NVIDIA \ufffd H200"
    assert environment.device_slug("cuda") == "nvidia-h200"


def test_without_a_home_every_folder_says_how_to_name_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GLABENCH_CACHE", "XDG_CACHE_HOME", "HOME", "TRITON_HOME", "TRITON_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)

    def unknown(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr("pwd.getpwuid", unknown)
    for folder, variable in (
        (environment.cache_folder, "GLABENCH_CACHE"),
        (environment.triton_cache, "TRITON_CACHE_DIR"),
    ):
        with pytest.raises(UserError, match=f"no home directory; set HOME, or {variable}"):
            folder()
        monkeypatch.setenv(variable, "/somewhere")
        assert folder() == Path("/somewhere")
        monkeypatch.delenv(variable)
    assert len(environment.fingerprint.__wrapped__()) == 12
    (cache,) = (found for found in diagnosis.examine() if found.label == "cache")
    assert (cache.value, cache.broken) == ("no home directory", True)


def test_a_gpu_that_nvml_does_not_show_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "gpu_name", lambda: None)
    assert environment.detect_device() == "cpu"
    monkeypatch.setattr(environment, "gpu_name", lambda: "NVIDIA H200")
    monkeypatch.setattr(environment, "torch_has_cuda", lambda: False)
    assert environment.detect_device() == "cpu"
    monkeypatch.setattr(environment, "torch_has_cuda", lambda: True)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert environment.detect_device() == "cuda"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert environment.detect_device() == "cpu"


def test_a_row_names_the_gpu_that_cuda_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not NVML's first; and a slice, of which NVML knows no board, as torch names it."""
    import torch

    used = SimpleNamespace(uuid="1234", name="A100 MIG 1g.10gb", total_memory=2**33, major=8, minor=0)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: used)
    first = nvml.GpuInfo("T400", "GPU-1", 2**32, "580", "13.0", (7, 5), None)
    for found, name, uuid in ((replace(first, name="A100"), "A100", "GPU-1"), (None, "A100 MIG 1g.10gb", "GPU-1234")):
        monkeypatch.setattr(nvml, "gpu_info", lambda uuid=None, found=found: found if uuid else first)
        facts = environment.environment.__wrapped__("cuda", bandwidth=False)
        assert (facts["device"], facts["device_slug"]) == (name, environment.slug(name))
        assert facts["gpu_uuid"] == uuid


def test_torch_s_build_is_read_without_importing_it() -> None:
    import torch

    assert environment.torch_has_cuda() == (torch.version.cuda is not None)


@pytest.mark.gpu
def test_the_environment_of_a_gpu() -> None:
    found = environment.environment("cuda")
    assert found["device_slug"] == environment.device_slug("cuda")
    assert found["copy_bytes_per_s"] > 1e11
    assert nvml.gpu_info() is None or found["driver"]
    info = nvml.gpu_info(found["gpu_uuid"])
    assert info is None or info.uuid.removeprefix("GPU-") == found["gpu_uuid"].removeprefix("GPU-")
