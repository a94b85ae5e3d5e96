"""Baselines: rows that were accepted as what a GPU gives, one file a GPU under results/baselines/, and by whom.

<gpu>.jsonl holds the rows as sweeps wrote them, several runs of each case if there are: those that were accepted last
of each sweep, so that one sweep's say nothing of another's. <gpu>.log has a line of JSON for each time that rows were
accepted.
"""

from __future__ import annotations

import getpass
import json
import os
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from glabench.check.pairs import pairs
from glabench.check.verdict import BROKEN
from glabench.errors import UserError
from glabench.hardware.environment import slug
from glabench.lines import whole
from glabench.store import Row, read, to_json

FOLDER = Path("results") / "baselines"
COMMIT = "baseline"  # as a revision: the commit that the baseline's rows are of


def device_slug(rows: Sequence[Row]) -> str:
    """The GPU that the rows are of, as in file names. UserError when they are of several."""
    # What a row says becomes part of a path: no more of it than a name may hold.
    found = sorted({slug(str(row.environment.get("device_slug") or row.environment.get("device"))) for row in rows})
    if len(found) > 1:
        raise UserError(f"rows of {' and '.join(found)}: check one device at a time")
    return found[0]


def find(name: str, rows: Sequence[Row], folder: Path = FOLDER) -> Path | None:
    """The file of the baseline: ``name`` itself, or for "auto" that of the rows' GPU, None where it has none."""
    if name != "auto":
        return Path(name)
    path = folder / f"{device_slug(rows)}.jsonl"
    return path if path.exists() else None


def relevant(known: Sequence[Row], rows: Sequence[Row]) -> list[Row]:
    """What of the rows ``known`` of a baseline the ``rows`` are compared with: those of their sweeps, and for a case
    that none of these has, those of other sweeps."""
    sweeps, asked = {row.sweep for row in rows}, {row.case_id for row in rows}
    covered = {row.case_id for row in known if row.sweep in sweeps}
    return [row for row in known if row.sweep in sweeps or row.case_id in asked - covered]


def commit_of(rows: Sequence[Row], file: Path) -> str:
    """The commit that the rows of this baseline are of. UserError when they name none, several, or one with changes
    that nobody can check out."""
    known = [row.environment for row in rows if row.environment.get("commit")]
    commits = sorted({str(found["commit"]) for found in known})
    if len(commits) != 1:
        said = f"of several commits ({', '.join(commits)})" if commits else "of no commit"
        raise UserError(f"--against {COMMIT}: the rows of {file} are {said}, expected those of one; name a commit")
    if any(found.get("dirty") for found in known):
        raise UserError(f"--against {COMMIT}: the rows of {file} are of {commits[0]} with changes; name a commit")
    return commits[0]


def accept(rows: Sequence[Row], why: str, folder: Path = FOLDER) -> tuple[Path, dict[str, Any]]:
    """Make the rows the baseline of their sweeps on their GPU, in place of the one before, and log it; returns file and
    log entry. Rows of other sweeps stay.

    Raises:
        UserError: no reason is given, a row is wrong, crashed or did not compile, the rows are of several commits or
            devices, a row of the file cannot be read and would be lost, or the folder cannot be written.
    """
    if not why.strip():
        raise UserError("--accept: expected why, in words, such as --accept 'new kernels for gates on the value side'")
    # A file that a sweep resumed after a change still has rows of the code before.
    rows = [run for pair in pairs((), rows) for run in pair.after]
    bad = next((row for row in rows if row.status in BROKEN), None)
    if bad is not None:
        raise UserError(
            f"--accept: case {bad.case_id} ({bad.case['system']}) is {bad.status}: {bad.reason}; fix it first"
        )
    # A process that did not live to answer could not name its commit; its sources are those of the other rows.
    named = [row.environment["commit"] for row in rows if row.environment.get("commit")]
    commits = sorted(set(map(str, named))) or ["None"]
    if len(commits) > 1:
        raise UserError(f"--accept: rows of {len(commits)} commits ({', '.join(commits)}), expected those of one")
    path = folder / f"{device_slug(rows)}.jsonl"
    sweeps = sorted({row.sweep for row in rows})
    kept = [row for row in _known(path) if row.sweep not in sweeps]
    entry = {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "who": who(),
        "why": why.strip(),
        "commit": commits[0],
        "dirty": any(bool(row.environment.get("dirty")) for row in rows),
        "cases": len({row.case_id for row in rows}),
        "rows": len(rows),
        "sweeps": sweeps,
        "kept": sorted({row.sweep for row in kept}),
    }
    try:
        with whole(path) as part:
            part.write_text("".join(to_json(row) + "\n" for row in (*kept, *rows)), encoding="utf-8")
        with path.with_suffix(".log").open("a", encoding="utf-8") as log:
            log.write(json.dumps(entry, ensure_ascii=False) + "\n")
    except OSError as error:
        raise UserError(f"{error.filename or path}: cannot be written: {error.strerror}") from None
    return path, entry


def _known(path: Path) -> list[Row]:
    """The rows of a baseline's file, none where there is no file. UserError for one with a line that is no row."""

    def refuse(message: str) -> None:
        raise UserError(f"{message}; it would be lost: `glabench results verify` names bad lines")

    return list(read(path, refuse)) if path.exists() else []


def who() -> str:
    """Who runs this: on GitHub the account that started it, else git's name and address, else the login."""
    if actor := os.environ.get("GITHUB_ACTOR"):
        return actor
    name, mail = (_git_config(key) for key in ("user.name", "user.email"))
    if name or mail:
        return f"{name} <{mail}>" if name and mail else name or mail
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container without names
        return f"user {os.getuid()}"


def _git_config(key: str) -> str:
    try:
        done = subprocess.run(["git", "config", key], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip()
