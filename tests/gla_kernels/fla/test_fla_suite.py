"""The program that runs FLA's own tests on these kernels: when it fails, and what it says."""

from __future__ import annotations

import importlib.util
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

SUITE = Path(__file__).with_name("fla_suite.py")
HEAD = """
import torch
from fla.ops.gla import chunk_gla, fused_recurrent_gla

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.ones(1, 4, 1, 16, device=DEVICE)

def test_chunk():
    assert chunk_gla(x, x, x, -x)[0].shape == x.shape
"""
THEIRS = ["--theirs", "fused_recurrent_gla"]
TESTS = {
    "ours": ("fused_recurrent_gla(x, x, x, -x)", [], 0, ["1 fused_recurrent_gla: these", "1 chunk_gla: these"]),
    "theirs": ("assert fused_recurrent_gla(x, x, x)[0] == 'fused_recurrent_gla'", THEIRS, 0, ["1 chunk_gla: these"]),
    "fell back": (
        "fused_recurrent_gla(x, x, x, reverse=True)",
        [],
        1,
        [
            "2 passed",
            "fused_recurrent_gla went to FLA's own: reverse=True",
            "fused_recurrent_gla never ran these kernels",
        ],
    ),
}


@pytest.fixture
def suite() -> Any:
    """The program, as a module."""
    spec = importlib.util.spec_from_file_location("fla_suite", SUITE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("more", "options", "code", "says"), TESTS.values(), ids=TESTS)
def test_exit_code_and_what_is_said(fake, suite, capsys, more, options, code, says):
    path = fake / f"test_of_fla_{code}_{len(options)}.py"  # a module of this process, as long as it runs
    path.write_text(f"{HEAD}\ndef test_recurrent():\n    {more}\n")
    assert suite.main([*options, str(path)]) == code
    said = capsys.readouterr().out
    assert [line for line in says if line not in said] == []


def test_parts_share_the_tests_out(fake, suite, capsys):
    path = fake / "test_of_fla_in_parts.py"
    path.write_text(
        HEAD.replace(", fused_recurrent_gla", "") + "".join(f"\ndef test_{i}():\n    test_chunk()\n" for i in range(4))
    )
    for part, passed in (("1/2", 3), ("2/2", 2)):
        assert suite.main(["--part", part, str(path)]) == 0
        assert f"{passed} passed" in capsys.readouterr().out
    for part in ("3/2", "0/2", "half"):
        assert suite.main(["--part", part, str(path)]) == 2
        assert "--part" in capsys.readouterr().err


def test_as_a_program_it_fails_where_a_function_never_ran_them(fake, capsys, monkeypatch):
    path = fake / "test_of_fla.py"
    path.write_text(HEAD)
    monkeypatch.setattr(sys, "argv", [str(SUITE), str(path)])
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(str(SUITE), run_name="__main__")
    said = capsys.readouterr().out
    assert stop.value.code == 1, said
    assert "1 chunk_gla: these" in said
    assert "fused_recurrent_gla never ran these kernels" in said


def test_a_function_is_named_rightly(suite, capsys):
    assert suite.main(["--theirs", "chunk", "test_gla.py"]) == 2
    assert "chunk_simple_gla" in capsys.readouterr().err
