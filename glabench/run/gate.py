"""The correctness gate: no time without it.

A system computes its whole case; a sample of (batch, head) pairs of what it returns is compared with float64, row
block by row block, so that one wrong row among thousands is seen. What is allowed is a multiple of the error that a
plain PyTorch form makes in the same dtype: the same for every system.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from glabench.phases import Phases
from glabench.run import oracle
from glabench.run.errors import distance
from glabench.spec.axes import AXES, later
from glabench.spec.case import Case
from glabench.spec.settings import Settings
from glabench.systems.base import System
from glabench.systems.inputs import DTYPES, Inputs

# The least that is allowed, in units of the dtype's rounding (u = eps / 2), whatever the plain form's error is: storing
# the result costs up to one u, one rounded operand another. In fp32 the exponent of a decay, a sum of gates over a
# chunk, carries |G| u of error: a few hundred nats are a few hundred u.
FLOOR = {"bf16": 2.0, "fp16": 2.0, "fp32": 256.0}

SEQUENCES = 4  # of packed ones, that are compared on a CPU


@dataclass(frozen=True)
class Verdict:
    """The gate's answer; ``accuracy`` is what the row keeps."""

    passed: bool
    reason: str | None
    accuracy: dict[str, Any] = field(repr=False)


def reduced(case: Case, system: System, settings: Settings, interpreter: bool) -> Case:
    """The case that is compared on a CPU: few tokens and heads, the schedule as it is.

    In the interpreter two chunks and a ragged rest, head dimensions capped; PyTorch forms keep their head dimensions.
    Of packed sequences the first few, each cut to its share of as many tokens.
    """
    heads = None if case.attn_heads is None else min(case.attn_heads, 2)
    if case.qk_heads is not None:  # two heads of q, of which each has two of v
        of_q = min(case.qk_heads, 2)
        case = replace(case, H=2 * of_q, qk_heads=of_q)
    H = min(case.H, 2) if case.qk_heads is None else case.H
    if interpreter:
        chunk = case.chunk or 64
        most = settings.gate_dim_interpreter
        fewer = replace(case, B=1, H=H, K=min(case.K, most), V=min(case.V, most))
        tokens = 2 * chunk + chunk // 2 + 5
    else:
        fewer, tokens = replace(case, B=1, H=H, attn_heads=heads), settings.gate_tokens_cpu
    if case.sequences is None:
        return _of_few(replace(fewer, T=min(case.T, tokens)))
    few = [min(length, tokens // SEQUENCES) for length in case.sequences[:SEQUENCES]]
    return _of_few(replace(fewer, T=sum(few), lengths=",".join(map(str, few))))


def _of_few(case: Case) -> Case:
    """With axes whose values are in tokens as they are for so few."""
    some = {name: axis.fewer for name, axis in AXES.items() if axis.fewer is not None}
    asked = {name: value for name, value in later(vars(case)).items() if name in some}
    return replace(case, **{name: some[name](value, case.T) for name, value in asked.items()})


def check(system: System, case: Case, settings: Settings, where: str, phases: Phases | None = None) -> Verdict:
    """Run the case twice and compare it with float64 on sampled pairs. ``where``: "cuda", "cpu" or "interpreter".
    ``phases`` is told what the time goes to.

    A run fails when an output's error exceeds its tolerance, is not finite, or is missing; and, for our own kernels,
    when the second run differs from the first in any bit. The interpreter runs one program after another, so that a
    second run there would prove nothing: "deterministic" is None.
    """
    phases = phases or Phases()
    gradients = case.mode in ("bwd", "fwdbwd")
    question = oracle.ask(case, settings.device, settings.gate_pairs)
    with phases("reference"):
        right = oracle.answer(question)
    with phases("inputs"):
        inputs = system.draw_inputs(case, settings.device)
        poison(inputs)
    with phases("compile"):
        first = run_once(system, inputs, case, gradients)
    with phases("gate"):
        same = None if where == "interpreter" else _repeats(first, run_once(system, inputs, case, gradients))
        scores = scored(first, question, right, settings.gate_factor, gradients)
        written_to = written(inputs, system.draw_inputs(case, settings.device), case)
    reason = worst(scores) or written_to
    if reason is None and same is False and system.info.triton:
        reason = "two runs of the same inputs differ"
    accuracy = {
        "passed": reason is None,
        "where": where,
        "shape": {axis: getattr(case, axis) for axis in "BTHKV"},
        "reference": question.names,
        "pairs": len(question.pairs),
        "factor": settings.gate_factor,
        "deterministic": same,
        "outputs": scores,
    }
    return Verdict(reason is None, reason, accuracy)


def scored(
    outputs: oracle.Outputs, question: oracle.Question, right: oracle.Answer, factor: float, gradients: bool
) -> dict[str, dict[str, Any]]:
    """What is to be said of each output, and where they are asked for of each gradient: see `worst`."""
    wanted = [name for name in right.reference if gradients or not name.startswith("d")]
    return scores(outputs, question, right, factor, wanted)


def scores(
    outputs: Mapping[str, torch.Tensor],
    question: oracle.Question,
    right: oracle.Answer,
    factor: float,
    wanted: Iterable[str],
) -> dict[str, dict[str, Any]]:
    """What is to be said of each of the ``wanted`` outputs."""
    return {
        name: _score(name, _pick(outputs.get(name), name, question), right, question.case.dtype, factor)
        for name in wanted
    }


def run_once(system: System, inputs: Inputs, case: Case, gradients: bool) -> oracle.Outputs:
    """The system's outputs and gradients by name, in full."""
    if case.mode == "step":
        before = inputs.initial_state
        fresh = replace(inputs, initial_state=None if before is None else before.clone())
        with torch.no_grad():
            o, state = system.step(fresh, case)
        return {"o": o} if state is None else {"o": o, "final_state": state}
    given = inputs.with_grad() if gradients else inputs
    with torch.set_grad_enabled(gradients):
        o, final = system.forward(given, case)
    return oracle.collect(given, o, final, gradients)


def _repeats(first: oracle.Outputs, second: oracle.Outputs) -> bool:
    return all(bits_equal(first[name], second[name]) for name in first)


def poison(inputs: Inputs) -> None:
    """Leave NaN in the allocator's free blocks: a kernel that does not write all of its output is found out."""
    shapes = [torch.full_like(x, float("nan")) for _, x in inputs.tensors()]
    del shapes


def written(inputs: Inputs, before: Inputs, case: Case) -> str | None:
    """Which of its inputs a system wrote to, given the same ones as they were; of a step, whose state it may, not that.
    None where it left them as they are."""
    own = {name: x for name, x in before.tensors() if case.mode != "step" or name != "initial_state"}
    changed = [name for name, x in inputs.tensors() if name in own and not bits_equal(x, own[name])]
    return f"it writes to its input {changed[0]}" if changed else None


def bits_equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of one dtype hold the same bits: NaN is NaN, and 0 is not -0."""
    word = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return torch.equal(a.contiguous().view(word), b.contiguous().view(word))


def _pick(x: torch.Tensor | None, name: str, question: oracle.Question) -> torch.Tensor | None:
    if x is None:
        return None
    tokens = question.case.mode != "step" and "state" not in name
    pairs = question.pairs_of(x.shape[2 if tokens else 1])
    picked = oracle.pick_pairs(x, pairs, tokens, packed=question.case.lengths is not None)
    return oracle.side_by_side(picked, name)


def _score(name: str, x: torch.Tensor | None, right: oracle.Answer, dtype: str, factor: float) -> dict[str, Any]:
    """One output's errors, the plain form's and what is allowed: as a whole, and in its worst block of 16 rows."""
    if x is None:
        return {"error": float("nan"), "baseline": 0.0, "tolerance": 0.0, "missing": True}
    floor = FLOOR[dtype] * torch.finfo(DTYPES[dtype]).eps / 2
    found = distance(x, right.reference[name].to(x.device), right.sizes[name].to(x.device), name)
    plain = right.baseline[name]
    return {
        "error": found.whole,
        "baseline": plain.whole,
        "tolerance": allowed(factor * plain.whole, floor),
        "block_error": found.block,
        "block_baseline": plain.block,
        "block_tolerance": allowed(factor * plain.block, 2 * floor),
        "nonfinite": int((~torch.isfinite(x)).sum()),
    }


def allowed(error: float, floor: float) -> float:
    """What the plain form's error allows; one that is infinite, or NaN, allows nothing."""
    return max(error, floor) if math.isfinite(error) else floor


def worst(scores: dict[str, dict[str, Any]]) -> str | None:
    """One line that names the output furthest beyond its tolerance, or None when all are within."""
    found, excess = None, 1.0
    for name, score in scores.items():
        if score.get("missing"):
            return f"{name} was not returned"
        if score["nonfinite"]:
            return f"{name} has {score['nonfinite']} values that are NaN or infinite"
        for kind, what in (("", ""), ("block_", " in a block of 16 rows")):
            ratio = score[f"{kind}error"] / score[f"{kind}tolerance"]
            if not ratio <= excess:
                excess = ratio
                found = (
                    f"{name} is off by {score[f'{kind}error']:.2e}{what}, "
                    f"{score[f'{kind}tolerance']:.2e} is allowed (relative to float64)"
                )
    return found
