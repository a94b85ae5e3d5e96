"""The exchange of messages by one kernel, with ranks that are buffers of one process: on a GPU each has a stream, and
waits for the others there; the interpreter runs one after another. And who may exchange so."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from gla_kernels.parallel import peers
from gla_kernels.parallel.exchange import BLOCK, SLOTS, buffer_bytes, programs_of
from gla_kernels.parallel.peers import Exchange, Here, exchange_for, reach_each_other

PROGRAMS = 3
PATIENCE = 20 * 10**9
NUMBERS = BLOCK // 4
SIZES = (5, 2 * NUMBERS, 2 * NUMBERS + 1, 1, 3 * NUMBERS, NUMBERS - 3, 64)


class Group:
    """Ranks of one process."""

    def __init__(self, ranks: int, device: torch.device) -> None:
        device = torch.device("cuda", torch.cuda.current_device()) if device.type == "cuda" else device
        self.ranks, self.device = ranks, device
        size = buffer_bytes(ranks, PROGRAMS)
        self.buffers = [torch.zeros(size, dtype=torch.uint8, device=device) for _ in range(ranks)]
        addresses = [buffer.data_ptr() for buffer in self.buffers]
        self.exchanges = [Exchange(rank, addresses, PROGRAMS, PATIENCE, device) for rank in range(ranks)]
        if device.type == "cuda":
            torch.cuda.synchronize()
            self.streams = [torch.cuda.Stream() for _ in range(ranks)]

    def messages(self, n: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
        if dtype == torch.int64:
            return [torch.randint(-(2**62), 2**62, (n,), device=self.device) for _ in range(self.ranks)]
        bits = [torch.randint(2**31, (n,), dtype=torch.int32, device=self.device) for _ in range(self.ranks)]
        return [x.view(torch.float32) for x in bits]  # NaNs among them

    def told(self, xs: list[Tensor]) -> None:
        """In the interpreter: all have put their messages, and none has gone on."""
        for exchange, x in zip(self.exchanges, xs, strict=True):
            exchange(x)
        for exchange in self.exchanges:
            exchange.epochs[: programs_of(xs[0].nbytes)] -= 1

    def gathered(self, xs: list[Tensor]) -> list[Tensor]:
        if self.device.type == "cpu":
            self.told(xs)
            return [exchange(x) for exchange, x in zip(self.exchanges, xs, strict=True)]
        found = []
        torch.cuda.synchronize()
        for stream, exchange, x in zip(self.streams, self.exchanges, xs, strict=True):
            with torch.cuda.stream(stream):
                found.append(exchange(x))
        torch.cuda.synchronize()
        return found


def same(x: Tensor, y: Tensor) -> bool:
    return torch.equal(x.view(torch.int32), y.view(torch.int32))


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_all_ranks_gather_every_message(ranks: int, device: torch.device) -> None:
    group = Group(ranks, device)
    for n in SIZES:
        xs = group.messages(n)
        assert all(same(found, torch.stack(xs)) for found in group.gathered(xs)), n
    xs = group.messages(NUMBERS + 1, torch.int64)
    assert all(torch.equal(found, torch.stack(xs)) for found in group.gathered(xs))
    took = [programs_of(4 * n) for n in SIZES] + [programs_of(8 * (NUMBERS + 1))]
    counts = [sum(programs > i for programs in took) for i in range(PROGRAMS)]
    assert all(exchange.epochs.tolist() == counts for exchange in group.exchanges)
    flags = group.buffers[0][SLOTS * ranks * PROGRAMS * BLOCK :].view(torch.int32)
    assert flags.view(ranks, PROGRAMS).tolist() == [counts] * ranks


def test_a_rank_may_be_one_message_ahead(device: torch.device) -> None:
    """It leaves in peace what the other has yet to take out."""
    if device.type == "cuda":
        pytest.skip("a GPU cannot be told to stop there")
    group = Group(2, device)
    for xs, later in pairwise([group.messages(n) for n in (9, NUMBERS + 5, 7)]):
        group.told(xs)
        assert same(group.exchanges[0](xs[0]), torch.stack(xs))
        group.exchanges[0](later[0])
        group.exchanges[0].epochs[: programs_of(later[0].nbytes)] -= 1
        assert same(group.exchanges[1](xs[1]), torch.stack(xs))


def test_messages_that_do_not_lie_well(device: torch.device) -> None:
    group = Group(2, device)
    whole = torch.randn(200, device=device)
    xs = [whole[1:101], whole[::2]]
    for x in xs:  # CUDA loads a kernel when it is first launched, and not while one on this GPU waits for another rank
        x.clone(memory_format=torch.contiguous_format)
    assert all(torch.equal(found, torch.stack(xs)) for found in group.gathered(xs))


@pytest.mark.gpu
def test_a_rank_that_stays_away_is_an_error(python_process: Any) -> None:
    """In a process of its own, whose GPU says no more after it."""
    done = python_process("-c", ALONE)
    assert "Error" in done.stdout, done.stdout


ALONE = f"""
import torch
from gla_kernels.parallel.exchange import buffer_bytes
from gla_kernels.parallel.peers import Exchange
device = torch.device("cuda", 0)
buffers = [torch.zeros(buffer_bytes(2, 1), dtype=torch.uint8, device=device) for _ in range(2)]
exchange = Exchange(0, [x.data_ptr() for x in buffers], 1, {10**9}, device)
try:
    exchange(torch.ones(8, device=device)).cpu()
except Exception as error:
    print(type(error).__name__, flush=True)
import os
os._exit(0)
"""


# --- Who may ---------------------------------------------------------------------------------------------------------

TWO = [Here(("a",), 0, "x"), Here(("a",), 1, "y")]


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Which GPUs have access to which."""
    access = [(0, 1), (1, 0)]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda one, other: (one, other) in access)
    return access


def test_who_reaches_whom(two_gpus: list[tuple[int, int]]) -> None:
    assert reach_each_other(TWO, 0)
    assert reach_each_other(TWO, 1)
    assert not reach_each_other([TWO[0], TWO[1]._replace(host=("b",))], 0)  # another host
    assert not reach_each_other([one._replace(host=None) for one in TWO], 0)  # unknown ones
    assert not reach_each_other([TWO[0], TWO[1]._replace(gpu="x")], 0)  # one GPU for both
    assert not reach_each_other([TWO[0], TWO[1]._replace(number=2)], 0)  # this process does not see it
    two_gpus.remove((1, 0))
    assert reach_each_other(TWO, 0)
    assert not reach_each_other(TWO, 1)


@pytest.mark.parametrize(
    ("fails", "asked"), [("backend", 0), ("buffer", 2), ("peer's buffer", 2), ("opening", 3), (None, 3)]
)
def test_all_ranks_can_or_none_does(
    fails: str | None, asked: int, two_gpus: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    questions: list[Any] = []

    def told(group: Any, ranks: int, mine: Any) -> list[Any]:
        questions.append(mine)
        if isinstance(mine, Here):
            return TWO
        return [mine, not (fails == "peer's buffer" and len(questions) == 2)]

    def refused(*_: Any) -> Any:
        raise RuntimeError("no")

    opened: Any = type("Opened", (), {"buffer_ptrs": [16, 32]})
    config = "cpu:gloo,cuda:gloo" if fails == "backend" else "cuda:nccl"
    monkeypatch.setattr(dist, "get_backend_config", lambda group: config)
    monkeypatch.setattr(peers, "here", lambda device: TWO[0])
    monkeypatch.setattr(peers, "_told", told)
    monkeypatch.setattr(peers, "_zeros", refused if fails == "buffer" else lambda size, device: torch.zeros(size))
    monkeypatch.setattr(peers, "_opened", refused if fails == "opening" else lambda buffer, group: opened)
    found = peers._settled(None, 0, 2, 2**20, torch.device("cpu"))
    assert len(questions) == asked
    assert (found is None) == (fails is not None)
    if found is not None:
        assert found.buffers.tolist() == [16, 32]
        assert found.patience == 600 * 10**9


def test_without_a_gpu_nobody_is_asked() -> None:
    assert exchange_for(None, 0, 2, torch.zeros(4)) is None
