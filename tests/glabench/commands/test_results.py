"""``glabench results``: what is bad is named, what is merged is as it was, tables have every row."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from glabench import store
from glabench.cli import main
from glabench.phases import Spent
from glabench.spec.case import Case
from glabench.store import Appender, Row


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[object, list[str], list[str]]:
    """Exit code, and the lines of stdout and stderr."""
    with pytest.raises(SystemExit) as stop:
        main(["results", *map(str, arguments)])
    said = capsys.readouterr()
    return stop.value.code, said.out.splitlines(), said.err.splitlines()


def row(seed: int, status: str = "ok") -> Row:
    case = Case("sdpa", 1, 64, 1, 16, 16, seed=seed, attn_heads=1, attn_dim=16)
    return Row(case.id, "tiny", case.to_dict(), status, environment={"device": "CPU", "kind": "cpu"}, started="2026")


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Two files of rows, one of them in both."""
    paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for path, seeds in zip(paths, ((0, 1), (1, 2)), strict=True):
        with Appender(path) as out:
            for seed in seeds:
                out.append(row(seed))
    return paths


def break_first(path: Path) -> None:
    path.write_text(path.read_text().replace('"ok"', '"oom"', 1))


def test_verify_counts_whole_rows_and_names_bad_ones(files: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "verify", *files) == (0, [f"{path}: 2 rows" for path in files], [])
    break_first(files[1])
    code, out, _ = run(capsys, "verify", *files)
    assert code == 1
    assert out[1].startswith(f"{files[1]}:1: its checksum says")
    assert out[2] == f"{files[1]}: 1 rows, 1 bad"


def test_merge_writes_each_row_once_as_it_is(
    files: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    merged = tmp_path / "merged.jsonl"
    assert run(capsys, "merge", *files, "--out", merged) == (0, [f"{merged}: 3 rows"], [])
    assert list(store.read(merged)) == [row(0), row(1), row(2)]
    assert merged.read_text().splitlines()[:2] == files[0].read_text().splitlines()
    code, _, errors = run(capsys, "merge", *files, "--out", merged)
    assert (code, len(errors)) == (2, 1)
    assert "is there already" in errors[0]


def test_a_merge_that_fails_writes_nothing(
    files: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    newer = tmp_path / "newer.jsonl"
    newer.write_text(store.to_json(replace(row(0), schema=store.SCHEMA + 1)) + "\n")
    code, _, errors = run(capsys, "merge", files[0], newer, "--out", tmp_path / "merged" / "all.jsonl")
    assert (code, len(errors)) == (2, 1)
    assert "upgrade" in errors[0]
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / ".all.jsonl.part").mkdir()  # what stands for a disk that cannot be written
    code, _, errors = run(capsys, "merge", files[0], "--out", tmp_path / "full" / "all.jsonl")
    assert (code, len(errors)) == (2, 1)
    assert "all.jsonl: cannot be written" in errors[0]
    assert not list(tmp_path.rglob("all.jsonl"))


def test_merge_leaves_bad_rows_out_and_says_so(
    files: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    break_first(files[0])
    code, out, errors = run(capsys, "merge", *files, "--out", tmp_path / "merged.jsonl")
    assert (code, out) == (1, [f"{tmp_path / 'merged.jsonl'}: 2 rows"])
    assert f"{files[0]}:1: not a row, left out" in errors[0]


def test_a_table_has_every_row(files: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "table.csv"
    assert run(capsys, "export", *files, "--out", table)[0] == 0
    with table.open() as file:
        assert [line["case_id"] for line in csv.DictReader(file)] == [row(seed).case_id for seed in (0, 1, 1, 2)]


def test_a_table_has_no_formulas(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Appender(tmp_path / "a.jsonl") as out:
        out.append(replace(row(0, "crashed"), implementation='=HYPERLINK("x")', reason="@SUM(1+1)|cmd"))
    assert run(capsys, "export", tmp_path / "a.jsonl", "--out", tmp_path / "t.csv")[0] == 0
    with (tmp_path / "t.csv").open() as file:
        (line,) = csv.DictReader(file)
    assert (line["implementation"], line["reason"]) == ('\'=HYPERLINK("x")', "'@SUM(1+1)|cmd")


def test_a_table_that_cannot_be_written_leaves_nothing_behind(
    files: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "d.csv").mkdir()
    code, _, errors = run(capsys, "export", *files, "--out", tmp_path / "d.csv")
    assert (code, errors) == (2, [f"glabench: error: {tmp_path / 'd.csv'}: cannot be written (Is a directory)"])
    assert not list(tmp_path.glob(".*"))


def test_parquet_is_the_same_table(files: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyarrow", reason="needs the extra parquet")
    import pandas as pd

    for name in ("table.csv", "table.parquet"):
        assert run(capsys, "export", *files, "--out", tmp_path / name)[0] == 0
    one, other = pd.read_csv(tmp_path / "table.csv"), pd.read_parquet(tmp_path / "table.parquet")
    assert list(one.columns) == list(other.columns)
    assert list(one.case_id) == list(other.case_id)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["export", "a.jsonl", "--out", "table.xls"], "unknown format 'xls'"),
        (["export", "a.jsonl", "--out", "a.jsonl/table.csv"], "cannot be written"),
        (["export", "a.jsonl", "--out", "a.jsonl", "--format", "csv"], "a.jsonl: holds results"),
        (["verify", "a" * 300], "File name too long"),
        (["verify", "c.jsonl"], "no such file or folder; did you mean"),
        (["verfy", "a.jsonl"], "no such command 'verfy'"),
        (["verify", "tuning.jsonl"], "holds tunings"),
        ([], "missing command"),
    ],
)
def test_mistakes_are_one_line(
    files: list[Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(files[0].parent)
    Path("tuning.jsonl").write_text('{"kind": "tuning"}\n')
    code, _, errors = run(capsys, *arguments)
    assert (code, len(errors)) == (2, 1)
    assert message in errors[0]


def test_without_pyarrow_parquet_says_how_to_get_it(
    refused: Callable[..., str], files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "pip install 'glabench[parquet]'" in refused("results", "export", str(files[0]), "--out", "t.parquet")


def test_the_help_says_how_to_get_it_too(capsys: pytest.CaptureFixture[str]) -> None:
    code, lines, _ = run(capsys, "export", "--help")
    assert code == 0
    assert "pip install 'glabench[parquet]'" in " ".join(" ".join(lines).split())


def test_spent_says_where_the_time_went(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rows.jsonl"
    with Appender(path) as out:
        for began, seconds in ((10.0, {"start": 1.0, "gate": 2.0}), (13.0, {"samples": 1.0})):
            out.append(replace(row(int(began)), spent=[Spent("all", began, seconds).to_dict()]))
    code, out_lines, _ = run(capsys, "spent", path)
    assert code == 0
    assert [line.split() for line in out_lines[:2]] == [
        ["system", "cases", "s", "start", "gate", "samples"],
        ["sdpa", "2", "4.0", "1.0", "25%", "2.0", "50%", "1.0", "25%"],
    ]
    assert out_lines[-1].startswith("4.0 s of wall time, 3.0 s of it")
    assert "overhead 25.0%, 0.0 s of it between cases" in out_lines[-1]


def test_spent_of_rows_that_do_not_say_is_one_line(files: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    code, _, errors = run(capsys, "spent", *files)
    assert (code, len(errors)) == (2, 1)
    assert "no row says where its time went" in errors[0]


def timed(
    path: Path,
    ms: dict[str, float],
    launch_bound: str = "",
    mhz: dict[str, float] | None = None,
    wall_ms: dict[str, float] | None = None,
) -> Path:
    with Appender(path) as out:
        for system, each in ms.items():
            case = Case(system, 1, 64, 1, 16, 16)
            time = {"clock": "cpu_wall", "samples_ms": [each] * 10, "launch_bound": system == launch_bound}
            time |= {"eager": {"wall_ms": [wall_ms[system]] * 5}} if wall_ms else {}
            facts = {"device": "CPU", "kind": "cpu", "fingerprint": path.name}
            clocks = {"sm_mhz": 1980.0, "sm_mhz_counted": mhz[system]} if mhz else None
            row = Row(case.id, "tiny", case.to_dict(), "ok", time=time, clocks=clocks, environment=facts)
            out.append(replace(row, started="2026"))
    return path


def test_ratios_of_two_runs_are_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = timed(tmp_path / "before.jsonl", {"chunkwise_torch": 1.0, "parallel_torch": 2.0})
    after = timed(tmp_path / "after.jsonl", {"chunkwise_torch": 1.0, "parallel_torch": 2.02})
    code, out, _ = run(capsys, "ratios", before, after)
    assert (code, out[0]) == (0, "note: the runs are of different sources or versions")
    assert out[-1] == "1 ratios, 100.0% of them within 1.5%; the worst 1.0% apart"
    assert run(capsys, "ratios", before, after, "--within", "0.5%")[0] == 1
    times = {"chunkwise_torch": 1.0, "parallel_torch": 2.02, "scan": 3.0}
    launched = timed(tmp_path / "launched.jsonl", times, launch_bound="scan")
    _, out, _ = run(capsys, "ratios", launched, launched)
    assert out[-2] == "  2 with a system that waits for its launches, on the CPU: 100.0%"
    assert out[-1] == "  1 undisturbed: 100.0%; the worst 0.0% apart"
    _, out, _ = run(capsys, "ratios", launched, launched, "--only", "scan, parallel_torch")
    assert out[-1] == "  1 with a system that waits for its launches, on the CPU: 100.0%"
    assert run(capsys, "ratios", launched, launched, "--only", "scam")[0] == 2
    slow, fast = ({"chunkwise_torch": 1900.0, "parallel_torch": mhz} for mhz in (1500.0, 1600.0))
    one = timed(tmp_path / "one.jsonl", {"chunkwise_torch": 1.0, "parallel_torch": 3.2}, mhz=slow)
    other = timed(tmp_path / "other.jsonl", {"chunkwise_torch": 1.0, "parallel_torch": 3.0}, mhz=fast)
    code, out, _ = run(capsys, "ratios", one, other)
    assert (code, out[-1]) == (1, "in SM cycles, 100.0% of 1 within 1.5%; the worst 0.0% apart")
    walls = ({"chunkwise_torch": 1.1, "parallel_torch": wall} for wall in (2.2, 3.3))
    two = [timed(tmp_path / f"call{i}.jsonl", {"chunkwise_torch": 1.0, "parallel_torch": 2.0}, wall_ms=wall)
           for i, wall in enumerate(walls)]  # fmt: skip
    code, out, _ = run(capsys, "ratios", *two)
    assert (code, out[-1]) == (0, "of eager calls, 0.0% of 1 within 1.5%; the worst 50.0% apart")
    code, _, errors = run(capsys, "ratios", before, after, "--within", "often")
    assert (code, errors[0].count("--within often: expected a share")) == (2, 1)
