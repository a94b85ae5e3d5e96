"""What the programs of the recurrent kernels do, token by token: see counts.py."""

from __future__ import annotations

from collections.abc import Callable

from .counting import Count


def _update(c: Count) -> None:
    """A token's gate and its outer product, into the state or its gradient."""
    s = c.s
    c.load(s.T, "g")
    if s.gated:
        c.exps += s.T * s.BK
        c.vector += s.T * s.state
    c.vector += 2 * s.T * s.state


def _output(c: Count) -> None:
    c.start("HAS_S0", "s0")
    c.load(c.s.T, "q", "k", "v")
    _update(c)
    c.vector += 2 * c.s.T * c.s.state
    c.store(c.s.T, "o")
    c.store_states(c.s.constexprs["STORE_ST"], "st")


def _grad_q(c: Count) -> None:
    c.start("HAS_S0", "s0")
    c.load(c.s.T, "k", "v", "do")
    _update(c)
    c.vector += 2 * c.s.T * c.s.state
    if c.s.gated:
        c.load(c.s.T, "q")
        c.store(c.s.T, "qdq")
    c.store(c.s.T, "dq")


def _grad_k(c: Count) -> None:
    s = c.s
    c.start("HAS_DST", "dst")
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


def _grad_v(c: Count) -> None:
    c.start("HAS_DST", "dst")
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


RECURRENT: dict[str, Callable[[Count], None]] = {
    "recurrent_output": _output,
    "recurrent_grad_q": _grad_q,
    "recurrent_grad_k": _grad_k,
    "recurrent_grad_v": _grad_v,
    "step": _step,
}
