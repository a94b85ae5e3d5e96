"""Draws figures with matplotlib: a panel on axes, a figure as PNG and SVG files, a panel as SVG for the page."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure as Canvas
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.text import Text

from glabench.report import bars, nights, roofline, scatters, style, ticks
from glabench.report.model import Figure, Panel, Point, Series
from glabench.report.style import AXIS, INK, RULE
from glabench.report.svg import Hit, hit, inline

WIDTH, HEIGHT = 4.0, 2.95  # of a panel, inches; text is sized so that it still reads when that is a phone's width
ENTRY, LETTER = 0.72, 0.067  # of a legend's entry: its line with the room around it, and a letter on average, inches
LINE = 0.16  # of the name of a category, inches
PAD = 3.0  # around a panel, points, of which a figure's units have one each
HEADLINE = 0.18  # a line of a figure's title, inches
SPREAD = 0.03  # intervals narrower than this share of the value are thinner than the marker, and are not drawn
SETTINGS = {
    "font.family": ["DejaVu Sans"], "font.size": 9, "axes.edgecolor": AXIS.light, "axes.linewidth": 0.7,
    "axes.labelcolor": INK.light, "text.color": INK.light, "xtick.color": AXIS.light, "ytick.color": AXIS.light,
    "xtick.labelcolor": INK.light, "ytick.labelcolor": INK.light, "axes.spines.top": False,
    "axes.spines.right": False, "svg.fonttype": "none", "svg.hashsalt": "glabench", "lines.linewidth": 1.6,
    "lines.markersize": 5.0, "xtick.major.size": 3, "ytick.major.size": 0, "figure.dpi": 72,
}  # fmt: skip


@contextmanager
def settings() -> Iterator[None]:
    """matplotlib's settings for our figures, put back afterwards."""
    with matplotlib.rc_context(SETTINGS):  # type: ignore[arg-type]  # its keys are typed one by one
        yield


def write(figure: Figure, folder: Path) -> list[Path]:
    """Writes ``figure`` as <name>.png (220 dpi) and <name>.svg (text stays text, points have titles) into ``folder``.

    Raises:
        OSError: the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{figure.name}.png", folder / f"{figure.name}.svg"]
    with settings():
        canvas = whole(figure)
        canvas.savefig(paths[0], dpi=220, facecolor="white")
        # Without a date, the same rows give the same file.
        canvas.savefig(paths[1], facecolor="white", metadata={"Date": None, "Title": figure.title})
    return paths


def panel_svg(panel: Panel, name: str, figure: str = "") -> str:
    """``panel`` of the figure of that title as an <svg> for the page: colours are CSS variables, ids start with
    ``name``, points carry titles."""
    with settings():
        canvas = Canvas(figsize=(WIDTH, _height(panel)))
        FigureCanvasSVG(canvas)  # whose measures of text the layout goes by
        axes = canvas.add_subplot()
        title = draw(axes, panel)
        _fill(axes)
        _fit(axes, title)
        buffer = io.StringIO()
        canvas.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
        hits = bars.hits(axes, panel) if panel.stacked else _hits(axes, panel)
    return inline(buffer.getvalue(), name, ": ".join(filter(None, (figure, panel.title, panel.value_label))), hits)


def whole(figure: Figure) -> Canvas:
    """All panels side by side, at most three in a row, under the title and above the legend."""
    columns = min(3, len(figure.panels))
    rows = math.ceil(len(figure.panels) / columns)
    tallest = max(_height(panel) for panel in figure.panels)
    entries_wide = _legend_columns([title for _, title in figure.keys], columns)
    entries = 0.22 * math.ceil(len(figure.keys) / entries_wide)
    canvas = Canvas(figsize=(WIDTH * columns, tallest * rows + 0.45 + entries), layout="constrained")
    _headline(canvas, figure.title)
    titles = [draw(canvas.add_subplot(rows, columns, i), panel) for i, panel in enumerate(figure.panels, 1)]
    handles = [_legend_line(key, title, figure.stacked) for key, title in figure.keys]
    canvas.legend(handles=handles, loc="outside lower left", ncols=entries_wide, frameon=False, handlelength=3)
    ConstrainedLayoutEngine().execute(canvas)
    canvas.set_layout_engine("none")  # it would lay out and draw everything once more for each file
    for axes, title in zip(canvas.axes, titles, strict=True):
        _fit(axes, title)
    return canvas


def _headline(canvas: Canvas, title: str) -> None:
    """The figure's title, in as many lines as it takes; the figure grows by those after the first."""
    words = canvas.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
    wide = words.get_window_extent().width / (0.98 * canvas.bbox.width)
    if wide > 1:
        words.set_text(textwrap.fill(title, int(len(title) / wide)))
        canvas.set_figheight(canvas.get_figheight() + HEADLINE * words.get_text().count("\n"))


def _fill(axes: Axes) -> None:
    """Makes the only axes of a figure fill it, what stands around them included. matplotlib's layout measures twice,
    for names of ticks that grow with the axes: ours do not, and to measure is most of what a panel takes."""
    taken, inner, whole = axes.get_tightbbox(for_layout_only=True), axes.get_window_extent(), axes.figure.bbox
    assert taken is not None
    left, bottom = inner.x0 - taken.x0 + PAD, inner.y0 - taken.y0 + PAD
    right, top = taken.x1 - inner.x1 + PAD, taken.y1 - inner.y1 + PAD
    width, height = whole.width - left - right, whole.height - bottom - top
    axes.set_position((left / whole.width, bottom / whole.height, width / whole.width, height / whole.height))


def _fit(axes: Axes, title: Text) -> None:
    """Mends what only a layout shows: names of ticks that touch, and a title or the name of an axis that sticks out of
    the panel to the right, as they do where long categories leave little width. It moves left, where there is room."""
    ticks.thin(axes.xaxis)
    place = axes.get_subplotspec()
    assert place is not None
    end = axes.figure.bbox.width * place.colspan.stop / place.get_gridspec().ncols
    for words in (title, axes.xaxis.label):
        over = words.get_window_extent().x1 - end
        if over > 0:
            words.set_x(words.get_position()[0] - over / axes.bbox.width)


def _legend_columns(titles: Sequence[str], panels: int) -> int:
    """Two entries to a panel, or as many as fit side by side; a legend is filled column by column."""
    for count in range(min(2 * panels, len(titles)), 1, -1):
        least, longer = divmod(len(titles), count)
        ends = list(accumulate(least + (i < longer) for i in range(count)))
        groups = [titles[start:end] for start, end in zip([0, *ends], ends, strict=False)]
        if sum(ENTRY + LETTER * max(map(len, group)) for group in groups) <= WIDTH * panels:
            return count
    return 1


def _legend_line(key: str, title: str, area: bool) -> Line2D:
    look = style.style(key)
    if area:
        return Line2D([], [], color=look.colour.light, marker="s", markersize=7, linestyle="none", label=title)
    return Line2D(
        [], [], color=look.colour.light, marker=look.marker or "none", linestyle=look.line, label=title,
        markerfacecolor=look.colour.light if look.filled else "white",
    )  # fmt: skip


def _height(panel: Panel) -> float:
    """In inches; a category gets room for all its series, one beside the other."""
    if panel.roofs:
        return roofline.HEIGHT
    if panel.nights:
        return nights.HEIGHT
    if not panel.categories:
        return HEIGHT
    if panel.stacked:
        return bars.height(panel)
    lines = max(name.count("\n") + 1 for name in panel.categories)
    return max(1.5, 0.95 + len(panel.categories) * max(0.16 + 0.055 * len(panel.series), LINE * lines))


def draw(axes: Axes, panel: Panel) -> Text:
    """Draws ``panel`` on ``axes``: lines over a length or over nights, dots or bars by category, a scatter, or a
    roofline. Returns its title."""
    pad = 7 if panel.categories else 17
    # At y: else matplotlib measures all names of ticks anew, lest one above the axes, which none has, is in its way.
    title = axes.set_title(panel.title, loc="left", fontsize=10, fontweight="bold", pad=pad, y=1.0)
    if panel.stacked:
        bars.draw(axes, panel)
    elif panel.categories:
        _dots(axes, panel)
    elif panel.roofs:
        roofline.draw(axes, panel)
    elif panel.scatter:
        scatters.scatter(axes, panel)
    elif panel.front:
        scatters.front(axes, panel)
    elif panel.nights:
        nights.draw(axes, panel)
    else:
        _lines(axes, panel)
    return title


def _lines(axes: Axes, panel: Panel) -> None:
    # The unit stands above the axis and upright: it reads without turning the head, and leaves width to the data.
    axes.annotate(panel.value_label, (0, 1), (0, 5), "axes fraction", textcoords="offset points", fontsize=8.5)
    axes.set_xlabel(panel.at_label, fontsize=8.5)
    axes.grid(True, axis="y", color=RULE.light, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.set_xscale("log", base=2)
    axes.set_yscale("linear" if panel.linear else "log")
    for series in panel.series:
        look = style.style(series.key)
        colour = look.colour.light
        at, value = [p.at for p in series.points], [p.value for p in series.points]
        (line,) = axes.plot(
            at, value, color=colour, marker=look.marker or "none", linestyle=look.line, markeredgecolor=colour,
            zorder=2 if look.marker else 1.5, markerfacecolor=colour if look.filled else "white",
        )  # fmt: skip
        line.set_gid(f"series:{series.key}")
        _intervals(axes, series, upright=True)
    if panel.reference:
        axes.axhline(panel.reference[0], color=AXIS.light, linewidth=1.1, zorder=1)
    ats = sorted({p.at for s in panel.series for p in s.points})
    axes.margins(x=0.04, y=0.08)
    ticks.place(axes.xaxis, *ticks.lengths(ats))
    if panel.linear and panel.value_range:
        low, high = panel.value_range
        room = 0.03 * (high - low)  # for markers at either end
        axes.set_ylim(low - room, high + room)
        ticks.place(axes.yaxis, *ticks.round_values(low, high))
        return
    if panel.value_range:
        low, high = panel.value_range
        axes.set_ylim(low / 1.08, high * 1.08)
    axes.set_ylim(ticks.widen(axes.get_ylim()))
    ticks.place(axes.yaxis, *ticks.values(*axes.get_ylim()))


def _dots(axes: Axes, panel: Panel) -> None:
    axes.set_xlabel(panel.value_label, fontsize=8.5)
    axes.set_xscale("log")
    axes.grid(True, axis="x", color=RULE.light, linewidth=0.7)
    for edge in range(1, len(panel.categories)):
        axes.axhline(edge - 0.5, color=RULE.light, linewidth=0.7, zorder=0.5)
    axes.set_axisbelow(True)
    for series in _apart(panel.series):
        look = style.style(series.key)
        colour = look.colour.light
        (line,) = axes.plot(
            [p.value for p in series.points], [p.at for p in series.points], color=colour, linestyle="none",
            marker=look.marker or "|", markerfacecolor=colour if look.filled else "white", markeredgecolor=colour,
            markersize=5.5,
        )  # fmt: skip
        line.set_gid(f"series:{series.key}")
        _intervals(axes, series, upright=False)
    if panel.reference:
        axes.axvline(panel.reference[0], color=AXIS.light, linewidth=1.1, zorder=1)
    axes.set_ylim(len(panel.categories) - 0.5, -0.5)  # the first category on top
    ticks.place(axes.yaxis, list(range(len(panel.categories))), list(panel.categories))
    axes.margins(x=0.06)
    if panel.value_range:
        low, high = panel.value_range
        room = max(high / low, 1.1) ** 0.06
        axes.set_xlim(low / room, high * room)
    axes.set_xlim(ticks.widen(axes.get_xlim()))
    ticks.place(axes.xaxis, *ticks.values(*axes.get_xlim(), most=6))
    axes.tick_params(axis="y", labelsize=8)


def _apart(found: Sequence[Series]) -> list[Series]:
    """The series of a dot plot, each a little above or below the middle of its category, so that none hides another."""
    room = 0.62 if len(found) > 2 else 0.25
    step = room / max(1, len(found) - 1)
    shifts = [(i - (len(found) - 1) / 2) * step for i in range(len(found))]
    return [
        replace(series, points=tuple(replace(p, at=p.at + shift) for p in series.points))
        for series, shift in zip(found, shifts, strict=True)
    ]


def _intervals(axes: Axes, series: Series, upright: bool) -> None:
    """Intervals wide enough to be seen, as bars with caps."""
    wide = [p for p in series.points if p.high - p.low > SPREAD * p.value]  # False for NaN
    if not wide:
        return
    ends = [[p.value - p.low for p in wide], [p.high - p.value for p in wide]]
    at, value = [p.at for p in wide], [p.value for p in wide]
    x, y, across, along = (at, value, None, ends) if upright else (value, at, ends, None)
    bars = axes.errorbar(x, y, xerr=across, yerr=along, fmt="none", ecolor=style.style(series.key).colour.light,
                         elinewidth=1, capsize=2.5, zorder=1.8)  # fmt: skip
    for artist in bars.get_children():
        artist.set_gid(f"series:{series.key}")


def _hits(axes: Axes, panel: Panel) -> list[Hit]:
    placed = _apart(panel.series) if panel.categories else panel.series
    return [_hit(axes, panel, s, p) for s in placed for p in s.points if p.tip]


def _hit(axes: Axes, panel: Panel, series: Series, point: Point) -> Hit:
    x, y = (point.value, point.at) if panel.categories else (point.at, point.value)
    return hit(axes, x, y, series.key, point.tip)
