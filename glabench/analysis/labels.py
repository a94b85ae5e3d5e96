"""What systems are called in tables and figures, and which of them answer the same kind of question."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from glabench.spec.axes import GATES, later
from glabench.spec.catalog import CATALOG

# variant -> its name in a legend. A variant is a system, except that gla counts as three: the two versions of the
# paper and the default schedule, because telling them apart is what the benchmark is for. The order is that of legends.
TITLES: dict[str, str] = {
    "gla:wo": "GLA without states",
    "gla:w": "GLA with states",
    "gla": "GLA, default schedule",
    "gla_recurrent": "GLA recurrent",
    "fla": "FLA chunk_gla",
    "fla_recurrent": "FLA recurrent",
    "fla_linear": "FLA linear, no gates",
    "simple_gla": "GLA, one gate a head",
    "fla_simple": "FLA, one gate a head",
    "retention": "Retention",
    "fla_retention": "FLA retention",
    "mlstm_tfla": "mLSTM, TFLA",
    "mamba2_ssd": "Mamba-2's SSD",
    "helion": "Helion GLA",
    "jla": "jax-linear-attention GLA",
    "jla_simple": "jax-linear-attention, one gate a head",
    "tileops": "TileOPs GLA",
    "recurrent_torch": "PyTorch recurrent",
    "chunkwise_torch": "PyTorch chunkwise",
    "parallel_torch": "PyTorch parallel",
    "recurrent_hbm": "Recurrent, states in HBM",
    "scan": "Parallel scan, states in HBM",
    "chunkwise_direct": "Chunkwise, no sub-chunks",
    "parallel_triton": "Parallel, tiled",
    "lightning2": "LightningAttention-2, no gates",
    "mamba_scan": "Mamba's selective scan",
    "gla_lm:wo": "GLA Transformer without states",
    "gla_lm:w": "GLA Transformer with states",
    "gla_lm:re": "GLA Transformer, recomputed",
    "gla_lm": "GLA Transformer",
    "gla_lm_fla": "GLA Transformer, FLA's operator",
    "retnet_lm": "RetNet",
    "linear_lm": "Linear attention",
    "mamba2_lm": "Mamba-2",
    "transformer_lm": "Transformer++",
    "fa2": "FlashAttention-2",
    "fa3": "FlashAttention-3",
    "fa4": "FlashAttention-4",
    "cudnn": "cuDNN attention",
    "flex": "FlexAttention",
    "sdpa": "PyTorch SDPA",
}

OURS = ("gla:wo", "gla:w", "gla", "gla_recurrent")

# Families that do less than gated linear attention is asked: shown beside it, never ahead of it.
LESS = ("linear", "scalar")

MODE_TITLES = {"fwd": "forward", "bwd": "backward", "fwdbwd": "forward + backward", "step": "one decoding step",
               "train": "a training step"}  # fmt: skip
MODE_ORDER = tuple(MODE_TITLES)

STATUS_TITLES = {
    "ok": "ok",
    "wrong": "wrong result",
    "compile_error": "did not compile",
    "oom": "out of memory",
    "timeout": "ran out of time",
    "crashed": "crashed",
    "unsupported": "cannot run here",
}


def variant(case: Mapping[str, Any]) -> str:
    """The key of the curve that a case belongs to: its system, for ``gla`` whether states are materialized or, in a
    model, recomputed, and for attention its heads where they are others than the question's: "fa2:16x64"."""
    system = str(case["system"])
    if case.get("recompute"):
        return f"{system}:re"
    if system in ("gla", "gla_lm") and case.get("materialize") is not None:
        return f"{system}:w" if case["materialize"] else f"{system}:wo"
    if family(system) == "attention":
        heads, dim = case.get("attn_heads") or case["H"], case.get("attn_dim") or case["V"]
        return system if (heads, dim) == (case["H"], case["V"]) else f"{system}:{int(heads)}x{int(dim)}"
    return system


def of_system(key: str) -> str:
    """The key without heads of attention or a kind of gates: "fa2:16x64" is "fa2", "gla:w:1 in fp32" is "gla:w"."""
    while key not in TITLES and ":" in key:
        key = key.rpartition(":")[0]
    return key


def system_title(key: str) -> str:
    """The short name of the system that a variant belongs to, whatever its schedule."""
    system = key.split(":")[0]
    return "GLA (ours)" if system == "gla" else title(system)


def title(key: str) -> str:
    """The short name of a variant, with the heads of attention that has others: "FlashAttention-2, 16 heads of 64", or
    with a kind of gates that is part of its key. One that is not known goes by its own key."""
    system = of_system(key)
    rest = key.removeprefix(system).removeprefix(":")
    if not rest or system not in TITLES:
        return TITLES.get(key, key)
    if heads := re.fullmatch(r"(\d+)x(\d+)", rest):
        return f"{TITLES[system]}, {heads[1]} head{'' if heads[1] == '1' else 's'} of {heads[2]}"
    return ", ".join([TITLES[system], *gating(rest, named=True)])


def family(key: str) -> str:
    """ "gla", "linear" (no gates), "scalar" (one decay a head), "attention" or "ssm"; a system that the catalog does
    not know counts as "gla"."""
    info = CATALOG.get(key.split(":")[0])
    return info.family if info else "gla"


def training(case: Mapping[str, Any]) -> str:
    """The model of a training step and how it is executed: "1.3b, compiled"; "" for what is no training step."""
    model, execution = case.get("model"), case.get("execution")
    return f"{model}, {execution if isinstance(execution, str) else 'eager'}" if isinstance(model, str) else ""


def order(key: str) -> tuple[int, str]:
    """Sorts variants the same way in every legend and table: ours first, strangers last."""
    known = list(TITLES)
    system = of_system(key)
    return (known.index(system) if system in TITLES else len(known), key)


def place(case: Mapping[str, Any]) -> tuple[tuple[int, str], int, int]:
    """Sorts cases by variant, then chunk, then sub-chunk, as numbers."""
    return (order(variant(case)), case.get("chunk") or 0, case.get("sub_chunk") or 0)


def schedule(case: Mapping[str, Any]) -> str:
    """The schedule in short: "C64" for chunk 64, "C64/16" with sub-chunks of 16, "" where there is none."""
    chunk, sub_chunk = (whole(case.get(name)) for name in ("chunk", "sub_chunk"))
    return f"C{chunk}/{sub_chunk}" if chunk and sub_chunk else f"C{chunk}" if chunk else ""


def whole(value: float | None) -> int:
    """A size that may be missing, as a case has it or a table of pandas: 0 where it is."""
    return 0 if value is None or math.isnan(value) else int(value)


def gate(case: Mapping[str, Any]) -> str:
    """The gates of a case as a key: "1", "0.5", or "none" for no gate at all; "1 + value side" with gates there too,
    "1 in fp32" where they are of another dtype than q."""
    strength, asked = case.get("gate_strength"), later(case)
    key = "none" if strength is None or math.isnan(strength) else f"{strength:g}"
    return key + "".join(of.key(asked[name]) for name, of in GATES.items() if name in asked)


def gate_parts(gate: str) -> tuple[str, dict[str, str]]:
    """A key of `gate` in its parts: the strength, and of each axis of gates its words, "" for the default."""
    found = {}
    for name, of in reversed(GATES.items()):
        gate, marked, value = gate.partition(of.mark)
        found[name] = of.said.format(value) if marked else ""
    return gate, {name: found[name] for name in GATES}


def gating(gate: str, named: bool = False) -> list[str]:
    """The gates of a case, from their key, in words: "gate strength 8", "gates on both sides", "no gates". Nothing for
    those of strength 1, unless that is to be ``named``."""
    if gate == "none":
        return ["no gates"]
    strength, parts = gate_parts(gate)
    own = " ".join([strength, *(words for name, words in parts.items() if words and GATES[name].beside_strength)])
    others = [f"gates {words}" for name, words in parts.items() if words and not GATES[name].beside_strength]
    return [*([f"gate strength {own}"] if own != "1" or (named and not others) else []), *others]


def strength(gate: str) -> float:
    """The number in a key of `gate`, to sort by; -1 for no gate."""
    number = gate.split()[0]
    return -1.0 if number == "none" else float(number)
