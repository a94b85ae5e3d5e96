"""What pyproject.toml lists is what the tree holds: a wheel built from it lacks nothing."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
ROOTS = {"glabench": ROOT / "glabench", "gla_kernels": ROOT / "kernels" / "gla_kernels"}
SWEEPS = "glabench.sweeps"  # the sweep files, which are inside the package only once it is installed


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def pins() -> dict[str, str]:
    """The versions of constraints.txt, by normalized package name."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def test_every_package_folder_is_listed(project: dict[str, Any]) -> None:
    found = {
        ".".join([name, *path.parent.relative_to(folder).parts])
        for name, folder in ROOTS.items()
        for path in folder.rglob("*.py")
    }
    assert found | {SWEEPS} == set(project["tool"]["setuptools"]["packages"])


def test_every_package_folder_is_found_where_it_is(project: dict[str, Any]) -> None:
    folders = project["tool"]["setuptools"]["package-dir"]
    for package in set(project["tool"]["setuptools"]["packages"]) - {SWEEPS}:
        mapped = folders.get(package) or folders[package.split(".")[0]] + "/" + "/".join(package.split(".")[1:])
        assert (ROOT / mapped / "__init__.py").is_file(), f"{package} is not in {mapped}"


def test_every_data_file_is_listed(project: dict[str, Any]) -> None:
    listed = project["tool"]["setuptools"]["package-data"]
    folders = project["tool"]["setuptools"]["package-dir"]
    shipped = {
        path
        for package, patterns in listed.items()
        for pattern in patterns
        for path in (ROOT / (folders.get(package) or package.replace(".", "/"))).glob(pattern)
    }
    data = {
        path
        for folder in ROOTS.values()
        for path in folder.rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc")
    }
    sweeps = set((ROOT / "sweeps").iterdir())
    assert data | sweeps == shipped


def test_kernels_is_no_package() -> None:
    assert not (ROOT / "kernels" / "__init__.py").exists()


def test_constraints_pin_every_dependency(project: dict[str, Any]) -> None:
    groups = [project["project"]["dependencies"], *project["project"]["optional-dependencies"].values()]
    names = {
        re.sub(r"[-_.]+", "-", re.split(r"[\s<>=!~;\[]", requirement)[0]).lower()
        for group in groups
        for requirement in group
    }
    assert names <= set(pins())


def test_constraints_leave_the_build_of_torch_open() -> None:
    assert not [f"{name}=={version}" for name, version in pins().items() if "+" in version]
