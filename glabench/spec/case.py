"""One case: everything that decides what is run, as plain data."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

Dtype = Literal["bf16", "fp16", "fp32"]
Mode = Literal["fwd", "bwd", "fwdbwd", "step"]

# Bytes per element of q, k, v, g and o.
DTYPE_BYTES: dict[str, int] = {"bf16": 2, "fp16": 2, "fp32": 4}


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
    attn_heads: int | None = None
    attn_dim: int | None = None
    seed: int = 0

    @property
    def id(self) -> str:
        """Twelve hex digits that name this case in every file, the same on every machine."""
        named = asdict(self)
        if not self.value_gate:
            del named["value_gate"]  # older than this field: cases without it keep their ids
        text = json.dumps(named, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def attention_shape(self) -> tuple[int, int]:
        """(heads, dimension) of the attention that answers the case: its own, or the case's H heads of V."""
        return self.attn_heads or self.H, self.attn_dim or self.V

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Case:
        """The inverse of ``to_dict``; fields this version does not know are an error (TypeError)."""
        return cls(**values)


CASE_FIELDS: tuple[str, ...] = tuple(f.name for f in fields(Case))
