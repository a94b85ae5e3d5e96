"""``glabench report``: each format, and every kind of bad call as one line with exit code 2 and nothing written."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from glabench.cli import main
from glabench.spec.case import Case
from glabench.store import Row, to_json

GPU = {"device": "NVIDIA H200", "kind": "cuda", "copy_bytes_per_s": 4e12}


def row(system: str, t: int, samples: list[float]) -> Row:
    gate = None if system == "fa2" else 1.0
    case = Case(system, 1, t, 4, 128, 256, mode="fwd", gate_strength=gate)
    time = {"clock": "cuda_events_cold_l2", "samples_ms": samples, "dropped": 0}
    return Row(case.id, "test", asdict(case), "ok", time=time, environment=GPU, started="2026-11-21T09:00:00")


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with results in it, and the current directory beside them."""
    rows = [row("gla", 1024, [2.0, 2.2, 1.8]), row("gla", 2048, [4.0, 4.2, 3.8])]
    rows += [row("fa2", 1024, [1.0, 1.1, 0.9]), row("fa2", 2048, [8.0, 8.1, 7.9])]
    folder = tmp_path / "results"
    folder.mkdir()
    (folder / "test-h200.jsonl").write_text("".join(f"{to_json(r)}\n" for r in rows))
    monkeypatch.chdir(tmp_path)
    return folder


def run(*arguments: object) -> int:
    """The exit code of the command line; 0 when it returns."""
    try:
        main(["report", *map(str, arguments)])
    except SystemExit as exit:
        return int(exit.code or 0)
    return 0


def test_html_by_default_with_figures_beside_it(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(results / "test-h200.jsonl") == 0
    page = Path("reports/local/test-h200/index.html")
    assert capsys.readouterr().out.splitlines()[0] == str(page)
    html = page.read_text()
    # 8 ms against 4 ms at T = 2048; the crossing lies where 1/2 -> 2 passes 1: at the geometric middle, 1448.
    assert "faster from T = 2k on (they cross near 1,448), 2.00× at T = 2k" in html
    kinds = [path.suffix for path in (page.parent / "figures" / "index").iterdir()]
    # One of the page's is the chart, whose times are files of their own.
    outside = html[: html.index('<section id="chart"')] + html[html.index('<section id="words"') :]
    assert kinds.count(".png") == kinds.count(".svg") == outside.count("<figure") + 1


@pytest.mark.parametrize("format", ["md", "csv", "json"])
def test_a_dash_is_the_terminal(results: Path, capsys: pytest.CaptureFixture[str], format: str) -> None:
    assert run(results / "test-h200.jsonl", "--format", format, "--out", "-") == 0
    printed = capsys.readouterr().out
    assert run(results / "test-h200.jsonl", "--format", format, "--out", f"there.{format}") == 0
    assert printed == Path(f"there.{format}").read_text()
    assert run(results / "test-h200.jsonl", "--out", "-") == 2
    assert "--out -: the terminal takes csv, json and md, expected a file or folder for html" in capsys.readouterr().err
    assert not Path("-").exists()


def test_out_names_a_file_or_a_folder(results: Path) -> None:
    (results / "test-h200.jsonl").write_text(to_json(replace(row("gla", 1024, []), time=None)) + "\n")
    assert run(results, "--out", "reports/board.html") == 0
    assert Path("reports/board.html").is_file()
    assert run(results, "--out", "site") == 0
    assert Path("site/index.html").is_file()


def test_pages_of_one_folder_do_not_share_figures(results: Path) -> None:
    (results / "test-h200.jsonl").write_text(to_json(row("gla", 1024, [2.0])) + "\n")
    assert run(results, "--out", "reports/one.html") == 0
    before = {path: path.read_bytes() for path in Path("reports").rglob("*.svg")}
    (results / "other.jsonl").write_text(to_json(row("gla", 1024, [7.0])) + "\n")
    assert run(results / "other.jsonl", "--out", "reports/two.html") == 0
    assert before
    assert {path: path.read_bytes() for path in before} == before
    assert "NVIDIA H200: " in next(iter(before)).read_text()


def test_csv_has_a_line_a_row(results: Path) -> None:
    assert run(results, "--format", "csv", "--out", "out.csv") == 0
    lines = list(csv.DictReader(Path("out.csv").read_text().splitlines()))
    found = {(line["system"], int(line["T"])): float(line["ms"]) for line in lines}
    assert found == {("gla", 1024): 2.0, ("gla", 2048): 4.0, ("fa2", 1024): 1.0, ("fa2", 2048): 8.0}


def test_png_writes_figures_alone(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(results, "--format", "png", "--out", "figures") == 0
    names = {path.suffix for path in Path("figures").iterdir()}
    assert names == {".png", ".svg"}
    assert capsys.readouterr().out.startswith("figures: ")


def test_markdown_has_tables_with_the_best_in_bold(results: Path) -> None:
    assert run(results, "--format", "md", "--out", "summary.md") == 0
    text = Path("summary.md").read_text()
    assert "| B1 T1k H4 128×256 | bf16 | 2.00 | **1.00** |" in text
    assert "| B1 T2k H4 128×256 | bf16 | **4.00** | 8.00 |" in text


def test_several_files_make_one_report(results: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl"
    other.write_text(to_json(row("fla", 1024, [3.0])) + "\n")
    assert run(results, other, "--format", "csv", "--out", "out.csv") == 0
    lines = csv.DictReader(Path("out.csv").read_text().splitlines())
    assert {line["system"] for line in lines} == {"gla", "fa2", "fla"}


@pytest.mark.parametrize(("sweep", "profile"), [("test", None), ("papers", None), ("profile", {})])
def test_pages_say_how_many_older_rows_are_left_out(
    results: Path, sweep: str, profile: dict[str, object] | None
) -> None:
    rows = [replace(row("gla", t, [1.0]), sweep=sweep, profile=profile) for t in (1024, 2048, 4096)]
    newer = [replace(one, started="2026-11-22T09:00:00") for one in rows[:2]]
    one, two, said = [*rows, newer[0]], [*rows, *newer], {}
    for name, some, form in (("once", rows, "md"), ("one", one, "md"), ("again", two, "html")):
        Path(f"{name}.jsonl").write_text("".join(f"{to_json(r)}\n" for r in some))
        assert run(f"{name}.jsonl", "--format", form, "--out", f"{name}.{form}") == 0
        said[name, form] = Path(f"{name}.{form}").read_text()
    assert "Made by glabench 0.1.0 from 3 rows" in said["again", "html"]
    assert "older" not in said["once", "md"]
    assert "from 3 rows; 1 other row of the same case is left out." in said["one", "md"]
    assert "from 3 rows; 2 other rows of the same cases are left out." in said["again", "html"]


def test_rows_of_the_sweep_papers_get_its_page(results: Path) -> None:
    rows = [replace(row(system, 4096, samples), sweep="papers") for system, samples in (("gla", [1.0]), ("fa2", [2.0]))]
    Path("papers.jsonl").write_text("".join(f"{to_json(r)}\n" for r in rows))
    profiled = replace(rows[0], sweep="profile", time=None, profile={})
    Path("profile.jsonl").write_text(to_json(profiled) + "\n")
    assert run("papers.jsonl", "profile.jsonl", "--format", "csv", "--out", "claims.csv") == 0
    assert Path("claims.csv").read_text().startswith("device,claim,")
    assert run("papers.jsonl", "--page", "rows", "--format", "csv", "--out", "rows.csv") == 0
    assert Path("rows.csv").read_text().startswith("case_id,")
    assert run(results, "--page", "papers", "--format", "csv", "--out", "asked.csv") == 0
    assert Path("asked.csv").read_text().startswith("device,claim,")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["results/test-h200.json"], "did you mean results/test-h200.jsonl"),
        (["nowhere"], "no such file or folder"),
        (["empty.jsonl"], "the file is empty"),
        (["notes.jsonl"], "notes.jsonl:1: not a row"),
        (["folder"], "no *.jsonl file in this folder"),
        (["results", "--format", "htm"], "did you mean 'html'"),
        (["results", "--format", "pdf"], "unknown format 'pdf'"),
        (["results", "--page", "paper"], "'paper' (did you mean 'papers'?); expected rows, papers or trend"),
        (["results", "--out", "notes.jsonl/x"], "cannot be written"),
        ([], "missing argument"),
        (["results", "--outt", "x"], "--out"),
    ],
)
def test_bad_calls(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "notes.jsonl").write_text("remember the milk\n")
    (tmp_path / "folder").mkdir()
    before = sorted(tmp_path.rglob("*"))
    assert run(*arguments) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.strip().splitlines()) == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_figures_need_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.jsonl").write_text(to_json(replace(row("gla", 1024, []), time=None)) + "\n")
    assert run("a.jsonl", "--format", "png") == 2
    assert "no case has a time" in capsys.readouterr().err
    assert run("a.jsonl", "--format", "html") == 0


def test_a_report_needs_no_torch(results: Path) -> None:
    code = (
        "import sys; from glabench.cli import main\n"
        f"try: main(['report', {str(results)!r}, '--out', 'page'])\n"
        "except SystemExit as e: assert not e.code, e.code\n"
        "assert not {'torch', 'triton', 'selenium'} & set(sys.modules)"
    )
    # The packages may be on this process's path without being installed.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
