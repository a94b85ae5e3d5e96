"""A sequence in two parts, each worked on in steps, with what they add to states exchanged in between: both directions
against float64. On a CPU the source of Hopper's own kernels runs, too (gluon_on_cpu.py)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from gla_kernels import Plan, Schedule, Workload, chunk, default_config, reference
from gla_kernels.chunk.pairs import meeting_of, message_of
from gla_kernels.chunk.problem import Problem
from gla_kernels.chunk.shards import Added, gradients_added, states_added
from gla_kernels.plan.apply import problem_of
from gla_kernels.plan.choose import with_walks
from gla_kernels.plan.limits import why_not

ERROR = 2.9e-3  # of the norm: to round the result and both operands of a product to bfloat16, 1.66e-3 each


@pytest.mark.each_value
@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize(
    ("K", "V", "every"), [(256, 64, 1), (256, 64, None), (128, 64, 1), (64, 128, None)], ids=lambda x: str(x)
)
def test_two_parts(launch: Any, place: Any, K: int, V: int, every: int | None, keep: bool) -> None:
    torch.manual_seed(0)
    B, T, H, at = 1, 270, 1, 140
    shapes = {"q": K, "k": K, "v": V, "g": K, "do": V}
    x = {name: torch.randn(B, T, H, size) for name, size in shapes.items()}
    x["g"] = 0.05 * torch.nn.functional.logsigmoid(x["g"])  # that a state shows a part behind
    x = {name: y.bfloat16() for name, y in x.items()}
    first, d_last = (torch.randn(B, H, K, V) for _ in range(2))

    leaves = [y.double().requires_grad_() for y in (x["q"], x["k"], x["v"], x["g"], first)]
    q, k, v, g, start = leaves
    o, last = reference.recurrent(q, k, v, g, None, start)
    found = torch.autograd.grad([o, last], leaves, [x["do"].double(), d_last.double()])
    right = {"o": o.detach(), "last": last.detach()} | dict(zip(("q", "k", "v", "g", "first"), found, strict=True))

    schedule = Schedule(64, 64, True, every)
    work = Workload("fwd", B, at, H, K, V)
    plan = Plan(schedule, with_walks(default_config(K, V, 2, schedule), work))
    assert why_not(plan, work, 90) is why_not(plan, replace(work, direction="bwd"), 90) is None
    x = {name: y.to(place.device) for name, y in x.items()}
    first, d_last = first.to(place.device), d_last.to(place.device)
    parts = [{name: y[:, rows].contiguous() for name, y in x.items()} for rows in (slice(at), slice(at, T))]

    def problem(part: int, state: Tensor | None) -> Problem:
        q, k, v, g = (parts[part][name] for name in "qkvg")
        return problem_of(q, k, v, g, K**-0.5, state, plan)

    def met(p: Problem, added: Added, messages: list[Any], decays: list[Any], part: int, reverse: bool) -> Tensor:
        for _, written in messages:
            launch(written)
        said, decayed = (torch.stack([message for message, _ in sent]) for sent in (messages, decays))
        state, launched = meeting_of(p, added, said, decayed, part, reverse)
        launch(launched)
        return state

    front, back = problem(0, first), problem(1, None)
    added = [states_added(p, launch) for p in (front, back)]
    said = [message_of(p, one, p.chain_start, False) for p, one in zip((front, back), added, strict=True)]
    back = problem(1, met(back, added[1], said, said, 1, False))
    runs = [
        chunk.forward(p, True, launch, keep, p.states_apart, one) for p, one in zip((front, back), added, strict=True)
    ]
    parts_of = list(zip((front, replace(back, d_final=d_last)), parts, runs, strict=True))
    owed = [gradients_added(p, part["do"], run[2], launch) for p, part, run in parts_of]
    said_back = [message_of(p, one, p.chain_end, True) for (p, _, _), one in zip(parts_of, owed, strict=True)]
    leaving = met(front, owed[0], said_back, said, 0, True)
    gradients = [
        chunk.backward(p, part["do"], d_state, launch, run[2], one)
        for (p, part, run), d_state, one in zip(parts_of, (leaving, d_last), owed, strict=True)
    ]

    got = {"o": torch.cat([run[0] for run in runs], 1), "last": runs[1][1], "first": gradients[0].initial_state}
    got |= {name: torch.cat([getattr(one, name) for one in gradients], 1) for name in "qkvg"}
    for name, y in got.items():
        assert y is not None
        y = y.double().cpu()
        assert (y - right[name]).norm() <= ERROR * right[name].norm(), name
