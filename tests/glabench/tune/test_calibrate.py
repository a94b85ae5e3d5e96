"""The cost model learns what it is shown: times made by a model of the same form come out again."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gla_kernels import Workload
from gla_kernels.cost import model
from gla_kernels.plan.table import kernels_hash, space_hash
from gla_kernels.tiles import operands
from glabench import tuning_store
from glabench.analysis.load import load_tunings
from glabench.tune import calibrate
from glabench.tune.candidate import launch_of
from glabench.tune.space import Space, joined, members_of
from glabench.tuning_store import Trial

WORKS = (Workload("fwd", 4, 2048, 16, 64, 64), Workload("fwd", 1, 512, 4, 64, 64))


def made_up_ms(space: Space, key: str) -> float:
    """A time that has the model's form: bytes, the chain of row blocks, and eight warps that cost a fifth."""
    base, effects = model.features(launch_of(space.work, space.candidates[key], 90), 90)
    named = dict(zip(model.BASE, base, strict=True)) | dict(zip(model.EFFECTS, effects, strict=True))
    return (0.01 + 0.5 * named["loaded"] + named["blocks"]) * math.exp(0.2 * named["warps_8"])


def in_slices(candidate: dict[str, Any]) -> dict[str, Any]:
    return candidate | {"schedule": candidate["schedule"] | {"materialize": False}}


@pytest.fixture(scope="module", autouse=True)
def compiled() -> Iterator[None]:
    """Launches as on a GPU: the interpreter's products are all in float32."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operands, "interpreting", lambda: False)
        yield


@pytest.fixture(scope="module")
def spaces(compiled: None) -> list[Space]:
    """Of chunks of 64: to enumerate all takes seconds."""

    def found(work: Workload) -> Space:
        return joined(work, 90, lambda _, one: members_of(work, one, 90) if one.schedule.chunk == 64 else None)

    return [found(work) for work in WORKS]


@pytest.fixture(scope="module")
def times(spaces: list[Space]) -> list[dict[str, float]]:
    """Of each space, made up."""
    return [{key: made_up_ms(space, key) for key in space.candidates} for space in spaces]


@pytest.fixture
def records(spaces: list[Space], times: list[dict[str, float]], make_tuning: Any, tmp_path: Path) -> Path:
    """A file with every candidate of two workloads, and some that failed, are of another space, or went over slices of
    older kernels, and must not count."""
    path = tmp_path / "tune-made-up.jsonl"
    with path.open("w") as file:
        for space, ms in zip(spaces, times, strict=True):
            trials = [
                Trial(candidate.to_dict(), 1.0, "ok", None, (ms[key],) * 3)
                for key, candidate in space.candidates.items()
            ]
            trials += [replace(trials[0], status="wrong", reason="made up", samples_ms=(1e6,))]
            tuning = replace(make_tuning(), workload=space.work.to_dict(), trials=tuple(trials))
            tuning = replace(tuning, environment={**tuning.environment, "capability": "9.0"})
            tuning = replace(tuning, header={"space": space_hash(), "kernels": kernels_hash()})
            other = replace(trials[0], samples_ms=(1e6,), candidate=trials[0].candidate | {"step": "grad_q"})
            file.write(tuning_store.to_json(tuning) + "\n")
            slices = replace(trials[0], samples_ms=(1e6,), candidate=in_slices(trials[0].candidate))
            older = replace(tuning, trials=(*trials, slices), header={"space": space_hash(), "kernels": "older"})
            file.write(tuning_store.to_json(older) + "\n")
            file.write(tuning_store.to_json(replace(tuning, trials=(other,), header={"space": "another"})) + "\n")
    return path


def test_what_is_fitted_predicts_what_was_measured(
    records: Path,
    spaces: list[Space],
    times: list[dict[str, float]],
    tmp_path: Path,
    capsys: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "model.json"
    calibrate.main([str(records), "--out", str(out)])
    assert "states: " in capsys.readouterr().out
    assert set(json.loads(out.read_text())["passes"]) == {"states", "output", "walk"}
    monkeypatch.setattr(model, "_fitted", lambda: json.loads(out.read_text())["passes"])
    errors = [
        math.log(model.predict_ms(launch_of(space.work, one, 90), 90) / ms[key])
        for space, ms in zip(spaces, times, strict=True)
        for key, one in space.candidates.items()
    ]
    assert np.std(errors) < 0.02


def test_only_what_is_launched_today_counts(records: Path) -> None:
    found = calibrate.samples_of(load_tunings([records]))
    assert max(one.ms for samples in found.values() for one in samples) < 1e3


def test_records_that_cannot_be_read_are_one_line(tmp_path: Path, capsys: Any) -> None:
    torn = tmp_path / "tune-torn.jsonl"
    torn.write_text('{"schema": 1, "workl')
    with pytest.raises(SystemExit) as stop:
        calibrate.main([str(torn), "--out", str(tmp_path / "model.json")])
    assert stop.value.code == 2
    assert capsys.readouterr().err.startswith(f"error: {torn}:1: not a tuning")
    assert not (tmp_path / "model.json").exists()


def test_records_of_another_space_are_one_line(make_tuning: Any, tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "tune-older.jsonl"
    path.write_text(tuning_store.to_json(make_tuning()) + "\n")
    with pytest.raises(SystemExit) as stop:
        calibrate.main([str(path), "--out", str(tmp_path / "model.json")])
    assert stop.value.code == 2
    assert "of the search space that is here" in capsys.readouterr().err


def test_the_committed_model_is_of_the_committed_records() -> None:
    """In a pass of each direction that every record of a gated workload has kernels of, or nearly every one; all passes
    would take a minute. The model is of one GPU, the H200: times of another are none of it."""
    root = Path(__file__).parents[3]
    files = sorted((root / "results" / "nvidia-h200").glob("tune-*/*.jsonl*"))
    found = calibrate.samples_of(load_tunings(files), ("walk", "grad_walk"))
    assert len(found) == 2
    passes = json.loads(model.FILE.read_text())["passes"]
    for step, samples in found.items():
        base, effects, _ = calibrate.fit(samples)
        assert passes[step]["base"] == pytest.approx(base, rel=1e-3, abs=1e-9)
        assert passes[step]["effects"] == pytest.approx(effects, rel=1e-2, abs=1e-3)
