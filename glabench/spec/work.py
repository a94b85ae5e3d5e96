"""How much a case must compute and move, and the time that takes at best. No torch.

Multiply and add are two FLOP; intra-chunk and attention matrices count their causal half. Bytes are the compulsory
ones: every input read once, every output written once, nothing materialized in between. Per token and head, with e
bytes per element and chunks of C rows:

    gated linear attention, forward    4KV + C(K+V) FLOP      e(3K + 2V) bytes     q, k, g, v read; o written
    and backward                      10KV + C(3K+2V) FLOP    e(6K + 3V) bytes     q, k, g, v, do read; dq, dk, dg, dv
    with gates gv on the value side                           eV, 2eV bytes more   gv read; and backward dgv written
    attention, causal, forward         2TD FLOP               4eD bytes            q, k, v read; o written
    and backward                       5TD FLOP               8eD bytes            q, k, v, o, do read; dq, dk, dv

where one gate a head makes g a single element, not K of them, and a constant decay none. Where several heads of v share
q and k, and gates of every feature, elements of these count once, and so do scores as far as they are products of q and
k. Gates that are of another dtype than q, and their gradients, have bytes of their own. Where sequences are packed, a
row's scores span no more than its own sequence: C is the chunk or the sequence, whichever is shorter, and attention's T
that of each sequence. States are counted where they are given, one a sequence; where sequences begin is not. Per token
of a selective scan with D channels of N states, whose exponentials are not FLOP:

    selective scan, forward            7DN FLOP               e(3D + 2N) bytes     x, dt, B, C read; y written
    and backward                      19DN FLOP               e(5D + 4N) bytes     x, dt, B, C, dy read; dx, ddt, dB, dC

Per token of Mamba-2's SSD with H heads of V, which share B and C of K states, and so the products of these:

    SSD, forward              H(4KV + CV) + CK FLOP       e(2K + H(2V + 1)) bytes    x, dt, B, C read; y written
    and backward              H(10KV + 2CV) + 3CK FLOP    e(4K + H(3V + 2)) bytes    x, dt, B, C, dy; dx, ddt, dB, dC

A step of training (mode "train") of a language model with P weights that multiply has 6P FLOP a token besides those of
its layers' operators, forward and backward. Its bytes are not counted: what a step must move depends on what is kept.

A token that attention decodes (mode "step") attends to T in a cache, its own among them: 4TD FLOP, e(2T + 2)D bytes.
"""

from __future__ import annotations

from typing import Any

from glabench.spec.case import DTYPE_BYTES
from glabench.spec.catalog import CATALOG, SSM_EXPAND, SSM_STATE
from glabench.spec.lengths import sequences as sequences_of
from glabench.spec.models import CONFIGS

DEFAULT_CHUNK = 64  # where a chunkwise system chooses for itself
STATE_BYTES = 4  # states are float32


def work(case: dict[str, Any]) -> dict[str, int | None]:
    """``{"flops", "hbm_bytes"}`` of a case given as a dict (``Case.to_dict``). Raises KeyError for an unknown system.

    Modes: "fwd" and "bwd" are one direction, "fwdbwd" both, "step" one token with its state read and written, "train"
    a step of training, of which the bytes are None, and so are the FLOP of a system that is no model.
    """
    if case["mode"] == "train":
        return {"flops": _training_flops(case), "hbm_bytes": None}
    return {**operator_work(case)}


def operator_work(case: dict[str, Any]) -> dict[str, int]:
    """`work` of an operator."""
    operator = CATALOG[case["system"]].operator
    if operator == "attention":
        return _attention(case)
    if operator == "ssm":
        return _selective_scan(case)
    if operator == "ssd":
        return _ssd(case)
    return _step(case) if case["mode"] == "step" else _gla(case)


def _training_flops(case: dict[str, Any]) -> int | None:
    """The embedding multiplies once, as the head. Biases, norms and gates' projections of low rank do not count."""
    config, info = CONFIGS[case["model"]], CATALOG[case["system"]]
    if info.inside is None:
        return None
    block, layers = 4 * config.width**2 + 3 * config.width * config.hidden, config.layers
    heads = {"attn_heads": config.attention_heads, "attn_dim": config.width // config.attention_heads}
    if info.inside == "mamba2_ssd":  # a block is two layers of Mamba-2, and has no MLP
        block, layers = 2 * 6 * config.width**2, 2 * layers
        heads = {"H": 2 * config.width // 64, "K": 128, "V": 64}
    inside = {**case, **heads, "system": info.inside, "mode": "fwdbwd"}
    weights = config.layers * block + config.width * config.vocabulary
    return 6 * weights * case["B"] * case["T"] + layers * operator_work(inside)["flops"]


def floor_ms(hbm_bytes: int, bytes_per_s: float) -> float:
    """The time in ms that the bytes take at that bandwidth (bytes per second, read plus written)."""
    return 1000 * hbm_bytes / bytes_per_s


def _directions(mode: str) -> tuple[int, int]:
    """(forward passes, backward passes) of a mode."""
    return {"fwd": (1, 0), "bwd": (0, 1), "fwdbwd": (1, 1)}[mode]


def _gla(case: dict[str, Any]) -> dict[str, int]:
    h, of_q, k, v = case["H"], _qk_heads(case), case["K"], case["V"]
    tokens, sequences = case["B"] * case["T"], len(_packed(case)) or case["B"]
    fwd, bwd = _directions(case["mode"])

    through_state, most = _form(case)
    spans = _spans(case, most)
    flops = h * (4 * fwd + 10 * bwd) * through_state * tokens * k * v
    flops += spans * ((of_q * k + h * v) * fwd + (3 * of_q * k + 2 * h * v) * bwd)
    inputs = fwd * 2 * (of_q * k + h * v) + bwd * (4 * of_q * k + 3 * h * v)
    gates = (fwd + 2 * bwd) * _gate_elements(case)
    row_bytes = inputs * DTYPE_BYTES[case["dtype"]] + gates * _gate_bytes(case)
    # forward: initial state read, final state written; backward: both states' gradients and the initial state
    states = sequences * (2 * fwd + 3 * bwd) if case["initial_state"] else 0
    return {"flops": flops, "hbm_bytes": tokens * row_bytes + h * states * k * v * STATE_BYTES}


def _qk_heads(case: dict[str, Any]) -> int:
    """Heads of q and k."""
    return int(case.get("qk_heads") or case["H"])


def _packed(case: dict[str, Any]) -> tuple[int, ...]:
    """The length of each packed sequence; none where there are B of T tokens."""
    text = case.get("lengths")
    return () if text is None else sequences_of(text, case["T"], case.get("seed", 0))


def _spans(case: dict[str, Any], most: int) -> int:
    """How many rows the scores of all rows of a head span together, each up to ``most`` of its own sequence."""
    lengths = _packed(case)
    if not lengths:
        return int(case["B"] * case["T"] * min(most, case["T"]))
    return sum(length * min(most, length) for length in lengths)


def _gate_bytes(case: dict[str, Any]) -> int:
    """Of an element of the gates."""
    return DTYPE_BYTES[case.get("gate_dtype") or case["dtype"]]


def _gate_elements(case: dict[str, Any]) -> int:
    """Of g and gv, a token."""
    info, of_values = CATALOG[case["system"]], case["H"] * case["V"] if case.get("value_gate", False) else 0
    if case["gate_strength"] is None or not info.gated:
        return int(of_values)
    return int(of_values + (case["H"] if info.operator == "simple" else _qk_heads(case) * case["K"]))


def _form(case: dict[str, Any]) -> tuple[int, int]:
    """(1 when the form carries a K x V state, rows that one row's scores span, in a sequence that has as many): T for
    the parallel form, which has no state, the chunk for a chunkwise form, none for a recurrence."""
    name = case["system"]
    if "parallel" in name:
        return 0, case["T"]
    if "recurrent" in name or name == "scan":
        return 1, 0
    return 1, min(case["chunk"] or DEFAULT_CHUNK, case["T"])


def _step(case: dict[str, Any]) -> dict[str, int]:
    h, k, v = case["H"], case["K"], case["V"]
    row_bytes = 2 * (_qk_heads(case) * k + h * v) * DTYPE_BYTES[case["dtype"]]
    row_bytes += _gate_elements(case) * _gate_bytes(case) + h * 2 * STATE_BYTES * k * v
    return {"flops": case["B"] * h * 4 * k * v, "hbm_bytes": case["B"] * row_bytes}


def _attention(case: dict[str, Any]) -> dict[str, int]:
    heads, dim = case["attn_heads"] or case["H"], case["attn_dim"] or case["V"]
    rows, e = case["B"] * heads * case["T"], DTYPE_BYTES[case["dtype"]]
    if case["mode"] == "step":
        return {"flops": 4 * rows * dim, "hbm_bytes": 2 * e * dim * (rows + case["B"] * heads)}
    fwd, bwd = _directions(case["mode"])
    pairs = heads * _spans(case, case["T"])
    return {"flops": pairs * dim * (2 * fwd + 5 * bwd), "hbm_bytes": rows * dim * e * (4 * fwd + 8 * bwd)}


def _selective_scan(case: dict[str, Any]) -> dict[str, int]:
    channels, state = SSM_EXPAND * case["H"] * case["V"], SSM_STATE
    fwd, bwd = _directions(case["mode"])
    tokens = case["B"] * case["T"]
    elements = channels * (3 * fwd + 5 * bwd) + state * (2 * fwd + 4 * bwd)
    return {
        "flops": tokens * channels * state * (7 * fwd + 19 * bwd),
        "hbm_bytes": tokens * elements * DTYPE_BYTES[case["dtype"]],
    }


def _ssd(case: dict[str, Any]) -> dict[str, int]:
    h, k, v = case["H"], case["K"], case["V"]
    fwd, bwd = _directions(case["mode"])
    tokens = case["B"] * case["T"]
    _, rows = _form(case)
    flops = h * (k * v * (4 * fwd + 10 * bwd) + rows * v * (fwd + 2 * bwd)) + rows * k * (fwd + 3 * bwd)
    elements = k * (2 * fwd + 4 * bwd) + h * (v * (2 * fwd + 3 * bwd) + fwd + 2 * bwd)
    return {"flops": tokens * flops, "hbm_bytes": tokens * elements * DTYPE_BYTES[case["dtype"]]}
