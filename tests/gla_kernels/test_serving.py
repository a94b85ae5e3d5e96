"""Pools of states as an engine has them: steps that replay tails, drafts, prefill; judged by the float64 recurrence."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gla_kernels import gla_step, reference
from gla_kernels.nn import GatedLinearAttention
from gla_kernels.serving import StatePool

SIZES = (2, 20, 36)  # H, K, V
FP8 = torch.float8_e4m3fn


def one_a_head(x: Any) -> Any:
    """The same inputs with gates that are alike for all features of a head."""
    x.g = x.g[..., :1].expand_as(x.g).contiguous()
    return x


def drawn(inputs: Any, B: int, T: int, gates: Any, dtype: torch.dtype = torch.float32) -> Any:
    """Inputs without states; gates: as of conftest.make_inputs, or "head"."""
    x = inputs((B, T, *SIZES), dtype, 1.0 if gates == "head" else gates, states=False)
    return one_a_head(x) if gates == "head" else x


def pool_for(x: Any, gates: Any, slots: int = 5, **how: Any) -> StatePool:
    kind = None if gates is None else "head" if gates == "head" else "key"
    return StatePool(slots, *SIZES, gates=kind, inputs=x.q.dtype, device=x.q.device, **how)


def tokens(x: Any, gates: Any, rows: Any, batch: Any = slice(None)) -> tuple[Any, Any, Any, Any]:
    """q, k, v and g of some rows of some sequences."""
    g = x.g[..., 0] if gates == "head" else x.g
    q, k, v, g = (None if y is None else y[batch, rows] for y in (x.q, x.k, x.v, g))
    return q, k, v, g


def right(x: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """o and the last state in float64."""
    wide = x.cast(torch.float64)
    return reference.recurrent(wide.q, wide.k, wide.v, wide.g)


def close(found: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)


def as_stored(pool: StatePool, states: torch.Tensor) -> torch.Tensor:
    return states.mT if pool.slots.v_first else states


# --- Tails ------------------------------------------------------------------------------------------------------------


@pytest.mark.each_value
@pytest.mark.parametrize("gates", [None, 1.0, "infinite", "head"])
@pytest.mark.parametrize("tail", [0, 1, 2, 5, 8])
@pytest.mark.parametrize("v_first", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_steps_with_a_tail_are_the_recurrence(inputs, gates, tail, v_first, dtype):
    steps_with_a_tail(inputs, gates, tail, v_first, dtype)


@pytest.mark.each_value
@pytest.mark.parametrize("gates", [40.0, "resets", "closed"])
@pytest.mark.parametrize("tail", [0, 5])
def test_steps_of_strong_gates_are_the_recurrence(inputs, gates, tail):
    steps_with_a_tail(inputs, gates, tail, tail == 0, torch.float32)


def steps_with_a_tail(inputs: Any, gates: Any, tail: int, v_first: bool, dtype: torch.dtype) -> None:
    """And so is the state after each of them, with as many tokens in the tail as there may be."""
    x = drawn(inputs, 2, 11, gates, dtype)
    pool = pool_for(x, gates, tail=tail, state_v_first=v_first)
    slots = torch.tensor([3, -1, 0], device=x.q.device)
    both = type(x)(*(None if y is None else y[[0, 0, 1]] for y in vars(x).values()))
    o, state = right(x)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    for t in range(11):
        found = pool.step(*tokens(both, gates, t), slots)
        close(found[[0, 2]], o[:, t], tolerance)
        assert not found[1].any()
        assert pool.lengths[[3, 0, 1]].tolist() == ([t % tail + 1] * 2 + [0] if tail else [0] * 3)
        if t in (4, 8):  # of a prefix
            prefix = type(x)(*(None if y is None else y[:, : t + 1] for y in vars(x).values()))
            close(as_stored(pool, pool.read(slots))[[0, 2]], right(prefix)[1])
    states = pool.read(slots)
    close(as_stored(pool, states)[[0, 2]], state)
    assert not states[1].any()
    pool.fold(slots)
    assert not pool.lengths.any()
    torch.testing.assert_close(pool.state[[3, 0]], states[[0, 2]], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("gates", [1.0, "infinite", "head", None])
def test_a_folded_tail_is_what_steps_that_write_leave(inputs, gates):
    x = drawn(inputs, 2, 9, gates)
    slots, pools = torch.tensor([1, 4], device=x.q.device), [pool_for(x, gates, tail=tail) for tail in (0, 3)]
    for t in range(9):
        for pool in pools:
            pool.step(*tokens(x, gates, t), slots)
    pools[1].fold(slots)
    torch.testing.assert_close(pools[0].state, pools[1].state, rtol=1e-6, atol=1e-6)
    states = torch.zeros_like(pools[0].state)
    for t in range(9):
        gla_step(*tokens(x, gates, t), states, state_indices=slots)
    assert torch.equal(pools[0].state, states)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, FP8], ids=str)
def test_states_of_fewer_bits_are_rounded_once_a_fold(inputs, dtype):
    """The more seldom a state is rounded, the less is lost."""
    x, errors = drawn(inputs, 2, 17, None), []
    slots, (_, state) = torch.tensor([0, 2], device=x.q.device), right(x)
    for tail in (0, 8):
        pool = pool_for(x, None, tail=tail, dtype=dtype)
        for t in range(17):
            pool.step(*tokens(x, None, t), slots)
        pool.fold(slots)
        assert pool.state.dtype == dtype
        errors.append(((pool.read(slots).double() - state).norm() / state.norm()).item())
    unit = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, FP8: 2.0**-4}[dtype]
    assert errors[1] < 0.6 * errors[0]
    assert errors[0] < unit * 17**0.5


@pytest.mark.each_value
@pytest.mark.parametrize("stochastic", [False, True])
@pytest.mark.parametrize("tail", [0, 3])
def test_a_request_has_the_same_bits_alone(inputs, stochastic, tail):
    """Others begin and end meanwhile, in the slots around it, and it may lie in another slot."""
    x, alone = drawn(inputs, 3, 10, 1.0, torch.bfloat16), []
    how = {"dtype": torch.bfloat16, "stochastic": stochastic, "tail": tail}
    pool = pool_for(x, 1.0, **how)
    one = torch.tensor([4], device=x.q.device)
    for t in range(10):
        alone.append(pool.step(*tokens(x, 1.0, t, [1]), one)[0])
    other = pool_for(x, 1.0, **how)
    for t in range(-2, 12):  # sequence 1 from step 0 on, the others sooner and later
        began = [t + 2, t, t - 2]
        slots = torch.tensor([[3, 1, 2][i] if 0 <= began[i] < 10 else -1 for i in range(3)], device=x.q.device)
        at = [min(max(began[i], 0), 9) for i in range(3)]
        o = other.step(*tokens(x, 1.0, at, [0, 1, 2]), slots)
        if 0 <= t < 10:
            assert torch.equal(o[1], alone[t])
    assert torch.equal(pool.read(one)[0], other.read(torch.tensor([1], device=x.q.device))[0])


# --- Drafts -----------------------------------------------------------------------------------------------------------


@pytest.mark.each_value
@pytest.mark.parametrize("gates", [None, 1.0, "infinite", "head"])
@pytest.mark.parametrize("n", [1, 3, 8])
@pytest.mark.parametrize("tail", [1, 3])
@pytest.mark.parametrize("v_first", [False, True])
def test_drafts_that_are_not_accepted_leave_nothing(inputs, gates, n, tail, v_first):
    """Any number of the last step's tokens may count; outputs are those of what counted and this step's tokens."""
    steps = 7
    x = drawn(inputs, 2, steps * n, gates)
    pool = pool_for(x, gates, tail=tail, tokens=n, state_v_first=v_first)
    slots = torch.tensor([2, 0], device=x.q.device)
    taken: list[list[int]] = [[], []]  # rows of x that count, of each request
    accept = None
    for step in range(steps):
        rows = slice(step * n, (step + 1) * n)
        o = pool.step(*tokens(x, gates, rows), slots, accept=accept)
        for b in range(2):
            history = [*taken[b], *range(rows.start, rows.stop)]
            part = type(x)(*(None if y is None else y[b : b + 1, history] for y in vars(x).values()))
            close(o[b], right(part)[0][0, len(taken[b]) :])
        counts = torch.randint(0, n + 1, (2,), generator=torch.Generator().manual_seed(step)).tolist()
        accept = torch.tensor(counts, dtype=torch.int32, device=x.q.device)
        states = as_stored(pool, pool.read(slots, accept))
        for b in range(2):
            taken[b] += range(rows.start, rows.start + counts[b])
            part = type(x)(*(None if y is None else y[b : b + 1, taken[b]] for y in vars(x).values()))
            close(states[b : b + 1], right(part)[1] if taken[b] else torch.zeros_like(states[:1]).double())
    pool.fold(slots, accept)
    assert torch.equal(as_stored(pool, pool.read(slots)), as_stored(pool, pool.state[[2, 0]]))
    close(as_stored(pool, pool.read(slots)), states.double(), 1e-6)


def test_accept_out_of_range_is_the_nearest_in_it(inputs):
    x = drawn(inputs, 2, 4, 1.0)
    pool = pool_for(x, 1.0, tail=4, tokens=3)
    slots = torch.tensor([1, 2], device=x.q.device)
    pool.step(*tokens(x, 1.0, slice(0, 3)), slots)
    pool.step(*tokens(x, 1.0, slice(3, 4)), slots, accept=torch.tensor([-2, 9], device=x.q.device))
    assert pool.lengths[[1, 2]].tolist() == [1, 4]


# --- Prefill ----------------------------------------------------------------------------------------------------------


@pytest.mark.each_value
@pytest.mark.parametrize("gates", [None, 1.0, "head"])
@pytest.mark.parametrize("tail", [0, 4])
@pytest.mark.parametrize("v_first", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_prefill_by_chunks_then_steps(inputs, gates, tail, v_first, dtype):
    """Two prompts, of which one is taken in two chunks and the other one begins with the second of these; a padded
    sequence is nobody's."""
    x = drawn(inputs, 1, 70, gates)
    pool = pool_for(x, gates, tail=tail, state_v_first=v_first, dtype=dtype)
    at = x.q.device
    slots = torch.tensor([4, 1], device=at)
    pool.prefill(*tokens(x, gates, slice(0, 20)), slots[:1], torch.tensor([0, 20], device=at))
    mixed = torch.tensor([0, 15, 20, 50], device=at)  # 15 more of the first, 5 of nobody, 30 of the second
    o = pool.prefill(*tokens(x, gates, slice(20, 70)), torch.tensor([4, -1, 1], device=at), mixed)
    assert o.shape == (1, 50, SIZES[0], SIZES[2])
    tolerance = 1e-4 if dtype == torch.float32 else 2e-2
    for slot, rows, found in ((4, range(35), o[:, :15]), (1, range(40, 70), o[:, 20:])):
        part = type(x)(*(None if y is None else y[:, list(rows)] for y in vars(x).values()))
        expected, state = right(part)
        size = expected.abs().max().item()
        close(found, expected[:, -found.shape[1] :], tolerance * size)
        read = as_stored(pool, pool.read(torch.tensor([slot], device=at)))
        close(read, state, tolerance * state.abs().max().item())
    assert not pool.state[[0, 2, 3]].any()
    more = drawn(inputs, 2, 3, gates)
    before = pool.read(slots)
    for t in range(3):
        o = pool.step(*tokens(more, gates, t), slots)
    wide = more.cast(torch.float64)
    expected, _ = reference.recurrent(wide.q, wide.k, wide.v, wide.g, None, as_stored(pool, before).double())
    close(o, expected[:, -1], 1e-4 if dtype == torch.float32 else 5e-2)


def test_a_slot_is_used_again(inputs):
    x = drawn(inputs, 1, 12, 1.0)
    pool = pool_for(x, 1.0, tail=4, dtype=torch.bfloat16, stochastic=True)
    slot, found = torch.tensor([3], device=x.q.device), []
    for _ in range(2):
        pool.reset(slot)
        assert not pool.read(slot).any()
        first = pool.prefill(*tokens(x, 1.0, slice(0, 6)), slot)
        found.append([first, *(pool.step(*tokens(x, 1.0, t), slot) for t in range(6, 12))])
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_prefill_goes_on_from_a_tail(inputs):
    x = drawn(inputs, 2, 20, 1.0)
    pool = pool_for(x, 1.0, tail=8, tokens=4)
    slots = torch.tensor([0, 3], device=x.q.device)
    pool.step(*tokens(x, 1.0, slice(0, 4)), slots)
    o = pool.prefill(*tokens(x, 1.0, slice(2, 20)), slots, accept=torch.tensor([2, 2], device=x.q.device))
    expected, state = right(x)
    close(o, expected[:, 2:], 1e-4)
    close(pool.read(slots), state, 1e-4)
    assert not pool.lengths.any()


# --- What is refused, sizes, graphs -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, FP8], ids=str)
def test_states_are_written_as_they_are_read(device, dtype):
    pool = StatePool(4, *SIZES, dtype=dtype, device=device)
    states = torch.randn(3, *SIZES, device=device).to(torch.bfloat16).float()
    slots = torch.tensor([2, -1, 0], device=device)
    pool.write(slots, states)
    again = pool.read(slots)
    assert not again[1].any()
    pool.write(slots, again)
    assert torch.equal(pool.read(slots), again)
    error = (again - states)[[0, 2]].abs().max() / states.abs().max()
    assert error == 0 if dtype != FP8 else error < 2.0**-4


MADE: dict[str, tuple[dict[str, Any], str]] = {
    "slots": ({"slots": 0}, "slots: expected a number from 1, got 0"),
    "K": ({"K": 513}, "K: expected a number from 1 to 512, got 513"),
    "tokens": ({"tokens": 9, "tail": 1}, "tokens: expected a number from 1 to 8, got 9"),
    "no tail": ({"tokens": 2}, "tail: expected 1 or more for steps of up to tokens=2, got 0"),
    "dtype": ({"dtype": torch.float64}, "dtype: expected one of"),
    "gates": ({"gates": "value"}, "gates: expected 'key', 'head' or None, got 'value'"),
    "gate_dtype": ({"gate_dtype": torch.float16}, "gate_dtype: expected torch.bfloat16"),
    "stochastic": ({"stochastic": True}, "stochastic: expected False"),
}


@pytest.mark.parametrize(("change", "message"), MADE.values(), ids=MADE)
def test_a_pool_that_cannot_be_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        StatePool(**({"slots": 2, "H": 1, "K": 16, "V": 16} | change))


STEPS: dict[str, tuple[Any, str]] = {
    "heads": (lambda q, k, v, g, i: ((q[:, :1], k[:, :1], v[:, :1], g[:, :1], i), {}), "q: expected .* as of the pool"),
    "gates": (lambda q, k, v, g, i: ((q, k, v, None, i), {}), "g: expected gates='key' as of the pool, got None"),
    "gates of heads": (lambda q, k, v, g, i: ((q, k, v, g[..., 0], i), {}), "g: expected gates='key' as of the pool"),
    "dtype": (lambda *a: (tuple(x.half() for x in a[:4]) + a[4:], {}), "q: expected torch.float32 as of the pool"),
    "indices": (lambda q, k, v, g, i: ((q, k, v, g, i[:1]), {}), "indices: expected int32 or int64 of shape"),
    "accept": (lambda q, k, v, g, i: ((q, k, v, g, i), {"accept": i.float()}), "accept: expected int32"),
    "gradients": (
        lambda q, k, v, g, i: ((q.clone().requires_grad_(), k, v, g, i), {}),
        "expected inputs without gradients",
    ),
    "too many": (
        lambda *a: (tuple(x[:, None].expand(-1, 3, -1, -1) for x in a[:4]) + a[4:], {}),
        "q: expected 1 to 2 tokens a step, as of the pool, got 3",
    ),
}


@pytest.mark.parametrize(("change", "message"), STEPS.values(), ids=STEPS)
def test_a_step_that_cannot_be_is_refused(inputs, change, message):
    x = drawn(inputs, 2, 1, 1.0)
    pool = pool_for(x, 1.0, tail=2, tokens=2)
    given = (*tokens(x, 1.0, 0), torch.tensor([0, 1], device=x.q.device))
    pool.step(*given)
    changed, how = change(*given)
    with pytest.raises(ValueError, match=message):
        pool.step(*changed, **how)
    with pytest.raises(ValueError, match="accept: expected None for a pool without a tail"):
        pool_for(x, 1.0).step(*given[:4], given[4], accept=given[4])


@pytest.mark.each_value
@pytest.mark.parametrize("tail", [0, 2])
@pytest.mark.parametrize("index", [-1, -7, 3, 2**20])
def test_what_is_no_slot_is_padding(inputs, tail, index):
    x = drawn(inputs, 2, 3, 1.0)
    pool = pool_for(x, 1.0, slots=3, tail=tail)
    slots = torch.tensor([index, 2], device=x.q.device)
    for t in range(3):
        assert not pool.step(*tokens(x, 1.0, t), slots)[0].any()
    states = pool.read(slots)
    assert not states[0].any()
    close(states[1], right(x)[1][1])
    pool.write(slots, states + 1)
    pool.fold(slots)
    pool.reset(slots[:1])
    assert not pool.state[:2].any()
    assert not pool.slots.counts[:2].any()
    torch.testing.assert_close(pool.read(slots)[1], states[1] + 1)


def test_bytes_are_counted():
    pool = StatePool(10, 4, 128, 128, dtype=torch.bfloat16, tail=8, inputs=torch.bfloat16, gate_dtype=torch.float32)
    state, tail = 128 * 128 * 2, 9 * (128 * 2 + 128 * 2 + 128 * 4)
    counts = pool.slots.counts.nbytes
    assert pool.nbytes == 10 * 4 * (state + tail) + counts
    assert counts < pool.nbytes / 100


def test_a_graph_of_torch_compile_has_the_step_in_it(inputs):
    x = drawn(inputs, 2, 4, 1.0)
    pools = [pool_for(x, 1.0, tail=2) for _ in range(2)]
    slots = torch.tensor([3, 0], device=x.q.device)
    compiled = torch.compile(lambda *given: pools[1].step(*given) * 2, backend="aot_eager", fullgraph=True)
    for t in range(4):
        assert torch.equal(compiled(*tokens(x, 1.0, t), slots), pools[0].step(*tokens(x, 1.0, t), slots) * 2)
    assert torch.equal(pools[0].state, pools[1].state)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, FP8], ids=str)
@pytest.mark.parametrize("n", [1, 4])
def test_one_cuda_graph_is_all_steps(inputs, dtype, n):
    """With other slots, tails of any lengths and what was accepted."""
    x = inputs((3, 24 * n, 4, 128, 128), torch.bfloat16, 1.0, states=False)
    how = {"dtype": dtype, "stochastic": dtype != torch.float32, "tail": 8, "tokens": n, "device": "cuda"}
    pools = [StatePool(6, 4, 128, 128, **how) for _ in range(2)]
    q, k, v, g = held = tuple(y[:, :n].clone() for y in (x.q, x.k, x.v, x.g))
    slots, accept = torch.tensor([-1, -1, -1], device="cuda"), torch.zeros(3, dtype=torch.int32, device="cuda")
    pools[0].step(q, k, v, g, slots, accept=accept)  # compiled before it is captured
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o = pools[0].step(q, k, v, g, slots, accept=accept)
    for t in range(24):
        slots.copy_(torch.tensor([5, -1 if t % 3 else 2, 0 if t > 4 else 1]))
        accept.copy_(torch.randint(0, n + 1, (3,)))
        for into, y in zip(held, (x.q, x.k, x.v, x.g), strict=True):
            into.copy_(y[:, t * n : t * n + n])
        graph.replay()
        assert torch.equal(o, pools[1].step(q, k, v, g, slots, accept=accept))
    assert torch.equal(pools[0].read(slots), pools[1].read(slots))


@pytest.mark.gpu
@pytest.mark.parametrize("gates", ["resets", "head"])
@pytest.mark.parametrize("v_first", [False, True])
@pytest.mark.parametrize(("K", "V"), [(128, 128), (100, 60), (512, 512)])
@pytest.mark.parametrize("n", [1, 8])
def test_full_size(inputs, gates, v_first, K, V, n):
    x = inputs((2, 40, 4, K, V), torch.float32, 1.0 if gates == "head" else gates, states=False)
    x = one_a_head(x) if gates == "head" else x
    kind = None if gates is None else "head" if gates == "head" else "key"
    how = {"gates": kind, "inputs": torch.float32, "device": "cuda", "state_v_first": v_first}
    pool = StatePool(3, 4, K, V, tail=8, tokens=n, **how)
    slots = torch.tensor([2, 0], device="cuda")
    o = torch.cat([pool.step(*tokens(x, gates, slice(t, t + n)), slots) for t in range(0, 40, n)], 1)
    expected, state = right(x)
    close(o, expected, 1e-4)
    close(as_stored(pool, pool.read(slots)), state, 1e-4)


# --- The layer --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tail", [0, 4])
def test_the_layer_serves_what_it_computes(device, tail):
    layer = GatedLinearAttention(hidden_size=64, num_heads=2, gate_logit_normalizer=2).to(device)
    x, slots = torch.randn(2, 24, 64, device=device), torch.tensor([2, 0], device=device)
    with torch.no_grad():
        expected, _ = layer(x)
        pool = layer.state_pool(3, tail=tail, tokens=3 if tail else 1)
        packed = torch.tensor([0, 15, 30], device=device)
        y = layer.prefill(x[:, :15].reshape(1, 30, 64), pool, slots, packed).reshape(2, 15, 64)
        ys = [y, *(layer.serve(x[:, t], pool, slots)[:, None] for t in range(15, 21))]
        if tail:
            drafts = torch.cat([x[:, 21:22], torch.randn(2, 2, 64, device=device)], 1)
            ys.append(layer.serve(drafts, pool, slots)[:, :1])
            ys.append(layer.serve(x[:, 22:], pool, slots, accept=torch.ones_like(slots)))
    found = torch.cat(ys, 1)
    torch.testing.assert_close(found, expected[:, : found.shape[1]], rtol=1e-4, atol=1e-4)
    assert found.shape[1] == (24 if tail else 21)
