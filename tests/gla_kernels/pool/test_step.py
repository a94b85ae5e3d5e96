"""One-token steps with states in a pool, against the float64 recurrence. What states in fewer bits may cost is what it
costs a loop in PyTorch that rounds them as often."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from gla_kernels import gla_step, reference

FACTOR = 4.0  # as in conftest.py: a kernel may be this many times as far from float64 as that loop
FP8 = torch.float8_e4m3fn
DTYPES = (torch.float32, torch.bfloat16, torch.float16, FP8)
SLOTS = 6


def kept(state: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A state as a pool of the dtype keeps it, in float32: [.., K, V], fp8 with a scale a column."""
    if dtype != FP8:
        return state.to(dtype).float()
    scale = state.abs().amax(-2, keepdim=True).clamp(min=1e-30) / 448
    return (state / scale).to(FP8).float() * scale


def loop(x: Any, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """o [B, T, H, V] and the last state, in float32 with states kept in the dtype after each token."""
    state, outputs = kept(x.initial_state, dtype), []
    for t in range(x.q.shape[1]):
        state = state if x.g is None else state * x.g[:, t].float().exp()[..., None]
        state = state if x.gv is None else state * x.gv[:, t].float().exp()[..., None, :]
        state = state + x.k[:, t].float()[..., None] * x.v[:, t].float()[..., None, :]
        outputs.append((x.q[:, t].float()[..., None, :] @ state)[..., 0, :] * x.q.shape[-1] ** -0.5)
        state = kept(state, dtype)
    return torch.stack(outputs, 1), state


def near(found: torch.Tensor, plain: torch.Tensor, right: torch.Tensor, floor: float) -> None:
    """That what was found is as near to float64 as the loop, times FACTOR."""
    error, allowed = (found.double() - right).norm(), FACTOR * (plain.double() - right).norm() + floor * right.norm()
    assert error <= allowed, f"off by {error:.2e}, allowed {allowed:.2e}"


def pool_of(states: torch.Tensor, indices: torch.Tensor, dtype: torch.dtype, v_first: bool, gap: int) -> Any:
    """A pool with the states [B, H, K, V] at the indices, ``gap`` numbers between slots, and its scales."""
    H, K, V = states.shape[1:]
    room = torch.randn(SLOTS, H * K * V + gap, device=states.device).to(dtype)
    shape = (H, V, K) if v_first else (H, K, V)
    pool = room.as_strided((SLOTS, *shape), (H * K * V + gap, K * V, shape[2], 1))
    used, given = indices[indices >= 0].long(), states[indices >= 0]
    scales = None
    if dtype == FP8:
        scales = torch.ones(SLOTS, H, V, device=states.device)
        scales[used] = given.abs().amax(-2) / 448
        given = given / scales[used][..., None, :]
    given = (given.mT if v_first else given).to(dtype)
    for slot, state in zip(used.tolist(), given, strict=True):
        pool[slot] = state
    return room, pool, scales


def states_of(pool: torch.Tensor, scales: torch.Tensor | None, slots: torch.Tensor, v_first: bool) -> torch.Tensor:
    states = pool[slots.long()].float()
    states = states.mT if v_first else states
    return states if scales is None else states * scales[slots.long()][..., None, :]


def steps(x: Any, pool: torch.Tensor, head_gates: bool = False, **how: Any) -> torch.Tensor:
    g = x.g[..., 0] if head_gates else x.g
    o = []
    for t in range(x.q.shape[1]):
        gates = [None if y is None else y[:, t] for y in (g, x.gv)]
        o.append(gla_step(x.q[:, t], x.k[:, t], x.v[:, t], gates[0], pool, gv=gates[1], **how))
    return torch.stack(o, 1)


@pytest.mark.pairwise
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("v_first", [False, True])
@pytest.mark.parametrize("gates", [None, 1.0, "infinite", "head"])
@pytest.mark.parametrize("gap", [0, 3])
@pytest.mark.parametrize(("K", "V"), [(20, 36), (64, 16)])
def test_steps_update_the_slots_in_place(inputs, dtype, v_first, gates, gap, K, V):
    head = gates == "head"
    x = inputs((3, 5, 2, K, V), torch.float32, 1.0 if head else gates)
    if head:
        x.g = x.g[..., :1].expand_as(x.g).contiguous()
    indices = torch.tensor([4, -1, 1], dtype=torch.int32, device=x.q.device)
    room, pool, scales = pool_of(x.initial_state, indices, dtype, v_first, gap)
    others, between = room[[0, 2, 3, 5]].clone(), room[:, room.shape[1] - gap :].clone()
    o = steps(x, pool, head, state_v_first=v_first, state_indices=indices, state_scales=scales)
    wide = x.cast(torch.float64)
    right, state_right = reference.recurrent(wide.q, wide.k, wide.v, wide.g, initial_state=wide.initial_state)
    plain, state_plain = loop(x, dtype)
    rows = [0, 2]
    near(o[rows], plain[rows], right[rows], 1e-5)
    near(states_of(pool, scales, indices[rows], v_first), state_plain[rows], state_right[rows], 1e-6)
    assert not o[1].any()
    assert torch.equal(room[[0, 2, 3, 5]].view(torch.uint8), others.view(torch.uint8))
    assert torch.equal(room[:, room.shape[1] - gap :].view(torch.uint8), between.view(torch.uint8))


@pytest.mark.parametrize("v_first", [False, True])
@pytest.mark.parametrize("gates", [None, 1.0, "head"])
def test_heads_that_share_queries_and_keys(inputs, gates, v_first):
    """Gates of a feature are shared too, gates of a head are those of each state."""
    x = inputs((2, 3, 6, 20, 36), torch.float32, 1.0 if gates == "head" else gates)
    if gates is not None:
        x.g = x.g[..., :1].expand_as(x.g) if gates == "head" else x.g[:, :, ::3].repeat_interleave(3, 2)
    x.q, x.k = (t[:, :, ::3].repeat_interleave(3, 2) for t in (x.q, x.k))
    indices = torch.tensor([3, 0], device=x.q.device)
    _, pool, _ = pool_of(x.initial_state, indices, torch.float32, v_first, 0)
    of_group = slice(None, None, 1 if gates == "head" else 3)
    g = None if x.g is None else x.g[:, :, of_group]
    shared = replace(x, q=x.q[:, :, ::3], k=x.k[:, :, ::3], g=g)
    o = steps(shared, pool, gates == "head", state_indices=indices, state_v_first=v_first)
    wide = x.cast(torch.float64)
    right, state = reference.recurrent(wide.q, wide.k, wide.v, wide.g, None, wide.initial_state)
    assert (o - right).norm() <= 1e-5 * right.norm()
    assert (states_of(pool, None, indices, v_first) - state).norm() <= 1e-5 * state.norm()


def test_gates_on_the_value_side(inputs):
    x = inputs((2, 4, 2, 20, 36), torch.float32, 1.0, value_gates=1.0)
    indices = torch.tensor([3, 0], device=x.q.device)
    _, pool, _ = pool_of(x.initial_state, indices, torch.float32, False, 0)
    o = steps(x, pool, state_indices=indices)
    wide = x.cast(torch.float64)
    right, state = reference.recurrent(wide.q, wide.k, wide.v, wide.g, None, wide.initial_state, wide.gv)
    torch.testing.assert_close(o.double(), right, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(pool[indices].double(), state, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, FP8], ids=str)
def test_a_request_has_the_same_bits_in_any_batch_and_slot(inputs, dtype):
    x = inputs((3, 4, 2, 16, 40), torch.bfloat16, 1.0)
    found = []
    for rows, slots in (([0, 1, 2], [2, 5, 0]), ([1], [3])):
        part = type(x)(*(None if y is None else y[rows] for y in vars(x).values()))
        indices = torch.tensor(slots, device=x.q.device)
        _, pool, scales = pool_of(part.initial_state, indices, dtype, False, 0)
        times, outputs = torch.zeros_like(indices), []
        for t in range(4):
            now = type(x)(
                *(None if y is None or i in (4, 6) else y[:, t : t + 1] for i, y in enumerate(vars(part).values()))
            )
            outputs.append(steps(now, pool, state_indices=indices, state_scales=scales, rounding=times))
            times += 1
        row = rows.index(1)
        found.append((torch.cat(outputs, 1)[row], states_of(pool, scales, indices[row : row + 1], False)))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one.reshape(-1), other.reshape(-1))


# --- Rounding ---------------------------------------------------------------------------------------------------------


def first_states(value: float, dtype: torch.dtype, B: int, rounding: bool) -> torch.Tensor:
    """States [B, 1, K, V] after a step from zeros that adds the value everywhere."""
    at = "cuda" if torch.cuda.is_available() else "cpu"
    ones, indices = torch.ones(B, 1, 32, device=at), torch.arange(B, device=at)
    pool = torch.zeros(B, 1, 32, 32, device=at).to(dtype)
    scales = torch.ones(B, 1, 32, device=at) if dtype == FP8 else None
    times = indices * 7919 if rounding else None
    gla_step(ones, ones, ones * value, None, pool, state_indices=indices, state_scales=scales, rounding=times)
    return pool.double() if scales is None else pool.double() * scales[..., None, :]


# of each dtype the distance of neighbours at 1, and of fp8 where its scale puts 1
UNITS = ((torch.bfloat16, 2.0**-7), (torch.float16, 2.0**-10), (FP8, 2.0**-3))


@pytest.mark.parametrize("share", [0.1, 0.5, 0.8])
@pytest.mark.parametrize(("dtype", "unit"), UNITS, ids=str)
@pytest.mark.parametrize("sign", [1, -1])
def test_rounding_by_chance_is_right_on_average(dtype, unit, share, sign):
    value = float(torch.tensor(sign * (1 + share * unit)))
    states = first_states(value, dtype, 16, True)
    assert set(states.unique().tolist()) == {sign * 1.0, sign * (1 + unit)}
    deviation = (share * (1 - share) / states.numel()) ** 0.5 * unit
    assert abs(states.mean().item() - value) < 4 * deviation
    parts = states.abs().sub(1).div(unit).mean(dim=(1, 2, 3))  # of each request: these are not all alike
    assert 0 < parts.std() < 4 * (share * (1 - share) / 1024) ** 0.5


@pytest.mark.parametrize(("dtype", "unit"), UNITS, ids=str)
def test_what_the_dtype_holds_is_not_rounded(dtype, unit):
    for value in (1 + unit, -1.0, 0.0):
        assert (first_states(value, dtype, 4, True) == value).all()


@pytest.mark.parametrize(("dtype", "unit"), UNITS, ids=str)
def test_to_nearest_without(dtype, unit):
    assert (first_states(1 + 0.4 * unit, dtype, 2, False) == 1).all()
    assert (first_states(1 + 0.6 * unit, dtype, 2, False) == 1 + unit).all()


def test_small_numbers_of_float16_and_what_is_none():
    least = 2.0**-24
    states = first_states(1.5 * least, torch.float16, 16, True)
    assert set(states.unique().tolist()) == {least, 2 * least}
    assert first_states(float("nan"), torch.bfloat16, 1, True).isnan().all()
    assert (first_states(float("-inf"), torch.bfloat16, 1, True) == float("-inf")).all()


def test_what_is_less_than_half_a_unit_counts_in_the_long_run(device):
    ones, indices = torch.ones(1, 1, 16, device=device), torch.zeros(1, dtype=torch.int32, device=device)
    ends = []
    for by_chance in (False, True):
        pool = torch.ones(1, 1, 16, 16, dtype=torch.bfloat16, device=device)
        for t in range(100):
            times = torch.full_like(indices, t) if by_chance else None
            gla_step(ones, ones, ones / 400, None, pool, state_indices=indices, rounding=times)
        ends.append(pool.float().mean().item())
    assert ends[0] == 1.0
    assert abs(ends[1] - 1.25) < 0.01  # of 256 elements; one of them is off by some 0.03


# --- What is refused, graphs ------------------------------------------------------------------------------------------

WRONG: dict[str, tuple[str, Any]] = {
    "float64": ("state: expected float32, bfloat16", lambda a: a | {"state": a["state"].double()}),
    "three axes": ("state: expected a pool", lambda a: a | {"state": a["state"][0]}),
    "layout": ("state: expected a pool", lambda a: a | {"state_v_first": True}),
    "inside": ("state: expected each slot's", lambda a: a | {"state": a["state"].mT.contiguous().mT}),
    "overlapping": ("state: expected each slot's", lambda a: a | {"state": a["state"][:1].expand(SLOTS, -1, -1, -1)}),
    "too few": ("state_indices: expected .* of shape [2]", lambda a: a | {"state_indices": a["state_indices"][:1]}),
    "numbers": ("state_indices: expected int32", lambda a: a | {"state_indices": a["state_indices"].float()}),
    "no tensor": ("state_indices: expected a tensor", lambda a: a | {"state_indices": [0, 1]}),
    "scales": ("state_scales: expected None", lambda a: a | {"state_scales": torch.ones(SLOTS, 2, 24)}),
    "no scales": ("state_scales: expected a tensor", lambda a: a | {"state": a["state"].to(FP8)}),
    "few scales": (
        "state_scales: expected float32",
        lambda a: a | {"state": a["state"].to(FP8), "state_scales": torch.ones(SLOTS, 2, 16)},
    ),
    "rounding": ("rounding: expected None", lambda a: a | {"rounding": a["state_indices"]}),
    "gates": ("g: expected shape", lambda a: a | {"g": a["g"][..., :1, 0]}),
    "gradients": ("gla_step: expected inputs without gradients", lambda a: a | {"q": a["q"].clone().requires_grad_()}),
}  # fmt: skip


@pytest.mark.parametrize(("message", "change"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_named(inputs, message, change):
    x = inputs((2, 1, 2, 16, 24), torch.float32, 1.0)
    given = {
        "q": x.q[:, 0], "k": x.k[:, 0], "v": x.v[:, 0], "g": x.g[:, 0], "state": torch.zeros(SLOTS, 2, 16, 24).to(x.q),
        "state_indices": torch.tensor([0, 1], device=x.q.device),
    }  # fmt: skip
    gla_step(**given)
    with pytest.raises(ValueError, match=message.replace("[", r"\[")):
        gla_step(**change(given))


@pytest.mark.parametrize("dtype", [torch.float32, FP8], ids=str)
def test_a_graph_of_torch_compile_has_the_step_in_it(inputs, dtype):
    x = inputs((2, 1, 1, 16, 16), torch.float32, 1.0)
    q, k, v, g = (y[:, 0] for y in (x.q, x.k, x.v, x.g))
    indices, found = torch.tensor([3, 0], device=q.device), []

    def call(pool, scales):
        return gla_step(q * 2, k, v, g, pool, state_indices=indices, state_scales=scales) + 1

    for function in (call, torch.compile(call, backend="aot_eager", fullgraph=True)):
        torch.manual_seed(1)
        _, pool, scales = pool_of(x.initial_state, indices, dtype, False, 0)
        found.append((function(pool, scales), pool.float(), scales))
    for one, other in zip(*found, strict=True):
        assert one is other is None or torch.equal(one, other)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("v_first", [False, True])
@pytest.mark.parametrize(("K", "V"), [(64, 64), (128, 128), (100, 60), (256, 512), (512, 512)])
def test_full_size(inputs, dtype, v_first, K, V):
    x = inputs((4, 33, 4, K, V), torch.float32, 1.0)
    indices = torch.tensor([5, 0, -1, 3], device="cuda")
    _, pool, scales = pool_of(x.initial_state, indices, dtype, v_first, 0)
    o = steps(x, pool, state_v_first=v_first, state_indices=indices, state_scales=scales)
    wide = x.cast(torch.float64)
    right, state_right = reference.recurrent(wide.q, wide.k, wide.v, wide.g, initial_state=wide.initial_state)
    plain, state_plain = loop(x, dtype)
    rows = [0, 1, 3]
    near(o[rows], plain[rows], right[rows], 1e-5)
    near(states_of(pool, scales, indices[rows], v_first), state_plain[rows], state_right[rows], 1e-6)


@pytest.mark.gpu
def test_a_cuda_graph_goes_by_the_indices_of_its_replay(inputs):
    x = inputs((3, 1, 2, 64, 64), torch.bfloat16, 1.0)
    q, k, v, g = (y[:, 0].contiguous() for y in (x.q, x.k, x.v, x.g))
    pools = [torch.zeros(SLOTS, 2, 64, 64, device="cuda") for _ in range(2)]
    indices = torch.tensor([0, 1, 2], device="cuda")
    gla_step(q, k, v, g, pools[0], state_indices=indices)  # compiled before it is captured
    pools[0].zero_()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o = gla_step(q, k, v, g, pools[0], state_indices=indices)
    for slots in ([0, 1, 2], [5, -1, 0], [2, 3, -1]):
        indices.copy_(torch.tensor(slots))
        graph.replay()
        assert torch.equal(o, gla_step(q, k, v, g, pools[1], state_indices=indices))
    assert torch.equal(*pools)
