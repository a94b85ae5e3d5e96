"""The functions, with the parameters of flash-linear-attention 0.6.0.

Layout everywhere: q, k [B, T, H, K]; v, o [B, T, H, V]; final states [N, H, K, V] in float32, or [N, H, V, K] with
state_v_first, and initial ones, in float32, float16 or bfloat16. N is B, or the number of sequences that cu_seqlens
[N+1] packs in one row (B = 1). cu_seqlens_cpu is not needed. Further keyword arguments are ignored, as by FLA.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from ..ops.gla import gla, gla_recurrent
from ..ops.simple_gla import retnet_decays, simple_gla
from ..schedule import CHUNKS, MAX_HEAD_DIM, Schedule
from ..simple.call import MAX_CHUNK, MAX_DIM
from .refusals import why_not
from .which import fall_back, note

Result = tuple[Tensor, Tensor | None]


def chunk_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
) -> Result:
    """`gla`: o in the dtype of q, and the final state or None. g [B, T, H, K], natural logs of the decays.

    Raises ValueError as `gla` does, and where FLA is not installed for what only that does.
    """
    why = why_not(q, k, v, (g,), initial_state, MAX_HEAD_DIM)
    if why is not None:
        theirs = fall_back("chunk_gla", why)
        how = (scale, initial_state, output_final_state, state_v_first, cu_seqlens, cu_seqlens_cpu)
        return theirs(q, k, v, g, *how)
    note("chunk_gla")
    packed: dict[str, Any] = {"cu_seqlens": cu_seqlens, "state_v_first": bool(state_v_first)}
    return gla(q, k, v, g, scale, _wide(initial_state), bool(output_final_state), **packed)


def fused_recurrent_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gk: Tensor | None = None,
    gv: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    reverse: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    **kwargs: Any,
) -> Result:
    """`gla_recurrent`, one launch for a token too: gk [B, T, H, K] and gv [B, T, H, V], either or both or none.

    reverse: from the last token to the first, which FLA's own does. Raises ValueError as `gla_recurrent` does, for both
    names of state_v_first at once, and where FLA is not installed for what only that does.
    """
    state_v_first = _either_name(state_v_first, kwargs)
    why = "reverse=True" if reverse else why_not(q, k, v, (gk, gv), initial_state, MAX_HEAD_DIM)
    if why is not None:
        theirs = fall_back("fused_recurrent_gla", why)
        how = (scale, initial_state, output_final_state, reverse, state_v_first, cu_seqlens)
        return theirs(q, k, v, gk, gv, *how, **kwargs)
    note("fused_recurrent_gla")
    packed: dict[str, Any] = {"cu_seqlens": cu_seqlens, "state_v_first": bool(state_v_first)}
    return gla_recurrent(q, k, v, gk, scale, _wide(initial_state), bool(output_final_state), gv=gv, **packed)


def fused_chunk_gla(**kwargs: Any) -> Result:
    """Raises NotImplementedError, as FLA's own does: layers that call it lay out states in two ways."""
    raise NotImplementedError("fused_chunk_gla is deprecated in flash-linear-attention; call chunk_gla")


def chunk_simple_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    g_gamma: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    **kwargs: Any,
) -> Result:
    """`simple_gla`: g [B, T, H], gates of each token; g_gamma [H], constant ones, which get no gradient; without either
    `gla` without gates.

    chunk_size (of kwargs): rows of a chunk, where these kernels have such chunks. Raises ValueError as `simple_gla`
    does, for a chunk_size that is no power of 2, and where FLA is not installed for what only that does.
    """
    _refuse_head_first(kwargs)
    chunk = kwargs.get("chunk_size")
    if chunk is not None and (chunk < 1 or chunk & (chunk - 1)):
        raise ValueError(f"chunk_size: expected a power of 2, got {chunk}")
    gated = g is not None or g_gamma is not None
    why = why_not(q, k, v, (g, g_gamma), initial_state, MAX_DIM if gated else MAX_HEAD_DIM)
    if why is not None:
        theirs = fall_back("chunk_simple_gla", why)
        how = (scale, initial_state, output_final_state, state_v_first, cu_seqlens, cu_seqlens_cpu)
        return theirs(q, k, v, g, g_gamma, *how, **kwargs)
    note("chunk_simple_gla")
    kept = _wide(initial_state), bool(output_final_state)
    packed: dict[str, Any] = {"cu_seqlens": cu_seqlens, "state_v_first": bool(state_v_first)}
    schedule = _of_chunk(chunk)
    gates = _of_tokens(g, g_gamma, q)
    if gates is None:
        return gla(q, k, v, None, scale, *kept, schedule=schedule, **packed)
    return simple_gla(q, k, v, gates, scale, *kept, schedule=schedule, **packed)


def fused_recurrent_simple_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    g_gamma: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    reverse: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    **kwargs: Any,
) -> Result:
    """`gla_recurrent` with one gate a head and token, g [B, T, H] and g_gamma [H] as in `chunk_simple_gla`.

    Gates are spread over the features in float32: this form is for short sequences. Raises ValueError as
    `fused_recurrent_gla` does.
    """
    state_v_first = _either_name(state_v_first, kwargs)
    why = "reverse=True" if reverse else why_not(q, k, v, (g, g_gamma), initial_state, MAX_HEAD_DIM)
    if why is not None:
        theirs = fall_back("fused_recurrent_simple_gla", why)
        how = (scale, initial_state, output_final_state, reverse, state_v_first, cu_seqlens)
        return theirs(q, k, v, g, g_gamma, *how, **kwargs)
    note("fused_recurrent_simple_gla")
    gates = _of_tokens(g, g_gamma, q)
    if gates is not None:  # float32: the gradient is a sum over features
        gates = gates.float().unsqueeze(-1).expand(q.shape)
    packed: dict[str, Any] = {"cu_seqlens": cu_seqlens, "state_v_first": bool(state_v_first)}
    return gla_recurrent(q, k, v, gates, scale, _wide(initial_state), bool(output_final_state), **packed)


def chunk_retention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    **kwargs: Any,
) -> Result:
    """RetNet's retention: `simple_gla` with `retnet_decays`. Raises ValueError as `simple_gla` does, and where FLA is
    not installed for what only that does."""
    _refuse_head_first(kwargs)
    why = why_not(q, k, v, (), initial_state, MAX_DIM)
    if why is not None:
        theirs = fall_back("chunk_retention", why)
        return theirs(q, k, v, scale, initial_state, output_final_state, cu_seqlens, **kwargs)
    note("chunk_retention")
    gates = retnet_decays(q.shape[2], q.device).expand(q.shape[:3])
    how = (scale, _wide(initial_state), bool(output_final_state))
    return simple_gla(q, k, v, gates, *how, cu_seqlens=cu_seqlens, schedule=_of_chunk(kwargs.get("chunk_size")))


def chunk_linear_attn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None = None,
    initial_state: Tensor | tuple[Tensor | None, Tensor | None] | None = None,
    output_final_state: bool = False,
    normalize: bool = True,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor | tuple[Tensor | None, Tensor] | None]:
    """`gla` without gates. normalize: divide o_t by scale q_t z_t, with z_t the sum of keys so far.

    initial_state: a state, or with normalize a pair of a state and the sum of keys before, z [N, 1, H, K]. Returns with
    normalize such a pair in the place of the final state: the state where it is asked for, and z in any case, in the
    dtype of k, or of z before if that is wider. Raises ValueError as `gla` does, and where FLA is not installed for
    what only that does.
    """
    paired = normalize and isinstance(initial_state, tuple)
    state, z = initial_state if paired else (initial_state, None)  # type: ignore[misc]
    why = why_not(q, k, v, (), state, MAX_HEAD_DIM)  # type: ignore[arg-type]
    if why is not None:
        theirs = fall_back("chunk_linear_attn", why)
        return theirs(q, k, v, scale, initial_state, output_final_state, normalize, cu_seqlens)
    note("chunk_linear_attn")
    o, final = gla(q, k, v, None, scale, _wide(state), bool(output_final_state), cu_seqlens=cu_seqlens)
    if not normalize:
        return o, final
    o, z = _normalized(o, q, k, scale, z, cu_seqlens)
    return o, (final, z)


def _normalized(
    o: Tensor, q: Tensor, k: Tensor, scale: float | None, z: Tensor | None, cu_seqlens: Tensor | None
) -> tuple[Tensor, Tensor]:
    """o over scale q_t z_t, and z after the last token. scale q_t z_t is linear attention itself, with a single value
    of 1 for each token, whose state is z: so it goes through packed sequences alike. In float32, as sums of keys grow.
    """
    ones = q.new_ones(*q.shape[:3], 1, dtype=torch.float32)
    before = None if z is None else z.squeeze(1).unsqueeze(-1).float()
    over, after = gla(q.float(), k.float(), ones, None, scale, before, True, cu_seqlens=cu_seqlens)
    assert after is not None
    dtype = k.dtype if z is None else torch.promote_types(k.dtype, z.dtype)
    return (o / (over + 1e-10)).to(o.dtype), after.squeeze(-1).unsqueeze(1).to(dtype)


def _of_chunk(rows: int | None) -> Schedule | None:
    """A schedule with chunks of so many rows, if there are such; else one by default."""
    return Schedule(chunk=rows) if rows in CHUNKS and rows <= MAX_CHUNK else None


def _wide(state: Any) -> Any:
    """An initial state in float32, as kernels read it; None where there is none."""
    return None if state is None else state.float()


def _of_tokens(g: Tensor | None, g_gamma: Tensor | None, q: Tensor) -> Tensor | None:
    """The gates of each head and token, [B, T, H], from those and constant ones, if there are any."""
    if g_gamma is None:
        return g
    constant = g_gamma.detach().expand(q.shape[:3])
    return constant if g is None else g.float() + constant.float()


def _either_name(state_v_first: bool, kwargs: dict[str, Any]) -> bool:
    """state_v_first, which ``kwargs`` may have under its old name, and then no longer. Raises ValueError for both."""
    if "transpose_state_layout" not in kwargs:
        return state_v_first
    if state_v_first:
        raise ValueError("transpose_state_layout: expected only its new name, state_v_first, got both")
    text = "transpose_state_layout is deprecated; its name is state_v_first"
    warnings.warn(text, DeprecationWarning, stacklevel=3)
    return bool(kwargs.pop("transpose_state_layout"))


def _refuse_head_first(kwargs: dict[str, Any]) -> None:
    """Raises DeprecationWarning, as FLA does, for inputs [B, H, T, D] of earlier versions."""
    if "head_first" in kwargs:
        raise DeprecationWarning("head_first is gone from flash-linear-attention; inputs are [B, T, H, ...]")
