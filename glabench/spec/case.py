"""One case: everything that decides what is run, as plain data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any, Literal

from glabench.spec import lengths as packing

Dtype = Literal["bf16", "fp16", "fp32"]
Mode = Literal["fwd", "bwd", "fwdbwd", "step", "train"]
Model = Literal["340m", "1.3b", "tiny"]
Execution = Literal["compiled", "graph"]

# Bytes per element of q, k, v, g and o.
DTYPE_BYTES: dict[str, int] = {"bf16": 2, "fp16": 2, "fp32": 4}


@dataclass(frozen=True)
class LaterAxis:
    """An axis that cases did not always have. With its default a case is what it was before, and so is its id.

    Systems take one where their entry in the catalog has it under ``takes``.
    """

    default: Any
    lacking: str  # what a system that does not take it has not
    words: Callable[[Any], str]  # another value than the default, in a few words


LATER: dict[str, LaterAxis] = {
    "value_gate": LaterAxis(False, "gates on the value side", lambda value: "value gate"),
    "gate_dtype": LaterAxis(None, "gates in another dtype than q", lambda value: f"gates in {value}"),
    "lengths": LaterAxis(None, "packed sequences", packing.short),
    "model": LaterAxis(None, "model around it", str),
    "execution": LaterAxis(None, "training step to compile", str),
    "recompute": LaterAxis(None, "states to compute again", lambda value: "recomputed"),
    "qk_heads": LaterAxis(None, "heads of q and k that several of v share", lambda value: f"{value} heads of q and k"),
}


def later(case: Mapping[str, Any]) -> dict[str, Any]:
    """The later axes that a case, given as a dict, has another value of than the default."""
    found = {name: case.get(name, axis.default) for name, axis in LATER.items()}
    return {name: value for name, value in found.items() if value not in (None, LATER[name].default)}


@dataclass(frozen=True)
class Case:
    """One point of a sweep. H, K and V describe gated linear attention, and so the question that is asked; an
    attention baseline answers it at the same width with its own heads (``attn_heads`` x ``attn_dim``).

    A field that a system has no use for (the schedule of an attention baseline, say) is None, so that the same
    case is never measured twice under two names.
    """

    system: str
    B: int  # batch
    T: int  # tokens per sequence; for mode "step", those in the state or in attention's cache
    H: int  # heads
    K: int  # head dimension of queries, keys and gates
    V: int  # head dimension of values and outputs
    dtype: Dtype = "bf16"
    mode: Mode = "fwdbwd"
    chunk: int | None = None
    sub_chunk: int | None = None
    materialize: bool | None = None
    # g = gate_strength * logsigmoid(N(0,1)); 0 is a gate that never closes; None is no gate at all (g=None)
    gate_strength: float | None = 1.0
    initial_state: bool = False
    # gates on the value side besides, gv = gate_strength * logsigmoid(N(0,1)), of strength 1 where there is no g
    value_gate: bool = False
    # of gates on either side, where it is not that of q: fp32 beside 16-bit inputs
    gate_dtype: Dtype | None = None
    # of sequences packed into a batch of 1, T tokens in all: see `glabench.spec.lengths`
    lengths: str | None = None
    # of a language model around the operator, for mode "train": see `glabench.spec.models`
    model: Model | None = None
    # of a training step, where it is not eager: each block and the loss compiled, or so compiled, the whole of it in a
    # CUDA graph
    execution: Execution | None = None
    # True where nothing of the states is kept for the backward pass, which computes them again
    recompute: bool | None = None
    # of q and k, where they are fewer than the H of v: each is that of H / qk_heads heads beside one another; so are
    # gates of every feature, and gates of a head are those of v's
    qk_heads: int | None = None
    attn_heads: int | None = None
    attn_dim: int | None = None
    seed: int = 0

    @cached_property
    def id(self) -> str:
        """Twelve hex digits that name this case in every file, the same on every machine. Worked out once: it takes
        longer than all else that is done to expand a case."""
        named = {name: getattr(self, name) for name in CASE_FIELDS}
        used = later(named)
        text = json.dumps({name: x for name, x in named.items() if name not in LATER or name in used}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def attention_shape(self) -> tuple[int, int]:
        """(heads, dimension) of the attention that answers the case: its own, or the case's H heads of V."""
        return self.attn_heads or self.H, self.attn_dim or self.V

    @property
    def gates(self) -> Dtype:
        """The dtype of gates."""
        return self.gate_dtype or self.dtype

    @property
    def group(self) -> int:
        """How many heads of v share each one of q and k."""
        return 1 if self.qk_heads is None else self.H // self.qk_heads

    @property
    def sequences(self) -> tuple[int, ...] | None:
        """The length of each packed sequence; None where sequences are those of a batch. Raises ValueError for lengths
        that do not come to T."""
        return None if self.lengths is None else packing.sequences(self.lengths, self.T, self.seed)

    @property
    def states(self) -> int:
        """How many sequences there are, each with a state a head."""
        return self.B if self.sequences is None else len(self.sequences)

    def to_dict(self) -> dict[str, Any]:
        """Its fields; of later axes no None, as in rows of before there were these."""
        return {name: value for name, value in asdict(self).items() if name not in LATER or value is not None}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Case:
        """The inverse of ``to_dict``; fields this version does not know are an error (TypeError)."""
        return cls(**values)


CASE_FIELDS: tuple[str, ...] = tuple(f.name for f in fields(Case))
