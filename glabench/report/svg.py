"""Makes matplotlib's SVG at home on the page: small, themed by CSS variables, with points that answer a pointer."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape

from matplotlib.axes import Axes

from glabench.report.style import COLOURS

STYLE = r' style="[^"]*"'


@dataclass(frozen=True)
class Hit:
    """A point that shows its values: its place in SVG units, its series, and the text."""

    x: float
    y: float
    series: str
    tip: str


def hit(axes: Axes, x: float, y: float, series: str, tip: str) -> Hit:
    """Where a point of ``axes`` lies in the SVG, whose unit is 1/72 inch with y down."""
    place = axes.transData.transform((x, y))
    figure = axes.get_figure()
    assert figure is not None
    height = figure.get_window_extent().height
    return Hit(float(place[0]), float(height - place[1]), series, tip)


def inline(svg: str, name: str, title: str, hits: list[Hit]) -> str:
    """``svg`` as an element for the page.

    The XML prologue, metadata and comments go; ids and their references start with ``name``, because ids are shared
    by the whole page; hex colours become var(--c-..., hex); series get a data-s attribute so that a legend can hide
    them; ``hits`` become invisible circles whose <title> holds the values, for script and for browsers without.
    """
    body = svg[svg.index("<svg") :]
    body = re.sub(
        r"<metadata>.*?</metadata>|<!--.*?-->|<title>.*?</title>|<style.*?</style>", "", body, flags=re.DOTALL
    )
    body = re.sub(r'<g id="series:([^"]*)"', lambda m: f'<g data-s="{m[1].split(".")[0]}"', body)
    body = re.sub(
        r' id="((?:figure|axes|patch|line2d|text|matplotlib\.axis|xtick|ytick|LineCollection)_\d+)"', "", body
    )
    body = body.replace("xlink:href=", "href=")
    for number, made in enumerate(re.findall(r' id="([^"]*)"', body)):
        body = re.sub(rf'(?<=[#"]){re.escape(made)}(?=[)"])', f"{name}-{number}", body)
    body = re.sub(r"'DejaVu Sans'[^;\"]*", "var(--sans)", body)
    body = body.replace(" font-family: var(--sans);", "")  # it is that of the page
    body = _bare(re.sub(r">\s+<", "><", body))
    body = re.sub(r"(?:<use [^>]*/>){2,}", _once, body)
    body = re.sub(r' transform="rotate\(-?0 [^)]*\)"', "", body)
    for colour in COLOURS:
        body = body.replace(f": {colour.light}", f": var(--c-{colour.name})")
    body = re.sub(r"(fill|stroke): #ffffff", r"\1: var(--card)", body)
    body = re.sub(r' (?:d|x|y)="[^"]*"', lambda m: re.sub(r"(\.\d{2})\d+", r"\1", m[0]), body)
    body = re.sub(r' d="([^"]*)"', lambda m: f' d="{_tight(m[1])}"', body)
    body = re.sub(r'<path d="[^"]*" style="fill: none"/>', "", body)  # grounds that nobody sees
    body = re.sub(
        r'<svg [^>]*?viewBox="([^"]*)"[^>]*>', f'<svg viewBox="\\1" role="img" aria-label="{escape(title)}">', body
    )
    return body.rstrip().removesuffix("</svg>") + _hits(hits) + "</svg>"


def _tight(path: str) -> str:
    """Path data without the room between commands and numbers."""
    return re.sub(r"\s*([A-Za-z])\s*", r"\1", path).strip()


def _bare(body: str) -> str:
    """Without groups that say nothing of what is in them."""
    kept: list[bool] = []  # of each group that is open
    pieces = []
    for piece in re.split(r"(<g(?: [^>]*)?>|<g/>|</g>)", body):
        if piece == "</g>":
            says = kept.pop()
        elif re.fullmatch(r"<g(?: [^>]*)?/>", piece):
            says = False
        else:
            says = piece != "<g>"
            if piece.startswith(("<g>", "<g ")):
                kept.append(says)
        pieces += [piece] if says else []
    return "".join(pieces)


def shared(page: str) -> str:
    """The page with the styles that its drawings repeat said once, as classes in its head."""
    drawing = re.compile(r"<svg viewBox.*?</svg>", re.DOTALL)
    found = Counter(style for svg in drawing.findall(page) for style in re.findall(STYLE, svg))
    classes = {style: f"l{i}" for i, (style, count) in enumerate(found.most_common()) if count > 1}
    if not classes:
        return page
    rules = "".join(
        f".{name}{{{style[8:-1].replace(': ', ':').replace('; ', ';')}}}" for style, name in classes.items()
    )
    page = drawing.sub(lambda svg: re.sub(STYLE, lambda m: _as_class(m[0], classes), svg[0]), page)
    return page.replace("</head>", f'<style id="looks">{rules}</style>\n</head>', 1)


def _as_class(style: str, classes: Mapping[str, str]) -> str:
    return f' class="{classes[style]}"' if style in classes else style


def _once(marks: re.Match[str]) -> str:
    """Marks of one style, with the style said once."""
    styles = set(re.findall(STYLE, marks[0]))
    return f"<g{styles.pop()}>{re.sub(STYLE, '', marks[0])}</g>" if len(styles) == 1 else marks[0]


def _hits(hits: list[Hit]) -> str:
    circles = "".join(
        f'<circle class="hit" data-s="{escape(h.series)}" cx="{h.x:.1f}" cy="{h.y:.1f}" r="6">'
        f"<title>{escape(h.tip)}</title></circle>"
        for h in hits
    )
    return f"<g>{circles}</g>"
