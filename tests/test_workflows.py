"""Workflows: what they may do, what they run, and that GitHub would understand them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def load(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(path.read_text())
    return loaded


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_permissions_are_the_least(path: Path) -> None:
    workflow = load(path)
    assert workflow["permissions"] == {"contents": "read"}
    more = {name: job["permissions"] for name, job in workflow["jobs"].items() if "permissions" in job}
    assert more in ({}, {"pages": {"pages": "write", "id-token": "write"}})
    # What may publish runs one action, and nothing of a pull request or of another branch.
    for name in more:
        job, before = workflow["jobs"][name], workflow["jobs"][workflow["jobs"][name]["needs"]]
        assert [step["uses"].split("@")[0] for step in job["steps"]] == ["actions/deploy-pages"]
        assert "needs.trend.result == 'success'" in job["if"]
        assert "github.event_name != 'pull_request' && github.ref == 'refs/heads/main'" in before["if"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_by_commit(path: Path) -> None:
    used = re.findall(r"uses: *(\S+)", path.read_text())
    assert used
    assert [name for name in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", name)] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_what_steps_run_is_there_and_no_event_is_pasted_into_a_shell(path: Path) -> None:
    steps = [step for job in load(path)["jobs"].values() for step in job["steps"] if "run" in step]
    called = [name for step in steps for name in re.findall(r"\.ci/[\w-]+", step["run"])]
    assert called
    assert all(os.access(ROOT / name, os.X_OK) for name in called)
    assert not any("${{" in step["run"] for step in steps)


def test_code_of_forks_never_runs_on_our_machines() -> None:
    job = load(ROOT / ".github" / "workflows" / "gpu-regression.yml")["jobs"]["check"]
    assert "self-hosted" in job["runs-on"]
    assert "head.repo.full_name == github.repository" in job["if"]


def test_actionlint_finds_nothing() -> None:
    found = shutil.which("actionlint")
    if found is None:
        pytest.skip("actionlint is not installed: https://github.com/rhysd/actionlint")
    done = subprocess.run([found, *WORKFLOWS], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout


SWEEP_STUB = """#!/usr/bin/env bash
echo "$*" >> "$CALLS"
case $1 in sweep) exit "${SWEEP_CODE:-0}" ;; check) exit "${CHECK_CODE:-0}" ;; esac
"""


@pytest.mark.parametrize(
    ("codes", "expected", "checked"),
    [({}, 0, True), ({"SWEEP_CODE": "1", "CHECK_CODE": "1"}, 1, True), ({"CHECK_CODE": "3"}, 3, True),
     ({"SWEEP_CODE": "2"}, 2, False)],
)  # fmt: skip
def test_the_script_measures_then_checks(tmp_path: Path, codes: dict[str, str], expected: int, checked: bool) -> None:
    stub, calls = tmp_path / "glabench", tmp_path / "calls"
    stub.write_text(SWEEP_STUB)
    stub.chmod(0o755)
    env = {**os.environ, **codes, "GLABENCH": str(stub), "CALLS": str(calls), "RUNS": "2", "SWEEP": "quick"}
    env.pop("GITHUB_ACTIONS", None)
    script = ROOT / ".ci" / "gpu-regression"
    done = subprocess.run([script, str(tmp_path / "out"), "abc"], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == expected, done.stderr
    said = [line for line in calls.read_text().splitlines() if not line.startswith("doctor")]
    assert ("check" in said[-1].split()) is checked
    if checked:
        assert [line.split()[0] for line in said] == ["sweep", "sweep", "check"]
        assert "--against abc" in said[-1]
        assert said[-1].count("run-") == 2


def test_the_page_of_trends_is_of_the_files_that_are_given(tmp_path: Path) -> None:
    stub, calls = tmp_path / "glabench", tmp_path / "calls"
    stub.write_text(SWEEP_STUB)
    stub.chmod(0o755)
    env = {**os.environ, "GLABENCH": str(stub), "CALLS": str(calls)}
    script = ROOT / ".ci" / "trend-page"
    subprocess.run([script, "site", "trend", "a100.jsonl"], env=env, cwd=tmp_path, check=True)
    assert calls.read_text() == f"report {tmp_path}/trend {tmp_path}/a100.jsonl --out {tmp_path}/site/index.html\n"
    assert subprocess.run([script, "site"], env=env, cwd=tmp_path, capture_output=True, check=False).returncode != 0


def test_paths_that_the_script_is_given_are_seen_from_where_it_is_called(tmp_path: Path) -> None:
    stub, calls = tmp_path / "glabench", tmp_path / "calls"
    stub.write_text(SWEEP_STUB)
    stub.chmod(0o755)
    (tmp_path / "mine.yaml").touch()
    env = {**os.environ, "GLABENCH": "./glabench", "CALLS": str(calls), "RUNS": "1", "TREND": "trend.jsonl"}
    env["SWEEP"] = "mine.yaml"
    script = ROOT / ".ci" / "gpu-regression"
    done = subprocess.run([script, "out"], env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    _, measured, said = calls.read_text().splitlines()
    assert measured.startswith(f"sweep {tmp_path / 'mine.yaml'} ")
    assert f"--trend {tmp_path / 'trend.jsonl'}" in said
    assert f"--out {tmp_path / 'out' / 'check.html'}" in said
