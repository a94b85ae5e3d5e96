"""dQ, dK and the gate's gradient on Hopper over runs of chunks, in Gluon: hopper/grad_qk.py's, from few states.

A program goes through a run of chunks and leads the state along, S <- e^{2h} S + (k e^D as bf16)^T V with D and h as in
walk.py, so that few states are kept between the passes and read here. Between two chunks S lies in shared memory, in
two parts of 16 bits: rounded, as products read it, and what that leaves. Else all is as there, with C = h - D.

Loads are on their way to shared memory before anything waits, those of the next chunk too. Two programs share a
multiprocessor, and one runs while the other waits; where V is too wide for that grad_qk_wide.py serves. Tiles that are
not mild are computed like the others and not stored: `grad_qk_strong_kernel` runs after this one, on states that this
one lays down.
"""

# mypy: disallow-untyped-defs=False
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from ...launch.tritons import async_load, async_store, barrier
from ...tiles.hopper import (
    ACCUMULATOR,
    EVERYWHERE,
    ROWS,
    SHARED,
    TILE_BYTES,
    barriers,
    cut,
    features_first,
    matrix,
    rounded,
    wide,
)
from .frames import decay, frame, is_strong
from .grad_qk_rows import (
    after_rows,
    decayed_keys,
    first_state,
    from_tail,
    gates_begun,
    leave,
    places,
    run_of_program,
    scores_in_parts,
    send,
    send_values,
    sums_begun,
    through_scores,
    triangles,
)
from .layouts import CLOSED_HALF, LEAST_HALF, limit
from .packed import head_and_tail, passes, sums_in_sequences, within_sequences
from .strong_gates import hidden_zero


@gluon.jit
def _send_values(
    i_tile, d_do, d_v, d_ds, s_do, s_v, s_ds, bars, i_batch, i_row0, i_out, i_state,
    K: gl.constexpr, NV: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """For a tile of V, counted from the first chunk's first one, into the stage whose turn it is."""
    i_c = i_tile // NV
    send_values(
        d_do, d_v, d_ds, s_do, s_v, s_ds, bars, i_tile % STAGES,
        i_batch, i_row0 + i_c * ROWS, i_out, i_state + i_c * K, i_tile % NV * ROWS,
    )  # fmt: skip


@gluon.jit(do_not_specialize=["n_blocks", "n_here", "first_chunk", "n_stored", "n_few", "every", "n_rows"])
def grad_qk_runs_hopper_kernel(
    d_q, d_k, d_v, d_g, d_do, d_s, d_few, d_ds, p_h, p_marks, p_edges, p_sn, p_hv, p_strong, d_dq, d_dk, d_dg,
    scale, H, n_blocks, n_here, first_chunk, n_stored, n_few, every, n_rows, n_heads,
    K: gl.constexpr, V: gl.constexpr, STAGES: gl.constexpr,
    PACKED: gl.constexpr, HAS_SN: gl.constexpr, V_FIRST: gl.constexpr, FRAMED: gl.constexpr, KEPT: gl.constexpr,
):  # fmt: skip
    """dq, dk and dg [B, T, H, K] of n_here chunks from first_chunk on, of tiles that are mild: see grad_qk.py. bf16.

    K and V are multiples of 64: a program has 64 features of a run of ``every`` chunks. It starts from the state
    before the run, in p_few [B*H, n_few, K, V], of which a run has KEPT, and leads it along as walk.py does. p_s
    [B*H, n_stored, K, V] is given the states before chunks that are not mild. PACKED: see `packed.py`; p_sn: as in
    `states_kernel`. FRAMED: in frames of the value side, see `walk.walk_hopper_kernel`.

    Shared memory: the state, cut in two; q, k, g; STAGES tiles of V of dO, V and dS; A's leading bits, then dk; A's
    next ones, then dg; L; U. dq leaves from where q was. With gates in float32 D is kept where g was, dg leaves from
    where q and A's next ones were, and there is no U; where sequences want one it comes to where A's next ones were.
    """
    NV: gl.constexpr = V // ROWS
    WIDE: gl.constexpr = d_g.dtype == gl.float32
    count, i_batch, i_row0, i_col, i_out, i_state, i_few, p_h = run_of_program(
        p_h, H, n_blocks, n_here, first_chunk, n_stored, n_few, every, K, V, KEPT
    )

    t_q, t_k, t_g, t_high, t_low, t_dg, s_do, s_v, s_ds, s_s, s_u = places(
        d_q, d_k, d_g, d_do, d_v, d_ds, d_few, NV, STAGES
    )
    bars, bar_s = barriers(STAGES), barriers(1).index(0)
    bar_g, bar_k, bar_q = barriers(1).index(0), barriers(1).index(0), barriers(1).index(0)
    fence_async_shared()
    barrier()

    # everything of the first chunk is sent for, in the order in which it is needed
    send(d_g, t_g.index(0), bar_g, i_batch, i_row0, i_col)
    send(d_k, t_k.index(0), bar_k, i_batch, i_row0, i_col)
    mbarrier.expect(bar_s, NV * TILE_BYTES)
    for i in gl.static_range(NV):
        async_load(d_few, [i_few, i * ROWS], bar_s, s_s.index(i))
    for i_tile in range(gl.minimum(STAGES, count * NV)):
        _send_values(i_tile, d_do, d_v, d_ds, s_do, s_v, s_ds, bars, i_batch, i_row0, i_out, i_state, K, NV, STAGES)

    i_feature = i_col % K
    s_l = s_u
    if not WIDE:
        s_l = gl.allocate_shared_memory(gl.bfloat16, [ROWS, ROWS], SHARED)
    triangles(s_u, s_l, WIDE)
    b_zero = gl.zeros([ROWS, ROWS], gl.float32, ACCUMULATOR)
    s_rest = gl.allocate_shared_memory(gl.bfloat16, [NV, ROWS, ROWS], d_few.layout)
    for i in gl.static_range(NV):
        s_rest.index(i).store(b_zero.to(gl.bfloat16))
    mbarrier.wait(bar_s, 0)
    if WIDE:  # whose sums are made before the loop's own barrier
        fence_async_shared()
        barrier()

    if FRAMED:
        i_first = (i_batch * H + i_out // V) * n_blocks + i_row0 // ROWS
        p_hv += i_first.to(gl.int64) * V
        o_v = gl.arange(0, ROWS, gl.SliceLayout(0, ACCUMULATOR))
    mixed = count < 0  # whether U is of several sequences
    for i_c in range(count):
        i_row, phase, more = i_row0 + i_c * ROWS, i_c & 1, i_c + 1 < count
        nil = hidden_zero(i_row)
        s_q, s_k, s_g, s_high, s_low = (
            t_q.index(nil),
            t_k.index(nil),
            t_g.index(nil),
            t_high.index(nil),
            t_low.index(nil),
        )
        passing = count > 0
        head, tail = ROWS, 0
        if PACKED:  # before h: each would wait for the other
            head, tail = head_and_tail(p_edges, i_row)
            passing = passes(head, tail)
        b_half = gl.load(p_h + gl.arange(0, ROWS, gl.SliceLayout(1, ACCUMULATOR)))
        b_line = gl.load(p_h + gl.arange(0, ROWS, gl.SliceLayout(0, EVERYWHERE)))
        if WIDE:  # nothing here waits for h
            mbarrier.wait(bar_g, phase)
            b_d = after_rows(gates_begun(s_g, s_l), nil)
        least = gl.min(b_line, axis=0)
        mild = least > LEAST_HALF
        p_h += K
        b_h = gl.exp2(b_half)
        wanted = not mild  # the strong kernel asks for the state
        if FRAMED:
            strong = is_strong(p_strong, i_first + i_c, V)
            wanted = wanted | strong
        if PACKED:
            wanted = wanted | ((head > 0) & (not passing))  # and so does `edges`, where a sequence ends
            if not WIDE:
                if mixed | (not passing):
                    sums_in_sequences(s_u, p_marks, i_row)
                mixed = not passing
        fence_async_shared()
        barrier()
        if wanted:
            for i in gl.static_range(NV):
                async_store(d_s, [i_state + i_c * K, i * ROWS], s_s.index(i))
            tma.store_wait(0)
            barrier()

        if WIDE:
            matrix(s_g).permute((1, 0)).store(b_d)
        else:
            mbarrier.wait(bar_g, phase)
            if least < CLOSED_HALF:  # there may be gates of -inf, and what is summed beside them would be no number
                limit(s_g)
            b_d = after_rows(warpgroup_mma_wait(0, (gates_begun(s_g, s_l),)), nil)
        mbarrier.wait(bar_k, phase)
        b_f = b_h * b_h
        b_begun = b_half
        if PACKED:
            if not passing:
                b_d, b_begun = from_tail(b_d, b_half, p_edges, i_row)
                b_f = gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, ACCUMULATOR))
        b_kd = decayed_keys(s_k, b_d)
        tma.store_wait(0)
        barrier()  # the dq of the chunk before has left
        send(d_q, s_q, bar_q, i_batch, i_row, i_col)

        # dA, and what comes through the states; the state after the chunk
        b_a, b_x, b_y = b_zero, b_zero, b_zero
        b_phi = gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, ACCUMULATOR))
        for i_v in range(NV):
            i_tile = i_c * NV + i_v
            at = i_tile % STAGES + nil
            mbarrier.wait(bars.index(at), (i_tile // STAGES) & 1)
            b_do, b_v, b_ds = matrix(s_do.index(at)), matrix(s_v.index(at)), s_ds.index(at)
            b_s = s_s.index(i_v + nil)
            b_a = warpgroup_mma(b_do, b_v.permute((1, 0)), b_a, is_async=True)
            b_x = warpgroup_mma(b_s, b_do.permute((1, 0)), b_x, is_async=True)
            b_y = warpgroup_mma(b_ds, b_v.permute((1, 0)), b_y, is_async=True)
            b_sw = wide(b_s.load(ACCUMULATOR))
            b_phi += gl.sum(b_sw * wide(b_ds.load(ACCUMULATOR)), axis=1)
            b_next = (b_sw + wide(s_rest.index(i_v + nil).load(ACCUMULATOR))) * b_f[:, None]
            if FRAMED:
                b_here = gl.load(p_hv + i_c * V + i_v * ROWS + o_v)
                b_after = gl.load(p_hv + gl.minimum(i_c + 1, count - 1) * V + i_v * ROWS + o_v)
                if strong:
                    b_next = b_next * decay(b_here)[None, :]
                b_frame = gl.exp2(frame(b_here) + frame(b_after))
            if PACKED:
                if HAS_SN:
                    if (not passing) & (tail < ROWS):
                        b_next = first_state(
                            p_sn, p_marks, n_rows, i_row, i_out // V, n_heads, i_feature, i_v * ROWS, b_begun,
                            K, V, V_FIRST,
                        )  # fmt: skip
            b_next = warpgroup_mma(b_kd, b_v, b_next, is_async=True)
            b_a, b_x, b_y, b_next = warpgroup_mma_wait(0, (b_a, b_x, b_y, b_next))
            fence_async_shared()
            barrier()  # every warp is done with the stage, and with the state
            if i_tile + STAGES < count * NV:
                _send_values(
                    i_tile + STAGES, d_do, d_v, d_ds, s_do, s_v, s_ds, bars,
                    i_batch, i_row0, i_out, i_state, K, NV, STAGES,
                )  # fmt: skip
            if more:
                if FRAMED:
                    b_next = b_next * b_frame[None, :]
                b_sh = rounded(b_next)
                b_s.store(b_sh)
                s_rest.index(i_v + nil).store(rounded(b_next - wide(b_sh)))

        if PACKED:
            if not passing:
                b_a, b_x, b_y = within_sequences(b_a, b_x, b_y, p_marks, p_edges, i_row)
                b_phi = gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, ACCUMULATOR))

        # the gates' sums once more: they would take the registers of the state; C = h - D
        if WIDE:
            b_d = matrix(s_g).permute((1, 0)).load(ACCUMULATOR)
        else:
            b_d = after_rows(warpgroup_mma_wait(0, (gates_begun(s_g, s_l),)), nil)
        b_e = gl.exp2(b_d - b_half[:, None])
        b_kh, b_kl = cut(features_first(s_k) * b_e)

        # A, into shared memory
        b_ah, b_al = scores_in_parts(b_a, scale, nil)
        s_high.store(b_ah)
        s_low.store(b_al)
        b_x = b_x * (scale * b_h)[:, None]
        fence_async_shared()
        barrier()  # every warp is done with g and k, and A lies there
        if more:
            send(d_g, s_g, bar_g, i_batch, i_row + ROWS, i_col)
            send(d_k, s_k, bar_k, i_batch, i_row + ROWS, i_col)

        b_y, b_diff, b_phi = through_scores(
            b_x, b_y, b_phi, b_kh, b_kl, b_d, b_half, b_h, s_q, s_high, s_low, bar_q, phase
        )
        b_dg = sums_begun(b_diff, s_u, WIDE)
        b_dk = rounded(b_y * b_e)
        leave(
            b_dg, b_dk, b_phi, b_diff, mild, passing, d_dq, d_dk, d_dg, s_q, s_high, s_low, t_dg.index(nil),
            p_marks, p_edges, i_batch, i_row, i_col, nil, PACKED,
        )  # fmt: skip
    tma.store_wait(0)
