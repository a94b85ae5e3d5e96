"""Lists the launches of a tiny table, in a process that compiles; prints JSON."""

from __future__ import annotations

import json
from dataclasses import replace

from gla_kernels import Entry, Plan, Schedule, Workload, default_config
from gla_kernels.plan.choose import with_walks
from gla_kernels.plan.table import Header, Table
from glabench.hardware.lowered import lowered
from glabench.tools.launches import lines_of
from glabench.tools.listing import shipped


def table() -> Table:
    """Two plans for Hopper: one with fused scans, one without."""
    schedule = Schedule(64)
    config = default_config(64, 64, 2, schedule)
    entries = [
        Entry(work, Plan(schedule, with_walks(config, work) if work.H == 2 else config), 1.0)
        for work in (Workload("fwd", 1, 300, 2, 64, 64), Workload("bwd", 1, 300, 4, 64, 64))
    ]
    return Table(Header("NVIDIA H200", 1, 90, "3.6.0", "0" * 16, "0" * 16), tuple(entries))


def main() -> None:
    found = list(shipped([table()], (90,)))
    hopper = next(one for one in found if one.launch.in_gluon)
    portable = next(one for one in found if not one.launch.in_gluon)
    wrong = replace(portable, launch=replace(portable.launch, num_warps=3))
    answer = {
        "one": lines_of(found),
        "two": lines_of(found[::3], jobs=2),
        "wrong": lines_of([wrong]),
        "ir": [lowered(one.launch, 90) for one in (hopper, portable)],
        "ptx": [lowered(one.launch, 90, "ptx") for one in (hopper, portable)],
        "a100": lowered(portable.launch, 80, "ptx"),
        "names": [hopper.launch.name, portable.launch.name],
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
