"""The matrix of schedules, and the answer in short of sweeps about schedules, lengths, widths and gates."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from glabench.analysis.frame import frame
from glabench.report.figures import sections
from glabench.report.matrix import Cell
from glabench.report.page import render
from glabench.report.schedule_matrix import ScheduleGrid, grids
from glabench.report.short import short
from glabench.spec.case import Case
from glabench.spec.expand import expand
from glabench.spec.sweep import load
from glabench.store import Row

SWEEPS = Path(__file__).parents[3] / "sweeps"
OTHERS = ("sequence_length", "head_dim", "value_gates", "decode")  # what is asked there is not which schedule
DEVICE = "NVIDIA H100 80GB HBM3"


def made_up(name: str, ms: Callable[[Case], float]) -> list[Row]:
    """A row for each case of a sweep on a GPU, with the median that ``ms`` says, and 100 MiB for each ms."""
    environment = {"device": DEVICE, "kind": "cuda"}
    rows = []
    for case in expand(load(SWEEPS / f"{name}.yaml"), "cuda").cases:
        time = {"clock": "cuda_events_cold_l2", "samples_ms": [ms(case)] * 9}
        memory = {"peak_bytes": 2**30, "inputs_bytes": 2**20, "beyond_inputs_bytes": int(ms(case) * 100 * 2**20)}
        rows.append(Row(case.id, name, case.to_dict(), "ok", time=time, memory=memory, environment=environment))
    return rows


def best_at(chunk: int, kept: bool) -> Callable[[Case], float]:
    """Times of which the chunk and the states are the fastest, farther ones slower; sub-chunks over 32 cost 10 %."""

    def ms(case: Case) -> float:
        if case.system != "gla":
            return 10.0
        if case.chunk is None or case.sub_chunk is None:
            return 0.5
        away = max(case.chunk, chunk) / min(case.chunk, chunk)
        return away * (1.0 if case.materialize is kept else 1.5) * (1.1 if case.sub_chunk > 32 else 1.0)

    return ms


def with_times(row: Row, factor: float) -> Row:
    samples = [ms * factor for ms in (row.time or {})["samples_ms"]]
    return replace(row, time={**(row.time or {}), "samples_ms": samples})


def grid(rows: Sequence[Row]) -> ScheduleGrid:
    (found,) = grids(rows, frame(rows))
    return found


def line(found: ScheduleGrid, words: str, body: str = "") -> list[Cell | None]:
    (cells,) = (cells for title, lines in found.bodies for shape, _, cells in lines
                if title == body and " ".join(shape) == words)  # fmt: skip
    return [cell for cell, _ in cells]


def leads(cells: Sequence[Cell | None]) -> list[str]:
    return [cell.lead if cell else "none" for cell in cells]


def told(rows: Sequence[Row]) -> list[str]:
    return short(frame(rows), DEVICE)


def test_chunks_go_down_and_modes_with_and_without_states_across() -> None:
    rows = made_up("chunk_size", best_at(128, kept=False))
    found = grid(rows)
    assert found.corner == "B32 T2k H4 128×256, bf16"
    assert found.across == tuple((mode, ("with states", "without states"))
                                 for mode in ("forward + backward", "backward", "forward"))  # fmt: skip
    ((title, lines),) = found.bodies
    assert (title, [" ".join(words) for words, *_ in lines]) == (
        "", ["chunk 16", "chunk 32", "chunk 64", "chunk 128", "chunk 256", "default"],
    )  # fmt: skip
    assert leads(line(found, "chunk 128")) == ["best", "fastest"] * 3
    (slow, slower, *_) = line(found, "chunk 256")
    assert slow is not None
    assert slower is not None
    assert (slower.first.ratio, slow.first.ratio) == ("0.50×", "0.33×")
    assert slow.floor == "330 MiB"
    assert [span for _, span in lines[-1][2]] == [2, 2, 2]
    assert [cell.first.ratio for cell, _ in lines[-1][2] if cell] == ["2.20×"] * 3
    assert told(rows) == ["The fastest chunk, forward and forward + backward with states and without states: 128."]


def test_several_shapes_and_gates_are_named_in_lines_and_titles() -> None:
    rows = made_up("chunk_size", best_at(64, kept=True))
    own = [row for row in rows if row.case["system"] == "gla"]
    more = [replace(row, case_id=f"{row.case_id} 8", case=row.case | {"gate_strength": 8.0}) for row in own]
    found = grid([*rows, *more])
    assert found.corner == "shape, bf16"
    ((_, lines),) = found.bodies
    named = [(words, held) for words, held, _ in lines]
    assert named[0] == (("B32 T2k", "H4 128×256"), "gate strength 1, chunk 16, sub-chunk 16")
    assert named[5][1] == "gate strength 1, default, its own choice"
    assert len(set(named)) == len(named) == 12
    rows = made_up("sub_chunk", best_at(64, kept=True))
    longer = [replace(row, case_id=f"{row.case_id} long", case=row.case | {"T": 4096}) for row in rows]
    slow = [with_times(row, 1.1) if row.case["sub_chunk"] == 32 else row for row in longer]
    assert told([*rows, *slow])[0].endswith(": 16 at chunk 32, 64, 128 and 256.")  # what costs no time at any shape
    assert [title for title, _ in grid([*rows, *longer]).bodies] == [
        "forward + backward, B32 T2k H4 128×256", "forward + backward, B32 T4k H4 128×256",
        "forward, B32 T2k H4 128×256", "forward, B32 T4k H4 128×256",
    ]  # fmt: skip


def test_the_answer_parts_modes_and_states_that_differ() -> None:
    rows = made_up("chunk_size", lambda c: best_at(32 if c.mode == "fwd" and c.materialize else 64, c.mode == "bwd")(c))
    assert told(rows) == ["The fastest chunk, forward with states: 32; forward without states, "
                          "forward + backward with states and without states: 64."]  # fmt: skip


def test_sub_chunks_go_across_and_a_mode_has_lines_of_its_own() -> None:
    rows = made_up("sub_chunk", best_at(64, kept=True))
    lost = next(row for row in rows if row.case["sub_chunk"] == 256 and row.case["materialize"])
    rows[rows.index(lost)] = replace(lost, status="compile_error", reason="needs 294912 bytes", time=None)
    found = grid(rows)
    sizes = ("16", "32", "64", "128", "256")
    assert found.across == (("with states, sub-chunk", sizes), ("without states, sub-chunk", sizes))
    assert [title for title, _ in found.bodies] == ["forward + backward", "forward"]
    at_64 = line(found, "chunk 64", "forward")
    assert leads(at_64) == [
        "tied first",
        "tied first",
        "",
        "none",
        "none",
        "tied best",
        "tied best",
        "",
        "none",
        "none",
    ]
    marks = [cell.mark for cell in line(found, "chunk 256", "forward") if cell and cell.mark]
    assert (marks, found.marked) == (["✗ not compiled"], True)
    assert told(rows) == [
        "The largest sub-chunk that costs no time, forward and forward + backward with states and without states: "
        "32 at chunk 32, 64, 128 and 256."
    ]


def test_shapes_go_down_where_states_are_all_that_varies() -> None:
    rows = made_up("materialize", lambda c: 8.0 if c.system == "fa2" else 2.0 if c.materialize is (c.T > 4096) else 1.0)
    found = grid(rows)
    assert found.corner == "shape, bf16, C64/64"
    ((_, lines),) = found.bodies
    assert len(lines) == 7
    assert leads(line(found, "B64 T1k H4 128×256")) == ["fastest", ""] * 3
    assert leads(line(found, "B8 T8k H4 128×256")) == ["", "fastest"] * 3
    assert told(rows) == [
        "States pay forward at 3 of 7 shapes, 0.50× to 2.00× as fast as without; forward + backward at 3 of 7 shapes, "
        "0.50× to 2.00× as fast as without. They take 0.50× to 2.00× the memory beyond the inputs."
    ]


def page_of_schedules(made_once: Callable[[str, Callable[[], str]], str]) -> str:
    """Of one mode, beside FlashAttention-2. The tests in a browser look at it, too."""
    rows = [row for row in made_up("chunk_size", best_at(64, kept=True)) if row.case["mode"] == "fwdbwd"]
    rows = [row for row in rows if row.case["system"] in ("gla", "fa2")]
    return made_once("schedules page", lambda: render(rows, frame(rows), sections(frame(rows))))


def test_a_page_of_schedules_begins_with_them_and_their_figures(
    made_once: Callable[[str, Callable[[], str]], str],
) -> None:
    page = page_of_schedules(made_once)
    order = ["The fastest chunk, ", "Schedules of GLA (ours)", "Systems, each at its fastest schedule",
             'id="matrix0"', 'id="schedule"', 'id="chart"']  # fmt: skip
    places = [page.index(part) for part in order]
    assert places == sorted(places)
    assert page.count('id="schedule"') == 1
    assert '<option value="fa2">FlashAttention-2</option>' in page.split('data-pick="baseline"')[1][:80]
    alone = made_up("sub_chunk", best_at(64, kept=True))
    assert 'id="matrix0"' not in render(alone, frame(alone), [])  # one system: its schedules are all there is


def test_other_sweeps_have_no_matrix_of_schedules() -> None:
    for name in (*OTHERS, "gate_strength"):
        rows = made_up(name, best_at(64, kept=True))
        assert grids(rows, frame(rows)) == []


@pytest.mark.parametrize("name", ["chunk_size", "sub_chunk", "materialize", *OTHERS])
def test_a_page_whose_every_case_failed_has_no_answer(name: str) -> None:
    rows = [replace(row, status="oom", reason="no memory", time=None) for row in made_up(name, lambda case: 1.0)]
    assert told(rows) == []


def test_the_answer_of_gates_on_the_value_side_is_how_many_times_as_long_they_take() -> None:
    rows = made_up("value_gates", lambda c: 6.0 if c.system == "fa2" else (3.0 if c.value_gate else 2.0))
    assert told(rows) == [
        "Time beside that of GLA, default schedule, gates on the key side: GLA, default schedule, gates on both sides, "
        "forward 1.50×, forward + backward 1.50×; FlashAttention-2, forward 3.00×, forward + backward 3.00×."
    ]


def test_the_answer_of_decoding_is_what_a_token_costs_by_its_context() -> None:
    rows = made_up("decode", lambda c: 0.01 if c.attn_heads is None else c.T / 2**16)
    assert told(rows) == [
        "A token after 1k and after 64k, batch 1: GLA recurrent 10.0 µs and 10.0 µs, FlashAttention-2 15.6 µs and "
        "1.00 ms; batch 64: GLA recurrent 10.0 µs and 10.0 µs, FlashAttention-2 15.6 µs and 1.00 ms."
    ]


def test_the_answer_of_head_dimensions_is_how_many_times_as_long_wide_ones_take() -> None:
    rows = made_up("head_dim", lambda c: 1.0 if c.attn_heads else c.K / 32)
    assert told(rows)[0].startswith(
        "Time beside that of heads of 32, forward + backward: GLA, default schedule 16.0× at 512, FLA chunk_gla 16.0×"
    )
    assert "FlashAttention-2 1.00× at 512" in told(rows)[0]


def test_the_answer_of_lengths_is_where_ours_overtakes_attention() -> None:
    rows = made_up(
        "sequence_length", lambda c: c.T / 3000 if c.attn_heads else 1.0 + random.Random(c.id).random() / 1e3
    )
    (fa2, cudnn) = told(rows)
    assert "beside FlashAttention-2, forward: faster from T = 4k on" in fa2
    assert "beside cuDNN attention" in cudnn
    assert told(made_up("board", lambda c: 1.0)) == []  # lengths are not all that varies there
