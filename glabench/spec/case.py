"""One case: everything that decides what is run, as plain data."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Literal

from glabench.spec import lengths as packing
from glabench.spec.axes import AXES, Axes, Dtype, later

Mode = Literal["fwd", "bwd", "fwdbwd", "step", "train"]

# Bytes per element of q, k, v, g and o.
DTYPE_BYTES: dict[str, int] = {"bf16": 2, "fp16": 2, "fp32": 4}


@dataclass(frozen=True)
class Case(Axes):
    """One point of a sweep. H, K and V describe gated linear attention, and so the question that is asked; an
    attention baseline answers it at the same width with its own heads (``attn_heads`` x ``attn_dim``).

    A field that a system has no use for (the schedule of an attention baseline, say) is None, so that the same
    case is never measured twice under two names. Fields that came later are those of `Axes`.
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
    attn_heads: int | None = None
    attn_dim: int | None = None
    seed: int = 0

    @cached_property
    def id(self) -> str:
        """Twelve hex digits that name this case in every file, the same on every machine. Worked out once: it takes
        longer than all else that is done to expand a case."""
        named = {name: getattr(self, name) for name in CASE_FIELDS}
        used = later(named)
        text = json.dumps({name: x for name, x in named.items() if name not in AXES or name in used}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def unplanned(self) -> list[str]:
        """What of the case plans, the cost model and lists of launches know nothing of, in words."""
        return [AXES[name].lacking for name in later(vars(self)) if not AXES[name].planned]

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
        found = {name: getattr(self, name) for name in CASE_FIELDS}
        return {name: value for name, value in found.items() if name not in AXES or value is not None}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Case:
        """The inverse of ``to_dict``; fields this version does not know are an error (TypeError)."""
        return cls(**values)


def _in_order() -> tuple[str, ...]:
    own = [f.name for f in fields(Case) if f.name not in AXES]
    place = own.index("attn_heads")
    return (*own[:place], *AXES, *own[place:])


CASE_FIELDS: tuple[str, ...] = _in_order()  # as rows have them
