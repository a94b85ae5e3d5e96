"""The matrix on the page: its words, its marks, and that it stands first."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from glabench.analysis.frame import frame
from glabench.report import asked, text, tuning_matrix
from glabench.report.matrix import STRONG, Cell, Grid, grids
from glabench.report.page import render
from glabench.store import Row
from glabench.tuning_store import Tuning

FORWARD = {"B": 4, "T": 2048, "H": 16, "K": 128, "V": 128, "mode": "fwd"}


def grid(rows: Sequence[Row]) -> Grid:
    (found,) = grids(rows, frame(rows))
    return found


def at(found: Grid, view: str, shape: str, column: str) -> Cell:
    """The cell of a shape, "B4 T2k H16 128", and a system."""
    (body,) = (body for body in found.bodies if body.title == view)
    (cells,) = (cells for words, _, cells in body.rows if " ".join(words) == shape)
    cell = cells[found.columns.index(column)]
    assert cell is not None
    return cell


def median(rows: Sequence[Row], system: str, **wanted: object) -> float:
    (row,) = (r for r in rows if r.case["system"] == system and wanted.items() <= r.case.items())
    assert row.time
    return statistics.median(row.time["samples_ms"])


@pytest.fixture(scope="module")
def board_grid(board_rows: list[Row]) -> Grid:
    return grid(board_rows)


def test_a_cell_has_ratio_time_floor_and_tick(board_rows: list[Row], board_grid: Grid) -> None:
    cell = at(board_grid, "forward", "B4 T2k H16 128", "FlashAttention-2")
    fa2, fla = (median(board_rows, name, **FORWARD) for name in ("fa2", "fla"))
    assert board_grid.baselines[0] == ("fla", "FLA")
    assert cell.first.ratio == text.times(fla / fa2)
    assert cell.value == f"{text.number(fa2)} ms"
    assert (cell.floor, cell.heads, cell.checked) == ("", "16 heads of 64", "✓")
    own = at(board_grid, "forward", "B4 T2k H16 128", "GLA with states")
    assert own.floor.endswith("× floor")
    assert "matches float64 recurrence, checked at B4 T2048 H16 K128 V128" in own.tip
    beside = dict(zip([key for key, _ in board_grid.baselines], own.by, strict=True))
    assert beside["gla:w"].said == "itself"
    ratio = median(board_rows, "fa2", **FORWARD) / median(board_rows, "gla", materialize=True, **FORWARD)
    assert beside["fa2"].ratio == text.times(ratio)


def test_faster_and_slower_are_coloured_by_how_much(board_rows: list[Row]) -> None:
    def heats(factor: float) -> tuple[str, float]:
        rows = [row for row in board_rows if FORWARD.items() <= row.case.items() and row.case["system"] != "gla"]
        rows = [with_time(row, {"fla": 1.0}.get(row.case["system"], 1 / factor)) for row in rows]
        shown = at(grid(rows), "forward", "B4 T2k H16 128", "FlashAttention-2").first
        return shown.said, shown.heat

    assert heats(1.001) == ("tie", 0.0)
    assert [said for said, _ in (heats(1.5), heats(0.5))] == ["faster", "slower"]
    assert 0 < heats(1.5)[1] < heats(2.0)[1] < heats(16.0)[1] == heats(0.01)[1] == STRONG


def with_time(row: Row, ms: float) -> Row:
    return replace(row, time={"clock": "cuda_events_cold_l2", "samples_ms": [ms] * 6})


def test_a_tick_says_of_which_shape_a_row_was_checked(board_rows: list[Row]) -> None:
    shape = {"B": 1, "T": 165, "H": 2, "K": 64, "V": 64}
    rows = [replace(row, accuracy={**(row.accuracy or {}), "shape": shape})
            for row in board_rows if FORWARD.items() <= row.case.items()]  # fmt: skip
    found = grid(rows)
    cell = at(found, "forward", "B4 T2k H16 128", "FLA chunk_gla")
    assert cell.checked == "✓ at B1 T165 H2 K64 V64"
    assert "checked at B1 T165 H2 K64 V64" in cell.tip
    assert "checked at that shape" in found.note
    older = [replace(row, accuracy={**(row.accuracy or {}), "shape": None}) for row in rows]
    assert at(grid(older), "forward", "B4 T2k H16 128", "FLA chunk_gla").checked == "✓ at a shape that was not recorded"
    bare = [replace(row, accuracy=None) for row in rows]
    assert at(grid(bare), "forward", "B4 T2k H16 128", "FLA chunk_gla").checked == ""


def test_failures_are_marked_with_their_reason(board_page: str, board_grid: Grid) -> None:
    marks = {cell.mark: cell.tip for body in board_grid.bodies for _, _, cells in body.rows for cell in cells if cell}
    for mark, reason in (
        ("✗ out of memory", "asked for 48.00 GiB"), ("✗ wrong", "dg: error 1.8 exceeds its tolerance 0.005"),
        ("✗ crashed", "signal 11"), ("– cannot run", "no multiple of 8"), ("✗ timed out", "no result after 60 s"),
    ):  # fmt: skip
        assert reason in marks[mark]
        assert f'<a href="#failed">{mark}</a>' in board_page
    assert board_grid.marked


def test_of_several_schedules_a_cell_says_which_is_shown_and_how_many_failed(board_rows: list[Row]) -> None:
    own = [
        row for row in board_rows if row.case["system"] == "gla" and row.case["chunk"] != 64 and row.case["materialize"]
    ]
    lost = next(row for row in own if row.status == "compile_error")
    alike = [row for row in own if all(row.case[axis] == lost.case[axis] for axis in ("B", "T", "H", "K", "V", "mode"))]
    (best, *_) = sorted(
        (row for row in alike if row.time), key=lambda row: statistics.median((row.time or {})["samples_ms"])
    )
    found = grid(alike)
    (cell,) = (cell for _, _, cells in found.bodies[0].rows for cell in cells if cell)
    sizes = f"C{best.case['chunk']}/{best.case['sub_chunk']}"
    assert cell.schedule == f"{sizes}, best of {len(alike)}, {sum(row.status != 'ok' for row in alike)} ✗"
    assert found.marked
    (single,) = grids([best], frame([best]))
    assert single.schedules == (sizes,)


def test_what_was_checked_and_not_timed_says_so(quick_rows: list[Row]) -> None:
    found = grid(quick_rows)
    body = next(body for body in found.bodies if body.title == "forward")
    cells = [cells[found.columns.index("GLA with states")] for words, _, cells in body.rows if "H4 128×256" in words]
    assert [(cell.mark, cell.checked, cell.failed) for cell in cells if cell] == [
        ("not timed", "✓ at B1 T130 H1 K128 V256", False)
    ]


def test_training_steps_show_tokens_a_second(board_rows: list[Row]) -> None:
    row = next(row for row in board_rows if row.case["system"] == "fla")
    case = row.case | {"system": "gla_lm", "mode": "train", "model": "1.3b", "gate_strength": None}
    rows = [with_time(replace(row, case=case | {"system": name}, case_id=name), ms)
            for name, ms in (("gla_lm", 100.0), ("transformer_lm", 150.0))]  # fmt: skip
    found = grid(rows)
    assert found.baselines[0] == ("transformer_lm", "Transformer++")
    ((_, _, (ours, theirs)),) = found.bodies[0].rows
    assert ours is not None
    assert theirs is not None
    assert ours.first.ratio == "1.50×"
    assert ours.value == f"{text.rate(row.case['B'] * row.case['T'] / 0.1)} tok/s"


class First(HTMLParser):
    """The ids of elements up to the matrix, and whether anything of it is hidden."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.before: list[str] = []
        self.seen = False
        self.hidden = 0
        self.rows = 0
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        if known.get("id") and not self.seen:
            self.before.append(str(known["id"]))
        self.seen = self.seen or known.get("id") == "matrix0"
        if tag in ("tbody", "tr", "td") and "data-view" in known:
            self.rows += 1
            self.hidden += "hidden" in known


def test_the_matrix_stands_first_and_needs_no_script(board_page: str) -> None:
    found = First(board_page)
    assert found.before == ["looks", "top", "answer", "matrix0"]
    assert found.rows == 6
    assert found.hidden == 0
    head = board_page.split('id="answer"')[0]
    assert "<h1>The board, Chunk size on NVIDIA H200</h1>" in head
    for one in asked.asked(["board", "chunk_size"]):
        assert f'<p class="question">{one.question}</p>' in head


def test_a_sweep_without_a_file_here_goes_by_its_name() -> None:
    assert asked.asked(["nobody-has-this"]) == [asked.Asked("nobody-has-this", "")]


def test_a_broken_sweep_file_keeps_no_page_from_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sweeps").mkdir()
    (tmp_path / "sweeps" / "mine.yaml").write_text("title: [")
    monkeypatch.chdir(tmp_path)
    assert asked.asked(["mine"]) == [asked.Asked("mine", "")]


def test_what_no_row_says_is_no_cell(board_rows: list[Row]) -> None:
    rows = [row for row in board_rows if row.case["system"] == "gla" and row.time][:1]
    found = grid(rows)
    assert [key for key, _ in found.baselines] == ["fastest"]
    html = render(rows, frame(rows), [])
    assert html.count("data-by=") == sum(
        c is not None for body in found.bodies for _, _, cells in body.rows for c in cells
    )


def test_tunings_have_a_matrix_of_what_they_brought(make_tuning: Callable[..., Tuning]) -> None:
    both = [make_tuning(direction) for direction in ("fwd", "bwd")]
    lost = replace(make_tuning("fwd", T=2048), winner=None, finalists=())
    (found,) = tuning_matrix.grids([*both, lost])
    assert found.columns == ("forward", "backward")
    (body,) = found.bodies
    failed, brought = (cells for _, _, cells in body.rows)
    assert failed[0] is not None
    assert (failed[0].mark, failed[0].failed, failed[1]) == ("✗ no plan", True, None)
    for tuning, cell in zip(both, brought, strict=True):
        assert cell is not None
        assert tuning.winner is not None
        ms = statistics.median(tuning.finalists[tuning.winner].samples_ms)
        old = statistics.median(tuning.finalists[-1].samples_ms)  # the plan in use
        assert (cell.value, cell.first.ratio) == (f"{text.number(ms)} ms", text.times(old / ms))
