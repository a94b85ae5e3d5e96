"""Mamba's selective scan (Gu and Dao 2023, arXiv:2312.00752, section 3.3), the state on chip.

    h_t = e^{dt_t A} h_{t-1} + dt_t B_t x_t          y_t = C_t h_t + D x_t

for every channel on its own: x, dt, y [B, T, D]; B, C [B, T, N], shared by the channels; A [D, N] and D [D], constant
in time. A program scans over one block of tokens after another of a tile of channels. It leaves the state before every
CHUNK tokens; the backward pass goes back over these, from each of them forward again for the states of its blocks, and
then back:

    dh_t = C_t dy_t + e^{dt_{t+1} A} dh_{t+1}        with u = dt x and w_t = dh_t e^{dt_t A} h_{t-1}
    dx = dt sum_n dh B + D dy      ddt = x sum_n dh B + sum_n w A      dB = sum_d dh u      dC = sum_d dy h
    dA = sum_t w dt                dD = sum_t dy x

Sums over channels and over sequences are of partial sums in memory, in an order that is always the same.
"""

# Triton's language is not typed.
# mypy: disallow-untyped-defs=False
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from gla_kernels.launch import Launch, Launcher, execute
from gla_kernels.ops.validate import check_device
from gla_kernels.schedule import cdiv
from gla_kernels.tiles.operands import load_state, load_tile, store_state, store_tile
from glabench.systems.baselines.scan import compose

BLOCK = 8  # tokens that are scanned over at once
CHUNK = 64  # tokens between two states in memory
CHANNELS = 64  # of a program


@triton.jit
def load_decay(p_dt, i_t, T, D: tl.constexpr, o_d, b_a, BT: tl.constexpr):
    """e^{dt A} of a block's tokens, float32 [BT, BD, BN]; 1 from T on."""
    b_dt = load_tile(p_dt, i_t, T, D, o_d, D, BT).to(tl.float32)
    return tl.exp(b_dt[:, :, None] * b_a[None, :, :])


@triton.jit
def states_of(b_decay, b_u, b_b, b_h):
    """The states [BT, BD, BN] of a block's tokens from the one before it; u [BT, BD], B [BT, BN]."""
    b_decays, b_new = tl.associative_scan((b_decay, b_u[:, :, None] * b_b[:, None, :]), 0, compose)
    return b_new + b_decays * b_h[None, :, :]


@triton.jit
def row_of(b_x, i_row: tl.constexpr):
    """Row i_row of a tile [BT, BD, BN]."""
    m_row = tl.arange(0, b_x.shape[0])[:, None, None] == i_row
    return tl.sum(tl.where(m_row, b_x, 0.0), axis=0)


@triton.jit(do_not_specialize=["T"])
def selective_forward_kernel(
    p_x, p_dt, p_a, p_b, p_c, p_skip, p_y, p_h, T,
    D: tl.constexpr, N: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr, BN: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """y [B, T, D] and p_h [B, chunks, D, N], the state before each chunk of C tokens, of one tile of channels."""
    ND: tl.constexpr = (D + BD - 1) // BD
    i_p = tl.program_id(0)
    i_d, i_b = i_p % ND, (i_p // ND).to(tl.int64)
    o_d, o_n = i_d * BD + tl.arange(0, BD), tl.arange(0, BN)
    p_x, p_dt, p_y = p_x + i_b * T * D, p_dt + i_b * T * D, p_y + i_b * T * D
    p_b, p_c, p_h = p_b + i_b * T * N, p_c + i_b * T * N, p_h + i_b * tl.cdiv(T, C) * D * N
    b_a, b_skip = load_state(p_a, o_d, o_n, D, N), tl.load(p_skip + o_d, mask=o_d < D, other=0.0)
    b_h = tl.zeros([BD, BN], dtype=tl.float32)
    for i_t in range(0, T, BT):
        if i_t % C == 0:
            store_state(p_h, b_h, o_d, o_n, D, N)
            p_h += D * N
        b_x = load_tile(p_x, i_t, T, D, o_d, D, BT).to(tl.float32)
        b_dt = load_tile(p_dt, i_t, T, D, o_d, D, BT).to(tl.float32)
        b_b = load_tile(p_b, i_t, T, N, o_n, N, BT).to(tl.float32)
        b_c = load_tile(p_c, i_t, T, N, o_n, N, BT).to(tl.float32)
        b_states = states_of(tl.exp(b_dt[:, :, None] * b_a[None, :, :]), b_dt * b_x, b_b, b_h)
        b_y = tl.sum(b_states * b_c[:, None, :], axis=2) + b_skip[None, :] * b_x
        store_tile(p_y, b_y, i_t, T, D, o_d, D, BT)
        b_h = row_of(b_states, BT - 1)


@triton.jit(do_not_specialize=["T"])
def selective_backward_kernel(
    p_x, p_dt, p_a, p_b, p_c, p_skip, p_h, p_blocks, p_dy, p_dx, p_ddt, p_db, p_dc, p_da, p_dskip, T,
    D: tl.constexpr, N: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr, BN: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """dx, ddt [B, T, D] of one tile of channels, and its parts of dB, dC [B, tiles, T, N], dA [B, D, N] and dD [B, D].

    p_blocks [programs, C/BT, BD, BN]: room for the states before a chunk's blocks; it stays in the L2.
    """
    ND: tl.constexpr = (D + BD - 1) // BD
    i_p = tl.program_id(0).to(tl.int64)
    i_d, i_b = i_p % ND, i_p // ND
    o_d, o_n = i_d * BD + tl.arange(0, BD), tl.arange(0, BN)
    p_x, p_dt, p_dy = p_x + i_b * T * D, p_dt + i_b * T * D, p_dy + i_b * T * D
    p_dx, p_ddt, p_b, p_c = p_dx + i_b * T * D, p_ddt + i_b * T * D, p_b + i_b * T * N, p_c + i_b * T * N
    p_db, p_dc = p_db + i_p * T * N, p_dc + i_p * T * N
    p_blocks += i_p * (C // BT) * BD * BN + tl.arange(0, BD)[:, None] * BN + o_n[None, :]
    b_a, b_skip = load_state(p_a, o_d, o_n, D, N), tl.load(p_skip + o_d, mask=o_d < D, other=0.0)
    b_dh, b_da = tl.zeros([BD, BN], dtype=tl.float32), tl.zeros([BD, BN], dtype=tl.float32)
    b_dskip = tl.zeros([BD], dtype=tl.float32)
    n_c = tl.cdiv(T, C)
    for i in range(0, n_c):
        i_c = n_c - 1 - i
        b_h = load_state(p_h + (i_b * n_c + i_c) * D * N, o_d, o_n, D, N)
        for j in range(0, C // BT):
            tl.store(p_blocks + j * BD * BN, b_h)
            i_t = i_c * C + j * BT
            b_x = load_tile(p_x, i_t, T, D, o_d, D, BT).to(tl.float32)
            b_dt = load_tile(p_dt, i_t, T, D, o_d, D, BT).to(tl.float32)
            b_b = load_tile(p_b, i_t, T, N, o_n, N, BT).to(tl.float32)
            b_decay = tl.exp(b_dt[:, :, None] * b_a[None, :, :])
            b_h = row_of(states_of(b_decay, b_dt * b_x, b_b, b_h), BT - 1)
        tl.debug_barrier()
        for i_j in range(0, C // BT):
            j = C // BT - 1 - i_j
            i_t = i_c * C + j * BT
            b_x = load_tile(p_x, i_t, T, D, o_d, D, BT).to(tl.float32)
            b_dt = load_tile(p_dt, i_t, T, D, o_d, D, BT).to(tl.float32)
            b_dy = load_tile(p_dy, i_t, T, D, o_d, D, BT).to(tl.float32)
            b_b = load_tile(p_b, i_t, T, N, o_n, N, BT).to(tl.float32)
            b_c = load_tile(p_c, i_t, T, N, o_n, N, BT).to(tl.float32)
            b_decay, b_u = tl.exp(b_dt[:, :, None] * b_a[None, :, :]), b_dt * b_x
            b_states = states_of(b_decay, b_u, b_b, tl.load(p_blocks + j * BD * BN))
            b_kept = b_states - b_u[:, :, None] * b_b[:, None, :]  # e^{dt A} h_{t-1}
            store_tile(p_dc, tl.sum(b_dy[:, :, None] * b_states, axis=1), i_t, T, N, o_n, N, BT)
            b_next = load_decay(p_dt + D, i_t, T - 1, D, o_d, b_a, BT)
            b_passed, b_dstates = tl.associative_scan(
                (b_next, b_dy[:, :, None] * b_c[:, None, :]), 0, compose, reverse=True
            )
            b_dstates += b_passed * b_dh[None, :, :]
            b_dh = row_of(b_dstates, 0)
            store_tile(p_db, tl.sum(b_dstates * b_u[:, :, None], axis=1), i_t, T, N, o_n, N, BT)
            b_du = tl.sum(b_dstates * b_b[:, None, :], axis=2)
            b_w = b_dstates * b_kept
            b_ddt = b_x * b_du + tl.sum(b_w * b_a[None, :, :], axis=2)
            store_tile(p_dx, b_dt * b_du + b_skip[None, :] * b_dy, i_t, T, D, o_d, D, BT)
            store_tile(p_ddt, b_ddt, i_t, T, D, o_d, D, BT)
            b_da += tl.sum(b_w * b_dt[:, :, None], axis=0)
            b_dskip += tl.sum(b_dy * b_x, axis=0)
        tl.debug_barrier()
    store_state(p_da + i_b * D * N, b_da, o_d, o_n, D, N)
    tl.store(p_dskip + i_b * D + o_d, b_dskip, mask=o_d < D)


def _launch(kernel: Any, x: Tensor, b: Tensor, args: dict[str, Any]) -> Launch:
    """One program a sequence and tile of channels."""
    B, T, D = x.shape
    N = b.shape[-1]
    block_d = _channels(D)
    constexprs = {"D": D, "N": N, "BT": BLOCK, "BD": block_d, "BN": triton.next_power_of_2(N), "C": CHUNK}
    return Launch(kernel, (cdiv(D, block_d) * B,), {"p_x": x, "p_b": b, "T": T, **args}, constexprs, num_warps=8)


def _channels(D: int) -> int:
    return min(CHANNELS, triton.next_power_of_2(D))


def forward(
    x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, skip: Tensor, launch: Launcher
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """y [B, T, D], and the state before each chunk, float32 [B, chunks, D, N]."""
    B, T, D = x.shape
    y, states = torch.empty_like(x), x.new_empty(B, cdiv(T, CHUNK), D, b.shape[-1], dtype=torch.float32)
    args = {"p_dt": dt, "p_a": a, "p_c": c, "p_skip": skip, "p_y": y, "p_h": states}
    launch(_launch(selective_forward_kernel, x, b, args))
    return y, states


def backward(
    x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, skip: Tensor, states: Tensor, dy: Tensor, launch: Launcher
) -> tuple[Tensor, ...]:  # fmt: skip
    """dx, ddt, dA, dB, dC and dD, each like its input."""
    B, T, D = x.shape
    N, block_d = b.shape[-1], _channels(D)
    tiles = cdiv(D, block_d)
    dx, ddt = torch.empty_like(x), torch.empty_like(dt)
    db, dc = (x.new_empty(B, tiles, T, N, dtype=torch.float32) for _ in range(2))
    da, dskip = (x.new_empty(B, *shape, dtype=torch.float32) for shape in ((D, N), (D,)))
    blocks = x.new_empty(B * tiles, CHUNK // BLOCK, block_d, triton.next_power_of_2(N), dtype=torch.float32)
    args = {"p_dt": dt, "p_a": a, "p_c": c, "p_skip": skip, "p_h": states, "p_blocks": blocks, "p_dy": dy}
    args |= {"p_dx": dx, "p_ddt": ddt, "p_db": db, "p_dc": dc, "p_da": da, "p_dskip": dskip}
    launch(_launch(selective_backward_kernel, x, b, args))
    return dx, ddt, da.sum(0), db.sum(1).to(b.dtype), dc.sum(1).to(c.dtype), dskip.sum(0)


def selective_scan(x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, skip: Tensor) -> Tensor:
    """y [B, T, D] in the dtype of x; differentiable once in all of its inputs, deterministic.

    x, dt [B, T, D] and b, c [B, T, N]: bf16, fp16 or fp32, dt the step as it is used, after its softplus. a [D, N] < 0
    and skip [D]: float32. Raises ValueError for a device that kernels do not run on.
    """
    check_device(x.device)
    return _SelectiveScan.apply(*(t.contiguous() for t in (x, dt, a, b, c, skip)))


def launches(x: Tensor, b: Tensor, mode: str) -> list[Launch]:
    """What a call with inputs like x [B, T, D] and b [B, T, N] would launch in mode "fwd", "bwd" or "fwdbwd"."""
    x, b = x.to("meta"), b.to("meta")
    a = x.new_empty(x.shape[-1], b.shape[-1], dtype=torch.float32)
    fwd: list[Launch] = []
    bwd: list[Launch] = []
    _, states = forward(x, x, a, b, b, a[:, 0], fwd.append)
    backward(x, x, a, b, b, a[:, 0], states, x, bwd.append)
    return {"fwd": fwd, "bwd": bwd, "fwdbwd": fwd + bwd}[mode]


class _SelectiveScan(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, dt, a, b, c, skip):
        y, states = forward(x, dt, a, b, c, skip, execute)
        ctx.save_for_backward(x, dt, a, b, c, skip, states)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        x, dt, a, b, c, skip, states = ctx.saved_tensors
        return backward(x, dt, a, b, c, skip, states, dy.contiguous(), execute)
