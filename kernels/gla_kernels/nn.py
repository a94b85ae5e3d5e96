"""The layer of the GLA Transformer (Yang et al. 2024, arXiv 2312.06635, section 4.4), named as in FLA.

    q, k, v = x W_q, x W_k, x W_v                 g = logsigmoid(x W_1 W_2 + b) / 16, with W_1 of rank 16
    y = (swish(x W_r) * rmsnorm(gla(q, k, v, g))) W_o                   the norm is that of each head

from gla_kernels.nn import GatedLinearAttention
layer = GatedLinearAttention(hidden_size=1024, num_heads=4)
y, _ = layer(x)                                                        # x, y [B, T, 1024]
y, state = layer(prompt, output_final_state=True)                      # state [B, H, K, V]
y = layer.step(token, state)                                           # token, y [B, 1024]; the state is updated
pool = layer.state_pool(256, tail=8)                                   # states of 256 requests, for an engine
y = layer.prefill(prompts, pool, slots, cu_seqlens)                    # prompts, y [1, T, 1024]
y = layer.serve(tokens, pool, slots)                                   # tokens, y [B, 1024]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from . import parallel
from .low_rank import low_rank_gates, serves
from .ops.gla import gla, gla_recurrent, gla_step
from .projections import is_plain, projected
from .schedule import MAX_HEAD_DIM, Schedule
from .serving import StatePool


def _squared_relu(x: Tensor) -> Tensor:
    return F.relu(x).square()


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": partial(F.gelu, approximate="tanh"),
    "logsigmoid": F.logsigmoid,
    "relu": F.relu,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "sqrelu": _squared_relu,
    "swish": F.silu,
}
MODES = ("chunk", "fused_recurrent")


class GatedLinearAttention(nn.Module):
    """Gated linear attention as a layer: ``layer(x)``, of about 4 hidden_size² parameters.

    Arguments, parameters and their shapes are those of ``fla.layers.GatedLinearAttention`` of flash-linear-attention
    0.6.0, so that either loads the other's ``state_dict()``, strict, and a checkpoint needs no conversion.

    mode: "chunk", `gla`, or "fused_recurrent", `gla_recurrent`, which one token takes in any case.
    hidden_size: of x and y. Keys are hidden_size * expand_k wide, values hidden_size * expand_v, of all num_heads heads
        together; a head has at most 512 of either.
    num_kv_heads: heads of keys, values and gates, each for num_heads / num_kv_heads heads of queries; None: num_heads.
    feature_map: of queries and keys, a name of ACTIVATIONS; None: none.
    use_output_gate, gate_fn: whether there is an output gate, and its activation, of ACTIVATIONS.
    elementwise_affine, norm_eps: of the norm of each head's output, whose weights are the same for all heads.
    fuse_norm: with gate_fn "swish" and an output gate, the norm's weights are called ``g_norm_swish_gate``, else
        ``g_norm``. Nothing else depends on it.
    gate_logit_normalizer, clamp_min: g = max(logsigmoid(.) / gate_logit_normalizer, clamp_min); None: no clamp.
    gate_low_rank_dim: the rank of the projection that gates come from.
    use_short_conv, conv_size, conv_bias: short convolutions are not supported.
    layer_idx: is kept, and not used.
    gate_dtype: torch.float32 for gates in float32 from the sigmoid's logarithm on; None: in the dtype of x.
        With 1024 tokens or more gates are made by kernels of their own (low_rank.py), which round nothing before them.
    schedule, recompute: as of `gla`, in mode "chunk".

    Projections of x are modules and products of their own, as FLA has them: for optimizers, sharding, and whatever
    replaces a projection by its name. One product of all would be cut into slices, which `gla` copies; the copies would
    be kept for the backward pass beside what they are of. Where nothing has been put in their place, what they add to
    the gradient of x is one sum (projections.py).

    Raises ValueError, naming the argument, for what is wrong or not supported.
    """

    def __init__(
        self,
        mode: str = "chunk",
        hidden_size: int = 1024,
        expand_k: float = 0.5,
        expand_v: float = 1.0,
        num_heads: int = 4,
        num_kv_heads: int | None = None,
        feature_map: str | None = None,
        use_short_conv: bool = False,
        conv_size: int = 4,
        conv_bias: bool = False,
        use_output_gate: bool = True,
        gate_fn: str = "swish",
        elementwise_affine: bool | None = True,
        norm_eps: float = 1e-5,
        gate_logit_normalizer: float = 16,
        gate_low_rank_dim: int = 16,
        clamp_min: float | None = None,
        fuse_norm: bool = True,
        layer_idx: int | None = None,
        *,
        gate_dtype: torch.dtype | None = None,
        schedule: Schedule | None = None,
        recompute: bool | None = None,
    ) -> None:
        super().__init__()
        if use_short_conv:
            hint = "flash-linear-attention's layer has them, on these kernels by gla_kernels.fla.accelerate()"
            raise ValueError(f"use_short_conv: expected False, got {use_short_conv!r}: {hint}")
        _one_of("mode", mode, MODES)
        _one_of("gate_fn", gate_fn, ACTIVATIONS)
        if feature_map is not None:
            _one_of("feature_map", feature_map, ACTIVATIONS)
        if gate_dtype not in (None, torch.float32):
            raise ValueError(f"gate_dtype: expected torch.float32, or None for that of x, got {gate_dtype!r}")
        if not gate_logit_normalizer > 0:
            raise ValueError(f"gate_logit_normalizer: expected a positive number, got {gate_logit_normalizer!r}")
        if clamp_min is not None and not clamp_min <= 0:
            raise ValueError(f"clamp_min: expected a number of 0 or less, or None, got {clamp_min!r}")
        for name, asked in (("schedule", schedule), ("recompute", recompute)):
            if asked is not None and mode != "chunk":
                raise ValueError(f"{name}: expected None in mode {mode!r}, got {asked!r}")
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        sizes = {"hidden_size": hidden_size, "num_heads": num_heads, "num_kv_heads": num_kv_heads}
        for name, size in (sizes | {"gate_low_rank_dim": gate_low_rank_dim}).items():
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise ValueError(f"{name}: expected a number of 1 or more, got {size!r}")
        if num_heads % num_kv_heads:
            raise ValueError(f"num_kv_heads: expected a divisor of num_heads={num_heads}, got {num_kv_heads}")

        self.mode, self.hidden_size, self.layer_idx = mode, hidden_size, layer_idx
        self.num_heads, self.num_kv_heads, self.num_kv_groups = num_heads, num_kv_heads, num_heads // num_kv_heads
        self.head_k_dim = _head_dim("expand_k", expand_k, hidden_size, num_heads)
        self.head_v_dim = _head_dim("expand_v", expand_v, hidden_size, num_heads)
        self.key_dim, self.value_dim = num_heads * self.head_k_dim, num_heads * self.head_v_dim
        self.feature_map_fn = None if feature_map is None else ACTIVATIONS[feature_map]
        self.use_output_gate, self.gate_fn = use_output_gate, ACTIVATIONS[gate_fn]
        self.gate_logit_normalizer, self.clamp_min, self.gate_dtype = gate_logit_normalizer, clamp_min, gate_dtype
        self.schedule, self.recompute = schedule, recompute

        self.q_proj = nn.Linear(hidden_size, self.key_dim, bias=False)
        self.k_proj = nn.Linear(hidden_size, num_kv_heads * self.head_k_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, num_kv_heads * self.head_v_dim, bias=False)
        if use_output_gate:
            self.g_proj = nn.Linear(hidden_size, self.value_dim, bias=False)
        self.gk_proj = nn.Sequential(
            nn.Linear(hidden_size, gate_low_rank_dim, bias=False),
            nn.Linear(gate_low_rank_dim, num_kv_heads * self.head_k_dim),
        )
        self.o_proj = nn.Linear(self.value_dim, hidden_size, bias=False)
        self._norm = "g_norm_swish_gate" if gate_fn == "swish" and fuse_norm and use_output_gate else "g_norm"
        self.add_module(self._norm, HeadNorm(self.head_v_dim, norm_eps, bool(elementwise_affine)))

    def forward(
        self,
        x: Tensor,
        initial_state: Tensor | None = None,
        output_final_state: bool = False,
        *,
        cu_seqlens: Tensor | None = None,
        group: Any = None,
    ) -> tuple[Tensor, Tensor | None]:
        """y [B, T, hidden_size] of x [B, T, hidden_size], and the state after the last token, or None.

        x: in the dtype of the weights, float32, float16 or bfloat16; under autocast any, and then y is in autocast's.
        initial_state: [B, H, K, V], float32, with H = num_heads, K = head_k_dim and V = head_v_dim; zeros by default.
            It is left as it is.
        output_final_state: whether to return the state, [B, H, K, V] in float32.
        cu_seqlens: [N+1], where each of N packed sequences begins, and T, as of `gla`. B is 1 then, and states are
            [N, H, K, V].
        group: a process group over whose ranks the sequence lies: x, y and states are as of `parallel.gla`, and each
            rank has the gradient of the weights that its own tokens make. None: x is all of it.

        Raises ValueError, naming the argument, for a wrong shape, dtype or device, and for a group in another mode than
        "chunk".
        """
        self._check(x, "B, T")
        if group is not None and self.mode != "chunk":
            raise ValueError(f"group: expected None in mode {self.mode!r}, got {group!r:.60}")
        q, k, v, g, gate = self._inputs(x)
        o, state = self._mixed(q, k, v, g, initial_state, output_final_state, cu_seqlens, group)
        return self._output(o, gate), state

    def step(self, x: Tensor, state: Tensor) -> Tensor:
        """One token of decoding: y [B, hidden_size] of x [B, hidden_size]; the state is updated in place.

        state: [B, H, K, V], float32, contiguous, as `forward` returns it. Not differentiable: call it in
        ``torch.no_grad()``. Raises ValueError, naming the argument, for a wrong shape, dtype or device, and where
        gradients are required.
        """
        self._check(x, "B")
        q, k, v, g, gate = self._inputs(x)
        return self._output(gla_step(q, k, v, g, state), gate)

    def state_pool(self, slots: int, **how: Any) -> StatePool:
        """A pool of this layer's states, on its device, for `prefill` and `serve`. how: of `serving.StatePool` dtype,
        state_v_first, tail, tokens and stochastic."""
        weight: Tensor = self.q_proj.weight
        dtypes: dict[str, Any] = {"inputs": weight.dtype, "gate_dtype": self.gate_dtype, "device": weight.device}
        return StatePool(slots, self.num_heads, self.head_k_dim, self.head_v_dim, **dtypes, **how)

    def prefill(
        self, x: Tensor, pool: StatePool, indices: Tensor, cu_seqlens: Tensor | None = None,
        accept: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """y of prompts, or of chunks of them, whose states go on in the pool's slots: `serving.StatePool.prefill`.

        x, y: [1, T, hidden_size] with cu_seqlens [N+1], or [B, T, hidden_size]; indices: the slot of each sequence.
        Call it in ``torch.no_grad()``.
        """
        self._check(x, "B, T")
        q, k, v, g, gate = self._inputs(x)
        return self._output(pool.prefill(q, k, v, g, indices, cu_seqlens, accept=accept), gate)

    def serve(self, x: Tensor, pool: StatePool, indices: Tensor, accept: Tensor | None = None) -> Tensor:
        """y of the next token of each request, x and y [B, hidden_size], or of several, [B, n, hidden_size], by
        `serving.StatePool.step`, which has indices and accept. Call it in ``torch.no_grad()``."""
        self._check(x, "B" if isinstance(x, Tensor) and x.dim() == 2 else "B, n")
        q, k, v, g, gate = self._inputs(x)
        return self._output(pool.step(q, k, v, g, indices, accept=accept), gate)

    def extra_repr(self) -> str:
        heads = f"{self.num_heads} heads" + (f", {self.num_kv_heads} of keys" if self.num_kv_groups > 1 else "")
        return f"{self.mode}, {heads}, K={self.head_k_dim}, V={self.head_v_dim}"

    def _check(self, x: Tensor, lead: str) -> None:
        """Raises ValueError for an x that is no tensor [lead, hidden_size]."""
        if not isinstance(x, Tensor):
            raise ValueError(f"x: expected a tensor [{lead}, {self.hidden_size}], got {type(x).__name__}")
        if x.dim() != len(lead.split()) + 1 or x.shape[-1] != self.hidden_size:
            raise ValueError(f"x: expected shape [{lead}, {self.hidden_size}], got {list(x.shape)}")
        weight = getattr(self.q_proj, "weight", x)  # a projection may be another module by now, with none of its own
        if weight.is_floating_point() and x.dtype != weight.dtype and not _autocasting(x.device.type):
            raise ValueError(f"x: expected dtype {weight.dtype} as of the weights, got {x.dtype}")

    def _inputs(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
        """q, k, v and g as kernels take them, by heads, and the output gate if there is one; x is [.., hidden_size]."""
        first = self.gk_proj[0] if is_plain(self.gk_proj, nn.Sequential) else self.gk_proj
        layers = [first, self.q_proj, self.k_proj, self.v_proj, *([self.g_proj] if self.use_output_gate else [])]
        low, q, k, v, *rest = projected(x, layers)
        q, k, g = (y.unflatten(-1, (-1, self.head_k_dim)) for y in (q, k, self._gates(low, first)))
        v, *rest = (y.unflatten(-1, (-1, self.head_v_dim)) for y in (v, *rest))
        if self.feature_map_fn is not None:
            q, k = self.feature_map_fn(q), self.feature_map_fn(k)
        if self.num_kv_groups > 1:
            k, v, g = (y.repeat_interleave(self.num_kv_groups, -2) for y in (k, v, g))
        return q, k, v, g, rest[0] if rest else None

    def _gates(self, low: Tensor, first: nn.Module) -> Tensor:
        """g [.., K of all heads] of what the first of its projections makes of x; or all of them, if they are not to be
        told apart."""
        dtype = low.dtype if self.gate_dtype is None else self.gate_dtype
        if first is not self.gk_proj:
            last: Any = self.gk_proj[1]
            if is_plain(last, nn.Linear) and serves(low, last.weight, last.bias):
                how = self.gate_logit_normalizer, self.clamp_min, dtype
                g: Tensor = low_rank_gates(low, last.weight, last.bias, *how)
                return g
            low = last(low)
        g = F.logsigmoid(low.to(dtype)) / self.gate_logit_normalizer
        return g if self.clamp_min is None else g.clamp_min(self.clamp_min)

    def _mixed(
        self, q: Tensor, k: Tensor, v: Tensor, g: Tensor, initial_state: Tensor | None, output_final_state: bool,
        cu_seqlens: Tensor | None, group: Any,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """The operator: o [B, T, H, V], and the final state where it is asked for."""
        given = (q, k, v, g, None, initial_state, output_final_state)
        if group is not None:
            how: dict[str, Any] = {"schedule": self.schedule, "recompute": self.recompute}
            return parallel.gla(*given, group=group, cu_seqlens=cu_seqlens, **how)
        if self.mode == "fused_recurrent" or q.shape[1] == 1:
            return gla_recurrent(*given, cu_seqlens=cu_seqlens)
        return gla(*given, cu_seqlens=cu_seqlens, schedule=self.schedule, recompute=self.recompute)

    def _output(self, o: Tensor, gate: Tensor | None) -> Tensor:
        """y of what the heads put out, both [.., H, V]."""
        o = getattr(self, self._norm)(o)
        y: Tensor = self.o_proj((o if gate is None else self.gate_fn(gate) * o).flatten(-2))
        return y


class HeadNorm(nn.RMSNorm):
    """The RMS norm of each head, in the dtype of what comes. PyTorch has no fused kernel where weights have another,
    and under autocast its norm may come out in float32."""

    def forward(self, x: Tensor) -> Tensor:
        """x [.., V] -> the same shape and dtype."""
        weight: Tensor | None = self.weight  # None without elementwise_affine
        return F.rms_norm(x, x.shape[-1:], None if weight is None else weight.to(x.dtype), self.eps).to(x.dtype)


def _autocasting(device: str) -> bool:
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


def _one_of(name: str, value: object, known: Sequence[str] | dict[str, Any]) -> None:
    if value not in known:
        raise ValueError(f"{name}: expected {', '.join(known)}, got {value!r:.60}")


def _head_dim(name: str, expand: float, hidden_size: int, heads: int) -> int:
    """The size of a head. Raises ValueError for one that is no number of 1 to 512."""
    dim = hidden_size * expand / heads
    if not (math.isclose(dim, round(dim)) and 1 <= round(dim) <= MAX_HEAD_DIM):
        text = f"hidden_size * {name} / num_heads to be a whole number from 1 to {MAX_HEAD_DIM}"
        raise ValueError(f"{name}: expected {text}, got {hidden_size} * {expand} / {heads} = {dim:g}")
    return round(dim)


__all__ = ["GatedLinearAttention"]
