"""The command as a user meets it: exit codes, files, bad input."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from glabench.check import power, remeasure
from glabench.check.remeasure import Tree
from glabench.cli import main
from glabench.errors import UserError
from glabench.hardware.environment import device_slug, fingerprint
from glabench.spec.case import Case
from glabench.store import Row, to_json

Run = Callable[..., tuple[int, str, str]]


def write(path: Path, ms: float | None, system: str = "gla", **environment: Any) -> str:
    """A file with one run of one case, not timed where ``ms`` is None."""
    case = Case(system, 4, 1024, 16, 128, 128, mode="fwd")
    facts = {"device": "NVIDIA Test", "device_slug": "nvidia-test", "kind": "cuda", "commit": "c0ffee", **environment}
    time = None
    if ms is not None:
        samples = [ms * (1 + 0.001 * (i % 7 - 3)) for i in range(50)]
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


def test_a_system_that_is_new_to_the_baseline_is_new(tmp_path: Path, run: Run) -> None:
    before = write(tmp_path / "before.jsonl", 1.0)
    after = write(tmp_path / "after.jsonl", 1.0, system="fla")
    code, out, err = run(after, "--baseline", before, "--only", "fla", "--no-remeasure")
    assert (code, err) == (0, "")
    assert "NVIDIA Test: 1 new" in out


def test_tunings_in_the_folder_are_left_out(tmp_path: Path, run: Run) -> None:
    rows = write(tmp_path / "rows.jsonl", 1.0)
    (tmp_path / "tune.jsonl").write_text('{"kind": "tuning"}\n')
    code, _, err = run(str(tmp_path), "--baseline", rows)
    assert code == 0
    assert err == f"glabench: warning: {tmp_path / 'tune.jsonl'}: tunings, not rows; left out\n"


def test_a_summary_that_cannot_be_written_is_one_line(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = write(tmp_path / "rows.jsonl", 1.0)
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "nowhere" / "summary"))
    code, _, err = run(rows, "--baseline", rows, "--format", "github")
    assert (code, len(err.splitlines())) == (2, 1)
    assert "GITHUB_STEP_SUMMARY: " in err


def test_sigterm_takes_the_checkout_away(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    places: list[Path] = []

    @contextmanager
    def checkout(revision: str) -> Iterator[Tree]:
        places.append(tmp_path / "tree")
        places[0].mkdir()
        try:
            yield Tree(places[0], revision)
        finally:
            places[0].rmdir()

    monkeypatch.setattr(remeasure, "checkout", checkout)
    monkeypatch.setattr(remeasure, "settle", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    before = signal.getsignal(signal.SIGTERM)
    try:
        here = {"kind": "cpu", "device": "this one", "device_slug": device_slug("cpu"), "fingerprint": fingerprint()}
        assert run(write(tmp_path / "rows.jsonl", 1.0, **here), "--against", "HEAD")[0] == 130
    finally:
        signal.signal(signal.SIGTERM, before)
    assert places
    assert not places[0].exists()


def test_rows_of_other_sources_are_not_run_in_turns_with_a_commit(tmp_path: Path, run: Run) -> None:
    """The turns would be of this code, and say nothing of the rows'."""
    here = {"kind": "cpu", "device": "this one", "device_slug": device_slug("cpu"), "fingerprint": "other"}
    code, _, error = run(write(tmp_path / "rows.jsonl", 1.0, **here), "--against", "HEAD")
    assert code == 2
    assert "--against HEAD: the rows are of other sources or versions" in error


def test_the_baseline_s_own_commit_can_be_run_in_turns(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    @contextmanager
    def checkout(revision: str) -> Iterator[Tree]:
        asked.append(revision)
        yield Tree(tmp_path, revision)

    monkeypatch.setattr(remeasure, "checkout", checkout)
    monkeypatch.setattr(remeasure, "settle", lambda found, *_: found)
    here = {"kind": "cpu", "device": "this one", "device_slug": device_slug("cpu"), "fingerprint": fingerprint()}
    before = write(tmp_path / "before.jsonl", 1.0, **here, commit="0ld")
    after = write(tmp_path / "after.jsonl", 1.0, **here, commit="new")
    assert run(after, "--baseline", before, "--against", "baseline")[0] == 0
    assert asked == ["0ld"]


@pytest.mark.parametrize(
    ("facts", "said"),
    [({"commit": None}, "are of no commit"), ({"dirty": True}, "are of c0ffee with changes; name a commit")],
)
def test_a_baseline_of_no_commit_cannot(tmp_path: Path, run: Run, facts: dict[str, Any], said: str) -> None:
    before, after = write(tmp_path / "before.jsonl", 1.0, **facts), write(tmp_path / "after.jsonl", 1.0)
    code, _, err = run(after, "--baseline", before, "--against", "baseline")
    assert (code, len(err.splitlines())) == (2, 1)
    assert said in err


def test_the_simulation_says_what_is_wrong_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        power.main([str(tmp_path / "nothing.jsonl")])
    untimed = write(tmp_path / "rows.jsonl", None)
    with pytest.raises(UserError, match="no row with times"):
        power.main([untimed])
    for option in ("--runs", "--rounds"):
        with pytest.raises(UserError, match=f"{option} 0.*: expected 1 or more"):
            power.main([write(tmp_path / "rows.jsonl", 1.0), option, "0"])


BAD = {
    "no such file": (["nothing.jsonl"], "nothing.jsonl: no such file"),
    "no such baseline": (["rows.jsonl", "--baseline", "row.jsonl"], "did you mean"),
    "unknown format": (["rows.jsonl", "--format", "jsn"], "did you mean 'json'?"),
    "no share": (["rows.jsonl", "--threshold", "three"], "--threshold three: expected a share"),
    "a share beyond 100 %": (["rows.jsonl", "--threshold", "3"], "such as 3% or 0.03"),
    "unknown system": (["rows.jsonl", "--only", "fla,gal"], "did you mean 'gla'?"),
    "no row of a system": (["rows.jsonl", "--only", "fla"], "the systems that it has rows of: gla"),
    "unknown suffix": (["rows.jsonl", "--out", "check.pdf"], "--out check.pdf: expected a file that ends in"),
    "another machine": (["rows.jsonl", "--against", "HEAD"], "NVIDIA Test, which is not this machine"),
    "times of zero": (["zero.jsonl"], "samples_ms"),
    "accepted beside --only": (["rows.jsonl", "--accept", "x", "--only", "gla"], "leave out --only"),
    "accepted beside others": (
        ["rows.jsonl", "--accept", "x", "--against", "y", "--out", "z.html"],
        "--out, --against",
    ),
    "in turns with a baseline that is not there": (
        ["rows.jsonl", "--against", "baseline"],
        "no baseline for nvidia-test",
    ),
    "measured again and not": (["rows.jsonl", "--no-remeasure", "--against", "HEAD"], "give one of them"),
    "accepted without a reason": (["rows.jsonl", "--accept", ""], "--accept: expected why"),
    "a baseline that is damaged": (["rows.jsonl", "--baseline", "damaged.jsonl"], "a baseline must be whole"),
    "a damaged file accepted": (["damaged.jsonl", "--accept", "x"], "a baseline must be whole"),
    "a trend in a file of rows": (
        ["rows.jsonl", "--baseline", "rows.jsonl", "--no-remeasure", "--trend", "rows.jsonl"],
        "rows.jsonl: holds results",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_exit_code_2(tmp_path: Path, run: Run, name: str) -> None:
    write(tmp_path / "rows.jsonl", 1.0)
    write(tmp_path / "zero.jsonl", 0.0)
    whole = Path(write(tmp_path / "damaged.jsonl", 1.0))
    whole.write_text(whole.read_text() + '{"case_id": "5')
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    arguments, said = BAD[name]
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert said in err
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
