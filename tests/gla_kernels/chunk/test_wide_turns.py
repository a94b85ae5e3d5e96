"""Heads of K = 256 in slices that take turns, without materialized states, by Hopper's own walks: both directions
against float64. On a CPU the kernels' source runs (gluon_on_cpu.py), and Triton's interpreter beside it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from gla_kernels import Plan, Schedule, Workload, chunk, default_config, reference
from gla_kernels import schedule as config
from gla_kernels.chunk.problem import Problem
from gla_kernels.plan.apply import problem_of
from gla_kernels.plan.choose import with_walks
from gla_kernels.plan.limits import why_not
from gla_kernels.tiles.slices import Share

ERROR = 2.9e-3  # of the norm: to round the result and both operands of a product to bfloat16, 1.66e-3 each
SCHEDULE = Schedule(64, 64, False)
GATES: dict[str, Any] = {
    "weak": lambda g: 0.03 * g,  # that a state shows a slice behind
    "strong": lambda g: torch.where((torch.arange(g.shape[1]) // 64 % 2 == 1)[:, None, None], 20 * g, 0.1 * g),
    "resets": lambda g: torch.where(torch.rand_like(g) < 0.01, -1e4, 0.3 * g),
}


@pytest.fixture(autouse=True)
def turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """One head is enough, and two chunks' states fill the buffer."""
    monkeypatch.setattr(config, "HEADS_IN_TURN", 1)
    monkeypatch.setattr(chunk.parted, "segments_at_once", lambda *_: 2)


def problem(B: int, T: int, H: int, V: int, device: str = "meta") -> Problem:
    work = Workload("fwd", B, T, H, 256, V)
    plan = Plan(SCHEDULE, with_walks(default_config(256, V, 2, SCHEDULE), work))
    assert why_not(plan, work, 90) is why_not(plan, replace(work, direction="bwd"), 90) is None
    q, v = (torch.empty(B, T, H, D, dtype=torch.bfloat16, device=device) for D in (256, V))
    return problem_of(q, q, v, q, 1 / 16, None, plan)


@pytest.mark.parametrize(
    ("shape", "gates", "gate_type", "keep", "group"),
    [
        ((2, 140, 1, 64), "resets", torch.bfloat16, True, ()),
        ((1, 160, 1, 128), "weak", torch.float32, False, ()),
        ((1, 129, 2, 64), "strong", torch.bfloat16, False, (1, 1)),
    ],
)
def test_both_directions(launch, place, monkeypatch, shape, gates, gate_type, keep, group):
    """group: sequences, and heads, that the backward pass works on at once."""
    torch.manual_seed(0)
    (B, T, H, V), K = shape, 256
    q, k = (torch.randn(B, T, H, K).bfloat16() for _ in range(2))
    v, do = (torch.randn(B, T, H, V).bfloat16() for _ in range(2))
    g = GATES[gates](torch.nn.functional.logsigmoid(torch.randn(B, T, H, K))).to(gate_type)
    first, d_last = (torch.randn(B, H, K, V) for _ in range(2))

    wide_q, wide_k, wide_v, wide_g, start = exact = tuple(x.double().requires_grad_() for x in (q, k, v, g, first))
    o, state = reference.recurrent(wide_q, wide_k, wide_v, wide_g, None, start)
    right = {"o": o.detach(), "last": state.detach()}
    found = torch.autograd.grad((o * do.double()).sum() + (state * d_last.double()).sum(), exact)
    right |= dict(zip(("dq", "dk", "dv", "dg", "d_first"), found, strict=True))

    if group:
        share = Share(group[0], group[1], 2, True)
        monkeypatch.setattr(chunk.parted, "share_of", lambda *_: share)
    given = {name: x.to(place.device) for name, x in {"q": q, "k": k, "v": v, "g": g, "initial_state": first}.items()}
    p, steps = replace(problem(B, T, H, V, place.device), **given), list[str]()

    def run(one):
        steps.append(one.step)
        launch(one)

    o, last, kept = chunk.forward(p, True, run, keep)
    assert len(p.slices) == -(-T // 128)
    assert "output" not in steps
    grads = chunk.backward(p, do.to(place.device), d_last.to(place.device), run, kept)
    assert steps.count("grad_walk") == len(p.slices) * len(p.head_groups)
    assert "grad_v" not in steps
    assert last is not None
    assert grads.initial_state is not None
    got = {"o": o, "last": last, "dq": grads.q, "dk": grads.k, "dv": grads.v, "dg": grads.g}
    for name, x in (got | {"d_first": grads.initial_state}).items():
        assert x is not None
        assert (x.cpu().double() - right[name]).norm() <= ERROR * right[name].norm(), name


def test_what_is_prepared_is_of_a_slice():
    found: list[Any] = []
    p = problem(3, 300, 2, 128)
    chunk.forward(p, False, found.append, keep=False)
    made = [one.args["p_qd"].shape for one in found if one.step == "prepare"]
    assert made == [(3, 128, 2, 256), (3, 128, 2, 256), (3, 44, 2, 256)]
    walks = [one for one in found if one.step == "walk"]
    assert len({repr(one.constexprs) for one in walks}) == 1  # one kernel serves all
