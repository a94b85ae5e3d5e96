"""Which cases run where, what is appended, and what a second run leaves out."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from glabench import store
from glabench.errors import UserError
from glabench.hardware.environment import tried_again
from glabench.lines import Lines
from glabench.phases import spent_of
from glabench.run import driver as driver_module
from glabench.run import processes
from glabench.run.attempts import Attempts
from glabench.run.driver import Driver, finished
from glabench.run.untimed import ALONE_S
from glabench.run.worker import Worker
from glabench.spec.case import Case
from glabench.spec.settings import Device, Part, Settings
from glabench.store import Appender, Row


class Listener:
    """Keeps what it is told."""

    def __init__(self, at_row: Callable[[int], None] | None = None) -> None:
        self.started: list[tuple[str, Part]] = []
        self.cases: list[Case] = []
        self.rows: list[Row] = []
        self.at_row = at_row

    def running(self, case: Case, part: Part) -> None:
        self.started.append((case.system, part))
        self.cases.append(case)

    def finished(self, row: Row) -> None:
        self.rows.append(row)
        if self.at_row is not None:
            self.at_row(len(self.rows))


def case(system: str, seed: int = 0) -> Case:
    return Case(system=system, B=1, T=8, H=1, K=8, V=8, seed=seed)


def drive(
    path: Path,
    cases: list[Case],
    device: Device = "cpu",
    compiled: frozenset[str] | None = None,
    listener: Listener | None = None,
    limit_s: float = 30,
    gpus: tuple[str, ...] = (),
    imports: tuple[str, ...] = (),
    later: frozenset[str] = frozenset(),
    alone_s: float = ALONE_S,
    beside: bool = False,
) -> driver_module.Outcome:
    with Appender(path) as out:
        return Driver(
            sweep="tiny",
            device=device,
            settings=Settings.for_device(device),
            limit_s=limit_s,
            compiled=frozenset(c.id for c in cases) if compiled is None else compiled,
            out=out,
            progress=listener or Listener(),
            pipeline="misbehaving",
            gpus=gpus,
            imports=imports,
            later=later,
            alone_s=alone_s,
            beside=beside,
        ).run(cases)


def called(calls: Path) -> list[tuple[str, str, str]]:
    """(case id, part, TRITON_INTERPRET) of every call, in order."""
    return [(words[0], words[1], words[3]) for words in (line.split() for line in calls.read_text().splitlines())]


def test_a_cpu_runs_our_kernels_in_two_parts_and_all_others_alone_afterwards(tmp_path: Path, calls: Path) -> None:
    cases = [case("sdpa"), case("gla"), case("gla_recurrent")]
    outcome = drive(tmp_path / "rows.jsonl", cases)
    assert dict(outcome.statuses) == {"ok": 3}
    rows = {row.case_id: row for row in store.read(tmp_path / "rows.jsonl")}
    assert set(rows) == {c.id for c in cases}
    assert sorted(called(calls)[:4]) == sorted(
        (c.id, part, interpreted) for c in cases[1:] for part, interpreted in (("gate", "1"), ("compile", "None"))
    )
    assert called(calls)[4:] == [(cases[0].id, "all", "None")]
    assert rows[cases[1].id].implementation == "gate"  # the gate's row is the one that the other is merged into


def test_a_case_that_is_not_compiled_is_its_gate_alone(tmp_path: Path, calls: Path) -> None:
    drive(tmp_path / "rows.jsonl", [case("gla")], compiled=frozenset())
    assert called(calls) == [(case("gla").id, "gate", "1")]
    assert len(list(store.read(tmp_path / "rows.jsonl"))) == 1


def test_a_gpu_compiles_first_and_then_times_in_order_in_one_process(tmp_path: Path, calls: Path) -> None:
    cases = [case("gla"), case("fa2"), case("gla_recurrent")]
    drive(tmp_path / "rows.jsonl", cases, device="cuda", compiled=frozenset())
    made = called(calls)
    assert sorted(made[:2]) == sorted((c.id, "compile", "None") for c in (cases[0], cases[2]))
    assert made[2:] == [(c.id, "all", "None") for c in cases]
    assert len({line.split()[2] for line in calls.read_text().splitlines()[2:]}) == 1
    assert [row.case_id for row in store.read(tmp_path / "rows.jsonl")] == [c.id for c in cases]


def test_later_cases_are_compiled_once_all_others_have_their_rows(tmp_path: Path, calls: Path) -> None:
    cases = [case("fla"), case("gla"), case("fa2")]
    drive(tmp_path / "rows.jsonl", cases, device="cuda", compiled=frozenset(), later=frozenset({cases[0].id}))
    fla, gla, fa2 = (one.id for one in cases)
    made = [(made, part) for made, part, _ in called(calls)]
    assert made == [(gla, "compile"), (gla, "all"), (fa2, "all"), (fla, "compile"), (fla, "all")]
    assert len({line.split()[2] for line in calls.read_text().splitlines() if line.split()[1] == "all"}) == 1


def test_what_is_compiled_is_timed_while_the_rest_compiles(tmp_path: Path, calls: Path) -> None:
    cases = [case("fla", 14), case("gla", 15), case("fa2")]
    drive(tmp_path / "rows.jsonl", cases, device="cuda", later=frozenset({cases[0].id}), alone_s=600, beside=True)
    fla, gla, fa2 = (one.id for one in cases)
    made = [(made, part) for made, part, _ in called(calls)]
    assert [one for one in made if one[1] != "compile"] in (
        [(gla, "ahead"), *((one, "all") for one in order), (fla, "ahead"), (fla, "all")]
        for order in ((gla, fa2), (fa2, gla))
    )
    assert {one for one in made if one[1] == "compile"} == {(gla, "compile"), (fla, "compile")}
    rows = {row.case_id: row for row in store.read(tmp_path / "rows.jsonl")}
    assert [row.status for row in rows.values()] == ["ok"] * 3
    assert set(rows) == {gla, fa2, fla}
    assert [one.seconds for one in spent_of(rows[gla])] == [{"reference": 1.5}]  # what was done ahead is in its row
    assert rows[gla].wall_s >= 1.5
    assert calls.with_suffix(".states").read_text().split()[1] == "T"  # stopped, while samples were taken


def test_what_compiles_goes_on_when_the_process_that_takes_samples_dies(tmp_path: Path, calls: Path) -> None:
    cases = [case("gla", 16), case("fla", 14)]
    drive(tmp_path / "rows.jsonl", cases, device="cuda", later=frozenset({cases[1].id}), alone_s=600, beside=True)
    assert [row.status for row in store.read(tmp_path / "rows.jsonl")] == ["crashed", "ok"]
    assert "T" in calls.with_suffix(".states").read_text().split()


def test_of_what_is_timed_later_a_case_does_not_wait_for_the_others_to_compile(
    tmp_path: Path, calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_module, "cores", lambda: 3)
    cases = [case("fla", 14), case("fla", 15)]  # the first compiles until the second was timed
    drive(tmp_path / "rows.jsonl", cases, device="cuda", later=frozenset(c.id for c in cases), alone_s=600, beside=True)
    assert [row.case_id for row in store.read(tmp_path / "rows.jsonl")] == [cases[1].id, cases[0].id]


@pytest.mark.parametrize(("most", "processes"), [(1, 1), (9, 2)])
def test_beside_what_is_timed_so_many_processes_compile_and_no_more(
    most: int, processes: int, tmp_path: Path, calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_module, "cores", lambda: 3)
    monkeypatch.setattr(driver_module, "MOST_BESIDE", most)
    cases = [replace(case("gla", 7), T=8 * n) for n in (1, 2, 3, 4)]
    drive(tmp_path / "rows.jsonl", cases, device="cuda", alone_s=600, beside=True)
    made = [line.split() for line in calls.read_text().splitlines()]
    assert len({words[2] for words in made if words[1] == "compile"}) == processes


def test_ctrl_c_ends_what_compiles_beside(tmp_path: Path, calls: Path) -> None:
    def stop(rows: int) -> None:
        raise KeyboardInterrupt

    cases = [case("gla", 7), case("fla", 2)]
    outcome = drive(tmp_path / "rows.jsonl", cases, device="cuda", listener=Listener(stop),
                    later=frozenset({cases[1].id}), alone_s=600, beside=True)  # fmt: skip
    assert outcome.interrupted
    assert len(list(store.read(tmp_path / "rows.jsonl"))) == 1
    for pid in {line.split()[2] for line in calls.read_text().splitlines()}:
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)


def test_what_times_alone_imports_what_timing_needs(tmp_path: Path, calls: Path) -> None:
    mark = calls.with_name("imported")
    calls.with_name("needed.py").write_text(f"import os; print(os.getpid(), file=open({str(mark)!r}, 'a'))")
    drive(tmp_path / "rows.jsonl", [case("gla"), case("fa2")], device="cuda", imports=("needed",))
    timed = {line.split()[2] for line in calls.read_text().splitlines() if line.split()[1] == "all"}
    assert mark.read_text().split() == list(timed)


def test_crashes_and_timeouts_are_rows_and_do_not_end_the_sweep(tmp_path: Path, calls: Path) -> None:
    cases = [case("sdpa", seed) for seed in (0, 1, 2, 3, 10)]
    outcome = drive(tmp_path / "rows.jsonl", cases, limit_s=4)
    assert [row.status for row in store.read(tmp_path / "rows.jsonl")] == ["ok", "crashed", "timeout", "crashed", "ok"]
    assert dict(outcome.statuses) == {"ok": 2, "crashed": 2, "timeout": 1}


def test_a_crashed_gate_beside_a_good_compilation_is_a_crashed_case(tmp_path: Path, calls: Path) -> None:
    drive(tmp_path / "rows.jsonl", [case("gla", 6)])
    (row,) = store.read(tmp_path / "rows.jsonl")
    assert row.status == "crashed"


def test_a_case_that_killed_two_processes_is_not_tried_a_third_time(tmp_path: Path, calls: Path) -> None:
    cases = [case("sdpa", 1), case("sdpa", 8), case("sdpa", 0)]
    drive(tmp_path / "rows.jsonl", cases)
    assert [made[0] for made in called(calls)] == [cases[i].id for i in (0, 0, 1, 1, 2)]
    dead, once, well = store.read(tmp_path / "rows.jsonl")
    assert (dead.status, dead.deaths) == ("crashed", ["the process was killed by SIGSEGV"] * 2)
    assert [list(one.seconds) for one in spent_of(dead)] == [["died"], ["died"]]
    assert (once.status, once.deaths) == ("ok", ["the process was killed by SIGKILL (by hand, or for want of memory)"])
    assert (well.status, well.deaths) == ("ok", None)


def test_what_killed_two_processes_when_it_was_compiled_is_not_run(tmp_path: Path, calls: Path) -> None:
    drive(tmp_path / "rows.jsonl", [case("gla", 1)], device="cuda")
    assert [made[1] for made in called(calls)] == ["compile", "compile"]
    (row,) = store.read(tmp_path / "rows.jsonl")
    assert (row.status, len(row.deaths or ())) == ("crashed", 2)
    assert "not tried: another part" in (row.reason or "")
    assert datetime.fromisoformat(row.started)  # else any older row would count in its place


def test_a_rival_whose_kernels_could_not_be_compiled_ahead_runs(tmp_path: Path, calls: Path) -> None:
    drive(tmp_path / "rows.jsonl", [case("fla", 1)], device="cuda")
    assert [made[1] for made in called(calls)] == ["compile", "compile", "all", "all"]


def test_who_has_nothing_to_do_helps_a_rival_that_compiles_for_long(
    tmp_path: Path, calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_module, "cores", lambda: 3)
    listener = Listener()
    cases = [case("fla", 13), case("gla")]
    drive(tmp_path / "rows.jsonl", cases, device="cuda", listener=listener, alone_s=0.1)
    made = [line.split() for line in calls.read_text().splitlines()]
    compiled = [words[2] for words in made if words[:2] == [case("fla", 13).id, "compile"]]
    assert len(compiled) == len(set(compiled)) > 1  # in processes of their own, and each once
    assert [words[0] for words in made if words[1] == "all"] == [case("fla", 13).id, case("gla").id]
    assert listener.started.count(("fla", "compile")) == 1
    assert [row.deaths for row in store.read(tmp_path / "rows.jsonl")] == [None, None]
    for pid in compiled:
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)


def test_several_gpus_have_a_process_each_and_take_the_longest_cases_first(tmp_path: Path, calls: Path) -> None:
    cases = [replace(case("sdpa", 7), T=8 * 2**n) for n in range(6)]
    listener = Listener()
    drive(tmp_path / "rows.jsonl", cases, device="cuda", gpus=("3", "5"), listener=listener)
    made = [line.split() for line in calls.read_text().splitlines()]
    assert {(words[2], words[4]) for words in made} == {(pid, gpu) for pid, gpu in {w[2]: w[4] for w in made}.items()}
    assert {words[4] for words in made} == {"3", "5"}
    assert set(listener.cases[:2]) == set(cases[-2:])
    rows = list(store.read(tmp_path / "rows.jsonl"))
    assert sorted(row.case_id for row in rows) == sorted(one.id for one in cases)
    assert {row.status for row in rows} == {"ok"}


def test_processes_that_compile_are_spread_over_the_gpus(
    tmp_path: Path, calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_module, "cores", lambda: 2)
    drive(tmp_path / "rows.jsonl", [case("gla", seed) for seed in (7, 10)], device="cuda", gpus=("3", "5"))
    made = [line.split() for line in calls.read_text().splitlines()]
    assert {words[4] for words in made if words[1] == "compile"} == {"3", "5"}


def test_where_no_gpu_is_named_processes_see_the_first_alone(
    tmp_path: Path, calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed, listed in enumerate(("5,3", "GPU-1")):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
        drive(tmp_path / f"{seed}.jsonl", [case("gla", seed + 20)], device="cuda")
    assert [line.split()[4] for line in calls.read_text().splitlines()] == ["5", "5", "GPU-1", "GPU-1"]


def test_processes_that_compile_for_a_gpu_here_import_once_for_all(
    tmp_path: Path, calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark, module = calls.with_name("imported"), calls.with_name("misbehaving.py")
    module.write_text(f"import os; print(os.getpid(), file=open({str(mark)!r}, 'a'))\n{module.read_text()}")
    monkeypatch.setattr(driver_module, "cores", lambda: 3)
    drive(tmp_path / "rows.jsonl", [case("gla", seed) for seed in (7, 10, 12)], device="cuda")
    made = [line.split() for line in calls.read_text().splitlines()]
    compiled = {words[2] for words in made if words[1] == "compile"}
    assert len(compiled) > 1
    assert len(mark.read_text().split()) == 2  # what they are forked from, and what times
    assert not compiled & set(mark.read_text().split())


def test_a_disk_that_is_full_ends_the_sweep_and_the_next_one_goes_on(
    tmp_path: Path, calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, cases = tmp_path / "rows.jsonl", [case("sdpa", seed) for seed in (10, 11, 12)]

    def full(out: Appender, line: str) -> None:
        if path.stat().st_size:
            raise UserError("cannot be written: No space left on device")
        Lines.write(out, line)

    with monkeypatch.context() as patch:
        patch.setattr(Appender, "write", full)
        with pytest.raises(UserError, match="No space left"):
            drive(path, cases)
    assert [row.case_id for row in store.read(path)] == [cases[0].id]
    drive(path, cases[1:])
    assert [row.case_id for row in store.read(path)] == [one.id for one in cases]


@pytest.mark.parametrize("system", ["sdpa", "gla"])
def test_ctrl_c_keeps_every_finished_row_and_repeats_none(tmp_path: Path, calls: Path, system: str) -> None:
    path = tmp_path / "rows.jsonl"
    cases = [case(system, seed) for seed in (10, 11, 12, 2)]  # the last one hangs

    def interrupt(rows: int) -> None:
        if rows == 2:
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()

    outcome = drive(path, cases, compiled=frozenset(), listener=Listener(interrupt), limit_s=60)
    assert outcome.interrupted
    kept = [row.case_id for row in store.read(path)]
    assert set(kept) <= {c.id for c in cases[:3]}
    assert len(kept) == len(set(kept)) >= 2
    assert sum(outcome.statuses.values()) == len(kept)


def test_finished_are_the_cases_of_this_device_and_these_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_module, "known_environment", lambda device: {"fingerprint": "f", "device_slug": "d"})
    path = tmp_path / "rows.jsonl"
    cpu = Settings.for_device("cpu")
    assert finished(path, cpu, 60) == {}
    here = {"fingerprint": "f", "device_slug": "d", "torch": "any"}
    with Appender(path) as out:
        for name, status, place in (
            ("a", "ok", here),
            ("b", "oom", here),
            ("c", "ok", here | {"fingerprint": "older"}),
            ("d", "ok", here | {"device_slug": "another"}),
            ("e", "ok", {}),
            ("f", "crashed", tried_again(here)),
        ):
            out.append(Row(name, "tiny", case("gla").to_dict(), status, environment=place))
    assert finished(path, cpu, 60) == {"a": "ok", "b": "oom"}


def test_what_was_finished_before_a_change_that_was_taken_back_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_module, "known_environment", lambda device: {"fingerprint": "a", "device_slug": "d"})
    with Appender(tmp_path / "rows.jsonl") as out:
        for name, sources, place in (("x", "a", "d"), ("x", "b", "d"), ("y", "a", "d"), ("y", "b", "another")):
            facts = {"fingerprint": sources, "device_slug": place}
            out.append(Row(name, "tiny", case("gla").to_dict(), "ok", environment=facts))
    # of x reports would show b's row, the last; the other machine's is no row of this one
    assert finished(tmp_path / "rows.jsonl", Settings.for_device("cpu"), 60) == {"y": "ok"}


def test_rows_of_other_settings_limits_and_threads_are_not_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = {"fingerprint": "f", "device_slug": "d"}
    monkeypatch.setattr(driver_module, "known_environment", lambda device: here)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    path, cpu = tmp_path / "rows.jsonl", Settings.for_device("cpu")
    timed, slow, gate = case("sdpa"), case("sdpa", 2), case("gla")
    with Appender(path) as out:
        parts: tuple[Part, ...] = ("all", "all", "gate")
        for one, part, status in zip((timed, slow, gate), parts, ("ok", "timeout", "ok"), strict=True):
            worker = Worker(processes.worker_env(part))
            answer = Row(one.id, "tiny", one.to_dict(), status, environment=here)
            monkeypatch.setattr(worker, "run", lambda *asked, answer=answer: answer)
            out.append(Attempts().run(worker, one, "tiny", cpu.with_part(part), 5))

    def left(settings: Settings = cpu, limit_s: float = 5) -> set[str]:
        return {timed.id, slow.id, gate.id} - set(finished(path, settings, limit_s))

    assert left() == left(limit_s=3) == set()
    assert left(limit_s=6) == {slow.id}
    assert left(replace(cpu, part="gate")) == set()
    assert left(replace(cpu, min_samples=50)) == {timed.id, slow.id, gate.id}
    assert "settings_given" not in Attempts().run(worker, gate, "tiny", cpu, 5).environment
    more = Attempts().run(worker, gate, "tiny", replace(cpu, min_samples=50), 5)
    assert more.environment["settings_given"] == {"min_samples": 50}
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert left() == {timed.id, slow.id}  # the gate is judged by one thread


def test_what_is_known_without_torch_decides_what_is_finished() -> None:
    from glabench.hardware.environment import environment

    facts = environment("cpu")
    assert {key: facts[key] for key in driver_module.known_environment("cpu")} == driver_module.known_environment("cpu")
    assert json.dumps(facts)


def test_timed_work_leaves_a_core_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(processes, "cores", lambda: 8)
    assert processes.worker_env("all")["OMP_NUM_THREADS"] == "7"
    assert processes.worker_env("all", 4)["OMP_NUM_THREADS"] == "1"
    assert processes.worker_env("gate")["OMP_NUM_THREADS"] == "1"
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert processes.worker_env("all")["OMP_NUM_THREADS"] == "3"


@pytest.mark.parametrize("part", ["gate", "compile", "all"])
def test_every_process_counts_gpus_as_who_names_them(part: Part, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else rows are of another GPU than a rerun looks for, where a machine's GPUs differ."""
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    assert processes.worker_env(part)["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


@pytest.mark.parametrize("part", ["gate", "compile", "all"])
def test_every_process_finds_triton_s_cache_where_triton_has_it(
    part: Part, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Named, so that torch.compile and Helion leave it there."""
    triton = pytest.importorskip("triton")
    for variable in ("TRITON_CACHE_DIR", "TRITON_HOME"):
        monkeypatch.delenv(variable, raising=False)
        assert processes.worker_env(part)["TRITON_CACHE_DIR"] == triton.knobs.cache.dir
        monkeypatch.setenv(variable, str(tmp_path / variable))
        assert processes.worker_env(part)["TRITON_CACHE_DIR"] == triton.knobs.cache.dir
