"""One call as the host code of every form sees it: sizes, buffers of states, and launches.

Nothing here touches a GPU.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..launch import Launch, described
from ..schedule import Tile
from .descriptors import blocks
from .operands import operand_type
from .slices import Slice


class CallContext:
    """The inputs of one call, as a form's own dataclass has them: q [B, T, H, K] and v [B, T, H, V] among them."""

    q: Tensor
    v: Tensor

    @cached_property
    def dims(self) -> tuple[int, int, int, int, int]:
        """B, T, H, K, V."""
        B, T, H, K = self.q.shape
        return B, T, H, K, self.v.shape[-1]

    @cached_property
    def slices(self) -> list[Slice]:
        """The runs of chunks whose states are in memory at once, in order; all are where states are materialized."""
        raise NotImplementedError

    @property
    def in_bfloat16(self) -> bool:
        """Whether products have operands of 16 bits: all but bfloat16 is wider there (`operand_type`)."""
        return self.q.dtype == torch.bfloat16

    @property
    def state_dtype(self) -> torch.dtype:
        """The chunks' states: as they enter a bf16 product, or float32. float16 lacks the range."""
        return torch.bfloat16 if self.in_bfloat16 else torch.float32

    def state_buffer(self) -> Tensor:
        """Room for the states of one slice's chunks, [B*H, chunks, K, V]: every slice in turn has it."""
        B, _, H, K, V = self.dims
        return self.q.new_empty(B * H, self.slices[0].chunks, K, V, dtype=self.state_dtype)

    def one_state(self) -> Tensor:
        """Room for one state of every head, or the gradient of one, float32 [B, H, K, V]."""
        B, _, H, K, V = self.dims
        return self.q.new_empty(B, H, K, V, dtype=torch.float32)

    def operands(self, dim: int) -> dict[str, Any]:
        """Compile-time arguments that say what products are made of, where they sum over so many features."""
        dot, precision = operand_type(self.q.dtype, dim)
        return {"DOT": dot, "PRECISION": precision}

    def launched(
        self, kernel: Any, programs: int, args: dict[str, Any], constexprs: dict[str, Any], **how: Any
    ) -> Launch:
        """A launch of so many programs a head. how: `Launch`'s other fields, of `tiled` if tiles are a `Tile`."""
        B, T, H, _, _ = self.dims
        return Launch(kernel, (programs * B * H,), {"T": T, "H": H} | args, constexprs, **how)

    def tiled(self, kernel: Any, tile: Tile, rows: int, args: dict[str, Any]) -> dict[str, Any]:
        """Fields of a launch with such a tile and blocks of so many rows: how it is compiled, its descriptors."""
        names = described(kernel) if tile.descriptors else ()
        return {
            "num_warps": tile.num_warps,
            "num_stages": tile.num_stages,
            "max_registers": tile.max_registers,
            "blocks": blocks(args, names, rows, tile.block_k, tile.block_v),
        }
