"""The public functions, with autograd.

Layout everywhere: q, k, g [B, T, H, K]; v, o [B, T, H, V]; states [B, H, K, V] in float32. g = log(alpha) <= 0. Where
v has n times as many heads as q, so have gv, o and states (grouped.py).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .. import recurrent
from ..launch import Launch
from ..launch.run import ALIGNED
from ..plan.apply import all_launches
from ..plan.request import Config, check_config, plan_of
from ..plan.table import Machine
from ..schedule import Schedule, Workload
from . import grouped, library, pooled
from .autograd import call
from .form import Form, Inputs, looks_at_lengths
from .forms import Recurrent
from .gla_form import check_tensors, form_of, ungated, value_gated_form, workload_of
from .prepared import Prepared, PreparedStep
from .signature import is_plain, prepared, signature_of
from .validate import (
    check_flag,
    check_inputs,
    check_length_values,
    check_scale,
    check_sizes,
    check_step,
    refuse_gradients,
)
from .value_gates import check_schedule


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
    cu_seqlens: Tensor | None = None,
    state_v_first: bool = False,
    check: bool = False,
    schedule: Schedule | None = None,
    config: Config = None,
    recompute: bool | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Gated linear attention in its chunkwise form (Yang et al. 2024, arXiv 2312.06635).

        S_t = Diag(exp g_t) S_{t-1} Diag(exp gv_t) + k_t^T v_t          o_t = scale q_t S_t

    q, k: [B, T, H, K], float32, float16 or bfloat16; K from 1 to 512.
    v: [B, T, H, V], dtype of q; V from 1 to 512. Or with n times as many heads as q, k and g have: head h of those is
        shared by heads h*n to h*n+n-1 of v, gv, o and states, which are H*n then. Nothing is repeated in memory where
        n * V is at most 512, else q, k and g as few times as n can be parted. Fewer heads than q's are refused.
    g: [B, T, H, K], natural log of the decay, <= 0, dtype of q or float32; -inf forgets all, and its gradient is 0.
        Beside bfloat16 inputs Hopper's own kernels take 16 bits of each float32 gate. None: no decay (plain linear
        attention). With schedule and config left open and many heads this goes by the walks of `simple_gla`, not tuned,
        where these are Hopper's own.
    scale: factor on the output; K^-1/2 by default.
    initial_state: [B, H, K, V], float32; zeros by default.
    output_final_state: whether to return the state after the last token.
    gv: [B, T, H, V], gates of the value side as g are of the key side, as in the paper's 2023 version. Where Hopper's
        own kernels serve the call without them (bfloat16, g, K of 64 or 128, whole 64 columns of V, no cu_seqlens),
        they ride on these, by the same plans; kept for the backward pass are then three times v and chunks' states, of
        every fourth chunk where there are many and V is 128 at most. Else kernels are others, `value_gates`, which are
        not tuned. Either way config must be None; of a schedule they take chunks of 16, 32 or 64 rows, in sub-chunks,
        materialized or not, and no segments. Packed sequences (cu_seqlens) with states, given or asked for, are taken
        token by token instead, as `gla_recurrent` does. None: no decay, and no cost.
    cu_seqlens: [N+1], int32 or int64, on the device of q: where each of N packed sequences begins, and T. B is 1 then,
        and states are those of sequences, [N, H, K, V]. A sequence may be of one token, or of none. Nothing waits for
        the values: a CUDA graph may be replayed with others of the same N. None: each of B sequences has T tokens.
    state_v_first: states, and their gradients, are [.., V, K], as flash-linear-attention's layers have them.
    check: whether to look at the values of cu_seqlens, which waits for the GPU. What is wrong with them is else not
        noticed, but on the CPU.
    schedule: chunk, sub-chunk, materialized or not, walks cut into segments or not; None picks one for each direction.
    config: how the kernels are tiled.
        None: as tuned on this GPU for a shape like this one, as shipped for it or for one of its compute capability,
            or by the cost model: `chosen` tells which, and why. Nothing is ever tuned.
        "tune": the same, but a shape class that was never tuned on this GPU is tuned first and remembered. Takes up to
            minutes once, and needs glabench, the harness. Tunes the backward pass only where gradients are required.
        A Plan, or a pair of them for forward and backward of which either may be None: those plans.
        A KernelConfig: these tiles, for both directions, with the schedule given or the one that the cost model picks.
    recompute: where states are materialized, what is kept of them for the backward pass. True: nothing, which makes it
        10 to 20 % slower as a rule. False: all, B*H*ceil(T/chunk)*K*V elements (twice the size of q with K = V = 128
        and chunks of 64). None: as False, but where Hopper's own kernels lead states along, which are of bfloat16 with
        gates, chunks of 64, and K and V that 64 divides: there few, of B*T*H*256 bytes at most, decays
        of chunks included. Nothing is kept where the two directions' plans have other chunks. Where states are not
        materialized one a slice is kept, if there are heads enough, and none with True.

    Returns o [B, T, H, V] in the dtype of q, and the final state [B, H, K, V] in float32 or None. Differentiable once
    in q, k, v, g, gv and initial_state, also through the final state. Deterministic: the same inputs give the same
    bits.

    Raises ValueError, naming the argument, for a wrong shape, dtype, device, schedule or config.
    """
    inputs = Inputs(q, k, v, g, gv, initial_state, cu_seqlens)
    if heads := grouped.together(inputs, state_v_first):
        asked: dict[str, Any] = {"schedule": schedule, "config": config, "recompute": recompute, "check": check}
        asked |= {"scale": scale, "output_final_state": output_final_state}
        return grouped.call(gla, inputs, heads, state_v_first, **asked)
    if torch.compiler.is_compiling():
        if config is None:
            return library.call("gla", inputs, scale, output_final_state, schedule, recompute, state_v_first)
        outside = torch.compiler.disable(gla)  # a plan, or tuning, is nothing that a graph can hold
        more = {"gv": gv, "schedule": schedule, "config": config, "recompute": recompute}
        packed = {"cu_seqlens": cu_seqlens, "state_v_first": state_v_first, "check": check}
        return outside(q, k, v, g, scale, initial_state, output_final_state, **packed, **more)
    if not is_plain(inputs):
        _check(inputs, output_final_state, state_v_first)
        return library.call("gla", inputs, scale, output_final_state, schedule, recompute, state_v_first)
    if looks_at_lengths(inputs, check):
        _check(inputs, output_final_state, state_v_first)
        check_length_values(inputs)
    wanted = inputs.requires_grad
    flags = (output_final_state, recompute, scale, state_v_first)
    signature = signature_of("gla", inputs, (*flags, *map(type, flags), schedule, config, wanted))

    def prepare() -> Prepared:
        _check(inputs, output_final_state, state_v_first)
        how = q.device, check_scale(scale, q.shape[-1]), schedule, wanted, recompute, state_v_first
        form = form_of(inputs, *how, config)
        return Prepared(form, inputs.readable(), output_final_state, q.device)

    return call(prepared(signature, prepare), inputs, wanted)


def _check(inputs: Inputs, output_final_state: bool, v_first: bool) -> None:
    check_flag("output_final_state", output_final_state)
    check_flag("state_v_first", v_first)
    check_tensors(inputs, v_first)


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
    cu_seqlens: Tensor | None = None,
    state_v_first: bool = False,
    check: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Gated linear attention token by token, the state on chip: arguments, returns and errors are those of `gla`.

    Work that a GPU cannot spread over time; for short sequences and as a baseline.
    """
    inputs = Inputs(q, k, v, g, gv, initial_state, cu_seqlens)
    if heads := grouped.together(inputs, state_v_first):
        asked = {"scale": scale, "output_final_state": output_final_state, "check": check}
        return grouped.call(gla_recurrent, inputs, heads, state_v_first, **asked)
    if torch.compiler.is_compiling():
        return library.call("gla_recurrent", inputs, scale, output_final_state, v_first=state_v_first)
    if not is_plain(inputs):
        _check(inputs, output_final_state, state_v_first)
        return library.call("gla_recurrent", inputs, scale, output_final_state, v_first=state_v_first)
    if looks_at_lengths(inputs, check):
        _check(inputs, output_final_state, state_v_first)
        check_length_values(inputs)
    wanted = inputs.requires_grad
    flags = (output_final_state, scale, state_v_first)
    signature = signature_of("gla_recurrent", inputs, (*flags, *map(type, flags)))

    def prepare() -> Prepared:
        _check(inputs, output_final_state, state_v_first)
        form = Recurrent(check_scale(scale, q.shape[-1]), state_v_first)
        return Prepared(form, inputs.readable(), output_final_state, q.device)

    return call(prepared(signature, prepare), inputs, wanted)


def gla_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    state: Tensor,
    scale: float | None = None,
    *,
    gv: Tensor | None = None,
    state_v_first: bool = False,
    state_indices: Tensor | None = None,
    state_scales: Tensor | None = None,
    rounding: Tensor | None = None,
) -> Tensor:
    """One token of decoding: ``state`` is updated in place, o is returned.

    q, k, g: [B, H, K]; v, gv: [B, H, V]; state: [B, H, K, V], or [B, H, V, K] with state_v_first, float32, contiguous,
    in memory that none of the others is a view of. v, gv, the state and o may have n times the heads, as in `gla`:
    nothing is repeated. Returns o [B, H, V] in the dtype of q. Not differentiable: a backward pass that still needs
    what was in the state raises RuntimeError. Raises ValueError, naming the argument, for a wrong shape, dtype or
    device.

    state_indices: [B], int32 or int64: ``state`` is a pool then, [slots, H, K, V] or [slots, H, V, K], of float32,
        bfloat16, float16 or float8_e4m3fn, each slot contiguous and any stride from one to the next, and these are the
        slots of the B requests, no slot twice. What is no slot, such as -1, is padding, and its o is 0. g may be one
        gate a head of v, [B, H]. Sums are float32. What is in the tensors counts when the kernel runs: a CUDA graph
        may be replayed with other indices.
    state_scales: [slots, H, V], float32, of float8_e4m3fn states, and updated with them.
    rounding: [B], int32 or int64, a number of each request that is another one at each step, such as its position:
        states are rounded up or down by chance, by bits that follow from it. None: to nearest. Not of float32.
    `serving.StatePool` has more for pools: prefill, steps that write no state, several tokens a step.
    """
    inputs = Inputs(q, k, v, g, gv, state)
    if state_indices is not None:
        return pooled.step(inputs, scale, state_v_first, state_indices, state_scales, rounding)
    if torch.compiler.is_compiling():
        return library.call_step(inputs, scale, state_v_first)
    wanted = inputs.requires_grad or inputs.has_tangents
    if not is_plain(inputs) or wanted:
        check_step(q, k, v, g, gv, state, state_v_first)
        refuse_gradients(wanted)
        return library.call_step(inputs, scale, state_v_first)

    def prepare() -> PreparedStep:
        check_step(q, k, v, g, gv, state, state_v_first)
        return PreparedStep(inputs.readable(()), check_scale(scale, q.shape[-1]), q.device, state_v_first)

    lies = (state.is_contiguous(), state.is_neg()) if isinstance(state, Tensor) and not state.is_sparse else None
    run = prepared(signature_of("gla_step", inputs, (scale, type(scale), lies, state_v_first)), prepare)
    updated = state if state.data_ptr() % ALIGNED == 0 else state.clone()
    o = run(inputs._replace(initial_state=None).readable(())._replace(initial_state=updated))
    if updated is not state:
        state.copy_(updated)
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
    gate_dtype: torch.dtype | None = None,
    value_gated: bool = False,
    initial_state: bool = False,
    capability: int = 90,
) -> list[Launch]:
    """The kernels that a call would launch, in order, without running one: for cross-compilation and for models.

    op: "gla", "gla_recurrent" or "gla_step"; mode: "fwd", with no backward pass to come, "bwd", "fwdbwd" or "step";
    capability: compute capability of the GPU, 80 for an A100, 90 for an H100; schedule and config are those of `gla`;
    gate_dtype: of both sides' gates, by default ``dtype``.
    The tuned plans of this machine's own GPU do not count, only shipped ones. Tensors in the launches are on the meta
    device. Raises ValueError as the call itself would, but takes tiles that a GPU could not run.
    """
    if op not in ("gla", "gla_recurrent", "gla_step"):
        raise ValueError(f"op: expected gla, gla_recurrent or gla_step, got {op!r}")
    if mode not in ("fwd", "bwd", "fwdbwd", "step") or (mode == "step") != (op == "gla_step"):
        raise ValueError(f"mode: expected {'step' if op == 'gla_step' else 'fwd, bwd or fwdbwd'}, got {mode!r}")
    check_sizes(B=B, T=T, H=H, K=K, V=V, capability=capability)
    lead = (B, H) if op == "gla_step" else (B, T, H)
    q = torch.empty(*lead, K, dtype=dtype, device="meta")
    v = torch.empty(*lead, V, dtype=dtype, device="meta")
    g = torch.empty_like(q, dtype=gate_dtype) if gated else None
    gv = torch.empty_like(v, dtype=gate_dtype) if value_gated else None
    state = torch.empty(B, H, K, V, dtype=torch.float32, device="meta") if initial_state or op == "gla_step" else None
    check_inputs(q, q, v, g, state, rows=op != "gla_step", gv=gv)
    scale = float(K**-0.5)
    given = Inputs(q, q, v, g, gv, state)
    fwd: list[Launch] = []
    bwd: list[Launch] = []

    def run_both(form: Form) -> None:
        left = form.forward(given, False, fwd.append)[-1]
        form.backward(given, left, v, None, [True] * len(given), bwd.append)

    if op == "gla_step":
        assert state is not None
        recurrent.step(q, q, v, g, state, scale, fwd.append, gv)
    elif op == "gla_recurrent" or (B * H == 0 and gv is None):  # as in `gla`
        recurrent.forward(q, q, v, g, scale, state, False, fwd.append, gv)
        recurrent.backward(q, q, v, g, scale, state, v, None, None, bwd.append, gv)
    elif gv is not None:
        settled = check_schedule(schedule, config)
        run_both(value_gated_form(given, Machine(capability), scale, settled, schedule, mode != "fwd", False))
    else:
        check_config(schedule, config, q.device)
        simple = ungated(given, scale, capability, schedule, config, mode != "fwd", mode != "fwd")
        if simple is not None:
            run_both(simple)
        else:
            forward, backward = _planned(workload_of(given, schedule), config, Machine(capability), mode, initial_state)
            fwd.extend(forward)
            bwd.extend(backward)
    return {"fwd": fwd, "bwd": bwd, "fwdbwd": fwd + bwd, "step": fwd}[mode]


def _planned(
    work: Workload, config: Config, machine: Machine, mode: str, initial_state: bool
) -> tuple[list[Launch], list[Launch]]:  # fmt: skip
    """The launches of each direction by plans: see `launches`."""
    forward, backward = plan_of(work, config, machine), None
    later, bwd = replace(work, direction="bwd"), list[Launch]()
    if mode != "fwd":
        backward = plan_of(later, config, machine)
        bwd = all_launches(later, backward, initial_state, forward, few=True)
    return all_launches(work, forward, initial_state, backward, keep=backward is not None, few=True), bwd


__all__ = ["gla", "gla_recurrent", "gla_step", "launches"]
