"""The public functions, with autograd.

Layout: q, k [B, T, H, K]; v, o [B, T, H, V]; g [B, T, H]; states [B, H, K, V] in float32. Either q and k or v may have
fewer heads, each for as many states as any other.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..launch import Launch
from ..launch.run import ALIGNED
from ..plan.choose import machine_of
from ..schedule import CHUNKS, Schedule
from ..simple.call import MAX_CHUNK, MAX_DIM, Call
from ..simple.passes import backward, forward
from . import library
from .autograd import call
from .form import Inputs, looks_at_lengths
from .forms import Simple
from .operators import MAKERS
from .prepared import Prepared
from .signature import is_plain, prepared, signature_of
from .validate import check_flag, check_inputs, check_length_values, check_scale, check_sizes, check_tensor, no_tensor


def simple_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    *,
    cu_seqlens: Tensor | None = None,
    state_v_first: bool = False,
    check: bool = False,
    schedule: Schedule | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Linear attention with one gate a head and token, in its chunkwise form: gated linear attention whose gate is the
    same for all features, and with `retnet_decays` the retention of RetNet.

        S_t = e^{g_t} S_{t-1} + k_t^T v_t          o_t = scale q_t S_t

    q, k: [B, T, H, K], float32, float16 or bfloat16; K from 1 to 256.
    v: [B, T, H, V], dtype of q; V from 1 to 256.
        There are H heads of states, of g and of o. Either q and k or v may have fewer, H / n, of which head h is that
        of heads h*n to h*n+n-1: as in Mamba-2's SSD, where all share q and k. Nothing is repeated in memory.
    g: [B, T, H], natural log of the decay, <= 0 and as strong as wanted, dtype of q or float32. It may be expanded, and
        have the heads of q where v has more.
    scale: factor on the output; K^-1/2 by default.
    initial_state: [B, H, K, V], float32; zeros by default.
    output_final_state: whether to return the state after the last token.
    cu_seqlens, state_v_first, check: as in `gla`. Packed sequences share chunks: what is not finite in one may show in
        others, as nowhere else.
    schedule: `Schedule(chunk=64)` by default. chunk: up to 128. materialize: True keeps the states of all chunks in
        memory, for the backward pass too, but where Hopper's own walks make each gradient, which read none; False makes
        the output in one walk over time, for chunks of up to 64 and K of up to 128 in bfloat16 and 64 else, and beyond
        those by slices of the sequence, whose states share a small buffer; the backward pass then computes states
        again, a slice at a time. sub_chunk means nothing here: the scores of a chunk are one product.

    Returns o [B, T, H, V] in the dtype of q, and the final state [B, H, K, V] in float32 or None. Differentiable once
    in q, k, v, g and initial_state, also through the final state. Deterministic: the same inputs give the same bits.

    Raises ValueError, naming the argument, for a wrong shape, dtype, device or schedule.
    """
    inputs = Inputs(q, k, v, of_states(q, v, g), None, initial_state, cu_seqlens)
    g = inputs.g  # type: ignore[assignment]
    if torch.compiler.is_compiling():
        return library.call("simple_gla", inputs, scale, output_final_state, schedule, v_first=state_v_first)
    if not is_plain(inputs):
        check_call(inputs, state_v_first)
        check_flag("output_final_state", output_final_state)
        return library.call("simple_gla", inputs, scale, output_final_state, schedule, v_first=state_v_first)
    if looks_at_lengths(inputs, check):
        check_call(inputs, state_v_first)
        check_length_values(inputs)
    wanted = inputs.requires_grad
    flags = (output_final_state, scale, state_v_first)
    strides: tuple[Any, ...] | None = None
    if isinstance(g, Tensor) and g.layout is torch.strided:  # as g lies, or that a copy of it is read
        strides = g.stride(), g.is_neg() or g.data_ptr() % ALIGNED != 0
    signature = signature_of("simple_gla", inputs, (*flags, *map(type, flags), schedule, strides, wanted))

    def prepare() -> Prepared:
        check_call(inputs, state_v_first)
        check_flag("output_final_state", output_final_state)
        form = _form(inputs, q.device, check_scale(scale, q.shape[-1]), schedule, wanted, None, state_v_first)
        return Prepared(form, _laid_out(inputs), output_final_state, q.device)

    return call(prepared(signature, prepare), inputs, wanted)


def of_states(q: Any, v: Any, g: Any) -> Any:
    """Gates of each state: those of q's heads for all of v's that share one, where there are such; else as they are,
    also where something is wrong with them."""
    if not all(isinstance(x, Tensor) and no_tensor(x) is None for x in (q, v, g)) or (q.dim(), v.dim()) != (4, 4):
        return g
    H, of_values = q.shape[2], v.shape[2]
    if of_values == H or not H or of_values % H or g.shape != q.shape[:-1]:
        return g
    return g.repeat_interleave(of_values // H, 2)


def _laid_out(inputs: Inputs) -> Inputs:
    """The inputs as kernels read them: gates as they are, expanded perhaps, for kernels go by their strides."""
    g = inputs.g
    assert g is not None
    g = g.resolve_neg()
    return inputs._replace(g=None).readable()._replace(g=g if g.data_ptr() % ALIGNED == 0 else g.clone())


def _form(
    x: Inputs,
    device: torch.device,
    scale: float,
    schedule: Schedule | None,
    differentiated: bool,
    _recompute: bool | None = None,
    v_first: bool = False,
) -> Simple:
    """The form of a call of `simple_gla`: see `operators.Maker`."""
    return Simple(scale, check_schedule(schedule), machine_of(device).capability, differentiated, v_first)


def _in_graph(x: Inputs, *how: Any) -> Simple:
    """The form, after checks as `simple_gla` itself makes them."""
    check_call(x, how[-1])
    return _form(x, *how)


def retnet_decays(H: int, device: torch.device | str | None = None) -> Tensor:
    """RetNet's constant gates, log(1 - 2^(-5-h)) for the heads h = 0 .. H-1, float32 [H] (Sun et al. 2023,
    arXiv 2307.08621, section 2.4). For `simple_gla`: ``g=retnet_decays(H, q.device).expand(B, T, H)``.

    Raises ValueError for H < 1.
    """
    if not isinstance(H, int) or isinstance(H, bool) or H < 1:
        raise ValueError(f"H: expected a number of heads > 0, got {H!r}")
    # made where they are used: a copy from the CPU would keep it waiting until the GPU has done all it was given before
    powers = torch.exp2(-5.0 - torch.arange(H, dtype=torch.float64, device=device))
    return torch.log1p(-powers).float()


def launches(
    *,
    B: int,
    T: int,
    H: int,
    K: int,
    V: int,
    dtype: torch.dtype,
    mode: str = "fwdbwd",
    schedule: Schedule | None = None,
    initial_state: bool = False,
    gates: Tensor | None = None,
    gradient_of_g: bool = True,
    capability: int = 90,
    qk_heads: int | None = None,
    sequences: int | None = None,
) -> list[Launch]:
    """The kernels that a call would launch, in order, without running one, on tensors of the meta device.

    mode: "fwd", with no backward pass to come, "bwd" or "fwdbwd"; initial_state: whether it is given a state and gives
    back the final one; gates: g as the call has it, on the meta device, by default contiguous and of the dtype;
    capability: compute capability of the GPU, 80 for an A100, 90 for an H100; qk_heads: of q and k, H by default, and
    H are those of v then; sequences: how many are packed, in a batch of 1. Raises ValueError as the call would.
    """
    of_q = H if qk_heads is None else qk_heads
    check_sizes(B=B, T=T, H=H, K=K, V=V, capability=capability, qk_heads=of_q)
    q = torch.empty(B, T, of_q, K, dtype=dtype, device="meta")
    v = torch.empty(B, T, H, V, dtype=dtype, device="meta")
    g = torch.empty(B, T, max(H, of_q), dtype=dtype, device="meta") if gates is None else gates
    ends = None if sequences is None else torch.empty(sequences + 1, dtype=torch.int32, device="meta")
    of_states = (B if sequences is None else sequences, max(H, of_q), K, V)
    state = torch.empty(of_states, dtype=torch.float32, device="meta") if initial_state else None
    check_call(Inputs(q, q, v, g, None, state, ends))
    if mode not in ("fwd", "bwd", "fwdbwd"):
        raise ValueError(f"mode: expected fwd, bwd or fwdbwd, got {mode!r}")
    schedule = check_schedule(schedule)
    call = Call(q, q, v, g, float(K**-0.5), state, schedule.chunk, schedule.materialize, capability, ends)
    fwd: list[Launch] = []
    bwd: list[Launch] = []
    _, final, kept = forward(call, initial_state, mode != "fwd", fwd.append)
    do = torch.empty(B, T, max(H, of_q), V, dtype=dtype, device="meta")
    backward(call, kept, do, final, gradient_of_g, bwd.append)
    return {"fwd": fwd, "bwd": bwd, "fwdbwd": fwd + bwd}[mode]


def check_call(x: Inputs, v_first: bool = False) -> None:
    """The tensors of a call. Raises ValueError, naming the argument, for a wrong shape, dtype or device."""
    check_flag("state_v_first", v_first)
    how = {"cu_seqlens": x.cu_seqlens, "v_first": v_first, "groups": True, "fewer": True}
    check_inputs(x.q, x.k, x.v, None, x.initial_state, **how)  # type: ignore[arg-type]
    check_gates(x.g, x.q, x.v)
    for name, dim in (("q", x.q.shape[-1]), ("v", x.v.shape[-1])):
        if dim > MAX_DIM:
            raise ValueError(f"{name}: expected a head dimension (last axis) from 1 to {MAX_DIM}, got {dim}")


def check_gates(g: Tensor | None, q: Tensor, v: Tensor | None = None) -> None:
    """One gate a token and head of q, or of v, if that has more. Raises ValueError."""
    if not isinstance(g, Tensor):
        raise ValueError(f"g: expected a tensor [B, T, H], got {type(g).__name__}")
    check_tensor("g", g)
    name, like = ("v", v) if v is not None and v.shape[2] > q.shape[2] else ("q", q)
    if g.shape != like.shape[:-1]:
        hint = "; for a gate of each feature there is gla" if g.shape == q.shape else ""
        raise ValueError(f"g: expected shape {list(like.shape[:-1])} (B, T, H, as {name}), got {list(g.shape)}{hint}")
    if g.dtype not in (q.dtype, torch.float32):
        raise ValueError(f"g: expected dtype {q.dtype} (as of q) or float32, got {g.dtype}")
    if g.device != q.device:
        raise ValueError(f"g: expected device {q.device} as of q, got {g.device}")


def check_schedule(schedule: Schedule | None) -> Schedule:
    """The schedule, or the one by default. Raises ValueError for one that these kernels do not have."""
    if schedule is None:
        return Schedule()
    if not isinstance(schedule, Schedule):
        raise ValueError(f"schedule: expected a Schedule or None, got {type(schedule).__name__}")
    if schedule.chunk > MAX_CHUNK:
        known = ", ".join(str(chunk) for chunk in CHUNKS if chunk <= MAX_CHUNK)
        raise ValueError(f"schedule: simple_gla has chunks of {known}, not {schedule.chunk}")
    if schedule.states_every is not None:
        raise ValueError(f"schedule: simple_gla cuts no walk into segments, got states_every={schedule.states_every}")
    return schedule


MAKERS["simple_gla"] = _in_graph
