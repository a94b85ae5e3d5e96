"""Which calls are taken for the same, and that no call is checked by another's checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from gla_kernels import Plan, Schedule, default_config, gla, gla_recurrent, gla_step, simple_gla
from gla_kernels.launch import record
from gla_kernels.ops import signature
from gla_kernels.plan import choose

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ODD: Any = None


@pytest.fixture(autouse=True)
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    if DEVICE == "cpu":
        monkeypatch.setattr(record, "execute", lambda launch: None)


def drawn(B: int = 1, T: int = 20, H: int = 2, K: int = 16, V: int = 16, **sort: Any) -> dict[str, Any]:
    q, k, g = (torch.randn(B, T, H, K, device=DEVICE).to(**sort or {"dtype": torch.float32}) for _ in range(3))
    v = torch.randn(B, T, H, V, device=DEVICE).to(q)
    return {"q": q, "k": k, "v": v, "g": -g.abs()}


def known() -> int:
    return len(signature._known)


def test_calls_of_the_same_kind_are_one() -> None:
    for _ in range(3):
        gla(**drawn(), initial_state=None, output_final_state=False)
    assert known() == 1


OTHERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "dtype": lambda x: gla(**drawn(dtype=torch.bfloat16)),
    "dtype of gates": lambda x: gla(**drawn(dtype=torch.bfloat16) | {"g": x["g"]}),
    "shape": lambda x: gla(**drawn(T=21)),
    "head dimension": lambda x: gla(**drawn(V=8)),
    "device": lambda x: gla(**{name: one.to("meta") for name, one in x.items()}),
    "no gates": lambda x: gla(**x | {"g": None}),
    "value gates": lambda x: gla(**x, gv=x["g"]),
    "a state": lambda x: gla(**x, initial_state=torch.zeros(1, 2, 16, 16, device=DEVICE)),
    "final state": lambda x: gla(**x, output_final_state=True),
    "scale": lambda x: gla(**x, scale=1.0),
    "recompute": lambda x: gla(**x, recompute=True),
    "schedule": lambda x: gla(**x, schedule=Schedule(32, 16)),
    "config": lambda x: gla(**x, config=Plan(Schedule(32, 16), default_config(16, 16, 4, Schedule(32, 16)))),
    "gradients": lambda x: gla(**x | {"v": x["v"].requires_grad_()}),
    "another function": lambda x: gla_recurrent(**x),
    "one gate a head": lambda x: simple_gla(**x | {"g": x["g"][..., 0]}),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_decides_how_a_call_runs_tells_it_from_others(name: str) -> None:
    gla(**drawn())
    OTHERS[name](drawn())
    assert known() == 2


def test_an_integer_scale_is_not_the_number_that_it_equals() -> None:
    for scale in (1.0, 1):
        gla(**drawn(), scale=scale)
    assert known() == 2


def test_plans_that_are_read_anew_prepare_calls_anew() -> None:
    gla(**drawn())
    choose.refresh()
    gla(**drawn())
    assert known() == 2


def test_no_more_are_known_than_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signature, "MOST", 3)
    for T in range(1, 9):
        gla(**drawn(T=T))
        assert known() <= 3


@pytest.mark.parametrize("gates", ["a step of two", "unaligned", "negated", "expanded"])
def test_gates_of_a_head_that_lie_otherwise_are_another_call(gates: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels go by their strides, of what is read in the end: a copy lies otherwise than what it is of."""
    monkeypatch.undo()
    x = {name: one.detach() for name, one in drawn().items()}
    wide = -torch.rand(1, 20, 2, 4, device=DEVICE)
    other = {
        "a step of two": wide[..., ::2][..., 0],
        "unaligned": wide[..., 1],
        "negated": torch._neg_view(wide)[..., 0],
        "expanded": wide[:, :1, :, 0].expand(1, 20, 2),
    }[gates]
    if gates == "negated":
        x["q"] = -x["q"]
        other = torch._neg_view(-wide)[..., 0]
    for first, second in ((wide[..., 0], other), (other, wide[..., 0])):
        signature.forget()
        for g in (first, second):
            want = gla(**x | {"g": g[..., None].expand(1, 20, 2, 16)})[0]
            torch.testing.assert_close(simple_gla(**x | {"g": g})[0], want, rtol=1e-4, atol=1e-4)


# --- What is no call --------------------------------------------------------------------------------------------------


class Duck:
    """Has what a tensor has, but is none."""

    def __init__(self, x: torch.Tensor) -> None:
        self.shape, self.dtype, self.device, self.layout = x.shape, x.dtype, x.device, x.layout
        self.requires_grad = False


@pytest.fixture(params=[gla, gla_recurrent, simple_gla], ids=lambda call: call.__name__)
def call(request: pytest.FixtureRequest) -> Iterator[Callable[[dict[str, Any]], Any]]:
    """A function of which a valid call was made before."""

    def make(x: dict[str, Any]) -> Any:
        if request.param is simple_gla and isinstance(x["g"], torch.Tensor) and x["g"].dim() == 4:
            x = x | {"g": x["g"][..., 0].contiguous()}
        return request.param(**x)

    for _ in range(2):
        make(drawn())
    return make  # type: ignore[return-value]


WRONG: dict[str, tuple[Callable[[torch.Tensor], Any], str]] = {
    "a list": (lambda x: x.tolist(), "expected a tensor, got list"),
    "a number": (lambda x: 1.0, "expected a tensor, got float"),
    "an array": (lambda x: np.asarray(x.cpu()), "expected a tensor, got ndarray"),
    "none": (lambda x: None, "expected a tensor, got NoneType"),
    "like a tensor": (Duck, "expected a tensor, got Duck"),
    "sparse": (lambda x: x.to_sparse(), "expected"),
    "nested": (lambda x: torch.nested.nested_tensor(list(x)), "expected"),
    "integers": (lambda x: x.long(), "expected"),
    "an axis less": (lambda x: x[0], "expected shape"),
    "another device": (lambda x: x.to("meta"), "expected device"),
}


@pytest.mark.parametrize("argument", ["k", "v"])
@pytest.mark.parametrize("name", WRONG)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_what_is_no_tensor_of_a_call_is_refused_after_a_valid_one(call: Any, name: str, argument: str) -> None:
    of, message = WRONG[name]
    x, before = drawn(), known()
    with pytest.raises(ValueError, match=f"{argument}: .*{message}" if message != "expected" else argument):
        call(x | {argument: of(x[argument])})
    assert known() == before
    call(x)


@pytest.mark.parametrize("more", [
    {"output_final_state": 1}, {"scale": True}, {"scale": "1"}, {"scale": torch.tensor([1.0, 2.0])}, {"scale": [1.0]},
    {"output_final_state": torch.tensor(True)}, {"output_final_state": []},
], ids=str)  # fmt: skip
def test_flags_and_scales_are_checked_after_a_valid_call(call: Any, more: dict[str, Any]) -> None:
    """With what equals them: 1 is True."""
    x = drawn()
    call(x | {"output_final_state": True, "scale": 1.0})
    call(x | {"output_final_state": False, "scale": 1})
    before = known()
    with pytest.raises(ValueError, match=next(iter(more))):
        call(x | {"output_final_state": True, "scale": 1.0} | more)
    assert known() == before


@pytest.mark.parametrize("state", [None, [1.0], "sparse", "turned", "wide"], ids=str)
def test_a_state_that_a_step_cannot_change_is_refused_after_a_valid_one(state: Any) -> None:
    x = {name: one[:, 0] for name, one in drawn().items()}
    right = torch.zeros(1, 2, 16, 16, device=DEVICE)
    gla_step(**x, state=right)
    if isinstance(state, str):
        wide = torch.zeros(1, 2, 16, 32, device=DEVICE)
        state = {"sparse": right.to_sparse(), "turned": right.mT, "wide": wide[..., ::2]}[state]
    with pytest.raises(ValueError, match="state"):
        gla_step(**x, state=state)
    gla_step(**x, state=right)
