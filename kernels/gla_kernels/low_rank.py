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

from .copies import sum_kernel
from .launch import Launch, execute, interpreting, settle_keys
from .projections import as_written
from .schedule import cdiv, padded
from .tiles.operands import dot, operand_type

MOST_RANK = 128
LEAST_ROWS = 1024  # with fewer, PyTorch's own are as fast
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
# Rows and columns of tiles, and how many of a loop are on their way: what was quickest on an H100.
GATES, GRAD_X, GRAD_W = (64, 64, 1), (64, 128, 3), (32, 128, 3)
SPLITS = 64  # programs that share the rows of dW
SUMMED = 256  # elements of a program that adds up what they have
ON_CPU = interpreting()  # asked once, and not while a graph is made


@triton.jit
def _rows_of(p_x, o_t, n_rows, R: tl.constexpr, BR: tl.constexpr):
    """Rows of x."""
    o_r = tl.arange(0, BR)
    return tl.load(p_x + o_t[:, None] * R + o_r[None, :], mask=(o_t < n_rows)[:, None] & (o_r < R)[None, :], other=0.0)


@triton.jit
def _columns_of(p_w, p_b, o_n, R: tl.constexpr, N: tl.constexpr, BR: tl.constexpr):
    """Rows of W, and b."""
    b_b = tl.zeros([o_n.shape[0]], dtype=tl.float32)
    if p_b is not None:
        b_b += tl.load(p_b + o_n, mask=o_n < N, other=0.0).to(tl.float32)
    return _rows_of(p_w, o_n, N, R, BR), b_b


@triton.jit
def _slope(b_z, p_dg, o_t, o_n, n_rows, factor, least, N: tl.constexpr, CLAMPED: tl.constexpr):
    """dz of a tile; 0 outside of it."""
    o_g = o_t[:, None].to(tl.int64) * N + o_n[None, :]
    b_dg = tl.load(p_dg + o_g, mask=(o_t < n_rows)[:, None] & (o_n < N)[None, :], other=0.0).to(tl.float32)
    b_e = tl.exp(-tl.abs(b_z))  # which does not overflow
    b_dz = b_dg * factor * tl.where(b_z > 0.0, b_e, 1.0) / (1.0 + b_e)
    if CLAMPED:
        b_dz = tl.where((tl.minimum(b_z, 0.0) - tl.log(1.0 + b_e)) * factor < least, 0.0, b_dz)
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
    b_w, b_b = _columns_of(p_w, p_b, o_n, R, N, BR)
    b_z = dot(_rows_of(p_x, o_t, n_rows, R, BR), tl.trans(b_w), DOT, PRECISION) + b_b[None, :]
    b_g = (tl.minimum(b_z, 0.0) - tl.log(1.0 + tl.exp(-tl.abs(b_z)))) * factor
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
    b_x, b_dx = _rows_of(p_x, o_t, n_rows, R, BR), tl.zeros([BT, BR], dtype=tl.float32)
    for i_n in range(0, N, BN):
        o_n = i_n + tl.arange(0, BN)
        b_w, b_b = _columns_of(p_w, p_b, o_n, R, N, BR)
        b_z = dot(b_x, tl.trans(b_w), DOT, PRECISION) + b_b[None, :]
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
    b_w, b_b = _columns_of(p_w, p_b, o_n, R, N, BR)
    for i_t in range(i_s * BT, n_rows, SPLITS * BT):
        o_t = i_t + tl.arange(0, BT)
        b_x = _rows_of(p_x, o_t, n_rows, R, BR)
        b_z = dot(b_x, tl.trans(b_w), DOT, PRECISION) + b_b[None, :]
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
    rows, columns, _ = GATES
    programs = cdiv(_rows(x), rows) * cdiv(weight.shape[0], columns)
    execute(_launch(gates_kernel, programs, GATES, {"p_g": g}, x, weight, bias, normalizer, least))
    return g


@torch.library.custom_op("gla_kernels::low_rank_gates_backward", mutates_args=())
def _backward(
    dg: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, normalizer: float, least: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """dx, dW and db, which has no elements without a bias."""
    N, R = weight.shape
    given = x, weight, bias, normalizer, least
    dx, dg = x.new_empty(x.shape), dg.contiguous()
    execute(_launch(gates_grad_x_kernel, cdiv(_rows(x), GRAD_X[0]), GRAD_X, {"p_dg": dg, "p_dx": dx}, *given))
    dw = x.new_empty(SPLITS, N, R, dtype=torch.float32)
    db = None if bias is None else x.new_empty(SPLITS, N, dtype=torch.float32)
    programs, into = SPLITS * cdiv(N, GRAD_W[1]), {"p_dg": dg, "p_dw": dw, "p_db": db}
    execute(_launch(gates_grad_w_kernel, programs, GRAD_W, into, *given))
    return dx, _sum(dw, weight), x.new_empty(0) if db is None or bias is None else _sum(db, bias)


def _sum(parts: Tensor, like: Tensor) -> Tensor:
    """The sum of SPLITS parts, in the dtype of what it is the gradient of."""
    found = torch.empty_like(like, memory_format=torch.contiguous_format)
    args = {"p_x": parts, "p_y": found, "n": found.numel()}
    execute(Launch(sum_kernel, (cdiv(found.numel(), SUMMED),), args, {"PARTS": SPLITS, "BLOCK": SUMMED}))
    return found


def _launch(
    kernel: Any, programs: int, tile: tuple[int, int, int], more: dict[str, Any], x: Tensor, weight: Tensor,
    bias: Tensor | None, normalizer: float, least: float | None,
) -> Launch:  # fmt: skip
    """A launch of one of the three kernels."""
    (N, R), (dot_type, precision) = weight.shape, operand_type(x.dtype, weight.shape[1])
    args = more | {
        "p_x": x.contiguous(), "p_w": weight.contiguous(), "p_b": bias, "n_rows": _rows(x), "factor": 1.0 / normalizer,
        "least": 0.0 if least is None else least,
    }  # fmt: skip
    sizes = {"R": R, "N": N, "BT": tile[0], "BN": tile[1], "BR": padded(R), "SPLITS": SPLITS}
    how = {"CLAMPED": least is not None, "DOT": dot_type, "PRECISION": precision}
    return Launch(kernel, (programs,), args, sizes | how, num_stages=tile[2])


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
