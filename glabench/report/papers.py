"""The papers page: what the papers claim of speed and memory, what holds here, and their figures beside ours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from glabench.analysis.accuracy import by_strength
from glabench.analysis.claims import CLAIMS, LAYER_FORWARD
from glabench.analysis.evidence import OURS, TIE, Evidence, other_commits, profiles_of, split_by_chunk, taken_apart
from glabench.analysis.frame import frame
from glabench.analysis.load import device, latest
from glabench.analysis.papers import VERDICTS, Judged, Value, judged
from glabench.analysis.printed import LEFT_OUT, V2023, V2024, Paper
from glabench.errors import UserError
from glabench.report import environments, export, markdown, page, papers_figures, text
from glabench.report.figures import all_figures, by_device
from glabench.report.headline import Finding
from glabench.report.model import Section
from glabench.report.parts import devices
from glabench.report.tables import Cell, Table
from glabench.store import Row

SWEEP = "papers"  # rows of the sweep of this name get this page by themselves
COLUMNS = ("claim", "verdict", "here", "printed", "compared", "why", "paper")
MOST_VALUES = 4  # of a cell
NOT_A_CASE = "the rows hold profiles alone: give those of `glabench sweep papers` beside them"


def is_for(rows: Sequence[Row]) -> bool:
    """Whether every row that a sweep measured, and there is one, is of the sweep ``papers``; what failed may be a
    profile's."""
    return {row.sweep for row in rows if row.profile is None and row.status == "ok"} == {SWEEP}


class Pages:
    """What every format needs of the rows: those that a sweep measured, those of profiles, evidence by device."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = latest(row for row in rows if row.profile is None)
        self.profiled = latest(row for row in rows if row.profile is not None)
        self.older = len(rows) - len(self.rows) - len(self.profiled)
        if not self.rows:
            raise UserError(NOT_A_CASE)
        self.table = frame(self.rows)
        self.evidence = {name: self._evidence(name) for name in devices(self.table)}
        self.claimed = {name: judged(CLAIMS, evidence) for name, evidence in self.evidence.items()}

    def _evidence(self, name: str) -> Evidence:
        own = [row for row in self.rows if device(row) == name]
        profiles = profiles_of(self.profiled, name)
        found = Evidence(self.table[self.table["device"] == name], errors=by_strength(own), profiles=profiles)
        apart = taken_apart(self.rows, name, LAYER_FORWARD) or taken_apart(self.profiled, name, LAYER_FORWARD)
        beside = found.rows(OURS, LAYER_FORWARD) or found.table.to_dict("records")
        return replace(found, split=split_by_chunk(apart), split_commits=other_commits(apart, beside) if apart else ())

    def sections(self) -> list[Section]:
        return by_device([(name, papers_figures.sections(name, found)) for name, found in self.evidence.items()])


def render(pages: Pages, sections: Sequence[Section]) -> str:
    """The whole page as text: the page of any rows, with the claims and the figures of the papers."""
    values = page.values(pages.rows, pages.table, sections, pages.older)
    machines = environments.environments([*pages.rows, *pages.profiled])
    own = {
        "answers": [(name, findings(found)) for name, found in pages.claimed.items()],
        "papers": (V2023, V2024), "untried": LEFT_OUT, "tie": f"{TIE:.0%}".replace("%", " %"),
        "claimed": [(name, claims_table(found)) for name, found in pages.claimed.items()],
        "environments": machines, "mixed": environments.mixed(machines), "profiles": len(pages.profiled),
    }  # fmt: skip
    return page.fill("papers.html.j2", charts=[], **values | own)


def findings(found: Sequence[Judged]) -> list[Finding]:
    """Of each version of the paper: how many of its claims hold, and what became of the rest."""
    papers = dict.fromkeys(one.claim.paper for one in found)
    return [_finding(paper, [one for one in found if one.claim.paper is paper]) for paper in papers]


def _finding(paper: Paper, found: Sequence[Judged]) -> Finding:
    counts = Counter(one.outcome.verdict for one in found)
    measured = len(found) - counts["not measured"]
    if not measured:
        sentence = "Each is of a shape for a GPU. The table says what measures it."
        return Finding(f"0 of {len(found)}", f"claims of {paper.short} were measured here", sentence)
    rest = [f"{counts[verdict]} {verdict}" for verdict in VERDICTS[1:] if counts[verdict]]
    not_held = [one for one in found if one.outcome.verdict == "not held"]
    lost = [one.claim.says + (" (it is better here)" if one.outcome.better else "") for one in not_held]
    sentence = f"The rest: {text.listing(rest)}." if rest else "Every one was measured."
    sentence += f" Not held: {'; '.join(lost)}." if lost else ""
    return Finding(f"{counts['held']} of {measured}", f"claims of {paper.short} that were measured hold here", sentence)


def claims_table(found: Sequence[Judged]) -> Table:
    """A line a claim. What was not measured says what gives it."""
    rows = [
        (
            Cell(one.claim.says, flag="wrap"),
            Cell(
                one.outcome.verdict, flag="bad" if one.outcome.verdict == "not held" and not one.outcome.better else ""
            ),
            Cell(short(one.outcome.found) or "–", flag="wrap"),
            Cell(values(one.claim.printed) or "no number", flag="wrap"),
            Cell(compared(one), flag="wrap"),
            Cell(why(one), flag="prose"),
            Cell(f"{one.claim.paper.short}, {one.claim.where}", flag="wrap"),
        )
        for one in found
    ]
    return Table(COLUMNS, (False,) * len(COLUMNS), tuple(rows))


def values(found: Sequence[Value]) -> str:
    """ "T 4k: 9.41×; T 8k: 17.9×"."""
    return "; ".join(f"{one.at}: {_number(one)}" for one in found)


def short(found: Sequence[Value]) -> str:
    """The same of a few; of more, the least and the most: "0.56× (T 1k) to 4.89× (T 8k)"."""
    if len(found) <= MOST_VALUES:
        return values(found)
    ends = (min(found, key=lambda one: one.value), max(found, key=lambda one: one.value))
    return " to ".join(f"{_number(one)} ({one.at})" for one in ends)


def _number(one: Value) -> str:
    return text.times(one.value) if one.unit == "×" else f"{one.value:g}"


def compared(one: Judged) -> str:
    """What stood beside what, and whether it was tuned."""
    return "; ".join(one.outcome.pairs) or "–"


def why(one: Judged) -> str:
    """What became of it, and why it is judged by these pairs."""
    needs = f"to be measured by {one.claim.needs}, on a GPU" if one.outcome.verdict == "not measured" else ""
    became = "; ".join(filter(None, (one.outcome.why, needs)))
    first = text.sentence(became[0].upper() + became[1:]) if became else ""
    return " ".join(filter(None, (first, one.claim.reason)))


def html(rows: Sequence[Row], out: Path) -> list[Path]:
    """The page at ``out`` and its figures (see ``export.beside``); returns the page's path first."""
    pages = Pages(rows)
    found = pages.sections()
    return [export.write_text(out, render(pages, found)), *export.beside(found, list(pages.evidence), out)]


def png(rows: Sequence[Row], out: Path) -> list[Path]:
    """Every figure as PNG and SVG in the folder ``out``; UserError when the rows give none."""
    pages = Pages(rows)
    found = pages.sections()
    if not all_figures(found):
        raise UserError(
            "these rows give no figure of the papers page; try --format md, which says what each claim lacks"
        )
    return export.drawn(found, list(pages.evidence), out)


def csv(rows: Sequence[Row], out: Path) -> list[Path]:
    """The claims, one line a claim and device."""
    return [export.write_text(out, _lines(rows).to_csv(index=False))]


def json(rows: Sequence[Row], out: Path) -> list[Path]:
    """The same as JSON."""
    return [export.objects(_lines(rows), out)]


def _lines(rows: Sequence[Row]) -> pd.DataFrame:
    lines = [
        {"device": name, "claim": one.claim.name, "says": one.claim.says, "paper": one.claim.paper.short,
         "where": one.claim.where, "printed": values(one.claim.printed), "here": values(one.outcome.found),
         "verdict": one.outcome.verdict, "compared": compared(one), "why": why(one)}
        for name, found in Pages(rows).claimed.items() for one in found
    ]  # fmt: skip
    return pd.DataFrame(lines)


def md(rows: Sequence[Row], out: Path) -> list[Path]:
    """The claims of each device as tables in GitHub's Markdown, then the summary of any rows."""
    pages = Pages(rows)
    pieces = []
    for name, found in pages.claimed.items():
        grid = markdown.grid(list(COLUMNS), [[cell.text for cell in row] for row in claims_table(found).rows])
        pieces.append(f"## Claims of the papers on {markdown.plain(name)}\n\n{grid}")
    return [export.write_text(out, "\n\n".join([*pieces, markdown.render(pages.rows, pages.table, pages.older)]))]


# format -> what writes it
FORMATS: dict[str, Callable[[Sequence[Row], Path], list[Path]]] = {
    "html": html, "png": png, "csv": csv, "json": json, "md": md,
}  # fmt: skip
