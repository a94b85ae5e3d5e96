"""The part of grad_qk_wide.py that leads the state along. The equations and the barriers are there."""

# mypy: disallow-untyped-defs=False, disable-error-code="assignment"
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from ...launch.tritons import async_store, barrier
from ...tiles.hopper import ACCUMULATOR, EVERYWHERE, ROWS, matrix
from .frames import decay, frame, is_strong
from .grad_qk_rows import after_rows, decayed_keys, first_state, from_tail, gates_begun, stage_of, zero_of_tile
from .layouts import CLOSED_HALF, LEAST_HALF, limit
from .packed import head_and_tail, passes
from .strong_gates import hidden_zero

# What rounding to bfloat16 leaves of the state is kept in a byte: with its sign it counts 256ths of what the last bit
# of bfloat16 stands for. It is read once more for the bits below: were they always 0, what is cut off would add up
# over chunks. An int32 has those of four tiles: of numbers of 16 bits each would take a register of its own. By which
# tile of the four it is, selectors of bytes: its byte twice, with the sign; and all four, where its own comes from the
# second byte of another number.
SIGNED = gl.constexpr(("0x8800", "0x9911", "0xaa22", "0xbb33"))
REPLACED = gl.constexpr(("0x7651", "0x7614", "0x7154", "0x1654"))


@gluon.jit
def with_rest(b_s, b_rest, AT: gl.constexpr):
    """A tile of the state: what it was rounded to and what that left, as float32."""
    return gl.inline_asm_elementwise(
        "{ .reg .b32 s, t, r; shl.b32 s, $2, 16; and.b32 t, $2, 0xffff0000; prmt.b32 r, $3, 0, " + SIGNED[AT]
        + "; add.s32 $0, s, r; prmt.b32 r, $4, 0, " + SIGNED[AT] + "; add.s32 $1, t, r; }",
        "=&r,=&r,r,r,r", [b_s, b_rest], dtype=gl.float32, is_pure=True, pack=2,
    )  # fmt: skip


@gluon.jit
def cut_off(b_x, b_rest, AT: gl.constexpr):
    """A tile of the state in float32, rounded to bfloat16, and b_rest with what that leaves. The last bit is set, so
    that none lies in the middle of two numbers: the rest does not tell which way it was rounded."""
    return gl.inline_asm_elementwise(
        "{ .reg .b32 s, t; or.b32 s, $3, 1; or.b32 t, $4, 1; cvt.rn.bf16x2.f32 $0, t, s; prmt.b32 $1, s, $5, "
        + REPLACED[AT] + "; prmt.b32 $2, t, $6, " + REPLACED[AT] + "; }",
        "=&r,=&r,=&r,r,r,r,r", [b_x, b_rest], dtype=(gl.bfloat16, gl.int32), is_pure=True, pack=2,
    )  # fmt: skip


@gluon.jit
def _decayed(
    s_s, b_rest, b_f, passing, tail, p_sn, p_marks, p_hv, strong, n_rows, i_row, i_head, n_heads, i_feature,
    b_begun, i_v: gl.constexpr, K: gl.constexpr, V: gl.constexpr,
    PACKED: gl.constexpr, HAS_SN: gl.constexpr, V_FIRST: gl.constexpr, FRAMED: gl.constexpr,
):  # fmt: skip
    """A tile of the state before the chunk, decayed by it."""
    b_s = with_rest(s_s.index(i_v).load(ACCUMULATOR), b_rest[i_v // 4], i_v % 4) * b_f[:, None]
    if FRAMED:
        if strong:
            b_s = b_s * decay(gl.load(p_hv + i_v * ROWS + gl.arange(0, ROWS, gl.SliceLayout(0, ACCUMULATOR))))[None, :]
    if PACKED:
        if HAS_SN:
            if (not passing) & (tail < ROWS):
                b_s = first_state(
                    p_sn, p_marks, n_rows, i_row, i_head, n_heads, i_feature, i_v * ROWS, b_begun, K, V, V_FIRST
                )
    return b_s


@gluon.jit
def _begin(b_kd, b_next, b_z, s_s, s_v, s_ds, full, i_c, i_v: gl.constexpr, NV: gl.constexpr, STAGES: gl.constexpr):
    """A tile of the state after the chunk, from what reaches it of the one before; and S dS^T with the tile's."""
    at, turn = stage_of(i_c, i_v, NV, STAGES)
    nil = zero_of_tile(i_c, i_v)
    mbarrier.wait(full.index(at), turn)
    b_next = warpgroup_mma(b_kd, matrix(s_v.index(at + nil)), b_next, is_async=True)
    b_z = warpgroup_mma(s_s.index(i_v + nil), s_ds.index(at + nil).permute((1, 0)), b_z, is_async=True)
    return b_next, b_z


@gluon.jit
def state_part(
    d_s, s_k, s_g, s_v, s_ds, s_s, s_l, s_h, s_phi, full, done, empty, first, made, rows, let, summed,
    p_marks, p_edges, p_sn, p_hv, p_strong, n_rows, i_head, n_heads, i_feature, i_row0, i_state, count,
    K: gl.constexpr, V: gl.constexpr, STAGES: gl.constexpr,
    PACKED: gl.constexpr, HAS_SN: gl.constexpr, V_FIRST: gl.constexpr, FRAMED: gl.constexpr,
):  # fmt: skip
    """Lead the state along, and sum S dS over V, which is the diagonal of S dS^T. Each next tile is on its way while a
    tile is rounded. After the last chunk the state is laid down as well: nobody reads it. FRAMED: p_hv and p_strong are
    of the run's first chunk."""
    NV: gl.constexpr = V // ROWS
    b_zero = gl.zeros([ROWS, ROWS], gl.float32, ACCUMULATOR)
    b_rest = ()
    for _ in gl.static_range((NV + 3) // 4):
        b_rest = b_rest + (b_zero.to(gl.int32),)  # noqa: RUF005
    mbarrier.wait(first, 0)
    for i_c in range(count):
        phase, nil, i_row = i_c & 1, hidden_zero(i_state + i_c), i_row0 + i_c * ROWS
        head, tail, passing = ROWS, 0, count > 0
        if PACKED:
            head, tail = head_and_tail(p_edges, i_row)
            passing = passes(head, tail)
        mbarrier.wait(rows, phase)
        least = gl.min(s_h.load(gl.SliceLayout(0, EVERYWHERE)), axis=0)
        if s_g.dtype == gl.bfloat16:
            if least < CLOSED_HALF:  # there may be gates of -inf, and what is summed beside them would be no number
                limit(s_g)
        b_d = gates_begun(s_g, s_l)
        b_half = s_h.load(gl.SliceLayout(1, ACCUMULATOR))
        b_h = gl.exp2(b_half)
        mild = least > LEAST_HALF
        b_d = after_rows(warpgroup_mma_wait(0, (b_d,)), nil)
        b_f = b_h * b_h
        b_begun = b_half
        if PACKED:
            if not passing:
                b_d, b_begun = from_tail(b_d, b_half, p_edges, i_row)
                b_f = gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, ACCUMULATOR))
        b_kd = decayed_keys(s_k, b_d)
        barrier()  # every warp is done with g, k and h
        mbarrier.arrive(let)
        wanted = not mild  # the strong kernel asks for the state
        strong, p_after = mild, p_hv
        if FRAMED:
            strong, p_after = is_strong(p_strong, i_c, V), p_hv + gl.where(i_c + 1 < count, V, 0)
            wanted = wanted | strong
        if PACKED:
            wanted = wanted | ((head > 0) & (not passing))  # and so does `edges`, where a sequence ends
        if wanted:
            for i_v in gl.static_range(NV):
                async_store(d_s, [i_state + i_c * K, i_v * ROWS], s_s.index(i_v))
            tma.store_wait(0)
            barrier()

        b_next = _decayed(
            s_s, b_rest, b_f, passing, tail, p_sn, p_marks, p_hv, strong, n_rows, i_row, i_head, n_heads, i_feature,
            b_begun, 0, K, V, PACKED, HAS_SN, V_FIRST, FRAMED,
        )  # fmt: skip
        b_next, b_z = _begin(b_kd, b_next, b_zero, s_s, s_v, s_ds, full, i_c, 0, NV, STAGES)
        for i_v in gl.static_range(NV):
            b_now = b_next
            if FRAMED:
                o_v = i_v * ROWS + gl.arange(0, ROWS, gl.SliceLayout(0, ACCUMULATOR)) + nil
                b_frame = gl.exp2(frame(gl.load(p_hv + o_v)) + frame(gl.load(p_after + o_v)))
            if i_v + 1 < NV:
                b_next = _decayed(
                    s_s, b_rest, b_f, passing, tail, p_sn, p_marks, p_hv, strong, n_rows, i_row, i_head, n_heads,
                    i_feature, b_begun, i_v + 1, K, V, PACKED, HAS_SN, V_FIRST, FRAMED,
                )  # fmt: skip
            b_now, b_z = warpgroup_mma_wait(0, (b_now, b_z))
            at, turn = stage_of(i_c, i_v, NV, STAGES)
            mbarrier.wait(done.index(at), turn)
            barrier()  # every warp is done with the stage
            mbarrier.arrive(empty.index(at))
            if i_v + 1 < NV:
                b_next, b_z = _begin(b_kd, b_next, b_z, s_s, s_v, s_ds, full, i_c, i_v + 1, NV, STAGES)
            if FRAMED:
                b_now = b_now * b_frame[None, :]
            b_sh, b_left = cut_off(b_now, b_rest[i_v // 4], i_v % 4)
            b_rest = b_rest[: i_v // 4] + (b_left,) + b_rest[i_v // 4 + 1 :]  # noqa: RUF005
            s_s.index(i_v).store(b_sh)
            if i_v == NV - 1:
                o_i = gl.arange(0, ROWS, gl.SliceLayout(1, ACCUMULATOR))[:, None] + nil
                o_j = gl.arange(0, ROWS, gl.SliceLayout(0, ACCUMULATOR))[None, :]
                s_phi.store(gl.sum(gl.where(o_i == o_j, b_z, 0.0), axis=1))
            fence_async_shared()
            barrier()  # the state lies there
            mbarrier.arrive(made.index(i_v))
        mbarrier.arrive(summed)
        if FRAMED:
            p_hv = p_after
