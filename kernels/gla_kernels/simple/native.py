"""All gradients of a slice in one walk back over time, by the kernel for Hopper alone (hopper/grad_walk.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..launch import Launch
from ..tiles.slices import Slice
from .call import Call, chunks_of
from .hopper import simple_grad_walk_hopper_kernel

if TYPE_CHECKING:
    from .passes import Gradients


def serves(call: Call) -> bool:
    """Whether the kernel makes the call's gradients."""
    on_gpu = call.q.device.type != "cpu"  # where the interpreter runs, which knows no Gluon
    return simple_grad_walk_hopper_kernel is not None and on_gpu and call.walks_natively


def walk_back(
    call: Call, sums: Tensor, piece: Slice, do: Tensor, states: Tensor, at: Tensor | None, after: Tensor | None,
    into: Gradients,
) -> Launch:  # fmt: skip
    """Fill the slice's rows of the gradients, those of q and k in parts where heads share them (heads.py), and
    ``after`` with the gradient of the state before the slice. states: of its chunks; at: the gradient of the state
    after it, or None."""
    args: dict[str, Any] = {
        "p_q": call.q, "p_k": call.k, "p_v": call.v, "p_do": do, "p_s": states, "p_c": sums, "p_dst": at,
        "p_ds0": after, "p_dg": into.g, "p_dq": into.q, "p_dk": into.k, "p_dv": into.v,
    }  # fmt: skip
    flags = {
        "HAS_DST": at is not None,
        "STORE_DS0": after is not None,
        "GRAD_G": into.g is not None,
        "GK": call.sharing[0],
    }
    args |= chunks_of(piece, args)
    return call.launch_of(
        simple_grad_walk_hopper_kernel, call.native_tile(), 1, args, V_FIRST=call.v_first, **flags
    )  # fmt: skip
