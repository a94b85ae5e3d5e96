"""What the two projects list is what the tree holds: wheels built from it lack nothing. glabench and the kernels are
released together, and the kernels want no more than PyTorch, Triton and NumPy."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import gla_kernels
import glabench

ROOT = Path(__file__).parent.parent
PACKAGES = {"glabench": ROOT, "gla_kernels": ROOT / "kernels"}  # by package, where its project is
SWEEPS = "glabench.sweeps"  # the sweep files, which are inside the package only once it is installed
KERNELS_WANT = {"torch", "triton", "numpy"}

both = pytest.mark.parametrize("package", PACKAGES)


def read(package: str) -> dict[str, Any]:
    return tomllib.loads((PACKAGES[package] / "pyproject.toml").read_text())


def listed(package: str) -> set[str]:
    names: list[str] = read(package)["tool"]["setuptools"]["packages"]
    return set(names)


def folder(package: str, name: str) -> Path:
    """Where a listed package is, by the project's own table."""
    table = read(package)["tool"]["setuptools"].get("package-dir", {})
    return PACKAGES[package] / table.get(name, name.replace(".", "/"))


def names_of(requirements: list[str]) -> set[str]:
    """Normalized names of what is required."""
    return {re.sub(r"[-_.]+", "-", re.split(r"[\s<>=!~;\[]", one)[0]).lower() for one in requirements}


def pins() -> dict[str, str]:
    """The versions of constraints.txt, by normalized package name."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


@both
def test_every_package_folder_is_listed(package: str) -> None:
    top = folder(package, package)
    found = {".".join([package, *path.parent.relative_to(top).parts]) for path in top.rglob("*.py")}
    assert found == listed(package) - {SWEEPS}


@both
def test_every_package_folder_is_found_where_it_is(package: str) -> None:
    for name in listed(package) - {SWEEPS}:
        assert (folder(package, name) / "__init__.py").is_file(), name


@both
def test_every_data_file_is_listed(package: str) -> None:
    data = read(package)["tool"]["setuptools"]["package-data"]
    shipped = {path for name, patterns in data.items() for one in patterns for path in folder(package, name).glob(one)}
    found = {path for path in folder(package, package).rglob("*") if path.is_file()}
    sweeps = set((ROOT / "sweeps").iterdir()) if SWEEPS in listed(package) else set()
    assert {path for path in found if path.suffix not in (".py", ".pyc")} | sweeps == shipped


def test_kernels_is_no_package() -> None:
    """The name of another well-known package."""
    assert not (ROOT / "kernels" / "__init__.py").exists()


def test_one_version() -> None:
    assert gla_kernels.__version__ == glabench.__version__
    assert f"gla-kernels=={glabench.__version__}" in read("glabench")["project"]["dependencies"]
    for package in PACKAGES:
        project = read(package)
        assert "version" in project["project"]["dynamic"]
        assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "gla_kernels.version.__version__"}


def test_both_are_of_one_licence_and_one_home() -> None:
    assert (ROOT / "LICENSE").read_text() == (ROOT / "kernels" / "LICENSE").read_text()
    assert len({read(package)["project"]["urls"]["Repository"] for package in PACKAGES}) == 1


def test_the_kernels_ask_for_what_they_import() -> None:
    """And for nothing else; flash-linear-attention, whose place they take, is looked for by its name alone."""
    imported = set()
    for path in folder("gla_kernels", "gla_kernels").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
                imported.add(node.module.split(".")[0])
    assert imported - sys.stdlib_module_names == KERNELS_WANT
    assert names_of(read("gla_kernels")["project"]["dependencies"]) == KERNELS_WANT


def test_the_kernels_run_beside_nothing_else(
    python_process: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    """A call where whatever is neither asked for nor brought along by PyTorch and Triton cannot be imported. Nor is
    Dynamo, which takes as long as torch itself."""
    brought = names_of(importlib.metadata.requires("torch") or [])
    harness = names_of(read("glabench")["project"]["dependencies"]) - KERNELS_WANT - brought - {"gla-kernels"}
    modules = {"pyyaml": "yaml", "nvidia-ml-py": "pynvml"}
    hidden = ["glabench", *(modules.get(name, name) for name in harness)]
    code = f"""
import sys
sys.modules.update(dict.fromkeys({hidden}))
import torch, gla_kernels, gla_kernels.fla, gla_kernels.nn, gla_kernels.parallel, gla_kernels.serving
x = torch.randn(4, 1, 20, 1, 16, requires_grad=True)
o, _ = gla_kernels.gla(*x.sigmoid().log().unbind())
o.sum().backward()
print(tuple(o.shape), "torch._dynamo" in sys.modules)
"""
    done = python_process("-c", code, interpret=True)
    assert done.stdout.splitlines()[-1] == "(1, 20, 1, 16) False"


def test_constraints_pin_every_dependency() -> None:
    groups = [read("gla_kernels")["project"]["dependencies"], read("glabench")["project"]["dependencies"]]
    groups += read("glabench")["project"]["optional-dependencies"].values()
    assert set().union(*map(names_of, groups)) - {"gla-kernels"} <= set(pins())


def test_constraints_leave_the_build_of_torch_open() -> None:
    assert not [f"{name}=={version}" for name, version in pins().items() if "+" in version]


@pytest.fixture(scope="module")
def setup() -> ModuleType:
    """setup.py, which sets nothing up when it is imported."""
    spec = importlib.util.spec_from_file_location("glabench_setup", ROOT / "setup.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_links_of_the_readme_are_absolute_for_an_index(setup: ModuleType) -> None:
    home = read("glabench")["project"]["urls"]["Repository"]
    here, there = (ROOT / "README.md").read_text(), setup.readme()
    links = re.findall(r"\]\(([^)]+)\)", there)
    assert len(links) == len(re.findall(r"\]\(([^)]+)\)", here))
    assert [link for link in links if not link.startswith("https://")] == []
    assert f"({home}/blob/main/docs/kernels.md#packed-sequences)" in there
    assert f"({home}/raw/main/reports/figures/" in there
    inside = [link.split("/main/")[1].split("#")[0] for link in links if link.startswith(home)]
    assert inside
    assert [path for path in inside if not (ROOT / path).exists()] == []


def test_a_link_with_a_bracket_elsewhere_is_left_alone(setup: ModuleType) -> None:
    text = "[a](#here) [b](https://example.org/x) ![c](d/e.png) q[:, -1] (see)"
    assert setup.absolute(text, "H") == "[a](#here) [b](https://example.org/x) ![c](H/raw/main/d/e.png) q[:, -1] (see)"


def test_the_readme_of_the_kernels_needs_no_files_beside_it() -> None:
    links = re.findall(r"\]\(([^)]+)\)", (ROOT / "kernels" / "README.md").read_text())
    home = read("gla_kernels")["project"]["urls"]["Repository"]
    inside = [link for link in links if link.startswith(home)]
    assert inside
    assert [link for link in links if not link.startswith("https://")] == []
    assert [link for link in inside if not (ROOT / link.split("/main/")[1]).exists()] == []
