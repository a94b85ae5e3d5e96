"""Plans that come with the package are right at any gate strength: the tuner's gate saw them at one shape alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from gla_kernels import Plan, gla, machine_of
from gla_kernels.plan.files import shipped_tables
from gla_kernels.plan.limits import why_not
from gla_kernels.plan.table import Entry


def cases() -> Iterator[Any]:
    """Each different plan of each shipped table once, with the capability that it was tuned for."""
    seen = set()
    for table in shipped_tables():
        for entry in table.entries:
            work = entry.work
            one = (table.header.capability, work.direction, work.K, work.V, work.dtype, work.gated, entry.plan)
            if one not in seen:
                seen.add(one)
                name = f"{work.direction}-{work.B * work.H}x{work.T}x{work.K}x{work.V}"
                yield pytest.param(table.header.capability, entry, id=name)


@pytest.mark.gpu
@pytest.mark.parametrize("gates", ["resets", 1.0, 40.0])
@pytest.mark.parametrize(("capability", "entry"), list(cases()))
def test_a_shipped_plan_is_right(judge, inputs, capability: int, entry: Entry, gates):
    if machine_of().capability != capability:
        pytest.skip(f"tuned for compute capability {capability / 10}")
    work, plan = entry.work, entry.plan
    if plan.schedule.states_every is not None:  # four segments of so few tokens, the last one short
        plan = replace(plan, schedule=replace(plan.schedule, states_every=320 // plan.schedule.chunk))
    plans: tuple[Plan | None, Plan | None] = (plan, None) if work.direction == "fwd" else (None, plan)
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[work.dtype]
    few = replace(work, B=1, T=1001, H=2)
    heads = 2 if why_not(plan, few, capability) is None else work.B * work.H  # slices that take turns want many
    given = inputs((1, 1001, heads, work.K, work.V), dtype, gates if work.gated else None)
    judge(lambda q, k, v, g, s: gla(q, k, v, g, initial_state=s, output_final_state=True, config=plans), given)


def test_there_are_shipped_plans():
    assert [table.header.device for table in shipped_tables()] == ["NVIDIA H100 80GB HBM3", "NVIDIA H200"]
    assert all(not table.refused for table in shipped_tables())
