"""What profiles are called in words: cases, kernels, what binds them, and what explains their traffic."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from glabench.analysis import labels
from glabench.analysis.bounds import RESOURCES
from glabench.analysis.profile import Call, Kernel
from glabench.analysis.traffic import (
    READS_IN_L2,
    READS_LOST,
    READS_MISSED,
    READS_MORE,
    READS_SPILLED,
    REREADS,
    WITHIN,
    WRITES_IN_L2,
    WRITES_LOST,
    WRITES_MORE,
    WRITES_SPILLED,
    Traffic,
)
from glabench.report import text

RESOURCE = {
    "hbm": "HBM", "l2": "L2", "tensor": "tensor cores", "cuda": "CUDA cores", "exps": "exponentials",
    "launch": "being launched",
}  # fmt: skip
MIB = 2**20
SAID = {
    WITHIN: "within 10 %",
    WRITES_IN_L2: "{} of its writes were still in L2 when it ended",
    WRITES_LOST: "{} of its writes did not reach HBM, more than L2 holds",
    WRITES_SPILLED: "{} more were written: spilled registers, which L2 could not hold",
    WRITES_MORE: "{} more were written than it has to: parts of lines that L2 gave up",
    READS_IN_L2: "{} that the model reads again hit L2{}",
    READS_LOST: "{} that it has to read did not come from HBM: they were in L2 before",
    READS_SPILLED: "{} more were read: spilled registers, or re-reads that missed L2{}",
    READS_MISSED: "misses: {} of re-reads went to HBM{}",
    READS_MORE: "{} more were read than anything asks for: parts of lines",
    REREADS: "{} of re-reads hit L2{}",
}


def case(values: Mapping[str, Any]) -> str:
    """A case in short, the usual left out: "B4 T2k H16 128", "B8 T4k H4 128×256 C64/16 with states, fp32, no gates"."""
    words = [] if values["system"] == "gla" else [labels.title(str(values["system"]))]
    words += [text.shape(values), labels.schedule(values)]
    if values.get("materialize") is not None:
        words.append("with states" if values["materialize"] else "without states")
    further = [" ".join(word for word in words if word), *_conditions(values)]
    return ", ".join(further)


def _conditions(values: Mapping[str, Any]) -> list[str]:
    gate = labels.gate({"gate_strength": 1.0} | dict(values))
    strength, *more = gate.split(" ", 1)
    gates = {"none": "no gates", "1": ""}.get(gate, " ".join([f"gates {strength}×", *more]))
    dtype = "" if values["dtype"] == "bf16" else str(values["dtype"])
    state = "initial state" if values.get("initial_state") else ""
    return [word for word in (dtype, gates, state) if word]


def asked(call: Call) -> str:
    """A case with its mode, where one line has to say all."""
    return f"{case(call.case)}, {text.mode(call.case['mode'])}"


def group(key: tuple[str, bool]) -> str:
    """A GPU whose calls were measured, or one for which they are predicted."""
    name, predicted = key
    return f"{name}, predicted" if predicted else name


def kernel(one: Kernel) -> str:
    return one.name.removesuffix("_kernel") if one.step else one.name


def bytes_(count: float) -> str:
    """A number of bytes: 12.3 MiB, 840 KiB, 12 B."""
    if math.isnan(count):
        return "–"
    if count < 1024:
        return f"{count:.0f} B"
    return f"{text.number(count / MIB)} MiB" if count >= MIB else f"{text.number(count / 1024)} KiB"


def tera(rate: float, unit: str) -> str:
    """A rate in 1e12 a second: 4.21 TB/s."""
    return f"{text.number(rate / 1e12)} T{unit}/s"


def explained(traffic: Traffic) -> str:
    """The sentence for a kernel's traffic: what agrees, and what became of the rest."""
    rate = "" if math.isnan(traffic.hits) else f" (hit rate {traffic.hits:.0%})"
    clauses = [SAID[kind].format(bytes_(count), rate) for kind, count in traffic.explained()]
    return "; ".join(clauses)


def tip(call: Call, one: Kernel) -> str:
    """All numbers of a kernel, for hover text."""
    of = f", {text.number(one.time.low)} to {text.number(one.time.high)}" if one.time.samples > 1 else ""
    lines = [
        kernel(one),
        f"{case(call.case)}, {text.mode(one.direction)}",
        f"{text.number(one.ms)} ms{' predicted' if one.predicted else of}, {one.share:.0%} of all kernels",
    ]
    if one.binding:
        lines.append(f"bound by {RESOURCE[one.binding]}: {text.number(one.bound_ms)} ms")
        lines.append(f"to be won at most: {text.number(one.slack_ms)} ms")
        lines.append(f"{tera(one.bytes_per_s, 'B')}, {tera(one.flops_per_s, 'FLOP')}")
        lines.append(f"{text.number(one.intensity)} FLOP a byte of HBM, {text.number(one.l2_intensity)} of L2")
        lines.append("bounds, ms: " + ", ".join(bound_list(one)))
    if one.count > 1:
        lines.append(text.count(one.count, "launch", "launches"))
    return "\n".join(lines)


def bound_list(one: Kernel) -> list[str]:
    return [f"{RESOURCE[name]} {text.number(one.bounds[name])}" for name in RESOURCES if name in one.bounds]
