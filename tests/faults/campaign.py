"""Faults of twelve kinds, injected into a sweep of small cases that no GPU is needed for, or into one that a GPU runs:

    python tests/faults/campaign.py --cases 300 --injections 200
    python tests/faults/campaign.py --cases 300 --injections 200 --device cuda

runs the sweep, starts it again whenever the sweep itself was brought down, and checks that every case has one row that
says what happened, and that nothing was tried more often than it may be. Exit code: 0 all is right, 1 it is not.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from glabench import store
from glabench.errors import UserError
from glabench.run.attempts import MOST_DEATHS
from glabench.run.driver import Driver, finished, known_environment
from glabench.spec.case import Case
from glabench.spec.settings import Part, Settings
from glabench.store import Appender, Row


@dataclass(frozen=True)
class Fault:
    """What a kind of fault must come to: the row's status, how many processes died of the case, how often it is
    tried, and whether the sweep itself goes down."""

    status: str
    deaths: int = 0
    tries: int = 1
    ends_sweep: bool = False


FAULTS = {
    "segv": Fault("crashed", deaths=2, tries=2),  # an illegal access
    "illegal": Fault("crashed"),  # one of the GPU: an error of every later call, and so of the process, which is ended
    "abort": Fault("crashed", deaths=2, tries=2),  # a compiler that gives up
    "odd": Fault("crashed", deaths=2, tries=2),  # an exception that cannot be printed
    "kill": Fault("ok", deaths=1, tries=2),  # SIGKILL from outside, once
    "hang": Fault("timeout"),
    "oom": Fault("oom"),
    "compile": Fault("compile_error"),
    "wrong": Fault("wrong"),
    "nan": Fault("wrong"),
    "flood": Fault("ok"),  # megabytes on stdout that look like rows
    "torn": Fault("ok", tries=2, ends_sweep=True),  # SIGKILL of the sweep in the middle of writing the row
    "full": Fault("ok", tries=2, ends_sweep=True),  # the disk is full in the middle of writing the row
}
NONE = Fault("ok")
ON_GPU = str(Path(__file__).with_name("on_gpu.py"))
ON_ONE_ONLY = {"cpu": "segv", "cuda": "illegal"}

# A process that opens a GPU takes seconds to start, and after a fault that ends the sweep all of them start anew:
# several share the GPU, for nothing is timed, and those faults are rarer.
WORKERS = {"cpu": 1, "cuda": 12}
LIMIT_S = {"cpu": 5.0, "cuda": 20.0}
RARER = {"cpu": 1, "cuda": 3}


class FaultyAppender(Appender):
    """Goes down in the middle of the rows that the plan names, once each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.plan: dict[str, str] = json.loads((folder / "plan.json").read_text())
        super().__init__(folder / "rows.jsonl")

    def append(self, row: Row) -> None:
        mark = self.folder / f"down-{row.case_id}"
        fault = self.plan.get(row.case_id)
        if fault in ("torn", "full") and not mark.exists():
            mark.touch()
            line = store.to_json(row).encode()
            if fault == "torn":
                self._file.write(line[: len(line) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            room = os.fstat(self._file.fileno()).st_size + len(line) // 2
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
        super().append(row)


class Silent:
    """Nobody looks on."""

    def running(self, case: Case, part: Part) -> None: ...

    def finished(self, row: Row) -> None: ...


def cases_of(count: int) -> list[Case]:
    return [Case("sdpa", 1, 8, 1, 8, 8, seed=seed) for seed in range(count)]


def kinds_of(device: str, injections: int) -> list[str]:
    """As many kinds of faults as there are injections, in turns."""
    other = ON_ONE_ONLY["cuda" if device == "cpu" else "cpu"]
    kinds = [kind for kind in FAULTS if kind != other]
    steady = [kind for kind in kinds if not FAULTS[kind].ends_sweep]
    turns = kinds + steady * (RARER[device] - 1)
    return [turns[index % len(turns)] for index in range(injections)]


def drive(folder: Path, count: int, limit_s: float, workers: int, device: str) -> None:
    """The sweep's own process: what `glabench sweep` does, with another pipeline. With several workers they stand for
    GPUs: for none where no case asks for one, else all for the first."""
    facts = known_environment("cuda")
    here = str(Path(__file__).parent)
    os.environ |= {"FAULTS": str(folder), "FINGERPRINT": facts["fingerprint"], "SLUG": facts["device_slug"]}
    os.environ["FAULTS_DEVICE"] = device
    os.environ["PYTHONPATH"] = os.pathsep.join([here, os.environ.get("PYTHONPATH", "")])
    with FaultyAppender(folder) as out:
        done = finished(out.path, Settings(), limit_s)
        gpus = tuple("0" if device == "cuda" else str(index) for index in range(workers)) if workers > 1 else ()
        Driver(
            "faults",
            "cuda",
            Settings(),
            limit_s,
            frozenset(),
            out,
            Silent(),
            pipeline="faulty_pipeline",
            gpus=gpus,
        ).run([case for case in cases_of(count) if case.id not in done])


def campaign(folder: Path, count: int, plan: dict[str, str], limit_s: float, workers: int, device: str) -> list[str]:
    """Run the sweep until it ends by itself; what is wrong with its rows, a line each."""
    (folder / "plan.json").write_text(json.dumps(plan))
    command = [sys.executable, __file__, "--drive", str(folder), "--cases", str(count)]
    command += ["--limit", str(limit_s), "--workers", str(workers), "--device", device]
    downs = sum(FAULTS[kind].ends_sweep for kind in plan.values())
    codes: list[int] = []
    while not codes or codes[-1] != 0:
        if len(codes) > downs:
            return [f"the sweep went down {len(codes)} times, which {downs} faults do not explain: {Counter(codes)}"]
        codes.append(subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode)
    return wrongs(folder, count, plan, others=(workers - 1) * downs * MOST_DEATHS)


def wrongs(folder: Path, count: int, plan: dict[str, str], others: int) -> list[str]:
    """What is not as it must be. ``others``: tries that may have been lost beside rows that the sweep went down in: of
    each other process, as many as it may have made of one case."""
    found: list[str] = []
    bad: list[str] = []
    rows = list(store.read(folder / "rows.jsonl", bad.append))
    found += bad
    tries = Counter((folder / "calls").read_text().split())
    by_id = Counter(row.case_id for row in rows)
    for case in cases_of(count):
        if by_id[case.id] != 1:
            found.append(f"case {case.id} ({plan.get(case.id)}): {by_id[case.id]} rows")
    more = 0
    for row in rows:
        kind = plan.get(row.case_id)
        expected = FAULTS[kind] if kind else NONE
        got = Fault(row.status, len(row.deaths or ()), expected.tries, expected.ends_sweep)
        if got != expected:
            found.append(f"case {row.case_id} ({kind}): {row.status}, deaths {row.deaths}, {row.reason}")
        if tries[row.case_id] < expected.tries:
            found.append(f"case {row.case_id} ({kind}): tried {tries[row.case_id]} times, not {expected.tries}")
        more += tries[row.case_id] - expected.tries
    if more > others:
        found.append(f"{more} tries more than there may be")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Inject faults into a sweep and check its rows.")
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--injections", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="what the cases run on")
    parser.add_argument("--limit", type=float, help=f"seconds that a case may take; by default {LIMIT_S}")
    parser.add_argument("--workers", type=int, help=f"processes that run cases at once; by default {WORKERS}")
    parser.add_argument("--drive", type=Path, help="(the sweep's own process)")
    options = parser.parse_args()
    device: str = options.device
    limit_s, workers = options.limit or LIMIT_S[device], options.workers or WORKERS[device]
    if options.drive is not None:
        try:
            drive(options.drive, options.cases, limit_s, workers, device)
        except UserError as error:
            print(error, file=sys.stderr)
            sys.exit(2)
        return
    rng = random.Random(options.seed)
    ids = [case.id for case in rng.sample(cases_of(options.cases), options.injections)]
    kinds = kinds_of(device, options.injections)
    plan = dict(zip(ids, kinds, strict=True))
    if device == "cuda" and subprocess.run([sys.executable, ON_GPU], check=False).returncode != 0:
        sys.exit("--device cuda: there is no GPU here that computes")
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        found = campaign(Path(folder), options.cases, plan, limit_s, workers, device)
    print("\n".join(found))
    print(
        f"{options.cases} cases, {len(plan)} faults of {len(set(kinds))} kinds, {time.monotonic() - began:.0f} s: ",
        end="",
    )
    print(f"{len(found)} wrong" if found else "every case has its one row, and each is right")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
