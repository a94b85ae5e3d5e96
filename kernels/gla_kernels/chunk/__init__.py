"""The chunkwise form: which kernels run, in which order, on which buffers.

Nothing here touches a GPU: each step builds a `Launch` and hands it to ``launch``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..config import KernelConfig, Schedule, Tile
from ..launch import Launch, Launcher, interpreting, settle_keys
from .grad_k import grad_k_kernel
from .grad_q import grad_q_kernel
from .grad_v import grad_v_kernel
from .output import output_kernel
from .states import grad_states_kernel, states_kernel

settle_keys(states_kernel, output_kernel, grad_states_kernel, grad_q_kernel, grad_k_kernel, grad_v_kernel)


@dataclass(frozen=True)
class Problem:
    """The inputs of one call. q, k, g [B, T, H, K]; v [B, T, H, V]; initial_state [B, H, K, V] float32."""

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor | None
    scale: float
    initial_state: Tensor | None
    schedule: Schedule
    config: KernelConfig
    seg_chunks: int  # chunks a segment

    @property
    def dims(self) -> tuple[int, int, int, int, int]:
        """B, T, H, K, V."""
        B, T, H, K = self.q.shape
        return B, T, H, K, self.v.shape[-1]

    @property
    def n_seg(self) -> int:
        """Segments a sequence."""
        return max(1, triton.cdiv(self.q.shape[1], self.seg_chunks * self.schedule.chunk))

    @property
    def state_dtype(self) -> torch.dtype:
        """States between passes: as they enter a bf16 product, or float32. float16 lacks the range, and the few
        states between longer segments serve the gate's gradient, where the rounding would show."""
        return torch.bfloat16 if self.q.dtype == torch.bfloat16 and self.seg_chunks == 1 else torch.float32

    def state_buffer(self) -> Tensor:
        """One state a segment, [B*H, n_seg, K, V]."""
        B, _, H, K, V = self.dims
        return self.q.new_empty(B * H, self.n_seg, K, V, dtype=self.state_dtype)

    def constexprs(self, tile: Tile) -> dict[str, Any]:
        """Compile-time arguments that every kernel takes."""
        _, _, _, K, V = self.dims
        dot, precision = operand_type(self.q.dtype, K)
        return {
            "K": K, "V": V, "BT": self.config.block_t, "BK": tile.block_k, "BV": tile.block_v,
            "GATED": self.g is not None, "DOT": dot, "PRECISION": precision,
        }  # fmt: skip

    def launch_of(self, kernel: Any, tile: Tile, programs: int, args: dict[str, Any], **constexprs: Any) -> Launch:
        B, T, H, _, _ = self.dims
        args = args | {"T": T, "H": H, "n_seg": self.n_seg}
        return Launch(
            kernel,
            (programs * B * H,),
            args,
            self.constexprs(tile) | constexprs,
            num_warps=tile.num_warps,
            num_stages=tile.num_stages,
        )

    def walk_of(
        self, kernel: Any, tile: Tile, columns: int, args: dict[str, Any], *, carry: bool, **constexprs: Any
    ) -> Launch:
        """A launch of a pass over segments; ``carry``: whether the state at the last chunk's far end is needed."""
        chunk, block_t = self.schedule.chunk, self.config.block_t
        args = args | {"seg_chunks": self.seg_chunks, "chunk": chunk, "scale": self.scale}
        return self.launch_of(
            kernel,
            tile,
            columns * self.n_seg,
            args,
            WALK=self.seg_chunks > 1 or carry,
            SINGLE=chunk == block_t,
            FULL=self.schedule.rows > block_t,
            **constexprs,
        )


# Rows between two states that the backward pass of a schedule that does not materialize keeps all the same: the
# gate's gradient is a running difference of two sums, and its rounding errors would pile up over a long sequence.
# At K = V = 128 that is 5 % of the inputs' memory.
GRAD_SEGMENT_ROWS = 1024


def segment_chunks(schedule: Schedule, T: int, grad: bool) -> int:
    """Chunks a segment, forward or backward: one where states are materialized, else all, bounded in backward."""
    if schedule.materialize:
        return 1
    chunks = max(1, triton.cdiv(T, schedule.chunk))
    return min(chunks, GRAD_SEGMENT_ROWS // schedule.chunk) if grad else chunks


def operand_type(dtype: torch.dtype, K: int) -> tuple[Any, str]:
    """Type of the tensor-core operands, and what float32 operands are cut to.

    bf16: bf16 products, tf32 where a decayed operand would lose bits that count (inside a sub-chunk).
    fp16: tf32, which has the same 10 mantissa bits but float32's range: states and scores overflow 65504 easily.
    fp32: three tf32 products, within a few units of float32's last place; plain float32 products where K is so large
    that the split operands would not fit the shared memory of an A100.
    The interpreter's bf16 product is wrong, so it computes bf16 inputs in float32.
    """
    if dtype == torch.bfloat16 and not interpreting():
        return tl.bfloat16, "tf32"
    if dtype == torch.float32:
        return tl.float32, "tf32x3" if K <= 256 else "ieee"
    return tl.float32, "tf32"


def forward(p: Problem, output_final_state: bool, launch: Launcher) -> tuple[Tensor, Tensor | None]:
    """o [B, T, H, V] in the inputs' dtype, and the final state [B, H, K, V] in float32 if asked for."""
    B, _, H, K, V = p.dims
    o = torch.empty_like(p.v)
    final_state = p.q.new_empty(B, H, K, V, dtype=torch.float32) if output_final_state else None
    tile = p.config.output
    states, walk_final = p.initial_state, final_state
    if p.n_seg > 1 or p.schedule.materialize:
        states, walk_final = _states(p, final_state, launch), None
    args = {"p_q": p.q, "p_k": p.k, "p_v": p.v, "p_g": p.g, "p_s": states, "p_o": o, "p_st": walk_final}
    launch(
        p.walk_of(
            output_kernel,
            tile,
            triton.cdiv(V, tile.block_v),
            args,
            carry=walk_final is not None,
            HAS_S=states is not None,
            STORE_ST=walk_final is not None,
        )
    )
    return o, final_state


def _states(p: Problem, final_state: Tensor | None, launch: Launcher) -> Tensor:
    states = p.state_buffer()
    tile = p.config.states
    _, _, _, K, V = p.dims
    args = {
        "p_k": p.k, "p_v": p.v, "p_g": p.g, "p_s0": p.initial_state, "p_s": states, "p_st": final_state,
        "seg_rows": p.seg_chunks * p.schedule.chunk,
    }  # fmt: skip
    launch(
        p.launch_of(
            states_kernel,
            tile,
            triton.cdiv(K, tile.block_k) * triton.cdiv(V, tile.block_v),
            args,
            HAS_S0=p.initial_state is not None,
            STORE_ST=final_state is not None,
        )
    )
    return states


def _grad_states(p: Problem, do: Tensor, d_final: Tensor | None, d_initial: Tensor | None, launch: Launcher) -> Tensor:
    grads = p.state_buffer()
    tile = p.config.grad_states
    _, _, _, K, V = p.dims
    args = {
        "p_q": p.q, "p_g": p.g, "p_do": do, "p_dst": d_final, "p_ds": grads, "p_ds0": d_initial, "scale": p.scale,
        "seg_rows": p.seg_chunks * p.schedule.chunk,
    }  # fmt: skip
    launch(
        p.launch_of(
            grad_states_kernel,
            tile,
            triton.cdiv(K, tile.block_k) * triton.cdiv(V, tile.block_v),
            args,
            HAS_DST=d_final is not None,
            STORE_DS0=d_initial is not None,
        )
    )
    return grads


def backward(
    p: Problem, do: Tensor, final_state: Tensor | None, d_final: Tensor | None, launch: Launcher
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """dq, dk, dv, dg and the initial state's gradient.

    do [B, T, H, V]; final_state and d_final [B, H, K, V] float32, both given or both None. States are recomputed, so
    that nothing but the inputs is kept between forward and backward.
    """
    dq, dk, dv = torch.empty_like(p.q), torch.empty_like(p.k), torch.empty_like(p.v)
    dg = qdq = None
    if p.g is not None:
        dg = torch.empty_like(p.g)
        qdq = torch.empty_like(p.g, dtype=torch.float32)
    d_initial = torch.empty_like(p.initial_state) if p.initial_state is not None else None
    states, d_states, walk_d_initial = p.initial_state, d_final, d_initial
    if p.n_seg > 1 or p.schedule.materialize:
        states = _states(p, None, launch)
        d_states = _grad_states(p, do, d_final, d_initial, launch)
        walk_d_initial = None
    _, _, _, K, V = p.dims
    tile = p.config.grad_q
    args = {"p_q": p.q, "p_k": p.k, "p_v": p.v, "p_g": p.g, "p_s": states, "p_do": do, "p_dq": dq, "p_qdq": qdq}
    launch(
        p.walk_of(
            grad_q_kernel,
            tile,
            triton.cdiv(K, tile.block_k),
            args,
            carry=not p.schedule.materialize,
            HAS_S=states is not None,
        )
    )
    tile = p.config.grad_k
    args = {
        "p_q": p.q, "p_k": p.k, "p_v": p.v, "p_g": p.g, "p_s": states, "p_st": final_state,
        "p_ds": d_states, "p_do": do, "p_qdq": qdq, "p_dk": dk, "p_dg": dg,
    }  # fmt: skip
    launch(
        p.walk_of(
            grad_k_kernel,
            tile,
            triton.cdiv(K, tile.block_k),
            args,
            carry=not p.schedule.materialize,
            HAS_S=states is not None,
            HAS_DS=d_states is not None,
            HAS_ST=final_state is not None,
        )
    )
    tile = p.config.grad_v
    args = {"p_q": p.q, "p_k": p.k, "p_g": p.g, "p_ds": d_states, "p_do": do, "p_dv": dv, "p_ds0": walk_d_initial}
    launch(
        p.walk_of(
            grad_v_kernel,
            tile,
            triton.cdiv(V, tile.block_v),
            args,
            carry=walk_d_initial is not None,
            HAS_DS=d_states is not None,
            STORE_DS0=walk_d_initial is not None,
        )
    )
    return dq, dk, dv, dg, d_initial
