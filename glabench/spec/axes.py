"""Axes that cases did not always have. What is to be said of one stands here, and all else asks this file.

A field of `Axes` is an axis: its type says which values there are, and its default what a case is without it, so that
ids and rows of before are what they were. From what `Axis` says follow the fields of a case, what sweep files and rows
may hold, options of the command line, columns of tables, words of pages, refusals, and the table of docs/sweeps.md.
Which systems take an axis is in `catalog.py`, and what numbers they are given in `systems/inputs.py`. No torch.
"""

# An axis is a field with what is said of it: a call each, of what nothing writes to.
# ruff: noqa: RUF009

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_type_hints

from glabench.spec import lengths as packing
from glabench.spec.models import CONFIGS
from glabench.spec.shape import TOO_LARGE

Dtype = Literal["bf16", "fp16", "fp32"]
Model = Literal["340m", "1.3b", "tiny"]
Execution = Literal["compiled", "graph"]
# What an axis is part of. Of a shape: a question of its own, with a column of its own. Of gates: their key, for what
# reads no gates answers each alike. Of a training step; and of a schedule, which is the system's and no question.
Part = Literal["shape", "gates", "training", "schedule"]
Values = Mapping[str, Any]  # of a case that is being made: some may not be there yet
Misfit = tuple[tuple[str, ...], str]  # fields that do not go together, the one to blame first, and what is wrong

DEFAULT_DTYPE, DEFAULT_MODE = "bf16", "fwdbwd"
SIZE = "an integer > 0 and < 2^31"


@dataclass(frozen=True)
class OfGates:
    """How an axis of gates is said in their key, "8 in fp32", and in words that follow "gates"."""

    mark: str  # in the key, the value after it but for True
    said: str  # "in {}"
    without: str  # of gates that have the default, beside others: "in the dtype of q"
    beside_strength: bool = False  # said with the strength, and not by itself

    def key(self, value: object) -> str:
        return self.mark if value is True else f"{self.mark}{value}"


@dataclass(frozen=True)
class Axis:
    """What is said of an axis; its name, type and default are those of its field in `Axes`."""

    about: str  # for the docs
    expected: str  # what a sweep file may give, and what a mistake is told
    lacking: str  # what a system that does not take it has not
    words: Callable[[Any], str]  # another value than the default, in a few words
    part: Part = "shape"
    default: Any = None
    between: tuple[int, int] | None = None  # numbers, the ends left out
    read: Callable[[object], Any] | None = None  # what a sweep file gives, as a case has it; ValueError
    listed: bool = False  # a list of integers is one value
    fit: Callable[[Values], Any] | None = None  # the value, the default where another says the same
    misfit: Callable[[Values], Misfit | None] | None = None
    planned: bool = False  # plans, the cost model and lists of launches are those of a case without it, or know it
    fewer: Callable[[Any, int], Any] | None = None  # the value where only so many tokens are compared
    steady: tuple[str, ...] = ()  # inputs that hold the same numbers in every sample
    option: str | None = None  # help of an option of `compare`, where it has one
    unset: str = ""  # what that says of its default
    gates: OfGates | None = None
    beside: str = ""  # of a shape: the size that it is said beside, by `mark`; else its words stand at the end
    mark: str = "{}"


def _dtype_of(values: Values) -> Any:
    return values.get("dtype", DEFAULT_DTYPE)


def _own_dtype(values: Values) -> Any:
    """No dtype of gates where it is that of q, or where there are none."""
    none = values.get("gate_strength", 1.0) is None and not values.get("value_gate", False)
    own = values.get("gate_dtype")
    return None if none or own == _dtype_of(values) else own


def other_gates(values: Values) -> Misfit | None:
    """Why gates cannot be of the dtype that they are, where it is not that of q."""
    gates = values.get("gate_dtype")
    if gates in (None, "fp32"):
        return None
    return ("gate_dtype", "dtype"), f"gate_dtype {gates}: expected {_dtype_of(values)}, as q, or fp32"


def _uneven_heads(values: Values) -> Misfit | None:
    shared = values.get("qk_heads")
    if shared is None or values["H"] % shared == 0:
        return None
    return ("qk_heads", "H"), f"qk_heads {shared}: expected a number that divides H {values['H']}"


def _untrained(values: Values) -> Misfit | None:
    """Why a model and the mode do not go together."""
    model, mode = values.get("model"), values.get("mode", DEFAULT_MODE)
    if (model is None) == (mode != "train"):
        return None
    said = f"mode train: expected a model, {' or '.join(CONFIGS)}"
    return ("mode", "model"), said if model is None else f"model {model}: expected mode train, got {mode}"


def _not_executed(values: Values) -> Misfit | None:
    how, mode = values.get("execution"), values.get("mode", DEFAULT_MODE)
    if how is None or values.get("model") is not None:
        return None
    return ("execution", "mode"), f"execution {how}: expected mode train, got {mode}"


def _unpacked(values: Values) -> Misfit | None:
    """Why its sequences cannot be packed as the case says."""
    text, mode = values.get("lengths"), values.get("mode")
    if text is None:
        return None
    if values["B"] != 1:
        said = f"lengths {text}: expected B 1, into which sequences are packed, got {values['B']}"
        return ("lengths", "B", "T"), said
    if mode == "step":
        return ("lengths", "mode"), f"lengths {text}: a step has one token of each sequence"
    try:
        found = packing.sequences(text, values["T"], values.get("seed", 0))
    except ValueError as error:
        return ("lengths", "T"), str(error)
    if mode == "train" and max(found) < 2:
        said = f"lengths {text}: expected a document of two tokens, of which one predicts the other"
        return ("lengths", "mode"), said
    return None


def _no_token_before(values: Values) -> Misfit | None:
    if values.get("resets") is None or values.get("mode") != "step":
        return None
    return ("resets", "mode"), f"resets {values['resets']}: a step has one token of each sequence"


def _axis(default: Any, **said: Any) -> Any:
    return field(default=default, metadata={"axis": Axis(default=default, **said)})


@dataclass(frozen=True, kw_only=True)
class Axes:
    """The later axes of a case."""

    value_gate: bool = _axis(
        False,
        about="gates on the value side besides, `gv`, of the same strength; of 1 where there is no `g`",
        expected="true or false",
        lacking="gates on the value side",
        words=lambda value: "value gate",
        part="gates",
        option="Gates on the value side, too.",
        gates=OfGates(" + value side", "on both sides", "on the key side"),
    )
    gate_dtype: Dtype | None = _axis(
        None,
        about="of gates: fp32 for gates in float32 beside 16-bit inputs; that of q unless given",
        expected="bf16, fp16, fp32 or null for that of q",
        lacking="gates in another dtype than q",
        words=lambda value: f"gates in {value}",
        part="gates",
        fit=_own_dtype,
        misfit=other_gates,
        planned=True,
        option="fp32 for gates in float32.",
        unset="that of q",
        gates=OfGates(" in ", "in {}", "in the dtype of q", beside_strength=True),
    )
    lengths: str | None = _axis(
        None,
        about="[packed sequences](#packed-sequences) in a batch of one, `T` tokens in all",
        expected=packing.EXPECTED,
        lacking="packed sequences",
        words=packing.short,
        read=packing.text_of,
        listed=True,
        misfit=_unpacked,
        option="Packed sequences, as in a sweep.",
        unset="a batch of one length",
    )
    model: Model | None = _axis(
        None,
        about="the language model of a [training step](#training-steps), for mode train",
        expected="340m, 1.3b, tiny or null",
        lacking="model around it",
        words=str,
        part="training",
        misfit=_untrained,
    )
    execution: Execution | None = _axis(
        None,
        about="how it is executed: compiled (each block and the loss), or so compiled and whole in a CUDA graph",
        expected="compiled, graph or null for eager",
        lacking="training step to compile",
        words=str,
        part="training",
        misfit=_not_executed,
    )
    recompute: bool | None = _axis(
        None,
        about="of a model: keep nothing of the states for the backward pass, which computes them again",
        expected="true, or false or null for what the system does by itself",
        lacking="states to compute again",
        words=lambda value: "recomputed",
        part="schedule",
        fit=lambda values: values.get("recompute") or None,
    )
    qk_heads: int | None = _axis(
        None,
        about="how many heads of q and k, and of gates of every feature, the `H` of v share, a number that divides `H`:"
        " each is that of `H` / `qk_heads` beside one another",
        expected=f"{SIZE}, or null for the H of v",
        lacking="heads of q and k that several of v share",
        words=lambda value: f"{value} heads of q and k",
        between=(0, TOO_LARGE),
        fit=lambda values: None if values.get("qk_heads") == values.get("H") else values.get("qk_heads"),
        misfit=_uneven_heads,
        beside="H",
        mark="/{:.0f}",
    )
    resets: int | None = _axis(
        None,
        about="how many tokens there are from one that forgets all before it, its gates being -inf, to the next, as"
        " where documents are packed by their gates; the first is drawn by the `seed`, for each sequence of the batch",
        expected=f"{SIZE}, or null for gates that are all finite",
        lacking="gates of -inf",
        words=lambda value: f"reset each {value}",
        part="gates",
        between=(0, TOO_LARGE),
        fit=lambda values: None if values.get("gate_strength", 1.0) is None else values.get("resets"),
        misfit=_no_token_before,
        planned=True,
        fewer=lambda value, tokens: min(value, max(1, tokens // 4)),
        steady=("g",),
        option="Tokens from one that forgets all to the next.",
        unset="none forgets all",
        gates=OfGates(" reset each ", "reset each {} tokens", "never reset"),
    )


AXES: dict[str, Axis] = {one.name: one.metadata["axis"] for one in fields(Axes)}
TYPES: dict[str, Any] = get_type_hints(Axes)
PLANNED: tuple[str, ...] = tuple(name for name, axis in AXES.items() if axis.planned)
GATES: dict[str, OfGates] = {name: axis.gates for name, axis in AXES.items() if axis.gates is not None}
# Those that are questions of their own, by the names of their columns: what a table has where a case has the default.
BLANKS: dict[str, str | int] = {
    name: "" if TYPES[name] == str | None else 0 for name, axis in AXES.items() if axis.part == "shape"
}
BESIDE: tuple[str, ...] = tuple(name for name in BLANKS if AXES[name].beside)
FURTHER: tuple[str, ...] = tuple(name for name in BLANKS if not AXES[name].beside)


def later(case: Mapping[str, Any]) -> dict[str, Any]:
    """The axes that a case, given as a dict, has another value of than the default."""
    found = {name: case.get(name, axis.default) for name, axis in AXES.items()}
    return {name: value for name, value in found.items() if value not in (None, AXES[name].default)}


def reference() -> list[str]:
    """The lines of the table in docs/sweeps.md."""
    rows = [(f"`{name}`", axis.expected, axis.about) for name, axis in AXES.items()]
    return ["| field | values | what it is |", "|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows)]
