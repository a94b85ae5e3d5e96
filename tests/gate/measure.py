"""What the gate's figures follow from, measured: the same code over and over, and the same with slow-downs planted.

    python tests/gate/measure.py results/local/gate --seconds 560

goes on where it stopped when it is called again, until all is there. ``tests/gate/judge.py`` says, on any machine, what
the gate makes of it. In the folder:

    pipeline.jsonl       a run of the whole pipeline, as `glabench sweep` has it; cases that are not right are left out
    calibration.json     by case, the work that makes each slow-down (see planted.py), and what it truly comes to
    a-00.rows ..         runs of the code as it is, a file and a fresh process each
    planted-03-0.rows .. runs with 3 % planted

Rows of the last two kinds have times and no gate, and cases by their usual ids. They must not get into a report, which
is why they are not called .jsonl: a folder of results is not searched for them.

Planted runs are spread evenly among the others, so that what drifts is not taken for a slow-down. Kernels are compiled
in the run of the pipeline: to go on with an empty Triton cache, as on a fresh machine, remove pipeline.jsonl first.

Exit code: 0 all is there; 1 no case is right; 2 bad input; 3 time was up and 130 Ctrl-C, and the same command goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glabench import store
from glabench.commands.running import only, pick_device
from glabench.errors import UserError
from glabench.run.child import Child, ChildDied, ChildTimeout
from glabench.run.driver import FIRST_CASE, Driver, finished, known_environment
from glabench.run.processes import worker_env
from glabench.run.worker import Worker
from glabench.spec.case import Case
from glabench.spec.expand import expand
from glabench.spec.settings import Device, Part, Settings
from glabench.spec.sweep import find, load
from glabench.store import Appender, Row

HERE = Path(__file__).parent
PERCENTS = (2, 3, 5, 10)
RUNS, PLANTED_RUNS = 21, 3
GUESS_S = 2.0  # a row, its share of starting the process included, before there is one to go by
# So many processes import torch at once, before the first of them times anything; the others then wait.
STARTED = 4
CALIBRATION_S = 10.0  # the most that a case is expected to take


class TimeIsUp(Exception):
    """What comes next would not be done in time."""


@dataclass(frozen=True)
class Run:
    """One file of rows: a run of the code as it is, or with a slow-down planted."""

    index: int
    percent: int | None = None

    @property
    def name(self) -> str:
        return f"a-{self.index:02}.rows" if self.percent is None else f"planted-{self.percent:02}-{self.index}.rows"

    @property
    def sweep(self) -> str:
        """What the rows say they are of."""
        return "gate" if self.percent is None else f"gate, planted {self.percent} %"


def plan(runs: int, planted_runs: int, percents: Sequence[int]) -> list[Run]:
    """All runs in the order in which they are made: those with something planted in the middle of even shares of the
    others."""
    order: list[Run] = []
    for index in range(runs):
        order += [
            Run(turn, percent)
            for turn in range(planted_runs)
            if index == (2 * turn + 1) * runs // (2 * planted_runs)
            for percent in percents
        ]
        order.append(Run(index))
    return order


@dataclass
class Campaign:
    """One folder of measurements, on one device. ``end``: the ``time.monotonic()`` at which to stop."""

    folder: Path
    device: Device
    settings: Settings
    limit_s: float  # for one case
    end: float

    def pipeline(self, sweep: str, cases: Sequence[Case]) -> list[Case]:
        """Run the whole pipeline once, what is left of it; the cases that are right and have a time."""
        path = self.folder / "pipeline.jsonl"
        with Appender(path) as out:
            done = finished(path, self.settings, self.limit_s)
            imports = FIRST_CASE if self.device == "cuda" else ()
            driver = Driver(
                sweep, self.device, self.settings, self.limit_s, frozenset(), out, Told(), imports=imports
            )  # fmt: skip
            if driver.run([case for case in cases if case.id not in done]).interrupted:
                raise KeyboardInterrupt
        found = {row.case_id: row for row in store.read(path)}
        for row in found.values():
            if row.status != "ok" or row.time is None:
                say(f"{row.case_id} is left out: {row.status}, {row.reason or 'no time on this device'}")
        return [case for case in cases if found[case.id].status == "ok" and found[case.id].time]

    def calibrate(self, cases: Sequence[Case], percents: Sequence[int]) -> dict[str, Any]:
        """How much to plant, by case, as ``planted.calibrate`` has it; what is found is kept."""
        path = self.folder / "calibration.json"
        try:
            known: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        except ValueError as error:
            raise UserError(f"{path}: damaged, {error}; remove it, and slow-downs are calibrated again") from None
        child = Child("planted", environment(), imports=())
        try:
            for case in cases:
                # What is calibrated stays as it is: runs may have planted it.
                had: dict[str, Any] = known.get(case.id, {}).get("planted", {})
                if not (missing := [percent for percent in percents if str(percent) not in had]):
                    continue
                self._must_fit(CALIBRATION_S)
                found = self._calibrated(child, case, missing)
                known[case.id] = found | {"planted": had | found["planted"]}
                replace_text(path, json.dumps(known, indent=2) + "\n")
        finally:
            child.close()
        return known

    def _calibrated(self, child: Child, case: Case, percents: Sequence[int]) -> dict[str, Any]:
        request = {"case": case.to_dict(), "settings": self.settings.to_dict(), "percents": list(percents)}
        try:
            found = child.ask(request, self.limit_s)
        except (ChildDied, ChildTimeout) as error:
            found = {"failed": str(error)}
        if "failed" in found:
            say(f"{case.id} {case.system}: nothing can be planted: {found['failed']}")
            return found | {"planted": {}}
        came_to = ", ".join(f"{percent} % as {one['percent']:.2f} %" for percent, one in found["planted"].items())
        say(f"{case.id} {case.system}, {found['plain_ms']:.4f} ms: {came_to}; least {found['least_percent']:.2f} %")
        return found

    def runs(self, order: Sequence[Run], cases: Sequence[Case], calibration: dict[str, Any]) -> None:
        """Measure what is left of the plan. Raises TimeIsUp."""
        left = [run for run in order if not (self.folder / run.name).exists()]
        took: list[float] = []
        for at in range(0, len(left), STARTED):
            with ExitStack() as stack:
                workers = [self._worker(run, calibration) for run in left[at : at + STARTED]]
                for worker in workers:
                    stack.callback(worker.close)
                    worker.start()
                for run, worker in zip(left[at:], workers, strict=False):
                    self._must_fit(max(took, default=GUESS_S) * len(cases))
                    took.append(self._measure(run, worker, cases, calibration))
                    done = len(order) - len(left) + len(took)
                    say(f"{run.name}: {took[-1]:.2f} s a row; {done} of {len(order)} runs")

    def _worker(self, run: Run, calibration: dict[str, Any]) -> Worker:
        planted = {"percent": run.percent, "amounts": amounts(run, calibration)}
        variables = {"PLANTED": None if run.percent is None else json.dumps(planted)}
        return Worker(environment() | variables, known_environment(self.device), "planted")

    def _measure(self, run: Run, worker: Worker, cases: Sequence[Case], calibration: dict[str, Any]) -> float:
        """Write the run's file, once it is whole; seconds that it took for each of the cases."""
        began = time.monotonic()
        possible = amounts(run, calibration)
        chosen = [case for case in cases if run.percent is None or case.id in possible]
        rows = [worker.run(case, run.sweep, self.settings, self.limit_s) for case in chosen]
        worker.close()
        for row in rows:
            if row.status != "ok":
                say(f"{run.name}: {row.case_id} is {row.status}: {row.reason}")
        replace_text(self.folder / run.name, "".join(store.to_json(row) + "\n" for row in rows))
        return (time.monotonic() - began) / len(cases)

    def _must_fit(self, seconds: float) -> None:
        if time.monotonic() + seconds > self.end:
            raise TimeIsUp


def amounts(run: Run, calibration: dict[str, Any]) -> dict[str, int]:
    """How much the run plants, by case, where its slow-down is possible."""
    found = {case_id: of_case["planted"].get(str(run.percent)) for case_id, of_case in calibration.items()}
    return {case_id: one["amount"] for case_id, one in found.items() if one is not None and one["possible"]}


class Told:
    """A line a row, for a log."""

    def running(self, case: Case, part: Part) -> None: ...

    def finished(self, row: Row) -> None:
        say(f"pipeline: {row.case_id} {row.case['system']} {row.case['mode']}: {row.status}, {row.wall_s:.1f} s")


def environment() -> dict[str, str | None]:
    """That of a process that times, which finds ``planted``."""
    return worker_env("all") | {"PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])}


def replace_text(path: Path, text: str) -> None:
    """Write the file so that it is whole or not there."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)


def say(words: str) -> None:
    print(words, flush=True)


def same_code(folder: Path, device: Device) -> None:
    """UserError when the folder has rows of other code, versions or another device than this."""
    here = known_environment(device)
    for path in sorted((*folder.glob("*.jsonl"), *folder.glob("*.rows"))):
        row = next(store.read(path), None)
        if row is not None and any(row.environment.get(key) != here[key] for key in ("fingerprint", "device_slug")):
            raise UserError(f"{path}: rows of other code or another machine; use another folder")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is left; the exit code."""
    began = time.monotonic()
    parser = argparse.ArgumentParser(description="Measure what the gate's figures follow from.")
    parser.add_argument("folder", type=Path, help="where rows go, and what there is of them already")
    parser.add_argument("--seconds", type=float, default=600.0, help="stop when what is next would take longer (600)")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--sweep", default=str(HERE / "cases.yaml"), help="the cases, a sweep (tests/gate/cases.yaml)")
    parser.add_argument("--only", action="append", default=[], metavar="SYSTEM", help="this system's cases only")
    parser.add_argument("--runs", type=int, default=RUNS, help=f"runs of the code as it is ({RUNS})")
    parser.add_argument("--planted-runs", type=int, default=PLANTED_RUNS, help=f"runs a slow-down ({PLANTED_RUNS})")
    parser.add_argument("--percents", type=percent, nargs="+", default=PERCENTS, help="slow-downs to plant, in percent")
    options = parser.parse_args(arguments)
    chosen, device = load(find(options.sweep)), pick_device(options.device)
    cases = only(expand(chosen, device).cases, options.only, chosen.name)
    same_code(options.folder, device)
    campaign = Campaign(
        options.folder, device, chosen.settings(device), chosen.section(device).limit_s, began + options.seconds
    )
    order = plan(options.runs, options.planted_runs, options.percents)
    try:
        with lap("pipeline"):
            right = campaign.pipeline(chosen.name, cases)
        if not right:
            say("no case is right and has a time here")
            return 1
        with lap("calibration"):
            calibration = campaign.calibrate(right, options.percents)
        with lap("runs"):
            campaign.runs(order, right, calibration)
    except (TimeIsUp, KeyboardInterrupt) as stop:
        timed_out = isinstance(stop, TimeIsUp)
        say(f"{'time is up' if timed_out else 'stopped'}; the same command goes on from here")
        return 3 if timed_out else 130
    return 0


@contextmanager
def lap(name: str) -> Iterator[None]:
    """Say how long the block took, however it ends."""
    began = time.monotonic()
    try:
        yield
    finally:
        say(f"-- {name}: {time.monotonic() - began:.1f} s")


def percent(text: str) -> int:
    """A slow-down to plant, from the command line."""
    value = int(text)
    if not 0 < value < 100:
        raise ValueError
    return value


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
