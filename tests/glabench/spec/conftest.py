"""Sweep files written on the spot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from glabench.spec.sweep import Sweep, load

Write = Callable[[str], Sweep]

POINT = "defaults: {B: 2, T: 64, H: 4, K: 32, V: 64}"


@pytest.fixture
def sweep_of(tmp_path: Path) -> Write:
    """Load a sweep from its text. ``POINT`` in the text stands for one line of defaults that make a case complete."""

    def write(text: str) -> Sweep:
        path = tmp_path / "mine.yaml"
        path.write_text(dedent(text).replace("POINT", POINT), encoding="utf-8")
        return load(path)

    return write
