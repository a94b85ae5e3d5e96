"""What the programs of each kernel do: one function a kernel, in the order of its loops, made of the same parts.

Counted are elements loaded and stored (masked lanes move nothing), products on tensor cores, exponentials, and float32
operations on tiles: additions, multiplications, running and plain sums, one operation an element (whole tiles: masked
lanes are computed too). Left out are rows of a tile's width such as a block's whole decay, of which only exponentials
count; additions to a product, which tensor cores do; negations, casts and rounding to tf32, masks, addresses.

Where a program loads the same tile twice in one block of code, or takes the same exponentials, once counts: the
compiler merges them. Diagonal blocks of scores are counted as their fast path, which `gates.is_mild` chooses; how many
take the other one depends on the gates.
"""

from __future__ import annotations

from collections.abc import Callable

from .counting import Count


def _to_end(c: Count, blocks: int, rows: int) -> None:
    """gates.decay_to_end and its exponential: all rows but each block's first."""
    c.load(rows - blocks, "g", again=True)
    if c.s.gated:
        c.exps += blocks * c.s.keys
        c.vector += 2 * blocks * c.s.keys


def _decayed_keys(c: Count, blocks: int, rows: int) -> None:
    """gates.decayed_keys."""
    c.load(rows, "k", "g")
    _to_end(c, blocks, rows)
    if c.s.gated:
        c.vector += 3 * blocks * c.s.keys


def _decayed_queries(c: Count, blocks: int, rows: int) -> None:
    """gates.decayed_queries."""
    c.load(rows, "q", "g")
    if c.s.gated:
        c.exps += blocks * c.s.keys
        c.vector += 4 * blocks * c.s.keys


def _decay(c: Count, times: int) -> None:
    """gates.decay of a tile of keys."""
    if c.s.gated:
        c.exps += times * c.s.BK
        c.vector += times * c.s.keys


def _advance(c: Count) -> None:
    """states.advance, over the whole sequence."""
    s = c.s
    _decayed_keys(c, s.blocks, s.T)
    c.load(s.T, "v")
    c.dot(s.blocks, s.keys * s.BV)
    if s.gated:
        c.exps += s.blocks * s.BK
        c.vector += s.blocks * s.state


def _retreat(c: Count) -> None:
    """states.retreat, over the whole sequence."""
    s = c.s
    _decayed_queries(c, s.blocks, s.T)
    c.load(s.T, "do")
    c.dot(s.blocks, s.keys * s.BV)
    c.vector += 2 * s.blocks * s.state
    if s.gated:
        c.exps += s.blocks * s.BK
        c.vector += s.blocks * s.state


def _start(c: Count, given: str, name: str, count: int = 1) -> None:
    """The states, or their gradients, that programs start from, where the launch is given any."""
    if c.s.constexprs[given]:
        c.load_states(count, name)
        c.vector += count * c.s.state


def _states(c: Count) -> None:
    s = c.s
    _start(c, "HAS_S0", "s0")
    c.store_states(s.segments if s.T else 0, "s")
    _advance(c)
    c.store_states(s.constexprs["STORE_ST"], "st")


def _grad_states(c: Count) -> None:
    s = c.s
    _start(c, "HAS_DST", "dst")
    c.store_states(s.segments if s.T else 0, "ds")
    _retreat(c)
    c.store_states(s.constexprs["STORE_DS0"], "ds0")


def _scores(c: Count) -> None:
    """Products and diagonal scores of a row block in output and grad_v, whose own keys or queries are decayed."""
    s = c.s
    if s.gated:
        c.exps += 2 * s.blocks * s.keys  # scores.diagonal_scores: towards its middle and away from it
        c.vector += 3 * s.blocks * s.keys
    c.dot(s.blocks, s.scores * s.BK, s.gated)
    c.dot(s.blocks, s.scores * s.BV)
    _decay(c, s.blocks)
    c.dot(s.blocks, s.keys * s.BV)


def _score_pairs(c: Count, pairs: int) -> None:
    """Products of pairs of row blocks in output and grad_v."""
    s = c.s
    _decay(c, pairs)
    c.dot(pairs, s.scores * s.BK, s.wide)
    c.dot(pairs, s.scores * s.BV)


def _output(c: Count) -> None:
    s = c.s
    pairs = s.pairs(s.T)
    _start(c, "HAS_S", "s", s.segments)
    c.load(s.T, "k", "v")
    _decayed_queries(c, s.blocks, s.T)
    _scores(c)
    _decayed_keys(c, pairs, pairs * s.BT)
    c.load(pairs * s.BT, "v")
    _score_pairs(c, pairs)
    c.vector += s.blocks * s.values  # the scale
    c.store(s.T, "o")
    if s.walk:
        _advance(c)
    c.store_states(s.constexprs["STORE_ST"], "st")


def _grad_v(c: Count) -> None:
    s = c.s
    pairs, rows = s.pairs(s.T), s.later_rows()
    _start(c, "HAS_DS", "ds", s.segments)
    c.load(s.T, "q", "do")
    _decayed_keys(c, s.blocks, s.T)
    if s.gated:
        c.vector += s.blocks * s.keys  # the running sum of the block's gates
    _scores(c)
    _decayed_queries(c, pairs, rows)
    c.load(rows, "do")
    _score_pairs(c, pairs)
    c.vector += (s.blocks + pairs) * s.scores  # the scale
    c.store(s.T, "dv")
    if s.walk:
        _retreat(c)
    c.store_states(s.constexprs["STORE_DS0"], "ds0")


def _grad_scores(c: Count) -> None:
    """What grad_q and grad_k do alike with a row block, diagonal scores and the state included."""
    s = c.s
    c.load(s.T, "q", "k", "v", "do", "g")
    c.dot(s.blocks * (2 if s.exact else 1), s.keys * s.BV)  # tiles.dot_state
    c.vector += s.blocks * (s.state if s.exact else 0)
    _decay(c, s.blocks)
    c.dot(s.blocks, s.scores * s.BV)
    c.dot(s.blocks, s.scores * s.BK, s.gated)
    c.vector += s.blocks * (2 * s.scores + 2 * s.keys)  # the scale, the diagonal's own rows
    if s.gated:
        c.exps += 2 * s.blocks * s.keys
        # the block's decay 3, the rows' 1, what enters and its q dq 3, scores.diagonal_grad_q 5, its sum with that 1
        c.vector += (13 + (0 if s.single else 2)) * s.blocks * s.keys


def _grad_score_pairs(c: Count, pairs: int) -> None:
    """Products of pairs of row blocks in grad_q and grad_k."""
    s = c.s
    c.dot(pairs, s.scores * s.BV)
    c.dot(pairs, s.scores * s.BK, s.wide)
    c.vector += pairs * s.scores
    _decay(c, pairs)
    if s.gated:
        c.vector += pairs * s.keys


def _grad_q(c: Count) -> None:
    s = c.s
    pairs = s.pairs(s.T)
    _start(c, "HAS_S", "s", s.segments)
    _grad_scores(c)
    c.vector += s.blocks * s.keys  # the scale of what enters
    if s.gated:
        c.exps += s.blocks * s.keys
        c.vector += s.blocks * s.keys  # q dq of what enters and of the block itself
        c.store(s.T, "qdq")
    else:
        c.vector += s.blocks * s.keys
    _decayed_keys(c, pairs, pairs * s.BT)
    c.load(pairs * s.BT, "v")
    _grad_score_pairs(c, pairs)
    c.store(s.T, "dq")
    if s.walk:
        _advance(c)


def _grad_k(c: Count) -> None:
    s = c.s
    pairs, rows = s.pairs(s.T), s.later_rows()
    _start(c, "HAS_DS", "ds", s.segments)
    if s.gated:
        _gate_carry(c)
    _grad_scores(c)
    if s.gated:
        c.load(s.T, "qdq")
        _to_end(c, s.blocks, s.T)
        c.vector += 5 * s.blocks * s.keys  # the gates' gradient
        c.store(s.T, "dg")
    elif s.exact:
        c.vector += s.blocks * s.keys
    _decayed_queries(c, pairs, rows)
    c.load(rows, "do")
    _grad_score_pairs(c, pairs)
    c.store(s.T, "dk")
    if s.walk:
        _retreat(c)


def _gate_carry(c: Count) -> None:
    """What the gates' gradient starts from at a segment's end: sums of products of states, and of k dk."""
    s = c.s
    if s.walk:
        read = s.segments - 1 if s.constexprs["HAS_DS"] and s.constexprs["HAS_S"] else 0
        last = 1 if s.constexprs["HAS_DS"] and s.constexprs["HAS_ST"] else 0
        c.load_states(read, "s")
        c.load_states(last, "st")
        c.vector += 2 * (read + last) * s.state
        return
    c.load_states(s.segments, "s")
    c.vector += 2 * s.segments * s.state
    if s.single:
        c.exps += s.blocks * s.BK
        c.vector += s.blocks * s.keys
    else:
        _decayed_keys(c, s.blocks, s.T)
        c.load(s.T, "v")
        c.dot(s.blocks, s.keys * s.BV)
        _decay(c, s.blocks)
        c.exps += s.segments * s.BK
        c.vector += 2 * s.blocks * s.keys


# --- The recurrent kernels: token by token ----------------------------------------------------------------------------


def _update(c: Count) -> None:
    """A token's gate and its outer product, into the state or its gradient."""
    s = c.s
    c.load(s.T, "g")
    if s.gated:
        c.exps += s.T * s.BK
        c.vector += s.T * s.state
    c.vector += 2 * s.T * s.state


def _recurrent_output(c: Count) -> None:
    _start(c, "HAS_S0", "s0")
    c.load(c.s.T, "q", "k", "v")
    _update(c)
    c.vector += 2 * c.s.T * c.s.state
    c.store(c.s.T, "o")
    c.store_states(c.s.constexprs["STORE_ST"], "st")


def _recurrent_grad_q(c: Count) -> None:
    _start(c, "HAS_S0", "s0")
    c.load(c.s.T, "k", "v", "do")
    _update(c)
    c.vector += 2 * c.s.T * c.s.state
    if c.s.gated:
        c.load(c.s.T, "q")
        c.store(c.s.T, "qdq")
    c.store(c.s.T, "dq")


def _recurrent_grad_k(c: Count) -> None:
    s = c.s
    _start(c, "HAS_DST", "dst")
    c.load(s.T, "q", "v", "do")
    _update(c)
    c.vector += 2 * s.T * s.state
    if s.gated:
        if s.constexprs["HAS_DST"]:
            c.load_states(1, "st")
            c.vector += 2 * s.state
        c.load(s.T, "k", "qdq")
        c.load(s.T, "g", again=True)
        c.exps += s.T * s.BK
        c.store(s.T, "dg")
    c.store(s.T, "dk")
    c.store_states(s.constexprs["STORE_DS0"], "ds0")


def _recurrent_grad_v(c: Count) -> None:
    _start(c, "HAS_DST", "dst")
    c.load(c.s.T, "q", "k", "do")
    _update(c)
    c.vector += 2 * c.s.T * c.s.state
    c.store(c.s.T, "dv")


def _step(c: Count) -> None:
    c.load_states(1, "s")
    c.load(1, "q", "k", "v")
    _update(c)
    c.vector += 2 * c.s.state
    c.store(1, "o")
    c.store_states(1, "s")


KERNELS: dict[str, Callable[[Count], None]] = {
    "states": _states,
    "output": _output,
    "grad_states": _grad_states,
    "grad_q": _grad_q,
    "grad_k": _grad_k,
    "grad_v": _grad_v,
    "recurrent_output": _recurrent_output,
    "recurrent_grad_q": _recurrent_grad_q,
    "recurrent_grad_k": _recurrent_grad_k,
    "recurrent_grad_v": _recurrent_grad_v,
    "step": _step,
}
