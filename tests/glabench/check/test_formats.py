"""What each format says, and that what rows say cannot break out of it."""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree

import pytest

from glabench.check import formats, page
from glabench.check.remeasure import settle
from glabench.check.verdict import Check, check

from .conftest import FULL, MakeRun
from .test_remeasure import BEFORE, fake

NASTY = "off by 100 %\n::error::<script>|x|\x1b[31m"


@pytest.fixture(scope="module")
def found(make_run: MakeRun) -> Check:
    """A case of every kind."""
    throttled = {**FULL, "sm_mhz": 990.0}
    before = [make_run(T=64), make_run(T=128), make_run(T=256), make_run(T=512), make_run(T=2048)]
    after = [
        make_run(T=64, ms=1.2), make_run(T=128), make_run(T=256, clocks=throttled), make_run(T=1024),
        make_run(T=2048, status="wrong", reason=NASTY, time=None),
    ]  # fmt: skip
    return check(before, after, 0.03)


def test_text_names_what_is_not_as_before_and_how_to_go_on(found: Check) -> None:
    said = formats.render_text(found)
    assert "slower (not re-measured)" in said
    assert "+20.0 % (1.00 -> 1.20 ms" in said
    assert "NVIDIA H200: 1 wrong, 1 missing, 1 slower, 1 not comparable, 1 new, 1 same" in said
    assert "A slow-down of 3 % is to be found. No case was run more than once" in said
    assert "--against REV" in said
    assert "SM clock at 50.0% of its maximum (no reason given)" in said


def test_runs_that_were_left_out_are_told_although_the_case_is_the_same(make_run: MakeRun) -> None:
    after = [make_run(seed=1), make_run(clocks={**FULL, "sm_mhz": 990.0}, seed=2)]
    found = check([make_run()], after, 0.03)
    assert found.counts == {"same": 1}
    told = "Runs of 1 case were left out: SM clock at 50.0% of its maximum (no reason given)."
    assert told in formats.render_text(found)
    assert told in page.render(found)


def test_annotations_are_one_line_each(found: Check) -> None:
    lines = formats.render_github(found).splitlines()
    assert [line.split(" ")[0] for line in lines[:-1]] == ["::error"] * 3 + ["::warning"]
    assert "off by 100 %25%0A::error::" in lines[0]
    assert lines[2].startswith("::error title=slower (not re-measured)::GLA")


def test_no_line_of_rows_is_a_command_of_a_workflow(make_run: MakeRun) -> None:
    device = {"device": "::error title=pwn::all good"}
    said = formats.render_github(check([make_run(environment=device)], [make_run(environment=device)], 0.03))
    assert said == "On ::error title=pwn::all good: 1 same"


def test_the_step_summary_is_a_table_that_rows_cannot_break(found: Check) -> None:
    rows = [line for line in formats.step_summary(found).splitlines() if line.startswith("|")]
    assert len(rows) == 2 + 4
    assert "\\<script\\>\\|x\\|" in rows[2]


def test_junit_is_xml_with_failures_and_skips(found: Check) -> None:
    suite = ElementTree.fromstring(formats.render_junit(found).encode())
    assert {name: suite.get(name) for name in ("tests", "failures", "skipped")} == {
        "tests": "6", "failures": "3", "skipped": "1",
    }  # fmt: skip
    kinds = [next((child.tag for child in test), None) for test in suite]
    assert kinds.count("failure") == 3
    assert kinds.count("skipped") == 1


def test_junit_leaves_out_what_xml_cannot_hold(make_run: MakeRun) -> None:
    odd = make_run(status="wrong", reason="a\ufffe\uffff\x00\ud800b", time=None, environment={"device": "x\x01"})
    odd.case.update(dtype="bf16\x01", system="gla\x02")
    suite = ElementTree.fromstring(formats.render_junit(check([], [odd], 0.03)).encode())
    assert [suite.get("name"), suite[0].get("classname")] == ["glabench check on x", "gla"]
    assert str(suite[0][0].text).endswith("wrong now: ab")


def test_json_holds_everything(found: Check) -> None:
    said = json.loads(formats.render_json(found))
    assert said["exit_code"] == 1
    slow = next(case for case in said["cases"] if case["verdict"] == "slower")
    assert slow["time"]["ratio"] == pytest.approx(1.2, rel=1e-6)
    assert slow["memory"]["verdict"] == "same"


def test_a_line_of_the_trend_has_every_case_and_its_time(found: Check) -> None:
    line = formats.trend_line(found)
    assert "\n" not in line
    said = json.loads(line)
    assert said["commit"] == "c0ffee"
    assert said["conditions"]["triton"] == "3.6.0"
    cases = {case["case"]["T"]: case for case in said["cases"].values()}
    verdicts = {case.pair.case["T"]: case.verdict for case in found.cases}
    assert {t: case["verdict"] for t, case in cases.items()} == verdicts
    assert cases[64]["ms"] == pytest.approx(1.2, rel=0.01)
    assert cases[256]["why"] == "SM clock at 50.0% of its maximum (no reason given)"
    assert {t: case["status"] for t, case in cases.items() if case["ms"] is None} == {512: "missing", 2048: "wrong"}


def test_the_page_draws_both_sides_and_escapes_rows(found: Check) -> None:
    html = page.render(found)
    labels = re.findall(r'aria-label="(Times before and now: [^"]*)"', html)
    assert len(set(labels)) == 2  # each says of which case it is
    assert "&lt;script&gt;|x|" in html
    assert "<script>|x|" not in html
    assert "Not passed: 1 wrong" in html


def test_what_fails_when_it_is_measured_again_is_on_the_page_without_a_picture(make_run: MakeRun) -> None:
    before, after = [make_run(), make_run(T=64)], [make_run(ms=1.2), make_run(T=64)]
    turns = fake(make_run, 1.0, 1.2, status="timeout", reason="no result after 600 s", time=None)
    html = page.render(settle(check(before, after, 0.03), turns, BEFORE))
    assert "measured again: timeout now, no result after 600 s" in html
    assert html.count('aria-label="Times before and now') == 1


def test_a_run_of_few_samples_is_drawn_beside_one_of_many(make_run: MakeRun) -> None:
    many, few = ({"clock": "cuda_events_cold_l2", "samples_ms": ms} for ms in ([1.0, 1.001] * 500, [2.0, 2.001] * 5))
    html = page.render(check([make_run(time=many)], [make_run(time=few)], 0.03))
    now = re.search(r'<g fill="var\(--c-blue\)">(.*?)</g>', html)
    assert now is not None
    assert "<path" in now[1]
    assert "1.000 ms" in html
    assert "2.001 ms" in html
