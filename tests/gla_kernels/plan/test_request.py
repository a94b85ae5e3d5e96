"""Plans given to gla(), another one for each direction among them, and tuning on request."""

from __future__ import annotations

import sys
import tomllib
import warnings
from contextlib import nullcontext
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from gla_kernels import Plan, Schedule, Tile, Workload, default_config, gla, keep, launches
from gla_kernels.ops import gla_form as api
from gla_kernels.plan import choose, files
from gla_kernels.plan import request as plans
from gla_kernels.plan.table import header_of
from glabench.tune import on_demand

DEVICE = torch.device("cuda", 0)
WORK = Workload("fwd", 4, 2048, 16, 128, 128)
RAN = "gla_kernels.launch.record.execute"


def plan(schedule: Schedule, K: int = 16, V: int = 16, operand_bytes: int = 4) -> Plan:
    return Plan(schedule, default_config(K, V, operand_bytes, schedule))


def tiles(**changes: Any) -> Plan:
    """A plan with something else in its tiles."""
    sound = plan(Schedule())
    return replace(sound, config=replace(sound.config, **changes))


def form(config: Any):
    return lambda q, k, v, g, s: gla(q, k, v, g, None, s, True, config=config)


@pytest.mark.parametrize(("dtype", "gates"), [(torch.float32, "resets"), (torch.float16, None), (torch.bfloat16, 1.0)])
@pytest.mark.parametrize(
    ("fwd", "bwd"),
    [
        (Schedule(64, 16, True), Schedule(32, 32, False)),
        (Schedule(32, 16, False), Schedule(16, 16, True)),
        (Schedule(16, 16, False), Schedule(64, 64, False)),
    ],
    ids=str,
)
def test_forward_and_backward_may_follow_different_plans(judge, inputs, fwd, bwd, dtype, gates):
    plans = tuple(plan(one, 16, 24, dtype.itemsize) for one in (fwd, bwd))
    judge(form(plans), inputs((1, 75, 1, 16, 24), dtype, gates))


def test_backward_takes_the_end_of_a_long_walk_from_a_forward_that_materializes(monkeypatch, judge, inputs):
    monkeypatch.setattr("gla_kernels.chunk.parted.SEGMENT_ROWS", 256)
    # the gate's gradient starts at the final state, which the other plan has computed
    pair = (plan(Schedule(128, 64, True)), plan(Schedule(256, 64, False)))
    judge(form(pair), inputs((1, 300, 1, 16, 16), torch.float32, 0.1))


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch, one_by_one: None) -> list[tuple[str, int | None, int]]:
    """What the kernels were launched with: pass, chunk (None for the passes over states) and row block."""
    found: list[tuple[str, int | None, int]] = []

    def execute(launch: Any) -> None:
        found.append((launch.step, chunk_of(launch), launch.constexprs["BT"]))

    monkeypatch.setattr(RAN, execute)
    return found


def chunk_of(launch: Any) -> int:
    """The chunk of a launch, as its pass is told."""
    args = launch.args
    return int(launch.constexprs.get("CHUNK") or args.get("chunk") or args["every_rows"])


def call(inputs: Any, **options: Any) -> None:
    x = inputs((1, 300, 1, 16, 16), torch.float32, 1.0)
    o, _ = gla(x.q.requires_grad_(), x.k, x.v, x.g, **options)
    o.sum().backward()


CHUNKS_OF_BOTH = [
    ("states", 32), ("output", 32), ("states", 128), ("grad_states", 128), ("grad_qk", 128), ("grad_v", 128)
]  # fmt: skip


def test_a_pair_is_for_forward_and_backward(inputs, ran):
    call(inputs, config=(plan(Schedule(32, 32, False)), plan(Schedule(128, 16, False))))
    assert [(step, chunk) for step, chunk, _ in ran] == CHUNKS_OF_BOTH
    assert [rows for _, _, rows in ran] == [32, 32, 16, 16, 16, 16]


def test_one_plan_is_for_both(inputs, ran):
    call(inputs, config=plan(Schedule(128, 32, False)))
    assert {chunk for _, chunk, _ in ran} == {128}


def test_half_a_pair_leaves_the_other_half_to_gla(tables, inputs, ran):
    call(inputs, config=(None, plan(Schedule(128, 16, False))))
    by_model = choose.by_model(Workload("fwd", 1, 300, 1, 16, 16, "fp32"), 90)
    assert [chunk for step, chunk, _ in ran if step == "output"] == [by_model.schedule.chunk]
    assert {chunk for step, chunk, _ in ran if step in ("grad_qk", "grad_v")} == {128}


def test_tiles_alone_are_for_both_with_the_schedule_given(inputs, ran):
    config = replace(plan(Schedule(64, 32, False)).config, block_t=16)
    call(inputs, config=config, schedule=Schedule(64, 32, False))
    assert {(chunk, rows) for _, chunk, rows in ran} == {(64, 16)}


def test_tuned_plans_are_what_runs(tables, machine, entry, inputs, ran, monkeypatch):
    shape: dict[str, Any] = {"B": 1, "T": 300, "H": 1, "K": 16, "V": 16, "dtype": "fp32"}
    fwd, bwd = Schedule(32, 32), Schedule(128, 16)
    found = [entry(plan=fwd, **shape), entry(plan=bwd, direction="bwd", **shape)]
    files.ship(found, header_of(machine))
    choose.refresh()
    monkeypatch.setattr(api, "machine_of", lambda device: machine)
    call(inputs)
    assert [(step, chunk) for step, chunk, _ in ran] == CHUNKS_OF_BOTH
    names = launches("gla", **{**shape, "dtype": torch.float32}, capability=90)
    assert [(launch.step, chunk_of(launch)) for launch in names] == CHUNKS_OF_BOTH
    other = launches("gla", **{**shape, "dtype": torch.float32}, capability=80)
    by_model = [choose.by_model(Workload(d, 1, 300, 1, 16, 16, "fp32"), 80).schedule.chunk for d in ("fwd", "bwd")]
    assert {chunk_of(launch) for launch in other} == set(by_model)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"config": 64}, "config: expected a KernelConfig, a Plan, a pair .* got int"),
        ({"config": "tuned"}, "config: expected .* got 'tuned'"),
        ({"config": (plan(Schedule()),)}, "config: expected .* got tuple"),
        ({"config": (Schedule(), None)}, "config: expected .* got tuple"),
        (
            {"config": plan(Schedule(64)), "schedule": Schedule(32)},
            r"config: its plan is for Schedule\(chunk=64.*\), and Schedule\(chunk=32.*\) is asked for",
        ),
        (
            {"config": (None, Plan(Schedule(64, 16), plan(Schedule(64, 64)).config))},
            "config: block_t=64 does not divide sub_chunk=16",
        ),
        (
            {"config": plan(Schedule(64, 64)).config, "schedule": Schedule(64, 16)},
            "config: block_t=64 does not divide sub_chunk=16",
        ),
        (
            {"config": Plan(*(Schedule(), None))},  # type: ignore[arg-type]  # that is the point
            "config: expected a plan of a Schedule and a KernelConfig, .* NoneType",
        ),
        ({"config": tiles(states=None)}, "config: expected a Tile for states, got NoneType"),
        ({"config": tiles(block_t=0)}, "config: expected block_t and the sizes of tiles to be integers > 0, got .0"),
        ({"config": tiles(block_t=8)}, "config: block_t=8 is none of 16, 32, 64"),
        ({"config": tiles(output=Tile(48, 64))}, "config: block_k=48 is no power of two"),
        ({"config": tiles(output=Tile(32, -64))}, "config: expected block_t and the sizes of tiles to be integers"),
        ({"config": "tune"}, 'config: "tune" measures on a CUDA device, and the tensors are on meta'),
    ],
)
def test_a_config_that_cannot_be_run_is_refused(options, message):
    q = torch.zeros(1, 80, 1, 16, device="meta")
    with pytest.raises(ValueError, match=message):
        gla(q, q, q, q, **options)
    with pytest.raises(ValueError, match=message):
        launches("gla", B=1, T=80, H=1, K=16, V=16, dtype=torch.float32, **options)


def test_a_plan_for_another_head_dimension_is_refused(device):
    q, v = torch.zeros(1, 80, 1, 16, device=device, requires_grad=True), torch.zeros(1, 80, 1, 24, device=device)
    with pytest.raises(ValueError, match="config: states cannot run for K=16, V=24: block_k=32 is more than"):
        gla(q, q, v, q, config=(None, plan(Schedule(), K=32)))
    with pytest.raises(ValueError, match=r"config: (states|output) cannot run for K=16, V=24: block_k=32 is more than"):
        gla(q, q, v, q, schedule=Schedule(), config=plan(Schedule(), K=32).config)


# --- Tuning on request ------------------------------------------------------------------------------------------------


@pytest.fixture
def tuner(tables, machine, monkeypatch):
    """A tuner in the place of glabench's; what it is asked for is in ``asked``, what it does in ``does``."""
    module = ModuleType("a_tuner")
    module.asked, module.does = [], lambda works: None  # type: ignore[attr-defined]

    def tune(works: list[Workload]) -> None:
        module.asked.append(works)
        module.does(works)

    module.tune = tune  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "a_tuner", module)
    monkeypatch.setattr(plans, "entry_points", lambda group: [EntryPoint("ours", "a_tuner:tune", group)])
    monkeypatch.setattr(plans, "machine_of", lambda device: machine)
    monkeypatch.setattr(plans, "_tried", set())
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    return module


def test_tuning_finds_a_plan_that_is_used_from_then_on(tuner, machine, entry):
    tuner.does = lambda works: files.add([entry(plan=Schedule(128))], machine)
    plans.tune([WORK], DEVICE)
    assert tuner.asked == [[WORK]]
    assert choose.chosen(WORK, machine).plan.schedule == Schedule(128)
    plans.tune([replace(WORK, T=2100)], DEVICE)  # of the same class
    assert tuner.asked == [[WORK]]


def test_the_directions_of_a_call_are_tuned_together_but_for_those_known(tuner, machine, entry):
    backward = replace(WORK, direction="bwd")
    plans.tune([WORK, backward], DEVICE)
    assert tuner.asked == [[WORK, backward]]
    plans._tried.clear()
    keep([entry()], machine)
    plans.tune([WORK, backward], DEVICE)
    assert tuner.asked[1:] == [[backward]]


def test_a_shape_that_was_tuned_here_before_is_not_tuned_again(tuner, machine, entry):
    keep([entry()], machine)
    plans.tune([WORK], DEVICE)
    assert tuner.asked == []
    longer = replace(WORK, T=4096)  # the nearest is good enough to run, not to be left at
    plans.tune([longer], DEVICE)
    assert tuner.asked == [[longer]]


def test_shipped_plans_do_not_stand_for_tuning(tuner, machine, entry):
    files.ship([entry()], header_of(machine))
    choose.refresh()
    plans.tune([WORK], DEVICE)
    assert tuner.asked == [[WORK]]


def test_a_tuner_that_fails_is_warned_of_once(tuner):
    def fail(works: list[Workload]) -> None:
        raise RuntimeError("the GPU is busy\nand more")

    tuner.does = fail
    message = r'^config="tune": RuntimeError: the GPU is busy; going on with plans by the cost model$'
    with pytest.warns(UserWarning, match=message):
        plans.tune([WORK], DEVICE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plans.tune([WORK], DEVICE)
    assert tuner.asked == [[WORK]]


def test_a_tuning_that_was_interrupted_is_not_taken_for_tried(tuner):
    def interrupt(works: list[Workload]) -> None:
        raise KeyboardInterrupt

    tuner.does = interrupt
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            plans.tune([WORK], DEVICE)
    assert tuner.asked == [[WORK], [WORK]]


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (
            [],
            r'no installed package offers a tuner \(entry point "gla_kernels.tuner"\).*going on with plans by the cost',
        ),
        ([EntryPoint("lost", "no_such_module:tune", plans.TUNERS)], r"no_such_module.*going on with plans by the cost"),
    ],
)
def test_without_a_tuner_nothing_is_tuned(tuner, monkeypatch, found, message):
    monkeypatch.setattr(plans, "entry_points", lambda group: found)
    with pytest.warns(UserWarning, match=message):
        plans.tune([WORK], DEVICE)
    assert tuner.asked == []


def test_the_harness_offers_its_tuner():
    """As pyproject.toml declares it, whatever is installed here."""
    declared = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]["entry-points"]
    (tuner,) = (EntryPoint(name, value, plans.TUNERS) for name, value in declared[plans.TUNERS].items())
    assert tuner.load() is on_demand.tune


@pytest.mark.parametrize(("grad", "expected"), [(True, ["fwd", "bwd"]), (False, ["fwd"])])
def test_only_directions_that_run_are_tuned_and_only_on_request(inputs, ran, monkeypatch, grad, expected):
    asked: list[list[str]] = []
    monkeypatch.setattr(api, "check_config", lambda *_: None)  # which refuses to tune for a CPU
    monkeypatch.setattr(api, "tune", lambda works, device: asked.append([work.direction for work in works]))
    x = inputs((1, 40, 1, 16, 16), torch.float32, 1.0)
    gla(x.q, x.k, x.v.requires_grad_(grad), x.g)
    assert asked == []
    gla(x.q, x.k, x.v.requires_grad_(grad), x.g, config="tune")
    assert asked == [expected]
