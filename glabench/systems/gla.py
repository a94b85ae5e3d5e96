"""Our chunkwise GLA: every schedule of the Triton kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from glabench.hardware.environment import package_version
from glabench.spec.case import Case
from glabench.spec.settings import Device
from glabench.systems.base import System, Unavailable, missing_package

if TYPE_CHECKING:
    import torch

    from gla_kernels import Choice, Machine, Plan, Schedule, Workload
    from gla_kernels.launch import Launch
    from gla_kernels.ops.form import Form
    from gla_kernels.plan.request import Config
    from glabench.spec.catalog import SystemInfo
    from glabench.systems.inputs import Inputs

MAX_HEAD_DIM = 512


def kernels_unavailable(device: Device) -> Unavailable | None:
    """Our kernels run anywhere that Triton is: on a CPU in its interpreter, untimed."""
    return missing_package("triton", "pip install triton (Linux only)")


def head_dim_refusal(case: Case) -> str | None:
    """Why our kernels cannot take the case's head dimensions, or None."""
    for axis, size in (("K", case.K), ("V", case.V)):
        if size > MAX_HEAD_DIM:
            return f"{axis}={size} is above the largest head dimension of the kernels, {MAX_HEAD_DIM}"
    return None


def schedule_of(case: Case) -> Schedule | None:
    """The case's schedule, None where the case leaves all of it open. ValueError for one that does not exist."""
    from gla_kernels import Schedule

    if case.chunk is None and case.sub_chunk is None and case.materialize is None:
        return None
    chosen = {"chunk": case.chunk, "sub_chunk": case.sub_chunk, "materialize": case.materialize}
    return Schedule(**{name: value for name, value in chosen.items() if value is not None})  # type: ignore[arg-type]  # values of one dict have one type


def kernels_version() -> str:
    return f"gla_kernels {package_version('gla-kernels') or 'of this checkout'}, triton {package_version('triton')}"


class Gla(System):
    """``gla_kernels.gla`` with the case's schedule."""

    def unavailable(self, device: Device) -> Unavailable | None:
        return kernels_unavailable(device)

    def unsupported(self, case: Case, device: Device) -> str | None:
        try:
            schedule = self.schedule(case)
            if case.value_gate:
                value_gated_schedule(schedule)
        except ValueError as error:
            return str(error)
        return head_dim_refusal(case)

    def schedule(self, case: Case) -> Schedule | None:
        """`schedule_of` the case."""
        return schedule_of(case)

    def choices(self, case: Case, machine: Machine | None = None) -> dict[str, Choice]:
        """Which plan each direction of the case runs on a GPU, and why; by default on the one that is here."""
        from gla_kernels import chosen

        work = self.workload(case)
        works = (work,) if case.mode == "fwd" else (work, replace(work, direction="bwd"))
        return {one.direction: chosen(one, machine) for one in works}

    def workload(self, case: Case) -> Workload:
        """What the case asks of the forward pass, as plans are chosen by; ValueError for a schedule that is none."""
        from gla_kernels import Workload

        gated = case.gate_strength is not None
        H, V = heads_of(case)
        sizes = case.B, case.T, H, case.K, V
        return Workload("fwd", *sizes, case.dtype, gated, self.schedule(case), case.gates if gated else None)

    def implementation(self, case: Case) -> str:
        from glabench.hardware.crosscompile import local_arch

        if case.value_gate and not self.rides(case):
            return f"{kernels_version()}; {schedule_name(value_gated_schedule(self.schedule(case)))} not tuned"
        if (arch := local_arch()) is not None and self.simple_form(case, arch) is not None:
            return f"{kernels_version()}; by the walks of simple_gla, not tuned"
        found: dict[str, list[str]] = {}
        for direction, choice in self.choices(case).items():
            found.setdefault(f"{schedule_name(choice.plan.schedule)} {choice.origin}", []).append(direction)
        return "; ".join([kernels_version(), *(f"{' and '.join(names)} {text}" for text, names in found.items())])

    def rides(self, case: Case) -> bool:
        """Whether the case's gates of the value side go by the plans of `gla` without them."""
        from glabench.hardware.crosscompile import local_arch

        arch = local_arch()
        return arch is not None and any(launch.step == "walk" for launch in self.launches(case, arch))

    def config(self, case: Case) -> Config:
        """What is handed to ``gla`` as config: nothing, it chooses as it does for any user."""
        return None

    def forward(self, inputs: Inputs, case: Case) -> tuple[torch.Tensor, torch.Tensor | None]:
        from gla_kernels import gla

        return gla(
            inputs.q,
            inputs.k,
            inputs.v,
            inputs.g,
            initial_state=inputs.initial_state,
            output_final_state=case.initial_state,
            gv=inputs.gv,
            cu_seqlens=inputs.cu_seqlens,
            schedule=self.schedule(case),
            config=self.config(case),
        )

    def launches(self, case: Case, arch: str) -> list[Launch]:
        if case.value_gate:
            return kernel_launches("gla", case, arch, self.schedule(case))
        planned = self.simple_form(case, arch) is None
        return kernel_launches("gla", case, arch, self.schedule(case), self.plans(case, arch) if planned else None)

    def plans(self, case: Case, arch: str) -> tuple[Plan, Plan | None]:
        """Which plans both directions of the case run on a GPU of ``arch``; None for a direction that it has not."""
        from gla_kernels import Machine, machine_of

        here, capability = machine_of(), int(arch.removeprefix("sm_"))
        found = self.choices(case, here if here.capability == capability else Machine(capability))
        return found["fwd"].plan, found["bwd"].plan if "bwd" in found else None

    def form_of(self, case: Case, arch: str) -> Form | None:
        from gla_kernels.ops.forms import Chunkwise

        if case.unplanned:
            return None
        if (simple := self.simple_form(case, arch)) is not None:
            return simple
        forward, backward = self.plans(case, arch)
        return Chunkwise(case.K**-0.5, forward, backward or forward, backward is not None)

    def simple_form(self, case: Case, arch: str) -> Form | None:
        """The form without plans that the case's call takes on a GPU of ``arch``, where it has no gates and Hopper's
        walks of `simple_gla` serve it."""
        import torch

        from gla_kernels.ops.form import Inputs as CallInputs
        from gla_kernels.ops.gla_form import ungated
        from glabench.systems.inputs import DTYPES

        if case.gate_strength is not None or case.lengths:
            return None
        H, V = heads_of(case)
        q, v = (torch.empty(case.B, case.T, H, size, dtype=DTYPES[case.dtype], device="meta") for size in (case.K, V))
        given, back = CallInputs(q, q, v, None, None, None), case.mode != "fwd"
        how = int(arch.removeprefix("sm_")), self.schedule(case), self.config(case), back, back
        return ungated(given, case.K**-0.5, *how)


def heads_of(case: Case) -> tuple[int, int]:
    """How many heads our kernels take the case's for, and their columns of V: heads of v that share q, k and g are one,
    as far as they fit."""
    from gla_kernels.ops.grouped import heads_in_one

    together = heads_in_one(case.group, case.V)
    return case.H // together, case.V * together


class PlannedGla(Gla):
    """``gla_kernels.gla`` with plans given for either direction, for a tuner; None leaves that one to ``gla``."""

    def __init__(self, info: SystemInfo, fwd: Plan | None = None, bwd: Plan | None = None) -> None:
        super().__init__(info)
        self.fwd, self.bwd = fwd, bwd

    def config(self, case: Case) -> Config:
        return self.fwd, self.bwd

    def choices(self, case: Case, machine: Machine | None = None) -> dict[str, Choice]:
        from gla_kernels import Choice

        given = {"fwd": self.fwd, "bwd": self.bwd}
        found = {}
        for direction, choice in super().choices(case, machine).items():
            plan = given[direction]
            found[direction] = choice if plan is None else Choice(plan, "as given")
        return found


def value_gated_schedule(schedule: Schedule | None) -> Schedule:
    """What runs with gates on the value side where this is asked for; ValueError where nothing does."""
    from gla_kernels.ops.value_gates import check_schedule

    return check_schedule(schedule, None)


def schedule_name(schedule: Schedule) -> str:
    """A schedule in a few words: "64/16 w/ m., seg 32" is chunks of 64, sub-chunks of 16, materialized, segments of 32
    chunks."""
    segments = "" if schedule.states_every is None else f", seg {schedule.states_every}"
    return f"{schedule.chunk}/{schedule.rows} {'w/' if schedule.materialize else 'w/o'} m.{segments}"


def kernel_launches(
    op: str, case: Case, arch: str, schedule: Schedule | None = None, config: Config = None
) -> list[Launch]:
    """What the kernels' API would launch for the case, on meta tensors; nothing where sequences are packed, of which it
    has no list."""
    import gla_kernels
    from glabench.systems.inputs import DTYPES

    if case.lengths:
        return []
    H, V = (case.H, case.V) if case.mode == "step" else heads_of(case)  # a step knows of groups
    return gla_kernels.launches(
        op,
        B=case.B,
        T=case.T,
        H=H,
        K=case.K,
        V=V,
        dtype=DTYPES[case.dtype],
        mode=case.mode,
        schedule=schedule,
        config=config,
        gated=case.gate_strength is not None,
        gate_dtype=DTYPES[case.gates],
        value_gated=case.value_gate,
        initial_state=case.initial_state or case.mode == "step",
        capability=int(arch.removeprefix("sm_")),
    )
