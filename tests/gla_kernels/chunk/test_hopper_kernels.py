"""Hopper's own kernels against float64, at chunks that are mild, among others that they leave alone. On a CPU their
source runs (gluon_on_cpu.py), on a GPU they do."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from gla_kernels import Plan, Schedule, Workload, default_config, reference
from gla_kernels.chunk.hopper.grad_qk import grad_qk_hopper_kernel
from gla_kernels.chunk.hopper.grad_qk_runs import grad_qk_runs_hopper_kernel
from gla_kernels.chunk.hopper.grad_qk_wide import grad_qk_wide_runs_hopper_kernel
from gla_kernels.chunk.hopper.grad_walk import grad_walk_hopper_kernel
from gla_kernels.chunk.hopper.walk import walk_hopper_kernel
from gla_kernels.chunk.hopper.wide_ends import grad_states_wide_hopper_kernel, states_wide_hopper_kernel
from gla_kernels.chunk.hopper.wide_walk import grad_walk_wide_hopper_kernel, walk_wide_hopper_kernel
from gla_kernels.chunk.parted import NARROW
from gla_kernels.chunk.prepare import prepared
from gla_kernels.chunk.problem import Problem
from gla_kernels.chunk.wide_walk import ENDS, launch_of_ends, launch_of_groups, read_of
from gla_kernels.plan.apply import problem_of
from gla_kernels.plan.choose import with_walks
from gla_kernels.tiles.gates import LEAST_GATE, LOG2E, ROW_BLOCK_LIMIT_16_BIT

# Of the norm. What it costs to round to bfloat16; states are summed of products of rounded operands besides.
ROUNDING = 1.66e-3
ERROR = 2.4e-3
DIFFERENCE = 1e-4  # of the norm of q dq, of which dg is a difference
SCHEDULES = {"one walk": Schedule(64), "segments of two chunks": Schedule(64, 64, True, 2)}
GATES = {
    "mild": lambda g: g,
    "weak": lambda g: 0.06 * g,
    "one of three chunks decays by too much": lambda g: torch.where(
        (torch.arange(g.shape[1]) // 64 % 3 == 1)[:, None, None], 20 * g, g
    ),
    "one of three chunks decays by all there is": lambda g: torch.where(
        (torch.arange(g.shape[1]) % 192 == 70)[:, None, None] & (torch.arange(g.shape[-1]) % 5 > 1), -torch.inf, g
    ),
}
BF16, FLOAT32 = torch.bfloat16, torch.float32  # of gates
STRONG, CLOSED = list(GATES)[2:]
ONE, SEGMENTS = SCHEDULES
# A GPU takes no time over all cases; elsewhere heads of a size have each kind of gates, schedule and type.
SMALL: list[tuple[Any, ...]] = [
    (64, 64, "mild", ONE, BF16), (64, 64, "weak", SEGMENTS, FLOAT32), (64, 64, STRONG, ONE, FLOAT32),
    (64, 64, STRONG, SEGMENTS, BF16), (64, 64, CLOSED, SEGMENTS, BF16), (64, 64, CLOSED, ONE, FLOAT32),
]  # fmt: skip
ALL = [(64, 64, *one, BF16) for one in itertools.product(GATES, SCHEDULES)]
ALL += [(64, 64, gates, SEGMENTS, FLOAT32) for gates in GATES]
LARGE: list[tuple[Any, ...]] = [
    (128, 128, "weak", ONE, FLOAT32), (128, 128, STRONG, SEGMENTS, BF16), (128, 128, CLOSED, SEGMENTS, FLOAT32),
    (128, 192, "mild", SEGMENTS, FLOAT32), (128, 192, STRONG, SEGMENTS, FLOAT32), (128, 192, CLOSED, ONE, BF16),
]  # fmt: skip
if torch.cuda.is_available():
    SMALL, LARGE = ALL, [(128, V, *one[2:]) for V in (128, 192) for one in ALL]
MORE = [pytest.param(*one, marks=pytest.mark.exhaustive) for one in ALL if one not in SMALL]
WALKS = pytest.mark.parametrize(("K", "V", "gates", "schedule", "gate_type"), [*SMALL, *LARGE, *MORE])


class Sequences:
    """q, k, v, do in bfloat16, g in that or float32, a state to begin with and the gradient of the last one
    [B, H, K, V]; of the float64 recurrence o, dv, the states before and after every chunk, and the gradients of those
    after. Of halves of decays, what kernels leave: no gate counts as less than LEAST_GATE."""

    def __init__(self, K: int, V: int, gates: str, gate_type: torch.dtype, device: str) -> None:
        B, T, H = 1, 276, max(1, 128 // K)  # a few segments and runs of chunks, the last one cut off
        torch.manual_seed(0)
        g = GATES[gates](torch.nn.functional.logsigmoid(torch.randn(B, T, H, K)))
        x = {"q": torch.randn(B, T, H, K), "k": torch.randn(B, T, H, K), "g": g}
        x |= {name: torch.randn(B, T, H, V) for name in ("v", "do")}
        x = {name: one.to(gate_type if name == "g" else BF16) for name, one in x.items()}
        first, d_last = torch.randn(B, H, K, V), torch.randn(B, H, K, V)
        q, k, g, v, do = (x[name].double() for name in ("q", "k", "g", "v", "do"))
        rows_given = tuple(one.requires_grad_() for one in (q, k, v, g))
        state = first.double().requires_grad_()
        befores, rows, self.scale = [state], [], K**-0.5
        for t in range(0, T, 64):
            of = slice(t, t + 64)
            row, state = reference.recurrent(q[:, of], k[:, of], v[:, of], g[:, of], None, state)
            rows.append(row)
            befores.append(state)
        o = torch.cat(rows, 1)
        loss = (o * do).sum() + (state * d_last.double()).sum()
        *d_states, self.dq, self.dk, self.dv, self.dg = torch.autograd.grad(loss, (*befores, *rows_given))
        self.d_states, self.befores = d_states, [one.detach() for one in befores]
        self.o, g = o.detach(), g.detach()
        g = g.clamp(min=LEAST_GATE.value)
        chunks = torch.nn.functional.pad(g, (0, 0, 0, 0, 0, -T % 64)).unflatten(1, (-1, 64)).sum(2)
        self.halves = (0.5 * LOG2E.value * chunks).transpose(1, 2).flatten(0, 1).float().contiguous()  # [B*H, n, K]
        self.mild = (
            (self.halves.amin(-1) > -0.5 * ROW_BLOCK_LIMIT_16_BIT.value)
            .unflatten(0, (B, H))
            .repeat_interleave(64, 2)
            .transpose(1, 2)[:, :T]
        )
        self.given: dict[str, Any] = {name: one.to(device) for name, one in x.items()}
        self.first = first.to(device)

    def problem(self, schedule: Schedule) -> Problem:
        x = self.given
        (B, T, H, K), V = x["q"].shape, x["v"].shape[-1]
        config = with_walks(default_config(K, V, 2, schedule), Workload("fwd", B, T, H, K, V))
        return problem_of(x["q"], x["k"], x["v"], x["g"], self.scale, self.first, Plan(schedule, config))

    def boundaries(self, at: int, states: Any, every: int) -> Tensor:
        """[B*H, n, K, V] in float32: of the states before (0) or after (1) chunks those at each segment of so many."""
        picked = states[:-1:every] if at == 0 else [*states[every:-1:every], states[-1]]
        return torch.stack([one.flatten(0, 1) for one in picked], 1).float().contiguous()

    def rows_are_right(self, got: Tensor, right: Tensor, more: Tensor | None = None) -> None:
        """more: of whose norm the error may be, besides."""
        got, allowed = got.cpu().double(), ERROR * right[self.mild].norm()
        assert bool(got[~self.mild].isnan().all()), "rows were written that are another kernel's"
        assert (got - right)[self.mild].norm() <= allowed + (0.0 if more is None else more[self.mild].norm())


sequences = functools.cache(Sequences)  # which kernels only read


def near(got: Tensor, right: Tensor, error: float = ERROR) -> bool:
    return bool((got.cpu().double() - right).norm() <= error * right.norm())


@WALKS
def test_states_and_output(K, V, gates, schedule, gate_type, place):
    states_and_output(K, V, gates, schedule, 1, place, gate_type)


SOME = pytest.mark.parametrize(("gates", "schedule"), [("mild", ONE), (CLOSED, SEGMENTS)])


@pytest.mark.parametrize("gate_type", [BF16, FLOAT32])
@SOME
def test_where_no_states_are_kept_those_that_strong_gates_ask_for_are_stored(gates, schedule, place, gate_type):
    states_and_output(128, 128, gates, schedule, 0, place, gate_type)


@SOME
@pytest.mark.parametrize("every", [3, 4])
def test_where_few_states_are_kept_they_are_stored_apart(every, gates, schedule, place):
    states_and_output(128, 128, gates, schedule, every, place, BF16)


def states_and_output(K, V, gates, schedule, every, place, gate_type):
    """every: chunks from one state that is kept to the next; 0 for none."""
    x = sequences(K, V, gates, gate_type, place.device)
    p = x.problem(SCHEDULES[schedule])
    assert len(p.slices) == 1
    starts = x.boundaries(0, x.befores, p.seg_chunks).to(place.device)
    states, o = p.state_buffer().fill_(torch.nan), torch.full_like(x.given["v"], torch.nan)
    halves, final = torch.empty_like(x.halves, device=place.device), torch.empty_like(x.first)
    few = p.few_states(p.whole, every).fill_(torch.nan) if every > 1 else None
    args = {f"p_{name}": x.given[name] for name in "qkvg"} | {
        "p_s0": starts, "p_s": states, "p_h": halves, "p_st": final, "p_o": o, "scale": x.scale,
        "n_start": p.states_a_head(starts), "p_few": few, "n_few": 0 if few is None else few.shape[1],
        "every": max(1, every),
    }  # fmt: skip
    args, flags = p.with_sequences(args, "p_sn", None)
    flags |= {"HAS_S0": True, "STORE_S": every == 1, "STORE_FEW": few is not None, "STORE_ST": True}
    flags["S0_V_FIRST"] = False
    assert p.config.walk is not None
    place.run(p.walk_on_chip(walk_hopper_kernel, p.config.walk, args, p.slices[0], states, **flags))
    x.rows_are_right(o, x.o)
    assert torch.allclose(halves.cpu(), x.halves, rtol=1e-5)
    assert halves.isfinite().all()
    found, right = states.unflatten(0, (1, -1)).transpose(1, 2), torch.stack(x.befores[:-1], 1)
    if few is not None:
        assert near(few.unflatten(0, (1, -1)).transpose(1, 2), right[:, ::every])
    if every != 1:  # only those that strong gates ask for
        asked = torch.arange(found.shape[1]) % 3 == 1 if "decays" in gates else torch.zeros(found.shape[1]).bool()
        assert found[:, ~asked].isnan().all()
        found, right = found[:, asked], right[:, asked]
    assert near(found, right)
    assert near(final, x.befores[-1])


@WALKS
def test_gradients_of_states_and_dv(K, V, gates, schedule, gate_type, place):
    x = sequences(K, V, gates, gate_type, place.device)
    p = x.problem(SCHEDULES[schedule])
    assert len(p.slices) == 1
    ends = x.boundaries(1, x.d_states, p.seg_chunks).to(place.device)
    grads, dv = p.state_buffer(), torch.full_like(x.given["v"], torch.nan)
    d_first = torch.empty_like(x.first)
    args = {f"p_{name}": x.given[name] for name in ("q", "k", "g", "do")} | {
        "p_h": x.halves.to(place.device), "p_dst": ends, "p_ds": grads, "p_ds0": d_first, "p_dv": dv,
        "scale": x.scale, "n_end": p.states_a_head(ends),
    }  # fmt: skip
    args, flags = p.with_sequences(args, "p_dsn", None)
    flags |= {"HAS_DST": True, "STORE_DS0": True, "DST_V_FIRST": False}
    assert p.config.grad_walk is not None
    place.run(p.walk_on_chip(grad_walk_hopper_kernel, p.config.grad_walk, args, p.slices[0], grads, **flags))
    x.rows_are_right(dv, x.dv)
    assert near(grads.unflatten(0, (1, -1)).transpose(1, 2), torch.stack(x.d_states[1:], 1))
    assert near(d_first, x.d_states[0])


# Of wide heads: one group of warps, two, and two programs.
WIDE: list[tuple[Any, ...]] = [
    (64, "mild", ONE, 0, BF16, False), (64, CLOSED, SEGMENTS, 1, FLOAT32, True),
    (128, STRONG, SEGMENTS, 3, BF16, False), (256, "weak", ONE, 2, FLOAT32, True),
]  # fmt: skip
if torch.cuda.is_available():
    WIDE = list(itertools.product((64, 128, 256), GATES, SCHEDULES, (0, 1, 3), (BF16, FLOAT32), (False, True)))


@pytest.mark.parametrize(("V", "gates", "schedule", "every", "gate_type", "v_first"), WIDE)
def test_walks_of_wide_heads(V, gates, schedule, every, gate_type, v_first, place):
    """Forward and back, right at any gates."""
    x = sequences(256, V, gates, gate_type, place.device)
    p = dataclasses.replace(x.problem(SCHEDULES[schedule]), v_first=v_first)
    assert p.config.walk is not None

    def of_call(states: Tensor) -> Tensor:  # states that a call gives or is given
        return states.transpose(-1, -2).contiguous() if v_first else states

    halves = torch.empty_like(x.halves, device=place.device)
    made, (first, strong) = prepared(p, p.whole, halves, False, True)
    place.run(first)
    place.run(strong)
    assert torch.allclose(halves.cpu(), x.halves, rtol=1e-5)
    assert made.f is halves
    for one in (made.q, made.k, made.a):
        assert one.isfinite().all()
    args: dict[str, Any] = read_of(made) | {"p_borders": None}

    def adds(kernel: Any, start: Tensor, **values: Tensor) -> Tensor:
        """The state that segments leave, or its gradient, by what they add."""
        added, gamma = p.segment_buffer(p.n_seg).fill_(torch.nan), p.decay_buffer(p.n_seg)
        assert gamma is not None
        into = args | values | {"p_s": added, "p_ds": added, "p_gamma": gamma}
        place.run(launch_of_ends(kernel, ENDS, p, into, p.slices[0], added))
        return start.cpu() * gamma.cpu().exp2()[..., None] + added.cpu()

    starts = of_call(x.boundaries(0, x.befores, p.seg_chunks)).to(place.device)
    states, few = (p.few_states(p.whole, n).fill_(torch.nan) for n in (1, max(1, every)))
    o, final = torch.full_like(x.given["v"], torch.nan), of_call(torch.empty_like(x.first))
    given = args | {
        "p_v": x.given["v"], "p_s0": starts, "p_s": states, "p_few": few, "p_st": final, "p_sn": None, "p_o": o,
        "n_start": p.states_a_head(starts), "n_few": few.shape[1], "every": max(1, every),
    }  # fmt: skip
    flags = {"HAS_S0": True, "STORE_S": every == 1, "STORE_FEW": every > 1, "STORE_ST": True}
    flags |= {"PACKED": False, "HAS_SN": False}
    flags |= {"V_FIRST": v_first, "S0_V_FIRST": v_first}
    walk = launch_of_groups(walk_wide_hopper_kernel, p.config.walk, p, given, p.slices[0], states, every > 0, **flags)
    place.run(walk)
    assert near(o, x.o)
    assert near(of_call(final), x.befores[-1])
    if every:
        found, right = (states if every == 1 else few), torch.stack(x.befores[:-1:every], 1)
        assert near(found.unflatten(0, (1, -1)).transpose(1, 2), right)

    ends = of_call(x.boundaries(1, x.d_states, p.seg_chunks)).to(place.device)
    grads, dv, d_first = p.state_buffer(), torch.full_like(o, torch.nan), of_call(torch.empty_like(x.first))
    given = args | {
        "p_do": x.given["do"], "p_dst": ends, "p_ds": grads, "p_ds0": d_first, "p_dsn": None, "p_dv": dv,
        "n_end": p.states_a_head(ends),
    }  # fmt: skip
    flags = {"HAS_DST": True, "STORE_DS0": True, "PACKED": False, "HAS_DSN": False}
    flags |= {"V_FIRST": v_first, "DST_V_FIRST": v_first}
    tile = p.config.grad_walk
    assert tile is not None
    place.run(launch_of_groups(grad_walk_wide_hopper_kernel, tile, p, given, p.slices[0], grads, True, **flags))
    assert near(dv, x.dv, 3**0.5 * ROUNDING)  # mostly a product of two rounded operands, rounded
    assert near(grads.unflatten(0, (1, -1)).transpose(1, 2), torch.stack(x.d_states[1:], 1))
    assert near(of_call(d_first), x.d_states[0])

    starts, ends = x.boundaries(0, x.befores, p.seg_chunks), x.boundaries(1, x.d_states, p.seg_chunks)
    after = torch.cat((starts[:, 1:], x.befores[-1].flatten(0, 1)[:, None]), 1)
    before = torch.cat((x.d_states[0].flatten(0, 1)[:, None], ends[:, :-1]), 1)
    assert near(adds(states_wide_hopper_kernel, starts, p_v=x.given["v"]), after)
    assert near(adds(grad_states_wide_hopper_kernel, ends, p_do=x.given["do"]), before)


RUNS: list[tuple[Any, ...]] = [(64, 64, 1, *one) for one in itertools.product(GATES, (1, 2, 4), (BF16,))]
RUNS += [(64, 64, 1, gates, 4, FLOAT32) for gates in GATES]
if not torch.cuda.is_available():  # runs of 2, which others below have, with the strongest gates alone
    RUNS = [one for one in RUNS if one[4] != 2 or one[3] == STRONG]
# Elsewhere than on a GPU each kernel has every kind of gates, length of a run and type among its large heads.
LARGE_RUNS: list[tuple[Any, ...]] = [
    (128, 128, 1, "mild", 1, BF16), (128, 128, 1, CLOSED, 4, BF16), (128, 128, 1, STRONG, 2, FLOAT32),
    (64, 192, 2, "weak", 4, FLOAT32), (64, 192, 2, CLOSED, 4, BF16), (64, 192, 2, "mild", 1, BF16),
    (64, 256, 5, "mild", 1, BF16), (64, 256, 5, STRONG, 2, FLOAT32),
    (128, 512, 4, CLOSED, 4, BF16), (128, 512, 4, STRONG, 2, FLOAT32),
]  # fmt: skip
if torch.cuda.is_available():
    shapes = ((128, 128, 1), (64, 192, 2), (64, 256, 5), (128, 512, 4))
    LARGE_RUNS = [(*shape, *run[3:]) for shape in shapes for run in RUNS]
RUNS += LARGE_RUNS


@pytest.mark.parametrize(("K", "V", "stages", "gates", "every", "gate_type"), RUNS)
def test_gradients_of_q_k_and_gates_over_runs_of_chunks(K, V, stages, gates, every, gate_type, place):
    """From the state before each run, one of two that are kept of it where it has four chunks; of chunks that are left
    alone, their states are left for another kernel."""
    x = sequences(K, V, gates, gate_type, place.device)
    p, grads = x.problem(Schedule(64)), torch.stack([one.flatten(0, 1) for one in x.d_states[1:]], 1).bfloat16()
    kept = max(1, every // 2)
    few = torch.stack([one.flatten(0, 1) for one in x.befores[: -1 : every // kept]], 1).bfloat16()
    states = p.state_buffer().fill_(torch.nan)
    into = {name: torch.full_like(x.given[name[1:]], torch.nan) for name in ("dq", "dk", "dg")}
    args = {f"p_{name}": one for name, one in (x.given | into).items()} | {
        "p_h": x.halves.to(place.device), "p_s": states, "p_ds": grads.to(place.device), "p_few": few.to(place.device),
        "n_few": few.shape[1],
    }  # fmt: skip
    kernel = grad_qk_runs_hopper_kernel if V <= NARROW else grad_qk_wide_runs_hopper_kernel
    args, flags = p.with_sequences(args, "p_sn", None)
    flags |= {"STAGES": stages, "KEPT": kept}
    place.run(p.of_chunks(kernel, p.config.grad_qk, args, p.whole, states, every, **flags))
    x.rows_are_right(into["dq"], x.dq)
    x.rows_are_right(into["dk"], x.dk)
    x.rows_are_right(into["dg"], x.dg, DIFFERENCE * (x.given["q"].cpu().double() * x.dq))
    asked = torch.arange(states.shape[1]) % 3 == 1 if "decays" in gates else torch.zeros(states.shape[1]).bool()
    assert states[:, ~asked].isnan().all()
    right = torch.stack([one.flatten(0, 1) for one in x.befores[:-1]], 1)
    assert near(states[:, asked], right[:, asked])


@pytest.mark.each_value  # the same products over runs of chunks have more pairs
@pytest.mark.parametrize("gate_type", [BF16, FLOAT32])
@pytest.mark.parametrize(("K", "V", "stages"), [(64, 64, 1), (128, 128, 2), (64, 192, 2), (192, 256, 1)])
@pytest.mark.parametrize("closed", [-300.0, -torch.inf])
def test_gradients_of_q_k_and_gates(K, V, stages, closed, gate_type, place, chunks):
    x = chunks((1, 150, 2, K, V), lambda g: torch.where(g < -3.5, closed, g), gate_type)
    p, (args, into) = x.problem(), x.arguments("dq", "dk", "dg")
    assert 0 < x.mild_tiles.sum() < x.mild_tiles.numel()
    args, flags = p.with_sequences(args, "p_sn", None)
    launch = p.of_chunks(grad_qk_hopper_kernel, p.config.grad_qk, args, p.whole, x.given["s"], STAGES=stages, **flags)
    place.run(launch)
    x.check(into, x.mild_tiles)
