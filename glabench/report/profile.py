"""The report of profiles: one page, its figures, a CSV table, or Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from glabench.analysis.load import Profiled
from glabench.analysis.profile import Call, calls, groups, table
from glabench.errors import UserError
from glabench.report import environments, markdown, page, profile_answers, profile_tables, profile_text, text
from glabench.report.export import beside, drawn, objects, write_text
from glabench.report.figures import all_figures
from glabench.report.headline import Finding
from glabench.report.model import Section
from glabench.report.profile_ceilings import ceilings
from glabench.report.profile_figures import sections
from glabench.report.profile_traces import traces
from glabench.report.tables import Table


def render(profiled: Sequence[Profiled], found: Sequence[Call], figures: Sequence[Section], older: int = 0) -> str:
    """The whole page as text; ``found`` are the calls of ``profiled``, ``figures`` those of ``profile_figures``,
    ``older`` how many rows of the same cases were read besides."""
    rows = [one.row for one in profiled]
    machines = environments.environments(rows)
    return page.fill(
        "profile.html.j2",
        title=text.listing(_names(found)),
        commits=environments.commits(rows),
        started=page.dates(rows),
        total=len(profiled),
        left_out=text.left_out(older),
        predicted=any(call.predicted for call in found),
        measured=any(not call.predicted for call in found),
        answers=_answers(found),
        answer_table=profile_answers.table(found),
        sums=profile_tables.sums(found),
        sections={
            s.name: (s, [page.drawn(s.name, i, f) for i, f in enumerate(s.figures)]) for s in figures if s.figures
        },
        missing=_missing(found, figures),
        traffic=profile_tables.traffic_table(found),
        refused=_refused(found),
        parts=profile_tables.parts(found),
        energy=profile_tables.energy(found),
        memory=profile_tables.memory(found),
        ceilings=ceilings(found),
        kernels=profile_tables.kernels(found),
        directions=len({one.direction for call in found for one in call.kernels}) > 1,
        traces=traces(found),
        notes=profile_tables.notes(found),
        failures=profile_tables.failures(profiled),
        environments=machines,
        mixed=environments.mixed(machines),
    )


def _names(found: Sequence[Call]) -> list[str]:
    return list(dict.fromkeys(call.target for call in found))


def _answers(found: Sequence[Call]) -> list[tuple[str, list[Finding]]]:
    return [(profile_text.group(key), profile_answers.findings(group)) for key, group in groups(found).items()]


def _missing(found: Sequence[Call], figures: Sequence[Section]) -> list[tuple[str, str]]:
    """(what the page could show, what it takes)."""
    said = [(section.title, section.missing) for section in figures if not section.figures]
    if not profile_tables.energy(found).rows:
        said.append(("Energy", "No row has a measured energy. It takes a GPU whose NVML counts it."))
    if not any(call.trace for call in found):
        said.append(("Traces", "No row has a trace. `glabench profile --trace` keeps one of each case."))
    return said


def _refused(found: Sequence[Call]) -> str:
    """Why there are no counters, in one sentence; empty where there are some."""
    if any(one.counters for call in found for one in call.kernels):
        return ""
    reasons = [str(ncu["refused"]) for call in found if (ncu := call.profile.get("ncu")) and ncu.get("refused")]
    if reasons:
        return f"ncu was refused, so the model stands alone: {text.sentence(reasons[0])}"
    return "ncu was not asked for: `glabench profile --ncu` counts the bytes on a GPU."


def html(profiled: Sequence[Profiled], out: Path, older: int = 0) -> list[Path]:
    """The page at ``out`` and its figures (see ``export.beside``); returns the page's path first."""
    found = calls(profiled)
    figures = sections(found)
    return [write_text(out, render(profiled, found, figures, older)), *beside(figures, _names(found), out)]


def png(profiled: Sequence[Profiled], out: Path) -> list[Path]:
    """Every figure as PNG and SVG in the folder ``out``; UserError when the profiles give none."""
    found = calls(profiled)
    figures = sections(found)
    if not all_figures(figures):
        raise UserError("these profiles give no figure: no kernel has a time; try --format md")
    return drawn(figures, _names(found), out)


def csv(profiled: Sequence[Profiled], out: Path) -> list[Path]:
    """The table of ``analysis.profile``, one line a kernel of a case; units are in the names of the columns."""
    return [write_text(out, table(calls(profiled)).to_csv(index=False))]


def json(profiled: Sequence[Profiled], out: Path) -> list[Path]:
    """The same as JSON."""
    return [objects(table(calls(profiled)), out)]


def md(profiled: Sequence[Profiled], out: Path, older: int = 0) -> list[Path]:
    """The answer, the tables and what could not be measured, in GitHub's Markdown."""
    found = calls(profiled)
    pieces = []
    for name, findings in _answers(found):
        said = [f"- **{markdown.plain(f.figure)}** {markdown.plain(f.lead)}. {markdown.plain(f.sentence)}".rstrip()
                for f in findings]  # fmt: skip
        pieces += [f"## {markdown.plain(name)}", "\n".join(said)]
    titled = (
        ("What to improve next", profile_answers.table(found)),
        ("How kernels add up", profile_tables.sums(found)),
        ("Traffic", profile_tables.traffic_table(found)),
        ("Inside and between chunks", profile_tables.parts(found)),
        ("Energy", profile_tables.energy(found)),
        ("Memory", profile_tables.memory(found)),
        *((f"Ceilings: {markdown.plain(one.title)}", one.table) for one in ceilings(found)),
        ("Kernels", profile_tables.kernels(found)),
    )
    pieces += [f"## {title}\n\n{_grid(one)}" for title, one in titled if one.rows]
    noted = [[note, f"{names[0]}{_more(names)}"] for note, names in profile_tables.notes(found)]
    failed = [[f.status, f.system, f"{f.questions[0]}{_more(f.questions)}", f.reason]
              for f in profile_tables.failures(profiled)]  # fmt: skip
    if noted:
        pieces.append("## Notes\n\n" + markdown.grid(["note", "of"], noted))
    if failed:
        pieces.append("## No result, and why\n\n" + markdown.grid(["status", "system", "case", "reason"], failed))
    if older:
        pieces.append(markdown.made_from(len(profiled), older))
    return [write_text(out, "\n\n".join(pieces) + "\n")]


def _more(names: Sequence[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""


def _grid(found: Table) -> str:
    """With headings over several columns, each column says both."""
    over = [title for title, span in found.groups for _ in range(span)] or [""] * len(found.columns)
    head = [f"{title}: {name}" if title else name for title, name in zip(over, found.columns, strict=True)]
    return markdown.grid(head, [[cell.text for cell in row] for row in found.rows])


def formats(older: int) -> dict[str, Callable[[Sequence[Profiled], Path], list[Path]]]:
    """format -> what writes it, where ``older`` rows of the same cases were read besides."""
    return {"html": partial(html, older=older), "png": png, "csv": csv, "json": json, "md": partial(md, older=older)}
