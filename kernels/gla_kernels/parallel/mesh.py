"""Tensors of `torch.distributed.tensor`, sharded along T, as this rank's own ones, and results as such again."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ..ops.form import Inputs

TOKENS = 1  # the axis T


class Mesh(NamedTuple):
    """A mesh of one dimension, and how many tokens a tensor on it has in all."""

    mesh: Any
    tokens: int


def local_tensors(x: Inputs, group: Any) -> tuple[Inputs, Any, Mesh | None]:
    """The tensors of this rank, the group, and where results are to be; None if not on a mesh.

    Raises ValueError, naming the argument, for tensors that are sharded otherwise.
    """
    if not dist.is_available():
        return x, group, None
    from torch.distributed.tensor import DTensor, Replicate, Shard

    if not isinstance(x.q, DTensor):
        return x, group, None
    mesh = x.q.device_mesh
    if mesh.ndim != 1 or group is not None:
        got = f"{mesh.ndim} dimensions" if group is None else "both"
        raise ValueError(f"group: expected None and tensors on a mesh of one dimension, or a group, got {got}")
    own: dict[str, Tensor] = {}
    for name, y in x._asdict().items():
        if y is None:
            continue
        tokens = name not in ("initial_state", "cu_seqlens")
        if isinstance(y, DTensor):
            placed = y.placements[0]
            wrong = not placed.is_shard(TOKENS) if tokens else not placed.is_replicate()
            if wrong or y.device_mesh != mesh:
                wanted = Shard(TOKENS) if tokens else Replicate()
                raise ValueError(f"{name}: expected {wanted} on the mesh of q, got {placed} on {y.device_mesh}")
            own[name] = y.to_local()
        elif tokens:
            raise ValueError(f"{name}: expected a DTensor as q is, got {type(y).__name__}")
        else:
            own[name] = y
    return x._replace(**own), mesh.get_group(), Mesh(mesh, x.q.shape[TOKENS])


def on_mesh(to: Mesh | None, o: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """o as a tensor that is sharded along T; the state is this rank's own."""
    if to is None:
        return o, state
    from torch.distributed.tensor import DTensor, Shard

    B, _, H, V = o.shape
    shape, stride = torch.Size((B, to.tokens, H, V)), (to.tokens * H * V, H * V, V, 1)
    sharded: Tensor = DTensor.from_local(o, to.mesh, [Shard(TOKENS)], run_check=False, shape=shape, stride=stride)
    return sharded, state
