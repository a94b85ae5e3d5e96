"""Linear attention with one gate a head and token against the float64 recurrence: outputs and all gradients.

Gates are [B, T, H, 1] here, which the references take for the same gate of every feature. Without a GPU everything
runs in Triton's interpreter, on small shapes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from gla_kernels import Schedule, retnet_decays, simple_gla
from gla_kernels.launch import record
from gla_kernels.ops.simple_gla import launches
from gla_kernels.simple import call

GATES = (0.06, 1.0, 4.0, 16.0, 40.0, "resets", "infinite", "closed")
KEPT, WALKED = Schedule(32), Schedule(32, materialize=False)


def form(schedule: Schedule | None = None, scale: float | None = None, final: bool = True) -> Callable[..., Any]:
    def run(q: Any, k: Any, v: Any, g: Any, state: Any) -> Any:
        return simple_gla(q, k, v, g.squeeze(-1), scale, state, final, schedule=schedule)

    return run


@pytest.fixture
def simple(inputs):
    """Inputs as of gla, with one gate a head; see `conftest.make_inputs`."""

    def make(*args: Any, **options: Any) -> Any:
        x = inputs(*args, **options)
        return replace(x, g=x.g[..., :1].contiguous())

    return make


def name(value: object) -> str:
    if isinstance(value, Schedule):
        return f"{value.chunk}-{'m' if value.materialize else 'w'}"
    return str(value).removeprefix("torch.").replace(" ", "")


@pytest.mark.parametrize("gates", GATES, ids=name)
def test_every_gate_strength(judge, simple, gates):
    judge(form(KEPT), simple((1, 37, 1, 20, 24), torch.float32, gates))


@pytest.fixture
def walks(monkeypatch):
    """However few the heads are, walks over time make outputs, and dv on the way back."""
    monkeypatch.setattr(call, "MANY_WALKS", 1)


@pytest.mark.parametrize("schedule", [KEPT, WALKED], ids=name)
@pytest.mark.parametrize("gates", GATES, ids=name)
def test_walks_both_ways_at_every_gate_strength(judge, simple, walks, gates, schedule):
    judge(form(schedule), simple((1, 37, 1, 20, 24), torch.bfloat16, gates))


@pytest.mark.parametrize(("K", "V"), [(8, 8), (100, 130)])
def test_walks_both_ways_of_several_heads_and_tiles(judge, simple, walks, K, V):
    judge(form(Schedule(16)), simple((2, 33, 2, K, V), torch.bfloat16, "resets"))


def test_walks_back_by_slices(judge, simple, walks, monkeypatch):
    monkeypatch.setattr(call, "segments_at_once", lambda *_: 2)
    judge(form(Schedule(16, materialize=False)), simple((1, 83, 1, 8, 8), torch.bfloat16, "resets"))


def test_states_are_kept_for_a_backward_pass_alone(simple, walks, monkeypatch, one_by_one):
    stored = []
    monkeypatch.setattr(record, "execute", lambda launch: stored.append(launch.constexprs.get("STORE_S")))
    x = simple((1, 20, 1, 8, 8), torch.bfloat16, 1.0)
    for wanted in (False, True):
        simple_gla(x.q.requires_grad_(wanted), x.k, x.v, x.g.squeeze(-1))
    with torch.no_grad():
        simple_gla(x.q, x.k, x.v, x.g.squeeze(-1))
    assert stored == [None, False, None, True, None, False]  # the sums of gates first


def test_a_walk_that_stores_no_states(judge, simple):
    judge(form(WALKED), simple((1, 37, 1, 20, 24), torch.float32, "resets"))


@pytest.mark.parametrize(("dtype", "schedule"), [(torch.float16, KEPT), (torch.bfloat16, WALKED)], ids=name)
def test_16_bits(judge, simple, dtype, schedule):
    judge(form(schedule), simple((1, 37, 1, 20, 24), dtype, "resets"))


@pytest.mark.parametrize("schedule", [Schedule(16), Schedule(), Schedule(128)], ids=name)
def test_every_size_of_chunks(judge, simple, schedule):
    judge(form(schedule), simple((1, schedule.chunk + 5, 1, 16, 16), torch.float32, "resets"))


@pytest.mark.parametrize(("T", "schedule"), [(1, KEPT), (33, WALKED)], ids=name)
def test_any_length_of_several_sequences_and_heads(judge, simple, schedule, T):
    judge(form(schedule), simple((2, T, 2 if T > 1 else 1, 8, 8), torch.float32, 1.0))


@pytest.mark.parametrize(("K", "V", "schedule"), [(40, 70, KEPT), (20, 40, WALKED)], ids=name)
def test_head_dimensions_of_several_tiles(judge, simple, schedule, K, V):
    judge(form(schedule), simple((1, 20, 1, K, V), torch.float32, 1.0))


@pytest.mark.parametrize("K", [8, 70])
def test_slices_of_a_long_sequence(judge, simple, monkeypatch, K):
    """K = 70 in float32 is too wide for a walk, so that the forward pass goes by slices, too."""
    monkeypatch.setattr(call, "segments_at_once", lambda *_: 2)
    judge(form(Schedule(16, materialize=False)), simple((1, 33, 1, K, 8), torch.float32, "resets"))


@pytest.mark.parametrize("schedule", [KEPT, WALKED], ids=name)
def test_without_states(judge, simple, schedule):
    judge(form(schedule, final=False), simple((1, 35, 1, 8, 8), torch.float32, 1.0, states=False))


def test_gates_in_float32_that_are_not_contiguous(judge, simple):
    x = simple((1, 20, 3, 16, 16), torch.bfloat16, 1.0, gate_dtype=torch.float32)
    judge(form(KEPT), replace(x, g=x.g.transpose(1, 2).contiguous().transpose(1, 2)))


def test_constant_decays_that_want_no_gradient(simple, outputs_of):
    """RetNet's, expanded: as the same gates in memory, and no gradient of theirs is made."""
    x = simple((1, 20, 2, 8, 8), torch.float32, 1.0)
    g = retnet_decays(2, x.q.device).expand(1, 20, 2)

    def constant(q: Any, k: Any, v: Any, _: Any, state: Any) -> Any:
        o, final = simple_gla(q, k, v, g, None, state, True, schedule=KEPT)
        return o + 0 * _.sum(), final

    found, given = outputs_of(constant, x), outputs_of(form(KEPT), replace(x, g=g[..., None].contiguous()))
    assert set(found) == {"o", "final_state", "dq", "dk", "dv", "dg", "d_initial"}
    for part, out in found.items():
        assert part == "dg" or torch.equal(out, given[part]), part


def test_retnet_decays_are_those_of_the_paper():
    right = torch.tensor([math.log(1 - 2.0 ** (-5 - h)) for h in range(8)])
    torch.testing.assert_close(retnet_decays(8), right, rtol=1e-6, atol=0)
    assert retnet_decays(64)[-1].item() == pytest.approx(-(2.0**-68), rel=1e-6)  # 1 - 2^-68 is 1 in float64


def test_a_gate_of_minus_infinity_forgets_and_one_that_is_no_number_shows(simple, outputs_of):
    x = simple((1, 20, 1, 8, 8), torch.float32, 1.0)
    x.g[:, 5] = -1e4
    right = outputs_of(form(KEPT), x)
    x.g[:, 5] = -math.inf
    for part, out in outputs_of(form(KEPT), x).items():
        assert torch.equal(out, right[part]), part
    x.g[:, 5] = math.nan
    o = form(KEPT)(x.q, x.k, x.v, x.g, x.initial_state)[0]
    assert torch.isfinite(o[:, :5]).all()
    assert o[:, 5:].isnan().all()


@pytest.mark.gpu  # the interpreter runs one program after another
@pytest.mark.parametrize("schedule", [Schedule(64), Schedule(64, materialize=False)], ids=name)
def test_the_same_bits_twice(simple, outputs_of, schedule):
    x = simple((2, 1001, 4, 128, 128), torch.bfloat16, 1.0)
    first, second = (outputs_of(form(schedule), x) for _ in range(2))
    assert all(torch.equal(first[part], second[part]) for part in first)


@pytest.mark.parametrize("schedule", [KEPT, WALKED], ids=name)
def test_an_empty_sequence_hands_the_state_on(simple, outputs_of, schedule):
    x = simple((2, 0, 2, 8, 8), torch.float32, 1.0)
    found = outputs_of(form(schedule), x)
    assert torch.equal(found["final_state"], x.initial_state)
    assert torch.equal(found["d_initial"], x.d_final)
    assert found["dg"].shape == (2, 0, 2, 1)


def test_scale_is_a_factor_of_the_output(simple, outputs_of):
    x = simple((1, 20, 1, 16, 8), torch.float32, 1.0)
    plain, doubled = outputs_of(form(KEPT), x), outputs_of(form(KEPT, scale=0.5), x)
    torch.testing.assert_close(doubled["o"], 2 * plain["o"])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"g": None}, r"g: expected a tensor \[B, T, H\], got NoneType"),
        ({"g": torch.zeros(1, 4, 2, 8)}, r"g: expected shape \[1, 4, 2\] .*for a gate of each feature there is gla"),
        ({"g": torch.zeros(1, 4)}, r"g: expected shape \[1, 4, 2\] \(B, T, H, as q\), got \[1, 4\]"),
        ({"g": torch.zeros(1, 4, 2, dtype=torch.float64)}, "g: expected dtype torch.float32 .* got torch.float64"),
        ({"g": torch.zeros(1, 4, 2).to_sparse()}, "g: expected a dense tensor, got torch.sparse_coo"),
        ({"output_final_state": 1}, "output_final_state: expected True or False, got 1"),
        ({"k": torch.zeros(1, 4, 2, 9)}, r"k: expected shape \[1, 4, 2, 8\]"),
        ({"v": torch.zeros(1, 4, 2, 257)}, "v: expected a head dimension .* from 1 to 256, got 257"),
        ({"scale": "1"}, "scale: expected a number or None, got str"),
        ({"schedule": Schedule(256)}, "schedule: simple_gla has chunks of 16, 32, 64, 128, not 256"),
        ({"schedule": Schedule(64, states_every=2)}, "schedule: .*got states_every=2"),
        ({"schedule": 64}, "schedule: expected a Schedule or None, got int"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_name(changed, message, device):
    given: dict[str, Any] = {name: torch.zeros(1, 4, 2, 8) for name in "qkv"} | {"g": torch.zeros(1, 4, 2)} | changed
    given = {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in given.items()}
    with pytest.raises(ValueError, match=message):
        simple_gla(**given)


@pytest.mark.parametrize("H", [0, True, 2.0])
def test_decays_are_of_a_number_of_heads(H):
    with pytest.raises(ValueError, match="H: expected a number of heads > 0"):
        retnet_decays(H)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"mode": "step"}, "mode: expected fwd, bwd or fwdbwd, got 'step'"),
        ({"K": 300}, "q: expected a head dimension .* from 1 to 256, got 300"),
        ({"dtype": torch.float64}, "q: expected float32, float16 or bfloat16, got torch.float64"),
    ],
)
def test_launches_of_what_cannot_be_called_are_refused(changed, message):
    with pytest.raises(ValueError, match=message):
        launches(**({"B": 1, "T": 8, "H": 1, "K": 16, "V": 16, "dtype": torch.bfloat16} | changed))


def test_launches_are_those_of_each_direction():
    shape: dict[str, Any] = {"B": 4, "T": 2048, "H": 8, "K": 128, "V": 128, "dtype": torch.bfloat16}
    fwd, bwd, both = ([x.step for x in launches(**shape, mode=mode)] for mode in ("fwd", "bwd", "fwdbwd"))
    assert fwd == ["simple_decays", "simple_states", "simple_output"]
    assert bwd == ["simple_states", "simple_grad_qk", "simple_grad_v", "sum"]  # states are kept
    assert both == fwd + bwd
    many = shape | {"H": 32}
    walks = ["simple_decays", "simple_walk", "simple_grad_walks", "simple_gates"]
    few = shape | {"H": 16}
    found = launches(**few)
    assert [x.step for x in found] == walks
    assert (found[1].args["p_s"], found[2].grid) == (None, (4 * 16 * 3,))  # no states of chunks; dq, dk, dv
    wide = launches(**(many | {"H": 16, "V": 256}))
    assert [x.step for x in wide] == walks
    assert wide[2].grid == (4 * 16 * (2 + 2 + 2),)  # dq and dk by 64 columns, dv by 128
    assert [x.step for x in launches(**few, gradient_of_g=False)] == walks[:3]
    for one in (many, many | {"V": 64}):  # they fill the SMs by one walk
        assert [x.step for x in launches(**one)] == ["simple_decays", "simple_walk", "simple_grad_walk"]
    halves = launches(**(many | {"K": 64, "V": 256}))  # two programs a head add up dq, dk and dg
    assert [x.step for x in halves] == ["simple_decays", "simple_walk", "simple_grad_walk", "sum", "sum", "sum"]
    assert halves[2].grid == (4 * 32 * 2,)
    portable = [x.step for x in launches(**many, capability=80)]
    assert portable == ["simple_decays", "simple_walk", "simple_walk", "simple_grad_qk", "sum"]  # there, and back
    walked = [x.step for x in launches(**shape, schedule=Schedule(64, materialize=False))]
    assert walked[:2] == ["simple_decays", "simple_walk"]
    assert walked.count("simple_states") == 2  # computed again
    long = launches(**(shape | {"T": 16384}), schedule=Schedule(64, materialize=False))
    assert [x.args["n_here"] for x in long if x.step == "simple_grad_v"] == [64] * 4  # 64 MiB each
    assert launches(**shape, capability=90)[1].blocks
    assert not launches(**shape, capability=80)[1].blocks  # an A100 has no tensor descriptors


@pytest.mark.parametrize(
    "change", [{"dtype": torch.float16}, {"K": 96}, {"V": 192}, {"schedule": Schedule(32)}, {"H": 2}], ids=str
)
def test_gradients_go_by_passes_where_hoppers_own_walk_cannot_serve(change):
    shape: dict[str, Any] = {"B": 4, "T": 256, "H": 32, "K": 64, "V": 64, "dtype": torch.bfloat16}
    assert launches(**shape)[-1].step == "simple_grad_walk"
    assert "simple_grad_qk" in [x.step for x in launches(**(shape | change))]


@pytest.mark.gpu
@pytest.mark.parametrize("gates", [0.06, "resets"])
@pytest.mark.parametrize(("K", "V"), [(64, 64), (64, 128), (64, 256), (128, 64), (128, 128), (128, 256)])
@pytest.mark.parametrize("schedule", [None, Schedule(64, materialize=False)], ids=name)
def test_many_heads(judge, simple, schedule, gates, K, V):
    judge(form(schedule), simple((3, 333, 16, K, V), torch.bfloat16, gates))


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("dtype", "gates"),
    [(torch.bfloat16, 0.06), (torch.bfloat16, "resets"), (torch.float16, 16.0), (torch.float32, "resets")],
    ids=name,
)
@pytest.mark.parametrize("schedule", [Schedule(64), Schedule(64, materialize=False), Schedule(128)], ids=name)
@pytest.mark.parametrize(("K", "V"), [(32, 32), (64, 64), (100, 256), (128, 128), (256, 256)])
def test_real_sizes(judge, simple, schedule, dtype, gates, K, V):
    judge(form(schedule), simple((2, 1001, 4, K, V), dtype, gates))


@pytest.mark.gpu
@pytest.mark.parametrize("gates", GATES, ids=name)
@pytest.mark.parametrize("schedule", [Schedule(64), Schedule(64, materialize=False)], ids=name)
@pytest.mark.parametrize(("K", "V"), [(32, 32), (64, 64), (100, 256), (128, 128)])
def test_walks_both_ways_at_real_sizes(judge, simple, walks, schedule, gates, K, V):
    judge(form(schedule), simple((2, 1001, 4, K, V), torch.bfloat16, gates))


@pytest.mark.gpu
def test_a_long_sequence_in_slices(judge, simple):
    judge(form(Schedule(64, materialize=False)), simple((1, 8192, 32, 128, 128), torch.bfloat16, 0.06))
