"""Whether ranks compute what is right: of a short sequence, before anything is timed."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gla_kernels import gla
from glabench.run import gate, oracle
from glabench.run.oracle import Outputs
from glabench.spec.settings import Settings
from glabench.systems.inputs import Inputs, make_inputs
from glabench.tools.context_parallel.question import CHECKED, STRENGTHS, Finding, Question
from glabench.tools.context_parallel.tokens import bounds, cut, operator


def checked(question: Question, rank: int) -> Finding:
    """For each strength of gates what the gate says of the ranks' results (``scores``, with the harness's tolerances)
    and how far they are from one GPU's (``apart``, ||x - one|| / ||one||). None but the first rank looks."""
    found = {}
    for strength in STRENGTHS:
        case = question.case(min(question.shape.T, CHECKED), strength, states=True)
        x = make_inputs(case, "gla", question.device)
        whole = gathered(question, rank, x)
        if rank == 0:
            asked = oracle.ask(case, question.device, Settings().gate_pairs)
            scores = gate.scored(whole, asked, oracle.answer(asked), Settings().gate_factor, gradients=True)
            found[str(strength)] = {"scores": scores, "apart": apart(whole, results(gla, x))}
    return found


def gathered(question: Question, rank: int, x: Inputs) -> Outputs:
    """The results on the whole sequence, of which each rank has computed its part: put in its place among zeros, and
    all added up, which is exact."""
    tokens = x.q.shape[1]
    low, high = bounds(question, rank, tokens)
    own = results(operator(question), cut(x, low, high))
    if question.ranks == 1:
        return own
    found = {}
    for name, y in own.items():
        found[name] = y if "state" in name else y.new_zeros(y.shape[0], tokens, *y.shape[2:])
        if found[name] is not y:
            found[name][:, low:high] = y
        dist.all_reduce(found[name])
    return found


def results(call: Any, x: Inputs) -> Outputs:
    """o, the final state and all gradients."""
    given = x.with_grad()
    o, state = call(given.q, given.k, given.v, given.g, None, given.initial_state, True)
    return oracle.collect(given, o, state, gradients=True)


def apart(outputs: Outputs, one: Outputs) -> dict[str, float]:
    def norm(x: Tensor) -> float:
        return float(torch.linalg.vector_norm(x.double()))

    return {name: norm(x.double() - one[name].double()) / norm(one[name]) for name, x in outputs.items()}


def wrong(check: Finding, gradients: bool) -> str | None:
    """What is not right, in one line. Without gradients, of what a forward pass returns."""
    for strength, found in check.items():
        looked_at = {name: x for name, x in found["scores"].items() if gradients or not name.startswith("d")}
        why = gate.worst(looked_at)
        if why is not None:
            return f"gates x{strength}: {why}"
    return None
