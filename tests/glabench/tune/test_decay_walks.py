"""What `glabench compile` takes of calls without gates that go by the walks of one decay a head."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest

from gla_kernels import Launch, Schedule, Workload
from glabench.hardware.crosscompile import kernel_key
from glabench.tune.compile_worker import handle
from glabench.tune.compiler import Answer, CompilePool
from glabench.tune.decay_walks import walks_of
from glabench.tune.survey import Asked, survey

MANY = Workload("fwd", 32, 1024, 16, 64, 64, gated=False)
WALKS = ["simple_decays", "simple_walk", "simple_grad_walk_hopper"]
PLANNED = ["walk", "grad_states", "grad_qk", "grad_v"]


@pytest.fixture
def asked_for(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Any]]:
    """By key, what processes would be asked to compile: they answer at once."""
    found: dict[str, dict[str, Any]] = {}

    def submit(pool: CompilePool, key: str, request: dict[str, Any]) -> Future[Answer]:
        found[key] = request
        done = pool._futures.setdefault(key, Future())
        if not done.done():
            done.set_result({"status": "ok", "reason": None, "compiled": {"kernel": key}})
        return done

    monkeypatch.setattr(CompilePool, "_submit", submit)
    return found


def compiled(work: Workload, target: str) -> Iterator[str]:
    """The kernels of gla() that `survey` compiles for both directions of a call."""
    asked = [Asked(replace(work, direction=direction)) for direction in ("fwd", "bwd")]
    for kernel in survey("test", asked, target, 0, {}, lambda done, of: None):
        assert (kernel.origin, kernel.status) == ("gla", "ok")
        yield kernel.step


def test_where_hopper_has_walks_for_it_these_are_compiled(asked_for: dict[str, dict[str, Any]]) -> None:
    assert sorted(compiled(MANY, "sm_90")) == sorted(WALKS)
    assert {request["walk"] for request in asked_for.values()} == {0, 1, 2}


def test_elsewhere_plans_are(asked_for: dict[str, dict[str, Any]]) -> None:
    assert set(PLANNED) <= set(compiled(MANY, "sm_80"))
    assert set(PLANNED) <= set(compiled(replace(MANY, schedule=Schedule(64, 64)), "sm_90"))
    gated = replace(MANY, gated=True)
    assert not any(step.startswith("simple") for step in compiled(gated, "sm_90"))
    assert all("walk" not in request for request in asked_for.values())


def test_whether_a_backward_pass_follows_decides(asked_for: dict[str, dict[str, Any]]) -> None:
    assert walks_of(MANY, "fwd", False, 90) == []
    both, back = (walks_of(MANY, mode, False, 90) for mode in ("fwdbwd", "bwd"))
    assert len(both) > len(back) > 0
    assert [kernel_key(one) for one in both[-len(back) :]] == [kernel_key(one) for one in back]


def test_a_process_compiles_the_launch_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def compiler(launches: Sequence[Launch], arch: str) -> list[dict[str, Any]]:
        return [{"kernel": launch.name, "error": None} for launch in launches]

    monkeypatch.setattr("glabench.tune.compile_worker.cross_compile", compiler)
    shared = {"workload": MANY.to_dict(), "mode": "fwdbwd", "initial_state": False, "arch": "sm_90"}
    answers = [handle(shared | {"walk": place}) for place in range(3)]
    assert [answer["compiled"]["kernel"] for answer in answers] == [f"{name}_kernel" for name in WALKS]
