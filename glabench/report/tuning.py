"""The report of tunings: one page, its figures, a CSV table, or Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from glabench.analysis.load import device_name
from glabench.analysis.tuning import table
from glabench.errors import UserError
from glabench.report import environments, markdown, page, text, tuning_matrix, tuning_tables
from glabench.report.export import beside, drawn, objects, write_text
from glabench.report.figures import all_figures
from glabench.report.headline import Finding
from glabench.report.model import Section
from glabench.report.tables import Table
from glabench.report.tuning_figures import devices, sections
from glabench.store import Row
from glabench.tuning_store import Tuning


def render(tunings: Sequence[Tuning], found: Sequence[Section]) -> str:
    """The whole page as text; ``found`` are the sections of ``report.tuning_figures``."""
    rows = _rows(tunings)
    machines = environments.environments(rows)
    return page.fill(
        "tuning.html.j2",
        title=text.listing(devices(tunings)),
        started=page.dates(rows),
        total=len(tunings),
        grids=tuning_matrix.grids(tunings),
        answers=_answers(tunings),
        sections=[(s, [page.drawn(s.name, i, f) for i, f in enumerate(s.figures)]) for s in found if s.figures],
        missing=[(s.title, s.missing) for s in found if not s.figures],
        tuned=tuning_tables.tuned(tunings),
        directions=len({tuning.workload["direction"] for tuning in tunings}) > 1,
        strategies=len({tuning.strategy for tuning in tunings}) > 1,
        searched=tuning_tables.searched(tunings),
        repeated=tuning_tables.repeated(tunings),
        failures=tuning_tables.failures(tunings),
        environments=machines,
        mixed=environments.mixed(machines),
    )


def _answers(tunings: Sequence[Tuning]) -> list[tuple[str, list[Finding]]]:
    return [
        (name, tuning_tables.findings([t for t in tunings if device_name(t.environment) == name]))
        for name in devices(tunings)
    ]


def _rows(tunings: Sequence[Tuning]) -> list[Row]:
    """What of a tuning says where it was made, as the rows that tell it."""
    return [Row("", "", {}, "ok", environment=tuning.environment, started=tuning.started) for tuning in tunings]


def html(tunings: Sequence[Tuning], out: Path) -> list[Path]:
    """The page at ``out`` and its figures (see ``export.beside``); returns the page's path first."""
    found = sections(tunings)
    return [write_text(out, render(tunings, found)), *beside(found, devices(tunings), out)]


def png(tunings: Sequence[Tuning], out: Path) -> list[Path]:
    """Every figure as PNG and SVG in the folder ``out``; UserError when the tunings give none."""
    found = sections(tunings)
    if not all_figures(found):
        raise UserError("these tunings give no figure: no candidate has a time; try --format md")
    return drawn(found, devices(tunings), out)


def csv(tunings: Sequence[Tuning], out: Path) -> list[Path]:
    """The table of ``analysis.tuning``, one line a tuning; units are in the names of the columns."""
    return [write_text(out, table(tunings).to_csv(index=False))]


def json(tunings: Sequence[Tuning], out: Path) -> list[Path]:
    """The same as JSON."""
    return [objects(table(tunings), out)]


def md(tunings: Sequence[Tuning], out: Path) -> list[Path]:
    """The facts, each tuning, comparisons of those of one workload, and failures, in GitHub's Markdown."""
    pieces = []
    for name, found in _answers(tunings):
        pieces += [f"## {markdown.plain(name)}"]
        pieces += ["\n".join(f"- **{f.figure}** {markdown.plain(f.lead)}. {markdown.plain(f.sentence)}" for f in found)]
    titled = (
        ("Tunings", tuning_tables.tuned(tunings)),
        ("Search against exhaustive", tuning_tables.searched(tunings)),
        ("Tuned again", tuning_tables.repeated(tunings)),
    )
    pieces += [f"## {title}\n\n{_grid(found)}" for title, found in titled if found.rows]
    failed = [[f.status, f.system, f.reason] for f in tuning_tables.failures(tunings)]
    if failed:
        pieces.append("## No result, and why\n\n" + markdown.grid(["status", "what", "reason"], failed))
    return [write_text(out, "\n\n".join(pieces) + "\n")]


def _grid(found: Table) -> str:
    return markdown.grid(list(found.columns), [[cell.text for cell in row] for row in found.rows])


# format -> what writes it
FORMATS: dict[str, Callable[[Sequence[Tuning], Path], list[Path]]] = {
    "html": html, "png": png, "csv": csv, "json": json, "md": md,
}  # fmt: skip
