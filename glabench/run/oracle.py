"""What is right: the operator in float64, and how far a plain same-dtype PyTorch form is from it.

Heads do not see each other, so a sample of (batch, head) pairs is computed alone and judges the whole run's outputs of
those pairs; a head of q and k goes with all those of v that share it. Nor do packed sequences, each of which is
computed alone. Both answers are functions of the question alone, so they are kept for the next system that is asked it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import pairwise, product

import torch

from gla_kernels import reference
from glabench.run import retention, ssd, ssm
from glabench.run.errors import Distance, distance, sizes
from glabench.run.question import asked
from glabench.spec.case import Case
from glabench.spec.catalog import Operator
from glabench.systems.inputs import Inputs, make_inputs

Outputs = dict[str, torch.Tensor]
Pairs = tuple[tuple[int, int], ...]

TILE = 512  # rows of the attention matrix held at a time


@dataclass(frozen=True)
class Question:
    """All that decides the right answer: the case without its system and schedule."""

    case: Case
    operator: Operator
    device: str
    pairs: Pairs

    @property
    def gradients(self) -> bool:
        """A step has none; all else is asked for them, so that a forward and its backward are one question."""
        return self.case.mode != "step"

    @property
    def group(self) -> int:
        """How many heads of v each pair has: those that share its head of q and k."""
        return 1 if self.operator in ("attention", "ssm", "ssd") else self.case.group

    def pairs_of(self, heads: int) -> Pairs:
        """The pairs in a tensor of so many heads: of q, or, each for its group, of v."""
        if self.group == 1 or heads == self.case.qk_heads:
            return self.pairs
        return tuple((b, h * self.group + i) for b, h in self.pairs for i in range(self.group))

    @property
    def names(self) -> str:
        names: dict[Operator, str] = {
            "attention": "float64 softmax attention",
            "ssm": "float64 selective scan",
            "ssd": "float64 selective scan with one decay a head",
            "retention": "float64 recurrence with RetNet's decays",
        }
        return names.get(self.operator, "float64 recurrence")


@dataclass(frozen=True)
class Answer:
    """What is right for the sampled pairs, and how far the plain same-dtype form is from it.

    Keys: o, final_state, dq, dk, dv, dg, dinitial_state, dgv; o and final_state alone for a step. ``reference`` is
    ``[1,T,P,D]``, states ``[1,P,K,V]``, of N packed sequences ``[1,N*P,K,V]``, on the CPU: float64 for cases in fp32,
    else rounded to float32, a thousandth of what 16 bits tell apart. ``sizes`` are what errors are measured against;
    see ``errors.sizes``.
    """

    reference: Outputs
    sizes: Outputs
    baseline: dict[str, Distance]


def ask(case: Case, device: str, pair_count: int) -> Question:
    """The question of a case, the same for every system, schedule and direction.

    The first and the last (batch, head) pair are always among the sample, the others are drawn from the seed.
    """
    question = asked(case)
    operator = question.operator
    # the channels of a selective scan share B and C, and so do the heads of SSD: they go together as one head
    heads = {"attention": case.attention_shape[0], "ssm": 1, "ssd": 1}.get(operator, case.qk_heads or case.H)
    every = [(b, h) for b in range(case.B) for h in range(heads)]
    middle = every[1:-1]
    drawn = random.Random(case.seed).sample(middle, min(max(pair_count - 2, 0), len(middle)))
    pairs = tuple(sorted({every[0], every[-1], *drawn}))
    return Question(question.case, operator, device, pairs)


@lru_cache(maxsize=32)
def answer(question: Question) -> Answer:
    """The right outputs of the question's pairs. Takes seconds for long sequences, and is kept."""
    inputs = make_inputs(question.case, question.operator, question.device)
    picked = picked_of(inputs, question)
    del inputs
    doubles = replace(picked, **{name: x.double() for name, x in picked.tensors()})
    right, plain = _forms(question)
    doubles, picked = (_for_all_heads(x, question.group) for x in (doubles, picked))
    exact, rough = _side_by_side(right(doubles)), _side_by_side(plain(picked))
    terms = {} if question.operator in ("ssm", "ssd") else _gate_terms(doubles, exact, question)
    exact, rough, terms = (_summed(x, question) for x in (exact, rough, terms))
    dtype = picked.q.dtype
    against = {name: sizes(x, name, dtype, terms.get(name)) for name, x in exact.items()}
    keep = torch.float64 if dtype == torch.float32 else torch.float32
    return Answer(
        reference={name: x.to("cpu", keep) for name, x in exact.items()},
        sizes={name: x.cpu() for name, x in against.items()},
        baseline={name: distance(rough[name], x, against[name], name) for name, x in exact.items()},
    )


def _for_all_heads(inputs: Inputs, group: int) -> Inputs:
    """With q, k and gates of every feature repeated for all heads that share them."""
    shared = {name: x for name, x in inputs.tensors() if name in ("q", "k", "g") and x.shape[-2] != inputs.v.shape[-2]}
    return replace(inputs, **{name: x.repeat_interleave(group, -2) for name, x in shared.items()})


def _summed(outputs: Outputs, question: Question) -> Outputs:
    """With gradients of what `_for_all_heads` repeats added up over the heads, in float32 or wider."""
    if question.group == 1:
        return outputs
    names = ("dq", "dk") if question.operator == "simple" else ("dq", "dk", "dg")
    return outputs | {
        name: x.unflatten(-2, (-1, question.group)).sum(-2, dtype=_wide(x.dtype)).to(x.dtype)
        for name, x in outputs.items()
        if name in names
    }


def _side_by_side(outputs: Outputs) -> Outputs:
    return {name: side_by_side(x, name) for name, x in outputs.items()}


def _forms(question: Question) -> tuple[Callable[[Inputs], Outputs], Callable[[Inputs], Outputs]]:
    """(the form that is right on doubles, the plain form whose error sets the tolerance)."""
    if question.operator == "attention":
        return (attention_step, attention_step) if question.case.mode == "step" else (attention, attention)
    if question.case.mode == "step":
        return _step, _step
    if question.operator == "ssm":
        return partial(differentiate, ssm.form), partial(differentiate, ssm.form)
    if question.operator == "ssd":
        strength = question.case.gate_strength
        assert strength is not None  # the system refuses it
        return tuple(  # type: ignore[return-value]  # two of them
            partial(differentiate, partial(of, strength=strength)) for of in (ssd.recurrent, ssd.chunkwise)
        )
    if question.operator == "retention":
        heads = tuple(head for _, head in question.pairs)
        return tuple(partial(differentiate, retention.form(of, heads)) for of in (reference.recurrent, _chunkwise))  # type: ignore[return-value]  # two of them
    # the references take one gate a head, [B, T, H, 1], as a gate of every feature
    return partial(differentiate, reference.recurrent), partial(differentiate, _chunkwise)


def _gate_terms(inputs: Inputs, exact: Outputs, question: Question) -> Outputs:
    """What cancels in the gates' gradients, where there are any: see ``errors.sizes``."""
    found = {}
    if "dg" in exact:
        terms = inputs.q * exact["dq"]
        found["dg"] = terms.sum(-1, keepdim=True) if question.operator == "simple" else terms
    if "dgv" in exact:
        found["dgv"] = inputs.do * exact["o"]
    return found


def picked_of(inputs: Inputs, question: Question) -> Inputs:
    """The inputs of the sampled pairs: ``[1,T,P,D]``, states ``[1,P,K,V]``, of N packed sequences ``[N,P,K,V]``."""
    with_time = question.operator == "attention" or question.case.mode != "step"

    def picked(name: str, x: torch.Tensor) -> torch.Tensor:
        tokens = with_time and "state" not in name
        return pick_pairs(x, question.pairs_of(x.shape[2 if tokens else 1]), tokens, packed=inputs.packed is not None)

    found = {name: picked(name, x) for name, x in inputs.tensors()}
    return Inputs(**found, packed=inputs.packed)


Form = Callable[..., tuple[torch.Tensor, torch.Tensor | None]]


def _chunkwise(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor | None, *,
    initial_state: torch.Tensor | None, gv: torch.Tensor | None = None, cu_seqlens: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """The plain form whose error sets the tolerance: two-level chunks of 64 and 16 in the inputs' dtype."""
    how = {"chunk": 64, "sub_chunk": 16}
    return reference.chunkwise(q, k, v, g, initial_state=initial_state, gv=gv, cu_seqlens=cu_seqlens, **how)


def differentiate(form: Form, inputs: Inputs) -> Outputs:
    """Outputs of a form and the gradients of its inputs by autograd."""
    given = inputs.with_grad()
    more = {"gv": given.gv, "cu_seqlens": given.cu_seqlens}
    some = {name: x for name, x in more.items() if x is not None}  # not every form takes them
    o, state = form(given.q, given.k, given.v, given.g, initial_state=given.initial_state, **some)
    return collect(given, o, state, gradients=True)


def collect(given: Inputs, o: torch.Tensor, state: torch.Tensor | None, gradients: bool) -> Outputs:
    """Name the outputs, and take the gradients of the inputs from do and, where it is there, dstate."""
    outputs = {"o": o.detach()}
    ends, ups = [o], [given.do.to(o.dtype)]
    if given.initial_state is not None and state is not None:
        outputs["final_state"] = state.detach()
        if given.dstate is not None:
            ends, ups = [o, state], [ups[0], given.dstate.to(state.dtype)]
    if gradients:
        leaves = given.leaves()
        taken = torch.autograd.grad(ends, list(leaves.values()), ups)
        outputs |= {f"d{name}": x for name, x in zip(leaves, taken, strict=True)}
    return outputs


def _step(inputs: Inputs) -> Outputs:
    """One token of the recurrence in the dtype of q; the state in its own.

    S = Diag(exp g) S Diag(exp gv) + k^T v,  o = K^-1/2 q S.  Shapes as ``Inputs`` gives them for mode "step".
    """
    state = inputs.initial_state
    assert state is not None  # mode "step" always has one
    wide = state.dtype
    decay = torch.ones_like(inputs.k) if inputs.g is None else inputs.g.to(wide).exp()
    if inputs.gv is not None:
        state = state * inputs.gv.to(wide).exp()[..., None, :]
    new = decay.to(wide)[..., None] * state + inputs.k.to(wide)[..., None] * inputs.v.to(wide)[..., None, :]
    o = torch.einsum("...k,...kv->...v", inputs.q.to(wide), new) * inputs.q.shape[-1] ** -0.5
    return {"o": o.to(inputs.q.dtype), "final_state": new}


def attention(inputs: Inputs) -> Outputs:
    """Causal softmax attention and its gradients in the inputs' dtype, a tile of rows at a time.

    Products are rounded to the dtype as PyTorch's plain form rounds them, the softmax is taken in float32 or wider.
    ``P = softmax(s Q K^T)``, ``dV = P^T dO``, ``dS = s P * (dO V^T - rowsum(dO * O))``, ``dQ = dS K``, ``dK = dS^T Q``.
    """
    outputs = {f"d{n}": torch.zeros_like(getattr(inputs, n), dtype=_wide(inputs.q.dtype)) for n in "qkv"}
    outputs["o"] = torch.empty_like(inputs.v)
    tokens = inputs.q.shape[1]
    bounds = [0, tokens] if inputs.packed is None else inputs.packed.cu_seqlens_cpu.tolist()
    for pair, (start, end) in product(range(inputs.q.shape[2]), pairwise(bounds)):
        q, k, v, do = (x[0, start:end, pair] for x in (inputs.q, inputs.k, inputs.v, inputs.do))
        into = {name: x[0, start:end, pair] for name, x in outputs.items()}
        for row in range(0, end - start, TILE):
            _attention_tile(q, k, v, do, slice(row, row + TILE), into)
    return {name: x.to(inputs.q.dtype) for name, x in outputs.items()}


def attention_step(inputs: Inputs) -> Outputs:
    """One token's softmax attention in the inputs' dtype, ``[B,heads,dim]``; the softmax in float32 or wider."""
    q, k, v = inputs.q[:, 0], inputs.k, inputs.v
    scores = torch.einsum("bhd,bthd->bht", q, k).to(_wide(q.dtype)) * q.shape[-1] ** -0.5
    return {"o": torch.einsum("bht,bthd->bhd", scores.softmax(-1).to(q.dtype), v)}


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _attention_tile(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, do: torch.Tensor, rows: slice, into: Outputs
) -> None:
    """Rows ``rows`` of one head: q, k, v, do ``[T, D]``; adds to the gradients in ``into``."""
    scale = q.shape[-1] ** -0.5
    q, do = q[rows], do[rows]
    end = rows.start + q.shape[0]
    k, v = k[:end], v[:end]
    future = torch.arange(end, device=q.device) > torch.arange(rows.start, end, device=q.device)[:, None]
    scores = (q @ k.T).to(_wide(q.dtype)) * scale
    p = scores.masked_fill_(future, float("-inf")).softmax(-1)
    o = p.to(q.dtype) @ v
    into["o"][rows] = o
    row_sum = (do * o).to(p.dtype).sum(-1, keepdim=True)
    ds = (p * ((do @ v.T).to(p.dtype) - row_sum) * scale).to(q.dtype)
    into["dv"][:end] += p.to(q.dtype).T @ do
    into["dq"][rows] += ds @ k
    into["dk"][:end] += ds.T @ q


def pick_pairs(
    x: torch.Tensor, pairs: tuple[tuple[int, int], ...], time_axis: bool = True, packed: bool = False
) -> torch.Tensor:
    """The (batch, head) pairs of ``x`` side by side: [B,T,H,D] -> [1,T,P,D], or [B,H,...] -> [1,P,...]. ``packed``: of
    a batch of one, whose states are those of N sequences, [N,H,...] -> [N,P,...]."""
    batch = torch.tensor([b for b, _ in pairs], device=x.device)
    head = torch.tensor([h for _, h in pairs], device=x.device)
    if time_axis:
        return x.detach()[batch, :, head].transpose(0, 1).unsqueeze(0).contiguous()
    if packed:
        return x.detach()[:, head].contiguous()
    return x.detach()[batch, head].unsqueeze(0).contiguous()


def side_by_side(x: torch.Tensor, name: str) -> torch.Tensor:
    """States of N packed sequences as those of as many pairs more, [N,P,K,V] -> [1,N*P,K,V]: each is judged by itself.
    Anything else as it is."""
    return x.flatten(0, 1).unsqueeze(0) if "state" in name and x.dim() == 4 else x
