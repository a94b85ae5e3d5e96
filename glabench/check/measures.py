"""The verdicts on what is not time: memory, what is kept of it for the backward pass, spilled registers and accuracy.
They do not jitter: one run will do, the last one that has the figure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from glabench.check.comparable import CONDITIONS, difference
from glabench.errors import in_one_line
from glabench.store import Row

T = TypeVar("T")
Keyed = dict[tuple[str, str], T]  # by kernel and architecture
# Memory that a call needs beyond its inputs, or keeps: more of it counts from 1 % and 1 MiB on, less is the allocator's
# rounding.
MEMORY_SHARE, MEMORY_BYTES = 0.01, 2**20
# An error that grew counts from 10 % on, if that is also 2 % of what the gate allows: another order of summation moves
# errors that are far below what is allowed. An error beyond what is allowed makes the row "wrong" before it gets here.
ERROR_GROWTH, ERROR_SHARE = 0.10, 0.02


@dataclass(frozen=True)
class Finding:
    """One verdict: ``worse``, ``better`` or ``same``, and in words what changed."""

    measure: str  # memory, kept, spills or accuracy
    verdict: str
    words: str


def findings(before: Sequence[Row], after: Sequence[Row]) -> list[Finding]:
    """What can be compared of the runs of one case, each of them ok, oldest first."""
    found = (
        _memory(before, after, "memory", "beyond_inputs_bytes", "beyond the inputs"),
        _memory(before, after, "kept", "kept_bytes", "kept for the backward pass"),
        _spills(_last(before, "compiled"), _last(after, "compiled")),
        _accuracy(_last(before, "accuracy"), _last(after, "accuracy")),
    )
    return [finding for finding in found if finding is not None]


def _last(runs: Sequence[Row], field: str) -> Row:
    """The last run that has this field, or else the last one."""
    return next((run for run in reversed(runs) if getattr(run, field)), runs[-1])


def _memory(before: Sequence[Row], after: Sequence[Row], measure: str, key: str, what: str) -> Finding | None:
    """Another GPU or another torch has another allocator: only with equal conditions. A row may have no figure."""
    sides = [
        next((run for run in reversed(runs) if _bytes(run, key) is not None), runs[-1]) for runs in (before, after)
    ]
    old, new = (_bytes(row, key) for row in sides)
    if old is None or new is None or difference(*sides) is not None:
        return None
    words = f"{old / 2**20:,.1f} MiB {what} before, {new / 2**20:,.1f} MiB now"
    margin = max(MEMORY_BYTES, MEMORY_SHARE * old)
    verdict = "worse" if new - old > margin else "better" if old - new > margin else "same"
    return Finding(measure, verdict, words)


def _bytes(row: Row, key: str) -> int | None:
    found = (row.memory or {}).get(key)
    return None if found is None else int(found)


def _spills(before: Row, after: Row) -> Finding | None:
    """By kernel and architecture, of those that both have. A kernel that is new counts only if all spills of its
    architecture together grew: work may move."""
    if not before.compiled or not after.compiled or not _same_compiler(before, after):
        return None
    failed_before, failed_now = _failed(before.compiled), _failed(after.compiled)
    old, new = _spilled(before.compiled), _spilled(after.compiled)
    broken = [
        f"{kernel} ({arch}) no longer compiles: {in_one_line(error)}"
        for (kernel, arch), error in failed_now.items()
        if (kernel, arch) not in failed_before and _compiled(kernel, arch, old, failed_before)
    ]
    for key in failed_before.keys() - failed_now.keys():  # what compiles at last has no spills before
        old.pop(key, None)
        new.pop(key, None)
    both = {arch for _, arch in old} & {arch for _, arch in new}
    old, new = ({key: spilled for key, spilled in side.items() if key[1] in both} for side in (old, new))
    grew = {arch for arch in both if _of_arch(new, arch) > _of_arch(old, arch)}
    worse = broken + [
        f"{kernel} ({arch}) spills {new[kernel, arch]} B, {old.get((kernel, arch), 0)} before"
        for kernel, arch in new
        if new[kernel, arch] > old.get((kernel, arch), 0) and ((kernel, arch) in old or arch in grew)
    ]
    if worse:
        return Finding("spills", "worse", "; ".join(worse))
    total = f"{sum(old.values())} B spilled before, {sum(new.values())} B now"
    return Finding("spills", "better" if sum(new.values()) < sum(old.values()) else "same", total)


def _of_arch(spilled: Keyed[int], arch: str) -> int:
    return sum(count for (_, of), count in spilled.items() if of == arch)


def _compiled(kernel: str, arch: str, old: Keyed[int], failed: Keyed[str]) -> bool:
    """Whether the kernel compiled before or, where it is new, all kernels of its architecture did."""
    return (kernel, arch) in old or (any(a == arch for _, a in old) and all(a != arch for _, a in failed))


def _failed(compiled: list[dict[str, Any]]) -> Keyed[str]:
    """Why kernels did not compile; one of several launches that fails is enough."""
    return {
        (str(kernel.get("kernel")), str(kernel.get("arch"))): str(kernel["error"])
        for kernel in compiled
        if kernel.get("error")
    }


def _spilled(compiled: list[dict[str, Any]]) -> Keyed[int]:
    """The most that any launch of a kernel spills."""
    found: Keyed[int] = {}
    for kernel in compiled:
        if not kernel.get("error"):
            key = str(kernel.get("kernel")), str(kernel.get("arch"))
            found[key] = max(found.get(key, 0), int(kernel.get("spill_bytes") or 0))
    return found


def _same_compiler(before: Row, after: Row) -> bool:
    title, parts = CONDITIONS["triton"]
    versions = [str(row.environment.get(title)).split(".")[:parts] for row in (before, after)]
    return versions[0] == versions[1]


def _accuracy(before: Row, after: Row) -> Finding | None:
    """The errors of the same outputs on the same inputs, against the same reference."""
    old, new = before.accuracy, after.accuracy
    if not old or not new or any(old.get(key) != new.get(key) for key in ("where", "shape", "reference", "pairs")):
        return None
    changes = list(_errors(old.get("outputs") or {}, new.get("outputs") or {}))
    worse = [words for grew, words in changes if grew > 0]
    if worse:
        return Finding("accuracy", "worse", "; ".join(worse))
    better = [words for grew, words in changes if grew < 0]
    return Finding("accuracy", "better" if better else "same", "; ".join(better) or "errors as before")


def _errors(old: dict[str, Any], new: dict[str, Any]) -> Iterator[tuple[int, str]]:
    """(1, 0 or -1 for grew, stayed or shrank; the words) of each output that both have."""
    for name in old:
        figures = [old[name].get("error"), *(new.get(name, {}).get(key) for key in ("error", "tolerance"))]
        if None in figures:
            continue
        a, b, allowed = map(float, figures)
        counts = abs(b - a) > ERROR_SHARE * allowed
        grew = (b > (1 + ERROR_GROWTH) * a) - (a > (1 + ERROR_GROWTH) * b) if counts else 0
        yield grew, f"{name} off by {a:.2e} before, {b:.2e} now ({allowed:.2e} is allowed)"
