"""A file that is small on the disk stays small in memory."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from glabench.errors import UserError
from glabench.spec.expand import check
from glabench.spec.source import read_yaml
from glabench.spec.sweep import load


def lists(levels: int) -> str:
    """Aliases that double at each level."""
    lines = ["a0: &a0 [x, x]"] + [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, levels)]
    return "\n".join(lines)


def merges(levels: int) -> str:
    lines = ["a0: &a0 {x: 1}"] + [f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}" for n in range(1, levels)]
    return "\n".join(lines)


BOMBS = {
    "aliases": (lists(60), "values, aliases written out"),
    "merges": (merges(60), "keys, merges written out"),
    "a merge of itself": ("a: &a\n  <<: *a\n  x: 1", "keys, merges written out|contains itself"),
    "nesting": ("[" * 600, "nested too deeply"),
    "bytes": ("# " + "x" * 2**20, "larger than 1 MiB"),
    "an integer": ("a: 0x" + "f" * 5000, "an integer of 20000 bits"),
    "no value of its tag": ("a: !!timestamp x", "not valid YAML"),
}


@pytest.fixture
def recursion() -> Iterator[None]:
    """Python's own limit: torch.compile, of another test in this process, leaves a higher one."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    yield
    sys.setrecursionlimit(limit)


@pytest.mark.parametrize("name", BOMBS)
def test_what_would_not_fit_is_one_line(tmp_path: Path, name: str, recursion: None) -> None:
    text, message = BOMBS[name]
    path = tmp_path / "bomb.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        read_yaml(path)


def test_a_sweep_of_more_cases_than_anyone_runs_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "long.yaml"
    values = list(range(1, 101))
    path.write_text(f"title: t\naxes:\n  system: gla\n  B: {values}\n  T: {values}\n  H: {values}\n  K: 8\n  V: 8\n")
    with pytest.raises(UserError, match=r"long.yaml:2: 1000000 cases before anything is excluded, at most 100000"):
        check(load(path))
