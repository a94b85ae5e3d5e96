"""The gate of a training step: its loss and the gradient of every parameter, against the same model whose operator is
computed in float64.

All else is the same in both, weights, tokens and the layers' dtype, so that what differs is the operator's doing. Not
so where blocks are compiled, or layers are a package's own: a compiler rounds less than PyTorch does, and elsewhere, as
do kernels that fuse a layer. Such a step is compared with the whole model in float64. What is allowed is, as of an
operator, a multiple of the error of the model with a plain PyTorch form of its operator, not compiled, in the case's
dtype.

Where documents are packed, both of these models are given one document at a time, alone: no bounds, no padding.

Weights are random, but that tokens attend to themselves: see ``LanguageModel.attend_to_themselves``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from glabench.phases import Phases
from glabench.run.gate import FLOOR, Verdict, allowed
from glabench.run.train import Trainer, forget_compiled
from glabench.spec import lengths
from glabench.spec.axes import Execution
from glabench.spec.case import Case
from glabench.spec.models import CONFIGS
from glabench.spec.settings import Settings
from glabench.systems.base import load
from glabench.systems.inputs import DTYPES
from glabench.systems.language_model import LAYERS, LanguageModelSystem
from glabench.systems.models.operators import Form

MOST_TOKENS = 2048  # of the one sequence that is judged on a GPU: the plain form keeps what it computes
DOCUMENTS = 8  # the longest, of packed ones: each is a step of its own
LOSS = "loss"
KEPT = 3  # questions whose answers are kept: 10 GB each of a model of 1.3B parameters

Found = dict[str, Tensor]  # "loss", and gradients by parameter


def reduced(case: Case, settings: Settings, where: str) -> Case:
    """The case that is judged: its model, one sequence. In the interpreter two chunks and a ragged rest. Of packed
    documents the longest few, as long beside each other as they are."""
    chunk = case.chunk or 64
    most = {"cuda": MOST_TOKENS, "cpu": settings.gate_tokens_cpu, "interpreter": 2 * chunk + chunk // 2 + 5}[where]
    if case.sequences is None:
        return replace(case, B=1, T=min(case.T, most))
    few = sorted(case.sequences, reverse=True)[:DOCUMENTS]
    kept = few if sum(few) <= most else lengths.shared(most, few)
    return replace(case, T=sum(kept), lengths=",".join(map(str, kept)))


def check(system: LanguageModelSystem, case: Case, settings: Settings, where: str, phases: Phases) -> Verdict:
    """Run one step as the case runs it, with the plain form, and in float64."""
    case = reduced(case, settings, where)
    whole = case.execution is not None or system.whole_layers
    with phases("reference"):
        exact, plain = references(system, case, settings, whole)
    with phases("gate"):
        scores = scored(gradients(system, case, settings, "own"), plain, exact, case.dtype, settings.gate_factor)
    reason = _worst(scores)
    accuracy = {
        "passed": reason is None,
        "where": where,
        "shape": {axis: getattr(case, axis) for axis in "BTHKV"},
        "reference": f"the model {'' if whole else 'with its operator '}in float64{_alone(case)}",
        "factor": settings.gate_factor,
        "deterministic": None,
        "outputs": scores,
    }
    return Verdict(reason is None, reason, accuracy)


def _alone(case: Case) -> str:
    """How documents came to the reference, to stand after it."""
    return "" if case.lengths is None else f", one document at a time: {case.lengths}"


def references(system: LanguageModelSystem, case: Case, settings: Settings, whole: bool) -> tuple[Found, Found]:
    """What is right, and what the plain form gives: the same for every schedule and all systems of the same layers."""
    first = next(name for name, layers in LAYERS.items() if layers == LAYERS[system.name])
    asked = replace(case, system=first, chunk=None, sub_chunk=None, materialize=None, recompute=None, execution=None)
    return _answer(asked, settings, whole)


@lru_cache(maxsize=KEPT)
def _answer(case: Case, settings: Settings, whole: bool) -> tuple[Found, Found]:
    """`references`, on the CPU. They take seconds, and are kept, whatever the length that is measured."""
    system = load(case.system)
    assert isinstance(system, LanguageModelSystem)
    found = gradients(system, case, settings, "exact", whole), gradients(system, case, settings, "plain")
    exact, plain = ({name: x.float().cpu() for name, x in one.items()} for one in found)
    return exact, plain


def gradients(
    system: LanguageModelSystem, case: Case, settings: Settings, form: Form, in_float64: bool = False
) -> Found:
    """The loss and every parameter's gradient of one step. Only its own form is compiled where the case is."""
    assert case.model is not None
    execution: Execution | None = "compiled" if form == "own" and case.execution is not None else None
    sizes = CONFIGS[case.model].vocabulary, case.B, case.T
    forget_compiled()
    device = torch.device(settings.device)
    trainer = Trainer(lambda: system.model(case), *sizes, device, execution, system.in_one_graph, case.sequences)
    trainer.model.attend_to_themselves()
    if form != "own":
        trainer.model.judged_by(form)
    if in_float64:
        trainer.model.double()
    if form != "own" and case.sequences is not None:
        return _one_by_one(trainer, case.sequences)
    loss = trainer.forward()
    loss.backward()
    found = {name: p.grad for name, p in trainer.model.named_parameters() if p.grad is not None}
    return {LOSS: loss.detach().reshape(1), **found}


def _one_by_one(trainer: Trainer, documents: Sequence[int]) -> Found:
    """The loss and gradients of documents that are trained on alone, each as its tokens that predict one count among
    all. Summed in float32 at least, so that rounding is that of each document alone."""
    named = dict(trainer.model.named_parameters())
    sums = {name: torch.zeros_like(p, dtype=torch.promote_types(p.dtype, torch.float32)) for name, p in named.items()}
    whole, predicting = torch.zeros(1, device=trainer.device), sum(documents) - len(documents)
    for tokens, targets in zip(*(x.split(list(documents), 1) for x in (trainer.tokens, trainer.targets)), strict=True):
        if (last := tokens.shape[1] - 1) == 0:
            continue  # there is nothing to predict
        loss = trainer.model.loss(tokens, targets) * (last / predicting)
        for grad, total in zip(torch.autograd.grad(loss, list(named.values())), sums.values(), strict=True):
            total += grad
        whole = whole + loss.detach()
    return {LOSS: whole, **sums}


def scored(own: Found, plain: Found, exact: Found, dtype: str, factor: float) -> dict[str, dict[str, Any]]:
    """Errors and what is allowed, by kind of parameter: of a kind's layers that which is nearest to what it may be."""
    floor = FLOOR[dtype] * torch.finfo(DTYPES[dtype]).eps / 2
    worst: dict[str, dict[str, Any]] = {}
    for name, right in exact.items():
        score = _score(own.get(name), plain[name], right, floor, factor)
        kind = re.sub(r"^blocks\.\d+\.", "", name)
        if kind not in worst or _share(score) > _share(worst[kind]):
            worst[kind] = score
    return worst


def _score(own: Tensor | None, plain: Tensor, right: Tensor, floor: float, factor: float) -> dict[str, Any]:
    if own is None:
        return {"error": float("nan"), "baseline": 0.0, "tolerance": 0.0, "missing": True}
    baseline = _distance(plain.to(own.device), right)
    return {
        "error": _distance(own, right),
        "baseline": baseline,
        "tolerance": allowed(factor * baseline, floor),
        "nonfinite": int((~torch.isfinite(own)).sum()),
    }


def _distance(x: Tensor, right: Tensor) -> float:
    """||x - right|| / ||right||; infinite where only the right one is zero."""
    right = right.to(x.device)
    size, apart = (
        float(torch.linalg.vector_norm(y, dtype=torch.float64)) for y in (right, x.double() - right.double())
    )
    return apart / size if size > 0 else 0.0 if apart == 0 else float("inf")


def _share(score: dict[str, Any]) -> float:
    """How much of what is allowed an error is; NaN counts as more than anything."""
    share = score["error"] / score["tolerance"] if score["tolerance"] > 0 else float("nan")
    return float("inf") if share != share or score.get("nonfinite") else float(share)


def _worst(scores: dict[str, dict[str, Any]]) -> str | None:
    """One line that names the kind furthest beyond what it may be, or None when all are within."""
    name, score = max(scores.items(), key=lambda item: _share(item[1]))
    what = name if name == LOSS else f"the gradient of {name}"
    if score.get("missing"):
        return f"{what} was not returned"
    if score["nonfinite"]:
        return f"{what} has {score['nonfinite']} values that are NaN or infinite"
    if _share(score) <= 1:
        return None
    return f"{what} is off by {score['error']:.2e}, {score['tolerance']:.2e} is allowed (relative to float64)"
