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
cancel leaves an error of some hundredths of dgv.

A column that decays by more than LIMIT over the chunk keeps the state's own frame: u = v e^(gates after the row) and
do' = do e^b are right at any gate strength, and so is a state that is multiplied by e^(sum of gates), too, before a
chunk adds to it. So states and their gradients are right for any gates. Of a chunk with such a column, or with strong
gates of the keys, nothing else is: scores.py and apply.py do the rest.
"""

# mypy: disallow-untyped-defs=False
import triton
import triton.language as tl

from ..tiles.gates import LOG2E, STRONG_COLUMN, after_rows, frame, limited, up_to_rows
from ..tiles.operands import load_state, load_tile, store_tile
from .guard import are_mild, mild_each
from .walk import total_decay

# Powers of two that a column may decay by over a chunk: two halves of it, from one chunk's frame to the next one's, are
# then a number in float32. Gates logsigmoid(randn) come to 74 +- 6 over 64 rows.
LIMIT: tl.constexpr = tl.constexpr(120.0)


@triton.jit
def _centred(b_g, b_h, C: tl.constexpr, DOT: tl.constexpr):
    """Log2 of e^C, or of e^b of columns that keep the state's frame, [C, BV]."""
    return up_to_rows(b_g, C, DOT) - frame(b_h)[None, :]


@triton.jit(do_not_specialize=["T", "n_here"])
def gv_enter_kernel(
    p_v, p_g, p_u, p_h, p_strong, T, H, n_here,
    V: tl.constexpr, C: tl.constexpr, BV: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """u [B, T, H, V] of v and gv, a program a chunk and tile of V. p_h [B*H, n_here, V], float32: h of each chunk's
    columns, or log2 of all that one beyond LIMIT decays by. p_strong [B*H, n_here, tiles of V]: 1 where there is such a
    column, else 0."""
    NV: tl.constexpr = (V + BV - 1) // BV
    i_p = tl.program_id(0)
    i_v, i_c, i_bh = i_p % NV, (i_p // NV) % n_here, (i_p // (NV * n_here)).to(tl.int64)
    i_head, i_row, i_here = ((i_bh // H) * T * H + i_bh % H) * V, i_c * C, i_bh * n_here + i_c
    o_v = i_v * BV + tl.arange(0, BV)
    b_g = limited(load_tile(p_g + i_head, i_row, T, H * V, o_v, V, C))
    b_v = load_tile(p_v + i_head, i_row, T, H * V, o_v, V, C)
    b_total = total_decay(b_g)
    b_h = tl.where(b_total > -LIMIT, 0.5 * b_total, b_total)
    tl.store(p_h + i_here * V + o_v, b_h, mask=o_v < V)
    least = tl.min(b_h, axis=0)
    tl.store(p_strong + i_here * NV + i_v, (least <= STRONG_COLUMN).to(tl.int32))
    b_e = -_centred(b_g, b_h, C, DOT)
    if least <= STRONG_COLUMN:
        b_after = after_rows(b_g, p_g + i_head, i_row, T, H * V, o_v, V, C, DOT)
        b_e = tl.where((b_h > STRONG_COLUMN)[None, :], b_e, b_after)
    store_tile(p_u + i_head, b_v.to(tl.float32) * tl.exp2(b_e), i_row, T, H * V, o_v, V, C)


@triton.jit(do_not_specialize=["T", "n_here"])
def gv_scale_kernel(
    p_x, p_g, p_h, p_hu, p_y, T, H, n_here,
    D: tl.constexpr, E: tl.constexpr, C: tl.constexpr, BD: tl.constexpr, GUARDED: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """y = x e^C: o of o', or do' of do, [B, T, H, D], a program a chunk and tile of D = V. p_h [B*H, n_here, D]: as
    `gv_enter_kernel` leaves it. GUARDED: of chunks alone that are mild on both sides; p_hu [B*H, n_here, E]: log2 of
    half of the decay of the keys' side."""
    ND: tl.constexpr = (D + BD - 1) // BD
    i_p = tl.program_id(0)
    i_d, i_c, i_bh = i_p % ND, (i_p // ND) % n_here, (i_p // (ND * n_here)).to(tl.int64)
    i_head, i_row = ((i_bh // H) * T * H + i_bh % H) * D, i_c * C
    o_d = i_d * BD + tl.arange(0, BD)
    b_x = load_tile(p_x + i_head, i_row, T, H * D, o_d, D, C)
    b_g = limited(load_tile(p_g + i_head, i_row, T, H * D, o_d, D, C))
    p_h += i_bh * n_here * D
    b_h = tl.load(p_h + i_c * D + o_d, mask=o_d < D, other=0.0)
    wanted = True
    if GUARDED:
        wanted = are_mild(p_h, p_hu + i_bh * n_here * E, i_c, n_here, D, E, 1, PRECISION)
    if wanted:
        b_y = b_x.to(tl.float32) * tl.exp2(_centred(b_g, b_h, C, DOT))
        store_tile(p_y + i_head, b_y, i_row, T, H * D, o_d, D, C)


@triton.jit
def _states_product(
    p_s, p_ds, b_f, b_df, o_d, E: tl.constexpr, D: tl.constexpr, BE: tl.constexpr, V_FIRST: tl.constexpr
):
    """sum_e S dS, float32 [BD], of a state [E, D], V_FIRST [D, E], and its gradient, each of a frame, log2."""
    b_sum = tl.zeros([o_d.shape[0]], dtype=tl.float32)
    for i_e in tl.range(0, (E + BE - 1) // BE, num_stages=1):
        o_e = i_e * BE + tl.arange(0, BE)
        b_s = load_state(p_s, o_e, o_d, E, D, V_FIRST) * tl.exp2(-b_f)[None, :]
        b_sum += tl.sum(b_s * (load_state(p_ds, o_e, o_d, E, D) * tl.exp2(-b_df)[None, :]), axis=0)
    return b_sum


@triton.jit
def _of_two_parts(p_x, p_low, i_row, T, stride, o_d, D: tl.constexpr, R: tl.constexpr):
    """Rows that were rounded to bfloat16, with what that left, in 256ths of what the last bit stands for: float32
    [R, BD]."""
    b_x = load_tile(p_x, i_row, T, stride, o_d, D, R).to(tl.float32).to(tl.int32, bitcast=True)
    b_low = load_tile(p_low, i_row, T, stride, o_d, D, R).to(tl.int32)
    return (b_x + (b_low << 8) + 128).to(tl.float32, bitcast=True)  # in the middle of all that have this byte


@triton.jit(do_not_specialize=["T", "n_here"])
def gv_leave_kernel(
    p_x, p_xl, p_u, p_do, p_du, p_dul, p_g, p_h, p_hu, p_s, p_few, p_ds, p_st, p_dv, p_dg, T, H, n_here,
    D: tl.constexpr, E: tl.constexpr, C: tl.constexpr, R: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
    RUN: tl.constexpr, FEW: tl.constexpr, HAS_ST: tl.constexpr, V_FIRST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dv and dgv [B, T, H, D] of chunks that are mild on both sides, a program RUN of them and a tile of D = V, R rows
    at a time, from the last ones on: sums along so few rows are cheap, and no tile waits in registers.

    p_x, p_xl: both parts of o', bfloat16 and int8; p_du, p_dul: of du; p_u, p_do: u and do', all [B, T, H, D]. p_s, p_ds [B*H, n_here, E,
    D]: states before and gradients after each chunk, in their frames; FEW: p_s only before those that are not mild, and
    p_few [B*H, runs, E, D] before every RUN-th one. p_st: the state after the last row, [E, D] or V_FIRST [D, E] in
    float32, with HAS_ST, if it has a gradient. The sum of S' dS' is made anew at the end of a run and
    before a chunk that is not mild: from a mild chunk to the one before it changes by the sum of o' do' - u du.
    """
    ND: tl.constexpr = (D + BD - 1) // BD
    n_runs = tl.cdiv(n_here, RUN)
    i_p = tl.program_id(0)
    i_d, i_run, i_bh = i_p % ND, (i_p // ND) % n_runs, (i_p // (ND * n_runs)).to(tl.int64)
    i_head, stride = ((i_bh // H) * T * H + i_bh % H) * D, H * D
    p_x, p_xl, p_u, p_do = p_x + i_head, p_xl + i_head, p_u + i_head, p_do + i_head
    p_du, p_dul, p_g, p_dv, p_dg = p_du + i_head, p_dul + i_head, p_g + i_head, p_dv + i_head, p_dg + i_head
    p_h, p_hu = p_h + i_bh * n_here * D, p_hu + i_bh * n_here * E
    p_st = p_st + i_bh * E * D if HAS_ST else p_dv
    p_s, p_ds = p_s + i_bh * n_here * E * D, p_ds + i_bh * n_here * E * D
    o_d = i_d * BD + tl.arange(0, BD)
    m_d = o_d < D
    b_mild = mild_each(p_h, p_hu, i_run * RUN, n_here, D, E, RUN, PRECISION)
    o_run = tl.arange(0, RUN)
    b_sum = tl.zeros([BD], dtype=tl.float32)  # what passes the end of the rows that come next
    known = False
    for i_back in tl.range(0, RUN, num_stages=1):
        i_c = (i_run * RUN + RUN - 1 - i_back).to(tl.int64)
        mild = (i_c < n_here) & (tl.sum(tl.where(o_run == RUN - 1 - i_back, b_mild, 0), axis=0) > 0)
        if mild:
            b_h = tl.load(p_h + i_c * D + o_d, mask=m_d, other=0.0)
            if not known:
                b_sum = tl.zeros([BD], dtype=tl.float32)
                p_after = p_ds + i_c * E * D
                if i_c + 1 < n_here:
                    b_f = frame(tl.load(p_h + (i_c + 1) * D + o_d, mask=m_d, other=0.0))
                    p_next = p_s + (i_c + 1) * E * D
                    if FEW:
                        if (i_c + 1) % RUN == 0:
                            p_next = p_few + (i_bh * n_runs + i_run + 1) * E * D
                    b_sum = _states_product(p_next, p_after, b_f, b_h, o_d, E, D, BE, False)
                elif HAS_ST:
                    b_sum = _states_product(p_st, p_after, b_sum, b_h, o_d, E, D, BE, V_FIRST)
            b_after = -b_h  # of the gates after the rows, from the middle on
            for i_part in tl.range(0, C // R, num_stages=1):
                i_row = (i_c * C + C - R - i_part * R).to(tl.int32)
                b_g = load_tile(p_g, i_row, T, stride, o_d, D, R).to(tl.float32) * LOG2E
                b_do = load_tile(p_do, i_row, T, stride, o_d, D, R).to(tl.float32)
                b_u = load_tile(p_u, i_row, T, stride, o_d, D, R).to(tl.float32)
                b_du = _of_two_parts(p_du, p_dul, i_row, T, stride, o_d, D, R)
                b_diff = _of_two_parts(p_x, p_xl, i_row, T, stride, o_d, D, R) * b_do - b_du * b_u
                b_from = tl.cumsum(b_g, axis=0, reverse=True)
                b_dg = tl.cumsum(b_diff, axis=0, reverse=True) + b_sum[None, :]
                b_dv = b_du * tl.exp2(b_from - b_g + b_after[None, :])
                b_after += tl.sum(b_g, axis=0)
                b_sum += tl.sum(b_diff, axis=0)
                store_tile(p_dv, b_dv, i_row, T, stride, o_d, D, R)
                store_tile(p_dg, b_dg, i_row, T, stride, o_d, D, R)
        known = mild
