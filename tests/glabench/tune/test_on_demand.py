"""Tuning in the middle of a program: one session for all directions, on the device in use, and few words about it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gla_kernels import Machine, Schedule, Workload, chosen, gla
from gla_kernels.plan import files
from gla_kernels.plan.choose import refresh
from glabench.errors import UserError
from glabench.tune import on_demand, session
from glabench.tune.compiler import CompilePool
from glabench.tune.gpu import Gpu

WORK = Workload("fwd", 4, 300, 4, 64, 64, schedule=Schedule(64, 64, True))
BOTH = [WORK, replace(WORK, direction="bwd")]
UUIDS = ["11111111-2222-3333-4444-555555555555", "GPU-66666666-7777-8888-9999-000000000000"]


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``devices(count, current)``: so many GPUs, of compute capability 8.0 and of 9.0 for the second."""

    def pretend(count: int, current: int) -> None:
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: current)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda i: SimpleNamespace(uuid=UUIDS[i]))
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8 + current, 0))

    return pretend


def test_children_see_the_current_device_alone(devices: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,3")  # the numbers of this process are not those of a child
    for current, uuid in enumerate(UUIDS):
        devices(2, current)
        assert on_demand.only_device() == {"CUDA_VISIBLE_DEVICES": f"GPU-{uuid.removeprefix('GPU-')}"}


def test_where_this_process_sees_one_device_so_do_its_children(devices: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-11111111")
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    devices(1, 0)
    given = on_demand.only_device()
    assert {**os.environ, **given}["CUDA_VISIBLE_DEVICES"] == "MIG-11111111"
    assert given["CUDA_DEVICE_ORDER"] is None  # a number in the other variable counts as in this process


class Recorded:
    """A session that finds what it is told to."""

    made: list[dict[str, Any]]
    ran: list[Sequence[Workload]]
    answer = True

    def __init__(self, *arguments: Any, **options: Any) -> None:
        type(self).made.append({"arguments": arguments, **options})

    def __enter__(self) -> Recorded:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def run(self, works: Sequence[Workload]) -> bool:
        type(self).ran.append(works)
        return type(self).answer


@pytest.fixture
def recorded(devices: Any, monkeypatch: pytest.MonkeyPatch) -> type[Recorded]:
    devices(2, 1)
    kind = type("Recorded", (Recorded,), {"made": [], "ran": []})
    monkeypatch.setattr(on_demand, "Session", kind)
    return kind


def test_all_directions_are_tuned_in_one_session(recorded: type[Recorded], capsys: pytest.CaptureFixture[str]) -> None:
    on_demand.tune(BOTH)
    assert recorded.ran == [BOTH]
    (made,) = recorded.made
    assert made["arguments"] == ("model", 90.0)
    assert made["quiet"] is True
    assert "out" not in made  # no record
    assert made["arch"] == "sm_90"
    assert made["env"] == {"CUDA_VISIBLE_DEVICES": UUIDS[1]}
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == (
        "glabench: tuning B=4 T=300 H=4 K=64 V=64 bf16, 64/64 w/ m. fwd and bwd for this GPU, once; up to 90 s\n"
    )


def test_without_a_winner_it_says_so(recorded: type[Recorded]) -> None:
    recorded.answer = False
    with pytest.raises(UserError, match=r"^B=4 T=300 .*: found no plan that runs and is right$"):
        on_demand.tune([WORK])


def test_what_it_finds_is_what_gla_runs(
    plant: Any, devices: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a whole session, on the made-up GPU."""
    devices(2, 1)
    monkeypatch.setenv("GLABENCH_CACHE", str(tmp_path))
    monkeypatch.setattr(files, "SHIPPED", tmp_path / "shipped")
    monkeypatch.setattr(session, "Gpu", partial(Gpu, module="fake_gpu"))
    monkeypatch.setattr(session, "CompilePool", partial(CompilePool, jobs=2, module="fake_gpu"))
    machine = Machine(90, "made up", 2**36)
    refresh()
    try:
        on_demand.tune(BOTH)
        assert all(chosen(work, machine).here for work in BOTH)
    finally:
        refresh()
    printed = capsys.readouterr()
    assert printed.out == ""
    first, *summaries = printed.err.splitlines()
    assert first.startswith("glabench: tuning ")
    assert len(summaries) == len(BOTH)
    assert all(" ms, " in line and " measured, " in line for line in summaries)


@pytest.mark.gpu
@pytest.mark.timeout(280)
def test_gla_tunes_when_it_is_asked_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLABENCH_CACHE", str(tmp_path))
    refresh()
    try:
        q, k, v, g = (torch.randn(2, 300, 2, 64, device="cuda", dtype=torch.bfloat16) for _ in range(4))
        g = -g.abs()
        q.requires_grad_()
        before, _ = gla(q, k, v, g)
        assert not list(tmp_path.iterdir())
        o, _ = gla(q, k, v, g, config="tune")
        o.sum().backward()
        for direction in ("fwd", "bwd"):
            assert chosen(Workload(direction, 2, 300, 2, 64, 64)).here
        torch.testing.assert_close(o, before, rtol=0.05, atol=0.05)
    finally:
        refresh()
