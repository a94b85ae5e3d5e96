"""Which form a call of `gla` takes, by its tensors and by what it asks for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from ..plan.apply import DTYPES
from ..plan.choose import machine_of
from ..plan.request import Config, check_config, check_plan, plan_of, tune
from ..plan.table import Machine
from ..schedule import HOPPER_SMS, Schedule, Workload
from ..simple import native
from ..simple.call import MANY_WALKS, NATIVE_COLUMNS, NATIVE_WALKS, Call
from .form import Form, Inputs
from .forms import Chunkwise, Recurrent, Simple
from .operators import MAKERS
from .validate import check_flag, check_inputs
from .value_gates import ValueGated, check_schedule, plans_of

DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def check_tensors(x: Inputs, v_first: bool) -> None:
    """The tensors of a call of `gla` or `gla_recurrent`. Raises ValueError, naming the argument."""
    how = {"cu_seqlens": x.cu_seqlens, "v_first": v_first, "groups": True}
    check_inputs(x.q, x.k, x.v, x.g, x.initial_state, gv=x.gv, **how)  # type: ignore[arg-type]


def form_of(
    x: Inputs,
    device: torch.device,
    scale: float,
    schedule: Schedule | None,
    differentiated: bool,
    recompute: bool | None,
    v_first: bool = False,
    config: Config = None,
) -> Form:
    """The form of a call of `gla`: see `operators.Maker`."""
    if recompute is not None:
        check_flag("recompute", recompute)
    machine, keep = machine_of(device), differentiated and not recompute
    if x.gv is not None:
        return value_gated_form(x, machine, scale, check_schedule(schedule, config), schedule, keep, v_first)
    check_config(schedule, config, device)
    if x.q.shape[0] * x.q.shape[2] == 0:  # no state to plan for: kernels on empty grids, which never run
        return Recurrent(scale, v_first)
    form = ungated(x, scale, machine.capability, schedule, config, differentiated, keep, v_first)
    if form is not None:
        return form
    fwd = workload_of(x, schedule)
    works = [fwd, replace(fwd, direction="bwd")] if differentiated else [fwd]
    if config == "tune":
        tune(works, device)
    plans = [plan_of(work, config, machine) for work in works]
    if config not in (None, "tune"):
        for work, plan in zip(works, plans, strict=True):
            check_plan(plan, work, machine)
    return Chunkwise(scale, plans[0], plans[-1], keep, few=recompute is None, v_first=v_first)


def ungated(
    x: Inputs,
    scale: float,
    capability: int,
    schedule: Schedule | None,
    config: Config,
    differentiated: bool,
    keep: bool,
    v_first: bool = False,
) -> Simple | None:
    """The form of a call without gates by the walks that Hopper has of its own for one gate a head, where they serve
    and pay, and nobody asks for a schedule or for plans: without an exponent for each feature they do less than those
    of `gla`."""
    if x.g is not None or schedule is not None or config not in (None, "tune"):
        return None
    form = Simple(scale, Schedule(), capability, keep, v_first)
    call = form.call(x)
    serves = native.serves if differentiated else native.serves_forward
    return form if serves(call) and _pays(call, differentiated) else None


def _pays(call: Call, differentiated: bool) -> bool:
    """Whether these walks, a program for each head's columns of V, are faster than plans, which cut a sequence into
    segments where heads are few. On an H200 (results/nvidia-h200/trees): the walks back that are several a head, with
    any number that they serve; else with MANY_WALKS and not with two thirds of them, or with one for each SM where a
    program has 64 columns."""
    B, _, H, _, V = call.dims
    if differentiated and native.serves_apart(call):
        return B * H >= NATIVE_WALKS
    return B * H * call.native_parts >= (MANY_WALKS if V >= NATIVE_COLUMNS else HOPPER_SMS)


def workload_of(x: Inputs, schedule: Schedule | None) -> Workload:
    """The work asked of the forward direction, but for gates of the value side."""
    (B, T, H, K), V = x.q.shape, x.v.shape[-1]
    gates = None if x.g is None else DTYPE_NAMES[x.g.dtype]
    return Workload("fwd", B, T, H, K, V, DTYPE_NAMES[x.q.dtype], x.g is not None, schedule, gates)


def value_gated_form(
    x: Inputs, machine: Machine, scale: float, settled: Schedule, schedule: Schedule | None, keep: bool, v_first: bool
) -> ValueGated:
    """The form of a call with gates of the value side. settled: the schedule to run without the walks of `gla`;
    schedule: what is asked for."""
    plans = None
    if x.q.shape[0] * x.q.shape[2] > 0:
        fwd = workload_of(x, schedule)
        first, second = plans_of([fwd, replace(fwd, direction="bwd")], machine)
        plans = first, second
    return ValueGated(scale, settled, keep, v_first, plans)


def _in_graph(x: Inputs, *how: Any) -> Form:
    """The form, after checks as `gla` itself makes them."""
    check_tensors(x, how[-1])
    return form_of(x, *how)


def _recurrent_in_graph(x: Inputs, device: torch.device, scale: float, *how: Any) -> Form:
    check_tensors(x, how[-1])
    return Recurrent(scale, how[-1])


MAKERS |= {"gla": _in_graph, "gla_recurrent": _recurrent_in_graph}
