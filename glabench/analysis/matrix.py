"""The answer as a matrix: questions down, systems across, and what each came to beside a baseline.

Where one system ran with several schedules at a question, these go down too; where a single system ran with several
kinds of gates, the gates go across.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from glabench.analysis import labels
from glabench.analysis.compare import QUESTION, aligned, by, competes, eager
from glabench.analysis.spread import Said, said

MODES = ("fwdbwd", "train", "bwd", "fwd", "step")  # what does most comes first
FLA = ("fla", "fla_recurrent", "fla_linear", "fla_simple", "fla_retention", "gla_lm_fla")
# The order of baselines after FLA, of which the first stands where FLA does not; then ours, then what is in neither.
RIVALS = ("helion", "fa2", "fa3", "cudnn", "flex", "sdpa", "transformer_lm", "mlstm_tfla", "mamba2_ssd", "mamba_scan",
          "lightning2")  # fmt: skip
OURS = ("gla", "gla:w", "gla_recurrent", "simple_gla", "retention", "gla_lm", "recurrent_torch")
FASTEST = "fastest"
MOST_GATES = 8  # across


@dataclass(frozen=True)
class Entry:
    """What a system came to at a question: ``line`` is a line of the frame, with its place in the rows as "row"."""

    line: Mapping[str, Any]

    @property
    def timed(self) -> bool:
        return bool(self.line["status"] == "ok" and not math.isnan(self.line["ms"]))

    @property
    def ms(self) -> float:
        """The median, infinite where there is none."""
        return float(self.line["ms"]) if self.timed else math.inf

    @property
    def competes(self) -> bool:
        """Whether it did all that was asked: see `compare.competes`."""
        return bool(self.line["competes"])


@dataclass(frozen=True)
class Line:
    """A question, at one schedule where several ran ("C64/16"), with what each column came to."""

    question: tuple[Any, ...]
    at: Mapping[str, Any]  # a line of the frame, for the words of the shape
    schedule: str
    entries: Mapping[str, Entry]


@dataclass(frozen=True)
class View:
    """The lines of one mode, by the time of kernels or, ``eager``, of eager calls."""

    mode: str
    eager: bool
    lines: tuple[Line, ...]

    def entries(self, question: tuple[Any, ...]) -> Iterator[tuple[str, Entry]]:
        """Every entry of a question, of all its schedules."""
        for line in self.lines:
            if line.question == question:
                yield from line.entries.items()


@dataclass(frozen=True)
class Baseline:
    """What others are compared with: at a question the fastest entry of the first of ``columns`` that has a time there;
    without columns the fastest of all that do what was asked."""

    key: str
    title: str
    columns: tuple[str, ...] = ()

    def at(self, view: View, question: tuple[Any, ...]) -> Entry | None:
        """The entry that stands for it at a question; None where it has no time."""
        timed = [(column, entry) for column, entry in view.entries(question) if entry.timed and entry.competes]
        for column in self.columns:
            found = [entry for name, entry in timed if name == column]
            if found:
                return min(found, key=lambda entry: entry.ms)
        everyone = [entry for _, entry in timed] if not self.columns else []
        return min(everyone, key=lambda entry: entry.ms, default=None)


@dataclass(frozen=True)
class Matrix:
    """Of one device. The first of ``views`` and of ``baselines`` are those that are shown first."""

    device: str
    columns: tuple[tuple[str, str], ...]  # (key, title)
    views: tuple[View, ...]
    baselines: tuple[Baseline, ...]
    gates_across: bool = False  # columns are gates of one system


@dataclass(frozen=True)
class Beside:
    """How many times as fast as the baseline, its interval, and what that says; "itself" of the baseline."""

    ratio: float
    low: float
    high: float
    said: Said | str


def beside(entry: Entry, base: Entry | None) -> Beside | None:
    """None where either has no time."""
    if base is None or not (entry.timed and base.timed):
        return None
    if entry is base:
        return Beside(1.0, 1.0, 1.0, "itself")
    one, other = entry.line, base.line
    ratio, low, high = other["ms"] / one["ms"], other["ms_lo"] / one["ms_hi"], other["ms_hi"] / one["ms_lo"]
    return Beside(ratio, low, high, said(ratio, low, high, one["clock"]))


def leaders(view: View, question: tuple[Any, ...]) -> list[Entry]:
    """The fastest of a question and what ties with it; where only one system ran, nothing: schedules of one system do
    not compete with each other."""
    asked = sorted((e for _, e in view.entries(question) if e.timed and e.competes), key=lambda e: e.ms)
    if len({e.line["system"] for e in asked}) < 2:
        return []
    first, found = asked[0], [asked[0]]
    for entry in asked[1:]:
        apart = beside(entry, first)
        if apart and apart.said in ("tie", "unsure"):
            found.append(entry)
    return found


def matrices(table: pd.DataFrame) -> list[Matrix]:
    """A matrix a device, GPUs first, from the table of ``frame``."""
    names = dict.fromkeys(table.sort_values("kind", ascending=False, kind="stable")["device"])
    return [_matrix(str(name), table[table["device"] == name]) for name in names]


def _matrix(device: str, table: pd.DataFrame) -> Matrix:
    whole = aligned(table.assign(row=table.index))
    whole = whole.assign(competes=competes(whole), column=whole["variant"].map(labels.of_system))
    across = _gates_across(whole)
    if across:
        whole = whole.assign(column=whole["gate"])
        columns = tuple((gate, _of_gates(gate, across)) for gate in across)
    else:
        columns = tuple((key, labels.title(key)) for key in _in_order(whole))
    views = [View(mode, False, _lines(whole[whole["mode"] == mode], bool(across))) for mode in _modes(whole)]
    called = eager(whole)
    views += [View(mode, True, _lines(called[called["mode"] == mode], bool(across))) for mode in _modes(called)]
    return Matrix(device, columns, tuple(views), _baselines(columns, views, bool(across)), bool(across))


def _modes(table: pd.DataFrame) -> list[str]:
    present = set(table["mode"])
    return [*(mode for mode in MODES if mode in present), *sorted(present - set(MODES))]


def _in_order(table: pd.DataFrame) -> list[str]:
    """The columns: ours, its rivals, then the rest in the order of legends. Schedules that were asked for are ours too
    where several of them go down."""
    keys = sorted(table["column"].unique(), key=labels.order)
    down = any(_several_schedules(list(group.to_dict("records"))) for _, group in by(table, QUESTION))
    own = [key for key in OURS if key in keys][:1] + [key for key in keys if down and key.split(":")[0] == "gla"]
    rivals = [key for key in (*FLA, *RIVALS) if key in keys]
    return list(dict.fromkeys([*own, *rivals, *keys]))


def _gates_across(table: pd.DataFrame) -> list[str]:
    """The gates that a single system ran with at one shape, in order; none where others ran, or only one kind."""
    gates = sorted(table["gate"].unique(), key=lambda gate: (labels.strength(gate), gate))
    return gates if table["column"].nunique() == 1 and 1 < len(gates) <= MOST_GATES else []


def _of_gates(gate: str, gates: Sequence[str]) -> str:
    """ "gates in fp32", with their strength where it differs."""
    if gate == "none":
        return "no gates"
    strength, _, dtype = gate.partition(" in ")
    named = f" of strength {strength}" if len({g.partition(" in ")[0] for g in gates}) > 1 else ""
    if not any(" in " in g for g in gates):
        return f"gates{named}"
    return f"gates{named} in {dtype or 'the dtype of q'}"


def _lines(table: pd.DataFrame, across: bool) -> tuple[Line, ...]:
    asked = [name for name in QUESTION if name not in ("device", "mode") and not (across and name == "gate")]
    found: list[Line] = []
    for question, group in by(table, asked):
        records = [dict(record) for record in group.to_dict("records")]
        several = _several_schedules(records)
        schedules: dict[tuple[int, int], list[dict[Any, Any]]] = {}
        for record in records:
            schedules.setdefault(_schedule(record) if several else (0, 0), []).append(record)
        for (chunk, sub), here in sorted(schedules.items()):
            at = {**here[0], "gate": "1", "gates_vary": False} if across else here[0]
            named = labels.schedule({"chunk": chunk or None, "sub_chunk": sub or None})
            found.append(Line(question, at, named, _entries(here)))
    return tuple(sorted(found, key=_place))  # stable: schedules stay in order


def _several_schedules(records: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a system was asked for more than one schedule at a question."""
    asked = {(record["variant"], _schedule(record)) for record in records if _schedule(record) != (0, 0)}
    return len(asked) > len({variant for variant, _ in asked})


def _schedule(record: Mapping[str, Any]) -> tuple[int, int]:
    """(chunk, sub-chunk), 0 where none was asked for."""
    return (_whole(record["chunk"]), _whole(record["sub_chunk"]))


def _whole(value: Any) -> int:
    return 0 if value is None or math.isnan(value) else int(value)


def _entries(records: Sequence[Mapping[str, Any]]) -> dict[str, Entry]:
    """Of several rows of a column the fastest; else one that was only checked, else one that failed."""
    found: dict[str, Entry] = {}
    for entry in sorted(map(Entry, records), key=lambda e: (not e.timed, e.ms, e.line["status"] != "ok")):
        found.setdefault(entry.line["column"], entry)
    return found


def _place(line: Line) -> tuple[Any, ...]:
    """Shapes of the same heads stand together, by length."""
    at = line.at
    gate = (labels.strength(at["gate"]), at["gate"])
    return (at["training"], at["H"] * at["V"], at["H"], at["K"], at["V"], at["dtype"], bool(at["initial_state"]), gate,
            at["qk_heads"], at["T"], at["B"], at["lengths"])  # fmt: skip


def _baselines(columns: Sequence[tuple[str, str]], views: Sequence[View], across: bool) -> tuple[Baseline, ...]:
    """Those that have a time beside which another stands; the fastest of a question goes last, and first where there is
    no rival, or where it is schedules that are compared and FLA is not there."""
    titles = dict(columns)
    fastest = Baseline(FASTEST, "the fastest")
    if across:
        return (*(Baseline(key, title, (key,)) for key, title in columns), fastest)
    fla = tuple(key for key in FLA if key in titles)
    rivals = [Baseline("fla", titles[fla[0]] if len(fla) == 1 else "FLA", fla)] if fla else []
    rivals += [Baseline(key, titles[key], (key,)) for key in RIVALS if key in titles]
    ours = [Baseline(key, titles[key], (key,)) for key in OURS if key in titles]
    known = {key for one in (*rivals, *ours) for key in one.columns}
    others = [Baseline(key, titles[key], (key,)) for key in titles if key not in known and not key.startswith("gla:")]
    rivals, others = (rivals, others) if rivals else (others, [])
    offered = [one for one in (*rivals, *ours, *others) if _stands_beside(one, views)]
    lines = [line for view in views for line in view.lines]
    by_schedule = 2 * sum(bool(line.schedule) for line in lines) > len(lines)
    no_rival = not any(one in rivals for one in offered)
    return (fastest, *offered) if no_rival or (by_schedule and not fla) else (*offered, fastest)


def _stands_beside(one: Baseline, views: Sequence[View]) -> bool:
    """Whether some entry can be compared with the baseline."""
    for view in views:
        for line in view.lines:
            base = one.at(view, line.question)
            if base is not None and any(entry.timed and entry is not base for entry in line.entries.values()):
                return True
    return False
