"""Numbers and shapes as a person writes them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from glabench.analysis import labels, tuning
from glabench.spec.axes import AXES, BESIDE, FURTHER

NO_LIMIT = 255  # registers of a thread in a tile that asks for no fewer


def number(value: float | None, digits: int = 3) -> str:
    """At least ``digits`` significant digits, no exponent, thousands set apart: 0.0123, 1.23, 12,300. "–" for NaN."""
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(decimals, 9)}f}"


def span(values: Sequence[float], said: Callable[[float], str]) -> str:
    """From the least to the most, "1.13× to 2.40×"; one where they are said alike."""
    return " to ".join(dict.fromkeys([said(min(values)), said(max(values))]))


def duration(ms: float) -> str:
    """A time with its unit: 1.23 ms, and below a tenth of a millisecond 45.6 µs."""
    return f"{number(ms * 1e3)} µs" if ms < 0.1 else f"{number(ms)} ms"


def times(value: float) -> str:
    """A ratio: 1.83×, 12.4×, 340×."""
    return f"{number(value, 3 if value >= 1 else 2)}×"


def length(tokens: float) -> str:
    """1024 -> 1k, 16384 -> 16k, 3001 -> 3001."""
    whole = int(tokens)
    return f"{whole // 1024}k" if whole >= 1024 and whole % 1024 == 0 else str(whole)


def rate(per_second: float) -> str:
    """Tokens per second: 13.6 M, 850 k."""
    if math.isnan(per_second):
        return "–"
    for unit, name in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if per_second >= unit:
            return f"{number(per_second / unit, 3)}{name}"
    return number(per_second, 3)


def heads(row: Mapping[str, Any]) -> str:
    """H, K and V: "4 heads of 128×256", "16 heads of 64"."""
    size = f"{int(row['K'])}" if row["K"] == row["V"] else f"{int(row['K'])}×{int(row['V'])}"
    return f"{int(row['H'])} head{'s' if row['H'] != 1 else ''} of {size}"


def shape(row: Mapping[str, Any]) -> str:
    """A shape for an axis: "B2 T16k H16 128", with V where it differs from K; "B1 T8k H96 128 packed uniform:8"; with
    "H64/1" for 64 heads of v that share one of q and k."""
    return f"{plain(row)}{further(row)}"


def plain(row: Mapping[str, Any]) -> str:
    """A shape's sizes: "B2 T16k H64/1 128"."""
    size = f"{int(row['K'])}" if row["K"] == row["V"] else f"{int(row['K'])}×{int(row['V'])}"
    batch, tokens, heads = f"{int(row['B'])}", length(row["T"]), f"{int(row['H'])}"
    sizes = {"B": batch, "T": tokens, "H": heads}
    return " ".join([*(f"{name}{said}{beside(row, name)}" for name, said in sizes.items()), size])


def beside(row: Mapping[str, Any], size: str) -> str:
    """What axes say of one of a shape's sizes, to stand after it: "/1" after the heads of v that share one of q and
    k. Nothing where they have their defaults."""
    return "".join(AXES[name].mark.format(row[name]) for name in BESIDE if row.get(name) and AXES[name].beside == size)


def further(row: Mapping[str, Any]) -> str:
    """What axes say of a shape besides, to stand after it, as how sequences are packed; nothing where they have their
    defaults."""
    return "".join(f" {AXES[name].words(row[name])}" for name in FURTHER if row.get(name))


def workload(work: Mapping[str, Any]) -> str:
    """A workload of the tuner: "B2 T16k H16 128, bf16, backward", and the schedule where it asks for one."""
    schedule = tuning.asked(work)
    said = f"{shape(work)}, {work['dtype']}{gates(work)}, {mode(work['direction'])}"
    return f"{said}, {schedule}" if schedule else said


def gates(work: Mapping[str, Any]) -> str:
    """The gates of a workload of the tuner, to stand after its dtype: ", no gates", ", gates in fp32" or nothing."""
    if not work["gated"]:
        return ", no gates"
    return f", gates in {work['gate_dtype']}" if work.get("gate_dtype") else ""


def tile(values: Sequence[int]) -> str:
    """A tile of a record: "32x64, 4 warps, 1 stage", and what is special about it. Older records say less."""
    block_k, block_v, warps, stages, *more = values
    registers, descriptors, hopper = [*more, *(NO_LIMIT, False, False)[len(more) :]]
    limit = "" if registers == NO_LIMIT else f", {registers} registers"
    moved = ", Hopper's kernel" if hopper else ", by descriptors" if descriptors else ""
    return f"{block_k}x{block_v}, {count(warps, 'warp')}, {count(stages, 'stage')}{limit}{moved}"


def mode(name: str) -> str:
    return labels.MODE_TITLES.get(name, name)


def timed(clock: object) -> str:
    """What a clock's times are of: "kernels" (the GPU's work on what a call queued) or "eager calls" (all of a call, by
    the host's clock, as on a CPU)."""
    return "eager calls" if "wall" in str(clock) else "kernels"


def count(amount: int, noun: str, plural: str | None = None) -> str:
    """1 question, 2 questions."""
    return f"{amount:,} {noun if amount == 1 else plural or noun + 's'}"


def left_out(older: int) -> str:
    """What a page says after the rows that it is made from: "; 16 other rows of the same cases are left out"."""
    if older < 1:
        return ""
    return f"; {count(older, 'other row')} of the same {'case is' if older == 1 else 'cases are'} left out"


def sentence(words: str) -> str:
    """``words`` with a full stop, unless an abbreviation at its end brought one: "faster than GLA with states"."""
    return words if words.endswith(".") else f"{words}."


def power(value: float) -> str:
    """A small number as 2.1e-3."""
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def listing(names: list[str]) -> str:
    """a, b and c."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else "nothing"
