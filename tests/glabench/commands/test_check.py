"""The command as a user meets it: exit codes, files, bad input."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glabench.cli import main
from glabench.spec.case import Case
from glabench.store import Row, to_json

Run = Callable[..., tuple[int, str, str]]


def write(path: Path, ms: float, **environment: Any) -> str:
    """A file with one run of one case."""
    case = Case("gla", 4, 1024, 16, 128, 128, mode="fwd")
    samples = [ms * (1 + 0.001 * (i % 7 - 3)) for i in range(50)]
    facts = {"device": "NVIDIA Test", "device_slug": "nvidia-test", "kind": "cuda", "commit": "c0ffee", **environment}
    time = {"clock": "cuda_events_cold_l2", "samples_ms": samples}
    path.write_text(to_json(Row(case.id, "board", case.to_dict(), "ok", time=time, environment=facts)) + "\n")
    return str(path)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """``run("before.jsonl")``: the exit code of ``glabench check`` in a folder of its own, and what it printed."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["check", *arguments])
        code = ended.value.code
        assert isinstance(code, int)
        return code, *capsys.readouterr()

    return call


@pytest.mark.parametrize(
    ("ms", "environment", "expected"), [(1.0, {}, 0), (0.8, {}, 0), (1.2, {}, 1), (1.0, {"driver": "570.1"}, 3)]
)
def test_exit_codes(tmp_path: Path, run: Run, ms: float, environment: dict[str, str], expected: int) -> None:
    before = write(tmp_path / "before.jsonl", 1.0, driver="580.2")
    after = write(tmp_path / "after.jsonl", ms, **{"driver": "580.2", **environment})
    code, out, err = run(after, "--baseline", before)
    assert code == expected, out
    assert err == ""


def test_accept_then_check_by_itself(tmp_path: Path, run: Run) -> None:
    rows = write(tmp_path / "rows.jsonl", 1.0)
    code, _, err = run(rows)
    assert (code, len(err.splitlines())) == (2, 1)
    assert "no baseline for nvidia-test in results/baselines" in err
    code, out, _ = run(rows, "--accept", "the first")
    assert code == 0
    assert "the first" in out
    assert run(rows)[0] == 0
    assert run(write(tmp_path / "slow.jsonl", 1.3))[0] == 1


def test_files_are_written_by_their_suffix(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = write(tmp_path / "before.jsonl", 1.0), write(tmp_path / "after.jsonl", 1.2)
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary"))
    names = ["check.txt", "check.md", "check.json", "check.xml", "check.html"]
    outs = [argument for name in names for argument in ("--out", name)]
    code, out, _ = run(after, "--baseline", before, "--format", "github", *outs, "--trend", "trend.jsonl")
    assert code == 1
    assert out.startswith("::error title=slower (not re-measured)::")
    assert json.loads((tmp_path / "check.json").read_text())["counts"] == {"slower": 1}
    assert json.loads((tmp_path / "trend.jsonl").read_text())["device"] == "NVIDIA Test"
    assert (tmp_path / "summary").read_text() == (tmp_path / "check.md").read_text()
    assert "<svg" in (tmp_path / "check.html").read_text()


BAD = {
    "no such file": (["nothing.jsonl"], "nothing.jsonl: no such file"),
    "no such baseline": (["rows.jsonl", "--baseline", "row.jsonl"], "did you mean"),
    "unknown format": (["rows.jsonl", "--format", "jsn"], "did you mean 'json'?"),
    "no share": (["rows.jsonl", "--threshold", "three"], "--threshold three: expected a share"),
    "a share beyond 100 %": (["rows.jsonl", "--threshold", "3"], "such as 3% or 0.03"),
    "unknown system": (["rows.jsonl", "--only", "gal"], "did you mean 'gla'?"),
    "no row of a system": (["rows.jsonl", "--only", "fla"], "the systems that it has rows of: gla"),
    "unknown suffix": (["rows.jsonl", "--out", "check.pdf"], "--out check.pdf: expected a file that ends in"),
    "another machine": (["rows.jsonl", "--against", "HEAD"], "NVIDIA Test, which is not this machine"),
    "accepted without a reason": (["rows.jsonl", "--accept", ""], "--accept: expected why"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_exit_code_2(tmp_path: Path, run: Run, name: str) -> None:
    write(tmp_path / "rows.jsonl", 1.0)
    arguments, said = BAD[name]
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert said in err
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]
