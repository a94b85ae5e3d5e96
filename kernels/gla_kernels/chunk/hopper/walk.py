"""States and the forward output in one walk over time, on Hopper, in Gluon: what states.py and output.py compute, where
a chunk is one row block of 64. The output reads no state from memory.

A program walks over a segment with a state of all of K and BV columns of V. Three groups of warps have a part each. One
warp sends for the next row blocks; four lead the state along in their registers (states.py's arithmetic); four compute
the block's output (output.py's), and of a block's work only the first product of O needs the state before it.

    state      D[i] = sum of the gates of the rows after i;  h = half of the sum of all:  one product with L (below)
               S <- e^{2h} S + (k e^D as bf16)^T V             transposed, features first: k e^D never leaves registers
    output     C = M g,  M[i, j] = 1/2 for i >= j, else -1/2;  A = tril((q e^C)(k e^-C)^T), all in two parts each
               O = scale [(q e^C e^h as bf16) S + A V]

L[j, i] = 1 for j > i, and for i = 63, where there is nothing after, for every j: that row's sum is the block's.
Blocks that are not mild: their rows of o are not stored (`output_strong_kernel` runs after this one); the states
and h are right for any gates.

Shared memory (K = BV = 128): 2 stages of q, k, g, v 128 KiB (k's and q's places come to hold k e^-C's parts), the state
as bf16 2 x 32, o 16, L and M 8 each; h and e^h of 2 blocks. One program an SM.

Gates in float32 have three places of 64 features, 16 KiB each, which take turns; o has none of its own, but leaves from
where v of its block was. The state's part reads gates into registers, in two parts of bfloat16 that are the left
operands of D, and leaves C = h - D in their place, in float32: the output's part has no product of gates, and no M.
With two places a block's last gates came half a block after its first ones, and the output's part waited for them.

Gates of the value side have one place. The output's part sends for a block's as soon as it is done with those of the
block before, and sums them, M g, beside the block's last products. For their room o of 128 columns leaves from v's
place.

Barriers, two of each, for even and odd blocks; each counts one arrival a block, in `full*` the one with the expected
bytes:

    full      q, k, g have come                                               producer -> state, output
    full_v    v has come                                                      producer -> state, output
    taken     the state's part has read k and g, and h lies there             state -> output
    made      the state before the block lies in its slot                     state -> output
    empty     q, k, g, h and the slot are done with (k, g by both: `taken`)   output -> producer; `full` tells the state
    empty_v   v is done with (by both: `made` of the next block)              output -> producer

With gates in float32 `full` is of q and k, `taken` also says that C lies there, `empty_v` that o has left, and there is
one of each of these for each place of gates:

    full_g    g has come                                                      producer -> state
    empty_g   C is done with                                                  output -> producer
"""

# mypy: disallow-untyped-defs=False
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from ...launch.tritons import async_load, barrier
from ...tiles.hopper import LINE, ROWS, SHARED, SPREAD, TILE_BYTES, barriers, each
from .layouts import turn_of
from .walk_output import output_part
from .walk_state import state_part

REGISTERS = gl.constexpr(240)  # of a thread of the state's part; the output's gets as many
FEW_REGISTERS = gl.constexpr(24)  # of one that only loads


@gluon.jit
def _send_gates(i, t: gl.constexpr, d_g, s_g, full_g, empty_g, i_batch, i_row, i_col, NK: gl.constexpr):
    """For the t-th 64 features of the i-th block's gates in float32."""
    at, phase = turn_of(i, t, NK)
    bar = full_g.index(at)
    mbarrier.wait(empty_g.index(at), phase ^ 1)
    mbarrier.expect(bar, 2 * TILE_BYTES)
    async_load(d_g, [i_batch, i_row, i_col + t * ROWS], bar, s_g.index(at))


@gluon.jit
def _load_part(
    d_q, d_k, d_v, d_g, s_q, s_k, s_v, s_g, full, full_v, full_g, empty, empty_v, empty_g,
    i_batch, i_row0, i_col, i_out, n_here, K: gl.constexpr, BV: gl.constexpr,
):  # fmt: skip
    """Send for every block as soon as its stage is free."""
    WIDE: gl.constexpr = d_g.dtype == gl.float32
    NK: gl.constexpr = K // ROWS
    for i in range(n_here):
        at, phase, i_row = i & 1, (i >> 1) & 1, i_row0 + i * ROWS
        bar, bar_v = full.index(at), full_v.index(at)
        mbarrier.wait(empty.index(at), phase ^ 1)
        mbarrier.expect(bar, (2 if WIDE else 3) * NK * TILE_BYTES)
        for t in gl.static_range(NK):
            if not WIDE:
                async_load(d_g, [i_batch, i_row, i_col + t * ROWS], bar, s_g[t].index(at))
            async_load(d_k, [i_batch, i_row, i_col + t * ROWS], bar, s_k[t].index(at))
            async_load(d_q, [i_batch, i_row, i_col + t * ROWS], bar, s_q[t].index(at))
        if WIDE:
            for t in gl.static_range(NK):
                _send_gates(i, t, d_g, s_g[0], full_g, empty_g, i_batch, i_row, i_col, NK)
        mbarrier.wait(empty_v.index(at), phase ^ 1)
        mbarrier.expect(bar_v, BV // ROWS * TILE_BYTES)
        async_load(d_v, [i_batch, i_row, i_out], bar_v, s_v.index(at))


@gluon.jit(do_not_specialize=["T", "n_seg", "first_seg", "n_start", "n_stored", "seg_rows", "n_few", "every", "n_rows"])
def walk_hopper_kernel(
    d_q, d_k, d_v, d_g, d_gv, p_s0, d_s, d_few, p_h, p_st, p_marks, p_edges, p_sn, p_hv, p_strong, p_low, d_o,
    scale, T, H, n_seg, first_seg, n_start, n_stored, seg_rows, n_few, every, n_rows, n_heads,
    K: gl.constexpr, V: gl.constexpr, BV: gl.constexpr,
    HAS_S0: gl.constexpr, STORE_S: gl.constexpr, STORE_FEW: gl.constexpr, STORE_ST: gl.constexpr,
    PACKED: gl.constexpr, HAS_SN: gl.constexpr, V_FIRST: gl.constexpr, S0_V_FIRST: gl.constexpr,
    FRAMED: gl.constexpr, STORE_LOW: gl.constexpr,
):  # fmt: skip
    """o [B, T, H, V] of n_seg segments from first_seg on, of row blocks that are mild; all else as `states_kernel` has
    it, with a state before every row block, or without STORE_S before those alone that are not mild: the only ones that
    the forward pass itself asks for. With STORE_FEW, p_few [B*H, n_few, K, V] is given the states before every so many
    row blocks of the sequence. bf16; K is 64 or 128, BV 64 or 128. The rest as in `states_kernel`.

    FRAMED: v and o are in frames of the value side, of which p_hv [B*H, n_blocks, V], float32, and p_strong [B*H,
    n_blocks, V / 64] tell (value_gates/frames.py). With p_gv [B, T, H, V], bfloat16 and of that side, o is led out of
    frames, where all is mild; beside bfloat16 gates only. STORE_LOW: p_low [B, T, H, V], int8, is given what is left of
    o where it is rounded."""
    NK: gl.constexpr = K // ROWS
    NV: gl.constexpr = V // BV
    i_p = gl.program_id(0)
    i_v, i_seg, i_bh = i_p % NV, (i_p // NV) % n_seg, i_p // (NV * n_seg)
    i_batch, i_h = i_bh // H, i_bh % H
    i_col, i_out = i_h * K, i_h * V + i_v * BV
    seg_blocks = seg_rows // ROWS
    n_blocks = (T + ROWS - 1) // ROWS
    first = (first_seg + i_seg) * seg_blocks
    n_here = gl.minimum(n_blocks - first, seg_blocks)
    i_row0, i_state = first * ROWS, (i_bh * n_stored + i_seg * seg_blocks) * K
    n_before = (first + every - 1) // every  # states of those that are kept
    i_few, until = (i_bh * n_few + n_before) * K, n_before * every - first
    p_h += (i_bh.to(gl.int64) * n_blocks + first) * K
    if HAS_S0:
        p_s0 += (i_bh.to(gl.int64) * n_start + (first_seg + i_seg) % n_start) * K * V
    if STORE_ST and not PACKED:
        p_st += i_bh.to(gl.int64) * K * V
    if FRAMED:
        p_hv += (i_bh.to(gl.int64) * n_blocks + first) * V + i_v * BV
        p_strong += (i_bh.to(gl.int64) * n_blocks + first) * (V // ROWS)
    if STORE_LOW:
        p_low += i_batch.to(gl.int64) * T * H * V + i_out

    GATE: gl.constexpr = d_g.dtype
    WIDE: gl.constexpr = GATE == gl.float32
    OF_GATES: gl.constexpr = d_g.layout
    OF_ROWS: gl.constexpr = d_q.layout
    OF_STATES: gl.constexpr = d_s.layout
    s_q = each(gl.bfloat16, [2, 1, ROWS, ROWS], OF_ROWS, NK)
    s_k = each(gl.bfloat16, [2, 1, ROWS, ROWS], OF_ROWS, NK)
    if WIDE:
        s_g = (gl.allocate_shared_memory(GATE, [NK + 1, 1, ROWS, ROWS], OF_GATES),)
    else:
        s_g = each(GATE, [2, 1, ROWS, ROWS], OF_GATES, NK)
    s_s = each(gl.bfloat16, [2, ROWS, BV], OF_STATES, NK)
    s_h, s_e = each(gl.float32, [2, ROWS], LINE, NK), each(gl.float32, [2, ROWS], LINE, NK)
    s_v = gl.allocate_shared_memory(gl.bfloat16, [2, 1, ROWS, BV], OF_ROWS)
    s_l = gl.allocate_shared_memory(gl.bfloat16, [ROWS, ROWS], SHARED)
    s_m, s_o, s_gv = s_l, s_v, s_v
    full_g, empty_g, full_gv = (), (), ()
    if WIDE:
        full_g, empty_g = barriers(NK + 1), barriers(NK + 1)
    else:
        s_m = gl.allocate_shared_memory(gl.bfloat16, [ROWS, ROWS], SHARED)
        if d_gv is None or BV == ROWS:
            s_o = gl.allocate_shared_memory(gl.bfloat16, [1, 1, ROWS, BV], OF_ROWS)
    if d_gv is not None:
        s_gv = gl.allocate_shared_memory(gl.bfloat16, [1, 1, ROWS, BV], OF_ROWS)
        full_gv = barriers(1)
    full, full_v, taken, made = barriers(2), barriers(2), barriers(2), barriers(2)
    empty, empty_v = barriers(2), barriers(2)
    o_i, o_j = (
        gl.arange(0, ROWS, gl.SliceLayout(1, SPREAD))[:, None],
        gl.arange(0, ROWS, gl.SliceLayout(0, SPREAD))[None, :],
    )
    if not WIDE:
        s_m.store(gl.where(o_i >= o_j, 0.5, -0.5).to(gl.bfloat16))
    s_l.store(gl.where((o_i > o_j) | (o_j == ROWS - 1), 1.0, 0.0).to(gl.bfloat16))
    fence_async_shared()
    barrier()

    gl.warp_specialize(
        [
            (
                output_part,
                (
                    d_o, d_gv, p_low, p_marks, p_edges, s_q, s_k, s_v, s_g, s_gv, s_s, s_o, s_m, s_h, s_e,
                    full, full_v, full_gv, taken, made, empty, empty_v, empty_g,
                    scale, i_batch, i_row0, i_out, n_here, T, H * V, K, BV, PACKED, STORE_LOW,
                ),
            ),
            (
                state_part,
                (
                    d_s, d_few, p_s0, p_st, p_h, p_marks, p_edges, p_sn, p_hv, p_strong,
                    s_k, s_v, s_g, s_s, s_l, s_h, s_e, full, full_v, full_g, taken, made,
                    i_state, i_few, until, every, i_v, i_row0, n_rows, i_h, n_heads,
                    i_v == 0, i_seg == n_seg - 1, first > 0, n_here,
                    K, V, BV, HAS_S0, STORE_S, STORE_FEW, STORE_ST, PACKED, HAS_SN, V_FIRST, S0_V_FIRST, FRAMED,
                ),
            ),
            (
                _load_part,
                (
                    d_q, d_k, d_v, d_g, s_q, s_k, s_v, s_g, full, full_v, full_g, empty, empty_v, empty_g,
                    i_batch, i_row0, i_col, i_out, n_here, K, BV,
                ),
            ),
        ],
        [4, 1],
        [REGISTERS, FEW_REGISTERS],
    )  # fmt: skip
