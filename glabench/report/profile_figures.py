"""Figures of profiles: roofline, where the time goes, distance from the floor, inside chunks and between, memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from glabench.analysis import labels
from glabench.analysis.bounds import TENSOR_TYPES, number, ratio
from glabench.analysis.profile import Call, Kernel, groups, middle
from glabench.analysis.tuning import PASSES
from glabench.report import profile_text, text
from glabench.report.model import Figure, Panel, Point, Roof, Section, Series
from glabench.report.parts import MOST_CATEGORIES, slug
from glabench.spec.axes import GATES

MOST_POINTS = 1200  # of a roofline, so that the page stays small
MOST_PANELS = 6
WIDEST = 25.0  # bars are in ms up to this ratio of the longest to the shortest, beyond it in shares
MEMORY = {
    "inputs": "inputs", "outputs": "outputs", "gradients": "gradients", "states": "states",
    "saved": "saved for backward", "workspace": "workspace",
}  # fmt: skip


def sections(found: Sequence[Call]) -> list[Section]:
    """Every section of figures. GPUs, and what is measured and predicted, are never mixed in one figure."""
    by = groups(found)
    prefix = {key: f"{profile_text.group(key)}: " if len(by) > 1 else "" for key in by}

    def each(draw: Callable[[Sequence[Call], str], tuple[Figure, ...]]) -> tuple[Figure, ...]:
        return tuple(figure for key, calls in by.items() for figure in draw(calls, prefix[key]))

    return [
        Section("roofline", "Roofline", "Roofline", each(roofline),
                "No kernel has both a time and a count of its work, or the GPU has no ceilings."),
        Section("time", "Time", "Where the time goes", each(stacked), "No kernel has a time."),
        Section("floor", "Floor", "Time against the floor", each(over_floor),
                "No case was profiled at several lengths or with several chunk sizes. `glabench profile chunk_size` "
                "does."),
        Section("chunks", "Chunks", "Inside chunks and between them", each(split),
                "No shape has the forward pass taken apart at several chunk sizes. `glabench profile chunk_size` does, "
                "on a GPU, with states materialized."),
        Section("memory", "Memory", "What the memory is for", each(memory),
                "No row has a breakdown of its peak memory. It is measured on a GPU."),
    ]  # fmt: skip


def _name(prefix: str, *parts: str) -> str:
    return slug("profile", prefix.rstrip(": "), *parts)


def by_mode(found: Sequence[Call]) -> list[tuple[str, list[Call]]]:
    present = [mode for mode in labels.MODE_ORDER if any(call.case["mode"] == mode for call in found)]
    return [(mode, [call for call in found if call.case["mode"] == mode]) for mode in present]


def roofline(found: Sequence[Call], prefix: str) -> tuple[Figure, ...]:
    """Every kernel under the roofs, over the bytes of HBM and over those of L2."""
    drawn = [(call, one) for call in found for one in call.kernels if one.flops_per_s > 0]
    drawn = drawn[:: math.ceil(len(drawn) / MOST_POINTS) or 1]
    levels: tuple[tuple[str, str, str, Callable[[Kernel], float]], ...] = (
        ("HBM", "hbm_copy_bytes_per_s", "FLOP per byte expected at HBM", lambda one: one.intensity),
        ("L2", "l2_read_bytes_per_s", "FLOP per byte asked of L2", lambda one: one.l2_intensity),
    )
    panels = []
    for level, rate, label, intensity in levels:
        points: dict[str, list[Point]] = {}
        for call, one in drawn:
            if intensity(one) > 0:
                at = Point(intensity(one), one.flops_per_s / 1e12, tip=profile_text.tip(call, one))
                points.setdefault(one.key, []).append(at)
        roofs = _roofs(found, level, rate)
        if points and roofs:
            panels.append(Panel(level, label, "TFLOP/s", _series(points), roofs=roofs))
    if not panels:
        return ()
    source = found[0].ceilings.get("source") or "unknown"
    said = "by the datasheet" if source == "datasheet" else f"as {source}"
    caption = (
        f"Each kernel at each shape, under what the GPU can do, {said}. On a sloped line bytes bind it, on a level one "
        "arithmetic does; the distance to the line is what could be won. FLOP of tensor and CUDA cores together, "
        "bytes as the model counts them."
    )
    if found[0].predicted:
        caption += " Times are predicted, not measured."
    return (Figure(_name(prefix, "roofline"), f"{prefix}Roofline", caption, tuple(panels)),)


def _roofs(found: Sequence[Call], level: str, bandwidth: str) -> tuple[Roof, ...]:
    """The bandwidth's slope and a level for each unit; the best ceilings where several were measured."""

    def best(name: str) -> float:
        return max((x for call in found if (x := number(call.ceilings.get(name))) > 0), default=math.nan)

    slope = best(bandwidth)
    if math.isnan(slope):
        return ()
    kinds = [one.work.get("tensor_flops") or {} for call in found for one in call.kernels]
    used = {name for flops in kinds for name, count in flops.items() if count}
    units = [f"{name} tensor" for name in TENSOR_TYPES if name in used or name == "bf16"] + ["fp32 CUDA"]
    rates = {unit: best(f"{unit.split()[0]}_flops") for unit in units}
    level_roofs = [Roof(f"{u} {text.number(x / 1e12)} TFLOP/s", x / 1e12) for u, x in rates.items() if x > 0]
    return (Roof(f"{level} {profile_text.tera(slope, 'B')}", slope / 1e12, sloped=True), *level_roofs)


def _series(points: Mapping[str, Sequence[Point]]) -> tuple[Series, ...]:
    """In the order of the passes, what is not a pass of ours last; keys are safe in any file, whatever rows say."""
    order = [key for key in PASSES if key in points] + [key for key in points if key not in PASSES]
    titles = {"other": "other kernels", "gaps": "launch gaps"}
    last = [key for key in order if key in titles]
    kept = [key for key in order if key not in titles] + last
    return tuple(Series(key if key in PASSES else slug(key), titles.get(key, key), tuple(points[key])) for key in kept)


def stacked(found: Sequence[Call], prefix: str) -> tuple[Figure, ...]:
    """A bar a case of its kernels one after another, and what is left of the time; a panel a mode."""
    timed = [call for call in found if call.kernels_ms > 0]
    keys = dict.fromkeys(one.key for call in timed for one in call.kernels if one.ms > 0)
    panels, notes = [], []
    for mode, calls in by_mode(timed):
        shown = calls[:MOST_CATEGORIES]
        whole = [call.kernels_ms + (call.gaps_ms if call.gaps_ms > 0 else 0.0) for call in shown]
        relative = max(whole) > WIDEST * min(whole)
        points: dict[str, list[Point]] = {}
        for place, (call, ms) in enumerate(zip(shown, whole, strict=True)):
            scale = 100 / ms if relative else 1.0
            for one in call.kernels:
                if one.ms > 0:
                    points.setdefault(one.key, []).append(Point(place, one.ms * scale, tip=profile_text.tip(call, one)))
            if call.gaps_ms > 0:
                points.setdefault("gaps", []).append(Point(place, call.gaps_ms * scale, tip=_gap_tip(call)))
        label = "share of the call, %" if relative else "time, ms"
        # Every panel has all series, so that the legend is in their order.
        series = _series({**dict.fromkeys(keys, ()), **points})
        panels.append(Panel(text.mode(mode), "", label, series, tuple(_names(shown)), stacked=True))
        if len(shown) < len(calls):
            notes.append(f" The first {len(shown)} of {len(calls)} cases, {text.mode(mode)}.")
    if not panels:
        return ()
    what = "Predicted times of the kernels" if found[0].predicted else "Kernel times and the gaps between kernels"
    caption = f"{what}, in the order of the passes. Hover or tap a piece for its numbers.{''.join(notes)}"
    return (Figure(_name(prefix, "time"), f"{prefix}Time by kernel", caption, tuple(panels)),)


def _names(shown: Sequence[Call]) -> list[str]:
    """Cases as categories; what all have in common but the sizes is left out where that leaves them apart."""
    names = [profile_text.case(call.case) for call in shown]
    short = [text.shape(call.case) for call in shown]
    return short if len(set(short)) == len(short) else names


def _gap_tip(call: Call) -> str:
    return (
        f"launch gaps\n{profile_text.asked(call)}\n{text.number(call.gaps_ms)} ms in which no kernel runs, of "
        f"{text.number(call.span_ms)} ms from the first kernel's start to the last one's end"
    )


def over_floor(found: Sequence[Call], prefix: str) -> tuple[Figure, ...]:
    """Time over the HBM floor by T and by chunk size, a panel a mode."""
    held = ("H", "K", "V", "dtype", "gate_strength", *GATES, "initial_state", "mode")
    axes: tuple[tuple[str, str, tuple[str, ...]], ...] = (
        ("T", "sequence length T, tokens", held),
        ("chunk", "chunk size, tokens", ("B", "T", *held)),
    )
    figures = []
    for name, label, same in axes:
        panels = []
        settings: dict[tuple[Any, ...], list[Call]] = {}
        for call in found:
            if call.case.get(name) and ratio(call.ms, call.floor_ms) > 0:
                settings.setdefault(tuple(call.case.get(key) for key in same), []).append(call)
        for calls in settings.values():
            series = _curves(calls, name)
            if series:
                where = _setting(calls[0], with_length=name == "chunk")
                title = f"{text.mode(calls[0].case['mode'])}, {where}"
                panels.append(Panel(title, label, "× HBM floor", series, reference=(1.0, "floor")))
        if panels:
            by = "sequence length" if name == "T" else "chunk size"
            caption = (
                f"The {'predicted' if found[0].predicted else 'measured'} time of a call over the time that its "
                "compulsory bytes take at the copy bandwidth. The line is the floor. Where several schedules or "
                "batches were profiled, the best is drawn."
            )
            figures.append(
                Figure(_name(prefix, "floor", name), f"{prefix}Time over the floor by {by}", caption,
                       tuple(panels[:MOST_PANELS]))
            )  # fmt: skip
    return tuple(figures)


def _curves(calls: Sequence[Call], name: str) -> tuple[Series, ...]:
    """A curve a variant, of those that have several places along ``name``."""
    best: dict[str, dict[int, Call]] = {}
    for call in calls:
        row = best.setdefault(labels.variant(call.case), {})
        at = int(call.case[name])
        if at not in row or call.ms / call.floor_ms < row[at].ms / row[at].floor_ms:
            row[at] = call
    return tuple(
        Series(key, labels.title(key), tuple(
            Point(at, row[at].ms / row[at].floor_ms, tip=_floor_tip(row[at])) for at in sorted(row)
        ))
        for key, row in sorted(best.items(), key=lambda item: labels.order(item[0])) if len(row) > 1
    )  # fmt: skip


def _setting(call: Call, with_length: bool) -> str:
    at = call.case
    return text.shape(at) if with_length else text.heads(at)


def _floor_tip(call: Call) -> str:
    return (
        f"{text.times(call.ms / call.floor_ms)} the floor\n{profile_text.asked(call)}\n{text.number(call.ms)} ms"
        f"{' predicted' if call.predicted else ''}, floor {text.number(call.floor_ms)} ms"
    )


def split(found: Sequence[Call], prefix: str) -> tuple[Figure, ...]:
    """Time inside chunks and between them over the chunk size, a panel a shape."""
    shapes: dict[str, list[Call]] = {}
    for call in found:
        if call.profile.get("parts") and call.case.get("chunk"):
            name = text.shape(call.case) + ("" if call.case["dtype"] == "bf16" else f" {call.case['dtype']}")
            shapes.setdefault(name, []).append(call)
    panels = []
    several = {name: calls for name, calls in shapes.items() if len({call.case["chunk"] for call in calls}) > 1}
    for name, calls in list(several.items())[:MOST_PANELS]:
        points: dict[str, dict[int, Point]] = {"intra": {}, "inter": {}}
        for call in calls:
            for part, title in (("intra", "inside chunks"), ("inter", "between chunks")):
                ms, chunk = middle(call.profile["parts"].get(f"{part}_ms")), int(call.case["chunk"])
                old = points[part].get(chunk)
                if ms > 0 and (old is None or ms < old.value):
                    tip = f"{title}\n{profile_text.case(call.case)}, forward\n{text.number(ms)} ms"
                    points[part][chunk] = Point(chunk, ms, tip=tip)
        titles = {"intra": "inside chunks", "inter": "between chunks"}
        series = [Series(p, titles[p], tuple(at[c] for c in sorted(at))) for p, at in points.items() if at]
        panels.append(Panel(name, "chunk size, tokens", "median time, ms", tuple(series)))
    if not panels:
        return ()
    caption = (
        "The forward pass with states materialized, taken apart. Between chunks: the pass that makes the states, and "
        "what the output takes longer for using them. Inside chunks: the rest of the output."
    )
    return (Figure(_name(prefix, "chunks"), f"{prefix}Inside and between chunks", caption, tuple(panels)),)


def memory(found: Sequence[Call], prefix: str) -> tuple[Figure, ...]:
    """The peak of each case by what it is for, measured above the model's."""
    panels = []
    for mode, calls in by_mode([call for call in found if (call.profile.get("memory") or {}).get("kinds")]):
        shown = calls[: MOST_CATEGORIES // 2]
        names: list[str] = []
        points: dict[str, list[Point]] = {}
        for call, name in zip(shown, _names(shown), strict=True):
            for which, kinds in (("measured", "kinds"), ("model", "model")):
                sizes = call.profile["memory"].get(kinds)
                if not sizes:
                    continue
                for kind, title in MEMORY.items():
                    if sizes.get(kind):
                        tip = f"{title}, {which}\n{profile_text.asked(call)}\n{profile_text.bytes_(sizes[kind])}"
                        points.setdefault(kind, []).append(Point(len(names), sizes[kind] / 2**20, tip=tip))
                names.append("model" if which == "model" else name)
        series = tuple(Series(f"memory:{k}", title, tuple(points.get(k, ()))) for k, title in MEMORY.items())
        if points:
            panels.append(Panel(text.mode(mode), "", "MiB", series, tuple(names), stacked=True))
    if not panels:
        return ()
    caption = "What is alive at the moment of the peak, by what it is for, and what the model of our kernels expects."
    return (Figure(_name(prefix, "memory"), f"{prefix}Peak memory", caption, tuple(panels)),)
