"""Chunks of 64 rows by themselves, each with a state before it and the gradient of the one after it, and what is right
of them by the float64 recurrence: for kernels that work on one chunk at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from gla_kernels import Plan, Schedule, default_config
from gla_kernels.chunk.problem import Problem
from gla_kernels.plan.apply import problem_of
from gla_kernels.tiles.gates import LEAST_GATE, LOG2E, ROW_BLOCK_LIMIT_16_BIT

LEAST_HALF = -0.5 * ROW_BLOCK_LIMIT_16_BIT.value  # log2 of half of the decay that one anchor serves
# Of the norm. To round the result to bfloat16 costs 1.66e-3 alone.
ERROR = 2.2e-3
# Of the norm of q dq, of which dg is a difference.
DIFFERENCE = 1e-4
LIKE = {"o": "v", "dq": "q", "dk": "k", "dv": "v", "dg": "g"}


class Chunks:
    """Random chunks, with gates made of logsigmoid(N(0, 1)) [B, T, H, K].

    given: q, k, g [B, T, H, K], v, do [B, T, H, V], the states s before chunks and the gradients ds of those after them
    [B*H, n, K, V], all bfloat16, but for g in ``gate_type``. halves: log2 of half of each chunk's decay, float32
    [B*H, n, K], of gates that count as LEAST_GATE at least. right: o, dq, dk, dv, dg, float64, on the CPU.
    """

    def __init__(
        self, shape: tuple[int, int, int, int, int], gates: Callable[[Tensor], Tensor],
        gate_type: torch.dtype = torch.bfloat16, device: str = "cpu",
    ) -> None:  # fmt: skip
        B, T, H, K, V = shape
        torch.manual_seed(0)
        n = -(-T // 64)
        sizes = {"q": (B, T, H, K), "k": (B, T, H, K), "v": (B, T, H, V), "do": (B, T, H, V)}
        x = {name: torch.randn(size) for name, size in sizes.items()}
        x["g"] = gates(torch.nn.functional.logsigmoid(torch.randn(B, T, H, K)))
        x |= {name: torch.randn(B * H, n, K, V) for name in ("s", "ds")}
        x = {name: one.to(gate_type if name == "g" else torch.bfloat16) for name, one in x.items()}

        def apart(rows: Tensor) -> Tensor:
            """[B, T, H, D] as [B*H, n, 64, D], zeros from T on."""
            padded = torch.nn.functional.pad(rows.double(), (0, 0, 0, 0, 0, n * 64 - T))
            return padded.view(B, n, 64, H, -1).permute(0, 3, 1, 2, 4).reshape(B * H, n, 64, -1)

        def together(rows: Tensor) -> Tensor:
            return rows.view(B, H, n, 64, -1).permute(0, 2, 3, 1, 4).reshape(B, n * 64, H, -1)[:, :T]

        q, k, v, g, do = (apart(x[name]).requires_grad_() for name in ("q", "k", "v", "g", "do"))
        state, self.scale, outputs = x["s"].double(), K**-0.5, []
        for i in range(64):
            state = g[:, :, i].exp()[..., None] * state + k[:, :, i, :, None] * v[:, :, i, None, :]
            outputs.append(torch.einsum("bnk,bnkv->bnv", self.scale * q[:, :, i], state))
        o = torch.stack(outputs, 2)
        grads = torch.autograd.grad((o * do).sum() + (state * x["ds"].double()).sum(), (q, k, v, g))
        found = zip(("o", "dq", "dk", "dv", "dg"), (o.detach(), *grads), strict=True)
        self.right = {name: together(one) for name, one in found}
        g = apart(x["g"]).clamp(min=LEAST_GATE.value)
        self.halves = (0.5 * LOG2E.value * g.sum(2)).float().contiguous().to(device)
        self.given = {name: one.to(device) for name, one in x.items()}

    @property
    def mild(self) -> Tensor:
        """[B*H, n, 1]: which chunks one anchor serves."""
        return self.halves.amin(-1, keepdim=True) > LEAST_HALF

    @property
    def mild_tiles(self) -> Tensor:
        """[B*H, n, K]: which 64 features of which chunks one anchor serves."""
        return (self.halves.unflatten(-1, (-1, 64)).amin(-1) > LEAST_HALF).repeat_interleave(64, -1)

    def problem(self) -> Problem:
        """What kernels run for: materialized states, chunks of one row block."""
        x, schedule = self.given, Schedule(64)
        K, V = x["q"].shape[-1], x["v"].shape[-1]
        config = replace(default_config(K, V, 2, schedule), block_t=64)
        return problem_of(x["q"], x["k"], x["v"], x["g"], self.scale, None, Plan(schedule, config))

    def arguments(self, *outputs: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Tensors by a kernel's names, and of these the outputs, which are NaN."""
        into = {name: torch.full_like(self.given[LIKE[name]], torch.nan) for name in outputs}
        return {f"p_{name}": one for name, one in (self.given | into).items()} | {"p_h": self.halves}, into

    def check(self, into: dict[str, Tensor], here: Tensor) -> None:
        """That what ``here`` is true of, [B*H, n, 1 or columns], is right, and the rest left alone."""
        B, T, H, _ = self.given["q"].shape
        here = here.cpu().unflatten(0, (B, H)).repeat_interleave(64, 2).transpose(1, 2)[:, :T]
        for name, found in into.items():
            m, got, right = here.expand(found.shape), found.cpu().double(), self.right[name]
            assert bool(got[~m].isnan().all()), f"{name}: something was written that is another kernel's"
            size = ERROR * right[m].norm()
            if name == "dg":
                size += DIFFERENCE * (self.given["q"].cpu().double() * self.right["dq"])[m].norm()
            error = (got - right)[m].norm()
            assert error <= size, f"{name}: off by {error:.2e}, allowed {size:.2e}"
