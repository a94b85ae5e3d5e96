"""What a sweep shows: a bar on a terminal, one whole line a case when piped."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from glabench.run.progress import SweepProgress, describe, result
from glabench.spec.case import Case
from glabench.store import Row

CASE = Case("gla", 1, 2048, 4, 128, 256, chunk=64, sub_chunk=16, materialize=False, gate_strength=0.5)
OK = Row(CASE.id, "tiny", CASE.to_dict(), "ok", time={"samples_ms": [3.0, 1.0, 2.0]})


def test_a_case_in_a_line() -> None:
    assert describe(CASE) == "gla C64/16 w/o m  B1 T2048 H4 K128 V256 bf16 fwdbwd gate 0.5"
    attention = Case("fa2", 1, 8, 4, 128, 256, gate_strength=None, attn_heads=16, attn_dim=64)
    assert describe(attention) == "fa2  B1 T8 H16 D64 bf16 fwdbwd"


def test_a_result_in_a_few_words() -> None:
    assert result(OK) == "2 ms"
    assert result(replace(OK, status="oom", reason="out of memory: 3 GiB more were needed")).startswith("out of memory")
    entries = [{"arch": arch, "error": error} for arch, error in (("sm_90", None), ("sm_80", None), ("sm_100", "no"))]
    checked = replace(OK, time=None, accuracy={"passed": True}, compiled=entries)
    assert result(checked) == "matches float64; compiles for sm_80, sm_90"
    smaller = {"passed": True, "shape": {"B": 1, "T": 165, "H": 2, "K": 64, "V": 64}}
    assert result(replace(OK, time=None, accuracy=smaller)) == "matches float64 at B1 T165 H2 K64 V64"


def test_piped_lines_are_whole_and_counted_from_where_the_last_run_stopped() -> None:
    stream = io.StringIO()
    with SweepProgress(12, 4, Console(file=stream, width=20)) as progress:
        progress.running(CASE, "gate")
        progress.finished(OK)
        progress.finished(replace(OK, status="wrong", reason="dq is off"))
    lines = stream.getvalue().splitlines()
    assert [line[:7] for line in lines] == ["[ 5/12]", "[ 6/12]"]
    assert lines[0].endswith("2 ms")
    assert "wrong" in lines[1]
    assert "dq is off" in lines[1]


def test_a_terminal_gets_a_bar_with_case_rate_and_time_left() -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=120, force_terminal=True, markup=False)
    with SweepProgress(3, 0, console) as progress:
        for _ in range(3):
            progress.running(CASE, "all")
            progress.finished(OK)
    text = stream.getvalue()
    assert "measuring gla C64/16" in text
    assert "3/3" in text
    assert "/min" in text
    assert "━" in text
