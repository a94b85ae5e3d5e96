"""The chunkwise kernels against the float64 recurrence: every schedule, gate strength, length, head dimension, dtype.

Without a GPU everything here but the grids marked gpu runs in Triton's interpreter, on small shapes.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import gla_kernels.chunk
from gla_kernels import Plan, Schedule, Tile, Workload, default_config, gla, machine_of
from gla_kernels.launch import execute, record
from gla_kernels.plan.choose import with_walks
from gla_kernels.plan.limits import why_not
from gla_kernels.schedule import CHUNKS

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
PAIRS = [(c, s) for c in CHUNKS for s in (16, 32, 64, 128, 256) if s <= c]
SCHEDULES = [Schedule(c, s, m) for c, s in PAIRS for m in (True, False)]
if not torch.cuda.is_available():  # each pair, half of them materialized; all are cases of the sweep quick
    SCHEDULES = [Schedule(c, s, i % 2 == 0) for i, (c, s) in enumerate(PAIRS)]


def name(value: object) -> str:
    if isinstance(value, Schedule):
        return f"{value.chunk}-{value.sub_chunk}-{'m' if value.materialize else 'w'}"
    return str(value).removeprefix("torch.").replace(" ", "")


def form(schedule: Schedule | None = None, final: bool = True):
    return lambda q, k, v, g, s: gla(q, k, v, g, None, s, final, schedule=schedule)


@pytest.mark.exhaustive(schedule=[x for x in SCHEDULES if x.chunk > 64])
@pytest.mark.parametrize("schedule", SCHEDULES, ids=name)
def test_every_schedule(judge, inputs, schedule):
    rows = schedule.chunk + 21  # a whole chunk, and of the next one more than a row block of 16
    judge(form(schedule), inputs((1, rows, 1, 16, 16), torch.float32, 0.5))


# More strengths are in test_forward.py and test_backward.py, each direction by itself.
@pytest.mark.each_value
@pytest.mark.parametrize("materialize", [True, False])
@pytest.mark.parametrize("gates", [None, 0.0, 1e4, "closed"])
def test_every_kind_of_gates(judge, inputs, gates, materialize):
    judge(form(Schedule(64, 32, materialize)), inputs((1, 80, 1, 32, 16), torch.float32, gates))


@pytest.mark.each_value  # the forward pass has every pair: test_forward.py
@pytest.mark.parametrize("gates", [1.0, "resets"])
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@pytest.mark.parametrize("materialize", [True, False])
def test_every_dtype(judge, inputs, dtype, gates, materialize):
    judge(form(Schedule(32, 16, materialize)), inputs((1, 70, 1, 32, 32), dtype, gates))


def test_heads_that_hopper_has_kernels_of_its_own_for(judge, inputs):
    """Which are written in Gluon; the interpreter takes Triton's in their place."""
    judge(form(), inputs((1, 70, 1, 64, 64), torch.bfloat16, "resets"))


@pytest.mark.each_value
@pytest.mark.parametrize("T", [1, 2, 15, 16, 63, 65, 129])
@pytest.mark.parametrize("materialize", [True, False])
def test_any_length(judge, inputs, T, materialize):
    judge(form(Schedule(64, 16, materialize)), inputs((1, T, 1, 16, 16), torch.float32, 1.0))


@pytest.mark.parametrize("materialize", [True, False])
def test_packed_sequences_are_what_they_are_alone(inputs, materialize):
    x, schedule, starts = inputs((1, 106, 1, 16, 16), torch.float32, 0.06), Schedule(32, 16, materialize), (0, 37, 101)
    cotangent = torch.randn_like(x.v)

    def outputs(rows, first):
        q, k, v, g = given = [t[:, rows].detach().requires_grad_() for t in (x.q, x.k, x.v, x.g)]
        closed = g.index_fill(1, torch.tensor(first, device=g.device), -1e4)
        o, _ = gla(q, k, v, closed, schedule=schedule)
        return [o, *torch.autograd.grad(o, given, cotangent[:, rows])]

    alone = [outputs(slice(start, end), [0]) for start, end in zip(starts, (*starts[1:], 106), strict=True)]
    for together, parts in zip(outputs(slice(None), starts), zip(*alone, strict=True), strict=True):
        assert (together - torch.cat(parts, 1)).norm() <= 1e-4 * together.norm()


@pytest.mark.parametrize(
    ("K", "V", "materialize"),
    [
        (8, 8, True),
        (60, 100, False),
        (100, 60, True),
        (16, 200, False),
        (200, 16, True),
        (512, 24, False),
        (24, 512, True),
    ],
)
def test_any_head_dimension(judge, inputs, K, V, materialize):
    judge(form(Schedule(32, 16, materialize)), inputs((1, 37, 1, K, V), torch.float32, 1.0))


@pytest.mark.parametrize("materialize", [True, False])
def test_several_segments_of_a_long_walk(monkeypatch, judge, inputs, materialize):
    monkeypatch.setattr(gla_kernels.chunk.parted, "SEGMENT_ROWS", 128)
    judge(form(Schedule(128, 64, materialize)), inputs((1, 300, 1, 16, 16), torch.float32, 0.1))


def test_default_schedule_without_states(judge, inputs):
    judge(form(final=False), inputs((2, 100, 2, 24, 40), torch.float32, 1.0, states=False))


def test_gates_in_float32_with_16_bit_inputs(judge, inputs):
    judge(form(), inputs((1, 80, 2, 32, 32), torch.bfloat16, 1.0, gate_dtype=torch.float32))


def passes_of(monkeypatch, call, x) -> list[str]:
    """The passes that a call and its backward run."""
    found: list[str] = []

    def run(launch):
        found.append(launch.step)
        execute(launch)

    monkeypatch.setattr(record, "execute", run)
    call(x)
    return found


@pytest.mark.parametrize(
    ("forward", "backward", "recompute", "kept"),
    [
        (Schedule(64, 32), Schedule(64, 32), False, True),
        (Schedule(64, 32), Schedule(64, 32), True, False),
        (Schedule(64, 16), Schedule(64, 32), False, False),  # other row blocks
        (Schedule(32, 16), Schedule(64, 16), False, False),  # other chunks
        (Schedule(64, 32, states_every=1), Schedule(64, 32), False, True),
        (Schedule(64, 32), Schedule(64, 32, False), False, False),
        (Schedule(64, 32, False), Schedule(64, 32), False, False),
    ],
)
def test_states_kept_for_the_backward_pass(
    monkeypatch, one_by_one, inputs, outputs_of, forward, backward, recompute, kept
):
    x = inputs((1, 70, 1, 16, 16), torch.float32, 1.0)
    plans = (Plan(forward, default_config(16, 16, 4, forward)), Plan(backward, default_config(16, 16, 4, backward)))

    def form(recompute: bool):
        return lambda q, k, v, g, s: gla(q, k, v, g, None, s, True, config=plans, recompute=recompute)

    again, found = outputs_of(form(True), x), {}
    passes = passes_of(monkeypatch, lambda x: found.update(outputs_of(form(recompute), x)), x)
    assert all(torch.equal(found[n], again[n]) for n in again)
    assert ("states" in passes[passes.index("output") :]) is not kept


def test_recompute_is_a_bool(inputs):
    x = inputs((1, 20, 1, 16, 16), torch.float32, 1.0)
    with pytest.raises(ValueError, match="recompute: expected True or False, got 1"):
        gla(x.q, x.k, x.v, x.g, recompute=1)  # type: ignore[arg-type]  # the point


def test_inputs_that_are_not_contiguous(inputs, outputs_of):
    x = inputs((2, 40, 3, 16, 24), torch.float32, 1.0)
    y = inputs((2, 40, 3, 16, 24), torch.float32, 1.0)
    for field in ("q", "k", "v", "g", "do"):
        heads_first = getattr(y, field).transpose(1, 2).contiguous()
        setattr(y, field, heads_first.transpose(1, 2))
    found, expected = outputs_of(form(), y), outputs_of(form(), x)
    assert all(torch.equal(found[n], expected[n]) for n in expected)


def test_inputs_that_no_tensor_descriptor_can_be_of(inputs, outputs_of):
    x, y = (inputs((2, 40, 3, 16, 24), torch.float16, 1.0) for _ in range(2))
    for field in ("q", "k", "v", "g", "do"):
        whole = getattr(y, field)
        room = whole.new_empty(whole.numel() + 1)
        setattr(y, field, room[1:].view(whole.shape).copy_(whole))  # 2 bytes off
    found, expected = outputs_of(form(), y), outputs_of(form(), x)
    assert all(torch.equal(found[n], expected[n]) for n in expected)


def test_the_same_inputs_give_the_same_bits(inputs, outputs_of):
    x = inputs((1, 100, 2, 32, 32), torch.float16, 1.0)
    once, again = outputs_of(form(), x), outputs_of(form(), x)
    assert all(torch.equal(once[n], again[n]) for n in once)


def test_gradient_through_the_final_state_alone(inputs):
    x = inputs((1, 40, 1, 16, 16), torch.float32, 1.0)
    k = x.k.requires_grad_()
    _, final = gla(x.q, k, x.v, x.g, output_final_state=True)
    assert final is not None
    (dk,) = torch.autograd.grad(final.sum(), k)
    after = torch.cat([x.g[:, 1:], torch.zeros_like(x.g[:, :1])], dim=1).flip(1).cumsum(1).flip(1)
    torch.testing.assert_close(dk, after.exp() * x.v.sum(-1, keepdim=True), rtol=1e-4, atol=1e-5)


def test_one_sequence_in_two_halves(inputs):
    x = inputs((1, 90, 2, 16, 16), torch.float32, 0.5)
    whole, end = gla(x.q, x.k, x.v, x.g, initial_state=x.initial_state, output_final_state=True)
    state, parts = x.initial_state, []
    for rows in (slice(41), slice(41, None)):
        q, k, v, g = (t[:, rows] for t in (x.q, x.k, x.v, x.g))
        o, state = gla(q, k, v, g, initial_state=state, output_final_state=True)
        parts.append(o)
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(state, end, rtol=1e-4, atol=1e-5)


def test_an_empty_sequence_hands_the_state_on(inputs):
    x = inputs((2, 0, 2, 16, 16), torch.float32, 1.0)
    o, final = gla(x.q, x.k, x.v, x.g, initial_state=x.initial_state, output_final_state=True)
    assert o.shape == (2, 0, 2, 16)
    assert final is not None
    assert torch.equal(final, x.initial_state)


def test_a_gate_of_minus_infinity_in_wide_heads(judge, inputs):
    """Sums of gates in float16 are products in the interpreter, too, and no numbers beside such a gate."""
    judge(form(Schedule(64)), inputs((1, 150, 1, 160, 16), torch.float16, "infinite"))


@pytest.mark.gpu
@pytest.mark.parametrize("gates", [1.0, "resets"])
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@pytest.mark.parametrize("schedule", SCHEDULES, ids=name)
def test_full_grid(judge, inputs, schedule, dtype, gates):
    judge(form(schedule), inputs((2, 1001, 3, 128, 128), dtype, gates))


@pytest.mark.gpu
@pytest.mark.parametrize("gates", [None, 0.0, 1 / 16, 1.0, 2.0, 4.0, 8.0, 40.0, 1e4, "resets", "infinite", "closed"])
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@pytest.mark.parametrize("schedule", [None, Schedule(64, 16), Schedule(128, 64, False)], ids=name)
def test_gate_strengths_at_full_size(judge, inputs, schedule, dtype, gates):
    judge(form(schedule), inputs((1, 3001, 2, 128, 64), dtype, gates))


@pytest.mark.gpu
@pytest.mark.parametrize(
    "gates", [None, 0.0, 1 / 16, 1.0, 2.0, 2.5, 4.0, 8.0, 40.0, 1e4, "resets", "infinite", "closed"]
)
@pytest.mark.parametrize(
    ("schedule", "K", "V"),
    [
        (Schedule(64), 128, 64),
        (Schedule(64), 128, 128),
        (Schedule(64, 64, True, 4), 128, 256),
        (Schedule(64, 64, False), 64, 128),
        (Schedule(64), 64, 192),  # one tile and a half
    ],
    ids=name,
)
@pytest.mark.parametrize("gate_dtype", [torch.bfloat16, torch.float32], ids=name)
def test_walks_at_every_gate_strength(judge, inputs, schedule, K, V, gates, gate_dtype):
    """Fused scans, which a default plan need not have at shapes as small as these."""
    work, capability = Workload("fwd", 1, 3001, 2, K, V, gated=gates is not None), machine_of().capability
    plan = Plan(schedule, with_walks(default_config(K, V, 2, schedule, capability), work, capability))
    reason = why_not(plan, work, capability, "walk")
    if reason is not None:
        pytest.skip(reason)
    judge(
        lambda q, k, v, g, s: gla(q, k, v, g, None, s, True, config=plan),
        inputs((1, 3001, 2, K, V), torch.bfloat16, gates, gate_dtype=gate_dtype),
    )


@pytest.mark.gpu
@pytest.mark.parametrize("gates", [1 / 16, 1.0, 4.0, 16.0, "resets", "infinite", "closed"])
@pytest.mark.parametrize("recompute", [None, False], ids=["few states", "all states"])
@pytest.mark.parametrize(("K", "V"), [(64, 64), (64, 192), (128, 128), (128, 256), (256, 512)])
def test_gates_in_float32_at_full_size(judge, inputs, K, V, recompute, gates):
    x = inputs((1, 3001, 2, K, V), torch.bfloat16, gates, gate_dtype=torch.float32)
    judge(lambda q, k, v, g, s: gla(q, k, v, g, None, s, True, schedule=Schedule(64), recompute=recompute), x)


@pytest.mark.gpu
@pytest.mark.parametrize("gates", [1.0, "resets", "infinite", "closed"])
@pytest.mark.parametrize("capability", [80, 90], ids=["by addresses", "by descriptors"])
@pytest.mark.parametrize("materialize", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=name)
@pytest.mark.parametrize(("K", "V"), [(16, 40), (128, 128), (128, 256), (256, 256), (512, 64)])
def test_gates_of_16_bits_by_passes(judge, inputs, K, V, dtype, materialize, capability, gates):
    schedule = Schedule(64, 64, materialize, 8 if materialize else None)
    plan = Plan(schedule, default_config(K, V, 2 if dtype == torch.bfloat16 else 4, schedule, capability))
    judge(lambda q, k, v, g, s: gla(q, k, v, g, None, s, True, config=plan), inputs((1, 1001, 2, K, V), dtype, gates))


@pytest.mark.gpu
@pytest.mark.parametrize("gates", [1.5, 1.75, 2.0, 2.5])
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_gates_at_the_limit_of_the_fast_path(judge, inputs, dtype, gates):
    # at V = 256 the kernels of dq and dk take tiles of K of different widths, and so may choose different paths
    judge(form(Schedule(64, 64)), inputs((1, 1001, 2, 128, 256), dtype, gates))


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("K", "V"), [(8, 8), (60, 100), (64, 64), (128, 256), (256, 128), (256, 256), (512, 64), (64, 512), (512, 512)]
)
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@pytest.mark.parametrize(
    "schedule", [None, Schedule(256, 256), Schedule(128, 64), Schedule(64, 64, False), Schedule(16, 16)], ids=name
)
def test_head_dimensions_at_full_size(judge, inputs, schedule, dtype, K, V):
    judge(form(schedule), inputs((1, 400, 2, K, V), dtype, 1.0))


@pytest.mark.gpu
@pytest.mark.parametrize("T", [1, 63, 3001, 8192])
@pytest.mark.parametrize("materialize", [True, False])
def test_lengths_at_full_size(judge, inputs, T, materialize):
    judge(form(Schedule(64, 64, materialize)), inputs((1, T, 2, 64, 64), torch.bfloat16, 0.1))


@pytest.mark.gpu
@pytest.mark.parametrize("gates", [None, 1.0, "resets"])
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@pytest.mark.parametrize("schedule", [Schedule(64, 16), Schedule(64, 64), Schedule(128, 64, False)], ids=name)
def test_without_tensor_descriptors_at_full_size(judge, inputs, schedule, dtype, gates):
    config = default_config(128, 128, 2 if dtype == torch.bfloat16 else 4, schedule, 80)
    judge(
        lambda q, k, v, g, s: gla(q, k, v, g, None, s, True, schedule=schedule, config=config),
        inputs((2, 1001, 3, 128, 128), dtype, gates),
    )


@pytest.mark.gpu
@pytest.mark.parametrize("gates", [None, 1.0])
@pytest.mark.parametrize("descriptors", [True, False])
@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize(
    ("K", "V", "block_v"),
    [(64, 64, 64), (128, 128, 64), (128, 128, 128), (128, 256, 256), (256, 128, 128), (256, 256, 256), (512, 512, 128)],
)
def test_tiles_of_32_columns_of_keys(judge, inputs, K, V, block_v, stages, descriptors, gates):
    # what `config._miscompiled` takes for right
    schedule, tile = Schedule(64, 64), Tile(32, block_v, 4, stages, descriptors=descriptors)
    config = replace(default_config(K, V, 2, schedule), output=tile, grad_v=tile)
    plan = Plan(schedule, config)
    if why_not(plan, Workload("fwd", 1, 400, 2, K, V), 90, "output") is not None:
        pytest.skip("more shared memory than there is")
    judge(
        lambda q, k, v, g, s: gla(q, k, v, g, None, s, True, config=plan),
        inputs((1, 400, 2, K, V), torch.bfloat16, gates),
    )
