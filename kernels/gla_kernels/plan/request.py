"""What a caller asks for with ``schedule`` and ``config``: checked, and made a plan for each direction."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import entry_points
from typing import Literal

import torch

from ..schedule import PASSES, WALKS, KernelConfig, Plan, Schedule, Tile, Workload
from .choose import by_model, machine_of, plan_for, refresh
from .limits import why_not
from .table import Machine, key_of

Config = KernelConfig | Plan | tuple[Plan | None, Plan | None] | Literal["tune"] | None

EXPECTED = 'expected a KernelConfig, a Plan, a pair of Plans (forward, backward), "tune" or None'


def check_config(schedule: Schedule | None, config: Config, device: torch.device) -> None:
    """Raise ValueError, naming the argument, for a schedule or config that tensors on the device cannot run."""
    if schedule is not None and not isinstance(schedule, Schedule):
        raise ValueError(f"schedule: expected a Schedule or None, got {type(schedule).__name__}")
    if config is None:
        return
    if isinstance(config, str):
        if config != "tune":
            raise ValueError(f"config: {EXPECTED}, got {config!r}")
        if device.type != "cuda":
            raise ValueError(f'config: "tune" measures on a CUDA device, and the tensors are on {device.type}')
    elif isinstance(config, KernelConfig):
        if schedule is not None:
            _check_kinds(schedule, Plan(schedule, config))
    elif isinstance(config, Plan):
        _check_kinds(schedule, config)
    elif isinstance(config, tuple) and len(config) == 2 and all(isinstance(x, Plan | None) for x in config):
        for plan in config:
            if plan is not None:
                _check_kinds(schedule, plan)
    else:
        raise ValueError(f"config: {EXPECTED}, got {type(config).__name__}")


def _check_kinds(schedule: Schedule | None, plan: Plan) -> None:
    """Raise ValueError for what is no plan, one of another schedule, and one that no workload can run."""
    if not isinstance(plan.schedule, Schedule) or not isinstance(plan.config, KernelConfig):
        kinds = f"{type(plan.schedule).__name__} and {type(plan.config).__name__}"
        raise ValueError(f"config: expected a plan of a Schedule and a KernelConfig, got {kinds}")
    for name in PASSES:
        tile = getattr(plan.config, name)
        if not isinstance(tile, Tile) and not (tile is None and name in WALKS):
            raise ValueError(f"config: expected a Tile for {name}, got {type(tile).__name__}")
    if schedule not in (None, plan.schedule):
        raise ValueError(f"config: its plan is for {plan.schedule}, and {schedule} is asked for")
    if (reason := why_not(plan)) is not None:
        raise ValueError(f"config: {reason}")


def plan_of(work: Workload, config: Config, machine: Machine) -> Plan:
    """The plan of one direction: the one given, or the one chosen for the machine."""
    if isinstance(config, KernelConfig):
        schedule = work.schedule or by_model(work, machine.capability).schedule
        _check_kinds(None, Plan(schedule, config))
        return Plan(schedule, config)
    given = config[work.direction == "bwd"] if isinstance(config, tuple) else config
    return given if isinstance(given, Plan) else plan_for(work, machine).plan


def check_plan(plan: Plan, work: Workload, machine: Machine) -> None:
    """Raise ValueError for a plan given that cannot run the workload: with tiles of another head dimension, say,
    results would be wrong."""
    reason = why_not(plan, replace(work, schedule=plan.schedule), machine.capability)
    if reason is not None:
        raise ValueError(f"config: {reason}")


TUNERS = "gla_kernels.tuner"  # group of entry points: a function that tunes workloads on the current CUDA device

_tried: set[tuple[object, ...]] = set()


def installed_tuner() -> Callable[[Sequence[Workload]], object]:
    """The tuner that an installed package offers. Raises LookupError where none does, and what importing it raises."""
    found = sorted(entry_points(group=TUNERS), key=lambda one: one.name)
    if not found:
        raise LookupError(
            f'no installed package offers a tuner (entry point "{TUNERS}"); glabench does, once it is installed anew'
        )
    tuner: Callable[[Sequence[Workload]], object] = found[0].load()
    return tuner


def tune(works: Sequence[Workload], device: torch.device) -> None:
    """Tune the directions of a call on the CUDA device, together, but for those whose shape class is in the GPU's own
    table already or was tried by this process before. A tuner that fails is warned of, no more."""
    machine = machine_of(device)
    choices = {work: plan_for(work, machine) for work in works if (*key_of(work), machine) not in _tried}
    new = [work for work, choice in choices.items() if not choice.here]
    if not new:
        return
    tried = {(*key_of(work), machine) for work in new}
    _tried.update(tried)
    try:
        tuner = installed_tuner()
        with torch.cuda.device(device):
            tuner(new)
    except Exception as error:
        reason = (str(error) or "no reason given").splitlines()[0]
        origins = " and ".join(dict.fromkeys(choices[work].origin for work in new))
        warnings.warn(f'config="tune": {type(error).__name__}: {reason}; going on with plans {origins}', stacklevel=3)
    except BaseException:  # interrupted: not tried
        _tried.difference_update(tried)
        raise
    refresh()
