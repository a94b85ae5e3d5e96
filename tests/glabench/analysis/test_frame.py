"""Columns of the table, each against a number worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from glabench.analysis.frame import frame

INTERPRETED: dict[str, Any] = {"passed": True, "where": "interpreter", "outputs": {}}


def only(row: Any) -> dict[Any, Any]:
    (line,) = frame([row]).to_dict("records")
    return line


def test_time_and_what_follows_from_it(make_row: Any) -> None:
    # 8 * 2048 tokens in 2 ms; floor: 4e9 bytes at 4e12 bytes/s = 1 ms.
    work = {"flops": 10**12, "hbm_bytes": 4 * 10**9}
    line = only(make_row("gla", [2.0, 1.0, 3.0], B=8, T=2048, work=work, chunk=64, sub_chunk=16, materialize=False))
    assert line["ms"] == 2.0
    assert (line["ms_lo"], line["ms_hi"], line["interval"]) == (1.0, 3.0, "range")
    assert line["tokens_per_s"] == pytest.approx(8 * 2048 / 2e-3)
    assert line["floor_ms"] == pytest.approx(1.0)
    assert line["over_floor"] == pytest.approx(2.0)
    assert line["tflop_per_s"] == pytest.approx(500.0)
    assert (line["variant"], line["label"]) == ("gla:wo", "GLA without states C64/16")


def test_a_step_makes_one_token_a_sequence(make_row: Any) -> None:
    line = only(make_row("gla_recurrent", [0.5], B=64, T=2048, mode="step"))
    assert line["tokens_per_s"] == pytest.approx(64 / 0.5e-3)


def test_memory_is_in_mib(make_row: Any) -> None:
    memory = {"peak_bytes": 3 * 2**20, "inputs_bytes": 2**20, "beyond_inputs_bytes": 2 * 2**20}
    line = only(make_row("fla", [1.0], memory=memory))
    assert (line["peak_mib"], line["beyond_mib"]) == (3.0, 2.0)


def test_what_a_call_costs_beside_its_kernels(make_row: Any) -> None:
    eager = {"host_ms": [0.3, 0.2, 0.4], "wall_ms": [3.0, 2.0, 2.5]}
    row = make_row("gla", [2.0, 2.0], memory={"kept_bytes": 3 * 2**19})
    line = only(replace(row, time=row.time | {"eager": eager}))
    assert (line["host_ms"], line["wall_ms"], line["wall_ms_lo"], line["wall_ms_hi"]) == (0.3, 2.5, 2.0, 3.0)
    assert line["wall_over"] == pytest.approx(1.25)
    assert line["kept_mib"] == 1.5
    wrong = only(replace(row, status="wrong", time=row.time | {"eager": eager}))
    assert all(math.isnan(wrong[name]) for name in ("host_ms", "wall_ms", "wall_over", "kept_mib"))


def test_an_older_row_says_how_long_a_call_is_queued_at_least_and_no_more(make_row: Any) -> None:
    row = make_row("gla", [2.0, 2.0], memory={"peak_bytes": 1}, schema=4)
    line = only(replace(row, time=row.time | {"host_ms": 0.25}))
    assert line["host_ms"] == 0.25
    assert all(math.isnan(line[name]) for name in ("wall_ms", "wall_over", "kept_mib"))


def test_no_copy_bandwidth_no_floor(make_row: Any) -> None:
    row = make_row("gla", [1.0], work={"flops": 1, "hbm_bytes": 8}, environment={"device": "CPU", "kind": "cpu"})
    assert math.isnan(only(row)["floor_ms"])


def test_interpreter_timings_are_never_read(make_row: Any) -> None:
    line = only(make_row("gla", [123.0, 124.0], accuracy=INTERPRETED))
    assert math.isnan(line["ms"])
    assert line["samples"] == 0
    assert math.isnan(line["tokens_per_s"])


@pytest.mark.parametrize("status", ["wrong", "oom", "timeout", "crashed", "compile_error", "unsupported"])
def test_a_row_that_is_not_ok_has_no_time_and_no_memory(make_row: Any, status: str) -> None:
    memory = {"peak_bytes": 2**20, "beyond_inputs_bytes": 2**20}
    line = only(make_row("gla", [1.0, 1.0], status=status, memory=memory))
    assert math.isnan(line["ms"])
    assert math.isnan(line["beyond_mib"])
    assert line["status"] == status


def test_error_share_is_the_worst_output_and_not_a_number_is_infinite(make_row: Any) -> None:
    outputs = {"o": {"error": 1e-3, "tolerance": 4e-3}, "dg": {"error": 3e-3, "tolerance": 4e-3}}
    line = only(make_row("gla", [1.0], accuracy={"passed": True, "where": "cuda", "outputs": outputs}))
    assert line["error_share"] == pytest.approx(0.75)
    outputs["dg"]["error"] = math.nan
    line = only(make_row("gla", status="wrong", accuracy={"passed": False, "where": "cuda", "outputs": outputs}))
    assert math.isinf(line["error_share"])
    del outputs["o"]["tolerance"]  # what has none hides no other
    line = only(make_row("gla", status="wrong", accuracy={"passed": False, "where": "cuda", "outputs": outputs}))
    assert math.isinf(line["error_share"])


def test_a_bare_row_gives_a_line(make_row: Any) -> None:
    line = only(make_row("gla", environment={}, status="crashed"))
    assert line["device"] == "unknown device"
    assert math.isnan(line["ms"])


def test_a_system_nobody_knows_goes_by_its_name(make_row: Any) -> None:
    line = only(make_row("stranger", [1.0]))
    assert (line["label"], line["family"]) == ("stranger", "gla")


def test_no_rows_give_an_empty_table() -> None:
    table = frame([])
    assert len(table) == 0
    assert "ms" in table.columns


def test_an_error_in_one_block_counts_like_one_in_the_whole(make_row: Any) -> None:
    outputs = {"o": {"error": 1e-3, "tolerance": 4e-3, "block_error": 6e-3, "block_tolerance": 8e-3}}
    line = only(make_row("gla", [1.0], accuracy={"passed": True, "where": "cuda", "outputs": outputs}))
    assert line["error_share"] == pytest.approx(0.75)


def test_trademarks_are_no_part_of_a_name(make_row: Any) -> None:
    row = make_row("sdpa", [1.0], environment={"device": "Intel(R) Core(TM) i7", "kind": "cpu"})
    assert only(row)["device"] == "Intel Core i7"
