"""How every system looks in every figure: colour, marker and line, on a light and on a dark page.

The colours are those of Okabe and Ito (https://jfly.uni-koeln.de/color/), chosen for people who see red and green
alike; some are darkened to be legible on white, and there are more of them than those eight, so that not every pair is
far apart to every eye. Colour says the family, marker and line say which member, so that a figure still reads when
printed in grey. On the page every colour is a CSS variable with a dark counterpart.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from glabench.analysis import labels


@dataclass(frozen=True)
class Colour:
    """A named colour as it is on white and on a dark page."""

    name: str  # the CSS variable is --c-<name>
    light: str
    dark: str


VERMILLION = Colour("vermillion", "#d55e00", "#ff8b45")
BLUE = Colour("blue", "#0072b2", "#6aa9ff")
GREEN = Colour("green", "#009e73", "#2fd0a0")
PURPLE = Colour("purple", "#b0578d", "#e79ac6")
ORANGE = Colour("orange", "#e69f00", "#f5b83d")
SKY = Colour("sky", "#3f9fd6", "#84dcfb")
OLIVE = Colour("olive", "#8a7d00", "#a89f2a")
INK = Colour("ink", "#1b1f24", "#eceff3")
GREY = Colour("grey", "#747b84", "#a8afb8")
RULE = Colour("rule", "#e1e5ea", "#2d343c")
AXIS = Colour("axis", "#8b929b", "#7d8691")
COLOURS = (VERMILLION, BLUE, GREEN, PURPLE, ORANGE, SKY, OLIVE, INK, GREY, RULE, AXIS)


@dataclass(frozen=True)
class Style:
    """One curve's look, in matplotlib's terms; ``filled`` is whether its markers are."""

    colour: Colour
    marker: str
    dashes: tuple[float, ...] = ()  # lengths of dash, gap, dash ... in line widths; () is solid
    filled: bool = True

    @property
    def line(self) -> Literal["-"] | tuple[float, tuple[float, ...]]:
        """matplotlib's linestyle."""
        return (0.0, self.dashes) if self.dashes else "-"


_DOT = (1.2, 1.8)
_DASH = (5.0, 2.2)
_DASH_DOT = (5.0, 2.0, 1.2, 2.0)

STYLES: dict[str, Style] = {
    "gla:wo": Style(VERMILLION, "o"),
    "gla:w": Style(BLUE, "s"),
    "gla": Style(GREEN, "D"),
    "gla_recurrent": Style(PURPLE, "^"),
    "fla": Style(ORANGE, "v", _DASH),
    "fla_recurrent": Style(ORANGE, "<", _DASH_DOT, False),
    "fla_linear": Style(ORANGE, ">", _DOT, False),
    "simple_gla": Style(SKY, "o"),
    "fla_simple": Style(SKY, "v", _DASH),
    "retention": Style(SKY, "s", (), False),
    "fla_retention": Style(SKY, ">", _DASH_DOT, False),
    "mlstm_tfla": Style(SKY, "*", _DOT),
    "mamba2_ssd": Style(SKY, "^", _DASH),
    "helion": Style(OLIVE, "d", _DASH_DOT),
    "jla": Style(SKY, "<", _DASH),
    "jla_simple": Style(SKY, "d", _DASH_DOT),
    "tileops": Style(OLIVE, "s", _DOT),
    "recurrent_torch": Style(PURPLE, "^", _DOT, False),
    "chunkwise_torch": Style(GREEN, "D", _DOT, False),
    "parallel_torch": Style(OLIVE, "h", _DOT, False),
    "recurrent_hbm": Style(PURPLE, "H", _DASH),
    "scan": Style(SKY, "<", _DASH_DOT, False),
    "chunkwise_direct": Style(GREEN, "s", _DASH),
    "parallel_triton": Style(OLIVE, "h", _DASH_DOT),
    "lightning2": Style(SKY, "d", _DOT),
    "mamba_scan": Style(GREY, "v", _DASH, False),
    "fa2": Style(INK, "P", _DASH),
    "fa3": Style(INK, "X", _DASH_DOT),
    "fa4": Style(INK, "D", _DOT),
    "cudnn": Style(GREY, "X", _DASH_DOT),
    "flex": Style(GREY, "P", _DOT, False),
    "sdpa": Style(SKY, "p", _DASH),
    "floor": Style(AXIS, "", _DOT),
}

# Tunings are drawn in figures of their own: the passes of a plan, directions, and strategies with their typical and
# their worst case.
TUNING: dict[str, Style] = {
    "states": Style(BLUE, "s"),
    "output": Style(VERMILLION, "o"),
    "walk": Style(OLIVE, "<"),
    "grad_states": Style(SKY, "D"),
    "grad_q": Style(GREEN, "^"),
    "grad_k": Style(PURPLE, "v"),
    "grad_qk": Style(PURPLE, "h"),
    "grad_v": Style(ORANGE, "P"),
    "grad_walk": Style(GREY, ">"),
    "plan": Style(INK, "X"),
    "fwd": Style(VERMILLION, "o"),
    "bwd": Style(BLUE, "s"),
    "model": Style(VERMILLION, "o"),
    "halving": Style(BLUE, "s"),
    "tpe": Style(PURPLE, "^"),
    "exhaustive": Style(GREY, "D"),
    "model:worst": Style(VERMILLION, "o", _DASH, False),
    "halving:worst": Style(BLUE, "s", _DASH, False),
    "tpe:worst": Style(PURPLE, "^", _DASH, False),
    "exhaustive:worst": Style(GREY, "D", _DASH, False),
}
# Profiles: passes look as they do in tunings; what else a call's time and its memory consist of.
PROFILE: dict[str, Style] = {
    "combine": Style(INK, "p"),
    "other": Style(OLIVE, "*"),
    "gaps": Style(AXIS, "X"),
    "intra": Style(VERMILLION, "o"),
    "inter": Style(BLUE, "s"),
    "memory:inputs": Style(GREY, "s"),
    "memory:outputs": Style(VERMILLION, "s"),
    "memory:gradients": Style(ORANGE, "s"),
    "memory:states": Style(BLUE, "s"),
    "memory:saved": Style(GREEN, "s"),
    "memory:workspace": Style(INK, "s"),
}
# Language models, which stand in figures of their own.
MODELS: dict[str, Style] = {
    "gla_lm:wo": Style(VERMILLION, "o"),
    "gla_lm:w": Style(BLUE, "s"),
    "gla_lm:re": Style(PURPLE, "^"),
    "gla_lm": Style(GREEN, "D"),
    "gla_lm_fla": Style(ORANGE, "v", _DASH),
    "retnet_lm": Style(SKY, "s", (), False),
    "linear_lm": Style(SKY, "o"),
    "mamba2_lm": Style(GREY, "v", _DASH, False),
    "transformer_lm": Style(INK, "P", _DASH),
}
# Training steps: the groups of kernels that their time goes to.
TRAINING: dict[str, Style] = {
    "step:operator": Style(VERMILLION, "s"),
    "step:matrix products": Style(BLUE, "s"),
    "step:compiled, not products": Style(SKY, "s"),
    "step:elementwise, reductions and copies": Style(GREEN, "s"),
    "step:norms": Style(OLIVE, "s"),
    "step:loss": Style(PURPLE, "s"),
    "step:optimizer": Style(ORANGE, "s"),
    "step:other": Style(GREY, "s"),
}
# What the papers print, beside what was measured; and the schedules that nothing beats.
PAPERS: dict[str, Style] = {
    "printed:gla": Style(AXIS, "D", _DOT, False),
    "printed:fa2": Style(AXIS, "P", _DOT, False),
    "printed:intra": Style(AXIS, "o", _DOT, False),
    "printed:inter": Style(AXIS, "s", _DOT, False),
    "printed:ratio": Style(AXIS, "X", _DOT, False),
    "whole": Style(INK, "X"),
    "front": Style(INK, "", _DOT),
}
# Trends: nights, the levels that they keep, and where these change.
TREND: dict[str, Style] = {
    "night": Style(GREY, "o"),
    "not compared": Style(AXIS, "X", (), False),
    "level": Style(INK, ""),
    "slower": Style(VERMILLION, "", _DASH),
    "faster": Style(BLUE, "", _DASH),
}
# Models of the figure of recall, each in the look of its operator.
RECALL: dict[str, Style] = {
    "model:fa2": STYLES["fa2"],
    "model:gla": STYLES["gla:wo"],
    "model:gla-recompute": Style(VERMILLION, "o", _DASH, False),
    "model:fla": STYLES["fla"],
    "model:fla-accelerated": Style(ORANGE, "v", _DOT, False),
    "model:mamba2": Style(GREEN, "^", _DASH),
    "model:mamba": STYLES["mamba_scan"],
    "model:retnet": STYLES["retention"],
    "model:linear": Style(PURPLE, "D", _DOT, False),
}
_KINDS = ("o", "s", "D", "v", "^", "P", "X")
_STRANGERS = tuple(Style(colour, "*", _DASH, False) for colour in (GREY, OLIVE, SKY, INK, GREEN))


def style(key: str) -> Style:
    """The look of a variant; attention with other heads than the question's has hollow markers, and so has a kind of
    gates, in a shape of its own. One that is not known gets a star, in the same colour wherever it appears."""
    system = labels.of_system(key)
    if key not in STYLES and system in STYLES and system != key:
        kind = _KINDS[sum(key.encode()) % len(_KINDS)] if labels.family(system) == "gla" else STYLES[system].marker
        return replace(STYLES[system], marker=kind, filled=False)
    return (
        STYLES.get(key)
        or TUNING.get(key)
        or PROFILE.get(key)
        or MODELS.get(key)
        or TRAINING.get(key)
        or PAPERS.get(key)
        or TREND.get(key)
        or RECALL.get(key)
        or _STRANGERS[sum(key.encode()) % len(_STRANGERS)]
    )


def css_variables(dark: bool) -> str:
    """The declarations of --c-<name> for one of the two themes."""
    return "".join(f"--c-{c.name}:{c.dark if dark else c.light};" for c in COLOURS)
