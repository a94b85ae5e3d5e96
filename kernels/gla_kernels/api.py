"""The public functions, with autograd.

Layout everywhere: q, k, g [B, T, H, K]; v, o [B, T, H, V]; states [B, H, K, V] in float32. g = log(alpha) <= 0.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from . import chunk, recurrent, value_gates
from .apply import DTYPES, all_launches, problem_of
from .choose import machine_of
from .config import Schedule, Workload
from .eager import eager
from .launch import Launch, execute
from .once import differentiable_once
from .plans import Config, check_config, check_plan, plan_of, tune
from .table import Machine
from .validate import check_inputs, check_scale
from .value_gates.autograd import ValueGatedGLA, check_schedule

DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@eager
def gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    *,
    gv: Tensor | None = None,
    schedule: Schedule | None = None,
    config: Config = None,
    recompute: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Gated linear attention in its chunkwise form (Yang et al. 2024, arXiv 2312.06635).

        S_t = Diag(exp g_t) S_{t-1} Diag(exp gv_t) + k_t^T v_t          o_t = scale q_t S_t

    q, k: [B, T, H, K], float32, float16 or bfloat16; K from 1 to 512.
    v: [B, T, H, V], dtype of q; V from 1 to 512.
    g: [B, T, H, K], natural log of the decay, <= 0 and finite (-1e4 forgets all; sums with -inf would be NaN), dtype of
        q or float32. In float32 beside bfloat16 inputs Hopper's own kernels do not serve, and untuned ones run. None:
        no decay (plain linear attention).
    scale: factor on the output; K^-1/2 by default.
    initial_state: [B, H, K, V], float32; zeros by default.
    output_final_state: whether to return the state after the last token.
    gv: [B, T, H, V], gates of the value side as g are of the key side, as in the paper's first version. With them the
        kernels are others, `value_gates`, which are not tuned: config must be None; of a schedule they take chunks of
        16, 32 or 64 rows, in sub-chunks, materialized or not, and no segments. None: no decay, and no cost.
    schedule: chunk, sub-chunk, materialized or not, walks cut into segments or not; None picks one for each direction.
    config: how the kernels are tiled.
        None: as tuned on this GPU for a shape like this one, as shipped for it or for one of its compute capability,
            or by the cost model: `chosen` tells which, and why. Nothing is ever tuned.
        "tune": the same, but a shape class that was never tuned on this GPU is tuned first and remembered. Takes up to
            minutes once, and needs glabench, the harness. Tunes the backward pass only where gradients are required.
        A Plan, or a pair of them for forward and backward of which either may be None: those plans.
        A KernelConfig: these tiles, for both directions, with the schedule given or the one that the cost model picks.
    recompute: where states are materialized, whether the backward pass computes them again: some 10 % slower, and
        between the passes B*H*ceil(T/chunk)*K*V elements less are kept (twice the size of q with K = V = 128 and chunks
        of 64). Nothing but the inputs is kept then, nor where the two directions' plans have other chunks. Where they
        are not materialized one state a slice is kept, if there are heads enough, and none with ``recompute``.

    Returns o [B, T, H, V] in the dtype of q, and the final state [B, H, K, V] in float32 or None. Differentiable once
    in q, k, v, g, gv and initial_state, also through the final state. Deterministic: the same inputs give the same
    bits.

    Raises ValueError, naming the argument, for a wrong shape, dtype, device, schedule or config.
    """
    check_inputs(q, k, v, g, initial_state, gv=gv)
    scale = check_scale(scale, q.shape[-1])
    if not isinstance(recompute, bool):
        raise ValueError(f"recompute: expected True or False, got {recompute!r}")
    if gv is not None:
        schedule = check_schedule(schedule, config)
        return ValueGatedGLA.apply(q, k, v, g, gv, scale, initial_state, output_final_state, schedule, not recompute)
    check_config(schedule, config, q.device)
    B, T, H, K = q.shape
    if B * H == 0:  # no state to plan for: kernels on empty grids, which never run
        return _RecurrentGLA.apply(q, k, v, g, None, scale, initial_state, output_final_state)
    fwd = Workload("fwd", B, T, H, K, v.shape[-1], DTYPE_NAMES[q.dtype], g is not None, schedule)
    works = [fwd]
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (q, k, v, g, initial_state)):
        works.append(replace(fwd, direction="bwd"))
    if config == "tune":
        tune(works, q.device)
    machine = machine_of(q.device)
    plans = [plan_of(work, config, machine) for work in works]
    if config not in (None, "tune"):
        for work, plan in zip(works, plans, strict=True):
            check_plan(plan, work, machine)
    keep = len(plans) > 1 and not recompute
    return _ChunkGLA.apply(q, k, v, g, scale, initial_state, output_final_state, plans[0], plans[-1], keep)


@eager
def gla_recurrent(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    *,
    gv: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Gated linear attention token by token, the state on chip: arguments, returns and errors are those of `gla`.

    Work that a GPU cannot spread over time; for short sequences and as a baseline.
    """
    check_inputs(q, k, v, g, initial_state, gv=gv)
    scale = check_scale(scale, q.shape[-1])
    return _RecurrentGLA.apply(q, k, v, g, gv, scale, initial_state, output_final_state)


@eager
def gla_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    state: Tensor,
    scale: float | None = None,
    *,
    gv: Tensor | None = None,
) -> Tensor:
    """One token of decoding: ``state`` is updated in place, o is returned.

    q, k, g: [B, H, K]; v, gv: [B, H, V]; state: [B, H, K, V], float32, contiguous. Returns o [B, H, V] in the dtype of
    q. Not differentiable: a backward pass that still needs what was in the state raises RuntimeError. Raises
    ValueError, naming the argument, for a wrong shape, dtype or device.
    """
    if state is None:
        raise ValueError("state: expected a tensor [B, H, K, V], got None")
    check_inputs(q, k, v, g, state, rows=False, gv=gv)
    if not state.is_contiguous():
        raise ValueError(f"state: expected a contiguous tensor to update in place, got strides {list(state.stride())}")
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (q, k, v, g, gv, state)):
        raise ValueError("gla_step: expected inputs without gradients (torch.no_grad()), got one that requires them")
    scale = check_scale(scale, q.shape[-1])
    q, k, v, g, gv = _contiguous(q, k, v, g, gv)
    o = recurrent.step(q, k, v, g, state, scale, execute, gv)
    torch.autograd.graph.increment_version(state)  # a backward pass that still needs what was in it says so
    return o


def launches(
    op: str,
    *,
    B: int,
    T: int,
    H: int,
    K: int,
    V: int,
    dtype: torch.dtype,
    mode: str = "fwdbwd",
    schedule: Schedule | None = None,
    config: Config = None,
    gated: bool = True,
    value_gated: bool = False,
    initial_state: bool = False,
    capability: int = 90,
) -> list[Launch]:
    """The kernels that a call would launch, in order, without running one: for cross-compilation and for models.

    op: "gla", "gla_recurrent" or "gla_step"; mode: "fwd", with no backward pass to come, "bwd", "fwdbwd" or "step";
    capability: compute capability of the GPU, 80 for an A100, 90 for an H100; schedule and config are those of `gla`.
    The tuned plans of this machine's own GPU do not count, only shipped ones. Tensors in the launches are on the meta
    device. Raises ValueError as the call itself would, but takes tiles that a GPU could not run.
    """
    if op not in ("gla", "gla_recurrent", "gla_step"):
        raise ValueError(f"op: expected gla, gla_recurrent or gla_step, got {op!r}")
    if mode not in ("fwd", "bwd", "fwdbwd", "step") or (mode == "step") != (op == "gla_step"):
        raise ValueError(f"mode: expected {'step' if op == 'gla_step' else 'fwd, bwd or fwdbwd'}, got {mode!r}")
    lead = (B, H) if op == "gla_step" else (B, T, H)
    q = torch.empty(*lead, K, dtype=dtype, device="meta")
    v = torch.empty(*lead, V, dtype=dtype, device="meta")
    g = torch.empty_like(q) if gated else None
    gv = torch.empty_like(v) if value_gated else None
    state = torch.empty(B, H, K, V, dtype=torch.float32, device="meta") if initial_state or op == "gla_step" else None
    check_inputs(q, q, v, g, state, rows=op != "gla_step", gv=gv)
    scale = float(K**-0.5)
    fwd: list[Launch] = []
    bwd: list[Launch] = []
    if op == "gla_step":
        assert state is not None
        recurrent.step(q, q, v, g, state, scale, fwd.append, gv)
    elif op == "gla_recurrent" or (B * H == 0 and gv is None):  # as in `gla`
        recurrent.forward(q, q, v, g, scale, state, False, fwd.append, gv)
        recurrent.backward(q, q, v, g, scale, state, v, None, None, bwd.append, gv)
    elif gv is not None:
        problem = value_gates.Problem(q, q, v, g, gv, scale, state, check_schedule(schedule, config))
        value_gates.backward(problem, v, None, bwd.append, value_gates.forward(problem, fwd.append)[-1])
    else:
        check_config(schedule, config, q.device)
        work, machine = Workload("fwd", B, T, H, K, V, DTYPE_NAMES[dtype], gated, schedule), Machine(capability)
        forward = plan_of(work, config, machine)
        fwd.extend(all_launches(work, forward, initial_state, keep=mode != "fwd"))
        if mode != "fwd":
            work = replace(work, direction="bwd")
            bwd.extend(all_launches(work, plan_of(work, config, machine), initial_state, forward))
    return {"fwd": fwd, "bwd": bwd, "fwdbwd": fwd + bwd, "step": fwd}[mode]


def _contiguous(*tensors: Tensor | None) -> tuple[Any, ...]:
    return tuple(None if x is None else x.contiguous() for x in tensors)


def _both_or_neither(d_final: Tensor | None, final_state: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """The final state and its gradient for the kernels: both or neither."""
    if d_final is None or final_state is None:
        return None, None
    return final_state, d_final.contiguous()


class _ChunkGLA(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[no-untyped-def]  # autograd's calling convention
        ctx, q, k, v, g, scale, initial_state, output_final_state, plan, backward_plan, keep
    ):
        q, k, v, g, initial_state = _contiguous(q, k, v, g, initial_state)
        problem = problem_of(q, k, v, g, scale, initial_state, plan)
        o, final_state, kept = chunk.forward(problem, output_final_state, execute, keep)
        if not problem_of(q, k, v, g, scale, initial_state, backward_plan).served_by(kept):
            kept = None
        ctx.kept = kept is not None
        between = (kept.states, kept.handed, kept.halves) if kept is not None else (None, None, None)
        ctx.save_for_backward(q, k, v, g, initial_state, *between)
        ctx.set_materialize_grads(False)
        ctx.scale, ctx.plan = scale, backward_plan
        return o, final_state

    @staticmethod
    @differentiable_once
    def backward(ctx, do, d_final):  # type: ignore[no-untyped-def]
        q, k, v, g, initial_state, *between = ctx.saved_tensors
        problem = problem_of(q, k, v, g, ctx.scale, initial_state, ctx.plan)
        kept = problem.kept(*between) if ctx.kept else None
        do = torch.zeros_like(v) if do is None else do.contiguous()
        d_final = None if d_final is None else d_final.contiguous()
        dq, dk, dv, dg, d_initial = chunk.backward(problem, do, d_final, execute, kept)
        return dq, dk, dv, dg, None, d_initial, None, None, None, None


class _RecurrentGLA(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, g, gv, scale, initial_state, output_final_state):  # type: ignore[no-untyped-def]
        q, k, v, g, gv, initial_state = _contiguous(q, k, v, g, gv, initial_state)
        o, final_state = recurrent.forward(q, k, v, g, scale, initial_state, output_final_state, execute, gv)
        ctx.save_for_backward(q, k, v, g, gv, initial_state, final_state)
        ctx.set_materialize_grads(False)
        ctx.scale = scale
        return o, final_state

    @staticmethod
    @differentiable_once
    def backward(ctx, do, d_final):  # type: ignore[no-untyped-def]
        q, k, v, g, gv, initial_state, final_state = ctx.saved_tensors
        do = torch.zeros_like(v) if do is None else do.contiguous()
        final_state, d_final = _both_or_neither(d_final, final_state)
        dq, dk, dv, dg, dgv, d_initial = recurrent.backward(
            q, k, v, g, ctx.scale, initial_state, do, final_state, d_final, execute, gv
        )
        return dq, dk, dv, dg, dgv, None, d_initial, None


__all__ = ["gla", "gla_recurrent", "gla_step", "launches"]
