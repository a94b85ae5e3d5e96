"""A gate that is not fooled: systems that do less than they say, each caught, and honest ones that have a time.

Planted after the adversarial kernels that were found in KernelBench and in GPU MODE's competitions: what is kept from
an earlier call, work put off, clocks replaced, streams that nobody waits for.
"""

from __future__ import annotations

import ctypes
import re
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any

import pytest
import torch

from gla_kernels import reference
from glabench.run import audit, untouched
from glabench.run.pipeline import run_case
from glabench.spec.case import Case
from glabench.spec.catalog import CATALOG
from glabench.spec.settings import Device, Settings
from glabench.store import Row
from glabench.systems.base import System
from glabench.systems.inputs import Inputs

Result = tuple[torch.Tensor, torch.Tensor | None]

DEVICE: Device = "cuda" if torch.cuda.is_available() else "cpu"
SETTINGS = replace(Settings.for_device(DEVICE), warmup_s=0.0, min_time_s=0.0, max_time_s=0.01, gate_tokens_cpu=64)
# a CPU's gate compares all of the first, and of the second fewer sequences, heads and tokens
SMALL = Case("chunkwise_torch", 1, 64, 2, 16, 16, "fp32", "fwd", chunk=32)
LARGE = replace(SMALL, B=2, H=3, T=320)
GATE_CALLS = 2


class Honest(System):
    """The plain chunkwise form; ``calls`` counts its forward passes."""

    def __init__(self) -> None:
        super().__init__(CATALOG["chunkwise_torch"])
        self.calls = 0

    def implementation(self, case: Case) -> str:
        return "of the tests"

    def forward(self, inputs: Inputs, case: Case) -> Result:
        self.calls += 1
        return self.answer(inputs), None

    def answer(self, inputs: Inputs) -> torch.Tensor:
        return right(inputs)


def right(inputs: Inputs) -> torch.Tensor:
    o, _ = reference.chunkwise(inputs.q, inputs.k, inputs.v, inputs.g, chunk=32)
    return o


class Remembers(Honest):
    """Returns what it came to when it was asked by the same ``key`` before."""

    def __init__(self, key: Callable[[Inputs], Hashable]) -> None:
        super().__init__()
        self.key = key
        self.kept: dict[Hashable, tuple[Inputs, torch.Tensor]] = {}  # inputs stay, and so does their identity

    def answer(self, inputs: Inputs) -> torch.Tensor:
        key = self.key(inputs)
        if key not in self.kept:
            self.kept[key] = inputs, right(inputs)
        return self.kept[key][1]


class Off(Honest):
    """Changes its output."""

    def __init__(self, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.change = change

    def answer(self, inputs: Inputs) -> torch.Tensor:
        return self.change(right(inputs))


class Lazy(torch.Tensor):
    """Worked out when somebody reads it."""

    work: Callable[[], torch.Tensor] | None = None

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            for x in args:
                if isinstance(x, Lazy) and x.work is not None:
                    work, x.work = x.work, None
                    x.copy_(work())
            plain = [x.as_subclass(torch.Tensor) if isinstance(x, Lazy) else x for x in args]
            return func(*plain, **(kwargs or {}))


class PutsOff(Honest):
    def answer(self, inputs: Inputs) -> torch.Tensor:
        o = torch.empty_like(inputs.v).as_subclass(Lazy)
        o.work = lambda: right(inputs)
        return o


class WritesToInputs(Honest):
    """Saves a buffer; ``after`` so many calls."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.after = after

    def answer(self, inputs: Inputs) -> torch.Tensor:
        o = right(inputs)
        if self.calls > self.after:
            inputs.v.copy_(o)
        return o


class InHalf(Honest):
    """Computes in 16 bits what is asked in 32."""

    def answer(self, inputs: Inputs) -> torch.Tensor:
        q, k, v, g = (x.bfloat16() for x in (inputs.q, inputs.k, inputs.v, inputs.g) if x is not None)
        return right(replace(inputs, q=q, k=k, v=v, g=g)).float()


class Replaces(Honest):
    """Puts something else in the place of a function of its judge's."""

    def __init__(self, owner: Any, name: str, other: Callable[..., Any]) -> None:
        super().__init__()
        self.owner, self.name_of, self.other = owner, name, other

    def answer(self, inputs: Inputs) -> torch.Tensor:
        setattr(self.owner, self.name_of, self.other)
        return right(inputs)


class InAThread(Honest):
    """Returns at once, and has its numbers some time later, once the gate is behind it."""

    def answer(self, inputs: Inputs) -> torch.Tensor:
        if self.calls <= GATE_CALLS:
            return right(inputs)
        o = torch.zeros_like(inputs.v)

        def work() -> None:
            time.sleep(0.03)
            o.copy_(right(inputs))

        threading.Thread(target=work, daemon=True).start()
        return o


class Tires(Honest):
    """Does nothing once it was called often."""

    def answer(self, inputs: Inputs) -> torch.Tensor:
        return right(inputs) if self.calls <= GATE_CALLS + 1 else torch.zeros_like(inputs.v)


class OneBuffer(Honest):
    """Returns the same tensor each time, or each other time."""

    def __init__(self, count: int = 1) -> None:
        super().__init__()
        self.count = count
        self.buffers: dict[tuple[torch.Size, int], torch.Tensor] = {}

    def answer(self, inputs: Inputs) -> torch.Tensor:
        which = inputs.v.shape, self.calls % self.count
        return self.buffers.setdefault(which, torch.empty_like(inputs.v)).copy_(right(inputs))


def by_value(inputs: Inputs) -> Hashable:
    return tuple(float(x.double().sum()) for x in (inputs.q, inputs.k, inputs.v, inputs.g) if x is not None)


real_clock, real_synchronize = time.perf_counter, torch.cuda.synchronize

# what it does -> (the system, what is said of it)
CHEATS: dict[str, tuple[Callable[[], System], str]] = {
    "remembers by the tensor": (lambda: Remembers(lambda inputs: id(inputs.q)), r"when timed, o is off by"),
    "remembers by where it lies": (lambda: Remembers(lambda inputs: inputs.q.data_ptr()), r"o is off by"),
    "remembers by what is in it": (lambda: Remembers(by_value), r"returned by a later one on equal inputs"),
    "puts its work off": (PutsOff, r"when timed, o is a Lazy, expected a torch.Tensor"),
    "returns zeros": (lambda: Off(torch.zeros_like), r"^o is off by"),
    "returns NaN": (lambda: Off(lambda o: o * float("nan")), r"^o has \d+ values that are NaN"),
    "writes to its inputs": (lambda: WritesToInputs(0), r"it writes to its input v"),
    "writes to its inputs when timed": (lambda: WritesToInputs(GATE_CALLS), r"when timed, (it writes|o is off)"),
    "computes in fewer bits": (InHalf, r"^o is off by"),
    "replaces the clock": (
        lambda: Replaces(time, "perf_counter", lambda: real_clock() / 1000),
        r"replaced time.perf_counter",
    ),
    "replaces what waits for the GPU": (
        lambda: Replaces(torch.cuda, "synchronize", lambda *of: real_synchronize(*of) if DEVICE == "cuda" else None),
        r"replaced torch.cuda.synchronize",
    ),
    "works in a thread": (InAThread, r"timed, o is off by"),
    "works no more once it was called often": (Tires, r"timed, o is off by"),
    "returns one of two buffers": (lambda: OneBuffer(2), r"overwritten by a later one|returned by a later one"),
    "returns one buffer": (OneBuffer, r"returned by a later one on equal inputs"),
}


def outcome(system: System, case: Case) -> Row:
    return run_case(case, "tests", SETTINGS, system)


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a cheat replaces is what it was after the test."""
    for owner, name in ((time, "perf_counter"), (torch.cuda, "synchronize")):
        monkeypatch.setattr(owner, name, getattr(owner, name))


@pytest.mark.parametrize("case", [SMALL, LARGE], ids=["all of it judged", "a smaller one judged"])
@pytest.mark.parametrize("cheat", CHEATS)
def test_a_cheat_is_caught(cheat: str, case: Case) -> None:
    make, said = CHEATS[cheat]
    row = outcome(make(), case)
    assert row.status == "wrong", row.reason
    assert row.reason is not None
    assert re.search(said, row.reason), row.reason
    assert row.time is None
    assert row.accuracy is not None
    assert row.accuracy["passed"] is False


@pytest.mark.parametrize("case", [SMALL, LARGE], ids=["all of it judged", "a smaller one judged"])
@pytest.mark.parametrize("mode", ["fwd", "bwd", "fwdbwd"])
def test_an_honest_system_has_a_time(case: Case, mode: Any) -> None:
    row = outcome(Honest(), replace(case, mode=mode))
    assert row.status == "ok", row.reason
    assert row.time is not None
    assert row.accuracy is not None
    assert row.accuracy["timed_calls"] == "judged"


class _KeptGradients(torch.autograd.Function):
    """q as it is; its gradient is the one that it had the first time."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, kept: dict[torch.Size, torch.Tensor]) -> torch.Tensor:
        ctx.kept = kept
        return q.view_as(q)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.kept.setdefault(grads[0].shape, grads[0].clone()), None


class KeepsGradients(Honest):
    """Remembers the gradient of q by the tensor that its call was given."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[int, dict[torch.Size, torch.Tensor]] = {}

    def answer(self, inputs: Inputs) -> torch.Tensor:
        kept = self.kept.setdefault(inputs.q.data_ptr(), {})
        q = _KeptGradients.apply(inputs.q, kept)
        return right(replace(inputs, q=q))


@pytest.mark.parametrize("mode", ["bwd", "fwdbwd"])
@pytest.mark.parametrize("case", [SMALL, LARGE], ids=["all of it judged", "a smaller one judged"])
def test_gradients_of_an_earlier_call_are_caught(case: Case, mode: Any) -> None:
    row = outcome(KeepsGradients(), replace(case, mode=mode))
    assert row.status == "wrong"
    assert row.reason is not None
    assert re.search("dq is off by|dq of a call is returned by a later one", row.reason)  # by where tensors come to lie


def test_what_is_remembered_shows_only_where_it_is_clear() -> None:
    assert audit.remembers([1.0, 1.2], [0.3, 0.4, 0.9]) is not None
    assert audit.remembers([1.0, 1.2], [0.3, 0.51, 0.9]) is None
    assert audit.remembers([1.0], []) is None


def test_l2_that_is_set_aside_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(untouched, "persisting_l2", lambda: 0)
    before = untouched.Untouched()
    before.begin()
    assert before.changed() is None
    monkeypatch.setattr(untouched, "persisting_l2", lambda: 2**20)
    assert before.changed() == "set 1048576 bytes of L2 aside, which are not flushed"


# --- On a GPU ---------------------------------------------------------------------------------------------------------


class OnAnotherStream(Honest):
    """Queues its work where nobody looks, once the gate is behind it. ``waits``: for its inputs, at least."""

    def __init__(self, waits: bool) -> None:
        super().__init__()
        self.waits, self.stream = waits, torch.cuda.Stream()

    def answer(self, inputs: Inputs) -> torch.Tensor:
        if self.calls <= GATE_CALLS:
            return right(inputs)
        if self.waits:
            self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            return right(inputs)


@pytest.mark.gpu
@pytest.mark.parametrize("waits", [False, True])
def test_work_on_another_stream_is_caught(waits: bool) -> None:
    row = outcome(OnAnotherStream(waits), LARGE)
    assert row.status == "wrong"
    assert row.reason is not None
    assert row.reason.startswith("when timed, o ")


class SetsL2Aside(Honest):
    def answer(self, inputs: Inputs) -> torch.Tensor:
        driver = untouched._driver()
        assert driver is not None
        assert driver.cuCtxSetLimit(untouched.PERSISTING_L2, ctypes.c_size_t(2**20)) == 0
        return right(inputs)


@pytest.mark.gpu
def test_l2_that_is_not_flushed_is_caught() -> None:
    try:
        row = outcome(SetsL2Aside(), LARGE)
    finally:
        driver = untouched._driver()
        assert driver is not None
        driver.cuCtxSetLimit(untouched.PERSISTING_L2, ctypes.c_size_t(0))
    assert row.status == "wrong"
    assert "of L2 aside" in (row.reason or "")


class LeavesAStream(Honest):
    def answer(self, inputs: Inputs) -> torch.Tensor:
        o = right(inputs)
        torch.cuda.set_stream(torch.cuda.Stream())
        return o


@pytest.mark.gpu
def test_a_stream_that_is_left_as_the_current_one_is_caught() -> None:
    try:
        row = outcome(LeavesAStream(), LARGE)
    finally:
        torch.cuda.set_stream(torch.cuda.default_stream())
    assert row.status == "wrong"
