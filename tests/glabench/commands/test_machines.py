"""``--format json``: what each command says to programs is strict JSON on stdout, and is what its text says."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.main import get_command

from glabench.cli import app, main
from glabench.commands import machines
from glabench.hardware import diagnosis
from glabench.spec.catalog import CATALOG
from glabench.spec.expand import expand
from glabench.spec.sweep import available, find, load

RESULTS = Path(__file__).parents[3] / "results"
BOARD = RESULTS / "nvidia-h200/board/2026-11-25-0becc44.jsonl.xz"
AFTER = RESULTS / "nvidia-h200/board-again/2026-11-25-86ff354.jsonl.xz"
TUNED = RESULTS / "nvidia-h200/tune-search/2026-11-23-b9eada6-ungated.jsonl.xz"
PROFILED = RESULTS / "nvidia-h200/profile-flops/2026-11-26-9d5763f.jsonl.xz"
# Commands that print no table: progress and names of files, or a schema.
TABLELESS = {"profile", "schema", "results merge"}


def said(text: str) -> Any:
    """What strict JSON says."""

    def refuse(constant: str) -> float:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.fixture
def asked(capsys: pytest.CaptureFixture[str]) -> Callable[..., list[dict[str, Any]]]:
    """The objects that a command prints."""

    def call(*arguments: object, code: int = 0) -> list[dict[str, Any]]:
        with pytest.raises(SystemExit) as stop:
            main([*map(str, arguments), "--format", "json"])
        out, err = capsys.readouterr()
        assert stop.value.code == code, err
        return [said(line) for line in out.splitlines()]

    return call


def commands() -> dict[str, Any]:
    """Every command by its name, those of groups too."""
    found = dict(getattr(get_command(app), "commands", {}))
    for name, inner in getattr(found.pop("results"), "commands", {}).items():
        found[f"results {name}"] = inner
    return found


def test_every_command_with_a_table_has_it() -> None:
    having = {
        name for name, command in commands().items() if any("--format" in option.opts for option in command.params)
    }
    assert having == set(commands()) - TABLELESS


@pytest.mark.parametrize(
    "arguments",
    [
        *[
            ("ls",),
            ("doctor",),
            ("sweep", "quick", "--dry-run"),
            ("compile", "1,64,1,16,16"),
            ("compare", "1,64,1,16,16"),
        ],
        *[("tune", "1,64,1,16,16", "--explain"), ("results", "verify", str(BOARD)), ("results", "spent", str(BOARD))],
        ("results", "ratios", str(BOARD), str(AFTER)),
    ],
    ids=" ".join,
)
def test_another_format_is_one_line(refused: Callable[..., str], arguments: tuple[str, ...]) -> None:
    assert "--format jsn: expected text or json (did you mean 'json'?)" in refused(*arguments, "--format", "jsn")


def test_numbers_that_json_has_none_of() -> None:
    values = {"a": math.nan, "b": np.float64(1.5), "c": (np.int64(2), math.inf), "d": frozenset({"y", "x"})}
    assert said(machines.line(values)) == {"a": None, "b": 1.5, "c": [2, None], "d": ["x", "y"]}


def test_ls(asked: Callable[..., list[dict[str, Any]]]) -> None:
    found = asked("ls")
    assert [one["name"] for one in found if one["kind"] == "sweep"] == list(available())
    systems = {one["name"]: one for one in found if one["kind"] == "system"}
    assert list(systems) == list(CATALOG)
    assert all(one["here"] == (one["reason"] is None) for one in systems.values())


def test_doctor(asked: Callable[..., list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch) -> None:
    made = diagnosis.Finding("Machine", "disk", "full", "make room", broken=True)
    monkeypatch.setattr(diagnosis, "examine", lambda: [made])
    first = asked("doctor", code=1)[0]
    assert first == {"group": "Machine", "label": "disk", "value": "full", "fix": "make room", "broken": True}


def test_a_dry_run_has_an_object_a_case(
    asked: Callable[..., list[dict[str, Any]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cases = expand(load(find("quick")), "cpu").cases
    found = asked("sweep", "quick", "--device", "cpu", "--dry-run")
    assert [one["case_id"] for one in found] == [case.id for case in cases]
    assert found[0]["case"] == said(json.dumps(cases[0].to_dict()))
    assert {one["done"] for one in found} == {None}


def test_verify_and_spent(asked: Callable[..., list[dict[str, Any]]], tmp_path: Path) -> None:
    (one,) = asked("results", "verify", BOARD)
    assert (one["file"], one["bad"]) == (str(BOARD), [])
    *systems, wall = asked("results", "spent", BOARD)
    assert sum(line["cases"] for line in systems) == one["rows"]
    assert wall["overhead"] == pytest.approx(1 - wall["needed_s"] / wall["seconds"])
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"case_id": "x"}\n')
    assert len(asked("results", "verify", bad, code=1)[0]["bad"]) == 1


def test_ratios_are_those_of_the_text(
    asked: Callable[..., list[dict[str, Any]]], capsys: pytest.CaptureFixture[str]
) -> None:
    *worst, whole = asked("results", "ratios", BOARD, AFTER, "--worst", 2, code=1)
    assert [one["change"] for one in worst] == sorted((one["change"] for one in worst), reverse=True)
    assert whole["worst"] == worst[0]["change"]
    with pytest.raises(SystemExit):
        main(["results", "ratios", str(BOARD), str(AFTER), "--worst", "0"])
    text = capsys.readouterr().out
    assert f"{whole['ratios']} ratios, {whole['share']:.1%} of them within 1.5%" in text
    assert f"{whole['undisturbed']['ratios']} undisturbed: {whole['undisturbed']['share']:.1%}" in text
    assert f"in SM cycles, {whole['cycles']['share']:.1%} of {whole['cycles']['ratios']} within" in text


def test_explain(asked: Callable[..., list[dict[str, Any]]]) -> None:
    (tuned,) = asked("tune", "32,1024,16,64,64", "--explain", "--mode", "fwd", "--target", "H200", "--from", TUNED)
    assert (tuned["tunings"], tuned["workload"]["T"]) == (0, 1024)  # gates: a shape has some, the records have none
    assert tuned["plans"][0]["predicted_ms"] == min(plan["predicted_ms"] for plan in tuned["plans"])
    records = RESULTS / "nvidia-h200/tune-board"
    (tuned,) = asked("tune", "4,2048,16,128,128", "--explain", "--mode", "fwd", "--target", "H200", "--from", records)
    assert tuned["tunings"] >= 1
    assert any(row["won"] for row in tuned["candidates"])


def test_format_of_a_tuning_needs_explain(refused: Callable[..., str]) -> None:
    assert "--format needs --explain" in refused("tune", "1,64,1,16,16", "--format", "json")


@pytest.mark.parametrize("path", [BOARD, PROFILED, TUNED], ids=lambda path: path.name)
def test_reports_are_tables_of_as_many_lines_as_their_csv(path: Path, tmp_path: Path) -> None:
    for form in ("json", "csv"):
        with pytest.raises(SystemExit) as stop:
            main(["report", str(path), "--format", form, "--out", str(tmp_path / f"t.{form}")])
        assert stop.value.code == 0
    lines = said((tmp_path / "t.json").read_text())
    text = (tmp_path / "t.csv").read_text().splitlines()
    assert list(lines[0]) == text[0].split(",")
    assert len(lines) == len(text) - 1
