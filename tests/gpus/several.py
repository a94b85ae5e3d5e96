"""A sweep of 200 cases on one GPU of a machine and on all of them: is it as much faster, and are the times the same?

    python tests/gpus/several.py run results/local/several    # on the machine; a rerun goes on
    python tests/gpus/several.py judge 4 results/local/several  # anywhere, from the rows alone

``run`` takes three steps, each a sweep with a file of rows in the folder: "warm" runs every case with hardly any
samples, so that what Triton keeps on the disk is there for both of the others; then "all" and "one" of the GPUs. The
judgement is on the time from the first timed case's start to the last one's end. What comes before that, on the
processor alone and as long for one GPU as for four, is in the second figure, of the whole sweep. Pauses of ten seconds
or more, where a sweep was stopped, count for neither. Of the medians it is said besides which are of the same GPU in
both: the others differ by what the GPU does, too. Where rows say at which SM clock the samples ran, medians are
compared in SM cycles as well, without what the clock of one chip falls further than another's, and those of long calls
apart. Rows may lie in several files, "one-00.jsonl" and so on. Exit code: 0 all is as it should be, 1 it is not, 2 a
file cannot be read or a step failed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from glabench import store
from glabench.analysis.overhead import wall
from glabench.errors import UserError
from glabench.phases import Spent, spent_of
from glabench.spec.sweep import find
from glabench.store import Row

SWEEP = "several_gpus"
CASES = 200
STEPS = {"warm": "all", "all": "all", "one": "0"}  # -> what --gpus is
FEW_SAMPLES = {"warmup_s": 0.001, "min_samples": 2, "min_time_s": 0.001, "max_time_s": 0.01, "max_wall_s": 0.05}
LEAST_FASTER = {2: 1.9, 4: 3.6}  # GPUs -> times the throughput of one
MOST_APART = 0.02  # of a case's two medians
LONG_MS = 0.5  # of shorter calls the clock differs from run to run where the time does not
NAMED = 10  # of the cases whose medians lie furthest apart


@dataclass(frozen=True)
class Took:
    """Seconds: of the timed cases, from the first start to the last end, and of the whole sweep."""

    timed: float
    whole: float

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Took:
        spent = [one for row in rows for one in spent_of(row)]
        timed = [one for one in spent if one.part == "all"]
        if not timed:
            raise UserError("no row says when it was timed: rows of `glabench sweep` on a GPU do")
        return cls(_seconds(timed), _seconds(spent))


def _seconds(spent: Sequence[Spent]) -> float:
    return wall(spent).seconds


def judge(gpus: int, one: Sequence[Row], several: Sequence[Row], cases: int) -> list[str]:
    """Print what was found; what is not as it should be, a line each."""
    wrong = [_unlike("one GPU", one, cases), _unlike(f"{gpus} GPUs", several, cases)]
    wrong += [_slow(gpus, Took.of(one), Took.of(several), len(one), len(several)), _apart(one, several)]
    return [line for line in wrong if line]


def _unlike(where: str, rows: Sequence[Row], cases: int) -> str | None:
    """What is wrong with the number of rows, or with their statuses."""
    bad = [f"{row.case['system']} {row.case_id} {row.status}: {row.reason}" for row in rows if row.status != "ok"]
    if len(rows) == cases and not bad:
        return None
    return f"{where}: {len(rows)} rows of {cases}, {len(bad)} not ok" + "".join(f"\n  {line}" for line in bad[:NAMED])


def _slow(gpus: int, one: Took, several: Took, cases_of_one: int, cases_of_several: int) -> str | None:
    ratios = {}
    for name, a, b in (("timing", one.timed, several.timed), ("the whole sweep", one.whole, several.whole)):
        ratios[name] = (cases_of_several / b) / (cases_of_one / a)
        print(f"{name}: {a:.1f} s on one GPU, {b:.1f} s on {gpus}, {ratios[name]:.2f} times the throughput")
    least = LEAST_FASTER.get(gpus, 0.9 * gpus)
    return None if ratios["timing"] >= least else f"timing: {ratios['timing']:.2f} times, expected at least {least:g}"


def _apart(one: Sequence[Row], several: Sequence[Row]) -> str | None:
    """How far the medians of a case lie apart, as a share of one GPU's."""
    known = {row.case_id: row for row in one if row.status == "ok"}
    found = sorted(
        (Apart.of(known[row.case_id], row) for row in several if row.case_id in known and row.time),
        key=lambda pair: -abs(pair.share),
    )
    if not found:
        return "no case was timed in both"
    print("\n".join(f"  {pair}" for pair in found[:NAMED]))
    print(f"medians: {_within([pair.share for pair in found])}")
    for where, same in (("on the same GPU in both", True), ("on another one", False)):
        if there := [pair for pair in found if pair.same_gpu is same]:
            print(f"  {where}: {_within([pair.share for pair in there])}")
    for calls, least_ms in (("", 0.0), (f", calls of {LONG_MS:g} ms and longer", LONG_MS)):
        there = [pair for pair in found if pair.ms >= least_ms]
        if cycles := [pair.share_of_cycles for pair in there if pair.share_of_cycles is not None]:
            print(f"  in SM cycles{calls}: {_within(cycles)}")
    far = sum(abs(pair.share) > MOST_APART for pair in found)
    return f"medians: {far} of {len(found)} more than {MOST_APART:.0%} apart" if far else None


@dataclass(frozen=True)
class Apart:
    """A case's median among several GPUs beside that of one, `ms`, as a share of it; whether both are of the same GPU;
    the same share of SM cycles. None where a row does not say."""

    one: Row
    ms: float
    share: float
    same_gpu: bool | None
    share_of_cycles: float | None

    @classmethod
    def of(cls, one: Row, several: Row) -> Apart:
        gpus = [row.environment.get("gpu_uuid") for row in (one, several)]
        ms = _median(one)
        times = _median(several) / ms
        was, now = ((row.clocks or {}).get("sm_mhz_counted") for row in (one, several))
        cycles = times * now / was - 1 if was and now else None
        return cls(one, ms, times - 1, None if None in gpus else gpus[0] == gpus[1], cycles)

    def __str__(self) -> str:
        case = self.one.case
        shape = ", ".join(str(case[axis]) for axis in "BTHKV")
        return f"{case['system']} ({shape}) {case['mode']}: {self.ms:.4f} ms on one GPU, {self.share:+.2%} on several"


def _median(row: Row) -> float:
    """Of a row with a time. Nobody asks for its interval, which takes longer than all else here."""
    return statistics.median((row.time or {})["samples_ms"])


def _within(shares: Sequence[float]) -> str:
    """How many are as near as they should be."""
    near, worst = sum(abs(share) <= MOST_APART for share in shares), max(shares, key=abs)
    return f"{near} of {len(shares)} within {MOST_APART:.0%} ({near / len(shares):.1%}), the worst {worst:+.2%}"


def take(step: str, folder: Path) -> None:
    """Run one step, or what is left of it. UserError when the sweep did not come to its end."""
    file = find(SWEEP)
    if step == "warm":
        values = yaml.safe_load(file.read_text())
        file = folder / "warm.yaml"
        file.write_text(yaml.safe_dump({**values, "settings": FEW_SAMPLES}))
    command = [sys.executable, "-m", "glabench", "sweep", str(file), "--device", "cuda", "--gpus", STEPS[step]]
    code = subprocess.run([*command, "--out", str(folder / f"{step}.jsonl")], check=False).returncode
    if code not in (0, 1):  # 1 is a row that is not right, which the judge names
        raise UserError(f"{step}: the sweep ended with exit code {code}")


def main() -> None:
    parser = argparse.ArgumentParser(description="A sweep on one GPU and on several.")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run what is left of the steps, and judge once there are both")
    run.add_argument("folder", type=Path)
    run.add_argument("--steps", nargs="+", choices=STEPS, default=list(STEPS))
    judged = commands.add_parser("judge", help="judge the rows of a folder")
    judged.add_argument("gpus", type=int, help="how many there were")
    judged.add_argument("folder", type=Path, help="of *one*.jsonl, rows of one GPU, and *all*.jsonl, of all")
    judged.add_argument("--cases", type=int, default=CASES, help="how many there must be")
    options = parser.parse_args()
    try:
        if options.command == "run":
            sys.exit(_run(options.folder, options.steps))
        sys.exit(_judge(options.gpus, options.folder, options.cases))
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(2)


def _run(folder: Path, steps: Sequence[str]) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    for step in steps:
        take(step, folder)
    return _judge(_gpus(), folder, CASES) if all(_rows(folder, step) for step in ("one", "all")) else 0


def _gpus() -> int:
    """How many ``--gpus all`` means."""
    from glabench.hardware.nvml import gpu_names

    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    return len(gpu_names()) if listed is None else len(listed.split(","))


def _rows(folder: Path, step: str) -> list[Row]:
    """The rows of a step, from all of its files."""
    return [row for path in sorted(folder.glob(f"*{step}*.jsonl*")) for row in store.read(path)]


def _judge(gpus: int, folder: Path, cases: int) -> int:
    one, several = _rows(folder, "one"), _rows(folder, "all")
    if not one or not several:
        raise UserError(f"{folder}: expected rows in *one*.jsonl and in *all*.jsonl there")
    found = judge(gpus, one, several, cases)
    print("\n".join(found) if found else "all is as it should be")
    return int(bool(found))


if __name__ == "__main__":
    main()
