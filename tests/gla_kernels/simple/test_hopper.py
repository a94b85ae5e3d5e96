"""The walks of Hopper's own of one decay a head, that to outputs and that back to all gradients, against float64. On a
CPU their source runs (gluon_on_cpu.py), on a GPU they do."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from gla_kernels import Schedule, reference, simple_gla
from gla_kernels.launch import Launch, execute, record
from gla_kernels.simple import call, native
from gla_kernels.simple.call import Call
from gla_kernels.simple.decays import CLOSED
from gla_kernels.simple.hopper import (
    simple_grad_walk_hopper_kernel,
    simple_grad_walks_hopper_kernel,
    simple_walk_hopper_kernel,
)
from gla_kernels.simple.native import Walked, walk, walk_back, walks_apart
from gla_kernels.simple.parts import Gradients
from gla_kernels.tiles.slices import Slice

# Of the norm: what it costs to round to bfloat16, and sums of products of rounded states and scores besides.
ERROR = {"q": 4e-3, "k": 4e-3, "v": 4e-3, "g": 6e-3, "before": 4e-3, "o": 4e-3, "states": 4e-3, "after": 4e-3}
CHUNK = 64
GATES = {
    "weak": lambda g: g / 64,
    "mild": lambda g: g,
    "weak, but for some chunks": lambda g: g / torch.where(torch.arange(g.shape[1])[:, None] // CHUNK % 5 > 2, 1, 64),
    "resets": lambda g: torch.where(torch.arange(g.shape[1])[:, None] % 50 == 49, -1e4, g),
    "closed at once": lambda g: torch.where(torch.arange(g.shape[1])[:, None] % 70 == 1, -torch.inf, g),
}

EVEN = [gates for gates in GATES if "some" not in gates]


class Problem:
    """q, k, v, do in bfloat16, gates [B, T, H] in float32, the states before all chunks as a forward pass keeps them,
    the gradient of the last state, and of the float64 recurrence all gradients, that of the first state among them."""

    def __init__(self, K: int, V: int, gates: str, T: int, device: str, share: int = 1) -> None:
        B, H = 1, 2 if T < 5 * CHUNK else 1
        torch.manual_seed(0)
        g = GATES[gates](torch.nn.functional.logsigmoid(torch.randn(B, T, H)))
        x = {name: torch.randn(B, T, H, K if name in "qk" else V) for name in ("q", "k", "v", "do")}
        x = {name: one.bfloat16() for name, one in x.items()}
        x |= {name: x[name][:, :, :1].expand(B, T, H, K) for name in "qk" if share > 1}
        d_last = torch.randn(B, H, K, V)
        q, k, v, gate = (one.double().requires_grad_() for one in (x["q"], x["k"], x["v"], g))
        first = torch.randn(B, H, K, V).double().requires_grad_()
        self.scale, self.K, self.V, self.T = K**-0.5, K, V, T
        state, before, rows = first, [], []
        for t in range(0, T, CHUNK):
            before.append(state.detach())
            of = slice(t, t + CHUNK)
            row, state = reference.recurrent(q[:, of], k[:, of], v[:, of], gate[:, of, :, None], None, state)
            rows.append(row)
        o = torch.cat(rows, 1)
        total = (o * x["do"].double()).sum() + (state * d_last).sum()
        found = torch.autograd.grad(total, [q, k, v, gate, first])
        self.right = dict(zip(("q", "k", "v", "g", "before"), found, strict=True))
        self.outputs = {"o": o.detach(), "states": torch.stack(before, 2).flatten(0, 1), "after": state.detach()}
        self.first = first.detach().float().to(device)
        self.states = torch.stack(before, 2).flatten(0, 1).bfloat16().to(device)
        x |= {name: x[name][:, :, ::share].contiguous() for name in "qk"}
        self.x = {name: one.to(device) for name, one in x.items()}
        self.g, self.d_last = g.to(device), d_last.to(device)
        self.sums = sums_of(g).to(device)


def sums_of(g: Tensor) -> Tensor:
    """What `simple_decays_kernel` leaves of gates [B, T, H]: [B, H, chunks * CHUNK]."""
    g = (g.double() / math.log(2)).clamp_min(CLOSED.value)
    g = torch.nn.functional.pad(g.transpose(1, 2), (0, -g.shape[1] % CHUNK))
    return g.unflatten(-1, (-1, CHUNK)).cumsum(-1).flatten(-2)


@functools.cache
def problem(*args: Any) -> Problem:
    return Problem(*args)


def gradients(p: Problem, run: Any, slices: list[Slice], v_first: bool = False, gates: bool = True) -> dict[str, Any]:
    x = p.x
    asked = Call(x["q"], x["k"], x["v"], p.g, p.scale, None, CHUNK, True, 90, None, v_first)
    nan = math.nan
    q, k, v = (torch.full_like(x[name], nan) for name in "qkv")
    into = Gradients(q, k, v, torch.full_like(p.g, nan) if gates else None)
    parts = Walked.of(asked, into)
    for one in (parts.q, parts.k, parts.g):
        if one is not None:
            one.added.fill_(nan)
    at = p.d_last.transpose(-1, -2).contiguous() if v_first else p.d_last
    for piece in reversed(slices):
        before = torch.full_like(at, nan)
        states = p.states[:, piece.first_chunk : piece.first_chunk + piece.chunks].contiguous()
        run(walk_back(asked, p.sums, piece, x["do"], states, at, before, parts.added(into)))
        at = before
    parts.end(execute)
    return {"q": into.q, "k": into.k, "v": into.v, "g": into.g, "before": at.transpose(-1, -2) if v_first else at}


def gradients_apart(p: Problem, run: Any, v_first: bool = False, gates: bool = True) -> dict[str, Any]:
    """By a walk for each."""
    x, turned = p.x, (lambda s: s.transpose(-1, -2).contiguous()) if v_first else (lambda s: s)
    asked = Call(x["q"], x["k"], x["v"], p.g, p.scale, turned(p.first), CHUNK, True, 90, None, v_first)
    q, k, v = (torch.full_like(x[name], math.nan) for name in "qkv")
    into = Gradients(q, k, v, torch.full_like(p.g, math.nan) if gates else None)
    before = torch.full_like(turned(p.first), math.nan)

    def launch(one: Launch) -> None:
        walks = one.kernel is simple_grad_walks_hopper_kernel
        for left in (one.args["p_few"], one.args["p_sums"]) if walks and gates else ():
            left.fill_(math.nan)
        (run if walks else execute)(one)

    walks_apart(asked, p.sums, x["do"], turned(p.d_last), before, into, launch)
    return {"q": q, "k": k, "v": v, "g": into.g, "before": turned(before)}


def outputs(p: Problem, run: Any, slices: list[Slice], v_first: bool = False, keep: bool = True) -> dict[str, Any]:
    """By slices, each of which starts from the state that the one before it left."""
    asked = Call(p.x["q"], p.x["k"], p.x["v"], p.g, p.scale, p.first, CHUNK, True, 90, None, v_first)
    at = p.first.transpose(-1, -2).contiguous() if v_first else p.first
    o, states = torch.full_like(p.x["v"], math.nan), list[Any]()
    for piece in slices:
        after = torch.full_like(at, math.nan)
        stored = p.states.new_full((p.states.shape[0], piece.chunks, p.K, p.V), math.nan) if keep else None
        run(walk(asked, p.sums, piece, at, stored, after, o))
        at = after
        states.append(stored)
    found = {"o": o, "after": at.transpose(-1, -2) if v_first else at}
    return found | ({"states": torch.cat(states, 1)} if keep else {"states": None})


def check(wanted: dict[str, Tensor], found: dict[str, Any]) -> None:
    for name, right in wanted.items():
        if found[name] is None:
            continue
        off = float((found[name].double().cpu() - right).norm() / right.norm())
        assert off <= ERROR[name], f"d{name} is off by {off:.2e}"


def whole(p: Problem) -> list[Slice]:
    return [Slice(0, 1, 0, -(-p.T // CHUNK))]


@pytest.mark.parametrize("gates", EVEN)
def test_all_gradients_at_every_gate_strength(place, gates):
    p = problem(64, 64, gates, 150, place.device)
    check(p.right, gradients(p, place.run, whole(p)))


@pytest.mark.parametrize(("K", "V"), [(64, 128), (128, 64), (128, 128)])
def test_all_gradients_of_wide_heads(place, K, V):
    p = problem(K, V, "resets", 210, place.device)
    check(p.right, gradients(p, place.run, whole(p)))


def test_states_that_lie_values_first_and_slices_in_turn(place):
    p = problem(64, 64, "mild", 276, place.device)
    check(p.right, gradients(p, place.run, [Slice(0, 1, 0, 2), Slice(0, 1, 2, 3)], v_first=True))


def test_gates_without_a_gradient(place):
    p = problem(64, 64, "mild", 150, place.device)
    check(p.right, gradients(p, place.run, whole(p), gates=False))


def test_heads_that_share_those_of_q_and_k(place):
    """The recurrence is of heads of their own, with equal q and k."""
    p = problem(64, 64, "mild", 150, place.device, 2)
    found = gradients(p, place.run, whole(p))
    assert found["q"].shape == (1, p.T, 1, 64)
    right = p.right | {name: p.right[name].sum(2, keepdim=True) for name in "qk"}
    check(right, found)


@pytest.mark.parametrize("v_first", [True, False])
def test_parts_of_v_and_slices_in_turn(place, v_first):
    p = problem(64, 256, "resets", 276, place.device)
    check(p.right, gradients(p, place.run, [Slice(0, 1, 0, 2), Slice(0, 1, 2, 3)], v_first))


@pytest.mark.parametrize("gates", EVEN)
def test_a_walk_for_each_gradient_at_every_gate_strength(place, gates):
    p = problem(128, 128, gates, 150, place.device)
    check(p.right, gradients_apart(p, place.run))


@pytest.mark.parametrize(("gates", "v_first"), [("weak", True), ("weak, but for some chunks", False)])
def test_a_walk_for_each_gradient_of_wide_values_and_several_runs(place, gates, v_first):
    """Where two neighbours of 64 rows let nothing pass no states are left between them."""
    p = problem(128, 256, gates, 9 * CHUNK + 10, place.device)
    check(p.right, gradients_apart(p, place.run, v_first))


def test_a_walk_for_each_gradient_without_that_of_gates_and_of_shared_heads(place):
    p = problem(128, 128, "mild", 70, place.device, 2)
    found = gradients_apart(p, place.run, gates=False)
    check(p.right | {name: p.right[name].sum(2, keepdim=True) for name in "qk"}, found)


@pytest.mark.parametrize("gates", EVEN)
def test_outputs_and_states_at_every_gate_strength(place, gates):
    p = problem(64, 64, gates, 150, place.device)
    check(p.outputs, outputs(p, place.run, whole(p)))


@pytest.mark.parametrize(("K", "V"), [(64, 128), (128, 64), (128, 128)])
def test_outputs_of_wide_heads(place, K, V):
    p = problem(K, V, "resets", 210, place.device)
    check(p.outputs, outputs(p, place.run, whole(p)))


@pytest.mark.parametrize("v_first", [True, False])
def test_outputs_of_parts_of_v_and_slices_in_turn(place, v_first):
    p = problem(64, 256, "resets", 276, place.device)
    check(p.outputs, outputs(p, place.run, [Slice(0, 1, 0, 2), Slice(0, 1, 2, 3)], v_first))


def test_outputs_of_heads_that_share_those_of_q_and_k_with_no_states_stored(place):
    p = problem(64, 64, "mild", 150, place.device, 2)
    check(p.outputs, outputs(p, place.run, whole(p), keep=False))


@pytest.fixture
def natively(place, monkeypatch, one_by_one):
    """Calls of `simple_gla` go by the walk, however few the heads are; here are its launches."""
    walked = []
    hoppers = simple_walk_hopper_kernel, simple_grad_walk_hopper_kernel, simple_grad_walks_hopper_kernel

    def run(launch: Launch) -> None:
        own = launch.kernel in hoppers
        walked.extend([launch.kernel] * own)
        (place.run if own else execute)(launch)

    monkeypatch.setattr(native, "serves", lambda asked: asked.walks_natively)
    monkeypatch.setattr(native, "serves_forward", lambda asked: asked.outputs_natively)
    monkeypatch.setattr(native, "serves_apart", lambda asked: asked.walks_apart)
    monkeypatch.setattr(call, "NATIVE_WALKS", 1)
    monkeypatch.setattr(record, "execute", run)
    return walked


@pytest.mark.parametrize(
    ("gates", "K", "V", "share"),
    [("infinite", 64, 256, 2), ("resets", 128, 256, 1)]
    + [(gates, 64, 64, 1) for gates in (0.3, 1.0, 40.0, "closed")]
    + [(0.06, 128, 128, 2), (16.0, 128, 128, 1), pytest.param(4.0, 128, 128, 1, marks=pytest.mark.exhaustive)]
    + [
        pytest.param(gates, K, V, 2, marks=pytest.mark.exhaustive)
        for gates in (0.06, 0.3, 1.0, 4.0, 16.0, 40.0, "resets", "infinite", "closed")
        for K, V in ((64, 256), (128, 128))
        if (gates, K) not in ((0.06, 128), ("infinite", 64))
    ],
    ids=str,
)
def test_calls_against_the_judge(judge, inputs, natively, gates, K, V, share):
    """Outputs and all gradients of a call, states at both ends, a last chunk that is cut short."""
    x = inputs((1, 130, 2 * share, K, V), torch.bfloat16, gates)
    x = replace(x, g=x.g[..., :1].contiguous(), q=x.q[:, :, ::share].contiguous(), k=x.k[:, :, ::share].contiguous())

    def form(q: Any, k: Any, v: Any, g: Any, state: Any) -> Any:
        return simple_gla(q, k, v, g.squeeze(-1), None, state, True, schedule=Schedule(64))

    def repeated(reference: Any) -> Any:
        def run(q: Any, k: Any, *rest: Any) -> Any:
            return reference(*(one.repeat_interleave(share, 2) for one in (q, k)), *rest)

        return run

    judge(form, x, repeated)
    apart = {simple_walk_hopper_kernel, simple_grad_walks_hopper_kernel}
    assert set(natively) == (apart if K == 128 else {simple_grad_walk_hopper_kernel})
