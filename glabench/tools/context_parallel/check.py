"""Whether ranks compute what is right: on a short sequence by float64, and on the whole one beside one GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gla_kernels import gla
from glabench.run import gate, oracle
from glabench.run.oracle import Outputs
from glabench.spec.case import Mode
from glabench.spec.settings import Settings
from glabench.systems.inputs import Inputs, make_inputs
from glabench.tools.context_parallel.question import CHECKED, STRENGTHS, Finding, Question
from glabench.tools.context_parallel.tokens import bounds, cut, drawn, operator, step

RUN = 64  # tokens that are compared together: a state is gone after a few dozen, which begin a rank's first run


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


def far_from_one_gpu(question: Question, rank: int, mode: Mode, own: tuple[Tensor, ...]) -> float | None:
    """How far the ranks' results on the whole sequence are from one GPU's at most: ||x - one|| / ||one|| of a run of
    RUN tokens. The first rank computes and holds those; None on the others, and where it has no memory for it."""
    tokens, one, whole = question.shape.T, replace(question, ranks=1), tuple[Tensor, ...]()
    fits = [True]
    if rank == 0:
        try:
            whole = step(one, drawn(one, 0, tokens), mode)()
        except torch.OutOfMemoryError:
            fits = [False]
    dist.broadcast_object_list(fits)
    if not fits[0]:
        return None
    found = []
    for number, mine in enumerate(own):
        for sender in range(question.ranks):
            if rank == 0:
                low, high = bounds(question, sender, tokens)
                right = whole[number][:, low:high]
                part = mine if sender == 0 else right.new_empty(right.shape)
                if sender:
                    dist.recv(part, sender)
                found.append(worst_run(part, right))
            elif rank == sender:
                dist.send(mine.contiguous(), 0)
    return float(torch.stack(found).max()) if rank == 0 else None  # NaN, if there is one


def worst_run(x: Tensor, right: Tensor) -> Tensor:
    """The relative error of the worst run of RUN tokens; the last is what is left."""
    off, size = (y.square().sum((0, 2, 3)) for y in (x.float() - right.float(), right.float()))
    runs = [torch.stack([part.sum() for part in y.split(RUN)]) for y in (off, size)]
    return (runs[0] / runs[1].clamp_min(torch.finfo(torch.float32).tiny)).sqrt().max()


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
