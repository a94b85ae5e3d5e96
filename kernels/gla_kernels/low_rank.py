"""Gates from a projection of low rank, as the GLA layer has them (Yang et al. 2024, arXiv 2312.06635, section 4.4):

    z = x W^T + b,  g = max(logsigmoid(z) / normalizer, least)            x [.., R], W [N, R], b [N]
    dz = dg sigmoid(-z) / normalizer, or 0 where g is the least;  dx = dz W,  dW = dz^T x,  db = the sum of dz's rows

Of all this x is small, and g and dg are as large as keys. By PyTorch z, dz and what is between them come from memory
and go there, and z is kept for the backward pass. Here they never leave the chip: one kernel makes g, one dx, one dW
and db, the last two from z made again. z is in float32 throughout; dz enters products as the tensor cores take x.
"""

# mypy: disallow-untyped-defs=False
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import Launch, execute, interpreting, settle_keys
from .projections import as_written
from .schedule import cdiv, padded
from .tiles.operands import dot, operand_type

MOST_RANK = 128
LEAST_ROWS = 1024  # with fewer, PyTorch's own are as fast
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
ROWS, COLUMNS = 64, 128  # of a tile
SPLITS = 32  # programs that share the rows of dW
ON_CPU = interpreting()  # asked once, and not while a graph is made


@triton.jit
def _tile(
    p_x, p_w, p_b, o_t, o_n, n_rows, R: tl.constexpr, N: tl.constexpr, BR: tl.constexpr, DOT: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """x, W and z of a tile."""
    o_r = tl.arange(0, BR)
    b_x = tl.load(p_x + o_t[:, None] * R + o_r[None, :], mask=(o_t < n_rows)[:, None] & (o_r < R)[None, :], other=0.0)
    b_w = tl.load(p_w + o_n[:, None] * R + o_r[None, :], mask=(o_n < N)[:, None] & (o_r < R)[None, :], other=0.0)
    b_z = dot(b_x, tl.trans(b_w), DOT, PRECISION)
    if p_b is not None:
        b_z += tl.load(p_b + o_n, mask=o_n < N, other=0.0).to(tl.float32)[None, :]
    return b_x, b_w, b_z


@triton.jit
def _logsigmoid(b_z):
    """log(1 / (1 + e^-z)). Where e^-|z| is small, 1 + it has lost of it what the series has not."""
    b_e = tl.exp(-tl.abs(b_z))
    b_log = tl.where(b_e < 1e-3, b_e * (1.0 - 0.5 * b_e), tl.log(1.0 + b_e))
    return tl.minimum(b_z, 0.0) - b_log


@triton.jit
def _slope(b_z, p_dg, o_t, o_n, n_rows, factor, least, N: tl.constexpr, CLAMPED: tl.constexpr):
    """dz of a tile; 0 outside of it."""
    o_g = o_t[:, None].to(tl.int64) * N + o_n[None, :]
    b_dg = tl.load(p_dg + o_g, mask=(o_t < n_rows)[:, None] & (o_n < N)[None, :], other=0.0).to(tl.float32)
    b_e = tl.exp(-tl.abs(b_z))  # which does not overflow
    b_dz = b_dg * factor * tl.where(b_z > 0.0, b_e, 1.0) / (1.0 + b_e)
    if CLAMPED:
        b_dz = tl.where(_logsigmoid(b_z) * factor < least, 0.0, b_dz)
    return b_dz


@triton.jit
def gates_kernel(
    p_x, p_w, p_b, p_g, n_rows, factor, least,
    R: tl.constexpr, N: tl.constexpr, BT: tl.constexpr, BN: tl.constexpr, BR: tl.constexpr,
    CLAMPED: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """g [n_rows, N] of x [n_rows, R]; factor: one over the normalizer."""
    NN: tl.constexpr = (N + BN - 1) // BN
    i_p = tl.program_id(0)
    o_t, o_n = i_p // NN * BT + tl.arange(0, BT), i_p % NN * BN + tl.arange(0, BN)
    b_z = _tile(p_x, p_w, p_b, o_t, o_n, n_rows, R, N, BR, DOT, PRECISION)[2]
    b_g = _logsigmoid(b_z) * factor
    if CLAMPED:
        b_g = tl.maximum(b_g, least)
    o_g = o_t[:, None].to(tl.int64) * N + o_n[None, :]
    tl.store(p_g + o_g, b_g.to(p_g.dtype.element_ty), mask=(o_t < n_rows)[:, None] & (o_n < N)[None, :])


@triton.jit
def gates_grad_x_kernel(
    p_x, p_w, p_b, p_dg, p_dx, n_rows, factor, least,
    R: tl.constexpr, N: tl.constexpr, BT: tl.constexpr, BN: tl.constexpr, BR: tl.constexpr,
    CLAMPED: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dx [n_rows, R]."""
    o_t, o_r = tl.program_id(0) * BT + tl.arange(0, BT), tl.arange(0, BR)
    b_dx = tl.zeros([BT, BR], dtype=tl.float32)
    for i_n in range(0, N, BN):
        o_n = i_n + tl.arange(0, BN)
        b_x, b_w, b_z = _tile(p_x, p_w, p_b, o_t, o_n, n_rows, R, N, BR, DOT, PRECISION)
        b_dz = _slope(b_z, p_dg, o_t, o_n, n_rows, factor, least, N, CLAMPED)
        b_dx += dot(b_dz, b_w, DOT, PRECISION)
    o_x = o_t[:, None] * R + o_r[None, :]
    tl.store(p_dx + o_x, b_dx.to(p_dx.dtype.element_ty), mask=(o_t < n_rows)[:, None] & (o_r < R)[None, :])


@triton.jit
def gates_grad_w_kernel(
    p_x, p_w, p_b, p_dg, p_dw, p_db, n_rows, factor, least,
    R: tl.constexpr, N: tl.constexpr, BT: tl.constexpr, BN: tl.constexpr, BR: tl.constexpr, SPLITS: tl.constexpr,
    CLAMPED: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """What every SPLITS-th tile of rows adds to dW, in p_dw [SPLITS, N, R], and to db, in p_db [SPLITS, N]."""
    i_s, i_n = tl.program_id(0) % SPLITS, tl.program_id(0) // SPLITS
    o_n, o_r = i_n * BN + tl.arange(0, BN), tl.arange(0, BR)
    b_dw, b_db = tl.zeros([BN, BR], dtype=tl.float32), tl.zeros([BN], dtype=tl.float32)
    for i_t in range(i_s * BT, n_rows, SPLITS * BT):
        o_t = i_t + tl.arange(0, BT)
        b_x, b_w, b_z = _tile(p_x, p_w, p_b, o_t, o_n, n_rows, R, N, BR, DOT, PRECISION)
        b_dz = _slope(b_z, p_dg, o_t, o_n, n_rows, factor, least, N, CLAMPED)
        b_dw += dot(tl.trans(b_dz), b_x, DOT, PRECISION)
        b_db += tl.sum(b_dz, axis=0)
    o_w = (i_s * N + o_n)[:, None] * R + o_r[None, :]
    tl.store(p_dw + o_w, b_dw, mask=(o_n < N)[:, None] & (o_r < R)[None, :])
    if p_db is not None:
        tl.store(p_db + i_s * N + o_n, b_db, mask=o_n < N)


settle_keys(gates_kernel, gates_grad_x_kernel, gates_grad_w_kernel)


def serves(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether `low_rank_gates` can take these: of one dtype that it knows, and is to stay, on a GPU, and so many rows
    that it pays."""
    if not (x.is_cuda or ON_CPU) or x.dtype not in DTYPES or weight.shape[1] > MOST_RANK or _rows(x) < LEAST_ROWS:
        return False
    return all(y.dtype == x.dtype and y.device == x.device for y in (weight, bias) if y is not None) and as_written(x)


def _rows(x: Tensor) -> int:
    return x.numel() // x.shape[-1]


@torch.library.custom_op("gla_kernels::low_rank_gates", mutates_args=())
def low_rank_gates(
    x: Tensor, weight: Tensor, bias: Tensor | None, normalizer: float, least: float | None, dtype: torch.dtype
) -> Tensor:
    """g [.., N] in ``dtype`` of x [.., R], weight [N, R] and bias [N] or None, for which `serves` is true. least: no
    gate is less; None for no such bound. Differentiable once."""
    g = x.new_empty(*x.shape[:-1], weight.shape[0], dtype=dtype)
    how = _shared(x, weight, bias, normalizer, least)
    grid = cdiv(_rows(x), ROWS) * cdiv(weight.shape[0], COLUMNS)
    execute(Launch(gates_kernel, (grid,), how[0] | {"p_g": g}, how[1]))
    return g


@torch.library.custom_op("gla_kernels::low_rank_gates_backward", mutates_args=())
def _backward(
    dg: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, normalizer: float, least: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """dx, dW and db, which has no elements without a bias."""
    (N, R), n = weight.shape, _rows(x)
    args, constants = _shared(x, weight, bias, normalizer, least)
    args |= {"p_dg": dg.contiguous(), "p_dx": x.new_empty(x.shape)}
    execute(Launch(gates_grad_x_kernel, (cdiv(n, ROWS),), args, constants))
    dw = x.new_empty(SPLITS, N, R, dtype=torch.float32)
    db = None if bias is None else x.new_empty(SPLITS, N, dtype=torch.float32)
    args |= {"p_dw": dw, "p_db": db}
    execute(Launch(gates_grad_w_kernel, (SPLITS * cdiv(N, COLUMNS),), args, constants | {"SPLITS": SPLITS}))
    none = x.new_empty(0) if db is None else db.sum(0).to(x.dtype)
    return args["p_dx"], dw.sum(0).to(x.dtype), none


def _shared(
    x: Tensor, weight: Tensor, bias: Tensor | None, normalizer: float, least: float | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments of all three kernels."""
    (N, R), (dot_type, precision) = weight.shape, operand_type(x.dtype, weight.shape[1])
    args = {
        "p_x": x.contiguous(), "p_w": weight.contiguous(), "p_b": bias, "n_rows": _rows(x), "factor": 1.0 / normalizer,
        "least": 0.0 if least is None else least,
    }  # fmt: skip
    sizes = {"R": R, "N": N, "BT": ROWS, "BN": COLUMNS, "BR": padded(R)}
    return args, sizes | {"CLAMPED": least is not None, "DOT": dot_type, "PRECISION": precision}


@low_rank_gates.register_fake
def _shape(
    x: Tensor, weight: Tensor, bias: Tensor | None, normalizer: float, least: float | None, dtype: torch.dtype
) -> Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0], dtype=dtype)


@_backward.register_fake
def _shapes(
    dg: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, normalizer: float, least: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    none = x.new_empty(0) if bias is None else x.new_empty(bias.shape)
    return x.new_empty(x.shape), x.new_empty(weight.shape), none


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, bias, ctx.normalizer, ctx.least, _ = inputs
    ctx.save_for_backward(x, weight, bias)


def _gradients(ctx: Any, dg: Tensor) -> tuple[Any, ...]:
    x, weight, bias = ctx.saved_tensors
    dx, dw, db = torch.ops.gla_kernels.low_rank_gates_backward(dg, x, weight, bias, ctx.normalizer, ctx.least)
    return dx, dw, None if bias is None else db, None, None, None


low_rank_gates.register_autograd(_gradients, setup_context=_setup)

__all__ = ["low_rank_gates", "serves"]
