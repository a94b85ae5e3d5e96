"""The answer of a profile: which kernel to improve next, by how much at most, and how far numbers can be trusted."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from statistics import median

from glabench.analysis import labels
from glabench.analysis.bounds import ratio
from glabench.analysis.profile import Call, Part, groups
from glabench.analysis.traffic import AGREES, Traffic, traffic
from glabench.report import profile_text, text
from glabench.report.headline import Finding
from glabench.report.tables import Cell, Table, number_cell

ADDS_UP = 0.05  # how far the kernels' sum may be from the measured time

Piece = tuple[Call, Part]


def findings(found: Sequence[Call]) -> list[Finding]:
    """What the calls of one GPU, all measured or all predicted, come to; never empty."""
    said = [*_next(found), *_floors(found), *_binding(found), *_sums(found), *_traffic(found), *_predicted(found)]
    return said or [Finding("0", "kernels with a time", "Nothing can be said of where the time goes.")]


def pieces(found: Sequence[Call]) -> list[Piece]:
    """(call, one direction of it), of those with a time."""
    return [(call, part) for call in found for part in call.parts if part.ms > 0]


def _directions(found: Sequence[Call]) -> list[tuple[str, list[Piece]]]:
    all_of = pieces(found)
    groups_of = {mode: [piece for piece in all_of if piece[1].direction == mode] for mode in labels.MODE_ORDER}
    return [(mode, group) for mode, group in groups_of.items() if group]


def _next(found: Sequence[Call]) -> list[Finding]:
    """A finding a direction: the kernel that most of its cases should improve next."""
    said = []
    for mode, group in _directions(found):
        named = [(call, part, part.next) for call, part in group if part.next is not None]
        if not named:
            continue
        (name, count), *_ = Counter(profile_text.kernel(one) for _, _, one in named).most_common()
        mine = [(call, part, one) for call, part, one in named if profile_text.kernel(one) == name]
        call, _, one = max(mine, key=lambda piece: piece[1].gain)
        where = f" in {count} of {len(group)} cases" if len(group) > 1 else ""
        gains = [f"{part.gain:.0%}" for _, part, _ in mine]
        span = f"{min(gains, key=_percent)} to {max(gains, key=_percent)}" if len(set(gains)) > 1 else gains[0]
        assert one.binding is not None
        said.append(
            Finding(
                name,
                f"is the kernel to improve next, {text.mode(mode)}{where}",
                f"It can win at most {span} of the kernels' time; the most at {profile_text.case(call.case)}, where it "
                f"takes {text.number(one.ms)} ms and {profile_text.RESOURCE[one.binding]} would allow "
                f"{text.number(one.bound_ms)} ms.",
            )
        )
    return said


def _percent(words: str) -> float:
    return float(words.rstrip("%"))


def _floors(found: Sequence[Call]) -> list[Finding]:
    said = []
    for mode, group in _directions(found):
        over = [(ratio(part.ms, part.floor_ms), call) for call, part in group]
        over = [(value, call) for value, call in over if value > 0]
        if over:
            least, most = min(over, key=lambda pair: pair[0]), max(over, key=lambda pair: pair[0])
            span = (
                f"From {text.times(least[0])} at {profile_text.case(least[1].case)} to {text.times(most[0])} at "
                f"{profile_text.case(most[1].case)}"
            )
            rest = f" {text.sentence(span)}" if text.times(least[0]) != text.times(most[0]) else ""
            lead = f"the HBM floor: kernels of the {text.mode(mode)}" + (" (median)" if len(over) > 1 else "")
            floor = "The floor reads every input once and writes every output once, at the speed of a copy."
            said.append(Finding(text.times(median(value for value, _ in over)), lead, f"{floor}{rest}"))
    return said


def _binding(found: Sequence[Call]) -> list[Finding]:
    known = [one for call in found for one in call.kernels if one.binding and one.ms > 0]
    if not known:
        return []
    counts = Counter(str(one.binding) for one in known)
    (name, count), *others = counts.most_common()
    reached = [min(1.0, one.bound_ms / one.ms) for one in known]
    rest = ", ".join(f"{profile_text.RESOURCE[other]} {n}" for other, n in others)
    words = profile_text.RESOURCE[name]
    lead = f"is what the work of {count} of {text.count(len(known), 'kernel')} needs longest"
    others_too = f"; others: {rest}" if rest else ""
    sentence = f"Kernels run at {median(reached):.0%} of what binds them (median){others_too}."
    return [Finding(words[0].upper() + words[1:], lead, sentence)]


def _sums(found: Sequence[Call]) -> list[Finding]:
    """Whether the kernels add up to what a sweep measures."""
    timed = [call for call in found if not math.isnan(call.covered)]
    if not timed:
        return []
    worst = max(timed, key=lambda call: abs(1 - call.covered))
    off = sum(abs(1 - call.covered) > ADDS_UP for call in timed)
    gaps = [1e3 * call.gaps_ms for call in timed if not math.isnan(call.gaps_ms)]
    said = [f"Farthest off is {profile_text.asked(worst)} with {worst.covered:.1%}" if len(timed) > 1 else ""]
    said.append(f"launch gaps are {text.number(median(gaps))} µs a call" if gaps else "")
    said.append(f"{text.count(off, 'case is', 'cases are')} off by more than {ADDS_UP:.0%}" if off else "")
    outweigh = [call for call in timed if _gaps_outweigh(call)]
    if outweigh:
        where = profile_text.asked(outweigh[0]) + (f" and {len(outweigh) - 1} more" if len(outweigh) > 1 else "")
        said.append(f"gaps outweigh what any kernel could win at {where}")
    sentence = "; ".join(clause for clause in said if clause)
    middle = median(call.covered for call in timed)
    lead = "of the measured time is in kernels" + (" (median)" if len(timed) > 1 else "")
    return [Finding(f"{middle:.1%}", lead, f"{sentence[:1].upper()}{sentence[1:]}." if sentence else "")]


def _gaps_outweigh(call: Call) -> bool:
    slacks = [one.slack_ms for one in call.kernels if one.slack_ms > 0]
    return call.gaps_ms > max(slacks, default=math.inf)


def _traffic(found: Sequence[Call]) -> list[Finding]:
    counted = [one for one in traffic(found) if not math.isnan(one.difference)]
    if not counted:
        return []
    agree = [one for one in counted if abs(one.difference) <= AGREES]
    lead = f"kernels moved what the model expects, within {AGREES:.0%}, by the counters of ncu"
    if len(agree) == len(counted):
        worst = max(counted, key=lambda one: abs(one.difference))
        return [Finding(f"{len(agree)} of {len(counted)}", lead, f"The farthest: {_told(worst)}.")]
    worst = max((one for one in counted if one not in agree), key=lambda one: abs(one.difference))
    return [Finding(f"{len(agree)} of {len(counted)}", lead, f"The farthest: {_told(worst)}. The table has the rest.")]


def _told(one: Traffic) -> str:
    where = f"{profile_text.kernel(one.kernel)}, {profile_text.asked(one.call)}, {100 * one.difference:+.1f} %"
    why = profile_text.explained(one)
    return f"{where}: {why}" if why else where


def _predicted(found: Sequence[Call]) -> list[Finding]:
    if not any(call.predicted and call.kernels_ms > 0 for call in found):
        return []
    source = found[0].ceilings.get("source")
    ceilings = {"datasheet": "of its datasheet", "measured": "measured on one elsewhere"}.get(str(source), "unknown")
    sentence = f"The GPU was not here: times are those of the cost model, ceilings are {ceilings}."
    return [Finding("predicted", "are the times, not measured", sentence)]


def table(found: Sequence[Call]) -> Table:
    """One line a case and direction: the kernel to improve next, and what that can win at most."""
    many = len(groups(found)) > 1
    word = "predicted, ms" if all(call.predicted for call in found) else "kernels, ms"
    columns = ["case", "direction", *(["GPU"] if many else []), "improve next", "win at most, ms", "win at most %",
               "takes, ms", "share %", "bound by", "bound, ms", "then", word, "floor, ms", "× floor"]  # fmt: skip
    words = {"GPU", "case", "direction", "improve next", "bound by", "then"}
    rows = [
        (
            Cell(profile_text.case(call.case)),
            Cell(f"{text.mode(part.direction)}{' (of both)' if len(call.parts) > 1 else ''}"),
            *((Cell(profile_text.group(call.group)),) if many else ()),
            *_next_cells(part),
            number_cell(part.ms),
            number_cell(part.floor_ms),
            number_cell(ratio(part.ms, part.floor_ms)),
        )
        for call, part in pieces(found)
    ]
    return Table(tuple(columns), tuple(column not in words for column in columns), tuple(rows))


def _next_cells(part: Part) -> tuple[Cell, ...]:
    one, nothing = part.next, number_cell(math.nan)
    if one is None or one.binding is None:
        return Cell("nothing known"), nothing, nothing, nothing, nothing, Cell("–"), nothing, Cell("–")
    then = sorted((k for k in part.kernels if k.slack_ms > 0 and k is not one), key=lambda k: -k.slack_ms)
    second = f"{profile_text.kernel(then[0])}, {text.number(then[0].slack_ms)} ms" if then else "–"
    return (
        Cell(profile_text.kernel(one)), number_cell(one.slack_ms), number_cell(100 * part.gain), number_cell(one.ms),
        number_cell(100 * ratio(one.ms, part.ms)), Cell(profile_text.RESOURCE[one.binding]), number_cell(one.bound_ms),
        Cell(second),
    )  # fmt: skip
