"""What goes across in a matrix: a system a column, or a kind of gates where a single system reads gates."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from glabench.analysis import labels
from glabench.analysis.compare import QUESTION, reads_gates
from glabench.spec.axes import GATES

FLA = ("fla", "fla_recurrent", "fla_linear", "fla_simple", "fla_retention", "gla_lm_fla")
# The order of baselines after FLA, of which the first stands where FLA does not; then ours, then what is in neither.
RIVALS = ("helion", "jla", "tileops", "fa2", "fa3", "fa4", "cudnn", "flex", "sdpa", "transformer_lm", "jla_simple",
          "mlstm_tfla", "mamba2_ssd", "mamba_scan", "lightning2")  # fmt: skip
OURS = ("gla", "gla:w", "gla:wo", "gla_recurrent", "simple_gla", "retention", "gla_lm", "recurrent_torch")
MOST_GATES = 8


def gates_across(table: pd.DataFrame) -> tuple[str, ...]:
    """The kinds of gates, in order, where a single system reads gates; none where several do, or there is one kind."""
    gated = table[reads_gates(table)]
    gates = sorted(gated["gate"].unique(), key=lambda gate: (labels.strength(gate), gate))
    return tuple(gates) if gated["system"].nunique() == 1 and 1 < len(gates) <= MOST_GATES else ()


def in_columns(table: pd.DataFrame, gates: Sequence[str]) -> pd.DataFrame:
    """``table``, which is `compare.aligned`, with the ``column`` that each line stands in: its system, attention being
    one whatever its heads. Where ``gates`` go across it is a system with a ``kind`` of gates, the key of the first
    going without; gates are no part of the question then, and what reads none stands there once."""
    system = table["variant"].map(labels.of_system)
    if not gates:
        return table.assign(column=system, kind="")
    kind = table["gate"].where(reads_gates(table), "")
    own = ~kind.isin(["", gates[0]])
    label = table["label"].where(kind == "", table["label"] + ", " + kind.map(lambda gate: of_gates(gate, gates)))
    named = table.assign(column=system.where(~own, system + ":" + kind), kind=kind, label=label)
    return named.assign(gate="1", gates_vary=False).drop_duplicates(["case_id", *QUESTION])


def columns(table: pd.DataFrame, gates: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """(key, title) of the columns of `in_columns`: ours, the fastest kernels and those of one gate a head, its rivals,
    then the rest in the order of legends; with ``gates`` across, first those of the system that reads them."""
    kinds = table.drop_duplicates("column").set_index("column")["kind"].to_dict()
    keys = sorted(kinds, key=labels.order)
    if not gates:
        own = [key for key in OURS if key in keys]
        own = [*own[:1], *(key for key in own[1:] if key == "simple_gla")]  # another operator, with rivals of its own
        rivals = [key for key in (*FLA, *RIVALS) if key in keys]
        return tuple((key, labels.title(key)) for key in dict.fromkeys([*own, *rivals, *keys]))
    rank = {key: i for i, key in enumerate(dict.fromkeys([*OURS, *keys]))}
    gated = sorted(filter(kinds.get, keys), key=lambda key: (rank[labels.of_system(key)], gates.index(kinds[key])))
    alone = len({labels.of_system(key) for key in keys}) == 1
    titles = {key: of_gates(kinds[key], gates) for key in gated}
    titles = (
        titles if alone else {key: f"{labels.title(labels.of_system(key))}, {said}" for key, said in titles.items()}
    )
    return tuple((key, titles.get(key, labels.title(key))) for key in dict.fromkeys([*gated, *keys]))


def of_gates(gate: str, gates: Sequence[str]) -> str:
    """ "gates in fp32": a kind of gates by what it differs from the others in."""
    if gate == "none":
        return "no gates"
    strength, parts = labels.gate_parts(gate)
    others = [labels.gate_parts(one) for one in gates]
    said = [f"of strength {strength}"] if len({one for one, _ in others} - {"none"}) > 1 else []
    apart = [name for name in parts if len({of[name] for _, of in others}) > 1]
    return " ".join(["gates", *said, *(parts[name] or GATES[name].without for name in apart)])
