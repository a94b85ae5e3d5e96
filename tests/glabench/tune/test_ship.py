"""What is shipped comes from records, and only from such as belong to these kernels."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from gla_kernels import Machine, Plan, Schedule, Workload, default_config
from gla_kernels.plan import files
from gla_kernels.plan.table import header_of, read
from glabench import tuning_store
from glabench.tune import ship
from glabench.tune.session import entry_of

MACHINE = Machine(90, "NVIDIA H200", 2**37)


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of shipped tables, empty."""
    folder = tmp_path / "shipped"
    folder.mkdir()
    monkeypatch.setattr(files, "SHIPPED", folder)
    return folder


@pytest.fixture
def tuned(make_tuning: Any) -> Any:
    """A tuning of these kernels on MACHINE, walks among them, whose finalists can run."""
    made = make_tuning()
    work = Workload.from_dict(made.workload)
    plan = Plan(Schedule(), default_config(work.K, work.V, work.operand_bytes, Schedule())).to_dict()
    finalists = tuple(replace(one, plan=plan) for one in made.finalists)
    walk = replace(made.trials[0], candidate=made.trials[0].candidate | {"step": "walk"})
    return replace(made, trials=(*made.trials, walk), finalists=finalists, header=asdict(header_of(MACHINE)))


def write(path: Path, *tunings: tuning_store.Tuning) -> str:
    path.write_text("".join(tuning_store.to_json(one) + "\n" for one in tunings))
    return str(path)


def test_the_newest_winner_of_each_class_is_shipped(tuned: Any, shipped: Path, tmp_path: Path, capsys: Any) -> None:
    slower = tuple(replace(one, samples_ms=(9.0,)) for one in tuned.finalists)
    new = replace(tuned, started="2026-12-01T00:00:00+00:00", finalists=slower)
    lost = replace(tuned, started="2027-01-01T00:00:00+00:00", winner=None)
    ship.main([write(tmp_path / "tune-a.jsonl", new, tuned, lost)])
    path = shipped / "nvidia_h200.json"
    assert capsys.readouterr().out.strip() == str(path)
    table = read(path)
    assert table is not None
    assert table.header == header_of(MACHINE)
    assert table.entries == (entry_of(new),)
    assert table.entries[0].ms == 9.0
    assert table.entries[0].work == Workload.from_dict(tuned.workload)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kernels": "0" * 16}, "of other kernels or another search space"),
        ({"space": "0" * 16}, "of other kernels or another search space"),
    ],
)
def test_records_of_other_kernels_are_not_shipped(
    tuned: Any, shipped: Path, tmp_path: Path, capsys: Any, change: dict[str, str], message: str
) -> None:
    other = replace(tuned, header=tuned.header | change)
    with pytest.raises(SystemExit) as end:
        ship.main([write(tmp_path / "tune-a.jsonl", other)])
    assert end.value.code == 2
    assert message in capsys.readouterr().err
    assert not list(shipped.iterdir())


def test_records_of_two_machines_are_not_mixed(tuned: Any, shipped: Path, tmp_path: Path, capsys: Any) -> None:
    other = replace(tuned, header=asdict(header_of(replace(MACHINE, device="NVIDIA H100"))))
    with pytest.raises(SystemExit):
        ship.main([write(tmp_path / "tune-a.jsonl", tuned, other)])
    assert "of several GPUs" in capsys.readouterr().err


def test_a_search_that_had_no_walk_where_one_runs_decides_nothing(tuned: Any, shipped: Path, tmp_path: Path) -> None:
    before = replace(tuned, trials=tuned.trials[:-1])
    shape = {"B": 4, "T": 4096, "H": 16, "K": 16, "V": 16}  # which has no walk
    plan = Plan(Schedule(), default_config(16, 16, 2, Schedule())).to_dict()
    small = tuple(replace(one, plan=plan) for one in tuned.finalists)
    other = replace(before, workload=tuned.workload | shape, finalists=small)
    ship.main([write(tmp_path / "tune-a.jsonl", before, other)])
    table = read(shipped / "nvidia_h200.json")
    assert table is not None
    assert [entry.work.K for entry in table.entries] == [16]


def test_records_without_a_winner_are_nothing_to_ship(tuned: Any, shipped: Path, tmp_path: Path, capsys: Any) -> None:
    unopposed = replace(tuned, finalists=(replace(tuned.finalists[0], role="incumbent"),), winner=0)
    with pytest.raises(SystemExit):
        ship.main([write(tmp_path / "tune-a.jsonl", replace(tuned, winner=None), unopposed)])
    assert "no tuning in these records has a winner" in capsys.readouterr().err
    assert not list(shipped.iterdir())
