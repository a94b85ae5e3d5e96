"""The page: its numbers are those of the samples, it stands alone, and nothing from a row becomes markup."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest

from glabench.analysis.frame import frame
from glabench.report import markdown, text
from glabench.report.figures import sections
from glabench.report.page import render
from glabench.store import Row


def page(rows: Sequence[Row]) -> str:
    table = frame(rows)
    return render(rows, table, sections(table))


@pytest.fixture(scope="module")
def quick_page(quick_rows: list[Row]) -> str:
    return page(quick_rows)


def test_the_page_loads_nothing_and_is_well_formed(board_page: str, quick_page: str, outline: Any) -> None:
    for html in (board_page, quick_page):
        found = outline(html)
        assert found.loads == []
        assert found.open == []
        assert found.scripts == 1
        assert len(found.ids) == len(set(found.ids))
        assert not re.search(r"url\((?!#)|@import", html)


def test_references_inside_figures_lead_somewhere(board_page: str, outline: Any) -> None:
    ids = set(outline(board_page).ids)
    used = set(re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', board_page))
    assert used
    assert {a or b for a, b in used} <= ids


def test_times_in_the_table_and_on_hover_are_medians_of_the_samples(board_page: str, board_rows: list[Row]) -> None:
    timed = [row for row in board_rows if row.time]
    for row in (timed[0], timed[17], timed[-1]):
        assert row.time
        median = statistics.median(row.time["samples_ms"])
        assert f'data-v="{median:.6g}">{text.number(median)}' in board_page
        assert f"{text.number(median)} ms (95 %: " in board_page


def test_headline_counts_winners_as_a_person_would(board_page: str, board_rows: list[Row]) -> None:
    # By hand: of each question, the systems' best medians; a win is clear when the two best intervals do not meet.
    # With 30 samples the interval runs from the 10th to the 21st of the sorted samples.
    questions: dict[tuple[object, ...], dict[str, tuple[float, float, float]]] = {}
    for row in board_rows:
        if row.time and row.status == "ok":
            c = row.case
            name = c["system"]  # schedules of one system do not compete
            ordered = sorted(row.time["samples_ms"])
            mine = (statistics.median(ordered), ordered[9], ordered[20])
            best = questions.setdefault((c["B"], c["T"], c["H"], c["K"], c["V"], c["mode"]), {})
            best[name] = min(mine, best.get(name, mine))
    wins: dict[str, int] = {}
    for best in questions.values():
        (first, (_, _, high)), (_, (_, low, _)) = sorted(best.items(), key=lambda item: item[1])[:2]
        if high < low:
            wins[first] = wins.get(first, 0) + 1
    most = max(wins, key=lambda name: wins[name])
    assert most == "gla"
    rivals = sorted(map(len, questions.values()))
    lead = f"questions where GLA (ours) is the fastest of {rivals[0]} to {rivals[-1]} systems, by kernels"
    assert f"<b>{wins[most]} of {len(questions)}</b><strong>{lead}</strong>" in board_page


def test_every_question_of_the_issue_has_its_figure(board_page: str) -> None:
    for title in ("Speed beside FLA", "Speed beside FlashAttention-2", "Speed beside GLA recurrent", "Times",
                  "Memory over sequence length", "Time over chunk size", "Time over sub-chunk size",
                  "States materialized", "Time over head dimension"):  # fmt: skip
        assert f"<h3>{title}" in board_page, title


def test_failed_rows_are_there_with_status_and_reason(board_page: str) -> None:
    for status, reason in (
        ("wrong result", "dg: error 1.8 exceeds its tolerance 0.005"),
        ("out of memory", "asked for 48.00 GiB"),
        ("crashed", "signal 11 (SIGSEGV)"),
        ("cannot run here", "head dimension 100 is no multiple of 8"),
        ("did not compile", "needs 294912, has 232448"),
    ):
        assert re.search(rf'class="status">{status}<.*?{re.escape(reason)}', board_page, re.DOTALL), status
    assert "OutOfResources" in board_page


def test_environment_and_its_warnings(board_page: str) -> None:
    for fact in ("4.28 TB/s, read + write", "570.86.15", "2.11.0+cu130", "0123456789ab", "with uncommitted changes"):
        assert fact in board_page
    assert "uncommitted changes: the commit does not say exactly what ran" in board_page
    assert re.search(r"Clocks were held back in \d+ cases: sw power cap", board_page)
    assert re.search(r"In \d+ cases Python was slower to queue the call", board_page)


def test_what_a_call_costs_beside_its_kernels_stands_beside_its_time_on_a_gpu(
    board_page: str, quick_page: str, board_rows: list[Row]
) -> None:
    table = board_page.split('id="cases"')[1].split("</table>")[0]
    assert board_rows[0].time
    for raw in board_rows[0].time["eager"].values():
        assert f">{text.number(statistics.median(raw))}<" in table
    for column in ("queued in, ms", "wall, eager, ms", "kept, MiB"):
        assert f">{column}<" in table
        assert column not in quick_page


def test_rows_of_before_eager_calls_were_timed_have_no_place_for_them(board_rows: list[Row]) -> None:
    html = page([before_schema_5(row) for row in board_rows[2:4]])
    assert ">queued in, ms<" in html
    assert ">wall, eager, ms<" not in html
    assert ">kept, MiB<" not in html
    assert "What a call costs beside its kernels</dt>" in html  # and which sweep gives it
    assert "glabench sweep host" in html
    assert "eager calls" not in html


def before_schema_5(row: Row) -> Row:
    """The row as an older glabench wrote it."""
    time = row.time and {key: value for key, value in row.time.items() if key != "eager"} | {"host_ms": 1.3}
    memory = row.memory and {key: value for key, value in row.memory.items() if key != "kept_bytes"}
    return replace(row, time=time, memory=memory, schema=4)


def test_cpu_rows_show_compiled_kernels_and_no_time_for_them(quick_page: str, quick_rows: list[Row]) -> None:
    assert "A100 (sm_80)" in quick_page
    assert "H100 and H200 (sm_90)" in quick_page
    assert "cases of our Triton kernels checked, not timed" in quick_page
    # Byte floor by hand: forward, fp32, B1 T4096 H4 K128 V256: 4*(3*128+2*256)*4096*4 bytes at 3.35 TB/s.
    floor = 4 * (3 * 128 + 2 * 256) * 4096 * 4 / 3.35e12 * 1e3
    assert f">{text.number(floor)}" in quick_page.split('id="floor-table"')[1].split("</table>")[0]
    # None of the figures may draw a Triton kernel: its only time would be the interpreter's.
    drawn = set(re.findall(r'class="hit" data-s="([^"]+)"', quick_page))
    assert drawn == {"recurrent_torch", "chunkwise_torch", "parallel_torch", "sdpa"}


def test_missing_questions_say_which_sweep_answers_them(quick_page: str) -> None:
    missing = quick_page.split('id="missing"')[1].split("</section>")[0]
    assert "glabench sweep chunk_size" in missing
    assert "glabench sweep head_dim" in missing


def test_nothing_from_a_row_becomes_markup(board_rows: list[Row], outline: Any) -> None:
    evil = '<script>alert("x")</script><img src=x onerror=alert(1)>'
    rows = []
    for i, row in enumerate(board_rows[2:5]):
        case = {**row.case, "system": evil if row.case["system"] == "fla" else row.case["system"]}
        status, reason = ("crashed", evil) if i == 2 else (row.status, row.reason)
        environment = {**row.environment, "device": f"GPU {evil}", "driver": evil, "commit": evil}
        clocks = {"throttle": [evil]}
        rows.append(
            replace(row, case=case, case_id=f"{evil}{i}", status=status, reason=reason, detail=evil, sweep=evil,
                    implementation=evil, environment=environment, clocks=clocks,
                    accuracy={"passed": True, "where": evil, "outputs": {evil: {"error": 0.1, "tolerance": 0.2}}},
                    compiled=[{"kernel": evil, "arch": "sm_90", "error": evil}])
        )  # fmt: skip
    html = page(rows)
    assert outline(html).scripts == 1
    assert "<img" not in html
    assert "<script>alert" not in html
    assert "&lt;script&gt;alert" in html


def test_a_page_of_250_rows_would_stay_under_one_and_a_half_mib(board_page: str, board_rows: list[Row]) -> None:
    """And so one of 500 under 3: of fewer rows, too, what does not grow with them is counted in full."""
    assert 100 <= len(board_rows) < 250
    assert len(board_page.encode()) < 1.5 * 2**20 * len(board_rows) / 250


@pytest.mark.exhaustive(pick=("one row", "no environment", "one sample each"))
@pytest.mark.parametrize("pick", ["nothing timed", "one row", "no environment", "one sample each", "all failed"])
def test_poor_rows_still_make_a_page(board_rows: list[Row], pick: str, outline: Any) -> None:
    rows = {
        "nothing timed": [replace(row, time=None, memory=None) for row in board_rows[:7]],
        "one row": board_rows[:1],
        "no environment": [replace(row, environment={}, clocks=None, work=None) for row in board_rows[2:4]],
        "one sample each": [
            replace(row, time={"clock": row.time["clock"], "samples_ms": row.time["samples_ms"][:1]})
            for row in board_rows[2:4]
            if row.time
        ],
        "all failed": [row for row in board_rows if row.status != "ok"],
    }[pick]
    html = page(rows)
    assert outline(html).loads == []
    assert f"{len(rows)} case" in html
    if pick == "one sample each":
        assert "questions with one system clearly ahead" in html
        assert "is the fastest of" not in html


def test_markdown_sets_no_system_in_bold_that_competes_with_none(board_rows: list[Row]) -> None:
    rows = [row for row in board_rows if row.case["system"] in ("fa2", "fla") and row.case["mode"] == "fwd"]
    alone = [row for row in rows if row.case["system"] == "fa2"]
    assert "| **" in markdown.render(rows, frame(rows))
    assert "| **" not in markdown.render(alone, frame(alone))


def test_markdown_has_the_table_of_the_readme(board_rows: list[Row]) -> None:
    at = {"B": 4, "T": 2048, "H": 16, "K": 128, "V": 128, "mode": "fwdbwd"}
    some = [row for row in board_rows if at.items() <= row.case.items() and row.case["materialize"] is not False]
    times = {"gla": (0.5, 0.3, 0.6), "fla": (2.0, 0.2, 2.1), "fa2": (1.0, 0.1, 0.9)}
    rows = [with_times(row, *times[row.case["system"]]) for row in some if row.case["system"] in times]
    rows = [replace(row, case=row.case | {"materialize": None}) for row in rows]
    said = markdown.render(rows, frame(rows))
    (line,) = [line for line in said.splitlines() if line.startswith("| 4, 2048, 16, 128, 128 |")]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[1:4] == ["fwd+bwd", "bf16", "0.500"]
    assert cells[5:7] == ["0.300", "0.600"]
    assert cells[8:] == ["4.00 / 3.50", "2.00 / 1.50"]
    assert "FLA chunk_gla: kernels / eager calls, × | FlashAttention-2: kernels / eager calls, ×" in said
    assert "### An eager call, forward + backward (median, ms)" in said
    old = [before_schema_5(row) for row in rows]
    assert "FLA chunk_gla: kernels, × |" in markdown.render(old, frame(old))
    assert "eager" not in markdown.render(old, frame(old))


def with_times(row: Row, ms: float, host_ms: float, wall_ms: float) -> Row:
    eager = {"host_ms": [host_ms] * 6, "wall_ms": [wall_ms] * 6}
    return replace(row, time={"clock": "cuda_events_cold_l2", "samples_ms": [ms] * 6, "eager": eager})


def test_figures_have_distinct_looks() -> None:
    from glabench.report.style import MODELS, STYLES

    for styles in (STYLES, MODELS):
        looks = [(s.colour, s.marker, s.dashes, s.filled) for s in styles.values()]
        assert all(a != b for a, b in combinations(looks, 2))
