"""Folders of committed results that describe themselves: ``python -m glabench.tools.runs add|describe``.

``results/<gpu>/<sweep or subject>/`` holds rows as they were written, a file a run, packed by xz and called
``<date>-<commit>[-tag]`` of its first row, and ``run.json``: what the runs are, by hand; when, where and from which
commit, of the rows; the command that renders their page; which documents name the folder. The table of
``results/README.md`` is made of these.
"""

from __future__ import annotations

import json
import lzma
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from glabench.errors import UserError
from glabench.lines import whole
from glabench.store import open_to_read, unpacked_name

ABOUT = "run.json"
BY_HAND = ("what", "command", "page", "beside", "options", "for")  # of a folder; of a run in it RUN_BY_HAND
RUN_BY_HAND = ("file", "command", "note")
LINES = (".jsonl", ".rows")
KINDS = ("row", "profile", "tuning")  # of glabench's own lines
START = "<!-- What follows is made by `python -m glabench.tools.runs describe`. -->"
READERS = ("*.md", "kernels/*.md", "docs/**/*.md")

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
Root = Annotated[Path, typer.Option(help="The repository.", file_okay=False)]


@app.command()
def describe(root: Root = Path()) -> None:
    """Write every run.json and the table anew, by the files that are there. Exit code: 0 done; 2 bad input."""
    _ending(lambda: write_all(root))


@app.command()
def add(
    files: Annotated[list[Path], typer.Argument(help="Files of one run, as sweeps, tunings and programs wrote them.")],
    subject: Annotated[str, typer.Option(help="The folder: the sweep's name, or what it is about.")],
    command: Annotated[str, typer.Option(help="The command that wrote them.")],
    what: Annotated[str, typer.Option(help="What a new folder holds, in a sentence.")] = "",
    note: Annotated[str, typer.Option(help="What is worth knowing of this run.")] = "",
    page: Annotated[str, typer.Option(help="Of a new folder: the page, reports/NAME.html.")] = "",
    made_of_it: Annotated[
        list[str] | None, typer.Option("--for", help="Of a new folder: a file that is made of it; may be given again.")
    ] = None,
    tag: Annotated[str, typer.Option(help="Tells it from another run of this date and commit.")] = "",
    root: Root = Path(),
) -> None:
    """Pack a run into its folder of results/, and describe that. Exit code: 0 done; 2 bad input."""
    run, words = {"command": command, "note": note}, {"what": what, "page": page, "for": made_of_it}
    _ending(lambda: [pack(root, files, subject, tag, run, words), *write_all(root)])


def _ending(do: Callable[[], Sequence[Path]]) -> None:
    """Say what was written, or what is wrong."""
    try:
        for path in do():
            typer.echo(f"written: {path}")
    except UserError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None


def pack(root: Path, files: Sequence[Path], subject: str, tag: str, run: dict[str, str], words: dict[str, Any]) -> Path:
    """Write the lines of the files, as they are, to one of the folder, and the folder's words by hand; its path.

    UserError when the files hold no lines, or of several GPUs, or when there is such a run already.
    """
    lines = [line.rstrip(b"\n") + b"\n" for path in files for line in _lines(path)]
    rows = [row for path in files for row in _rows(path)]
    facts = facts_of(rows)
    if not lines or len(facts["gpus"]) != 1:
        raise UserError(f"{files[0]}: expected rows of one GPU, found {len(lines)} lines of {facts['gpus']}")
    if any(not re.fullmatch(r"[\w-]+", name) for name in (subject, tag or "-")):
        raise UserError(f"--subject {subject} --tag {tag}: expected letters, digits, _ and -")
    date = facts.get("started") or datetime.fromtimestamp(files[0].stat().st_mtime, UTC).isoformat()
    commit = (facts.get("commits") or ["unknown"])[0]
    folder = root / "results" / rows[0]["environment"]["device_slug"] / subject
    out = folder / f"{'-'.join(filter(None, (date[:10], commit, tag)))}{_suffix(files[0])}.xz"
    if out.exists():
        raise UserError(f"{out}: is there already; tell this run from it by --tag")
    old: dict[str, Any] = {"command": run["command"], **words, "runs": []}
    if (folder / ABOUT).exists():
        old = _about(folder)
    elif not words["what"]:
        raise UserError(f"{folder}: is a new folder; say by --what what it holds")
    told = {key: text for key, text in run.items() if text != old.get(key)}
    about = old | {"runs": [*old["runs"], {"file": out.name, **told}]}
    with whole(out) as part:
        part.write_bytes(lzma.compress(b"".join(lines), preset=9 | lzma.PRESET_EXTREME))
    _write(folder / ABOUT, as_json(about))
    return out


def write_all(root: Path) -> list[Path]:
    """Bring what is made up to date; the files that were not. UserError for a folder whose words are missing."""
    return [path for path, text in made(root).items() if _write(path, text)]


def made(root: Path) -> dict[Path, str]:
    """What every run.json and results/README.md should hold."""
    readers = _readers(root)
    abouts = {folder: about(folder, root, readers) for folder in folders(root)}
    readme = root / "results" / "README.md"
    text = f"{readme.read_text(encoding='utf-8').partition(START)[0]}{START}\n\n{table(abouts)}"
    return {**{folder / ABOUT: as_json(one) for folder, one in abouts.items()}, readme: text}


def folders(root: Path) -> list[Path]:
    """Every results/<gpu>/<subject>/, but for those of this machine's own runs and of baselines."""
    found = (path for path in (root / "results").glob("*/*") if path.is_dir())
    return sorted(path for path in found if path.parent.name not in ("local", "baselines"))


def about(folder: Path, root: Path, readers: dict[str, str]) -> dict[str, Any]:
    """What run.json should say: words by hand as they are, facts of the files that are there. UserError without any."""
    old = _about(folder)
    runs = {run["file"]: run for run in old["runs"]}
    inside = sorted(path for path in folder.iterdir() if path.is_file() and path.name != ABOUT)
    found: dict[str, Any] = {key: old[key] for key in BY_HAND if old.get(key)}
    found["runs"] = [
        {key: value for key in RUN_BY_HAND if (value := runs.get(path.name, {"file": path.name}).get(key))}
        | (facts_of(_rows(path)) if _suffix(path) in LINES else {})
        for path in inside
    ]
    if page := old.get("page"):
        shown = [folder, *(folder.parent / name for name in old.get("beside", ()))]
        words = ["glabench report", *(str(one.relative_to(root)) for one in shown), *filter(None, [old.get("options")])]
        found["render"] = " ".join([*words, "--out", page])
    found["read_by"] = [name for name, text in readers.items() if _names(folder).search(text)]
    return found


def _names(folder: Path) -> re.Pattern[str]:
    """How texts name a folder: with its GPU, or alone in backquotes where nothing else has such a name."""
    alone = "-" in folder.name and len(list(folder.parents[1].glob(f"*/{folder.name}"))) == 1
    return re.compile(rf"{folder.parent.name}/{folder.name}(?![\w-])" + (rf"|`{folder.name}`" if alone else ""))


def facts_of(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What the lines of a run say of it themselves: how many there are and how they ended, when and where they ran."""
    where = [row.get("environment") or {} for row in rows]
    started = min((row["started"] for row in rows if row.get("started")), default=None)
    facts: dict[str, Any] = {"lines": len(rows), "kind": kind_of(rows[0]) if rows else None}
    known = {
        "statuses": dict(Counter(row["status"] for row in rows if "status" in row).most_common()),
        "started": started,
        "sweeps": _each(row.get("sweep") for row in rows),
        "commits": _each(str(one["commit"])[:7] for one in where if one.get("commit")),
        "dirty": any(one.get("dirty") for one in where),
        "gpus": _each(one.get("device") for one in where),
        "drivers": _each(one.get("driver") for one in where),
    }
    return facts | {key: value for key, value in known.items() if value or key == "gpus"}


def kind_of(row: dict[str, Any]) -> str:
    """Of a line: a row of a sweep or of a profile, a tuning, or what a program calls its own."""
    if "case_id" in row:
        return "profile" if row.get("profile") else "row"
    return "tuning" if "workload" in row else str(row.get("kind", "lines"))


def table(abouts: dict[Path, dict[str, Any]]) -> str:
    """The table in Markdown, a part for each GPU."""
    text = []
    for gpu in dict.fromkeys(folder.parent.name for folder in abouts):
        text += [f"## {gpu}", "", "| folder | what | runs | page |", "|---|---|---|---|"]
        text += [_line(folder, one) for folder, one in abouts.items() if folder.parent.name == gpu]
        text.append("")
    return "\n".join(text)


def _line(folder: Path, one: dict[str, Any]) -> str:
    runs = [run for run in one["runs"] if run.get("lines")]
    days = Counter(re.sub(rf"({'|'.join(map(re.escape, LINES))}).*", "", run["file"]) for run in runs)
    bad = Counter({key: n for run in runs for key, n in run.get("statuses", {}).items() if key != "ok"})
    kind = runs[0]["kind"] if runs and runs[0]["kind"] in KINDS else "line"
    said = f"{sum(run['lines'] for run in runs)} {kind}s"
    said += "".join(f", {n} {status}" for status, n in bad.items())
    named = ", ".join(days) if len(days) <= 5 else f"{len(days)} files"
    page = f"[page](../{one['page']})" if "page" in one else ""
    name = f"{folder.parent.name}/{folder.name}"
    return f"| [{folder.name}]({name}/{ABOUT}) | {one['what']} | {named}: {said} | {page} |"


def as_json(values: dict[str, Any]) -> str:
    """In lines, with what holds nothing but texts and numbers in one."""
    text = json.dumps(values, indent=1, ensure_ascii=False)
    plain = re.compile(r"([\[{])\n\s+([^\[\]{}]*?)\n\s+([\]}])")
    return plain.sub(lambda m: m[1] + re.sub(r"\n\s+", " ", m[2]) + m[3], text) + "\n"


def _about(folder: Path) -> dict[str, Any]:
    """What run.json says. UserError when it is not there, or says nothing."""
    try:
        found = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{folder / ABOUT}: cannot be read: {error}; `add` writes one") from None
    if not isinstance(found, dict) or not found.get("what") or not isinstance(found.get("runs"), list):
        raise UserError(f"{folder / ABOUT}: expected an object with what and runs")
    return found


def _lines(path: Path) -> Iterator[bytes]:
    with open_to_read(path) as file:
        yield from (line for line in file if line.strip())


def _rows(path: Path) -> list[dict[str, Any]]:
    """The objects that the lines are. UserError where one is none."""
    try:
        found = [json.loads(line) for line in _lines(path)]
    except ValueError as error:
        raise UserError(f"{path}: a line of it is no JSON: {error}") from None
    if not all(isinstance(one, dict) for one in found):
        raise UserError(f"{path}: expected an object a line")
    return found


def _suffix(path: Path) -> str:
    return Path(unpacked_name(path)).suffix


def _each(values: Any) -> list[str]:
    """Each value once, in their order."""
    return list(dict.fromkeys(str(value) for value in values if value))


def _readers(root: Path) -> dict[str, str]:
    """Documents by their paths."""
    found = sorted({path for pattern in READERS for path in root.glob(pattern)})
    return {str(path.relative_to(root)): path.read_text(encoding="utf-8") for path in found}


def _write(path: Path, text: str) -> bool:
    """Whether the file held something else."""
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return False
    with whole(path) as part:
        part.write_text(text, encoding="utf-8")
    return True


if __name__ == "__main__":
    app()
