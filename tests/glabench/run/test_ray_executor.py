"""A sweep as tasks of Ray, one of whose processes is killed in the middle."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from glabench import store
from glabench.errors import UserError
from glabench.run.driver import finished, run_environment
from glabench.run.ray_executor import RayDriver, connect, environment_there
from glabench.spec.case import Case
from glabench.spec.settings import Device, Part, Settings
from glabench.store import Appender, Row


class Silent:
    def running(self, case: Case, part: Part) -> None: ...

    def finished(self, row: Row) -> None: ...


@pytest.fixture
def ray(calls: Path) -> Any:
    """Ray on this machine with two processes, which find the module ``misbehaving``."""
    found = pytest.importorskip("ray", reason="needs the extra ray")
    found.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield found
    found.shutdown()


def test_without_ray_the_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"pip install 'glabench\[ray\]'"):
        connect("auto")


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.1:port"])
def test_an_address_where_nothing_listens_is_one_line_at_once(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))
    with pytest.raises(UserError, match=f"--address {address}: no Ray cluster answers"):
        connect(address)


def test_a_lost_task_is_a_row_of_its_device_and_runs_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class RayError(Exception): ...

    def get(task: Any) -> str:
        raise RayError("the node died")

    lost = ModuleType("ray")
    monkeypatch.setattr(lost, "get", get, raising=False)
    monkeypatch.setattr(lost, "exceptions", SimpleNamespace(RayError=RayError), raising=False)
    monkeypatch.setitem(sys.modules, "ray", lost)
    there = run_environment("cpu") | {"device_slug": "nvidia-h100"}
    settings, one = Settings.for_device("cpu"), Case("sdpa", 1, 8, 1, 8, 8)
    with Appender(tmp_path / "rows.jsonl") as out:
        driver = RayDriver("tiny", "cpu", settings, 30, frozenset(), out, Silent(), there=there)
        row = driver._row("a task", one)
        out.append(row)
    assert (row.status, row.environment["device_slug"]) == ("crashed", "nvidia-h100")
    assert "the node died" in str(row.reason)
    assert datetime.fromisoformat(row.started)
    assert finished(tmp_path / "rows.jsonl", settings, 30, where=there) == {}


def test_every_case_has_one_row_when_one_of_two_workers_is_killed(ray: Any, tmp_path: Path, calls: Path) -> None:
    device: Device = "cpu"
    assert environment_there(device)["kind"] == "cpu"
    cases = [Case("sdpa", 1, 8, 1, 8, 8, seed=seed) for seed in (9, 1, 3, *range(20, 30))]
    cases += [Case("gla", 1, 8, 1, 8, 8, seed=seed) for seed in (0, 30)]
    with Appender(tmp_path / "rows.jsonl") as out:
        settings = Settings.for_device(device)
        driver = RayDriver("tiny", device, settings, 30, frozenset(c.id for c in cases), out, Silent())
        driver.pipeline = "misbehaving"
        outcome = driver.run(cases)
    assert calls.with_name("calls.lost").exists()
    rows = {row.case_id: row for row in store.read(tmp_path / "rows.jsonl")}
    assert len(list(store.read(tmp_path / "rows.jsonl"))) == len(cases)
    assert set(rows) == {case.id for case in cases}
    assert dict(outcome.statuses) == {"ok": 13, "crashed": 2}
    assert [rows[cases[i].id].status for i in (0, 1, 2)] == ["ok", "crashed", "crashed"]
    assert rows[cases[-1].id].implementation == "gate"
