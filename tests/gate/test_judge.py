"""The judge on made-up rows: what is false, what is found, and what it says where there is too little."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from glabench import store
from glabench.check.power import drawn
from glabench.errors import UserError
from glabench.spec.case import Case
from glabench.store import Row

from .judge import groups, main

MEASURED = Path(__file__).parents[2] / "results/nvidia-h200/gate"
FACTS = {"device": "NVIDIA H200", "kind": "cuda", "device_slug": "nvidia-h200", "fingerprint": "aaaa"}
SPREAD = 0.002  # from run to run


def row(T: int) -> Row:
    case = Case("gla", 1, T, 1, 64, 64, mode="fwd")
    samples = np.exp(np.random.default_rng(T).normal(0, 0.003, 40)).tolist()
    time = {"clock": "cuda_events_cold_l2", "samples_ms": samples}
    return Row(case.id, "gate", case.to_dict(), "ok", time=time, environment=FACTS, started="2026-11-22T00:00:00")


CASES = [row(T) for T in (64, 128, 256)]


def fill(folder: Path, same: Sequence[float], planted: dict[int, float]) -> None:
    """Runs of the same code with the factors given, and three of each slow-down in percent with its factor."""
    random = np.random.default_rng(0)
    files = {f"a-{index:02}.rows": factor for index, factor in enumerate(same)}
    files |= {f"planted-{percent:02}-{turn}.rows": factor for percent, factor in planted.items() for turn in range(3)}
    for name, factor in files.items():
        rows = [drawn(one, factor, SPREAD, random) for one in CASES]
        (folder / name).write_text("".join(store.to_json(one) + "\n" for one in rows))
    of_one = {str(percent): {"amount": 7, "percent": 100 * f - 100, "possible": True} for percent, f in planted.items()}
    (folder / "calibration.json").write_text(json.dumps({one.case_id: {"planted": of_one} for one in CASES}))


def test_runs_are_grouped_without_using_one_twice() -> None:
    runs = [[replace(CASES[0], started=str(index))] for index in range(7)]
    assert [[run.started for run in group] for group in groups(runs, 3)] == [["0", "1", "2"], ["3", "4", "5"]]


def test_rates_that_are_reached(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(tmp_path, [1.0] * 21, {3: 1.03, 5: 1.05})
    assert main([str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split()[:4] == ["same", "code", "21", "63"]  # 7 groups of three cases
    assert lines[3].split()[:5] == ["planted", "3", "%", "7", "21"]
    assert "at least 90% found: reached" in lines[3]
    assert "NOT REACHED" not in "".join(lines)
    assert any("3.00 to 3.00 % by calibration" in line for line in lines)


@pytest.mark.exhaustive
def test_the_gate_still_reaches_the_rates_on_what_an_h200_measured(capsys: pytest.CaptureFixture[str]) -> None:
    """Real samples, which no change of the statistics may make it misjudge; docs/regressions.md has these figures."""
    assert main([str(MEASURED)]) == 0
    lines = capsys.readouterr().out.splitlines()
    table = (MEASURED.parents[2] / "docs/regressions.md").read_text()
    names = ("the same code", "2 % slower", "3 % slower", "5 % slower", "10 % slower")
    for line, name in zip(lines[2:7], names, strict=True):
        comparisons, cases, slower, faster, ambiguous = line.split()[2 if name == names[0] else 3 :][:5]
        called = 100 * (int(slower) + int(faster)) / int(cases)
        assert f"| {name} | {comparisons} | {cases} | {called:.0f} % | {ambiguous} |" in table


def test_false_calls_are_counted_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(tmp_path, [1.0] * 18 + [1.06] * 3, {3: 1.09, 5: 1.11})
    assert main([str(tmp_path)]) == 1
    out = capsys.readouterr().out
    same = out.splitlines()[2].split()
    assert same[4] == "18"  # the last group is slower than six others, three cases each
    assert "NOT REACHED" in out.splitlines()[2]
    assert "same code, called: 6 of 21 times GLA" in out


@pytest.mark.parametrize(("factors", "line"), [({3: 1.0, 5: 1.05}, 3), ({3: 1.03, 5: 1.0}, 4), ({3: 1.03}, 4)])
def test_a_slow_down_that_is_not_found_or_not_there_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], factors: dict[int, float], line: int
) -> None:
    fill(tmp_path, [1.0] * 21, factors)
    assert main([str(tmp_path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [index for index, text in enumerate(lines) if "NOT REACHED" in text] == [line]


def test_too_few_comparisons_are_not_enough(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(tmp_path, [1.0] * 18, {3: 1.03, 5: 1.05})  # 15 comparisons
    assert main([str(tmp_path)]) == 1
    assert "NOT REACHED" in capsys.readouterr().out.splitlines()[2]


def test_cases_that_could_not_be_planted_are_counted_and_not_missed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(tmp_path, [1.0] * 21, {3: 1.03, 5: 1.05})
    calibration = json.loads((tmp_path / "calibration.json").read_text())
    gone = CASES[0].case_id
    calibration[gone]["planted"]["3"]["possible"] = False
    (tmp_path / "calibration.json").write_text(json.dumps(calibration))
    for path in tmp_path.glob("planted-03-*.rows"):
        path.write_text("".join(line for line in path.read_text().splitlines(True) if gone not in line))
    assert main([str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[3].split()[3:5] == ["7", "14"]
    assert any("3 %: 3.00" in line and "left out, as even an empty launch is more: 1" in line for line in lines)


def test_a_slow_down_that_is_called_faster_is_a_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(tmp_path, [1.0] * 21, {3: 0.9})
    assert main([str(tmp_path)]) == 1
    assert "3 % planted, not found: 7 of 7 times" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["{", "[]", '{"x": 1}', '{"x": {}}', '{"x": {"planted": {"3": 1}}}'])
def test_what_is_no_calibration_is_one_line(tmp_path: Path, text: str) -> None:
    fill(tmp_path, [1.0] * 21, {3: 1.03})
    (tmp_path / "calibration.json").write_text(text)
    with pytest.raises(UserError, match="not a calibration"):
        main([str(tmp_path)])


def test_what_cannot_be_judged_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no rows there; `python tests/gate/measure\.py"):
        main([str(tmp_path)])
    fill(tmp_path, [1.0] * 2, {})
    other = replace(CASES[0], environment=FACTS | {"fingerprint": "bbbb"})
    (tmp_path / "a-02.rows").write_text(store.to_json(other) + "\n")
    with pytest.raises(UserError, match="several versions of the code"):
        main([str(tmp_path)])
