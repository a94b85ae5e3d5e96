"""Tensors that are not plain: without data, of torch.func's, of a user's own, on a mesh, and such as lie anyhow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd import forward_ad
from torch.utils._pytree import tree_map
from torch.utils.checkpoint import checkpoint

import gla_kernels
from gla_kernels import Schedule
from gla_kernels.launch import record

Call = Callable[..., Any]
gla: Call = gla_kernels.gla
gla_recurrent: Call = gla_kernels.gla_recurrent
gla_step: Call = gla_kernels.gla_step
simple_gla: Call = gla_kernels.simple_gla
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def simple_gla_by_head(q: Any, k: Any, v: Any, g: Any, *more: Any) -> Any:
    return simple_gla(q, k, v, g[..., 0], *more)


CALLS: dict[str, Call] = {
    "gla": gla,
    "gla without states": lambda *given: gla(*given, schedule=Schedule(16, 16, materialize=False)),
    "gla with gates on the value side": lambda q, k, v, g, *more: gla(q, k, v, g, *more, gv=g),
    "gla without gates": lambda q, k, v, g, *more: gla(q, k, v * g.exp(), None, *more),
    "gla_recurrent": gla_recurrent,
    "simple_gla": simple_gla_by_head,
}
EVERY = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
PUBLIC = pytest.mark.parametrize("call", [gla, gla_recurrent, simple_gla_by_head])
# What PyTorch does around a call is the same for all of them: gla and one gate a head, and nightly gla in all its ways.
OTHERS = {name for name, call in CALLS.items() if call not in (gla, simple_gla_by_head)}
MOST = pytest.mark.parametrize(
    "call", [pytest.param(CALLS[x], id=x, marks=[pytest.mark.exhaustive] * (x in OTHERS)) for x in CALLS]
)


def drawn(B: int = 2, T: int = 20, H: int = 2, D: int = 16, device: str = DEVICE) -> list[torch.Tensor]:
    """q, k, v and g."""
    q, k, v, g = (torch.randn(B, T, H, D, device=device) for _ in range(4))
    return [q, k, v, -g.abs()]


def alike(found: Any, expected: Any) -> None:
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-5)


def equal(found: Any, expected: Any) -> bool:
    return all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def both(call: Call, given: list[torch.Tensor], do: torch.Tensor | None = None) -> list[torch.Tensor]:
    """o and the gradients of all that is given."""
    leaves = [x.detach().requires_grad_() for x in given]
    o = call(*leaves)[0]
    return [o.detach(), *torch.autograd.grad(o, leaves, torch.ones_like(o) if do is None else do)]


@pytest.fixture(autouse=True)
def the_process_goes_on() -> Iterator[None]:
    """A plain call is right after whatever a test did, as it was before."""
    given = [torch.linspace(-1, 0, 3 * 16, device=DEVICE).view(1, 3, 1, 16)] * 4
    before = gla(*given)[0]
    yield
    assert torch.equal(gla(*given)[0], before)


# --- Without data -----------------------------------------------------------------------------------------------------


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels that ran."""
    found: list[str] = []
    execute = vars(record)["execute"]

    def note(launch: Any) -> None:
        found.append(launch.name)
        execute(launch)

    monkeypatch.setattr(record, "execute", note)
    return found


@EVERY
@pytest.mark.parametrize("inside", [True, False])
def test_fake_tensors_get_shapes_and_run_nothing(call: Any, ran: Any, inside: bool) -> None:
    """inside: of the mode that they are of."""
    device = DEVICE
    mode = FakeTensorMode()
    with mode:
        given = [x.bfloat16().requires_grad_() for x in drawn(device=device)]
        state = torch.zeros(2, 2, 16, 16, device=device, requires_grad=True)
        do = torch.zeros(2, 20, 2, 16, device=device, dtype=torch.bfloat16)
    if inside:
        mode.__enter__()
    try:
        o, final = call(*given, None, state, True)
        grads = torch.autograd.grad([o, final], [*given, state], [do, state.detach()])
    finally:
        if inside:
            mode.__exit__(None, None, None)
    for x, like in zip((o, final, *grads), (given[2], state, *given, state), strict=True):
        assert isinstance(x, FakeTensor)
        assert (x.shape, x.dtype, x.device.type) == (like.shape, like.dtype, device)
    assert ran == []


@pytest.mark.parametrize("call", [gla, gla_recurrent, simple_gla])
def test_fake_tensors_of_a_gpu_need_none(call: Any, ran: Any) -> None:
    """But for a backward pass, for which PyTorch itself asks for the device."""
    with FakeTensorMode():
        given = drawn(device="cuda")
        if call is simple_gla:
            given[3] = torch.zeros(2, 20, 2, device="cuda")
        o, final = call(*given, None, None, True)
    assert [x.device.type for x in (o, final)] == ["cuda", "cuda"]
    assert [x.shape for x in (o, final)] == [given[2].shape, (2, 2, 16, 16)]
    assert ran == []


@pytest.mark.parametrize("value_gates", [True, False])
def test_a_step_of_fake_tensors_runs_nothing(ran: Any, value_gates: bool) -> None:
    with FakeTensorMode():
        q, k, v, g = (x[:, 0] for x in drawn())
        state = torch.zeros(2, 2, 16, 16, device=DEVICE)
        o = gla_step(q, k, v, g, state, gv=g if value_gates else None)
    assert isinstance(o, FakeTensor)
    assert (o.shape, o.dtype) == (v.shape, v.dtype)
    assert ran == []


@PUBLIC
def test_plain_tensors_within_a_mode_of_fake_ones_run_nothing(call: Any, ran: Any) -> None:
    """After the same call outside of it, too."""
    given = [x.requires_grad_() for x in drawn()]
    call(*given)
    ran.clear()
    with FakeTensorMode(allow_non_fake_inputs=True):
        o, final = call(*given, None, None, True)
        assert [isinstance(x, FakeTensor) for x in (o, final)] == [True, True]
        assert all(isinstance(x, FakeTensor) for x in torch.autograd.grad(o.sum(), given))
    with FakeTensorMode(), pytest.raises(AssertionError, match="convert all Tensors to FakeTensors first"):
        call(*given)
    assert ran == []


@PUBLIC
def test_what_is_wrong_with_fake_tensors_is_said(call: Any) -> None:
    with FakeTensorMode():
        q, k, v, g = drawn()
        with pytest.raises(ValueError, match="k: expected shape"):
            call(q, k[:, 1:], v, g)


# --- torch.func -------------------------------------------------------------------------------------------------------


def loss(call: Call, given: tuple[torch.Tensor, ...], state: torch.Tensor | None = None) -> torch.Tensor:
    o, final = call(*given, None, state, True)
    return o.square().sum() + final.square().sum()


@MOST
def test_func_grad_is_the_gradient(call: Any) -> None:
    given, state = drawn(B=1), torch.randn(1, 2, 16, 16, device=DEVICE)
    found = torch.func.grad(lambda given, state: loss(call, given, state), argnums=(0, 1))(tuple(given), state)
    leaves = [x.requires_grad_() for x in (*given, state)]
    alike([*found[0], found[1]], torch.autograd.grad(loss(call, tuple(given), state), leaves))


@pytest.mark.exhaustive(call=(gla_recurrent, simple_gla_by_head))
@PUBLIC  # the others' gradients are above, and their graphs in test_library.py
def test_func_grad_in_a_graph_is_the_gradient(call: Any) -> None:
    """There no tensor says that it wants a gradient: without a function of autograd it would be zero."""
    q, *rest = drawn(B=1)

    def of_q(q: torch.Tensor) -> torch.Tensor:
        return loss(call, (q, *rest))

    torch._dynamo.reset()
    found = torch.compile(torch.func.grad(of_q), backend="aot_eager", fullgraph=True)(q)
    alike([found], [torch.func.grad(of_q)(q)])


@pytest.mark.each_value  # what PyTorch does around a call is the same for all of them
@MOST
@pytest.mark.parametrize("axis", [0, 2])
def test_vmap_is_a_loop(call: Any, axis: int) -> None:
    """Over one more axis, which all but q have."""
    q, *more = drawn(T=7)
    many = [torch.stack([x, x / 2, x / 3], axis) for x in more]
    found = torch.func.vmap(lambda *given: call(*given, None, None, True), (None, axis, axis, axis))(q, *many)
    singles = [call(q, *(x.select(axis, i) for x in many), None, None, True) for i in range(3)]
    alike(found, [torch.stack(parts) for parts in zip(*singles, strict=True)])


@MOST
def test_gradients_of_each_sample_are_a_loop(call: Any) -> None:
    """Of a weight before the operator, as in differentially private training."""
    given, weight = drawn(B=2), torch.randn(16, device=DEVICE)

    def of_one(weight: torch.Tensor, *sample: torch.Tensor) -> torch.Tensor:
        q, *more = (x[None] for x in sample)
        return loss(call, (q * weight, *more))

    found = torch.func.vmap(torch.func.grad(of_one), (None, 0, 0, 0, 0))(weight, *given)
    leaf = weight.clone().requires_grad_()
    each = [torch.autograd.grad(of_one(leaf, *(x[i] for x in given)), leaf)[0] for i in range(2)]
    torch.testing.assert_close(found, torch.stack(each), rtol=1e-4, atol=1e-4)


@PUBLIC
def test_a_jacobian_is_a_loop_of_gradients(call: Any) -> None:
    q, *more = drawn(B=1, T=5, H=1)

    def few(q: torch.Tensor) -> torch.Tensor:
        return call(q, *more)[0].sum((0, 1, 2))[:4]

    found = torch.func.jacrev(few)(q)
    leaf = q.clone().requires_grad_()
    alike(found, [torch.autograd.grad(one, leaf, retain_graph=True)[0] for one in few(leaf)])


@PUBLIC
def test_what_torch_func_cannot_have_is_refused(call: Any) -> None:
    given = tuple(drawn())
    forward_mode = r"no forward-mode derivative .*; expected torch\.func\.grad, vjp or jacrev"
    with pytest.raises(NotImplementedError, match=forward_mode):
        torch.func.jvp(lambda *given: loss(call, given), given, given)
    with pytest.raises(NotImplementedError, match=forward_mode):
        torch.func.hessian(lambda q: loss(call, (q, *given[1:])))(given[0])
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match=forward_mode):
        call(forward_ad.make_dual(given[0], given[0]), *given[1:])
    with pytest.raises(NotImplementedError, match=r"has no rule for torch\.func\.functionalize"):
        torch.func.functionalize(lambda q: call(q, *given[1:])[0])(given[0])

    def gradient(q: torch.Tensor) -> torch.Tensor:
        return torch.func.grad(lambda q: loss(call, (q, *given[1:])))(q).square().sum()

    with pytest.raises(RuntimeError, match="differentiable once"):
        torch.func.grad(gradient)(given[0])


def test_a_step_in_a_transform_is_refused_in_one_line() -> None:
    q, k, v, g = (x[:, 0] for x in drawn(B=1))
    state = torch.zeros(1, 2, 16, 16, device=DEVICE)
    with pytest.raises(ValueError, match=r"gla_step: expected no further axis, and torch\.func\.vmap adds one"):
        torch.func.vmap(lambda q: gla_kernels.gla_step(q, k, v, g, state)[0])(q[None])
    with pytest.raises(NotImplementedError, match=r"gla_step has no rule for torch\.func\.functionalize"):
        torch.func.functionalize(lambda q: gla_kernels.gla_step(q, k, v, g, state)[0])(q)


# --- Subclasses -------------------------------------------------------------------------------------------------------


class Named(torch.Tensor):
    """As a user writes one, to see what is done with it."""


class Wrapped(torch.Tensor):
    """Of another tensor, on which all is done."""

    @staticmethod
    def __new__(cls, x: torch.Tensor) -> Wrapped:
        made: Wrapped = torch.Tensor._make_wrapper_subclass(
            cls, x.shape, strides=x.stride(), dtype=x.dtype, device=x.device, requires_grad=x.requires_grad
        )
        return made

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        inner = tree_map(lambda one: one.x if isinstance(one, Wrapped) else one, (args, kwargs or {}))
        return tree_map(lambda one: Wrapped(one) if isinstance(one, torch.Tensor) else one, func(*inner[0], **inner[1]))


@pytest.mark.each_value  # what PyTorch does around a call is the same for all of them
@MOST
@pytest.mark.parametrize("kind", [Named, Wrapped])
def test_a_subclass_of_a_user_s_gets_the_same(call: Any, kind: Any) -> None:
    given = drawn(B=1)
    want = both(call, given)
    call(*given)  # which is known now
    leaves = [(x.as_subclass(Named) if kind is Named else Wrapped(x)).requires_grad_() for x in given]
    o = call(*leaves)[0]
    grads = torch.autograd.grad(o, leaves, torch.ones_like(o))
    assert type(o) is kind
    assert equal([x.x if isinstance(x, Wrapped) else torch.Tensor(x) for x in (o.detach(), *grads)], want)


@pytest.mark.parametrize("kind", [Named, Wrapped])
def test_a_step_of_a_subclass_changes_the_state(kind: Any) -> None:
    given, state = [x[:, 0].contiguous() for x in drawn()], torch.randn(2, 2, 16, 16, device=DEVICE)
    other = state.clone()
    want = gla_step(*given, state)
    x = [one.as_subclass(Named) if kind is Named else Wrapped(one) for one in (*given, other)]
    found = gla_step(*x)
    assert torch.equal(found.x if isinstance(found, Wrapped) else torch.Tensor(found), want)
    assert torch.equal(other, state)


@pytest.fixture
def mesh() -> Iterator[Any]:
    """Of one process, and where kernels run."""
    dist = pytest.importorskip("torch.distributed")
    if not dist.is_available():
        pytest.skip("torch has no distributed tensors here")
    dist.init_process_group("nccl" if DEVICE == "cuda" else "gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.device_mesh.init_device_mesh(DEVICE, (1,))
    dist.destroy_process_group()


@PUBLIC
def test_a_tensor_on_a_mesh_is_refused_before_anything_runs(call: Any, mesh: Any, ran: Any) -> None:
    """And its local tensor is what there is to be called with."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    given = drawn()
    for placement in (Replicate(), Shard(0)):
        spread: list[Any] = [distribute_tensor(x, mesh, [placement]).requires_grad_() for x in given]
        with pytest.raises(NotImplementedError, match=r"gla_kernels.forward.* sharding strategy"):
            call(*spread)
        assert ran == []
    assert equal(both(call, [x.to_local() for x in spread]), both(call, given))


# --- Tensors that lie anyhow ------------------------------------------------------------------------------------------


def unaligned(x: torch.Tensor) -> torch.Tensor:
    """A view that starts at an odd element."""
    return torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape)


def columns(x: torch.Tensor, first: int) -> torch.Tensor:
    """Columns of a matrix of as many rows as there are tokens, from so many-th on, as slices of a projection are."""
    flat = x.flatten(2)
    wider = torch.cat([flat[..., :first], flat, flat[..., first:]], -1)
    return wider[..., first : first + flat.shape[-1]].unflatten(-1, x.shape[2:])


LAID: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "unaligned": unaligned,
    "turned": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "every other": lambda x: torch.stack([x, x], -1)[..., 0],
    "columns": lambda x: columns(x, 16),
    "columns, unaligned": lambda x: columns(x, 1),
    "columns, negated as they are read": lambda x: torch._neg_view(columns(-x, 16)),
    "of one tensor": lambda x: torch.cat([x, x], -1)[..., 16:],
    "negated as it is read": lambda x: torch.view_as_complex(torch.stack([x, -x], -1)).conj().imag,
    "negated and unaligned": lambda x: torch._neg_view(unaligned(-x)),
    "expanded": lambda x: x[:1, :1].expand_as(x),
}


@pytest.mark.each_value  # which tensors are copied is decided in one place for all calls
@EVERY
@pytest.mark.parametrize("name", LAID)
def test_wherever_tensors_lie_the_bits_are_the_same(call: Any, name: str) -> None:
    """The gradient of the output among them; before and after a call of plain ones."""
    plain = drawn(1, 20 if call is gla else 7)  # of two chunks, and of a part of one
    if name == "expanded":
        plain = [x[:1, :1].expand_as(x).contiguous() for x in plain]
    do = torch.randn_like(plain[2]) if name != "expanded" else torch.ones_like(plain[2])
    laid = LAID[name](do)
    want = None
    for given, up in (([LAID[name](x) for x in plain], laid), (plain, do), ([LAID[name](x) for x in plain], laid)):
        found = both(call, given, up)
        assert want is None or equal(found, want)
        want = found


@MOST
def test_one_tensor_may_be_all_arguments(call: Any) -> None:
    x = drawn()[3].requires_grad_()
    (found,) = torch.autograd.grad(call(x, x, x, x)[0].sum(), x)
    *_, dq, dk, dv, dg = both(call, [x.detach().clone() for _ in range(4)])
    torch.testing.assert_close(found, dq + dk + dv + dg, rtol=1e-5, atol=1e-5)


@pytest.mark.each_value  # what PyTorch does around a call is the same for all of them
@MOST
@pytest.mark.parametrize("reentrant", [True, False])
def test_both_kinds_of_checkpoints_compute_the_same_again(call: Any, reentrant: bool) -> None:
    given = drawn(B=1)
    leaves = [x.clone().requires_grad_() for x in given]
    o = checkpoint(lambda *x: call(*x)[0], *leaves, use_reentrant=reentrant)
    o.backward(torch.ones_like(o))
    assert equal([o.detach(), *(x.grad for x in leaves)], both(call, given))


@MOST
def test_saved_tensors_may_move(call: Any) -> None:
    """To memory of their own, unaligned, as offloading may have it."""
    given, moved = drawn(B=1), []

    def unpack(x: torch.Tensor) -> torch.Tensor:
        moved.append(x)
        return unaligned(x)

    want = both(call, given)
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, unpack):
        found = both(call, given)
    assert moved
    assert equal(found, want)


def test_saved_gates_of_a_head_may_come_back_in_other_strides() -> None:
    """Kernels go by their strides, and a clone has others: of some of a tensor's features, and of expanded gates."""
    *given, g = drawn()
    for gates in (torch.stack([g[..., 0], g[..., 1]], -1)[..., 1], g[:1, :1, :, 0].expand(2, 20, 2)):
        want = both(lambda *x: simple_gla(*x, gates.requires_grad_(False)), given)  # noqa: B023
        with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda x: x):
            found = both(lambda *x: simple_gla(*x, gates), given)  # noqa: B023
        assert equal(found, want)
