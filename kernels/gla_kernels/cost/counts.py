"""What the programs of each kernel do: one function a kernel, in the order of its loops, made of the same parts.

Counted are elements loaded and stored (masked lanes move nothing), products on tensor cores, exponentials, and float32
operations on tiles: additions, multiplications, running and plain sums, one operation an element (whole tiles: masked
lanes are computed too). Left out are rows of a tile's width such as a block's whole decay, of which only exponentials
count; additions to a product, which tensor cores do; negations, casts and rounding to tf32, masks, addresses.

Where a program loads the same tile twice in one block of code, or takes the same exponentials, once counts: the
compiler merges them. What a loop does is counted in each of its iterations. Row blocks are counted as mild
(`gates.mild_block`, `products.are_mild`); how many take the other path depends on the gates.
"""

from __future__ import annotations

from collections.abc import Callable

from ..tiles.gates import MIN_COLUMNS
from .counting import GAMMA, HALVES, STRONG, Count
from .recurrent import RECURRENT

ONES = MIN_COLUMNS.value  # columns of what gates are multiplied by for the sum of all rows


def _summed_gates(c: Count, times: int, along_rows: int) -> None:
    """Sums over tiles of gates: one product with a triangle, or so many operations along the rows."""
    s = c.s
    if s.gate_products:
        c.gate_products += 2 * times * s.gate_products * s.scores * s.BK
        # log2(e), and what cuts float32 gates into parts
        c.vector += times * s.gate_products * s.keys
    else:
        c.vector += times * along_rows * s.keys


def _centred(c: Count, times: int) -> None:
    """gates.centred_decay: log2(e), the running sum and the whole one, and their difference."""
    _summed_gates(c, times, 4)


def _whole_decays(c: Count, times: int) -> None:
    """gates.whole_decay: a product with ones, or a sum along the rows."""
    s = c.s
    if s.gate_products:
        c.gate_products += 2 * times * s.gate_products * s.keys * ONES
        c.vector += times * ((s.gate_products - 1) * s.keys + s.BK * ONES)
    else:
        c.vector += times * s.keys


def _gates_over_time(c: Count) -> None:
    """Decays of each row and over all of a block; gates.wide_decays, of float32 gates: two parts, and a sum."""
    s = c.s
    if s.gate_products > 1:
        c.gate_products += 2 * s.blocks * 2 * s.scores * s.BK
        c.vector += s.blocks * 3 * s.keys
    else:
        _summed_gates(c, s.blocks, 2)
        _whole_decays(c, s.blocks)


def _half_product(c: Count, times: int, multiplied: int) -> None:
    """tiles.dot_half, whose left operand is a tile of scores."""
    s = c.s
    c.dot(times * (2 if s.halved else 1), multiplied)
    c.vector += times * s.scores * s.halved


def _rows_product(c: Count, times: int, cuts: int) -> None:
    """products.dot_rows, so many times: scores' gradients and a tile of keys. cuts: how often the former are cut."""
    s = c.s
    c.vector += cuts * s.scores * s.halved
    if s.halved:
        c.dot((3 if s.gated else 2) * times, s.scores * s.BK)
        c.vector += times * s.keys * s.gated
    else:
        c.dot(times, s.scores * s.BK, wide=True)


def _states(c: Count) -> None:
    s = c.s
    if "UNITS" in s.constexprs:
        return _prepared_ends(c, "kd", "v", "s")
    c.start("HAS_S0", "s0", s.segments)
    c.store_states(-(-s.T // s.every), "s")
    c.load(s.T, "k", "v", "g")
    if s.gated:
        if not s.gate_products:  # gates.decay_to_end: all rows but each block's first
            c.load(s.T - s.blocks, "g", again=True)
        _gates_over_time(c)
        c.exps += s.blocks * (s.keys + s.BK)
        c.vector += s.blocks * (s.keys + s.state)
        if s.constexprs["STORE_H"]:
            c.store(s.blocks, HALVES)
        if s.constexprs["LAST"]:
            c.store(s.segments, GAMMA)
    c.dot(s.blocks, s.keys * s.BV)
    return c.store_states(s.constexprs["STORE_ST"], "st")


def _grad_states(c: Count) -> None:
    s = c.s
    if "UNITS" in s.constexprs:
        return _prepared_ends(c, "qd", "do", "ds")
    c.start("HAS_DST", "dst", s.segments)
    c.store_states(-(-s.T // s.every), "ds")
    c.load(s.T, "q", "do", "g")
    c.dot(s.blocks, s.keys * s.BV)
    if s.gated:
        _gates_over_time(c)
        c.exps += s.blocks * (s.keys + s.BK)
        c.vector += s.blocks * (2 * s.keys + s.state)
        if s.constexprs["LAST"]:
            c.store(s.segments, GAMMA)
    else:
        c.vector += 2 * s.blocks * s.state  # the scale, the sum
    return c.store_states(s.constexprs["STORE_DS0"], "ds0")


def _combine(c: Count) -> None:
    s = c.s
    c.start("HAS_FIRST", "first")
    c.load_states(s.turns, "add")
    c.load_halves(s.turns, name=GAMMA)
    if s.gated:
        c.exps += s.turns * s.BK
        c.vector += s.turns * s.state
    c.vector += s.turns * s.state
    c.store_states(s.segments, "s")


def _output(c: Count) -> None:
    s = c.s
    blocks, pairs = s.blocks * s.in_k, s.pairs(s.T) * s.in_k  # times that a tile of keys is worked on
    c.load_halves(s.blocks)
    c.load_halves(s.blocks + s.pairs(s.T), again=True)
    c.load(s.T, "q", "k", "v", "g")
    c.load_states(s.blocks, "s", s.chunks)
    if s.gated:
        _centred(c, blocks)
        c.exps += blocks * (2 * s.keys + s.BK)
        c.vector += 3 * blocks * s.keys
    c.dot(blocks, s.scores * s.BK, s.gated)
    c.dot(blocks, s.keys * s.BV)
    _half_product(c, s.blocks, s.scores * s.BV)
    if not s.single:
        c.load(s.later_rows(), "q", "g", again=True)
        c.load(s.pairs(s.T) * s.BT, "k", "v", "g")
        if s.gated and not s.gate_products:  # gates.decay_to_end: all rows but each block's first
            c.load(s.pairs(s.T) * (s.BT - 1), "g", again=True)
        c.load_halves(s.pairs(s.T) + s.blocks_between(), again=True)
        if s.gated:
            _centred(c, pairs)
            _summed_gates(c, pairs, 2)  # gates.after_rows
            c.exps += 2 * pairs * s.keys
            c.vector += 4 * pairs * s.keys
        c.dot(pairs, s.scores * s.BK, s.wide)
        _half_product(c, s.pairs(s.T), s.scores * s.BV)
    c.vector += s.blocks * s.values  # the scale
    c.store(s.T, "o")


def _grad_v(c: Count) -> None:
    s = c.s
    blocks, pairs = s.blocks * s.in_k, s.pairs(s.T) * s.in_k
    c.load_halves(s.blocks)
    c.load_halves(s.blocks + 2 * s.pairs(s.T), again=True)
    c.load(s.T, "q", "k", "g", "do")
    c.load_states(s.blocks, "ds", s.chunks)
    if s.gated:
        _centred(c, blocks)
        c.exps += blocks * (2 * s.keys + s.BK)
        c.vector += 3 * blocks * s.keys
    c.dot(blocks, s.scores * s.BK, s.gated)
    c.dot(blocks, s.keys * s.BV)
    if not s.single:
        c.load(s.later_rows(), "q", "g")
        c.load(s.in_k * s.later_rows(), "do")
        if s.gated:
            _centred(c, pairs)
            c.exps += pairs * (s.keys + s.BK)
            c.vector += 2 * pairs * s.keys
        c.dot(pairs, s.scores * s.BK, s.wide)
        c.vector += pairs * s.scores  # the scale
        _half_product(c, pairs, s.scores * s.BV)
    c.vector += s.blocks * s.scores
    _half_product(c, s.blocks, s.scores * s.BV)
    c.store(s.T, "dv")


def _prepare(c: Count) -> None:
    """What walks of wide heads read in place of q, k and g: of chunks of one row block, by all tiles of K in turn."""
    s = c.s
    blocks = s.blocks * s.in_k
    c.load(s.T, "q", "k", "g")
    _summed_gates(c, 2 * blocks, 0)
    c.exps += 4 * blocks * s.keys
    c.vector += 8 * blocks * s.keys
    c.dot(3 * blocks, s.scores * s.BK)
    c.store(s.T, "qd", "kd")
    c.store_scores()
    if s.constexprs["STORE_H"]:
        c.store(s.blocks, HALVES)
    if s.constexprs["STORE_F"]:
        c.store(s.blocks, "f")


def _prepared_ends(c: Count, keys: str, values: str, out: str) -> None:
    """What segments add, by what was prepared."""
    s = c.s
    blocks = s.blocks * s.in_k
    c.load(s.T, keys, values)
    c.load_halves(s.blocks)
    c.exps += blocks * s.BK
    c.vector += blocks * s.state
    c.dot(blocks, s.keys * s.BV)
    c.store_states(s.segments, out)
    c.store(s.segments, GAMMA)


def _prepared(c: Count, values: str, out: str) -> None:
    """What a walk, forward or back, does of what was prepared for it, but for states."""
    s = c.s
    blocks = s.blocks * s.in_k
    c.load(s.T, "qd", "kd", values)
    c.load_scores()
    c.load_halves(s.blocks)
    c.exps += blocks * s.BK
    c.vector += blocks * s.state
    c.dot(2 * blocks, s.keys * s.BV)
    c.dot(2 * s.blocks, s.scores * s.BV)
    c.store(s.T, out)


def _walk(c: Count) -> None:
    """states and output at once, of chunks of one row block."""
    s = c.s
    blocks = s.blocks * s.in_k
    c.start("HAS_S0", "s0", s.segments)
    c.store_states(s.blocks * s.constexprs["STORE_S"], "s")
    c.store_states(s.few * s.constexprs.get("STORE_FEW", False), "few")
    c.store_states(s.constexprs["STORE_ST"], "st")
    if "GROUPS" in s.constexprs:
        return _prepared(c, "v", "o")
    c.load(s.T, "q", "k", "v", "g")
    if s.gated:
        c.store(s.blocks, HALVES)
        _summed_gates(c, 2 * blocks, 0)
        c.exps += blocks * (3 * s.keys + 2 * s.BK)
        c.vector += blocks * (6 * s.keys + s.state)
        c.dot(2 * blocks, s.scores * s.BK)
    c.dot(blocks, s.scores * s.BK)
    c.dot(2 * blocks, s.keys * s.BV)
    _half_product(c, s.blocks, s.scores * s.BV)
    c.vector += s.blocks * s.values  # the scale
    return c.store(s.T, "o")


def _grad_walk(c: Count) -> None:
    """grad_states and grad_v at once, of chunks of one row block."""
    s = c.s
    blocks = s.blocks * s.in_k
    c.start("HAS_DST", "dst", s.segments)
    c.store_states(s.blocks, "ds")
    c.store_states(s.constexprs["STORE_DS0"], "ds0")
    if "GROUPS" in s.constexprs:
        return _prepared(c, "do", "dv")
    c.load(s.T, "q", "k", "g", "do")
    c.load_halves(s.blocks)
    c.load_halves(2 * s.blocks, again=True)
    _summed_gates(c, blocks, 0)
    c.exps += blocks * (2 * s.keys + 3 * s.BK)
    c.vector += blocks * (6 * s.keys + 2 * s.state)
    c.dot(3 * blocks, s.scores * s.BK)
    c.dot(2 * blocks, s.keys * s.BV)
    _half_product(c, s.blocks, s.scores * s.BV)
    return c.store(s.T, "dv")


def _through_state(c: Count, rows: str, state: str) -> None:
    """products.through_state, of every row block."""
    s = c.s
    c.load(s.T, rows)
    c.load_states(s.blocks, state, s.chunks)
    c.dot(s.blocks * s.in_v, s.keys * s.BV)


def _frame(c: Count, times: int) -> None:
    """grad_qk._centred, but for its loads: a tile of keys in the frame of its block's middle."""
    if c.s.gated:
        _centred(c, times)
        c.exps += times * c.s.keys
        c.vector += 2 * times * c.s.keys  # the sign; the keys


def _phi_at_end(c: Count) -> None:
    """grad_qk._phi_at_end, of every chunk."""
    s = c.s
    c.load(s.T, "k", "g")
    c.load_halves(s.blocks, again=True)
    _frame(c, s.blocks)
    _through_state(c, "v", "ds")
    c.exps += s.blocks * s.BK
    c.vector += s.blocks * (3 + 2 * s.halved) * s.keys  # tiles.fine, too
    c.load_states(s.chunks, "s")
    c.load_states(s.chunks, "ds")
    c.exps += s.chunks * s.BK
    c.vector += 2 * s.chunks * s.in_v * s.state


def _gradient_pairs(c: Count) -> None:
    """What each row block in grad_qk gets from those before it and from those after it."""
    s = c.s
    pairs, earlier, later = s.pairs(s.T), s.pairs(s.T) * s.BT, s.later_rows()
    c.load(2 * later, "do")
    c.load(2 * earlier, "v")
    c.load(earlier, "k", "g")
    c.load(later, "q", "g")
    c.load_halves(2 * pairs, again=True)
    c.dot(2 * pairs * s.in_v, s.scores * s.BV)
    c.vector += 2 * pairs * s.scores  # the scale
    _frame(c, 2 * pairs)
    _rows_product(c, 2 * pairs, 2 * pairs)
    if s.gated:
        c.exps += 2 * pairs * s.BK
        c.vector += 4 * pairs * s.keys


def _grad_qk(c: Count) -> None:
    s = c.s
    c.load_halves(s.blocks)
    if not s.single:
        c.load_halves(s.blocks, again=True)
        if s.gated:
            _phi_at_end(c)
    if s.leads_along:
        c.load_states(s.few, "few")
        c.load(s.T, "do")
        c.dot(2 * s.blocks * s.in_v, s.keys * s.BV)  # one of them adds to the state
        _summed_gates(c, s.blocks, 0)  # once more, for the state
        c.exps += s.blocks * (s.keys + s.BK)
        c.vector += s.blocks * (2 * s.keys + 4 * s.in_v * s.state)  # the state comes in two parts and is cut again
    else:
        _through_state(c, "do", "s")
    _through_state(c, "v", "ds")
    c.dot(s.blocks * s.in_v, s.scores * s.BV)
    c.vector += s.blocks * (s.scores + s.keys)  # the scale
    if not s.single:
        c.load(s.T, "do", "v", again=True)
        c.load_halves(s.pairs(s.T), again=True)
        _gradient_pairs(c)
    c.load(s.T, "k", "q", "g")
    _rows_product(c, 2 * s.blocks, s.blocks)
    if s.gated:
        c.exps += 2 * s.blocks * s.BK  # of what enters and of what leaves
        # these decays, rows in the block's frame and out of it again, their difference, Phi
        c.vector += 10 * s.blocks * s.keys
        _centred(c, s.blocks)
        c.exps += 2 * s.blocks * s.keys
        if s.single:
            c.vector += 2 * s.blocks * s.in_v * s.state
        _sums_from(c)
        c.vector += 2 * s.halved * s.blocks * s.keys  # tiles.fine, of what was already cut in two
        c.store(s.T, "dg")
    c.store(s.T, "dq", "dk")


def _strong(c: Count) -> None:
    """What a kernel of `chunk.strong_gates` does where all is mild."""
    c.load_halves(c.s.blocks)


def _sums_from(c: Count) -> None:
    """products.sums_from, of every row block: of two operands but for float32."""
    s = c.s
    twice = s.halved or s.precision == "tf32"
    c.dot(s.blocks * (2 if twice else 1), s.scores * s.BK, not s.halved)
    c.vector += s.blocks * twice * s.keys


KERNELS: dict[str, Callable[[Count], None]] = {
    "states": _states,
    "combine": _combine,
    "output": _output,
    "grad_states": _grad_states,
    "grad_qk": _grad_qk,
    "grad_v": _grad_v,
    "prepare": _prepare,
    "walk": _walk,
    "grad_walk": _grad_walk,
    **dict.fromkeys(STRONG, _strong),
    **RECURRENT,
}
