"""One workload on the GPU: its inputs, and the passes of its plans with buffers to run on.

A candidate is one kernel of a plan, timed by itself, with the states of all chunks but of a forward walk, which stores
as few as calls keep; so do plans that come to the final. A candidate needs what the passes before it would have left,
and something to be compared with: both come from a reference plan of the same chunk and kind (row blocks of 16, the
smallest and safest there is), run as a whole beforehand, in the candidate's slices. Comparing with it is a screen, to
drop broken candidates early; a winner faces the gate, which compares with float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from gla_kernels import Launch, Plan, Schedule, Workload, chunk, default_config
from gla_kernels.chunk.kept import Kept
from gla_kernels.chunk.problem import Problem
from gla_kernels.copies import copy_kernel
from gla_kernels.launch import Launcher, execute
from gla_kernels.plan.apply import by_pass, problem_of
from gla_kernels.schedule import WALK_OF, WALKS
from gla_kernels.tiles.slices import Share
from glabench.spec.case import Case
from glabench.systems.inputs import DTYPES, Inputs, make_inputs
from glabench.tune.candidate import FEW, Candidate, plan_of

# How far a candidate may be from the reference plan, which has rounding errors of its own: in units of the dtype's
# rounding, and never less than what float32 sums in another order differ by.
SCREEN_ROUNDINGS = 8.0
SCREEN_LEAST = 1e-4

REFERENCE_ROWS = 16  # a row block of the reference plan
GATE_STRENGTH = 1.0  # g = logsigmoid(N(0, 1)), as in the sweeps
STRONG_GATES = 40.0  # and where a winner must be right besides, over few tokens
STRONG_TOKENS = 1029

STARTS = ("p_s0", "p_dst")  # tensors that passes start from, and never write


class WrongResult(Exception):
    """A candidate computes something else than the reference plan."""


class UnequalRuns(WrongResult):
    """A candidate does not compute the same twice."""


def strong_work(work: Workload) -> Workload:
    """The workload that a winner must be right at with strong gates."""
    return replace(work, T=min(work.T, STRONG_TOKENS))


def case_of(work: Workload) -> Case:
    """The sweep case that asks for the workload."""
    return Case(
        system="gla",
        B=work.B,
        T=work.T,
        H=work.H,
        K=work.K,
        V=work.V,
        dtype=work.dtype,  # type: ignore[arg-type]  # a name of DTYPES
        mode="fwd" if work.direction == "fwd" else "fwdbwd",
        gate_strength=GATE_STRENGTH if work.gated else None,
        gate_dtype=work.gate_dtype,  # type: ignore[arg-type]  # the same
    )


@dataclass(frozen=True)
class Pass:
    """A launch on real buffers; ``outputs`` names the arguments that it writes."""

    launch: Launch
    outputs: tuple[str, ...]


# By name, and whether it leaves only the states between segments. Plans whose walks make the others have no second
# pass of that name.
Passes = dict[tuple[str, bool], Pass]


class Stage:
    """The inputs of one workload on the current CUDA device, and the reference plan that ran last."""

    def __init__(self, work: Workload, capability: int) -> None:
        self.work, self.capability = work, capability
        self.inputs = make_inputs(case_of(work), "gla", "cuda")
        self._forward: tuple[Plan, int, Kept | None] | None = None
        self._kind: tuple[Schedule, Share | None] | None = None
        self._passes: Passes = {}

    def call(self, plan: Plan, forward: Plan) -> Callable[[], None]:
        """What a call does in the workload's direction, ready to be timed: it keeps and is left few states. Of a
        backward plan with what the forward one leaves for it."""
        kept = self._left_by(forward, plan) if self.work.direction == "bwd" else None
        return partial(run_plan, self.inputs, self.work, plan, execute, kept, few=True)

    def _left_by(self, forward: Plan, backward: Plan) -> Kept | None:
        every = _problem(self.inputs, self.work, backward, few=True).states_apart
        if self._forward is None or self._forward[:2] != (forward, every):
            self._forward = None  # before the next one's states are made
            problem = _problem(self.inputs, self.work, forward)
            self._forward = forward, every, chunk.forward(problem, False, execute, every=every)[2]
        return self._forward[2]

    def trial(self, candidate: Candidate) -> Callable[[], None]:
        """The candidate's kernel, ready to be timed. Raises WrongResult when it fails the screen."""
        reference = _pass_of(self._reference(candidate), candidate, self.work)
        launch = self._launch_of(candidate, reference)
        some = {"p_s"} if launch.constexprs.get("STORE_S") is False else set()  # of strong gates alone, if any
        if "p_qd" in launch.args:  # what was prepared goes by these, too
            some.add("p_h")
        outputs = [
            name for name in reference.outputs if name not in some and isinstance(launch.args.get(name), torch.Tensor)
        ]
        first = _run_on_poison(launch, outputs)
        second = _run_on_poison(launch, outputs)
        roundings = SCREEN_ROUNDINGS * torch.finfo(DTYPES[self.work.dtype]).eps / 2
        for name in outputs:
            _compare(name, first[name], second[name], launch.args[name], max(roundings, SCREEN_LEAST))
        timed = replace(launch, args=launch.args | second)
        return lambda: execute(timed)

    def _launch_of(self, candidate: Candidate, reference: Pass) -> Launch:
        """The candidate's kernel on the buffers of the reference plan."""
        found: list[Launch] = []
        plan, few = plan_of(self.work, [candidate], self.capability), candidate.step in FEW
        run_plan(self.inputs, self.work, plan, found.append, few=few)
        for one in found:
            if one.step in ("prepare", "prepare_strong"):
                execute(one)
        launch, block_t = by_pass(found)[candidate.step], candidate.variant.block_t
        tensors = {
            name: x
            for name, x in reference.launch.args.items()
            if isinstance(x, torch.Tensor) and isinstance(launch.args.get(name), torch.Tensor)
        }  # a walk may store no states
        if "p_h" in tensors:  # the reference plan has it of other row blocks
            tensors["p_h"] = half_decays(tensors["p_g"], block_t)
            if "p_h" in reference.outputs:  # of the first slice alone
                written = reference.launch.args["p_h"][:, :: block_t // REFERENCE_ROWS]
                tensors["p_h"][written.isnan()] = math.nan
        return replace(launch, args=launch.args | tensors)

    def _reference(self, candidate: Candidate) -> Passes:
        """The passes of the candidate's reference plan, which has run over what the candidate's plan works on at
        once."""
        schedule = candidate.variant.schedule
        kind = reference_schedule(schedule), self._share(candidate)
        if kind != self._kind:
            self._kind, self._passes = None, {}  # before the next one's buffers are made
            plan = reference_plan(self.work, schedule, self.capability)
            self._passes = _passes(self.inputs, self.work, plan, kind[1])
            self._kind = kind
        return self._passes

    def _share(self, candidate: Candidate) -> Share | None:
        """What the candidate's plan works on at once, which depends on its row blocks; None for everything."""
        if candidate.variant.schedule.materialize:
            return None
        return _problem(self.inputs, self.work, plan_of(self.work, [candidate], self.capability)).share


def reference_schedule(schedule: Schedule) -> Schedule:
    """The schedule of the reference plan: the smallest sub-chunks, all else as it is."""
    return replace(schedule, sub_chunk=REFERENCE_ROWS)


def reference_plan(work: Workload, schedule: Schedule, capability: int) -> Plan:
    """The plan that candidates of the schedule's chunk and kind are compared with."""
    safe = reference_schedule(schedule)
    return Plan(safe, default_config(work.K, work.V, work.operand_bytes, safe, capability))


def run_plan(
    inputs: Inputs, work: Workload, plan: Plan, launch: Launcher, kept: Kept | None = None, share: Share | None = None,
    few: bool = False,
) -> None:  # fmt: skip
    """What gla() does in one direction, with the plan given and what the forward pass has left for a backward one.
    ``share``: what is worked on at once, if not what the plan would choose. few: with few states, as gla() keeps them,
    and not with those of all chunks."""
    problem = replace(_problem(inputs, work, plan, few), settled=share)
    if work.direction == "bwd":
        chunk.backward(problem, inputs.do, None, launch, kept)
    else:
        chunk.forward(problem, False, launch, every=problem.states_apart)


def _problem(inputs: Inputs, work: Workload, plan: Plan, few: bool = False) -> Problem:
    """The call, with the states of all chunks unless it is to have few: a kernel that leads them along has no tiles to
    choose."""
    problem = problem_of(inputs.q, inputs.k, inputs.v, inputs.g, work.K**-0.5, None, plan)
    return problem if few else replace(problem, run=1)


def _passes(inputs: Inputs, work: Workload, plan: Plan, share: Share | None) -> Passes:
    """Run the plan; its passes with what each wrote, over the first slice that they come to: later ones would write
    over its states. What a pass leaves out is NaN. Copies between passes are no passes, and all are made.

    Memory that no earlier pass has seen, and that is none to start from, is an output of the pass.
    """
    known = {_memory(x) for _, x in inputs.tensors()}
    passes: Passes = {}

    def keep(launch: Launch) -> None:
        if launch.kernel is copy_kernel:
            return execute(launch)
        key = launch.step, launch.args.get("every_rows", plan.schedule.chunk) != plan.schedule.chunk
        if key in passes and passes[key].launch.constexprs == launch.constexprs:
            return None
        tensors = {name: x for name, x in launch.args.items() if isinstance(x, torch.Tensor)}
        outputs = tuple(name for name, x in tensors.items() if name not in STARTS and _memory(x) not in known)
        known.update(_memory(x) for x in tensors.values())
        # a slice starts from the state that it carries on in place, and would again from what it has made of it
        starts = {name: tensors[name].clone() for name in STARTS if name in tensors}
        passes[key] = Pass(replace(launch, args=launch.args | starts), outputs)
        for name in outputs:
            tensors[name].fill_(math.nan)
        return execute(passes[key].launch)

    run_plan(inputs, work, plan, keep, share=share)
    torch.cuda.synchronize()
    return passes


def _memory(x: torch.Tensor) -> int:
    """The address of the memory that the tensor is a view of."""
    return x.untyped_storage().data_ptr()


def _pass_of(passes: Passes, candidate: Candidate, work: Workload) -> Pass:
    """The pass, or both of those whose work it does: what they were given, and what they wrote."""
    step = candidate.step
    between = candidate.variant.walks and step in WALKS[WALK_OF[work.direction]]
    parts = [passes[name, between] for name in WALKS.get(step, (step,))]
    outputs = tuple(dict.fromkeys(name for part in parts for name in part.outputs))
    args = {name: value for part in parts for name, value in part.launch.args.items()}
    return Pass(replace(parts[0].launch, args=args), outputs)


def half_decays(g: torch.Tensor, block_t: int) -> torch.Tensor:
    """Log2 of half of each row block's decay, float32 [B*H, n_blocks, K], as the states pass leaves it."""
    B, T, H, K = g.shape
    blocks = -(-T // block_t)
    rows = torch.nn.functional.pad(g.float(), (0, 0, 0, 0, 0, blocks * block_t - T))
    halves = rows.view(B, blocks, block_t, H, K).sum(dim=2) * (0.5 * math.log2(math.e))
    return halves.permute(0, 2, 1, 3).reshape(B * H, blocks, K).contiguous()


def _run_on_poison(launch: Launch, outputs: Sequence[str]) -> dict[str, torch.Tensor]:
    """Run with new output buffers full of NaN, so that what is not written shows."""
    fresh = {name: _poison(launch.args[name]) for name in outputs}
    execute(replace(launch, args=launch.args | fresh))
    torch.cuda.synchronize()
    return fresh


def _poison(x: torch.Tensor) -> torch.Tensor:
    """NaN of x's shape and strides: some heads of a tensor lie as far apart as they do there."""
    span = 1 + sum((count - 1) * stride for count, stride in zip(x.shape, x.stride(), strict=True))
    return torch.full((span,), math.nan, dtype=x.dtype, device=x.device).as_strided(x.shape, x.stride())


def _compare(name: str, first: torch.Tensor, second: torch.Tensor, right: torch.Tensor, allowed: float) -> None:
    short = name.removeprefix("p_")
    written = ~right.isnan()  # of other slices nothing is
    if bool((~first.isnan() & ~written).any()):
        raise WrongResult(f"{short} is written where the reference plan writes nothing")
    first, second, right = first[written], second[written], right[written]
    if not torch.equal(first, second) and not bool(torch.isnan(first).any()):
        raise UnequalRuns(f"two runs of the same inputs differ in {short}")
    off, size = (float(torch.linalg.vector_norm(x)) for x in (first.float() - right.float(), right.float()))
    error = off / size if size else (0.0 if off == 0 else math.inf)  # a first chunk starts from zero
    if not error <= allowed:
        what = "has values that are NaN or infinite" if not math.isfinite(error) else f"is off by {error:.1e}"
        raise WrongResult(f"{short} {what}; {allowed:.1e} from the reference plan is allowed")
