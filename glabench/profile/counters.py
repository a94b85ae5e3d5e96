"""Hardware counters of every kernel of a call, by Nsight Compute (``ncu``), where it is installed and allowed.

``ncu`` runs a process of its own (``profile.ncu_target``) and repeats each kernel as often as the counters need, the
caches flushed and invalidated before each, clocks left as they are. Bytes at HBM are thus those of a cold kernel alone;
of what it writes, they miss what the L2 still holds when it ends. Kernels of a CUDA graph are counted one by one, as
those that are launched by themselves: `--graph-profiling node` is what ncu does by default.
"""

from __future__ import annotations

import contextlib
import csv
import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from glabench.hardware.environment import find_ncu
from glabench.spec.case import Case

LIMIT_S = 300.0
QUERY_LIMIT_S = 60.0
SECTOR_BYTES = 32
MOST_STALLS = 5

# What is asked for, by what the row calls it: the first of the names that the GPU has. Chips and versions differ.
METRICS: dict[str, tuple[str, ...]] = {
    "ms": ("gpu__time_duration.sum",),
    "hbm_read_bytes": ("dram__bytes_read.sum", "dram__bytes_op_read.sum"),
    "hbm_write_bytes": ("dram__bytes_write.sum", "dram__bytes_op_write.sum"),
    # Those that the SMs ask for. Of all, whoever asks, half are counted twice where an L2 has two partitions (A100 and
    # later): a request for the other one's half is looked up in both.
    "l2_read_bytes": ("lts__t_sectors_srcunit_tex_op_read.sum", "lts__t_sectors_op_read.sum"),
    "l2_write_bytes": ("lts__t_sectors_srcunit_tex_op_write.sum", "lts__t_sectors_op_write.sum"),
    "l2_hit_share": ("lts__t_sector_hit_rate.pct",),
    "tensor_share": (
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
        "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active",  # wgmma too
        "sm__pipe_tensor_subpipe_hmma_cycles_active.avg.pct_of_peak_sustained_active",  # Blackwell
        "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active",
    ),
    "occupancy_share": ("sm__warps_active.avg.pct_of_peak_sustained_active",),
    "registers": ("launch__registers_per_thread",),
}
TO_MS = {"s": 1e3, "second": 1e3, "ms": 1.0, "msecond": 1.0, "us": 1e-3, "usecond": 1e-3, "ns": 1e-6, "nsecond": 1e-6}

# Why warps wait, in warps per issued instruction; "selected" ones do not.
STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
STALLS = (
    "barrier", "branch_resolving", "dispatch_stall", "drain", "gmma", "imc_miss", "lg_throttle", "long_scoreboard",
    "math_pipe_throttle", "membar", "mio_throttle", "misc", "no_instruction", "not_selected", "short_scoreboard",
    "sleeping", "tex_throttle", "wait",
)  # fmt: skip

# What ncu says when it cannot be used, with what can be done about it.
REMEDIES = (
    ("ERR_NVGPUCTRPERM", "this user may not read the GPU's performance counters (ERR_NVGPUCTRPERM)"),
    ("LibraryNotLoaded", "a library of the driver that reads counters is missing (LibraryNotLoaded)"),
)
UNKNOWN_METRIC = re.compile(r"Failed to find metric (?:regex:\^)?([A-Za-z0-9_]+)")


@dataclass(frozen=True)
class Counted:
    """What ncu came to: (kernel, its counters) of each launch in order, or why there is none."""

    version: str | None
    refused: str | None
    launches: tuple[tuple[str, dict[str, Any]], ...] = ()


class Refused(Exception):
    """ncu did not count, in one line."""


def count(case: Case, ncu: str | None = None) -> Counted:
    """Counters of one call of the case. Takes a minute; whatever ncu does, an answer comes back."""
    tool = ncu or find_ncu()
    if tool is None:
        return Counted(None, "ncu was not found: it comes with the CUDA toolkit, or as Nsight Compute")
    version = _version(tool)
    try:
        launches = tuple(_counted(tool, case))
    except Refused as error:
        return Counted(version, str(error))
    return Counted(version, None, launches)


def _counted(tool: str, case: Case) -> list[tuple[str, dict[str, Any]]]:
    """Run ncu until it knows every metric that it is asked for: an unknown one ends it."""
    wanted = metrics(available(tool))
    while True:
        status, text = _run(command(tool, case, wanted), LIMIT_S)
        unknown = {name for name in wanted if name.split(".")[0] in set(UNKNOWN_METRIC.findall(text))}
        if not unknown:
            break
        wanted = [name for name in wanted if name not in unknown]
    launches = parse(text)
    if not launches:
        raise Refused(refusal(text, status))
    return launches


def metrics(known: Collection[str]) -> list[str]:
    """The metrics to ask for. known: what the GPU has, by name without its suffix; empty when that is not known."""
    wanted = [name for names in METRICS.values() for name in names]
    wanted += [STALL.format(reason) for reason in STALLS]
    return [name for name in wanted if not known or name.startswith("launch__") or name.split(".")[0] in known]


@cache
def available(tool: str) -> frozenset[str]:
    """Names of the metrics that this machine's GPU has, without suffix; none when ncu does not tell."""
    try:
        _, text = _run([tool, "--query-metrics"], QUERY_LIMIT_S)
    except Refused:
        return frozenset()
    return frozenset(re.findall(r"^\s*([a-z0-9]+__\w+)", text, re.MULTILINE))


def command(tool: str, case: Case, wanted: Iterable[str]) -> list[str]:
    """How ncu is called: one process, only what runs between the profiler's start and stop, CSV in base units."""
    options = {
        "--profile-from-start": "off",
        "--target-processes": "application-only",
        "--clock-control": "none",
        "--cache-control": "all",
        "--page": "raw",
        "--print-units": "base",
        "--print-kernel-base": "demangled",
        "--metrics": ",".join(wanted),
    }
    target = [sys.executable, "-m", "glabench.profile.ncu_target", json.dumps(case.to_dict())]
    return [tool, "--csv", *(word for pair in options.items() for word in pair), *target]


def _run(command: list[str], limit_s: float) -> tuple[int, str]:
    """(exit code, all that was printed). Raises Refused when it cannot be run or takes too long."""
    with tempfile.TemporaryDirectory() as folder:
        # Locks of ncu's own lie in the temporary folder, where another user's may be in the way.
        env = os.environ | {"LC_ALL": "C", "TMPDIR": folder}
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env=env,
            )
        except OSError as error:
            raise Refused(f"{Path(command[0]).name} cannot be run: {error.strerror}") from None
        with process:
            try:
                text, _ = process.communicate(timeout=limit_s)
            except subprocess.TimeoutExpired:
                raise Refused(f"ncu took longer than {limit_s:g} s") from None
            finally:
                if process.poll() is None:
                    _kill(process.pid)
    return process.returncode, text


def _kill(pid: int) -> None:
    """Kill a process and all that it has started: what ncu profiles would keep the GPU while other cases are timed."""
    for one in (*_started_by(pid), pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)


def _started_by(pid: int) -> Iterator[int]:
    """The processes that a process has started, and theirs, as far as /proc tells."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # gone meanwhile
            # The name, in brackets, may hold anything; the state and the parent follow.
            parents[int(path.parent.name)] = int(path.read_text(errors="replace").rpartition(")")[2].split()[1])
    found = {pid}
    while more := {one for one, parent in parents.items() if parent in found} - found:
        found |= more
        yield from more


def _version(tool: str) -> str | None:
    try:
        _, text = _run([tool, "--version"], QUERY_LIMIT_S)
    except Refused:
        return None
    found = re.search(r"Version ([\d.]+)", text)
    return found[1] if found else None


def refusal(text: str, status: int) -> str:
    """In one line, why there are no counters, from what was printed."""
    for mark, meaning in REMEDIES:
        if mark in text:
            return meaning
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line.removeprefix("==ERROR==").strip() for line in lines if line.startswith("==ERROR==")]
    said = [line for line in lines if not line.startswith("==")]
    last = errors[0] if errors else said[-1] if said else "nothing was printed"
    return f"ncu ended with exit code {status}: {last}"[:300]


def parse(text: str) -> list[tuple[str, dict[str, Any]]]:
    """(kernel, counters) of each launch in ncu's CSV, which other lines surround: first the names of the columns, then
    their units, then a line a launch. Empty without such lines."""
    lines = text.splitlines()
    first = next((number for number, line in enumerate(lines) if line.startswith('"ID",')), None)
    if first is None:
        return []
    header, *rows = csv.reader(line for line in lines[first:] if line.startswith('"'))
    units: dict[str, str] = {}
    launches = []
    for row in rows:
        values = dict(zip(header, row, strict=False))
        if not values["ID"]:
            units = values
        else:
            launches.append((values["Kernel Name"], counters(values, units)))
    return launches


def counters(values: Mapping[str, str], units: Mapping[str, str]) -> dict[str, Any]:
    """The row's ``counters`` of a launch; None for what was not counted."""
    found: dict[str, Any] = {}
    for key, names in METRICS.items():
        name, value = next(((n, x) for n in names if (x := _number(values.get(n))) is not None), (names[0], None))
        found[key] = value
        if value is None:
            continue
        if key == "ms":
            scale = TO_MS.get(units.get(name, "ns"))
            found[key] = None if scale is None else value * scale
        elif key.startswith("l2_") and key.endswith("_bytes"):
            found[key] = value * SECTOR_BYTES
        elif key.endswith("_share"):
            found[key] = value / 100
    return found | {"stalls": stalls(values)}


def stalls(values: Mapping[str, str]) -> dict[str, float]:
    """The reasons that make warps wait most, largest first."""
    found = {reason: _number(values.get(STALL.format(reason))) for reason in STALLS}
    known = sorted(((value, reason) for reason, value in found.items() if value), reverse=True)
    return {reason: value for value, reason in known[:MOST_STALLS]}


def _number(text: str | None) -> float | None:
    """ncu's "1,234.5"; None for "n/a", "nan" and what is missing."""
    try:
        value = float((text or "").replace(",", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) else None
