"""simple_gla of packed sequences, and of states that lie as [V, K], against float64, sequence by sequence.

As in test_simple.py gates are [1, T, H, 1], which the references take for the same gate of every feature.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gla_kernels import Schedule, retnet_decays, simple_gla
from gla_kernels.simple import call

KEPT, WALKED = Schedule(16), Schedule(16, materialize=False)
# several in a chunk, ends and starts at the borders of chunks, over several chunks; none and one token
LENGTHS = [(37,), (0, 3, 16, 13, 0, 1, 40, 8), (16, 0, 16, 32)]
STATES = [(True, True), (True, False), (False, True), (False, False)]


def form(cu_seqlens=None, v_first=False, final=True, schedule=KEPT):
    def run(q, k, v, g, s):
        how = {"cu_seqlens": cu_seqlens, "state_v_first": v_first, "schedule": schedule}
        return simple_gla(q, k, v, g.squeeze(-1), None, s, final, **how)

    return run


@pytest.fixture
def judged(judge, packed, inputs):
    def run(lengths, dims, dtype, gates, initial=True, final=True, v_first=False, schedule=KEPT):
        x = packed.inputs(inputs, lengths, dims, dtype, gates, initial, final, v_first)
        x = replace(x, g=x.g[..., :1].contiguous())
        lies = packed.ends(lengths, x.q.device)
        judge(form(lies, v_first, final, schedule), x, lambda f: packed.one_by_one(f, lengths, v_first))

    return run


@pytest.fixture
def walks(monkeypatch):
    """However few the heads are, walks over time make outputs, and dv on the way back."""
    monkeypatch.setattr(call, "MANY_WALKS", 1)


@pytest.mark.each_value
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("initial", [True, False])
@pytest.mark.parametrize("final", [True, False])
def test_states_given_and_asked_for(judged, lengths, initial, final):
    judged(lengths, (1, 8, 8), torch.float32, 0.1, initial, final)


@pytest.mark.parametrize(("initial", "final"), STATES)
def test_walks_with_states_given_and_asked_for(judged, walks, initial, final):
    judged(LENGTHS[1], (1, 8, 8), torch.bfloat16, 0.1, initial, final)


@pytest.mark.parametrize("gates", [0.06, 16.0, "resets", "closed"])
def test_every_gate_strength(judged, gates):
    judged(LENGTHS[1], (1, 12, 8), torch.float32, gates, v_first=True)


def test_walks_at_strong_gates(judged, walks):
    judged(LENGTHS[1], (1, 8, 12), torch.bfloat16, "resets", v_first=True)


@pytest.mark.parametrize("seed", [1, 2, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in (0, 3))])
def test_drawn_lengths(judged, packed, seed):
    schedule = (KEPT, WALKED, Schedule(32), KEPT)[seed]
    judged(
        packed.drawn(seed, 100),
        (2, 8, 12),
        torch.float32,
        (1.0, "resets")[seed % 2],
        v_first=seed > 1,
        schedule=schedule,
    )


def test_many_tiny_sequences(judged, packed):
    judged(packed.MANY_TINY, (1, 8, 8), torch.float32, 1.0, v_first=True)


@pytest.mark.each_value
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("schedule", [KEPT, WALKED], ids=["kept", "walked"])
def test_16_bits(judged, dtype, schedule):
    judged((0, 3, 16, 13, 40), (1, 20, 12), dtype, 4.0, v_first=True, schedule=schedule)


def test_head_dimensions_of_several_tiles(judged):
    judged((5, 20), (1, 40, 70), torch.float32, 1.0, v_first=True)


@pytest.mark.parametrize("walked", [False, True])
def test_slices_that_hand_a_state_on(judged, monkeypatch, walked):
    monkeypatch.setattr(call, "segments_at_once", lambda *_: 2)
    if walked:
        monkeypatch.setattr(call, "MANY_WALKS", 1)
    # over a border of slices, that of one there, and within one; K = 70 in float32 is too wide for a walk
    dims, dtype = ((1, 8, 8), torch.bfloat16) if walked else ((1, 70, 8), torch.float32)
    judged((40, 24, 3, 20), dims, dtype, "resets", schedule=WALKED, v_first=True)


@pytest.mark.each_value
@pytest.mark.parametrize("schedule", [KEPT, WALKED], ids=["kept", "walked"])
@pytest.mark.parametrize(("K", "V"), [(8, 12), (12, 12)])
def test_states_with_v_first_of_a_batch(inputs, outputs_of, monkeypatch, schedule, K, V):
    monkeypatch.setattr(call, "segments_at_once", lambda *_: 1)
    x = inputs((2, 37, 2, K, V), torch.float32, 1.0)
    x = replace(x, g=x.g[..., :1].contiguous())
    right = outputs_of(form(schedule=schedule), x)
    x = replace(x, initial_state=x.initial_state.mT.contiguous(), d_final=x.d_final.mT.contiguous())
    for name, found in outputs_of(form(v_first=True, schedule=schedule), x).items():
        assert torch.equal(found.mT if name in ("final_state", "d_initial") else found, right[name]), name


def test_no_sequence_depends_on_another(packed, inputs, outputs_of):
    """To the bit, whatever is in the others, before and behind, and gates at first rows have no gradient there."""
    lengths = (7, 21, 0, 9, 30)
    x = packed.inputs(inputs, lengths, (1, 8, 8), torch.float32, "resets", initial=False)
    x, lies = replace(x, g=x.g[..., :1].contiguous()), packed.ends(lengths, x.q.device)
    found = outputs_of(form(lies), x)
    mine = slice(28, 37)  # of the one of 9 rows
    others = torch.ones(67, dtype=torch.bool)
    others[mine] = False
    for t in (x.q, x.k, x.v, x.do):
        t[:, others] = 1e3 * torch.randn_like(t[:, others])
    again = outputs_of(form(lies), x)
    for name in ("o", "dq", "dk", "dv", "dg"):
        assert torch.equal(found[name][:, mine], again[name][:, mine]), name
    assert torch.equal(found["final_state"][3], again["final_state"][3])
    assert not again["dg"][:, [0, 7, 28, 37]].any()


def test_lengths_may_change_from_call_to_call(packed, inputs, outputs_of):
    """What a call launches goes by their number alone."""
    x = packed.inputs(inputs, (4, 20, 13), (1, 8, 8), torch.float32, 1.0)
    x = replace(x, g=x.g[..., :1].contiguous())
    for lengths in ((4, 20, 13), (0, 37, 0), (16, 16, 5)):
        found = outputs_of(form(packed.ends(lengths, x.q.device)), x)
        right = outputs_of(packed.one_by_one(form(), lengths), x)
        for name, out in found.items():
            torch.testing.assert_close(out, right[name], rtol=1e-4, atol=1e-4, msg=name)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("ends", [[0, 0, 0, 0], [5, 9, 9, 20], [37, 37, 37, 37]], ids=str)
def test_lengths_that_do_not_fill_the_rows_lead_nowhere_else(packed, inputs, outputs_of, monkeypatch, ends):
    """They are refused where it costs nothing to look at them, and elsewhere no program leaves its tensors."""
    x = packed.inputs(inputs, (4, 20, 13), (1, 8, 8), torch.float32, 1.0)
    x, run = replace(x, g=x.g[..., :1].contiguous()), form(torch.tensor(ends, device=x.q.device))
    with pytest.raises(ValueError, match="cu_seqlens: expected"):
        simple_gla(x.q, x.k, x.v, x.g.squeeze(-1), cu_seqlens=torch.tensor(ends, device=x.q.device), check=True)
    monkeypatch.setattr("gla_kernels.ops.simple_gla.check_length_values", lambda _: None)
    packed.stay_inside(monkeypatch)
    outputs_of(run, x)


def test_constant_decays(packed, inputs, outputs_of):
    """RetNet's, expanded: as the same gates in memory."""
    lengths = (4, 20, 0, 1)
    x = packed.inputs(inputs, lengths, (2, 8, 8), torch.float32, 1.0)
    g, lies = retnet_decays(2, x.q.device).expand(1, 25, 2), packed.ends(lengths, x.q.device)

    def constant(q, k, v, _, state):
        o, final = simple_gla(q, k, v, g, None, state, True, cu_seqlens=lies, schedule=KEPT)
        return o + 0 * _.sum(), final

    found, given = outputs_of(constant, x), outputs_of(form(lies), replace(x, g=g[..., None].contiguous()))
    assert all(name == "dg" or torch.equal(out, given[name]) for name, out in found.items())


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("dtype", "gates"),
    [(torch.bfloat16, 0.06), (torch.bfloat16, "resets"), (torch.float16, 16.0), (torch.float32, "resets")],
    ids=str,
)
@pytest.mark.parametrize("schedule", [Schedule(64), Schedule(64, materialize=False), Schedule(128)], ids=str)
@pytest.mark.parametrize(("K", "V"), [(64, 64), (100, 60), (128, 128), (256, 256)])
def test_real_sizes(judged, packed, schedule, dtype, gates, K, V):
    judged(packed.drawn(0, 1500, 64), (4, K, V), dtype, gates, v_first=True, schedule=schedule)


@pytest.mark.gpu
@pytest.mark.parametrize("gates", [0.06, "resets"])
@pytest.mark.parametrize("schedule", [Schedule(64), Schedule(64, materialize=False)], ids=str)
@pytest.mark.parametrize(("K", "V"), [(64, 64), (128, 128)])
def test_walks_at_real_sizes(judged, packed, walks, schedule, gates, K, V):
    judged(packed.drawn(1, 1500, 64), (4, K, V), torch.bfloat16, gates, schedule=schedule)


@pytest.mark.gpu
def test_the_same_bits_twice(packed, inputs, outputs_of):
    lengths = packed.drawn(2, 3000, 64)
    x = packed.inputs(inputs, lengths, (4, 128, 128), torch.bfloat16, 1.0)
    x, lies = replace(x, g=x.g[..., :1].contiguous()), packed.ends(lengths, x.q.device)
    first, second = (outputs_of(form(lies, schedule=Schedule()), x) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
