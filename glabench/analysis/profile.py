"""Where the time of a call goes, kernel by kernel: what bounds each, and how much could be won at most. No torch.

A kernel's bound is the time that the busiest resource needs for the kernel's work at the rate that the GPU's ceilings
name. What it takes above that is its slack: no tiling of the same work can win more. Where nothing was measured, as on
a machine without the GPU, the cost model's prediction stands for the time and ``predicted`` says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd

from glabench.analysis import labels
from glabench.analysis.bounds import RESOURCES, bounds, number, rate, ratio, tensor_flops, total
from glabench.analysis.load import Profiled, device_name
from glabench.analysis.statistics import NOTHING, Estimate, estimate
from glabench.spec.axes import PLANNED
from glabench.spec.work import floor_ms, operator_work
from glabench.store import Row

STEPS = ("T", "chunk", "sub_chunk")  # of a case: what its question is asked over


@dataclass(frozen=True)
class Kernel:
    """One kernel in one call, all its launches together. Times in ms, work in bytes and FLOP; NaN is not known."""

    name: str
    step: str | None  # the pass that it is; None for a kernel that is not ours
    direction: str  # "fwd", "bwd" or "step"; "fwdbwd" where it cannot be told
    count: int  # launches a call
    time: Estimate  # measured; NOTHING where it was not
    predicted_ms: float
    predicted: bool  # whether the prediction stands for the time
    share: float  # of the sum over the call's kernels
    bounds: Mapping[str, float]  # the time that each of RESOURCES needs at least; those that are known
    work: Mapping[str, Any] = field(default_factory=dict)
    counters: Mapping[str, Any] = field(default_factory=dict)
    compiled: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ms(self) -> float:
        return self.predicted_ms if self.predicted else self.time.median

    @property
    def key(self) -> str:
        """What it is called in figures: its pass, "other" when it is not ours."""
        return self.step or ("other" if not self.work else self.name.removesuffix("_kernel"))

    @property
    def binding(self) -> str | None:
        """The resource that needs longest; None for a kernel whose work is not known."""
        return max(self.bounds, key=lambda name: self.bounds[name]) if self.work and self.bounds else None

    @property
    def bound_ms(self) -> float:
        return self.bounds[self.binding] if self.binding else math.nan

    @property
    def slack_ms(self) -> float:
        """What could be won at most; 0 for a kernel that is faster than its bound, whose writes stayed in L2, say."""
        return math.nan if math.isnan(self.ms) or not self.binding else max(0.0, self.ms - self.bound_ms)

    @property
    def hbm_bytes(self) -> float:
        """What the model expects at HBM, read and written."""
        return number(self.work.get("hbm_read_bytes")) + number(self.work.get("hbm_write_bytes"))

    @property
    def flops(self) -> float:
        """Of tensor cores and CUDA cores together; exponentials are counted apart."""
        return tensor_flops(self.work) + number(self.work.get("vector_flops"))

    @property
    def intensity(self) -> float:
        """FLOP per byte at HBM."""
        return ratio(self.flops, self.hbm_bytes)

    @property
    def l2_intensity(self) -> float:
        """FLOP per byte that loads and stores ask for."""
        return ratio(self.flops, number(self.work.get("requested_bytes")))

    @property
    def flops_per_s(self) -> float:
        return ratio(self.flops, self.ms / 1e3)

    @property
    def bytes_per_s(self) -> float:
        return ratio(self.hbm_bytes, self.ms / 1e3)


@dataclass(frozen=True)
class Part:
    """The kernels of one direction of a call."""

    direction: str
    kernels: tuple[Kernel, ...]
    floor_ms: float  # compulsory bytes of that direction at the copy bandwidth

    @property
    def ms(self) -> float:
        return total(k.ms for k in self.kernels)

    @property
    def next(self) -> Kernel | None:
        """The kernel to improve next: the one with the largest slack."""
        known = [k for k in self.kernels if k.slack_ms > 0]
        return max(known, key=lambda k: k.slack_ms, default=None)

    @property
    def gain(self) -> float:
        """What improving that kernel can win at most, as a share of the direction's time."""
        return ratio(self.next.slack_ms, self.ms) if self.next else 0.0


@dataclass(frozen=True)
class Call:
    """One profiled case: its row, its kernels, and how they add up. Times in ms."""

    row: Row
    target: str  # the GPU that model and ceilings are of
    predicted: bool
    kernels: tuple[Kernel, ...]
    parts: tuple[Part, ...]  # forward, backward, whichever the case has; kernels of neither are in none
    measured: Estimate  # the whole call by events, the way a sweep times it
    span_ms: float  # from the first kernel's start to the last one's end
    gaps_ms: float  # of the span, without the kernels
    trace: Path | None  # where its trace should be

    @property
    def case(self) -> dict[str, Any]:
        return self.row.case

    @property
    def profile(self) -> dict[str, Any]:
        return self.row.profile or {}

    @property
    def ceilings(self) -> dict[str, Any]:
        return self.profile.get("ceilings") or {}

    @property
    def group(self) -> tuple[str, bool]:
        """Calls that may stand in one figure: of one GPU, all measured or all predicted."""
        return self.target, self.predicted

    @property
    def kernels_ms(self) -> float:
        return total(k.ms for k in self.kernels)

    @property
    def covered(self) -> float:
        """The kernels' sum over the measured time; NaN where there is none."""
        return math.nan if self.predicted else ratio(self.kernels_ms, self.measured.median)

    @cached_property
    def floor_ms(self) -> float:
        return _floor(self.case, self.case["mode"], self.ceilings)

    @property
    def ms(self) -> float:
        """The measured time, else the sum of what is predicted."""
        return self.kernels_ms if self.predicted or math.isnan(self.measured.median) else self.measured.median


def calls(profiled: Iterable[Profiled]) -> list[Call]:
    """A call for each row that has a profile, as written but for lengths and chunk sizes, which go up: cases that were
    profiled side by side are written as they are done."""
    found = [_call(one.row, one.traces) for one in profiled if one.row.profile is not None]
    places: dict[str, int] = {}
    for call in found:
        places.setdefault(_question(call.row.case), len(places))
    return sorted(found, key=lambda call: (places[_question(call.row.case)], *_steps(call.row.case)))


def _question(case: dict[str, Any]) -> str:
    """The case but for what goes up within a question."""
    return repr(sorted((key, value) for key, value in case.items() if key not in STEPS))


def _steps(case: dict[str, Any]) -> list[float]:
    return [case.get(key) or 0 for key in STEPS]


def _call(row: Row, folder: Path) -> Call:
    profile: dict[str, Any] = row.profile or {}
    raw, ceilings = profile.get("kernels") or [], profile.get("ceilings") or {}
    goal = profile.get("target") or {}
    predicted = not (goal.get("here") or profile.get("samples_ms") or any(k.get("samples_ms") for k in raw))
    bare = [_kernel(kernel, row.case["mode"], predicted, ceilings) for kernel in raw]
    whole = total(k.ms for k in bare)
    kernels = tuple(replace(k, share=ratio(k.ms, whole)) for k in bare)
    trace = profile.get("trace")
    target = device_name({"device": goal.get("name") or row.environment.get("device")})
    return Call(
        row, target, predicted, kernels, _parts(kernels, row.case, ceilings),
        estimate(profile.get("samples_ms") or ()), middle(profile.get("span_ms")),
        math.nan if predicted else _gaps(raw, profile.get("span_ms") or []),
        # a row is only text: its trace is looked for in one folder, whatever path it names
        folder / Path(str(trace)).name if trace else None,
    )  # fmt: skip


def _kernel(raw: Mapping[str, Any], mode: str, predicted: bool, ceilings: Mapping[str, Any]) -> Kernel:
    samples, done = raw.get("samples_ms"), raw.get("work") or {}
    return Kernel(
        str(raw["name"]), raw.get("step"), str(raw.get("direction") or mode) if mode == "fwdbwd" else mode,
        int(raw.get("count") or 1),
        estimate(samples) if samples else NOTHING, number(raw.get("predicted_ms")), predicted, math.nan,
        bounds(done, ceilings, int(raw.get("count") or 1)), done, raw.get("counters") or {}, raw.get("compiled") or {},
    )  # fmt: skip


def _parts(kernels: Sequence[Kernel], case: Mapping[str, Any], ceilings: Mapping[str, Any]) -> tuple[Part, ...]:
    """By direction. Of a call in both, kernels whose direction is not known are in no part, unless none is known."""
    found = {k.direction for k in kernels}
    names = [name for name in labels.MODE_ORDER if name in found and (name != "fwdbwd" or len(found) == 1)]
    return tuple(
        Part(name, tuple(k for k in kernels if k.direction == name), _floor(case, name, ceilings)) for name in names
    )


def _floor(case: Mapping[str, Any], mode: str, ceilings: Mapping[str, Any]) -> float:
    """Compulsory bytes of a mode at the copy bandwidth, in ms; NaN without ceilings, or for a system of another
    version's catalog."""
    copy = rate(ceilings, "hbm_copy_bytes_per_s")
    try:
        return floor_ms(operator_work({**case, "mode": mode})["hbm_bytes"], copy) if copy > 0 else math.nan
    except KeyError:
        return math.nan


def _gaps(raw: Sequence[Mapping[str, Any]], spans: Sequence[float]) -> float:
    """The part of the span in which no kernel ran: call by call where that can be told, else by medians."""
    samples = [kernel["samples_ms"] for kernel in raw if kernel.get("samples_ms")]
    if not spans or not samples:
        return math.nan
    if all(len(one) == len(spans) for one in samples):
        found = median([span - sum(parts) for span, *parts in zip(spans, *samples, strict=True)])
    else:
        found = median(spans) - sum(median(one) for one in samples)
    return max(0.0, found)  # kernels that overlap leave none


def groups(found: Iterable[Call]) -> dict[tuple[str, bool], list[Call]]:
    """Calls by GPU, the measured ones apart from the predicted ones, in the order they first appear."""
    by: dict[tuple[str, bool], list[Call]] = {}
    for call in found:
        by.setdefault(call.group, []).append(call)
    return by


def middle(samples: Sequence[float] | None) -> float:
    """The median; NaN of nothing."""
    return estimate(samples or ()).median


def table(found: Sequence[Call]) -> pd.DataFrame:
    """One line a kernel of a call, in their order; units are in the names of the columns."""
    return pd.DataFrame([_line(call, kernel) for call in found for kernel in call.kernels])


def _line(call: Call, kernel: Kernel) -> dict[str, Any]:
    done, seen, made = kernel.work, kernel.counters, kernel.compiled
    counted = ("read_bytes", "write_bytes", "requested_bytes", "hbm_read_bytes", "hbm_write_bytes", "exps")
    from_ncu = ("hbm_read_bytes", "hbm_write_bytes", "l2_read_bytes", "l2_write_bytes", "l2_hit_share", "tensor_share",
                "occupancy_share")  # fmt: skip
    return {
        "device": call.target, "predicted": call.predicted, "case_id": call.row.case_id,
        **{name: call.case.get(name) for name in ("system", "B", "T", "H", "K", "V", "dtype", "mode", "chunk",
                                                  "sub_chunk", "materialize", "gate_strength", *PLANNED,
                                                  "initial_state")},
        "call_ms": call.measured.median, "kernels_ms": call.kernels_ms, "gaps_ms": call.gaps_ms,
        "floor_ms": call.floor_ms, "kernel": kernel.name, "step": kernel.step, "direction": kernel.direction,
        "launches": kernel.count, "ms": kernel.ms, "ms_lo": kernel.time.low, "ms_hi": kernel.time.high,
        "samples": kernel.time.samples, "predicted_ms": kernel.predicted_ms, "share": kernel.share,
        "bound_by": kernel.binding, "bound_ms": kernel.bound_ms, "slack_ms": kernel.slack_ms,
        **{f"{name}_bound_ms": kernel.bounds.get(name, math.nan) for name in RESOURCES},
        "tensor_flops": tensor_flops(done), "vector_flops": number(done.get("vector_flops")),
        **{name: number(done.get(name)) for name in counted},
        "flops_per_s": kernel.flops_per_s, "bytes_per_s": kernel.bytes_per_s, "flop_per_byte": kernel.intensity,
        **{f"ncu_{name}": number(seen.get(name)) for name in from_ncu},
        **{name: made.get(name) for name in ("registers", "spill_bytes", "shared_bytes", "programs_per_sm")},
    }  # fmt: skip
