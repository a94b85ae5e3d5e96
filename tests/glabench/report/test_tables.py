"""Tables: the worst of several is shown, and what is wrong is flagged."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import pytest

from glabench.analysis.frame import frame
from glabench.report import tables
from glabench.report.environments import environments, mixed
from glabench.spec.case import Case
from glabench.store import Row


def row(system: str = "gla", status: str = "ok", **given: Any) -> Row:
    of_row = {key: given.pop(key) for key in list(given) if key in Row.__dataclass_fields__}
    at: dict[str, Any] = {"B": 1, "T": 1024, "H": 4, "K": 128, "V": 256, "mode": "fwd"}
    case = Case(system, **{**at, **given})
    return Row(case.id, "test", asdict(case), status, **of_row)


def cells(table: tables.Table, line: int = 0) -> dict[str, tables.Cell]:
    return dict(zip(table.columns, table.rows[line], strict=True))


def gated(**outputs: dict[str, Any]) -> dict[str, Any]:
    return {"passed": True, "where": "cuda", "outputs": outputs}


def test_accuracy_shows_the_case_nearest_to_its_tolerance() -> None:
    near, far = {"error": 3e-3, "tolerance": 4e-3}, {"error": 1e-3, "tolerance": 4e-3}
    table = tables.accuracy([row(accuracy=gated(o=far)), row(T=2048, accuracy=gated(o=near, dq=far))])
    assert len(table.rows) == 1
    assert cells(table)["passed"].text == "2 of 2"
    assert cells(table)["o"].text == "3.0e-3 of 4.0e-3"
    assert cells(table)["dq"].text == "1.0e-3 of 4.0e-3"


def test_accuracy_says_when_it_was_one_block() -> None:
    output = {"error": 1e-3, "tolerance": 4e-3, "block_error": 9e-3, "block_tolerance": 8e-3}
    cell = cells(tables.accuracy([row(status="wrong", accuracy={**gated(dg=output), "passed": False})]))["dg"]
    assert (cell.text, cell.flag) == ("9.0e-3 of 8.0e-3 in a block", "bad")


def test_accuracy_that_is_not_a_number_is_said_and_flagged() -> None:
    cell = cells(tables.accuracy([row(status="wrong", accuracy=gated(o={"error": math.nan, "tolerance": 4e-3}))]))["o"]
    assert (cell.text, cell.flag) == ("not finite of 4.0e-3", "bad")


def test_kernels_put_gpus_side_by_side_and_keep_the_heaviest() -> None:
    def fact(arch: str, spilled: int, registers: int = 100) -> dict[str, Any]:
        return {"kernel": "k", "arch": arch, "registers": registers, "spill_bytes": spilled, "shared_bytes": 2048,
                "num_warps": 4, "tensor_core": "mma"}  # fmt: skip

    rows = [
        row(chunk=64, compiled=[fact("sm_80", 0), fact("sm_90", 8)]),
        row(chunk=64, T=9, compiled=[fact("sm_90", 96)]),
    ]
    table = tables.kernels(rows)
    assert table.groups == (("", 4), ("H100 and H200 (sm_90)", 4), ("A100 (sm_80)", 4))
    (line,) = table.rows
    assert [cell.text for cell in line[4:]] == ["100", "96", "2.00", "mma", "100", "0", "2.00", "mma"]
    assert line[5].flag == "bad"
    assert line[9].flag == ""


def test_a_kernel_that_did_not_compile_says_so() -> None:
    broken = {"kernel": "k", "arch": "sm_80", "error": "out of shared memory"}
    (line,) = tables.kernels([row(compiled=[broken])]).rows
    assert (line[4].text, line[4].flag) == ("out of shared memory", "bad")


@pytest.mark.parametrize(("arch", "number"), [("sm_90", 90), ("sm_90a", 90), ("sm_100f", 100), ("gfx", 0)])
def test_any_arch_has_a_place(arch: str, number: int) -> None:
    facts = [{"kernel": "k", "arch": name} for name in (arch, "sm_95")]
    ordered = [name for name, _ in tables.archs([row(compiled=facts)])]
    assert ordered == ([arch, "sm_95"] if number > 95 else ["sm_95", arch])


def test_floors_are_of_gated_linear_attention_and_told_apart_by_its_gates() -> None:
    def asked(system: str, nbytes: int, **given: Any) -> Row:
        return row(system, compiled=[{"kernel": "k", "arch": "sm_90"}], work={"hbm_bytes": nbytes << 20}, **given)

    rows = [asked("gla", 5), asked("gla", 4, gate_strength=None), asked("gla", 6, value_gate=True), asked("fla", 5)]
    rows += [asked("mamba2_ssd", 2), asked("gla", 5, gate_strength=8.0)]
    table = tables.floors(rows)
    found = {cells(table, i)["gates"].text: cells(table, i)["compulsory, MiB"].value for i in range(len(table.rows))}
    assert found == {"keys": 5.0, "none": 4.0, "keys and values": 6.0}


def test_gates_are_in_the_order_of_numbers_and_infinity_sorts() -> None:
    rows = [row(gate_strength=x, accuracy=gated(o={"error": 1e-3, "tolerance": 4e-3})) for x in (16.0, 0.06, 4.0)]
    rows.append(row("helion", "wrong", accuracy=gated(o={"error": math.nan, "tolerance": 4e-3})))
    table = tables.accuracy(rows)
    assert [cells(table, i)["gate"].text for i in range(3)] == ["0.06", "4", "16"]
    assert cells(table, 3)["o"].sorted_by == "Infinity"


def test_a_row_says_which_implementation_ran_and_which_heads() -> None:
    rows = [row("fa2", gate_strength=None, attn_heads=16, attn_dim=64, implementation="SDPA flash")]
    line = cells(tables.measurements(frame(rows)))
    assert (line["system"].text, line["implementation"].text) == ("FlashAttention-2, 16 heads of 64", "SDPA flash")


def test_failures_with_one_reason_share_a_line_and_wrong_comes_first() -> None:
    rows = [row("fla", "oom", reason="too big"), row("fla", "oom", T=2048, reason="too big"), row("gla", "wrong")]
    found = tables.failures(rows, frame(rows))
    assert [(f.status, len(f.questions)) for f in found] == [("wrong result", 1), ("out of memory", 2)]
    assert found[0].reason == "no reason was recorded"
    assert found[1].questions[1].startswith("B1 T2k H4 128×256, bf16")


def test_interpreted_rows_are_not_timed_in_words() -> None:
    checked = row(accuracy={"passed": True, "where": "interpreter", "outputs": {}}, time={"samples_ms": [5.0, 6.0]})
    assert cells(tables.measurements(frame([checked])))["time, ms"].text == "not timed"


def test_environments_of_one_device_that_differ_are_told() -> None:
    def at(**facts: Any) -> Row:
        return row(T=facts.pop("T"), environment={"device": "NVIDIA H200", "commit": "a" * 40, **facts})

    same = environments([at(T=1), at(T=2)])
    assert [e.rows for e in same] == [2]
    assert mixed(same) == ""
    differ = environments([at(T=1), at(T=2, commit="b" * 40), at(T=3, dirty=True)])
    assert len(differ) == 3
    assert "NVIDIA H200 come from different commits" in mixed(differ)
    assert any("uncommitted" in warning for e in differ for warning in e.warnings)


def test_rows_of_several_gpus_of_a_model_are_of_one_place_and_it_is_said() -> None:
    def at(T: int, gpu: str | None) -> Row:
        return row(T=T, environment={"device": "NVIDIA H200", "gpu_uuid": gpu})

    (several,) = environments([at(1, "GPU-a"), at(2, "GPU-b"), at(3, None)])
    assert ("GPUs", "2 of this model, not quite as fast as each other") in several.facts
    (one,) = environments([at(1, "GPU-a"), at(2, "GPU-a"), at(3, None)])
    assert "GPUs" not in dict(one.facts)
