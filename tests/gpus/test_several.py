"""What is said of a sweep on one GPU and on several, from rows made by hand."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from glabench.phases import Spent
from glabench.spec.case import Case
from glabench.spec.expand import check, expand
from glabench.spec.sweep import find, load
from glabench.store import Appender, Row

SCRIPT = str(Path(__file__).with_name("several.py"))
MEASURED = Path(__file__).parents[2] / "results/nvidia-h100-80gb-hbm3/several_gpus"
Process = Callable[..., subprocess.CompletedProcess[str]]


def rows(gpus: int, ms: float = 1.0, compile_s: float = 8.0, case_s: float = 2.0) -> list[Row]:
    """Eight cases: compiled side by side, then timed on so many GPUs, which are numbered."""
    found = []
    for seed in range(8):
        case = Case("gla", 1, 1024, 4, 64, 64, seed=seed)
        spent = [
            Spent("compile", 100.0, {"compile": compile_s}),
            Spent("all", 100.0 + compile_s + seed // gpus * case_s, {"samples": case_s}),
        ]
        time = {"clock": "cuda_events_cold_l2", "samples_ms": [ms] * 10}
        where = {"gpu_uuid": f"GPU-{seed % gpus}"}
        row = Row(case.id, "s", case.to_dict(), "ok", time=time, spent=[one.to_dict() for one in spent], started="2026")
        found.append(replace(row, environment=where))
    return found


def judged(process: Process, folder: Path, one: list[Row], several: list[Row], gpus: int = 4) -> tuple[int, list[str]]:
    half = len(several) // 2
    for name, written in {"one": one, "all-00": several[:half], "all-01": several[half:]}.items():
        with Appender(folder / f"{name}.jsonl", fresh=True) as out:
            for row in written:
                out.append(row)
    done = process(SCRIPT, "judge", str(gpus), str(folder), "--cases", "8", check=False)
    return done.returncode, done.stdout.splitlines()


def test_the_sweep_has_two_hundred_cases_of_several_systems() -> None:
    chosen = load(find("several_gpus"))
    check(chosen)
    cases = expand(chosen, "cuda").cases
    assert len({case.id for case in cases}) == 200
    assert len({case.system for case in cases}) == 4


def test_it_is_judged_by_the_time_of_timed_cases_and_the_whole_is_said(python_process: Process, tmp_path: Path) -> None:
    code, said = judged(python_process, tmp_path, rows(1), rows(4, ms=1.01))
    assert code == 0
    assert "timing: 16.0 s on one GPU, 4.0 s on 4, 4.00 times the throughput" in said
    assert "the whole sweep: 24.0 s on one GPU, 12.0 s on 4, 2.00 times the throughput" in said
    assert "medians: 8 of 8 within 2% (100.0%), the worst +1.00%" in said
    assert "  on the same GPU in both: 2 of 2 within 2% (100.0%), the worst +1.00%" in said
    assert "  on another one: 6 of 6 within 2% (100.0%), the worst +1.00%" in said


def test_what_a_chips_clock_did_is_told_from_what_its_kernels_did(python_process: Process, tmp_path: Path) -> None:
    slow = [replace(row, clocks={"sm_mhz": 1980.0, "sm_mhz_counted": 1545.0}) for row in rows(1, ms=1.03)]
    fast = [replace(row, clocks={"sm_mhz": 1980.0, "sm_mhz_counted": 1600.0}) for row in rows(4)]
    code, said = judged(python_process, tmp_path, slow, fast)
    assert (code, said[-1]) == (1, "medians: 8 of 8 more than 2% apart")
    assert "  in SM cycles: 8 of 8 within 2% (100.0%), the worst +0.54%" in said


def test_what_is_slow_far_apart_lost_or_wrong_is_named(python_process: Process, tmp_path: Path) -> None:
    several = rows(2, ms=1.03)[:7]
    several[0] = replace(several[0], status="crashed", reason="no", time=None)
    code, said = judged(python_process, tmp_path, rows(1), several)
    assert code == 1
    assert "4 GPUs: 7 rows of 8, 1 not ok" in said
    assert any(line.startswith("timing: 1.75 times, expected at least 3.6") for line in said)
    assert "medians: 6 of 6 more than 2% apart" in said


def test_a_folder_without_rows_is_one_clear_line(python_process: Process, tmp_path: Path) -> None:
    done = python_process(SCRIPT, "judge", "2", str(tmp_path), check=False)
    assert (done.returncode, done.stderr.splitlines()) == (
        2,
        [f"{tmp_path}: expected rows in *one*.jsonl and in *all*.jsonl there"],
    )


def test_what_the_docs_say_of_four_gpus_is_what_was_measured(python_process: Process) -> None:
    done = python_process(SCRIPT, "judge", "4", str(MEASURED), check=False)
    said = done.stdout.splitlines()
    assert "timing: 435.8 s on one GPU, 105.1 s on 4, 4.15 times the throughput" in said
    assert "the whole sweep: 499.0 s on one GPU, 141.4 s on 4, 3.53 times the throughput" in said
    assert "  on the same GPU in both: 50 of 50 within 2% (100.0%), the worst +0.87%" in said
    assert "  on another one: 149 of 150 within 2% (99.3%), the worst -2.33%" in said
    assert "  in SM cycles: 199 of 200 within 2% (99.5%), the worst +3.36%" in said
    assert "  in SM cycles, calls of 0.5 ms and longer: 120 of 120 within 2% (100.0%), the worst +1.46%" in said
    assert (done.returncode, said[-1]) == (1, "medians: 1 of 200 more than 2% apart")
