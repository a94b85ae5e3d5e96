"""The axes that cases did not always have: the dtype of gates, packed sequences, and shared heads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from glabench.analysis import labels
from glabench.analysis.columns import of_gates
from glabench.errors import UserError
from glabench.nested import fault
from glabench.run.progress import describe
from glabench.spec.axes import AXES, GATES, later
from glabench.spec.case import Case
from glabench.spec.catalog import CATALOG
from glabench.spec.expand import expand, gates_of
from glabench.spec.lengths import EXPECTED
from glabench.spec.sweep import Sweep
from glabench.tools.axes import DOCS, written

Write = Callable[[str], Sweep]
CASE = Case("gla", 1, 64, 2, 16, 16)


def cases(sweep: Sweep) -> tuple[Case, ...]:
    return expand(sweep, "cuda").cases


def test_defaults_leave_ids_and_rows_as_they_were() -> None:
    assert CASE.id == "a5747f8116a3"  # of before there was any of these axes
    assert {"gate_dtype", "lengths"}.isdisjoint(CASE.to_dict())
    assert CASE.to_dict()["value_gate"] is False
    assert later(CASE.to_dict()) == {}
    assert {axis.default for axis in AXES.values()} == {False, None}


def test_other_values_are_other_cases_and_come_back() -> None:
    others = [replace(CASE, gate_dtype="fp32"), replace(CASE, lengths="uniform:4"), replace(CASE, lengths="60,4")]
    others.append(replace(CASE, qk_heads=1))
    assert len({case.id for case in (CASE, *others)}) == 5
    for case in others:
        assert Case.from_dict(case.to_dict()) == case
        assert list(later(case.to_dict())) in (["gate_dtype"], ["lengths"], ["qk_heads"])


TRAINED = {"mode": "train", "model": "tiny", "system": "gla_lm", "H": "2", "K": "16", "V": "32"}
# Of each axis a value that is not its default, as a sweep file gives it, and what else that takes.
OTHERS: dict[str, dict[str, str]] = {
    "value_gate": {"value_gate": "true"},
    "gate_dtype": {"gate_dtype": "fp32"},
    "lengths": {"lengths": "[60, 4]", "B": "1"},
    "model": TRAINED,
    "execution": {**TRAINED, "execution": "graph"},
    "recompute": {**TRAINED, "recompute": "true"},
    "qk_heads": {"qk_heads": "2"},
    "resets": {"resets": "16"},
}


@pytest.mark.parametrize("name", AXES)
def test_another_value_is_another_case_that_is_said(sweep_of: Write, name: str) -> None:
    """From a sweep file to a row, its schema and the words that a table has: of every axis there is."""
    fields = {"system": "gla", "B": "2", "T": "64", "H": "4", "K": "32", "V": "64"} | OTHERS[name]
    (case,) = cases(sweep_of(f"title: x\ncases: [{{{', '.join(map(': '.join, fields.items()))}}}]\n"))
    asked = later(case.to_dict())
    assert asked[name] == getattr(case, name) != AXES[name].default
    assert replace(case, **{name: AXES[name].default}).id != case.id
    assert Case.from_dict(case.to_dict()) == case
    assert fault({"case": case.to_dict()}) is None
    assert AXES[name].words(asked[name]) in describe(case)
    taken = {system for system, info in CATALOG.items() if name in info.takes}
    assert case.system in taken < set(CATALOG)
    if name in GATES:
        key = labels.gate(case.to_dict())
        assert labels.gate_parts(key)[1][name] == GATES[name].said.format(asked[name])
        assert labels.strength(key) == 1.0


def test_gates_in_words() -> None:
    case = replace(CASE, resets=512, value_gate=True, gate_dtype="fp32", gate_strength=8.0).to_dict()
    key = labels.gate(case)
    assert key == "8 + value side in fp32 reset each 512"
    assert labels.gating(key) == ["gate strength 8 in fp32", "gates on both sides", "gates reset each 512 tokens"]
    assert of_gates(key, (key, "8 + value side in fp32")) == "gates reset each 512 tokens"
    assert of_gates("1", ("1", "1 reset each 64")) == "gates never reset"


def test_gates_that_are_not_there_do_not_reset(sweep_of: Write) -> None:
    text = "title: x\nPOINT\naxes: {system: [gla, fa2], gate_strength: [null, 1], resets: [null, 16]}\n"
    assert [(c.system, c.gate_strength, c.resets) for c in cases(sweep_of(text))] == [
        ("gla", None, None), ("gla", 1.0, None), ("gla", 1.0, 16), ("fa2", None, None),
    ]  # fmt: skip


def test_the_table_of_the_docs_is_what_is_said_of_axes() -> None:
    text = DOCS.read_text(encoding="utf-8")
    assert written(text) == text, "python -m glabench.tools.axes writes it"


def test_systems_take_axes_that_there_are() -> None:
    assert all(info.takes <= AXES.keys() for info in CATALOG.values())


def test_the_dtype_of_q_is_none_of_its_own(sweep_of: Write) -> None:
    found = cases(sweep_of("title: x\nPOINT\naxes: {system: gla, gate_dtype: [null, bf16, fp32]}\n"))
    assert [(c.gate_dtype, c.gates) for c in found] == [(None, "bf16"), ("fp32", "fp32")]
    (case,) = cases(sweep_of("title: x\nPOINT\naxes: {system: gla, dtype: fp32, gate_dtype: fp32}\n"))
    assert case.gate_dtype is None


def test_gates_that_are_not_there_have_no_dtype(sweep_of: Write) -> None:
    found = cases(
        sweep_of(
            "title: x\nPOINT\n"
            "axes: {system: [gla, fa2, retention], gate_strength: [null, 1], gate_dtype: [bf16, fp32]}\n"
        )
    )
    assert [(c.system, c.gate_strength, c.gate_dtype) for c in found] == [
        ("gla", None, None), ("gla", 1.0, None), ("gla", 1.0, "fp32"), ("fa2", None, None), ("retention", None, None),
    ]  # fmt: skip
    (case,) = cases(
        sweep_of("title: x\nPOINT\naxes: {system: gla, gate_strength: null, value_gate: true, gate_dtype: fp32}\n")
    )
    assert case.gate_dtype == "fp32"


def test_dtypes_that_do_not_go_together_are_dropped_where_both_vary(sweep_of: Write) -> None:
    found = cases(sweep_of("title: x\nPOINT\naxes: {system: gla, dtype: [bf16, fp32], gate_dtype: [bf16, fp32]}\n"))
    assert [(c.dtype, c.gates) for c in found] == [("bf16", "bf16"), ("bf16", "fp32"), ("fp32", "fp32")]


def test_lengths_are_swept_as_other_axes(sweep_of: Write) -> None:
    text = "title: x\nPOINT\naxes: {B: 1, T: 128, system: gla, lengths: [null, 'uniform:4', [100, 28], '128']}\n"
    assert [c.lengths for c in cases(sweep_of(text))] == [None, "uniform:4", "100,28", "128"]
    coupled = "title: x\nPOINT\naxes: {B: 1, system: gla, 'T,lengths': [[8, [3, 5]], [9, 'one-long:2']]}\n"
    assert [(c.T, c.lengths, c.sequences) for c in cases(sweep_of(coupled))] == [
        (8, "3,5", (3, 5)), (9, "one-long:2", (4, 5)),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "where",
    ["defaults: {lengths: [100, 28], SIZES}\naxes: {B: 1}", "defaults: {SIZES}\naxes: {B: 1, lengths: [100, 28]}"],
)
def test_one_list_of_lengths_is_one_value(sweep_of: Write, where: str) -> None:
    text = where.replace("SIZES", "T: 128, H: 4, K: 32, V: 64, system: gla")
    assert [c.lengths for c in cases(sweep_of(f"title: x\n{text}\n"))] == ["100,28"]


def test_as_many_heads_of_q_as_of_v_are_no_axis(sweep_of: Write) -> None:
    found = cases(sweep_of("title: x\nPOINT\naxes: {system: gla, H: [4, 6], qk_heads: [null, 1, 4, 3]}\n"))
    assert [(c.H, c.qk_heads, c.group) for c in found] == [(4, None, 1), (4, 1, 4), (6, None, 1), (6, 1, 6), (6, 3, 2)]


def test_one_list_of_lengths_is_what_is_excluded(sweep_of: Write) -> None:
    axes = "axes: {B: 1, T: 128, system: gla, lengths: [null, [100, 28]]}"
    assert [c.lengths for c in cases(sweep_of(f"title: x\nPOINT\n{axes}\nexclude: [{{lengths: [100, 28]}}]\n"))] == [
        None
    ]


def test_t_follows_from_a_list_of_lengths(sweep_of: Write) -> None:
    text = "title: x\ndefaults: {B: 1, H: 1, K: 8, V: 8, system: gla}\naxes: {lengths: [[100, 28], [3, 4]]}\n"
    assert [(c.T, c.lengths) for c in cases(sweep_of(text))] == [(128, "100,28"), (7, "3,4")]


def test_states_are_those_of_sequences() -> None:
    assert (CASE.states, replace(CASE, B=3).states, replace(CASE, lengths="uniform:4").states) == (1, 3, 4)


def test_lengths_that_do_not_fit_are_dropped_where_both_vary(sweep_of: Write) -> None:
    text = "title: x\nPOINT\naxes: {B: 1, system: gla, T: [64, 128], lengths: ['uniform:128', [60, 4]]}\n"
    assert [(c.T, c.lengths) for c in cases(sweep_of(text))] == [(64, "60,4"), (128, "uniform:128")]


@pytest.mark.parametrize(
    ("axes", "said"),
    [
        ("B: 1, lengths: uniform", f"lengths: expected {EXPECTED}, got 'uniform'"),
        ("B: 1, lengths: 'uniform:3'", "lengths uniform:3: expected a number that divides T 128"),
        ("B: 1, lengths: [100, 27]", "lengths: expected a sum of T 128, got 127"),
        ("B: 1, lengths: [[100, 27], [100, 28]]", "lengths: expected a sum of T 128, got 127"),
        ("B: 1, lengths: [100, 0]", "lengths: expected null"),
        ("B: 2, lengths: [100, 28]", "lengths 100,28: expected B 1, into which sequences are packed, got 2"),
        ("B: 1, mode: step, lengths: 'uniform:4'", "lengths uniform:4: a step has one token of each sequence"),
        ("B: 1, qk_heads: 3", "qk_heads 3: expected a number that divides H 4"),
        ("B: 1, qk_heads: 0", r"qk_heads: expected an integer > 0 and < 2\^31, or null for the H of v, got 0"),
        ("B: 1, mode: step, resets: 16", "resets 16: a step has one token of each sequence"),
        ("B: 1, resets: 0", "resets: expected an integer > 0"),
        ("B: 1, gate_dtype: fp16", "gate_dtype fp16: expected bf16, as q, or fp32"),
        ("B: 1, gate_dtype: float32", "gate_dtype: expected bf16, fp16, fp32 or null for that of q, got 'float32'"),
        ("B: 1, dtype: fp32, gate_dtype: bf16", "gate_dtype bf16: expected fp32, as q, or fp32"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_that_says_where(sweep_of: Write, axes: str, said: str) -> None:
    text = f"title: x\ndefaults: {{T: 128, H: 4, K: 32, V: 64}}\naxes: {{system: gla, {axes}}}\n"
    with pytest.raises(UserError, match=rf"\.yaml:3: {said}"):
        cases(sweep_of(text))


def test_lengths_without_a_sum_need_t(sweep_of: Write) -> None:
    for lengths, named in (("'uniform:4'", "uniform:4"), ("[null, [3, 4]]", "null")):
        text = f"title: x\ndefaults: {{B: 1, H: 1, K: 8, V: 8, system: gla}}\naxes: {{lengths: {lengths}}}\n"
        with pytest.raises(UserError, match=rf"\.yaml:3: missing T: lengths {named} have no sum of their own"):
            cases(sweep_of(text))


def test_tokens_and_lengths(sweep_of: Write) -> None:
    rest = "defaults: {{H: 1, K: 8, V: 8, system: gla}}\naxes: {{T: 64, lengths: 'uniform:4'}}\n"
    text = f"title: x\ntokens: {{tokens}}\n{rest}"
    (case,) = cases(sweep_of(text.format(tokens=64)))
    assert (case.B, case.lengths) == (1, "uniform:4")
    with pytest.raises(UserError, match="expected B 1, into which sequences are packed, got 2"):
        cases(sweep_of(text.format(tokens=128)))


def test_the_dtype_of_gates_on_the_command_line() -> None:
    assert gates_of("bf16", None) is None
    assert gates_of("bf16", "bf16") is None
    assert gates_of("fp16", "fp32") == "fp32"
    with pytest.raises(UserError, match="--gate-dtype fp16: expected bf16, as q, or fp32"):
        gates_of("bf16", "fp16")
