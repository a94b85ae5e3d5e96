"""Inter-chunk against intra-chunk time of the forward (Yang et al. 2023, Figure 2, right).

Our output kernel does both: it multiplies queries with the state at the chunk's start, and rows of a chunk with each
other. It is timed as it is, and without states, which it then neither loads nor multiplies with. What is left is the
intra-chunk part. The inter-chunk part is what the states cost, and the pass that computes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from glabench.failures import NotMeasured
from glabench.spec.case import Case
from glabench.systems.base import System
from glabench.systems.inputs import make_inputs

if TYPE_CHECKING:
    from gla_kernels.launch import Launch
    from glabench.systems.inputs import Inputs

SAMPLES = 30


def asked(case: Case) -> bool:
    """Whether a case is a forward pass of ours w/ m., of a chunk size that it asks for."""
    return case.system == "gla" and case.mode == "fwd" and bool(case.chunk and case.materialize) and not case.lengths


def measure(system: System, case: Case, samples: int = SAMPLES) -> dict[str, list[float]]:
    """The row's ``parts``: so many samples in ms of both parts, each pass cold, on the current CUDA device.

    Raises NotMeasured for a case that has no such parts.
    """
    from gla_kernels.launch import execute
    from glabench.run.cold import ColdSampler

    launches = forward_launches(system, case, make_inputs(case, "gla", "cuda"))
    calls = [partial(execute, launch) for launch in (*launches, without_states(launches[1]))]
    for call in calls:
        call()  # compiles it
    batch, each = ColdSampler(calls).batch(samples * len(calls)), len(calls)
    late = {at // each for at, late in enumerate(batch.late) if late}  # turns that do not count, unless all are
    return split([ms for at, ms in enumerate(batch.ms) if at // each not in late] or batch.ms)


def split(samples: Sequence[float]) -> dict[str, list[float]]:
    """From samples of three launches in turn: states, output, output without states."""
    states, output, intra = (samples[i::3] for i in range(3))
    inter = [s + o - i for s, o, i in zip(states, output, intra, strict=True)]
    return {"intra_ms": list(intra), "inter_ms": inter}


def forward_launches(system: System, case: Case, inputs: Inputs) -> tuple[Launch, Launch]:
    """(states pass, output pass) of the case's forward on the inputs. Raises NotMeasured where there are no such."""
    from gla_kernels import chunk
    from gla_kernels.plan.apply import problem_of
    from glabench.systems.gla import Gla, schedule_name

    if not isinstance(system, Gla):
        raise NotMeasured(f"{system.name} is not ours to take apart")
    if case.mode == "bwd":
        raise NotMeasured("mode bwd has no forward")
    plan = system.choices(case)["fwd"].plan
    plan = replace(plan, config=replace(plan.config, walk=None))  # a walk would do both at once
    x, found = inputs, list[Any]()
    problem = problem_of(x.q, x.k, x.v, x.g, case.K**-0.5, x.initial_state, plan)
    chunk.forward(problem, case.initial_state, found.append)
    if not plan.schedule.materialize or len(found) > 2:
        name = schedule_name(plan.schedule)
        raise NotMeasured(f"{name} runs both passes in turns, or one of them twice; one walk w/ m. has one of each")
    states, output = found
    return states, output


def without_states(output: Launch) -> Launch:
    """The output pass of a materialized schedule, computing what rows of the same chunk give each other. Raises
    NotMeasured where it makes that while the pass over states still runs, as it does of few chunks on Hopper."""
    if output.early:
        raise NotMeasured("o of so few chunks is begun before their states are there: neither part has a time alone")
    blocks = {name: block for name, block in output.blocks.items() if name != "s"}
    return replace(output, args=output.args | {"p_s": None}, blocks=blocks)
