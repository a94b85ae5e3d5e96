"""Gates on the value side that ride on the walks of `gla` (value_gates/by_walks.py), against float64. On a CPU the
source of Hopper's own kernels runs (gluon_on_cpu.py), on a GPU they do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from gla_kernels import Plan, Schedule, Workload, default_config, launches
from gla_kernels.launch import Launch
from gla_kernels.ops import form as forms
from gla_kernels.ops.prepared import LEFT, Prepared
from gla_kernels.ops.value_gates import DEFAULT, ValueGated
from gla_kernels.plan.choose import with_walks
from gla_kernels.value_gates import by_walks

BF16 = torch.bfloat16
WHOLE, SEGMENTS = Schedule(64), Schedule(64, 64, True, 2)
SIDES = ["gv_enter", "walk", "gv_strong"]
BACK = ["grad_walk", "grad_qk", "gv_leave", "gv_strong"]


@pytest.fixture
def riding(launch: Callable[[Launch], None]) -> Callable[..., Any]:
    """A function of q, k, v, g, the initial state and gv, differentiable: by walks, which it asserts. ran: given the
    passes. final: whether the final state is asked for; keep: whether the forward pass leaves anything,
    which left is given; left_out: passes that do not run."""

    def make(
        schedule: Schedule = WHOLE, final: bool = True, keep: bool = True, ran: list[str] | None = None,
        left_out: tuple[str, ...] = (), left: list[Any] | None = None,
    ) -> Any:  # fmt: skip
        def run(one: Launch) -> None:
            if ran is not None:
                ran.append(one.step)
            if one.step not in left_out:
                launch(one)

        class Call(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, *given: Any) -> Any:
                copies: list[Any] = [None if x is None else x.detach().clone() for x in given]
                q, k, v, g, s, gv = copies
                (B, T, H, K), V = q.shape, v.shape[-1]
                config = with_walks(default_config(K, V, 2, schedule), Workload("fwd", B, T, H, K, V))
                plan = Plan(schedule, config)
                ctx.form = ValueGated(K**-0.5, DEFAULT, keep, plans=(plan, plan))
                ctx.x = forms.Inputs(q, k, v, g, gv, s)
                assert ctx.form._walks(ctx.x) is not None
                o, state, ctx.left = ctx.form.forward(ctx.x, final, run)
                assert bool(ctx.left) == keep
                if left is not None:
                    left.append(by_walks.Framed(*ctx.left))
                return o, state

            @staticmethod
            def backward(ctx: Any, do: Any, d_final: Any) -> Any:
                do, d_final = do.clone(), None if d_final is None else d_final.clone()
                *found, dgv, ds = ctx.form.backward(ctx.x, ctx.left, do, d_final if final else None, [True] * 6, run)
                return *found, ds, dgv

        return Call.apply

    return make


# Mild on both sides, on either, on neither; (1.0, 1.0) is below.
GATES: list[tuple[Any, Any]] = [(0.06, 0.06), (8.0, 0.06), (1.0, 8.0), (40.0, 40.0), (1.0, "infinite")]
if torch.cuda.is_available():
    GATES += [(1.0, 1.0), (0.06, 1.0), (1.0, 0.06), ("infinite", 1.0), ("infinite", "infinite")]
    GATES += [("resets", 0.06), ("closed", 1.0)]


@pytest.mark.parametrize(("gates", "value_gates"), GATES, ids=str)
def test_every_gate_strength(judge, inputs, riding, gates, value_gates):
    judge(riding(), inputs((1, 150, 1, 64, 64), BF16, gates, value_gates=value_gates))


@pytest.mark.parametrize(("K", "V"), [(128, 128), (64, 192)])
def test_head_dimensions(judge, inputs, riding, K, V):
    judge(riding(), inputs((1, 100, 1, K, V), BF16, 1.0, value_gates=1.0))


def some_strong(x, side: str, chunk: int, columns: slice):
    """The gates of a side with those of a chunk's columns beyond any frame."""
    gates = getattr(x, side).clone()
    gates[:, 64 * chunk : 64 * chunk + 64, :, columns] *= 30
    return replace(x, **{side: gates})


@pytest.mark.exhaustive(V=(192,))  # wide values are among head dimensions
@pytest.mark.each_value  # a side that is not mild is told to walks as one mark, and both are at every gate strength
@pytest.mark.parametrize(("V", "run"), [(64, 1), (64, 2), (64, 4), (192, 2)])
@pytest.mark.parametrize("side", ["g", "gv"])
def test_a_chunk_that_is_not_mild_among_others(judge, inputs, riding, monkeypatch, side, V, run):
    monkeypatch.setattr(by_walks, "PROGRAMS", 1)
    monkeypatch.setattr(by_walks, "RUN", run)
    judge(riding(), some_strong(inputs((1, 215, 1, 64, V), BF16, 1.0, value_gates=1.0), side, 2, slice(3, 40)))


@pytest.mark.exhaustive(V=(128, 192))
@pytest.mark.parametrize(("K", "V", "kept"), [(64, 64, 2), (64, 128, 2), (64, 192, 2)])
def test_few_states_are_kept_where_grad_qk_leads_them_along(judge, inputs, riding, monkeypatch, K, V, kept):
    monkeypatch.setattr(by_walks, "PROGRAMS", 1)
    left: list[Any] = []
    judge(riding(SEGMENTS, left=left), inputs((1, 300, 1, K, V), BF16, 0.06, value_gates=0.06))
    assert left[0].states.shape[1] == kept


@pytest.mark.parametrize("strong", [None, 3])
def test_segments(judge, inputs, riding, strong):
    """Which start from states, and end with gradients, in frames: of columns that have one there, or not."""
    ran: list[str] = []
    x = inputs((1, 230, 1, 64, 64), BF16, 0.06, value_gates=0.06)
    judge(riding(SEGMENTS, ran=ran), x if strong is None else some_strong(x, "gv", strong, slice(0, 64, 3)))
    assert ran == [SIDES[0], "states", "combine", *SIDES[1:], "gv_scale", "grad_states", "combine", *BACK]


def test_what_a_forward_pass_leaves_is_made_again(inputs, outputs_of, riding):
    x = inputs((1, 150, 1, 64, 64), BF16, 1.0, value_gates=1.0)
    kept, again = outputs_of(riding(), x), outputs_of(riding(keep=False), x)
    for name in kept:
        assert torch.equal(kept[name], again[name]), name


def test_where_none_are_kept_states_before_strong_chunks_are(inputs, outputs_of, riding):
    x = some_strong(inputs((1, 150, 1, 64, 64), BF16, 0.06, value_gates=0.06), "gv", 1, slice(5, 6))
    (kept, _), (alone, _) = (riding(keep=keep)(x.q, x.k, x.v, x.g, x.initial_state, x.gv) for keep in (True, False))
    assert torch.equal(kept, alone)


def test_without_states(judge, inputs, riding):
    judge(riding(final=False), inputs((1, 100, 2, 64, 64), BF16, 1.0, states=False, value_gates=1.0))


def test_gates_in_float32(judge, inputs, riding):
    judge(riding(), inputs((1, 100, 1, 64, 64), BF16, 1.0, gate_dtype=torch.float32, value_gates=1.0))


def test_chunks_that_are_mild_are_left_alone_by_the_others(inputs, outputs_of, riding):
    x = inputs((1, 100, 1, 64, 64), BF16, 0.06, value_gates=0.06)
    found = outputs_of(riding(), x)
    alone = outputs_of(riding(left_out=("gv_strong",)), x)
    for name in found:
        assert torch.equal(found[name], alone[name]), name


@pytest.mark.parametrize("V", [64, 256])
def test_what_is_left_of_o_is_the_result_where_that_is_led_out(V):
    """And the backward pass reads it there, with what it is off by."""
    B, T, H, K = 2, 300, 2, 128
    plan = Plan(WHOLE, with_walks(default_config(K, V, 2, WHOLE), Workload("fwd", B, T, H, K, V)))
    form, left = ValueGated(1.0, DEFAULT, True, plans=(plan, plan)), dict[torch.dtype, int]()
    for gate in (BF16, torch.float32):
        q, v = (torch.empty(B, T, H, D, dtype=BF16, device="meta") for D in (K, V))
        g, gv = (torch.empty_like(x, dtype=gate) for x in (q, v))
        x = forms.Inputs(q, q, v, g, gv, None)
        prepared = Prepared(form, x, False, torch.device("meta"))
        assert prepared.leaves == (gate == BF16, False)
        left[gate] = prepared.left_bytes
        program = prepared._backward_program(False, (True,) * 6)
        (leave,) = (one for one in program.launches if one.step == "gv_leave")
        assert program.where(leave.args["p_x"])[0] == (len(x) if gate == BF16 else LEFT)
        assert (leave.args["p_dv"] is None) == (gate == BF16 and V == 64)  # else the walk has no room to lead dv out
    assert left[torch.float32] - left[BF16] == 2 * B * T * H * V


def test_calls_that_ride():
    asked: dict[str, Any] = {"B": 4, "T": 2048, "H": 16, "K": 128, "V": 128, "dtype": BF16, "value_gated": True}

    def steps(**changes: Any) -> list[str]:
        return [one.step for one in launches("gla", **{**asked, **changes})]

    assert steps() == [*SIDES, *BACK]
    of = {
        one.step: one for one in launches("gla", **asked)
    }  # states are kept for sums of theirs, not for grad_qk alone
    assert of["grad_qk"].args["every"] == of["grad_qk"].constexprs["KEPT"] * of["walk"].args["every"]
    assert of["grad_qk"].constexprs["KEPT"] > 1
    assert steps(mode="fwd") == SIDES
    wide = [*SIDES[:2], "gv_scale", SIDES[2]]  # there the walk has no room for gates of the value side
    assert steps(gate_dtype=torch.float32, schedule=WHOLE) == [*wide, "gv_scale", *BACK]
    others: list[dict[str, Any]] = [
        {"capability": 80}, {"gated": False}, {"dtype": torch.float16}, {"K": 256}, {"V": 100}, {"T": 0},
        {"schedule": Schedule(64, 16)}, {"schedule": Schedule(64, materialize=False)},
    ]  # fmt: skip
    for changes in others:
        assert "walk" not in steps(**changes), changes


@pytest.mark.gpu
@pytest.mark.parametrize(("gates", "value_gates"), [*GATES, (1.0, 3.0), (3.0, 1.0)], ids=str)
@pytest.mark.parametrize("schedule", [WHOLE, Schedule(64, 64, True, 7)], ids=str)
@pytest.mark.parametrize(("K", "V"), [(64, 64), (128, 128), (128, 256), (64, 192)])
def test_full_size(judge, inputs, riding, gates, value_gates, schedule, K, V):
    judge(riding(schedule), inputs((2, 1501, 3, K, V), BF16, gates, value_gates=value_gates))
