"""Gates from a projection of low rank, as the GLA layer has them (Yang et al. 2024, arXiv 2312.06635, section 4.4):

    z = x W^T + b,  g = max(logsigmoid(z) / normalizer, least)            x [.., R], W [N, R], b [N]
    dz = dg sigmoid(-z) / normalizer, or 0 where g is the least;  dx = dz W,  dW = dz^T x,  db = the sum of dz's rows

Of all this x is small, and g and dg are as large as keys. By PyTorch z, dz and what is between them come from memory
and go there, and z is kept for the backward pass. Here they never leave the chip: one kernel makes g, and another reads
dg once for dx, dW and db, with z made again. z is in float32 throughout; dz enters products as the tensor cores take x.
Kernels have z log2(e) for z, so that exp2 serves.
"""

# mypy: disallow-untyped-defs=False
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .copies import sum_of_parts
from .launch import Launch, execute, interpreting, settle_keys
from .projections import as_written
from .schedule import cdiv, padded
from .tiles.operands import dot, operand_type

MOST_RANK = 64
LEAST_ROWS = 1024  # with fewer, PyTorch's own are as fast
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
# Rows and columns of tiles, how many of a loop are on their way, and programs: what was quickest on an H100 in bfloat16
# with a rank of 16. Other operands would not all find registers in such tiles.
GATES, GRADS, OTHERS = (64, 128, 1, 512), (64, 128, 3, 256), (32, 64, 3, 512)
MOST_BF16_RANK = 32  # of the first two
SUMMED = 256  # elements of a program that adds up what others have
ON_CPU = interpreting()  # asked once, and not while a graph is made
LOG2E, LN2 = tl.constexpr(1.4426950408889634), tl.constexpr(0.6931471805599453)
ONES = tl.constexpr(16)  # columns, as few as a product takes


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
    return _rows_of(p_w, o_n, N, R, BR), b_b * LOG2E


@triton.jit
def _tile(o_t, o_n, n_rows, N: tl.constexpr):
    """Where a tile of g lies, and what of it there is."""
    return o_t[:, None].to(tl.int64) * N + o_n[None, :], (o_t < n_rows)[:, None] & (o_n < N)[None, :]


@triton.jit
def _gates(b_z, factor):
    """Of z log2(e). log(1 + e) is a polynomial, within 2^-21 of it for every e up to 1: a logarithm of 1 + e would have
    lost a small e, and takes twice as many instructions."""
    b_e = tl.exp2(-tl.abs(b_z))  # which does not overflow
    b_p = b_e * -0.008537974663408221 + 0.04408503056451529
    b_p = b_p * b_e - 0.10767484886722645
    b_p = b_p * b_e + 0.17744719897620348
    b_p = b_p * b_e - 0.2449525058555472
    b_p = b_p * b_e + 0.33275435440522516
    b_p = b_p * b_e - 0.4999740131502345
    b_p = b_p * b_e + 0.9999998045824117
    return (tl.minimum(b_z, 0.0) * LN2 - b_p * b_e) * factor


@triton.jit
def _one_over(b_x, PLAIN: tl.constexpr):
    """Within float32's rounding or so: a division would be five times as many instructions."""
    if PLAIN:
        b_y = 1.0 / b_x
    else:
        b_y = tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [b_x], tl.float32, is_pure=True, pack=1)
    return b_y


@triton.jit
def gates_kernel(
    p_x, p_w, p_b, p_g, n_rows, n_splits, factor, least,
    R: tl.constexpr, N: tl.constexpr, BT: tl.constexpr, BN: tl.constexpr, BR: tl.constexpr,
    CLAMPED: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """g [n_rows, N] of x [n_rows, R]: of BN columns every n_splits-th tile. factor: one over the normalizer."""
    NN: tl.constexpr = (N + BN - 1) // BN
    i_s, o_n = tl.program_id(0) // NN, tl.program_id(0) % NN * BN + tl.arange(0, BN)
    b_w, b_b = _columns_of(p_w, p_b, o_n, R, N, BR)
    for i_t in range(i_s * BT, n_rows, n_splits * BT):
        o_t = i_t + tl.arange(0, BT)
        b_z = dot(_rows_of(p_x, o_t, n_rows, R, BR), tl.trans(b_w), DOT, PRECISION) * LOG2E + b_b[None, :]
        b_g = _gates(b_z, factor)
        if CLAMPED:
            b_g = tl.maximum(b_g, least)
        o_g, m_g = _tile(o_t, o_n, n_rows, N)
        tl.store(p_g + o_g, b_g.to(p_g.dtype.element_ty), mask=m_g)


@triton.jit
def gates_grad_kernel(
    p_x, p_w, p_b, p_dg, p_dx, p_dw, p_db, n_rows, n_splits, factor, least,
    R: tl.constexpr, N: tl.constexpr, BT: tl.constexpr, BN: tl.constexpr, BR: tl.constexpr,
    CLAMPED: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr, PLAIN: tl.constexpr,
):  # fmt: skip
    """Parts of the gradients, in float32 and times the normalizer: what BN columns add to dx, in p_dx [NN, n_rows, R];
    what every n_splits-th tile of rows adds to dW and db, in p_dw [n_splits, N, R] and p_db [n_splits, N]."""
    NN: tl.constexpr = (N + BN - 1) // BN
    i_s, i_n = tl.program_id(0) // NN, tl.program_id(0) % NN
    o_n, o_r = i_n * BN + tl.arange(0, BN), tl.arange(0, BR)
    b_dw, b_db = tl.zeros([BN, BR], dtype=tl.float32), tl.zeros([BN, ONES], dtype=tl.float32)
    b_ones = tl.full([BT, ONES], 1.0, dtype=tl.float32)
    b_w, b_b = _columns_of(p_w, p_b, o_n, R, N, BR)
    p_dx += tl.cast(i_n, tl.int64) * n_rows * R
    for i_t in range(i_s * BT, n_rows, n_splits * BT):
        o_t = i_t + tl.arange(0, BT)
        b_x = _rows_of(p_x, o_t, n_rows, R, BR)
        o_g, m_g = _tile(o_t, o_n, n_rows, N)
        b_dz = tl.load(p_dg + o_g, mask=m_g, other=0.0).to(tl.float32)
        b_z = dot(b_x, tl.trans(b_w), DOT, PRECISION) * LOG2E + b_b[None, :]
        b_dz *= _one_over(1.0 + tl.exp2(b_z), PLAIN)  # 0 where exp2 overflows, as it should be
        if CLAMPED:
            b_dz = tl.where(_gates(b_z, factor) < least, 0.0, b_dz)
        b_dw += dot(tl.trans(b_dz), b_x, DOT, PRECISION)
        if p_db is not None:  # a product: sums over rows are in other threads, and took a third of all instructions
            b_db += dot(tl.trans(b_dz), b_ones, DOT, PRECISION)
        b_dx = dot(b_dz, b_w, DOT, PRECISION)
        tl.store(p_dx + o_t[:, None] * R + o_r[None, :], b_dx, mask=(o_t < n_rows)[:, None] & (o_r < R)[None, :])
    o_w = (i_s * N + o_n)[:, None] * R + o_r[None, :]
    tl.store(p_dw + o_w, b_dw, mask=(o_n < N)[:, None] & (o_r < R)[None, :])
    if p_db is not None:
        tl.store(p_db + i_s * N + o_n, tl.sum(b_db, axis=1) / ONES, mask=o_n < N)


@triton.jit
def gates_sums_kernel(
    p_dx_parts, p_dw_parts, p_db_parts, p_dx, p_dw, p_db, n_x, factor,
    N_W: tl.constexpr, N_B: tl.constexpr, TILES: tl.constexpr, SPLITS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradients [n_x], [N_W] and [N_B] of their parts; N_B is 0 without a bias."""
    W: tl.constexpr = (N_W + BLOCK - 1) // BLOCK
    B: tl.constexpr = (N_B + BLOCK - 1) // BLOCK
    i_p = tl.program_id(0)
    if i_p < W:  # those with the most parts first
        sum_of_parts(p_dw_parts, p_dw, i_p, N_W, factor, SPLITS, BLOCK)
    elif i_p < W + B:
        if N_B > 0:
            sum_of_parts(p_db_parts, p_db, i_p - W, N_B, factor, SPLITS, BLOCK)
    else:
        sum_of_parts(p_dx_parts, p_dx, i_p - W - B, n_x, factor, TILES, BLOCK)


settle_keys(gates_kernel, gates_grad_kernel, gates_sums_kernel)


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
    execute(_launch(gates_kernel, _how(GATES, x), {"p_g": g}, {}, x, weight, bias, normalizer, least))
    return g


@torch.library.custom_op("gla_kernels::low_rank_gates_backward", mutates_args=())
def _backward(
    dg: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, normalizer: float, least: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """dx, dW and db, which has no elements without a bias."""
    (N, R), how = weight.shape, _how(GRADS, x)
    tiles, splits = cdiv(N, how[1]), _splits(x, N, how)
    dx, dw = x.new_empty(x.shape), x.new_empty(N, R)
    db = x.new_empty(0 if bias is None else N)
    sizes = {"dx": (tiles, x.numel()), "dw": (splits, N, R), "db": (splits, db.numel())}
    parts = {name: x.new_empty(size, dtype=torch.float32) for name, size in sizes.items()}
    into = {"p_dg": dg.contiguous()} | {f"p_{name}": part if part.numel() else None for name, part in parts.items()}
    execute(_launch(gates_grad_kernel, how, into, {"PLAIN": ON_CPU}, x, weight, bias, normalizer, least))

    args = {f"p_{name}_parts": part for name, part in parts.items()} | {"p_dx": dx, "p_dw": dw, "p_db": db}
    shape = {"N_W": N * R, "N_B": db.numel(), "TILES": tiles, "SPLITS": splits, "BLOCK": SUMMED}
    programs = sum(cdiv(found.numel(), SUMMED) for found in (dx, dw, db))
    execute(Launch(gates_sums_kernel, (programs,), args | {"n_x": dx.numel(), "factor": 1.0 / normalizer}, shape))
    return dx, dw, db


def _how(how: tuple[int, int, int, int], x: Tensor) -> tuple[int, int, int, int]:
    return how if x.dtype == torch.bfloat16 and x.shape[-1] <= MOST_BF16_RANK else OTHERS


def _splits(x: Tensor, N: int, how: tuple[int, int, int, int]) -> int:
    """How many programs share the rows of a tile's columns."""
    rows, columns, _, programs = how
    return min(max(1, programs // cdiv(N, columns)), cdiv(_rows(x), rows))


def _launch(
    kernel: Any, how: tuple[int, int, int, int], into: dict[str, Any], more: dict[str, Any], x: Tensor, weight: Tensor,
    bias: Tensor | None, normalizer: float, least: float | None,
) -> Launch:  # fmt: skip
    """A launch of one of the two kernels."""
    N, R = weight.shape
    splits, (dot_type, precision) = _splits(x, N, how), operand_type(x.dtype, R)
    args = into | {
        "p_x": x.contiguous(), "p_w": weight.contiguous(), "p_b": bias, "n_rows": _rows(x), "n_splits": splits,
        "factor": 1.0 / normalizer, "least": 0.0 if least is None else least,
    }  # fmt: skip
    sizes = {"R": R, "N": N, "BT": how[0], "BN": how[1], "BR": padded(R)}
    types = {"CLAMPED": least is not None, "DOT": dot_type, "PRECISION": precision}
    return Launch(kernel, (splits * cdiv(N, how[1]),), args, sizes | types | more, num_stages=how[2])


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
