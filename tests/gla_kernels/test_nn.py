"""The layer: against float64, step by step, packed, and by flash-linear-attention's names."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from gla_kernels import Schedule, gla, reference
from gla_kernels.nn import ACTIVATIONS, GatedLinearAttention

WIDTH, HEADS = 48, 2
FACTOR = 4.0  # as in conftest.py: times the error of the same-dtype PyTorch form
FLOOR = 128 * torch.finfo(torch.float32).eps
PROBE = Path(__file__).with_name("nn_probe.py")
WRONG: Any = "wrong"

# Of fla/layers/gla.py in flash-linear-attention 0.6.0, `GatedLinearAttention.__init__`: the modules in their order,
# with hidden_size 64, 4 heads of 8 (keys) and 16 (values).
NAMES = {
    "q_proj.weight": (32, 64),
    "k_proj.weight": (32, 64),
    "v_proj.weight": (64, 64),
    "g_proj.weight": (64, 64),
    "gk_proj.0.weight": (16, 64),
    "gk_proj.1.weight": (32, 16),
    "gk_proj.1.bias": (32,),
    "o_proj.weight": (64, 64),
    "g_norm_swish_gate.weight": (16,),
}
VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # arguments; what else the names come to, None for gone
    "as it is": ({}, {}),
    "grouped": (
        {"num_kv_heads": 2},
        {"k_proj.weight": (16, 64), "v_proj.weight": (32, 64), "gk_proj.1.weight": (16, 16), "gk_proj.1.bias": (16,)},
    ),
    "norm apart": ({"fuse_norm": False}, {"g_norm_swish_gate.weight": None, "g_norm.weight": (16,)}),
    "another gate": ({"gate_fn": "silu"}, {"g_norm_swish_gate.weight": None, "g_norm.weight": (16,)}),
    "no gate": (
        {"use_output_gate": False},
        {"g_proj.weight": None, "g_norm_swish_gate.weight": None, "g_norm.weight": (16,)},
    ),
    "no weights of the norm": ({"elementwise_affine": False}, {"g_norm_swish_gate.weight": None}),
    "rank": ({"gate_low_rank_dim": 8}, {"gk_proj.0.weight": (8, 64), "gk_proj.1.weight": (32, 8)}),
}


@pytest.fixture
def afresh() -> Iterator[None]:
    """Without what other tests have compiled."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.fixture
def made(device: torch.device) -> Callable[..., GatedLinearAttention]:
    def make(dtype: torch.dtype = torch.float32, **how: Any) -> GatedLinearAttention:
        layer = GatedLinearAttention(**{"hidden_size": WIDTH, "num_heads": HEADS, **how})
        for parameter in layer.parameters():  # the norm's weights, too, and gates that forget
            nn.init.normal_(parameter, std=1.0 if parameter.dim() == 1 else 0.3)
        return layer.to(device, dtype)

    return make


def near(found: Tensor, right: Tensor) -> bool:
    """Whether rounding alone, in float32, is between the two."""
    return bool((found - right).norm() <= FLOOR * right.norm())


def drawn(layer: nn.Module, *lead: int) -> Tensor:
    """x [.., WIDTH] on the device and in the dtype of the layer."""
    weight = next(layer.parameters())
    return torch.randn(*lead, WIDTH, device=weight.device).to(weight.dtype)


# --- Against float64 --------------------------------------------------------------------------------------------------


def plain(
    x: Tensor, state: Tensor, weights: dict[str, Tensor], form: Callable[..., Any], heads: int, kv_heads: int,
    gate: Callable[[Tensor], Tensor] | None = F.silu, feature_map: Callable[[Tensor], Tensor] | None = None,
    clamp: float | None = None, gate_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The layer in plain PyTorch, by any form of the operator."""

    def by_heads(y: Tensor, n: int) -> Tensor:
        return y.unflatten(-1, (n, -1)).repeat_interleave(heads // n, -2)

    def through(name: str, y: Tensor) -> Tensor:
        return F.linear(y, weights[f"{name}.weight"], weights.get(f"{name}.bias"))

    q, k, v = through("q_proj", x), through("k_proj", x), through("v_proj", x)
    q, k = (y if feature_map is None else feature_map(y) for y in (q, k))
    g = through("gk_proj.1", through("gk_proj.0", x))
    g = F.logsigmoid(g if gate_dtype is None or g.dtype == torch.float64 else g.to(gate_dtype)) / 16
    g = g if clamp is None else g.clamp(min=clamp)
    o, final = form(by_heads(q, heads), *(by_heads(y, kv_heads) for y in (k, v, g)), None, state)
    norm = weights.get("g_norm_swish_gate.weight", weights.get("g_norm.weight"))
    o = F.rms_norm(o, o.shape[-1:], norm, 1e-5)
    if gate is not None:
        o = gate(by_heads(through("g_proj", x), heads)) * o
    return through("o_proj", o.flatten(-2)), final


def differentiated(outputs: tuple[Tensor, Tensor], ups: tuple[Tensor, Tensor], leaves: dict[str, Tensor]) -> Any:
    """Outputs and gradients by name."""
    cast = [up.to(out.dtype) for up, out in zip(ups, outputs, strict=True)]
    grads = torch.autograd.grad(outputs, list(leaves.values()), cast)
    return dict(zip(("y", "state", *leaves), (*outputs, *grads), strict=True))


MODELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # the layer's arguments, and those of `plain`
    "as it is": ({}, {}),
    "grouped": ({"num_heads": 4, "num_kv_heads": 2}, {"heads": 4, "kv_heads": 2}),
    "mapped and clamped": (
        {"feature_map": "relu", "gate_fn": "sigmoid", "clamp_min": -0.05},
        {"feature_map": F.relu, "gate": torch.sigmoid, "clamp": -0.05},
    ),
    "no output gate": ({"use_output_gate": False, "elementwise_affine": False}, {"gate": None}),
    "token by token": ({"mode": "fused_recurrent"}, {}),
    "few states": ({"schedule": Schedule(32, 16, materialize=False)}, {}),
}
CASES: list[tuple[str, torch.dtype, torch.dtype | None]] = [(name, torch.float32, None) for name in MODELS]
CASES += [("as it is", dtype, wide) for dtype in (torch.float16, torch.bfloat16) for wide in (None, torch.float32)]


@pytest.mark.parametrize(("model", "dtype", "gate_dtype"), CASES, ids=str)
def test_outputs_and_gradients_are_as_near_to_float64_as_plain_pytorch(made, model, dtype, gate_dtype):
    how, also = MODELS[model]
    layer = made(dtype, gate_dtype=gate_dtype, **how)
    x = drawn(layer, 2, 37)
    heads = also.get("heads", HEADS)
    state, up = (torch.randn(2, heads, 24 // heads, 48 // heads, device=x.device) for _ in range(2))
    ups = drawn(layer, 2, 37), up

    def leaves_of(kind: torch.dtype | None) -> dict[str, Tensor]:
        given = {"x": x, "initial_state": state, **layer.state_dict()}
        return {name: t.detach().clone().to(kind or t.dtype).requires_grad_() for name, t in given.items()}

    def by(form: Callable[..., Any], kind: torch.dtype | None) -> Any:
        leaves = leaves_of(kind)
        options = {"heads": HEADS, "kv_heads": HEADS, "gate_dtype": gate_dtype, **also}
        return differentiated(plain(leaves["x"], leaves["initial_state"], leaves, form, **options), ups, leaves)

    right, near = by(reference.recurrent, torch.float64), by(reference.chunkwise, None)
    leaves = {"x": x.requires_grad_(), "initial_state": state.requires_grad_(), **dict(layer.named_parameters())}
    found = differentiated(layer(x, state, True), ups, leaves)
    assert found.keys() == right.keys()
    for name, out in found.items():
        assert out.dtype == near[name].dtype, name
        norm = right[name].norm().item()
        allowed = FACTOR * (near[name].double() - right[name]).norm().item() + FLOOR * norm
        error = (out.double() - right[name]).norm().item()
        assert error <= allowed, f"{name}: off by {error:.3e}, allowed {allowed:.3e}, norm {norm:.3e}"


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_those_of_pytorch_s_that_have_the_name(name):
    x = torch.linspace(-4, 4, 101, dtype=torch.float64)
    wanted = {
        "gelu": 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3))),
        "logsigmoid": -(1 + torch.exp(-x)).log(),
        "relu": x.clamp(min=0),
        "sigmoid": 1 / (1 + torch.exp(-x)),
        "silu": x / (1 + torch.exp(-x)),
        "sqrelu": x.clamp(min=0) ** 2,
        "swish": x / (1 + torch.exp(-x)),
    }
    torch.testing.assert_close(ACTIVATIONS[name](x), wanted[name])


# --- States -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [{}, {"num_kv_heads": 1}, {"use_output_gate": False}], ids=str)
@torch.no_grad()
def test_a_prompt_and_then_a_token_at_a_time_is_the_whole(made, how):
    layer = made(**how)
    x = drawn(layer, 2, 24)
    whole, last = layer(x, output_final_state=True)
    assert layer(x)[1] is None
    y, state = layer(x[:, :20], None, True)
    assert near(y, whole[:, :20])
    kept, before = state, state.clone()
    for t in range(20, 22):  # by the layer itself, which leaves a state as it is
        y, state = layer(x[:, t : t + 1], state, True)
        assert near(y, whole[:, t : t + 1])
    assert torch.equal(kept, before)
    for t in range(22, 24):  # in place
        assert near(layer.step(x[:, t], state), whole[:, t])
    assert near(state, last)


def test_a_single_token_has_gradients(made):
    layer = made()
    x = drawn(layer, 2, 9)
    whole = layer(x)[0][:, -1:]
    _, state = layer(x[:, :-1], output_final_state=True)
    last, _ = layer(x[:, -1:], state)
    want, got = (torch.autograd.grad(y.square().sum(), list(layer.parameters())) for y in (whole, last))
    for a, b in zip(want, got, strict=True):
        assert near(b, a)


@pytest.mark.parametrize("mode", ["chunk", "fused_recurrent"])
def test_packed_sequences_are_the_separate_ones(made, packed, mode):
    layer, lengths = made(mode=mode), (7, 0, 20, 1)
    x = drawn(layer, 1, sum(lengths))
    states = torch.randn(len(lengths), HEADS, 12, 24, device=x.device)
    ends = packed.ends(lengths, x.device)
    found, after = layer(x, states, True, cu_seqlens=ends)
    parts = [
        layer(part, states[n : n + 1], True)
        for n, part in enumerate(x.split(lengths, 1))
        if part.shape[1]  # nothing becomes of the state of none
    ]
    whole = torch.cat([y for y, _ in parts], 1)
    assert near(found, whole)
    assert near(after[[0, 2, 3]], torch.cat([state for _, state in parts]))
    assert torch.equal(after[1], states[1])
    want, got = (torch.autograd.grad(y.square().sum(), list(layer.parameters())) for y in (whole, found))
    for a, b in zip(want, got, strict=True):
        assert near(b, a)


# --- Names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
def test_names_shapes_and_order_are_flas(variant):
    """The order, too: an optimizer's state knows parameters by their place."""
    how, other = VARIANTS[variant]
    expected = {name: shape for name, shape in (NAMES | other).items() if shape is not None}
    layer = GatedLinearAttention(hidden_size=64, num_heads=4, **how)
    assert [(name, tuple(x.shape)) for name, x in layer.state_dict().items()] == list(expected.items())
    assert [name for name, _ in layer.named_parameters()] == list(expected)


def test_a_state_dict_comes_back(made):
    layer, other = made(), made()
    saved = copy.deepcopy(layer.state_dict())
    x = drawn(layer, 1, 20)
    assert not torch.equal(layer(x)[0], other(x)[0])
    other.load_state_dict(saved)
    assert torch.equal(layer(x)[0], other(x)[0])
    with pytest.raises(RuntimeError, match=r"Missing key.*gk_proj.0.weight"):
        other.load_state_dict({name: x for name, x in saved.items() if name != "gk_proj.0.weight"})


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_a_layer_can_be_pickled(made, name):
    layer = made(feature_map=name, gate_fn=name)
    other = pickle.loads(pickle.dumps(layer))
    x = torch.randn(3, device=layer.q_proj.weight.device)
    assert torch.equal(other.feature_map_fn(x), layer.feature_map_fn(x))
    assert torch.equal(other.gate_fn(x), layer.gate_fn(x))


def test_flas_layer_computes_the_same_from_the_same_weights(python_process, device):
    pytest.importorskip("fla.layers", reason="flash-linear-attention is not installed, or not its layers")
    done = python_process(str(PROBE), interpret=device.type == "cpu")
    assert done.stdout.splitlines()[-1] == "alike"


# --- Training ---------------------------------------------------------------------------------------------------------


def test_an_optimizer_changes_every_parameter_and_the_loss_falls(made):
    layer = made()
    x = drawn(layer, 2, 20)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-2)
    before = copy.deepcopy(layer.state_dict())
    losses = []
    for _ in range(4):
        loss = (layer(x)[0] - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(layer.parameters(), 0.5)  # in place, on gradients that are parts of one
        optimizer.step()
        losses.append(loss.item())
    assert losses == sorted(losses, reverse=True)
    assert not [name for name, x in layer.state_dict().items() if torch.equal(x, before[name])]


def test_a_projection_that_is_no_plain_one_is_called(made):
    class Doubled(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            return 2 * self.inner(x)

    layer = made()
    x, other = drawn(layer, 2, 20), copy.deepcopy(layer)
    with torch.no_grad():
        other.g_proj.weight *= 2
    want = other(x)[0]
    layer.g_proj = Doubled(layer.g_proj)
    assert near(layer(x)[0], want)
    layer.g_proj = layer.g_proj.inner
    assert not near(layer(x)[0], want)
    layer.g_proj.register_forward_hook(lambda _, given, out: 2 * out)
    assert near(layer(x)[0], want)


def test_gradients_of_each_sequence_by_torch_func(made):
    layer = made()
    x, weights = drawn(layer, 2, 20), {name: p.detach() for name, p in layer.named_parameters()}

    def loss(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(layer, weights, (x[None],))[0].square().sum()

    found = vmap(grad(loss), in_dims=(None, 0))(weights, x)
    for n in range(2):
        want = torch.autograd.grad(layer(x[n : n + 1])[0].square().sum(), list(layer.parameters()))
        assert all(near(found[name][n], right) for name, right in zip(weights, want, strict=True))


def test_weights_that_are_frozen_get_no_gradient(made):
    layer = made()
    x = drawn(layer, 2, 20)
    layer(x)[0].sum().backward()
    want = {name: p.grad for name, p in layer.named_parameters()}
    layer.zero_grad()
    for frozen in (("q_proj", "v_proj"), ("q_proj", "k_proj", "v_proj", "g_proj", "gk_proj")):
        layer.requires_grad_(True)
        layer.zero_grad()
        for name in frozen:
            getattr(layer, name).requires_grad_(False)
        layer(x.clone().requires_grad_())[0].sum().backward()
        for name, p in layer.named_parameters():
            assert (p.grad is None) == name.startswith(frozen)
            assert p.grad is None or torch.equal(p.grad, want[name])


def test_a_checkpoint_and_recomputed_states_come_to_the_same_bits(made):
    layer = made()
    x = drawn(layer, 2, 40)

    def gradients(y: Tensor) -> list[Tensor]:
        return [y, *torch.autograd.grad(y.square().sum(), list(layer.parameters()))]

    want = gradients(layer(x)[0])
    assert all(map(torch.equal, want, gradients(checkpoint(lambda x: layer(x)[0], x, use_reentrant=False))))
    layer.recompute = True
    assert all(map(torch.equal, want, gradients(layer(x)[0])))


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[list[torch.dtype]]:
    """The dtypes of q, k, v and g in each call of `gla` by a layer."""
    found = list[list[torch.dtype]]()

    def watched(*given: Any, **how: Any) -> Any:
        found.append([x.dtype for x in given[:4]])
        return gla(*given, **how)

    monkeypatch.setattr("gla_kernels.nn.gla", watched)
    return found


def test_gates_are_in_the_dtype_that_is_asked_for(made, seen):
    for gate_dtype in (None, torch.float32):
        layer = made(torch.bfloat16, gate_dtype=gate_dtype)
        layer(drawn(layer, 1, 20))
    assert seen == [[torch.bfloat16] * 4, [torch.bfloat16] * 3 + [torch.float32]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_under_autocast_the_operator_takes_16_bits_and_weights_keep_theirs(made, device, seen, dtype):
    layer = made()
    x = drawn(layer, 2, 20)
    want = layer(x)[0]
    seen.clear()
    with torch.autocast(device.type, dtype):
        y, _ = layer(x)
        token = layer(x[:, :1])[0]
    assert y.dtype == token.dtype == dtype
    assert seen == [[dtype] * 4]
    near = layer.to(dtype)(x.to(dtype))[0]  # all of it in 16 bits
    assert (y - want).norm() <= 2 * (near - want).norm()
    layer = made()
    with torch.autocast(device.type, dtype):
        y, _ = layer(x)
    y.float().square().sum().backward()
    grads = {p.grad.dtype for p in layer.parameters() if p.grad is not None}
    assert grads == {torch.float32}


# --- In a graph -------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("afresh")
@pytest.mark.parametrize("sizes", [((2, 20),), pytest.param(((2, 7), (3, 20)), marks=pytest.mark.exhaustive)], ids=str)
def test_a_graph_computes_the_same_without_a_break(made, sizes):
    layer = made()
    in_graph = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for B, T in sizes:  # a part of a chunk, and two chunks
        x = drawn(layer, B, T)
        found = []
        for run in (layer, in_graph):
            y, state = run(x, None, True)
            loss = y.square().sum() + state.square().sum()
            found.append([y, state, *torch.autograd.grad(loss, list(layer.parameters()))])
        assert all(map(torch.equal, *found))


@pytest.mark.usefixtures("afresh")
def test_a_graph_of_packed_sequences_under_autocast_computes_the_same(made, packed, device):
    layer = made(num_kv_heads=1, gate_dtype=torch.float32, clamp_min=-1.0)
    x, ends = drawn(layer, 1, 28), packed.ends((7, 0, 20, 1), device)
    found = []
    for run in (layer, torch.compile(layer, fullgraph=True, backend="aot_eager")):
        with torch.autocast(device.type, torch.float16):
            y, _ = run(x, cu_seqlens=ends)
        found.append([y, *torch.autograd.grad(y.float().square().sum(), list(layer.parameters()))])
    assert all(map(torch.equal, *found))


@pytest.mark.usefixtures("afresh")
@torch.no_grad()
def test_a_step_in_a_graph_updates_the_state(made):
    layer = made()
    _, state = layer(drawn(layer, 2, 20), output_final_state=True)
    x, other = drawn(layer, 2), state.clone()
    in_graph = torch.compile(layer.step, fullgraph=True, backend="aot_eager")
    assert torch.equal(in_graph(x, state), layer.step(x, other))
    assert torch.equal(state, other)


# --- What is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ({"mode": "fused_chunk"}, "mode: expected chunk, fused_recurrent, got 'fused_chunk'"),
        ({"hidden_size": 0}, "hidden_size: expected a number of 1 or more, got 0"),
        ({"hidden_size": 64.0}, "hidden_size: expected a number of 1 or more, got 64.0"),
        ({"num_heads": 0}, "num_heads: expected a number of 1 or more, got 0"),
        ({"num_heads": True}, "num_heads: expected a number of 1 or more, got True"),
        ({"num_kv_heads": 3}, "num_kv_heads: expected a divisor of num_heads=4, got 3"),
        ({"gate_low_rank_dim": 0}, "gate_low_rank_dim: expected a number of 1 or more, got 0"),
        ({"expand_k": 0.3}, r"expand_k: expected hidden_size \* expand_k / num_heads to be a whole .* 512, got 64"),
        ({"expand_k": 0.0}, "expand_k: expected hidden_size"),
        ({"hidden_size": 4096}, "expand_v: expected hidden_size .* = 1024"),
        ({"feature_map": "elu"}, "feature_map: expected gelu, .* got 'elu'"),
        ({"gate_fn": "softmax"}, "gate_fn: expected gelu, .* got 'softmax'"),
        ({"use_short_conv": True}, r"use_short_conv: expected False, got True: .*gla_kernels.fla.accelerate\(\)"),
        ({"gate_logit_normalizer": 0}, "gate_logit_normalizer: expected a positive number, got 0"),
        ({"clamp_min": 1.0}, "clamp_min: expected a number of 0 or less, or None, got 1.0"),
        ({"gate_dtype": torch.float16}, "gate_dtype: expected torch.float32, or None for that of x, got torch.float16"),
        ({"mode": "fused_recurrent", "schedule": Schedule()}, "schedule: expected None in mode 'fused_recurrent', got"),
        ({"mode": "fused_recurrent", "recompute": True}, "recompute: expected None in mode 'fused_recurrent', got"),
    ],
    ids=str,
)
def test_an_argument_that_is_wrong_is_named(how, text):
    with pytest.raises(ValueError, match=text):
        GatedLinearAttention(**{"hidden_size": 64, "num_heads": 4, **how})


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda layer, x: layer(WRONG), r"x: expected a tensor \[B, T, 48\], got str"),
        (lambda layer, x: layer(x[0]), r"x: expected shape \[B, T, 48\], got \[20, 48\]"),
        (lambda layer, x: layer(x[..., :8]), r"x: expected shape \[B, T, 48\], got \[2, 20, 8\]"),
        (lambda layer, x: layer(x.double()), r"x: expected dtype torch.float32 as of the weights, got torch.float64"),
        (lambda layer, x: layer(x, x), r"initial_state: expected shape \[2, 2, 12, 24\]"),
        (lambda layer, x: layer(x[:, :1], x), r"initial_state: expected shape \[2, 2, 12, 24\]"),
        (lambda layer, x: layer(x, None, WRONG), "output_final_state: expected True or False, got 'wrong'"),
        (lambda layer, x: layer(x, cu_seqlens=torch.tensor([0, 20], device=x.device)), "q: expected B = 1"),
        (lambda layer, x: layer.step(x, x), r"x: expected shape \[B, 48\], got \[2, 20, 48\]"),
        (lambda layer, x: layer.step(x[:, 0], x), r"state: expected shape \[2, 2, 12, 24\]"),
        (lambda layer, x: layer.double()(x.double()), "q: expected float32, float16 or bfloat16"),
    ],
)
def test_what_a_call_is_given_wrongly_is_named(made, call, text):
    layer = made()
    with torch.no_grad(), pytest.raises(ValueError, match=text):
        call(layer, drawn(layer, 2, 20))


def test_schedules_and_recompute_reach_the_operator(made):
    for name in ("schedule", "recompute"):
        layer = made(**{name: WRONG})
        with pytest.raises(ValueError, match=f"{name}: expected"):
            layer(drawn(layer, 1, 20))


def test_a_step_is_refused_where_gradients_are_required(made):
    layer = made()
    with pytest.raises(ValueError, match=r"expected inputs without gradients \(torch.no_grad\(\)\)"):
        layer.step(drawn(layer, 2), torch.zeros(2, HEADS, 12, 24, device=layer.q_proj.weight.device))
