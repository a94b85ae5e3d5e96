"""The command as a user meets it: bad input, dry runs, real runs, a kill in the middle."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from glabench.cli import main
from glabench.commands import running
from glabench.hardware.environment import device_slug
from glabench.spec.expand import expand
from glabench.spec.sweep import load
from glabench.store import Appender, Row

Process = Callable[..., "subprocess.CompletedProcess[str]"]
Command = Callable[..., tuple[int, str, str]]

GOOD = (
    "title: Tiny\ndefaults: {B: 1, T: 16, H: 1, K: 8, V: 8, dtype: fp32, mode: fwd}\naxes: {system: recurrent_torch}\n"
)

# name -> (what the sweep file says, arguments after "glabench", what the one line says)
BAD: dict[str, tuple[str, list[str], str]] = {
    "no such sweep": (GOOD, ["sweep", "quikc"], "did you mean 'quick'?"),
    "no such file": (GOOD, ["sweep", "./bda.yaml"], "did you mean 'bad.yaml'?"),
    "a directory": (GOOD, ["sweep", "."], "is a directory"),
    "no name": (GOOD, ["sweep", ""], "expected a sweep file or a name, got ''"),
    "broken YAML": ("title: [x\n", ["sweep", "bad.yaml"], "bad.yaml:2: not valid YAML"),
    "empty file": ("", ["sweep", "bad.yaml"], "bad.yaml:1: the file is empty"),
    "misspelt key": (
        GOOD + "exlude: []\n",
        ["sweep", "bad.yaml"],
        "bad.yaml:4: unknown key 'exlude' (did you mean 'exclude'?)",
    ),
    "misspelt field": (GOOD.replace("H:", "h:"), ["sweep", "bad.yaml"], "bad.yaml:2: unknown field 'h'"),
    "unknown system": (GOOD.replace("_torch", "_torhc"), ["sweep", "bad.yaml"], "did you mean 'recurrent_torch'?"),
    "empty axis": (GOOD.replace("recurrent_torch", "[]"), ["sweep", "bad.yaml"], "bad.yaml:3: empty axis 'system'"),
    "wrong type": (
        GOOD.replace("T: 16", "T: long"),
        ["sweep", "bad.yaml"],
        "T: expected an integer > 0 and < 2^31, got 'long'",
    ),
    "an octal number": (
        GOOD.replace("T: 16", "T: 0100"),
        ["sweep", "bad.yaml"],
        "expected an integer > 0 and < 2^31, got '0100'",
    ),
    "a limit without end": (
        GOOD + "limit_s: .inf\n",
        ["sweep", "bad.yaml"],
        "bad.yaml:4: limit_s: expected a number > 0",
    ),
    "out is another file": (
        GOOD,
        ["sweep", "bad.yaml", "--device", "cpu", "--out", "bad.yaml"],
        "no line of it is a row",
    ),
    "a key twice": (GOOD + "title: again\n", ["sweep", "bad.yaml"], "key 'title' is given twice"),
    "missing axis": (GOOD.replace("K: 8, ", ""), ["sweep", "bad.yaml"], "missing K"),
    "nothing left": (GOOD + "exclude: [{T: 16}]\n", ["sweep", "bad.yaml"], "expands to no case"),
    "unknown only": (GOOD, ["sweep", "bad.yaml", "--only", "recurent_torch"], "did you mean 'recurrent_torch'?"),
    "only what is not there": (GOOD, ["sweep", "bad.yaml", "--only", "sdpa,gla"], "has no case of it"),
    "rows that are not there": (GOOD, ["sweep", "bad.yaml", "--lacking", "bda.jsonl"], "no such file or folder"),
    "unknown device": (GOOD, ["sweep", "bad.yaml", "--device", "gpu"], "expected auto, cpu or cuda"),
    "GPUs on a CPU": (
        GOOD,
        ["sweep", "bad.yaml", "--device", "cpu", "--gpus", "all"],
        "--gpus all: there is no usable",
    ),
    "unknown executor": (
        GOOD,
        ["sweep", "bad.yaml", "--executor", "rai"],
        "expected local or ray (did you mean 'ray'?)",
    ),
    "an address of nothing": (GOOD, ["sweep", "bad.yaml", "--address", "auto"], "is for --executor ray"),
    "GPUs for Ray": (GOOD, ["sweep", "bad.yaml", "--executor", "ray", "--gpus", "0"], "is for --executor local"),
    "out is a directory": (GOOD, ["sweep", "bad.yaml", "--out", "."], "is a directory"),
    "out below a file": (GOOD, ["sweep", "bad.yaml", "--out", "bad.yaml/rows.jsonl"], "cannot be written"),
    "unknown option": (GOOD, ["sweep", "bad.yaml", "--frseh"], "--frseh"),
    "unknown command": (GOOD, ["swep", "bad.yaml"], "did you mean 'sweep'?"),
    "missing argument": (GOOD, ["sweep"], "missing argument"),
}


def test_a_cache_that_cannot_be_written_is_told_of_before_any_case(
    refused: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "good.yaml").write_text(GOOD)
    monkeypatch.setenv("TRITON_CACHE_DIR", "/proc/nope/cache")
    assert "set TRITON_CACHE_DIR" in refused("sweep", "good.yaml", "--device", "cpu")
    assert [path.name for path in tmp_path.iterdir()] == ["good.yaml"]


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_exit_code_2(refused: Callable[..., str], tmp_path: Path, name: str) -> None:
    text, arguments, message = BAD[name]
    (tmp_path / "bad.yaml").write_text(text)
    assert message in refused(*arguments)
    assert [path.name for path in tmp_path.iterdir()] == ["bad.yaml"]
    assert (tmp_path / "bad.yaml").read_text() == text


def test_a_gpu_that_is_not_there_is_one_line(refused: Callable[..., str], tmp_path: Path, device: Any) -> None:
    if device.type == "cuda":
        pytest.skip("there is a GPU here")
    assert "no usable NVIDIA GPU" in refused("sweep", "quick", "--device", "cuda")
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_lists_the_cases_and_writes_nothing(command: Command, tmp_path: Path) -> None:
    code, out, _ = command("sweep", "sub_chunk", "--device", "cpu", "--dry-run")
    assert code == 0
    lines = out.splitlines()
    assert sum(re.match(r"[0-9a-f]{12} +gla ", line) is not None for line in lines) == 60
    assert any("C256/16 w/o m" in line for line in lines)
    assert any("60 cases: gla 60" in line for line in lines)
    assert re.search(r"60 to run, about \d+ (s|min|h) by a guess; rows would go to", lines[-1])
    assert list(tmp_path.iterdir()) == []


def test_only_cases_without_a_right_row_of_this_device_are_run(command: Command, tmp_path: Path) -> None:
    """Rows of another commit count, those of another device do not, and of one case the last one does."""
    (tmp_path / "five.yaml").write_text(GOOD.replace("{system:", "{T: [1, 2, 3, 4, 5], system:").replace("T: 16, ", ""))
    one, two, three, four, five = expand(load(tmp_path / "five.yaml"), "cpu").cases
    here, there = ({"device_slug": slug, "fingerprint": "old"} for slug in (device_slug("cpu"), "other"))
    rows = [(one, "ok", here), (two, "wrong", here), (three, "ok", there), (four, "ok", here), (four, "crashed", here)]
    (tmp_path / "rows").mkdir()
    with Appender(tmp_path / "rows" / "old.jsonl") as out:
        for case, status, machine in [*rows, (five, "timeout", here), (five, "ok", here)]:
            out.append(Row(case.id, "five", case.to_dict(), status, environment=machine))
    code, said, _ = command("sweep", "five.yaml", "--device", "cpu", "--lacking", "rows", "--dry-run")
    assert code == 0
    listed = {line.split()[0] for line in said.splitlines() if re.match(r"[0-9a-f]{12} ", line)}
    assert listed == {two.id, three.id, four.id}
    assert "0 finished, 3 to run" in said


def test_a_sweep_that_lacks_nothing_says_so(command: Command, tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text(GOOD)
    (case,) = expand(load(tmp_path / "one.yaml"), "cpu").cases
    with Appender(tmp_path / "rows.jsonl") as out:
        out.append(Row(case.id, "one", case.to_dict(), "ok", environment={"device_slug": device_slug("cpu")}))
    code, _, error = command("sweep", "one.yaml", "--device", "cpu", "--lacking", "rows.jsonl")
    assert code == 2
    assert "each of 1 case has a right row there" in error


def test_a_dry_run_says_what_cannot_run_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    text = GOOD.replace("{system: recurrent_torch}", "{system: [cudnn, recurrent_torch], T: [16, 32]}")
    (tmp_path / "two.yaml").write_text(text.replace("T: 16, ", ""))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["sweep", "two.yaml", "--device", "cpu", "--dry-run"])
    lines = capsys.readouterr().out.splitlines()
    refused = [line for line in lines if line.startswith("cannot run here: ")]
    assert refused == ["cannot run here: cudnn, 2 cases: it needs an NVIDIA GPU; run it where there is one"]
    assert "4 to run" in lines[-1]


def test_thousands_of_cases_are_expanded_with_one_id_each(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What a case's id takes is most of what expanding takes."""
    axes = {"system": "recurrent_torch", "T": list(range(1, 101)), "B": [1, 2], "mode": ["fwd", "bwd"]}
    defaults = GOOD.split("axes")[0].replace("B: 1, T: 16, ", "").replace(", mode: fwd", "")
    (tmp_path / "many.yaml").write_text(f"{defaults}axes: {json.dumps(axes)}\n")
    calls, digest = list[bytes](), hashlib.sha256

    def counted(data: bytes) -> Any:
        calls.append(data)
        return digest(data)

    monkeypatch.setattr("glabench.spec.case.hashlib.sha256", counted)
    plan = expand(load(tmp_path / "many.yaml"), "cpu")
    assert len(plan.cases) == len({case.id for case in plan.cases}) == 400
    assert len(calls) == 400


def test_a_dry_run_on_a_cluster_looks_for_rows_of_its_machines(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = {"device": "other", "kind": "cpu", "device_slug": "cpu-other", "fingerprint": "theirs"}
    monkeypatch.setattr(running, "pick_executor", lambda *asked: there)
    (tmp_path / "tiny.yaml").write_text(GOOD)
    (case,) = expand(load(tmp_path / "tiny.yaml"), "cpu").cases
    with Appender(tmp_path / "rows.jsonl") as out:
        out.append(Row(case.id, "tiny", case.to_dict(), "ok", environment=there))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["sweep", "tiny.yaml", "--executor", "ray", "--dry-run", "--out", "rows.jsonl"])
    assert "1 finished, 0 to run" in capsys.readouterr().out


def test_the_command_for_a_report_can_be_pasted(capsys: pytest.CaptureFixture[str]) -> None:
    running._close(Console(width=20), Counter(ok=1), 1, Path("dir with spaces/r.jsonl"), False)
    assert "Report: glabench report 'dir with spaces/r.jsonl'\n" in capsys.readouterr().out


TINY = """\
title: Tiny
defaults: {B: 1, H: 1, K: 8, V: 8, dtype: fp32, mode: fwd}
axes:
  system: sdpa
  T: [16, 17, 18, 19, 20, 21, 22, 23]
settings: {max_time_s: 0.02, min_time_s: 0.02}
cases:
  - {system: cudnn, T: 16}
"""

# Stands in for the pipeline, whose imports take seconds, where a test is about the processes around it: three cases are
# done at once, and what comes then waits for the file "go".
STAND_IN = """\
import time
from pathlib import Path
from glabench.run.driver import known_environment
from glabench.store import Row

def run_case(case, sweep, settings):
    end = time.monotonic() + 60
    while case.T > 18 and not Path("go").exists() and time.monotonic() < end:
        time.sleep(0.01)
    return Row(case.id, sweep, case.to_dict(), "ok", implementation="stand-in", environment=known_environment("cpu"))
"""
WITH_STAND_IN = """\
from glabench.run import worker
worker.PIPELINE = "stand_in"
from glabench.cli import main
main(["sweep", "tiny.yaml", "--device", "cpu", "--out", "rows.jsonl"])
"""


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.usefixtures("forked")
def test_a_real_sweep_from_file_to_rows_and_again(command: Command, tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(TINY)
    arguments = ("sweep", "tiny.yaml", "--device", "cpu")
    code, first, _ = command(*arguments)
    assert code == 0
    (path,) = (tmp_path / "results" / "local").iterdir()
    assert path.name.startswith("tiny-cpu-")
    found = rows(path)
    assert Counter(row["status"] for row in found) == {"ok": 8, "unsupported": 1}
    assert all(row["time"]["samples_ms"] and row["accuracy"]["passed"] for row in found if row["status"] == "ok")
    lines = first.splitlines()
    assert sum("] ok " in line and line.endswith(" ms") for line in lines) == 8
    assert lines[-3] == "9 cases: 8 ok, 1 unsupported"
    assert lines[-1] == f"Report: glabench report {path.relative_to(tmp_path)}"

    code, again, said = command(*arguments, "--format", "json")
    assert code == 0
    assert rows(path) == found
    assert "9 of them finished earlier" in said
    assert "] ok" not in said
    standing = [json.loads(line) for line in again.splitlines()]
    assert sorted(line["T"] for line in standing) == [16, 16, *range(17, 24)]

    assert command(*arguments, "--fresh", "--only", "cudnn")[0] == 0
    assert [row["case"]["system"] for row in rows(path)] == ["cudnn"]
    assert rows(path.with_name(path.name + ".1")) == found


def start(tmp_path: Path) -> subprocess.Popen[str]:
    """A sweep of stand-ins that comes to its third row, and no further."""
    (tmp_path / "tiny.yaml").write_text(TINY)
    (tmp_path / "stand_in.py").write_text(STAND_IN)
    command = [sys.executable, "-c", WITH_STAND_IN]
    return subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def wait_for_rows(path: Path, count: int) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if path.exists() and path.read_bytes().count(b"\n") >= count:
            return
        time.sleep(0.02)
    pytest.fail(f"no {count} rows in {path}")


def workers_of(pid: int) -> list[int]:
    """The child processes of a process, from /proc."""
    children: list[int] = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")")[-1].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            children.append(int(stat.parent.name))
    return children


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc to see what outlives the kill")
def test_a_sweep_killed_in_the_middle_loses_and_repeats_no_finished_case(
    python_process: Process, tmp_path: Path
) -> None:
    sweep = start(tmp_path)
    path = tmp_path / "rows.jsonl"
    wait_for_rows(path, 3)
    workers = workers_of(sweep.pid)
    assert workers
    sweep.kill()
    sweep.communicate()
    before = rows(path)
    assert [row["implementation"] for row in before] == ["stand-in"] * 3
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers), "a worker outlived the sweep"

    path.write_bytes(path.read_bytes() + b'{"case_id": "torn')  # the worst moment for a kill: in the middle of a row
    (tmp_path / "go").touch()
    done = python_process("-c", WITH_STAND_IN, cwd=str(tmp_path))
    after = rows(path)
    assert after[: len(before)] == before
    assert len(after) == 9
    assert len({row["case_id"] for row in after}) == 9
    assert "3 of them finished earlier" in done.stdout
    assert "torn by a crash" in done.stderr


def test_ctrl_c_leaves_valid_rows_and_exit_code_130(tmp_path: Path) -> None:
    sweep = start(tmp_path)
    path = tmp_path / "rows.jsonl"
    wait_for_rows(path, 3)
    os.kill(sweep.pid, signal.SIGINT)
    output, _ = sweep.communicate(timeout=60)
    assert sweep.returncode == 130
    assert "the same command goes on" in output
    assert len(rows(path)) == 3


def test_a_file_that_another_sweep_writes_is_refused(command: Command, tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(TINY)
    with Appender(tmp_path / "rows.jsonl"):
        code, _, said = command("sweep", "tiny.yaml", "--device", "cpu", "--out", "rows.jsonl")
    assert code == 2
    assert "another glabench is writing it" in said
