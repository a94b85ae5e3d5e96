"""The answer in words: who wins where and by how much, worked out from the rows, one finding a sentence."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass

import pandas as pd

from glabench.analysis import labels
from glabench.analysis.compare import (
    QUESTION,
    Curve,
    answers,
    by,
    crossover,
    curves,
    eager,
    speedups,
    variants,
    winners,
)
from glabench.analysis.statistics import geometric_mean
from glabench.report import text
from glabench.report.lengths import held, lean
from glabench.report.parts import modes
from glabench.report.shapes import nearest_in_words, nearest_to_floor
from glabench.report.training import against

RIVALS = ("fa2", "cudnn", "sdpa")
OWN = ("gla", "gla:w", "gla:wo")  # of these the first that has an eager call's time is told


@dataclass(frozen=True)
class Finding:
    """One answer: a figure to catch the eye, what it counts, and the sentence that tells the rest."""

    figure: str
    lead: str
    sentence: str


def findings(table: pd.DataFrame, device: str) -> list[Finding]:
    """What the rows of one device say, the most asked first; never empty."""
    rows = table[table["device"] == device]
    best = answers(rows[rows["mode"] != "train"])
    found = [
        *_training(rows),
        *_winners(best),
        *_winners(answers(eager(rows))),
        *_against(best),
        *_eager(best),
        *_memory(rows),
        *_floor(best),
        *_gates(rows),
        *_not_timed(rows),
    ]
    found += _failures(rows)
    return found or [Finding("0", "cases ran on this device", "There is nothing to compare.")]


def _training(rows: pd.DataFrame) -> list[Finding]:
    """Tokens a second of our models against each rival's, by length."""
    found = []
    for one in against(rows):
        last_t, last, _ = one.at[-1]
        said = ", ".join(f"{text.times(ratio)} at T = {text.length(t)}" for t, ratio, _ in one.at)
        memory = text.listing(sorted({text.times(least) for _, _, least in one.at}))
        where = f"GLA Transformer, {one.training}, T = {text.length(last_t)}"
        lead = f"the tokens a second of {labels.title(one.rival)}: {where}"
        sentence = f"{said}; of our schedules the fastest. Peak memory of the leanest: {memory}"
        found.append(Finding(text.times(last), lead, text.sentence(sentence)))
    return found


def _winners(best: pd.DataFrame) -> list[Finding]:
    everyone = [w for w in winners(best) if w.runner_up is not None]
    if not everyone:
        return []
    ahead = Counter(labels.system_title(w.variant) for w in everyone if w.clear)
    close = sum(not w.clear for w in everyone)
    total = text.count(len(everyone), "question")
    if not ahead:
        lead = f"questions with one system clearly ahead, by {text.timed(best['clock'].iloc[0])}"
        return [Finding(f"0 of {len(everyone)}", lead, f"The intervals of the two fastest meet at each of {total}.")]
    (first, wins), *rest = ahead.most_common()
    fewest, most = (end(w.entrants for w in everyone) for end in (min, max))
    rivals = text.count(most, "system") if fewest == most else f"{fewest} to {most} systems"
    lead = f"questions where {first} is the fastest of {rivals}, by {text.timed(best['clock'].iloc[0])}"
    others = [f"{name} is the fastest at {n}" for name, n in rest] or ["No other is ahead anywhere"]
    others += [f"{close} {'is' if close == 1 else 'are'} too close to call"] if close else []
    found = [Finding(f"{wins} of {len(everyone)}", lead, text.sentence("; ".join(others)))]
    return found + _own_kind(best)


def _own_kind(best: pd.DataFrame) -> list[Finding]:
    """The fastest among gated linear attention alone, where attention competed too."""
    timed = text.timed(best["clock"].iloc[0])
    if not (best["family"] == "attention").any():
        return []
    own = [w for w in winners(best, "gla") if w.runner_up is not None]
    ahead = Counter(labels.system_title(w.variant) for w in own if w.clear)
    if not ahead:
        return []
    name, wins = ahead.most_common(1)[0]
    leads = [w.lead for w in own if w.clear and labels.system_title(w.variant) == name]
    ratio = text.times(geometric_mean(leads))
    sentence = f"There its {timed} are {ratio} as fast as the next's, on the geometric mean."
    return [
        Finding(
            f"{wins} of {len(own)}",
            f"questions where {name} is the fastest gated linear attention, by {timed}",
            sentence,
        )
    ]


def _against(best: pd.DataFrame) -> list[Finding]:
    """For each attention baseline and curve over T: where the linear form that does best there overtakes it."""
    found = []
    for rival in variants(best, RIVALS):
        pairs = speedups(best, rival)
        pairs = pairs[pairs["family"] == "gla"]
        for curve in curves(pairs)[:2]:
            found += _overtaking(curve, rival)
    return found


def _overtaking(curve: Curve, rival: str) -> list[Finding]:
    champion, said, (mode, ratio, longest) = overtakes(curve)
    timed = text.timed(curve.table["clock"].iloc[0])
    where = f"{labels.title(champion)} at T = {text.length(longest)}, {mode}"
    lead = f"the speed of {labels.title(rival)}, by {timed}: {where}"
    return [Finding(text.times(ratio), lead, text.sentence(f"At {held(curve)}. {'; '.join(said)}"))]


def overtakes(curve: Curve) -> tuple[str, list[str], tuple[str, float, float]]:
    """The variant that does best along a curve of speed-ups, where it overtakes in each mode, in words, and (mode,
    speed-up, length) of the longest."""
    scores = [(geometric_mean(list(rows["speedup"])), key) for (key,), rows in by(curve.table, ["variant"])]
    champion = max(scores)[1]
    own = curve.table[curve.table["variant"] == champion]
    said: list[str] = []
    end = ("", 0.0, 0.0)
    for mode, rows in modes(own):
        c = crossover(rows)
        end = (text.mode(mode), c.last_speedup, c.last_t) if mode != "step" or not said else end
        at_end = f"{text.times(c.last_speedup)} at T = {text.length(c.last_t)}"
        if c.points < 2:
            said.append(f"{text.mode(mode)}: {at_end}")
        elif c.wins_from is None:
            said.append(f"{text.mode(mode)}: slower at the longest T, {at_end}")
        elif c.wins_from == c.first_t:
            said.append(f"{text.mode(mode)}: faster at every T from {text.length(c.first_t)} on, {at_end}")
        else:
            near = f" (they cross near {text.number(c.crossing, 2)})" if c.crossing else ""
            said.append(f"{text.mode(mode)}: faster from T = {text.length(c.wins_from)} on{near}, {at_end}")
    return champion, said, end


def _eager(best: pd.DataFrame) -> list[Finding]:
    """What an eager call takes beside its kernels, of the first of ours and of every rival at the same questions."""
    known = best[best["wall_over"] > 0]
    for mode, rows in reversed(modes(known)):
        for own in variants(rows, OWN):
            asked = rows[rows["variant"] == own]
            there = rows.merge(asked[QUESTION], on=QUESTION)
            means = {
                key: geometric_mean(list(there.loc[there["variant"] == key, "wall_over"])) for key in variants(there)
            }
            others = [f"{labels.title(key)} {text.times(mean)}" for key, mean in means.items() if key != own]
            lead = f"its kernels' time: an eager call of {labels.title(own)}, {text.mode(mode)}"
            said = f"Geometric mean over {text.count(len(asked), 'question')}"
            said += f"; {', '.join(others)}" if others else ""
            return [Finding(text.times(means[own]), lead, text.sentence(said))]
    return []


def _memory(rows: pd.DataFrame) -> list[Finding]:
    """Memory of each of ours against FlashAttention-2, with each of its heads, or the first rival there is, where
    gradients are needed."""
    leanest = lean(rows)
    for system in RIVALS:
        found = [finding for rival in variants(leanest, [system]) for finding in _memory_against(leanest, rival)]
        if found:
            return found
    return []


def _memory_against(leanest: pd.DataFrame, rival: str) -> list[Finding]:
    base = leanest.loc[leanest["variant"] == rival, [*QUESTION, "beyond_mib"]]
    pairs = leanest.merge(base, on=QUESTION, suffixes=("", "_base"))
    pairs = pairs[pairs["variant"].isin(labels.OURS) & (pairs["mode"] == "fwdbwd")]
    if pairs.empty:
        return []
    ratio = pairs["beyond_mib"] / pairs["beyond_mib_base"]
    values = sorted((statistics.median(ratio[pairs["variant"] == key]), key) for key in variants(pairs))
    parts = [f"{labels.title(key)} {text.times(value)}" for value, key in values]
    questions = text.count(len(pairs.drop_duplicates(QUESTION)), "question")
    lead = f"the memory of {labels.title(rival)}: {labels.title(values[0][1])}, forward + backward"
    sentence = f"Peak beyond the inputs, median of {questions}: {text.listing(parts)}"
    return [Finding(text.times(values[0][0]), lead, text.sentence(sentence))]


def _floor(best: pd.DataFrame) -> list[Finding]:
    found = nearest_to_floor(best)
    if not found:
        return []
    last = found[-1]
    mean, key = last.ranked[0]
    lead = f"the HBM floor: {labels.title(key)}, {text.mode(last.mode)}"
    floor = "The floor is the time of moving inputs and outputs alone."
    return [Finding(text.times(mean), lead, f"{floor} {nearest_in_words(found, most=3)}")]


def _gates(rows: pd.DataFrame) -> list[Finding]:
    gated = rows[rows["error_share"].notna()]
    if gated.empty:
        return []
    wrong = rows[rows["status"] == "wrong"]
    passed = len(gated) - len(gated[gated["status"] == "wrong"])
    right = gated[gated["status"] != "wrong"]
    said = (
        [f"The worst of them uses {text.number(100 * right['error_share'].max(), 2)} % of its tolerance."]
        if len(right)
        else []
    )
    if len(wrong):
        said.append(f"Wrong, and so not timed: {text.sentence(text.listing(sorted(set(wrong['label']))))}")
    return [Finding(f"{passed} of {len(gated)}", "cases agree with the float64 reference", " ".join(said))]


def _not_timed(rows: pd.DataFrame) -> list[Finding]:
    interpreted = rows[(rows["gated"] == "interpreter") & (rows["status"] == "ok")]
    if interpreted.empty:
        return []
    lead = f"{'case' if len(interpreted) == 1 else 'cases'} of our Triton kernels checked, not timed"
    sentence = "They ran in Triton's interpreter, which says whether they are right and nothing about speed."
    return [Finding(str(len(interpreted)), lead, sentence)]


def _failures(rows: pd.DataFrame) -> list[Finding]:
    failed = Counter(rows.loc[rows["status"] != "ok", "status"])
    if not failed:
        return []
    parts = [f"{n} {labels.STATUS_TITLES.get(status, status)}" for status, n in failed.most_common()]
    return [
        Finding(
            f"{sum(failed.values())} of {len(rows)}", "cases gave no result", f"{text.listing(parts)}. Reasons below."
        )
    ]
