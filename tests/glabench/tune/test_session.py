"""A run of ``glabench tune`` on a made-up GPU: what is said, what is written and where gla() then finds it."""

from __future__ import annotations

import io
import json
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from gla_kernels import Entry, Machine, Plan, Schedule, Tile, Workload, chosen
from gla_kernels.plan import files
from gla_kernels.plan.choose import refresh
from glabench import tuning_store
from glabench.errors import UserError
from glabench.run.child import Child, ChildDied
from glabench.systems.gla import schedule_name
from glabench.tune import session
from glabench.tune.candidate import Candidate
from glabench.tune.compiler import CompilePool
from glabench.tune.gpu import Gpu
from glabench.tune.session import Session, describe, entry_of, seconds, summary
from glabench.tune.space import space_of

WORK = Workload("fwd", 4, 300, 4, 64, 64, schedule=Schedule(64, 64, True))
BOTH = [WORK, replace(WORK, direction="bwd")]
MACHINE = Machine(90, "made up", 2**36)  # as `fake_gpu` has it


@pytest.mark.parametrize(
    ("text", "expected"), [("90s", 90), ("2m", 120), ("1.5h", 5400), ("45", 45), (" 0.5 m ", 30), ("15.1s", 15.1)]
)
def test_times_are_read(text: str, expected: float) -> None:
    assert seconds(text) == expected


@pytest.mark.parametrize("text", ["", "s", "-1s", "0", "0m", "2 minutes", "1m30s", "1e3", "nan", "1.s"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"^--budget .*: expected a time > 0 such as 90s, 2m or 1h$"):
        seconds(text)


@pytest.mark.parametrize("text", ["1s", "15s", "0.25m"])
def test_a_budget_that_leaves_no_time_to_search_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=rf"^--budget {text}: expected more than the 15 s kept for comparing"):
        seconds(text)


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache and nothing shipped."""
    (tmp_path / "shipped").mkdir()
    monkeypatch.setenv("GLABENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(files, "SHIPPED", tmp_path / "shipped")
    refresh()
    yield tmp_path
    refresh()


@pytest.fixture
def made_up(plant: Any, tables: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sessions on the made-up GPU; ``plant`` as in conftest."""
    monkeypatch.setattr(session, "Gpu", partial(Gpu, module="fake_gpu"))
    monkeypatch.setattr(session, "CompilePool", partial(CompilePool, module="fake_gpu"))
    monkeypatch.setattr(session, "cores", lambda: 3)
    monkeypatch.setattr(session, "this_arch", lambda: "sm_90")
    monkeypatch.setattr(session, "WORKER", "fake_worker")
    return plant


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), highlight=False, markup=False, width=200)


def said(console: Console) -> list[str]:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_winners_are_written_and_used_from_then_on(made_up, tables: Path, console: Console) -> None:
    out = tables / "records.jsonl"
    before = chosen(WORK, MACHINE)
    with Session("model", out=out, console=console) as tuning:
        assert tuning.machine == MACHINE
        assert tuning.run(BOTH)
    tunings = [tuning_store.from_json(line) for line in out.read_text().splitlines()]
    assert [Workload.from_dict(one.workload) for one in tunings] == BOTH
    assert said(console) == [summary(one) for one in tunings]
    assert before.origin in {one.origin for one in tunings[0].finalists if one.role == "incumbent"}
    for one, work in zip(tunings, BOTH, strict=True):
        assert one.winner is not None
        now = chosen(work, MACHINE)
        assert now.plan == Plan.from_dict(one.finalists[one.winner].plan)
        assert now.here
        assert one.header["device"] == "made up"
        assert one.environment["memory_bytes"] == 2**36
    assert list((tables / "shipped").iterdir()) == []


def test_a_second_tuning_starts_from_the_first(made_up, tables: Path, console: Console) -> None:
    with Session("model", console=console) as tuning:
        tuning.run([WORK])
        out = chosen(WORK, MACHINE)
        tuning.run([WORK])
    assert chosen(WORK, MACHINE).plan == out.plan
    assert f"1.00x as fast as before ({out.origin})" in said(console)[-1]


def test_what_the_records_have_is_not_tuned_again(made_up, tables: Path, console: Console) -> None:
    out, other = tables / "records.jsonl", [replace(WORK, T=600)]
    with Session("model", out=out, console=console) as tuning:
        assert tuning.left([BOTH, other]) == [BOTH, other]
        tuning.run([WORK])
        assert tuning.left([BOTH, other]) == [BOTH, other]  # the other direction is missing
        tuning.run(other)
        assert tuning.left([[WORK], BOTH, other]) == [BOTH]
        assert tuning.run_all(tuning.left([[WORK], other])) == 0  # none
        tuning.strategy = "halving"
        assert tuning.left([[WORK]]) == [[WORK]]
        tuning.strategy = "model"
        lines = [json.loads(line) for line in out.read_text().splitlines()]
        lines[0]["header"]["kernels"] = "others"
        out.write_text("".join(json.dumps(line) + "\n" for line in lines))
        assert tuning.left([[WORK], other]) == [[WORK]]


def test_winners_that_are_not_to_be_kept_are_only_recorded(made_up, tables: Path, console: Console) -> None:
    out, before = tables / "records.jsonl", chosen(WORK, MACHINE)
    with Session("model", out=out, console=console, keep=False) as tuning:
        assert tuning.run([WORK])
        assert tuning.run([WORK])
    assert chosen(WORK, MACHINE) == before
    origins = [
        one.origin
        for line in out.read_text().splitlines()
        for one in tuning_store.from_json(line).finalists
        if one.role == "incumbent"
    ]
    assert origins == [before.origin] * 2


def test_without_a_winner_nothing_is_kept(made_up, tables: Path, console: Console) -> None:
    every = space_of(WORK, 90).candidates.values()
    made_up(dict.fromkeys(every, "does not compile"))
    out = tables / "records.jsonl"
    with Session("exhaustive", out=out, console=console) as tuning:
        tuning._tuner.incumbent = lambda work: None
        assert not tuning.run([WORK])
    assert f"fwd: no plan runs and is right ({len(every)} of {len(every)} measured, " in said(console)[0]
    assert " compile_error, " in said(console)[0]
    assert tuning_store.from_json(out.read_text()).winner is None
    assert not chosen(WORK, MACHINE).here


def test_a_budget_that_ended_before_the_search_decides_nothing(made_up, tables: Path, console: Console) -> None:
    out, before = tables / "records.jsonl", chosen(WORK, MACHINE)
    with Session("model", 1e-9, out=out, console=console) as tuning:
        assert tuning.run_all([[WORK]]) == 1
        assert tuning.left([[WORK]]) == [[WORK]]
    found = tuning_store.from_json(out.read_text())
    assert (found.winner, found.decided, found.stopped) == (0, False, "the budget was spent")
    assert said(console)[0].startswith(f"{describe(WORK)} fwd: not tuned, no whole plan was found (0 of ")
    assert chosen(WORK, MACHINE) == before
    # by a table, even of nothing, rows made before it would count as made by something else
    assert not list(tables.rglob("*.json"))


def test_a_gpu_that_nothing_was_compiled_for_is_refused(made_up, tables: Path) -> None:
    with (
        Session("model", console=Console(file=io.StringIO()), arch="sm_75") as tuning,
        pytest.raises(UserError, match=r"^CUDA begins with made up \(sm_90\) and NVML with a GPU of sm_75: "),
    ):
        tuning.run([WORK])


def test_a_record_is_there_before_the_next_shape_is_prepared(
    made_up, tables: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And where that goes on and on, an end of the session ends it."""
    out, longer, written = tables / "records.jsonl", replace(WORK, T=600), []

    class Slow(CompilePool):
        def _compile(self, request: dict[str, Any]) -> dict[str, Any]:
            while "part" in request and request["workload"]["T"] == longer.T and not out.stat().st_size:
                if self._closed:
                    break
                time.sleep(0.01)
            written.append(out.stat().st_size)
            return super()._compile(request)

    monkeypatch.setattr(session, "CompilePool", partial(Slow, module="fake_gpu"))
    with Session("model", out=out, console=console) as tuning:
        assert tuning.run_all([[WORK], [longer]]) == 0
    assert len(out.read_text().splitlines()) == 2
    assert any(written)


def test_a_measuring_process_that_does_not_start_is_one_line(made_up, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "Gpu", partial(Gpu, module="no_such_module"))
    with (
        Session("model", console=Console(file=io.StringIO())) as tuning,
        pytest.raises(UserError, match=r"^the measuring process does not start; `glabench doctor` says"),
    ):
        tuning.run([WORK])


def test_a_quiet_session_prints_its_summary_alone(made_up, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "SAY_EVERY_S", 0.0)
    lines = {}
    for quiet in (True, False):
        console = Console(file=io.StringIO(), highlight=False, markup=False, width=200)
        with Session("halving", console=console, quiet=quiet) as tuning:
            tuning.run([WORK])
        lines[quiet] = said(console)
    assert len(lines[True]) == 1
    assert len(lines[False]) > 5
    assert lines[False][0] == f"{describe(WORK)}: 1 tried"


def test_the_environment_given_reaches_every_process(made_up, monkeypatch: pytest.MonkeyPatch) -> None:
    with Session("model", env={"CUDA_VISIBLE_DEVICES": "GPU-1"}, arch="sm_80") as tuning:
        children = [tuning._gpu.child, *tuning._pool._children]
        assert {child.env["CUDA_VISIBLE_DEVICES"] for child in children} == {"GPU-1"}
        assert all(child.env["TRITON_INTERPRET"] is None for child in children)
        assert tuning._pool.arch == "sm_80"


def test_processes_see_the_gpu_that_they_are_started_for(made_up, monkeypatch: pytest.MonkeyPatch) -> None:
    """NVML, which says what to compile for, and CUDA may begin with different ones."""
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    with Session("model") as tuning:
        children = [tuning._gpu.child, *tuning._pool._children]
        assert {child.env["CUDA_DEVICE_ORDER"] for child in children} == {"PCI_BUS_ID"}


# --- In words --------------------------------------------------------------------------------------------------------


def test_a_shape_in_words() -> None:
    assert describe(replace(WORK, schedule=None)) == "B=4 T=300 H=4 K=64 V=64 bf16"
    assert describe(replace(WORK, gated=False)) == "B=4 T=300 H=4 K=64 V=64 bf16, no gate, 64/64 w/ m."


def test_a_tuning_in_one_line_and_as_an_entry(make_tuning) -> None:
    tuning = make_tuning(failures=False)
    won = tuning.finalists[tuning.winner]
    ms = sorted(won.samples_ms)[len(won.samples_ms) // 2]
    work, plan = Workload.from_dict(tuning.workload), Plan.from_dict(won.plan)
    old = next(one for one in tuning.finalists if one.role == "incumbent")
    ratio = sorted(old.samples_ms)[len(old.samples_ms) // 2] / ms
    name = schedule_name(plan.schedule)
    assert summary(tuning) == (
        f"{describe(work)} fwd: {ms:.3f} ms, {name}, rows of {plan.config.block_t}, {ratio:.2f}x as fast as before "
        f"(by size) ({tuning.measured} of {tuning.feasible} measured, 38 s)"
    )
    assert entry_of(tuning) == Entry(work, plan, round(ms, 5))
    lost = replace(tuning, winner=None, stopped="the budget was spent")
    effort = f"{tuning.measured} of {tuning.feasible} measured, 38 s; the budget was spent"
    assert summary(lost).endswith(f" fwd: no plan runs and is right ({effort})")
    with pytest.raises(AssertionError):
        entry_of(lost)


def test_candidates_that_failed_are_counted_in_the_line(make_tuning) -> None:
    tuning = make_tuning()
    wrong = [replace(one, status="wrong", samples_ms=()) for one in tuning.trials[:3]]
    good = [one for one in tuning.trials[3:] if one.status == "ok"]
    assert "measured, 3 wrong, 38 s)" in summary(replace(tuning, trials=(*wrong, *good)))
    assert "measured, 1 " in summary(tuning)


def test_candidates_read_well() -> None:
    first = next(iter(space_of(WORK, 90).candidates.values()))
    assert str(first) == "states 32x64, 4 warps, 2 stages, by descriptors (64/64 w/ m., rows of 16)"
    assert Candidate.from_dict(json.loads(json.dumps(first.to_dict()))) == first
    limited = replace(first, tile=Tile(32, 128, 4, 3, max_registers=168))
    assert str(limited) == "states 32x128, 4 warps, 3 stages, 168 registers (64/64 w/ m., rows of 16)"


def test_several_gpus_share_the_shapes(made_up, tables: Path, console: Console) -> None:
    """As many decisions as one GPU comes to, each written and kept once, by whichever GPU it was."""
    out, works = tables / "records.jsonl", [replace(WORK, T=300 * n) for n in (1, 2, 3)]
    with Session("model", out=out, console=console, gpus=("0", "1")) as tuning:
        assert tuning.run_all([[work] for work in works]) == 0
    with Session("model", console=console, keep=False) as alone:
        (expected,) = alone.tune([works[2]])
    tunings = {one.workload["T"]: one for one in map(tuning_store.from_json, out.read_text().splitlines())}
    assert sorted(tunings) == [work.T for work in works]
    assert len(out.read_text().splitlines()) == len(works)
    assert [entry_of(tunings[900])] == [entry_of(expected)]
    assert tunings[900].header == expected.header
    assert all(chosen(work, MACHINE).here for work in works)


def test_each_gpu_takes_the_next_shape_that_is_left() -> None:
    left: deque[Sequence[Workload]] = deque([BOTH, [WORK], BOTH])
    first, second = session._in_turn(left), session._in_turn(left)
    assert next(first) == (BOTH, [WORK])
    assert next(second) == (BOTH, ())
    assert next(first) == ([WORK], ())
    assert list(first) == list(second) == []


@pytest.mark.parametrize(
    ("second", "message"),
    [(ChildDied("the process was killed by SIGABRT"), "^B=4 T=600 .*: the process was killed by SIGABRT$"),
     ({"error": "CUDA begins with made up", "tunings": []}, "^CUDA begins with made up$")],
)  # fmt: skip
def test_what_goes_wrong_on_another_gpu_is_told_and_loses_nothing(
    made_up, tables: Path, console: Console, second: Any, message: str
) -> None:
    out, asked = tables / "records.jsonl", []

    class Elsewhere(Child):
        def ask(self, request: dict[str, Any], limit_s: float) -> dict[str, Any]:
            asked.append(request)
            if len(asked) == 2 and isinstance(second, Exception):
                raise second
            return second if len(asked) == 2 else {"error": None, "tunings": done}

    with Session("model", out=out, console=console) as tuning:
        done = [tuning_store.to_json(one) for one in tuning.tune([WORK])]
        with pytest.raises(UserError, match=message):
            tuning._run_elsewhere(Elsewhere("none"), deque([[WORK], [replace(WORK, T=600)], BOTH]))
    assert len(out.read_text().splitlines()) == 1
    assert chosen(WORK, MACHINE).here
    assert [one["following"] for one in asked] == [asked[1]["works"], [work.to_dict() for work in BOTH]]
