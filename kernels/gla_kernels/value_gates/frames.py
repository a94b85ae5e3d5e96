"""Rows of the value side in the frame of each chunk's middle, and out of it again: so gates of the value side ride on
walks that know of none.

Of a chunk and a column of V let b be the sums of its gates up to each row, h half of the sum of all, C = b - h. With

    u = v e^-C,   o = e^C o',   do' = do e^C,   dv = e^-C du

o' and du are what walks with gates of the keys alone make of u and do'. In their frame the chunk's state is S e^h, and
what becomes of it, S', is the next chunk's state e^-h: all that a walk has to do is to multiply a column of its state
by e^(h of the chunk before + h), and back in time its gradient. o' do' and u du hold the same product for each pair of
rows of the chunk, so

    dgv_t = sum over the chunk's rows from t on of (o' do' - u du) + sum over K of S' dS'

with dS' the gradient of S'. o' and du come in two parts, of bfloat16 and a byte: of the first alone, what does not
cancel leaves an error of some hundredths of dgv. So would o do and v dv, element by element the same but for rounding:
products are of u and do' as these were rounded. Where a walk has led o or dv out of frames itself, it is led in again,
with its byte.

A column that decays by more than LIMIT over the chunk keeps the state's own frame: u = v e^(gates after the row) and
do' = do e^b are right at any gate strength, and so is a state that is multiplied by e^(sum of gates), too, before a
chunk adds to it. So states and their gradients are right for any gates. Of a chunk with such a column, or with strong
gates of the keys, nothing else is: strong.py does the rest.
"""

# A thread has columns of its own and goes from row to row, so that no sum over rows is passed on between threads: by
# tiles these kernels took twice the instructions. What is on its way at once is loaded before any of it is worked on.

# mypy: disallow-untyped-defs=False, disable-error-code="assignment, var-annotated"
import triton
import triton.language as tl

from ..tiles.gates import LOG2E, STRONG_COLUMN, frame, limited
from .guard import are_mild, mild_each

# Powers of two that a column may decay by over a chunk: two halves of it, from one chunk's frame to the next one's, are
# then a number in float32. Gates logsigmoid(randn) come to 74 +- 6 over 64 rows.
LIMIT: tl.constexpr = tl.constexpr(120.0)
STATES: tl.constexpr = tl.constexpr(16)  # rows of a state that are on their way at once


@triton.jit
def _place(TILES: tl.constexpr, n_here, REVERSE: tl.constexpr):
    """A program's tile of columns, chunk, and head, the chunks one after another. REVERSE: from the last one on. A walk
    reads first what is in the cache yet, or what it wrote last is read first."""
    i_p = tl.program_id(0)
    if REVERSE:
        i_p = tl.num_programs(0) - 1 - i_p
    n_heads = tl.num_programs(0) // (TILES * n_here)
    return i_p % TILES, i_p // (TILES * n_heads), ((i_p // TILES) % n_heads).to(tl.int64)


@triton.jit
def _rows_at(i_bh, T, H, o_d, D: tl.constexpr):
    """Where columns o_d of a head's first row are, and how far it is to the next row."""
    return ((i_bh // H) * T * H + i_bh % H) * D + o_d, H * D


@triton.jit(do_not_specialize=["T", "n_here"])
def gv_enter_kernel(
    p_v, p_g, p_u, p_h, p_strong, T, H, n_here, V: tl.constexpr, C: tl.constexpr, BV: tl.constexpr, R: tl.constexpr
):
    """u [B, T, H, V] of v and gv, a program a chunk and BV columns of V, R rows at once. p_h [B*H, n_here, V], float32:
    h of each chunk's columns, or log2 of all that one beyond LIMIT decays by. p_strong [B*H, n_here, tiles of V]: 1
    where there is such a column, else 0."""
    NV: tl.constexpr = V // BV
    i_v, i_c, i_bh = _place(NV, n_here, True)
    o_v = i_v * BV + tl.arange(0, BV)
    i_here = i_bh * n_here + i_c
    o_head, stride = _rows_at(i_bh, T, H, o_v, V)
    i_last = i_c.to(tl.int64) * C + C - 1
    b_total = tl.zeros([BV], dtype=tl.float32)
    for i_part in tl.range(0, C // R, num_stages=1):
        for r in tl.static_range(R):
            i_row = i_last - i_part * R - r
            b_g = tl.load(p_g + o_head + i_row * stride, mask=i_row < T, other=0.0)
            b_total += limited(b_g).to(tl.float32) * LOG2E
    b_h = tl.where(b_total > -LIMIT, 0.5 * b_total, b_total)
    tl.store(p_h + i_here * V + o_v, b_h)
    tl.store(p_strong + i_here * NV + i_v, (tl.min(b_h, axis=0) <= STRONG_COLUMN).to(tl.int32))
    b_after = -frame(b_h)  # of the gates after the row, from the middle on: log2 of e^-C
    for i_part in tl.range(0, C // R, num_stages=1):
        rows = ()
        for r in tl.static_range(R):
            i_row = i_last - i_part * R - r
            o, m = o_head + i_row * stride, i_row < T
            rows += ((tl.load(p_g + o, mask=m, other=0.0), tl.load(p_v + o, mask=m, other=0.0)),)
        for r in tl.static_range(R):
            i_row = i_last - i_part * R - r
            b_g, b_v = rows[r]
            b_u = b_v.to(tl.float32) * tl.exp2(b_after)
            tl.store(p_u + o_head + i_row * stride, b_u.to(p_u.dtype.element_ty), mask=i_row < T)
            b_after += limited(b_g).to(tl.float32) * LOG2E


@triton.jit(do_not_specialize=["T", "n_here"])
def gv_scale_kernel(
    p_x, p_g, p_h, p_hu, p_y, T, H, n_here,
    D: tl.constexpr, E: tl.constexpr, C: tl.constexpr, BD: tl.constexpr, R: tl.constexpr, GUARDED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """y = x e^C: o of o', or do' of do, [B, T, H, D], a program a chunk and BD columns of D = V, R rows at once. p_h
    [B*H, n_here, D]: as `gv_enter_kernel` leaves it. GUARDED: of chunks alone that are mild on both sides; p_hu [B*H,
    n_here, E]: log2 of half of the decay of the keys' side."""
    i_d, i_c, i_bh = _place(D // BD, n_here, GUARDED)
    o_d = i_d * BD + tl.arange(0, BD)
    o_head, stride = _rows_at(i_bh, T, H, o_d, D)
    i_first = i_c.to(tl.int64) * C
    p_h += i_bh * n_here * D
    b_c = -frame(tl.load(p_h + i_c * D + o_d))  # up to the row
    wanted = True
    if GUARDED:
        wanted = are_mild(p_h, p_hu + i_bh * n_here * E, i_c, n_here, D, E, 1, PRECISION)
    if wanted:
        for i_part in tl.range(0, C // R, num_stages=1):
            rows = ()
            for r in tl.static_range(R):
                i_row = i_first + i_part * R + r
                o, m = o_head + i_row * stride, i_row < T
                rows += ((tl.load(p_g + o, mask=m, other=0.0), tl.load(p_x + o, mask=m, other=0.0)),)
            for r in tl.static_range(R):
                i_row = i_first + i_part * R + r
                b_g, b_x = rows[r]
                b_c += limited(b_g).to(tl.float32) * LOG2E
                b_y = b_x.to(tl.float32) * tl.exp2(b_c)
                tl.store(p_y + o_head + i_row * stride, b_y.to(p_y.dtype.element_ty), mask=i_row < T)


@triton.jit
def _states_product(
    p_s, p_ds, b_f, b_df, o_d, D: tl.constexpr, E: tl.constexpr, R: tl.constexpr, V_FIRST: tl.constexpr
):
    """sum_e S dS, float32 [BD], of a state [E, D], V_FIRST [D, E], and its gradient [E, D], each of a frame, log2; R
    rows of them are on their way at once."""
    b_sum = tl.zeros([o_d.shape[0]], dtype=tl.float32)
    b_e = tl.exp2(-b_f)
    for i_e in tl.range(0, E // R, num_stages=1):
        rows = ()
        for r in tl.static_range(R):
            o_e = i_e * R + r
            b_s = tl.load(p_s + (o_d * E + o_e if V_FIRST else o_e * D + o_d))
            rows += ((b_s, tl.load(p_ds + o_e * D + o_d)),)
        for r in tl.static_range(R):
            b_s, b_ds = rows[r]
            b_sum += b_s.to(tl.float32) * b_e * b_ds.to(tl.float32)
    return b_sum * tl.exp2(-b_df)


@triton.jit
def _in_lines(o_d):
    """Where what is left of columns o_d, two by two, lies in a row: see `chunk.kept.Frames.low`."""
    o_line = o_d // 64 * 64 + o_d // 2 % 4 * 16 + o_d % 64 // 8 * 2 + o_d % 2
    return tl.max_contiguous(tl.multiple_of(o_line, 2), 2)


@triton.jit
def _of_two_parts(b_x, b_low):
    """What was rounded to bfloat16, with what that left, in 256ths of what the last bit stands for: float32."""
    b_bits = b_x.to(tl.float32).to(tl.int32, bitcast=True) + (b_low.to(tl.int32) << 8)
    return (b_bits + 128).to(tl.float32, bitcast=True)  # in the middle of all that have this byte


@triton.jit(do_not_specialize=["T", "n_here"])
def gv_leave_kernel(
    p_x, p_xl, p_u, p_do, p_du, p_dul, p_g, p_h, p_hu, p_s, p_few, p_ds, p_st, p_dv, p_dg, T, H, n_here,
    D: tl.constexpr, E: tl.constexpr, C: tl.constexpr, R: tl.constexpr, BD: tl.constexpr,
    RUN: tl.constexpr, FEW: tl.constexpr, EMERGED: tl.constexpr, HAS_ST: tl.constexpr, V_FIRST: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """dv and dgv [B, T, H, D] of chunks that are mild on both sides, a program RUN of them and BD columns of D = V, row
    after row from the last one on. A thread has columns of its own, so that sums over rows pass nothing on; R rows are
    on their way at once.

    p_x, p_xl: both parts of o', EMERGED of o, bfloat16 and int8; p_du, p_dul: of du, or without p_dv of dv, which is
    not made then; p_u, p_do: u and do', all [B, T, H, D]. p_s,
    p_ds [B*H, n_here, E, D]: states before and gradients after each chunk, in their frames; FEW: p_s only before those
    that are not mild, and p_few [B*H, runs, E, D] before every RUN-th one. p_st: the state after the last row, [E, D]
    or V_FIRST [D, E] in float32, with HAS_ST, if it has a gradient. The sum of S' dS' is made anew at the end of a run
    and before a chunk that is not mild: from a mild chunk to the one before it changes by the sum of o' do' - u du.
    """
    ND: tl.constexpr = D // BD
    n_runs = tl.cdiv(n_here, RUN)
    i_p = tl.num_programs(0) - 1 - tl.program_id(0)  # what was read last, by `grad_qk`, is in the cache yet
    i_d, i_run, i_bh = i_p % ND, (i_p // ND) % n_runs, (i_p // (ND * n_runs)).to(tl.int64)
    o_d = i_d * BD + tl.arange(0, BD)
    o_head, stride = _rows_at(i_bh, T, H, o_d, D)
    o_lines, _ = _rows_at(i_bh, T, H, _in_lines(o_d), D)
    p_h, p_hu = p_h + i_bh * n_here * D, p_hu + i_bh * n_here * E
    p_s, p_ds = p_s + i_bh * n_here * E * D, p_ds + i_bh * n_here * E * D
    b_mild, o_run = mild_each(p_h, p_hu, i_run * RUN, n_here, D, E, RUN, PRECISION), tl.arange(0, RUN)
    b_sum = tl.zeros([BD], dtype=tl.float32)  # what passes the end of the rows that come next
    known = False
    for i_back in tl.range(0, RUN, num_stages=1):
        i_c = (i_run * RUN + RUN - 1 - i_back).to(tl.int64)
        mild = (i_c < n_here) & (tl.sum(tl.where(o_run == RUN - 1 - i_back, b_mild, 0), axis=0) > 0)
        if mild:
            b_h = tl.load(p_h + i_c * D + o_d)
            if not known:
                b_sum = tl.zeros([BD], dtype=tl.float32)
                p_after = p_ds + i_c * E * D
                if i_c + 1 < n_here:
                    b_f = frame(tl.load(p_h + (i_c + 1) * D + o_d))
                    p_next = p_s + (i_c + 1) * E * D
                    if FEW:
                        if (i_c + 1) % RUN == 0:
                            p_next = p_few + (i_bh * n_runs + i_run + 1) * E * D
                    b_sum = _states_product(p_next, p_after, b_f, b_h, o_d, D, E, STATES, False)
                elif HAS_ST:
                    b_sum = _states_product(p_st + i_bh * E * D, p_after, b_sum, b_h, o_d, D, E, STATES, V_FIRST)
            b_after = -b_h  # of the gates after the row, from the middle on
            for i_part in tl.range(0, C // R, num_stages=1):
                i_last, rows = i_c * C + C - 1 - i_part * R, ()
                for r in tl.static_range(R):
                    o, m = o_head + (i_last - r) * stride, i_last - r < T
                    o_low = o_lines + (i_last - r) * stride
                    b_g, b_u = tl.load(p_g + o, mask=m, other=0.0), tl.load(p_u + o, mask=m, other=0.0)
                    b_x, b_xl = tl.load(p_x + o, mask=m, other=0.0), tl.load(p_xl + o_low, mask=m, other=0)
                    b_du, b_dul = tl.load(p_du + o, mask=m, other=0.0), tl.load(p_dul + o_low, mask=m, other=0)
                    rows += ((b_g, b_u, tl.load(p_do + o, mask=m, other=0.0), b_x, b_xl, b_du, b_dul),)
                for r in tl.static_range(R):
                    o, m = o_head + (i_last - r) * stride, i_last - r < T
                    b_g, b_u, b_do, b_x, b_xl, b_du, b_dul = rows[r]
                    b_o, b_wide = _of_two_parts(b_x, b_xl), _of_two_parts(b_du, b_dul)
                    if EMERGED:
                        b_o *= tl.exp2(b_after)
                    if p_dv is None:
                        b_wide *= tl.exp2(-b_after)
                    else:
                        b_dv = b_wide * tl.exp2(b_after)
                        tl.store(p_dv + o, b_dv.to(p_dv.dtype.element_ty), mask=m)
                    b_sum += b_o * b_do.to(tl.float32) - b_wide * b_u.to(tl.float32)
                    tl.store(p_dg + o, b_sum.to(p_dg.dtype.element_ty), mask=m)
                    b_after += b_g.to(tl.float32) * LOG2E
        known = mild
