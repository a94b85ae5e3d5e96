"""Folders of results say what is in them, nothing that is not so, and what rests on them."""

from __future__ import annotations

import json
import lzma
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from glabench.analysis.load import trace_folder
from glabench.spec.case import Case
from glabench.store import Row, read, to_json
from glabench.tools import runs

ROOT = Path(__file__).parents[3]
NAMED = re.compile(r"(\d{4}-\d\d-\d\d)-([0-9a-f]{7})(-[\w-]+)?\.(jsonl|rows)\.xz")
NAMED_BY_A_PROGRAM = {"gate"}  # tests/gate/measure.py and judge.py read a folder by the names in it
CASE = Case.from_dict({"system": "gla", "B": 1, "T": 64, "H": 1, "K": 16, "V": 16, "dtype": "bf16", "mode": "fwd"})


@cache
def abouts() -> dict[Path, dict[str, Any]]:
    return {folder: json.loads((folder / runs.ABOUT).read_text()) for folder in runs.folders(ROOT)}


def test_what_is_made_is_up_to_date() -> None:
    """run.json of the files that are there, the table of all of these: `python -m glabench.tools.runs describe`."""
    stale = [path for path, text in runs.made(ROOT).items() if path.read_text(encoding="utf-8") != text]
    assert stale == []


def test_nothing_lies_beside_the_folders_that_nobody_describes() -> None:
    allowed = {ROOT / "results" / "README.md"}
    for folder, about in abouts().items():
        named = [folder / run["file"] for run in about["runs"]]
        allowed |= {folder / runs.ABOUT, *named}
        allowed |= {path for one in named for path in trace_folder(one).glob("*.json.gz")}
    kept = (ROOT / "results" / name for name in ("local", "baselines"))
    skipped = {path for folder in kept for path in folder.rglob("*")}
    assert {path for path in (ROOT / "results").rglob("*") if path.is_file()} - skipped == allowed


def test_a_file_is_named_by_the_day_and_the_commit_of_its_first_row() -> None:
    wrong = []
    for folder, about in abouts().items():
        for run in about["runs"] if folder.name not in NAMED_BY_A_PROGRAM else ():
            found = NAMED.fullmatch(run["file"])
            said = found and (run.get("started", found[1])[:10], run.get("commits", [found[2]])[0])
            if found is None or said != (found[1], found[2]):
                wrong.append(f"{folder.name}/{run['file']}")
    assert wrong == []


def test_every_folder_has_a_reader_and_every_page_a_folder() -> None:
    shown = {folder.parent / name for folder, about in abouts().items() for name in about.get("beside", ())}
    assert shown <= set(abouts())
    idle = [
        folder
        for folder, about in abouts().items()
        if not (about.get("page") or about["read_by"] or about.get("for") or folder in shown)
    ]
    assert idle == []
    assert [name for about in abouts().values() for name in about.get("for", ()) if not (ROOT / name).exists()] == []
    pages = sorted(about["page"] for about in abouts().values() if "page" in about)
    assert pages == sorted(f"reports/{path.name}" for path in (ROOT / "reports").glob("*.html"))


def test_pages_are_of_these_rows() -> None:
    """As far as commits tell: a page names those of what it shows."""
    for about in abouts().values():
        if "page" in about:
            page = (ROOT / about["page"]).read_text()
            assert [commit for run in about["runs"] for commit in run["commits"] if commit not in page] == []


def lines(device: str = "NVIDIA H200", **changes: Any) -> str:
    where = {"device": device, "device_slug": "nvidia-h200", "commit": "0123456789", "driver": "580"}
    row = Row("id", "tiny", CASE.to_dict(), "ok", environment=where, started="2026-11-25T02:41:51+00:00", **changes)
    return to_json(row) + "\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "results").mkdir()
    (tmp_path / "docs").mkdir()
    (tmp_path / "results" / "README.md").write_text("# By hand\n")
    (tmp_path / "docs" / "a.md").write_text("Rows: `results/nvidia-h200/tiny`.\n")
    return tmp_path


def add(root: Path, text: str, *words: str) -> tuple[int, str]:
    (root / "tiny.jsonl").write_text(text)
    given = [str(root / "tiny.jsonl"), "--subject", "tiny", "--command", "glabench sweep tiny", "--root", str(root)]
    result = CliRunner().invoke(runs.app, ["add", *given, *words])
    return result.exit_code, result.output


def test_a_run_is_packed_and_described(root: Path) -> None:
    text = lines() + lines(wall_s=1.5)
    assert add(root, text, "--what", "Tiny cases", "--page", "reports/tiny.html", "--for", "a.json")[0] == 0
    folder = root / "results" / "nvidia-h200" / "tiny"
    path = folder / "2026-11-25-0123456.jsonl.xz"
    assert lzma.decompress(path.read_bytes()).decode() == text
    assert [row.wall_s for row in read(path)] == [0.0, 1.5]
    about = json.loads((folder / "run.json").read_text())
    (run,) = about["runs"]
    assert (run["lines"], run["statuses"], run["commits"], run["drivers"]) == (2, {"ok": 2}, ["0123456"], ["580"])
    assert about["render"] == "glabench report results/nvidia-h200/tiny --out reports/tiny.html"
    assert (about["for"], about["read_by"]) == (["a.json"], ["docs/a.md"])
    readme = (root / "results" / "README.md").read_text()
    assert readme.startswith("# By hand\n")
    assert "| Tiny cases | 2026-11-25-0123456: 2 rows | [page](../reports/tiny.html) |" in readme

    assert add(root, text) == (2, f"error: {path}: is there already; tell this run from it by --tag\n")
    assert add(root, lines(), "--tag", "again", "--note", "Once more")[0] == 0
    path.unlink()
    assert CliRunner().invoke(runs.app, ["describe", "--root", str(root)]).exit_code == 0
    (run,) = json.loads((folder / "run.json").read_text())["runs"]
    assert (run["file"], run["note"]) == ("2026-11-25-0123456-again.jsonl.xz", "Once more")


@pytest.mark.parametrize(
    ("text", "words", "said"),
    [
        (lines(), (), "is a new folder; say by --what what it holds"),
        (lines() + lines("NVIDIA A100"), ("--what", "x"), "expected rows of one GPU, found 2 lines of"),
        ("", ("--what", "x"), "expected rows of one GPU, found 0 lines of"),
        (lines(), ("--what", "x", "--tag", "a/b"), "expected letters, digits, _ and -"),
        ("no JSON\n", ("--what", "x"), "is no JSON"),
    ],
)
def test_what_cannot_be_a_run_is_one_line(root: Path, text: str, words: tuple[str, ...], said: str) -> None:
    code, output = add(root, text, *words)
    assert (code, len(output.splitlines())) == (2, 1)
    assert said in output
    assert not list(root.glob("results/*/*"))


def test_a_folder_without_words_is_one_line(root: Path) -> None:
    (root / "results" / "nvidia-h200" / "bare").mkdir(parents=True)
    result = CliRunner().invoke(runs.app, ["describe", "--root", str(root)])
    assert result.exit_code == 2
    assert "run.json: cannot be read" in result.output
