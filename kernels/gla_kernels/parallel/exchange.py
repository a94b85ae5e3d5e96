"""Ranks of one host gather messages by one kernel, through memory that each opens to the others.

`torch.distributed` gathers a message of a MiB some ten times as slowly as NVLink carries it. Here each program puts its
block of the rank's message into the buffer of every peer, says so there, waits until all peers have said so of the same
block, and takes their blocks out. Programs of one number alone wait for one another.

A rank's buffer, in bytes, with P programs, each with a block of `BLOCK`:

    messages [2, ranks, P, BLOCK]     flags int32 [ranks, P]

flags: how many messages a peer's program has put here. How many the rank's own has put, its epoch, is in memory too, so
that CUDA graphs count on. Two slots are enough: a program that puts its block n+2 has seen the peer's one of n+1, which
the peer sent after it had taken out n.
"""

# mypy: disallow-untyped-defs=False
from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from ..launch import Launch, interpreting, settle_keys
from ..schedule import cdiv

BLOCK = 16384  # bytes: of a program, which has 256 threads for it
WARPS = 8
SLOTS = 2
WORD = 4  # bytes of a flag
# Returns when a number in memory is no less than another, both counted from 0 on beyond 32 bits; ends the kernel, and
# with it all work of the process on this GPU, where that takes longer than so many ns.
UNTIL = tl.constexpr("""{
    .reg .u64 %now, %end;
    .reg .b32 %ahead;
    .reg .pred %p;
    mov.u64 %end, %globaltimer;
    add.u64 %end, %end, $3;
again:
    ld.acquire.sys.global.b32 %ahead, [$1];
    sub.s32 %ahead, %ahead, $2;
    setp.ge.s32 %p, %ahead, 0;
    @%p bra done;
    mov.u64 %now, %globaltimer;
    setp.lt.u64 %p, %now, %end;
    @%p bra again;
    trap;
done:
    mov.b32 $0, %ahead;
}""")


@triton.jit
def _buffer_of(p_buffers, rank, dtype: tl.constexpr):
    """The buffer of a rank, or of several, as numbers of that type. The compiler is told that 16 divides its address:
    else it would copy number by number."""
    return tl.multiple_of(tl.load(p_buffers + rank).to(tl.pointer_type(dtype)), 16)


@triton.jit
def _wait(p_flags, epoch, patience, PLAIN: tl.constexpr):
    """Until all flags have come to the epoch. PLAIN: they have."""
    if PLAIN:
        b_ahead = tl.load(p_flags)
    else:
        b_ahead = tl.inline_asm_elementwise(
            UNTIL, "=r,l,r,l", [p_flags, epoch, patience], tl.int32, is_pure=False, pack=1
        )
    return b_ahead


@triton.jit(do_not_specialize=["rank", "patience"])
def exchange_kernel(
    p_x, p_buffers, p_epochs, p_found, n, rank, patience,
    RANKS: tl.constexpr, PADDED: tl.constexpr, PROGRAMS: tl.constexpr, BLOCK: tl.constexpr, PLAIN: tl.constexpr,
):  # fmt: skip
    """p_found [RANKS, n]: what all ranks have in p_x [n]. p_buffers int64 [RANKS]: the addresses of their buffers, of
    PROGRAMS blocks of BLOCK numbers; p_epochs int32 [PROGRAMS], this rank's. patience: ns that peers may be late."""
    dtype: tl.constexpr = p_x.dtype.element_ty
    SIZE: tl.constexpr = PROGRAMS * BLOCK
    FLAGS: tl.constexpr = 2 * RANKS * SIZE * (dtype.primitive_bitwidth // 8) // 4  # where they begin, in words
    i_p = tl.program_id(0)
    o_n, o_r = i_p * BLOCK + tl.arange(0, BLOCK), tl.minimum(tl.arange(0, PADDED), RANKS - 1)
    m_n, m_r = o_n < n, tl.arange(0, PADDED) < RANKS
    p_told = _buffer_of(p_buffers, rank, tl.int32) + FLAGS + i_p + o_r * PROGRAMS
    p_tell = _buffer_of(p_buffers, o_r, tl.int32) + FLAGS + i_p + rank * PROGRAMS
    epoch = tl.load(p_epochs + i_p) + 1
    slot = (epoch & 1) * RANKS
    p_own = _buffer_of(p_buffers, rank, dtype) + slot * SIZE + o_n
    b_x = tl.load(p_x + o_n, mask=m_n)
    for i in tl.static_range(1, RANKS):  # each begins with another, so that they do not all write to one
        p_peer = _buffer_of(p_buffers, (rank + i) % RANKS, dtype) + (slot + rank) * SIZE
        tl.store(p_peer + o_n, b_x, mask=m_n)

    # A release by one thread a peer, behind a barrier, is one of what all threads have stored.
    tl.debug_barrier()
    tl.atomic_xchg(p_tell, tl.zeros([PADDED], dtype=tl.int32) + epoch, mask=m_r, sem="release", scope="sys")
    tl.store(p_found + rank.to(tl.int64) * n + o_n, b_x, mask=m_n)

    # An acquire by one, before a barrier, is one for all; behind L1, which does not hear of what peers write.
    _wait(p_told, epoch, tl.cast(patience, tl.int64), PLAIN)
    tl.debug_barrier()
    for i in tl.static_range(1, RANKS):
        peer = (rank + i) % RANKS
        b_y = tl.load(p_own + peer * SIZE, mask=m_n, cache_modifier=".cg")
        tl.store(p_found + peer.to(tl.int64) * n + o_n, b_y, mask=m_n)
    tl.store(p_epochs + i_p, epoch)


settle_keys(exchange_kernel)


def programs_of(size: int) -> int:
    """Of a message of so many bytes."""
    return cdiv(size, BLOCK)


def buffer_bytes(ranks: int, programs: int) -> int:
    """Of a rank's buffer. Its flags are 0 before the first exchange."""
    return SLOTS * ranks * programs * BLOCK + WORD * ranks * programs


def exchange_of(x: Tensor, buffers: Tensor, epochs: Tensor, found: Tensor, rank: int, patience: int) -> Launch:
    """The launch that gathers x [n] of all ranks in found [ranks, n]. buffers: int64 [ranks], their addresses here;
    epochs: int32 [programs], as many as the message has or more. They are 0 before the first exchange."""
    ranks, n = found.shape
    args: dict[str, Any] = {"p_x": x, "p_buffers": buffers, "p_epochs": epochs, "p_found": found}
    args |= {"n": n, "rank": rank, "patience": patience}
    sizes = {"RANKS": ranks, "PADDED": triton.next_power_of_2(ranks), "PROGRAMS": len(epochs)}
    flags = {"BLOCK": BLOCK // x.itemsize, "PLAIN": interpreting()}
    return Launch(exchange_kernel, (programs_of(x.nbytes),), args, sizes | flags, num_warps=WARPS)
