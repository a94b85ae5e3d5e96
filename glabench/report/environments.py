"""Where rows come from, in words: machines, versions, the state of the source tree, clocks while timing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from glabench.analysis.load import device
from glabench.report import text
from glabench.store import Row

NAMES = {
    "capability": "compute capability", "memory_bytes": "memory", "copy_bytes_per_s": "copy bandwidth, measured",
    "driver": "driver", "cuda": "CUDA", "torch": "torch", "triton": "triton", "python": "Python",
    "glabench": "glabench", "commit": "commit", "dirty": "source tree", "fingerprint": "source fingerprint",
    "os": "system",
    "cpu_count": "CPU cores", "threads": "threads of torch",
}  # fmt: skip


# Rows that agree in these come from one place.
SAME = ("device", "driver", "torch", "triton", "commit", "dirty", "fingerprint")
READ = (
    ("sm_mhz", "SM clock by NVML", "MHz"),
    ("sm_mhz_counted", "SM clock counted", "MHz"),
    ("power_w", "power", "W"),
    ("temperature_c", "temperature", "°C"),
)


@dataclass(frozen=True)
class Environment:
    """One place that rows came from."""

    device: str
    rows: int
    facts: tuple[tuple[str, str], ...]
    warnings: tuple[str, ...]


def environments(rows: Sequence[Row]) -> list[Environment]:
    """One entry for each distinct environment, the one with most rows first."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        key = tuple(str(row.environment.get(name)) for name in SAME)
        groups.setdefault(key, []).append(row)
    found = [_environment(group) for group in groups.values()]
    return sorted(found, key=lambda e: -e.rows)


def commits(rows: Sequence[Row]) -> str:
    """The commits that rows are of: "commit 0123456"; empty where none says."""
    known = sorted({str(row.environment["commit"])[:7] for row in rows if row.environment.get("commit")})
    return f"commit{'s' if len(known) > 1 else ''} {text.listing(known)}" if known else ""


def _environment(rows: list[Row]) -> Environment:
    facts = rows[0].environment
    said = [(title, _fact(name, facts[name])) for name, title in NAMES.items() if facts.get(name) is not None]
    gpus = {row.environment["gpu_uuid"] for row in rows if row.environment.get("gpu_uuid")}
    if len(gpus) > 1:
        said.append(("GPUs", f"{len(gpus)} of this model, not quite as fast as each other"))
    started = sorted(row.started for row in rows if row.started)
    if started:
        ends = list(dict.fromkeys(moment[:16].replace("T", " ") for moment in (started[0], started[-1])))
        said.append(("measured", f"{' to '.join(ends)} UTC"))
    if all(row.profile is not None for row in rows):
        said.append(("rows of", "glabench profile"))
    warnings = []
    if facts.get("dirty"):
        warnings.append("The source tree had uncommitted changes: the commit does not say exactly what ran.")
    return Environment(
        device(rows[0]), len(rows), (*said, *_clocks(rows)), (*warnings, *_launch_bound(rows), *_throttled(rows))
    )


def _fact(name: str, value: Any) -> str:
    if name == "memory_bytes":
        return f"{text.number(value / 2**30)} GiB"
    if name == "copy_bytes_per_s":
        return f"{text.number(value / 1e12)} TB/s, read + write"
    if name == "dirty":
        return "with uncommitted changes" if value else "clean"
    return str(value)[:12] if name == "commit" else str(value)


def _clocks(rows: list[Row]) -> list[tuple[str, str]]:
    """The range over the rows of what was read while timing."""
    said = []
    for key, title, unit in READ:
        seen = [float(row.clocks[key]) for row in rows if row.clocks and row.clocks.get(key) is not None]
        if seen:
            span = f"{min(seen):,.0f}" if min(seen) == max(seen) else f"{min(seen):,.0f} to {max(seen):,.0f}"
            most = max(float(row.clocks.get(f"{key}_max") or 0) for row in rows if row.clocks)
            said.append((f"{title} while timing", f"{span} {unit}" + (f", of at most {most:,.0f}" if most else "")))
    return said


def _launch_bound(rows: list[Row]) -> list[str]:
    n = sum(bool((row.time or {}).get("launch_bound")) for row in rows)
    if not n:
        return []
    why = "Python was slower to queue the call than the GPU is kept waiting: part of the time may be Python's."
    return [f"In {text.count(n, 'case')} {why}"]


def _throttled(rows: list[Row]) -> list[str]:
    reasons = Counter(reason for row in rows if row.clocks for reason in row.clocks.get("throttle") or [])
    return [
        f"Clocks were held back in {text.count(n, 'case')}: {reason.replace('_', ' ')}."
        for reason, n in reasons.most_common()
    ]


def mixed(found: Sequence[Environment]) -> str:
    """A warning when rows of one device come from different sources or versions; empty when they do not."""
    counts = Counter(environment.device for environment in found)
    several = [name for name, n in counts.items() if n > 1]
    if not several:
        return ""
    return f"Rows of {text.listing(several)} come from different commits, versions or trees; compare them with care."
