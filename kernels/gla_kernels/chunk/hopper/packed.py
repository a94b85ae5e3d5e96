"""Packed sequences in Hopper's own kernels, in Gluon: which rows of a chunk a state from before it reaches, and which
ones reach the state after it. Chunks stay where they would be in one sequence; marks are of `packed.marks`.

Of a chunk's rows, the first ``head`` belong to a sequence that came from the chunk before; those from ``tail`` on to
one that goes on in the next chunk. A single sequence that does both has head = ROWS, tail = 0.
"""

# mypy: disallow-untyped-defs=False
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ...tiles.hopper import ACCUMULATOR, ROWS, SPREAD


@gluon.jit
def head_and_tail(p_edges, i_row):
    """Of the chunk that begins at row i_row: 0 .. ROWS, both; tail is ROWS where no sequence goes on. p_edges: see
    `packing.edges`. Where a chunk waits for nothing else from memory, they are loaded a chunk before. What only chunks
    need that are not of one sequence loads them again, in a branch of its own: nothing is kept in registers for it, and
    with a load the branch stays one. Of masks alone the compiler makes selections, in every chunk."""
    p_edges += i_row // ROWS * 2
    return gl.load(p_edges), gl.load(p_edges + 1)


@gluon.jit
def passes(head, tail):
    """Whether one sequence comes from the chunk before and goes on in the next one."""
    return (head == ROWS) & (tail == 0)


@gluon.jit
def as_factor(there):
    """1 or 0. What is not to pass is multiplied by 0: to choose in a branch takes registers for all of a state."""
    return gl.where(there, 1.0, 0.0)


@gluon.jit
def sequence_of(p_marks, n_rows, i_row):
    """Which sequence a row belongs to."""
    return gl.load(p_marks + 2 * n_rows + i_row).to(gl.int64)


@gluon.jit
def firsts(p_marks, i_row, LAYOUT: gl.constexpr):
    """For each row of a chunk its sequence's first row, counted from the chunk's."""
    return gl.load(p_marks + i_row + gl.arange(0, ROWS, LAYOUT)) - i_row


@gluon.jit
def firsts_of_rows(p_marks, i_row):
    """`firsts` as `same_scores` wants them."""
    return firsts(p_marks, i_row, gl.SliceLayout(1, ACCUMULATOR))


@gluon.jit
def of_rows(b_x, first, end):
    """Of a tile [features, rows] the rows first .. end-1, zeros elsewhere."""
    o_t = gl.arange(0, ROWS, gl.SliceLayout(0, ACCUMULATOR))
    return gl.where(((o_t >= first) & (o_t < end))[None, :], b_x, 0.0)


@gluon.jit
def same_scores(b_a, b_first):
    """Scores of a chunk's rows by columns, on and below the diagonal, where both are of one sequence; 0 elsewhere.
    b_first: `firsts`."""
    o_j = gl.arange(0, ROWS, gl.SliceLayout(0, ACCUMULATOR))
    return gl.where(o_j[None, :] >= b_first[:, None], b_a, 0.0)


@gluon.jit
def within_sequences(b_a, b_x, b_y, p_marks, p_edges, i_row):
    """Of a chunk that is not of one sequence: the scores that are, X [features, rows] of the rows that a state from
    before it reaches, and Y of those that reach the state after it."""
    head, tail = head_and_tail(p_edges, i_row)
    b_a = same_scores(b_a, firsts_of_rows(p_marks, i_row))
    return b_a, of_rows(b_x, 0, head), of_rows(b_y, tail, ROWS)


@gluon.jit
def sums_in_sequences(s_u, p_marks, i_row):
    """U[i, t] = 1 for i >= t of one sequence: what a row's gate leads to."""
    o_i, o_t = gl.arange(0, ROWS, gl.SliceLayout(1, SPREAD)), gl.arange(0, ROWS, gl.SliceLayout(0, SPREAD))
    m_u = (o_i[:, None] >= o_t[None, :]) & (o_t[None, :] >= firsts(p_marks, i_row, gl.SliceLayout(1, SPREAD))[:, None])
    s_u.store(gl.where(m_u, 1.0, 0.0).to(gl.bfloat16))


@gluon.jit
def phi_of_rows(b_phi, tail):
    """What crosses the chunk's end, [features, rows]: it counts for the gates of the rows from tail on."""
    o_t = gl.arange(0, ROWS, gl.SliceLayout(0, ACCUMULATOR))
    return gl.where((o_t >= tail)[None, :], b_phi[:, None], 0.0)


@gluon.jit
def ends(p_marks, n_rows, i_row, LAYOUT: gl.constexpr):
    """For each row of a chunk the row after its sequence's last one, counted from the chunk's first row."""
    return gl.load(p_marks + n_rows + i_row + gl.arange(0, ROWS, LAYOUT)) - i_row
