"""Packed sequences and the dtype of gates in tables and figures."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from glabench.analysis import labels
from glabench.analysis.compare import answers, speedups, winners
from glabench.analysis.frame import frame
from glabench.nested import fault
from glabench.report import export, tables, text
from glabench.report.figures import sections
from glabench.report.model import Figure
from glabench.report.parts import conditions
from glabench.run.progress import describe
from glabench.spec.case import Case
from glabench.store import Row, from_json, to_json

AT: dict[str, Any] = {"B": 1, "T": 8192, "H": 96, "K": 128, "V": 128, "mode": "fwd"}
MIXED = "1300,547,2048,963,271,3063"
WAYS = (None, "uniform:8", MIXED, "one-long:9", "uniform:1024")
GPU = {"device": "NVIDIA H200", "kind": "cuda", "copy_bytes_per_s": 4e12}


def row(ms: float, system: str = "gla", **given: Any) -> Row:
    case = Case(system, **{**AT, **given})
    time = {"clock": "cuda_events_cold_l2", "samples_ms": [ms, ms * 1.01, ms * 0.99] * 4}
    return Row(case.id, "packed", case.to_dict(), "ok", time=time, environment=GPU, started="2026-11-26T05:00:00+00:00")


def packed_rows() -> list[Row]:
    rows = [row(1.0 + i, lengths=way) for i, way in enumerate(WAYS)]
    rows += [row(3.0 + i, "fla", lengths=way) for i, way in enumerate(WAYS)]
    return rows + [row(2.0, "fa2", lengths=way, gate_strength=None) for way in (None, "uniform:8")]


def figure(name: str, rows: list[Row]) -> Figure:
    (found,) = next(section.figures for section in sections(frame(rows)) if section.name == name)
    return found


def test_tokens_a_second_are_drawn_over_the_ways_to_pack() -> None:
    found = figure("packed", packed_rows())
    (panel,) = found.panels
    assert panel.value_label == "tokens/s"
    assert panel.categories == (
        "one sequence",
        "packed 6 from 271 to 3063\n55% padding if padded",
        "packed uniform:8\n0% padding if padded",
        "packed one-long:9\n78% padding if padded",
        "packed uniform:1024\n0% padding if padded",
    )
    ours = next(one for one in panel.series if one.key == "gla")
    assert [p.at for p in ours.points] == [0, 1, 2, 3, 4]
    assert [p.value for p in ours.points] == pytest.approx([8192e3 / ms for ms in (1.0, 3.0, 2.0, 4.0, 5.0)])
    assert "padded to the longest 78% would be padding" in ours.points[3].tip
    assert "padding" not in ours.points[0].tip
    attention = next(one for one in panel.series if one.key == "fa2")
    assert [p.at for p in attention.points] == [0, 2]


def test_without_packed_sequences_there_is_no_such_figure_and_no_such_column() -> None:
    rows = [row(1.0)]
    section = next(one for one in sections(frame(rows)) if one.name == "packed")
    assert section.figures == ()
    assert "glabench sweep packed" in section.missing
    assert "lengths" not in tables.measurements(frame(rows)).columns


def test_the_table_has_the_share_of_padding() -> None:
    table = tables.measurements(frame(packed_rows()))
    lengths, padding = (table.columns.index(name) for name in ("lengths", "padding %"))
    found = {line[lengths].text: line[padding].value for line in table.rows}
    assert found[MIXED] == pytest.approx(100 * (1 - 8192 / (6 * 3063)))
    assert found["uniform:8"] == 0
    assert found["–"] is None


def test_ways_to_pack_are_different_questions() -> None:
    best = answers(frame(packed_rows()))
    pairs = speedups(best, "fla")
    assert len(pairs[pairs["variant"] == "gla"]) == len(WAYS)
    assert sorted(pairs.loc[pairs["variant"] == "gla", "speedup"].round(6)) == sorted(
        round((3.0 + i) / (1.0 + i), 6) for i in range(len(WAYS))
    )
    assert {one.question["lengths"] for one in winners(best)} == {way or "" for way in WAYS}


def test_packed_rows_are_in_the_table_for_spreadsheets(tmp_path: Any) -> None:
    (path,) = export.csv(packed_rows(), tmp_path / "table.csv")
    head, *lines = path.read_text().splitlines()
    assert {"lengths", "sequences", "padding"} <= set(head.split(","))
    assert any(f'"{MIXED}"' in line for line in lines)


def test_rows_are_read_with_what_they_pack() -> None:
    case = Case("gla", **AT, lengths=MIXED, gate_dtype="fp32").to_dict()
    assert fault({"case": case}) is None
    assert fault({"case": case | {"lengths": 5}}) is not None
    assert fault({"case": case | {"gate_dtype": 5}}) is not None


@pytest.mark.parametrize(
    ("lengths", "said"),
    [("3,4", "case: lengths: expected a sum of T 8192, got 7"), ("eight", "case: expected null, uniform:N")],
)
def test_a_row_that_packs_what_it_has_not_is_none(lengths: str, said: str) -> None:
    sound = row(1.0, lengths="uniform:8")
    assert from_json(to_json(sound)).case == sound.case
    with pytest.raises(ValueError, match=said):
        from_json(to_json(replace(sound, case=sound.case | {"lengths": lengths})))


def test_shapes_and_conditions_in_words() -> None:
    (line,) = frame([row(1.0, lengths=MIXED, gate_dtype="fp32")]).to_dict("records")
    assert text.shape(line) == "B1 T8k H96 128 packed 6 from 271 to 3063"
    assert conditions(line) == "bf16, gate strength 1 in fp32"
    assert (line["sequences"], line["lengths"]) == (6, MIXED)
    (plain,) = frame([row(1.0)]).to_dict("records")
    assert text.shape(plain) == "B1 T8k H96 128"
    assert conditions(plain) == "bf16"
    assert math.isnan(plain["padding"])
    case = Case("gla", **AT, lengths="uniform:8", gate_dtype="fp32", value_gate=True)
    assert describe(case) == "gla  B1 T8192 H96 K128 V128 bf16 fwd value gate gates in fp32 packed uniform:8"
    assert "packed" not in describe(replace(case, lengths=None))


@pytest.mark.parametrize(
    ("case", "key", "strength"),
    [
        ({}, "none", -1.0),
        ({"gate_strength": 1.0}, "1", 1.0),
        ({"gate_strength": 0.5, "value_gate": True}, "0.5 + value side", 0.5),
        ({"gate_strength": 8.0, "gate_dtype": "fp32"}, "8 in fp32", 8.0),
        ({"gate_strength": 1e4, "value_gate": True, "gate_dtype": "fp32"}, "10000 + value side in fp32", 1e4),
        ({"gate_strength": None, "value_gate": True, "gate_dtype": "fp32"}, "none + value side in fp32", -1.0),
    ],
)
def test_the_key_of_gates(case: dict[str, Any], key: str, strength: float) -> None:
    assert labels.gate(case) == key
    assert labels.strength(key) == strength


def test_dtypes_of_gates_are_different_questions_that_attention_answers_alike() -> None:
    rows = [row(1.0), row(1.5, gate_dtype="fp32"), row(2.0, "fa2", gate_strength=None)]
    pairs = speedups(answers(frame(rows)), "fa2")
    assert {key: round(ratio, 6) for key, ratio in zip(pairs["gate"], pairs["speedup"], strict=True)} == {
        "1": 2.0, "1 in fp32": round(2 / 1.5, 6),
    }  # fmt: skip


def test_a_workload_in_words() -> None:
    work = {
        "B": 1,
        "T": 64,
        "H": 2,
        "K": 8,
        "V": 8,
        "dtype": "bf16",
        "gated": True,
        "direction": "fwd",
        "schedule": None,
    }
    assert text.workload(work) == "B1 T64 H2 8, bf16, forward"
    assert text.workload(work | {"gate_dtype": "fp32"}) == "B1 T64 H2 8, bf16, gates in fp32, forward"
    assert text.workload(work | {"gated": False}) == "B1 T64 H2 8, bf16, no gates, forward"
