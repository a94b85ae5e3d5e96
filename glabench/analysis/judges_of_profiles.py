"""Judges of the papers' claims by what is inside a call: its parts, and what bounds its kernels. No torch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from statistics import median
from typing import Any

from glabench.analysis import frame, labels
from glabench.analysis.bounds import bounds, tensor_flops
from glabench.analysis.evidence import SHAPE, Evidence, Parts, Place, Ratio, over, within
from glabench.analysis.papers import Outcome, Value, Weighed, settle
from glabench.store import Row

SAME_WORK = 0.1  # how far parts may be from the whole that they are said to be parts of
COMPUTING = ("tensor", "cuda", "exps")  # of what bounds a kernel, what FLOPs take


@dataclass(frozen=True)
class Split:
    """Whether from each chunk size to the next the time between chunks does not grow and that inside them does not
    fall, and whether both have moved from the smallest to the largest."""

    def __call__(self, evidence: Evidence) -> Outcome:
        split = evidence.split
        if len(split) < 2:
            return Outcome("not measured")
        (first, start), *_, (last, end) = split.items()
        ends = [*_falls(start, end, f"{first} to {last}")]
        steps = [
            replace(one, fits=one.fits is not False)  # a tie is no step back
            for (small, before), (large, after) in pairwise(split.items())
            for one in _falls(before, after, f"{small} to {large}")
        ] if len(split) > 2 else []  # fmt: skip
        judged = settle([*ends, *steps], apart="; ".join(_apart(split)))
        values = tuple(Value(one.ratio.at, one.ratio.value) for one in ends)
        other = f"of a profile of other kernels (commit {', '.join(evidence.split_commits)})"
        whys = filter(None, (judged.why, other if evidence.split_commits else ""))
        pairs = ("the parts of GLA with states at each chunk size over those at the next smaller one",)
        return replace(judged, found=values, why="; ".join(whys), pairs=pairs)


def _falls(before: Parts, after: Parts, sizes: str) -> Iterator[Weighed]:
    falls = over(after.inter, before.inter, f"between chunks, {sizes}")
    grows = over(after.intra, before.intra, f"inside chunks, {sizes}")
    yield Weighed(falls, within(falls, 0.0, 1.0))
    yield Weighed(grows, within(grows, 1.0, math.inf))


def _apart(split: Mapping[int, Parts]) -> Iterator[str]:
    """What keeps the parts of one chunk size from standing beside those of another."""
    for chunk, parts in split.items():
        whole = (parts.inter.median + parts.intra.median) / parts.whole.median
        if abs(whole - 1) > SAME_WORK:
            yield f"at chunks of {chunk} the parts, of another program, come to {whole:.3g} times what runs"
    loose = [str(chunk) for chunk, parts in split.items() if not parts.tuned]
    if len(loose) == len(split):
        yield "no chunk size is tuned"
    elif loose:
        yield f"tuned compared with untuned: chunks of {', '.join(loose)} are not tuned"


def profile_at(evidence: Evidence, place: Place, materialize: bool) -> Iterator[Row]:
    """Profiles of ours at a place with its chunk size, if it has one; those of the GPU itself first."""
    wanted = {name: getattr(place, name) for name in (*SHAPE, *(("chunk",) if place.chunk else ()))}
    asked = {"system": "gla", "dtype": "bf16", "materialize": materialize, **wanted}
    for row in evidence.profiles:
        if labels.gate(row.case) == place.gate and asked.items() <= row.case.items():
            yield row


@dataclass(frozen=True)
class MoreFlops:
    """Whether matrix products w/o m. come to between ``least`` and ``most`` times the FLOPs of those w/ m., in both
    directions: counts of the cost model, which hold whatever the tiles."""

    place: Place
    least: float
    most: float

    def __call__(self, evidence: Evidence) -> Outcome:
        found = (profile_at(evidence, self.place, materialize=kept) for kept in (False, True))
        rows = [row for profiles in found for row in islice(profiles, 1)]
        if len(rows) < 2:
            return Outcome("not measured")
        value = _flops(rows[0]) / _flops(rows[1])
        more = Ratio(f"{self.place.at}, FLOPs w/o m. over w/ m.", value, value, value)
        fits = within(more, self.least, self.most)
        names = " over ".join(frame.label(row.case) for row in rows)
        return replace(
            settle([Weighed(more, fits, fits is False and value < self.least)]), pairs=(f"{names}, counted",)
        )


def _flops(row: Row) -> float:
    """Of all matrix products of a call."""
    return sum(tensor_flops(kernel["work"]) * kernel["count"] for kernel in _kernels(row))


def _kernels(row: Row) -> Sequence[Mapping[str, Any]]:
    return (row.profile or {}).get("kernels") or ()


@dataclass(frozen=True)
class BoundBy:
    """Whether, at each chunk size, the kernel that makes the states needs longer for its bytes than for whatever it
    computes, and the one inside the chunks the other way round.

    That one multiplies rows with states besides. The bytes of the states are left out, and the products are not, which
    is on the claim's side.
    """

    place: Place

    def __call__(self, evidence: Evidence) -> Outcome:
        found: list[Weighed] = []
        whole: list[str] = []
        times: list[float] = []
        profiles = reversed([*profile_at(evidence, self.place, materialize=True)])
        for chunk, row in sorted({row.case["chunk"]: row for row in profiles if row.case["chunk"]}.items()):
            ceilings, kernels = (row.profile or {}).get("ceilings") or {}, {one["step"]: one for one in _kernels(row)}
            if not {"states", "output"} <= kernels.keys():
                whole.append(str(chunk))
                continue
            memory, computing = _needs(kernels["states"], ceilings)
            found.append(_larger(memory, computing, f"between chunks of {chunk}"))
            memory, computing = _needs(kernels["output"], ceilings, without="s")
            found.append(_larger(computing, memory, f"inside chunks of {chunk}"))
            times += [_times_of_floor(kernels[step], ceilings) for step in ("states", "output")]
        outcome = settle(found)
        if not found:
            return outcome
        words = [outcome.why]
        if whole:
            words.append(f"one kernel does both at chunks of {', '.join(whole)}")
        if max(times):
            words.append(f"kernels take {min(times):.2g} to {max(times):.2g} times as long as what they need longest")
        pairs = ("states_kernel, HBM over FLOPs", "output_kernel without its states' bytes, FLOPs over HBM")
        return replace(outcome, why="; ".join(filter(None, words)), pairs=pairs)


def _needs(kernel: Mapping[str, Any], ceilings: Mapping[str, Any], without: str = "") -> tuple[float, float]:
    """ms that a kernel needs at least for its bytes of HBM, but those of one tensor, and for what it computes."""
    work = dict(kernel["work"])
    work["hbm_read_bytes"] -= work["tensors"].get(without, {}).get("read", 0)
    floors = bounds(work, ceilings, kernel["count"])
    return floors["hbm"], max(floors[name] for name in COMPUTING)


def _larger(one: float, other: float, at: str) -> Weighed:
    found = Ratio(at, one / other, one / other, one / other)
    return Weighed(found, within(found, 1.0, math.inf))


def _times_of_floor(kernel: Mapping[str, Any], ceilings: Mapping[str, Any]) -> float:
    """How many times as long a kernel takes as the resource that it needs longest; 0 where it was not timed."""
    samples = kernel.get("samples_ms")
    return median(samples) / max(bounds(kernel["work"], ceilings, kernel["count"]).values()) if samples else 0.0
