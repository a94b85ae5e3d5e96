"""The papers page: which rows get it, what it says of claims, and what is drawn beside what is printed."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from glabench.analysis.claims import CLAIMS
from glabench.analysis.papers import Value
from glabench.analysis.printed import LEFT_OUT
from glabench.errors import UserError
from glabench.report import draw, papers
from glabench.report.model import Figure
from glabench.report.papers import Pages, claims_table, findings, is_for, short
from glabench.report.papers_ours import twin
from glabench.store import Row


@pytest.fixture(scope="module")
def pages(papers_rows: list[Row]) -> Pages:
    return Pages(papers_rows)


@pytest.fixture(scope="module")
def figures(pages: Pages) -> dict[str, Figure]:
    return {section.name: figure for section in pages.sections() for figure in section.figures}


def test_the_page_is_well_formed_and_loads_nothing(papers_page: str, outline: Any) -> None:
    found = outline(papers_page)
    assert found.loads == []
    assert found.open == []
    assert len(found.ids) == len(set(found.ids))
    assert {f'"#{name}"' for name in re.findall(r'<a href="#([^"]+)"', papers_page)} <= {
        f'"#{name}"' for name in found.ids
    }


def test_every_claim_is_judged_by_the_sweep_and_a_profile(pages: Pages, papers_page: str) -> None:
    (found,) = pages.claimed.values()
    assert [one.claim for one in found] == list(CLAIMS)
    missing = {one.claim.needs for one in found if one.outcome.verdict == "not measured"}
    assert missing == {"glabench sweep training"}
    assert {one.claim.needs for one in found if one.outcome.verdict != "not measured"}.isdisjoint(missing)
    table = claims_table(found)
    assert [row[1].text for row in table.rows] == [one.outcome.verdict for one in found]
    assert all(row[0].text.replace("'", "&#39;") in papers_page for row in table.rows)


def test_every_verdict_has_its_pair_and_its_reason(pages: Pages, papers_page: str) -> None:
    (found,) = pages.claimed.values()
    for one, row in zip(found, claims_table(found).rows, strict=True):
        assert (one.outcome.pairs != ()) is (one.outcome.verdict != "not measured"), one.claim.name
        assert one.claim.reason in row[5].text
        assert one.claim.reason
    assert all(what in papers_page and reason in papers_page for _, what, reason in LEFT_OUT)


def test_what_is_not_tuned_is_told_where_it_is_compared(papers_rows: list[Row]) -> None:
    plans = {64: "shipped for NVIDIA H200, tuned at B=1 T=1 H=1", None: "tuned here at B=1 T=1 H=1"}
    told = [
        replace(row, implementation=f"gla_kernels 0.1, triton 3.6; fwd {plans.get(row.case['chunk'], 'by size')}")
        if row.case["system"] == "gla" and row.status == "ok" else row
        for row in papers_rows
    ]  # fmt: skip
    (found,) = Pages(told).claimed.values()
    rows = {one.claim.name: row for one, row in zip(found, claims_table(found).rows, strict=True)}
    said = {
        "two-levels": "tuned compared with untuned: ",
        "best-chunk": "neither side is tuned: ",
        "chunk-split": "tuned compared with untuned: chunks of 16, 32, 128, 256 are not tuned",
    }
    for name, words in said.items():
        assert rows[name][1].text == "not comparable here"
        assert words in rows[name][5].text.lower()
    assert re.search(r"C128/64 \(not tuned\) over GLA with(?:out)? states C64/64 \(tuned\)", rows["two-levels"][4].text)


def test_figures_say_what_is_not_tuned(papers_rows: list[Row]) -> None:
    told = [
        replace(row, implementation="gla_kernels 0.1, triton 3.6; fwd 128/64 w/ m. by size")
        if row.case["system"] == "gla" and row.case["chunk"] == 128 else row
        for row in papers_rows
    ]  # fmt: skip
    figures = {section.name: figure for section in Pages(told).sections() for figure in section.figures}
    assert "Not tuned: " in figures["front"].caption
    assert "GLA with states C128/64" in figures["front"].caption.split("Not tuned: ")[1]
    assert figures["chunks"].caption.endswith("Not tuned: chunks of 128.")
    assert not any("Not tuned" in figures[name].caption for name in ("ungated", "decoding"))


def test_the_document_says_of_every_claim_why_it_is_judged_so() -> None:
    text = (Path(__file__).parents[3] / "docs" / "papers.md").read_text(encoding="utf-8")
    rows = [f"| {one.paper.short}, {one.where} | {one.says} | {one.reason} |" for one in CLAIMS]
    assert "\n".join(rows) in text


def test_the_answer_counts_verdicts_of_each_version(pages: Pages) -> None:
    (found,) = pages.claimed.values()
    for answer, year in zip(findings(found), ("2023", "2024"), strict=True):
        counts = Counter(one.outcome.verdict for one in found if one.claim.paper.short == year)
        assert answer.figure == f"{counts['held']} of {sum(counts.values()) - counts['not measured']}"
        assert year in answer.lead


def test_each_figure_of_the_papers_is_there(figures: dict[str, Figure]) -> None:
    assert list(figures) == ["lengths", "chunks", "recurrent", "ungated", "layer", "front", "crossover", "strength", "decoding"]  # fmt: skip  # noqa: E501


def test_printed_numbers_are_drawn_beside_the_measured_ones(figures: dict[str, Figure]) -> None:
    time, speed_up = figures["lengths"].panels
    printed = {one.key: [point.value for point in one.points] for one in time.series if one.key.startswith("printed")}
    assert printed == {"printed:gla": [51.2, 108.7, 210.3, 415.8], "printed:fa2": [27.1, 82.9, 281.7, 1037.1]}
    assert {"gla", "gla:w", "gla:wo", "fa2", "cudnn"} <= {one.key for one in time.series}
    ratio = next(one for one in speed_up.series if one.key == "printed:gla")
    assert [round(point.value, 2) for point in ratio.points] == [0.53, 0.76, 1.34, 2.49]
    assert "GPU not named" in ratio.points[0].tip

    falls, grows = (next(s for s in figures["chunks"].panels[0].series if s.key == f"printed:{part}") for part in ("inter", "intra"))  # fmt: skip  # noqa: E501
    assert [point.value for point in falls.points] == [5.0, 2.9, 2.1, 1.4, 1.3]
    assert [point.value for point in grows.points] == [1.8, 1.8, 2.1, 2.5, 3.4]

    faster, memory = figures["recurrent"].panels
    assert [point.value for point in faster.series[1].points] == [3.8, 2.8, 2.3]
    assert [point.value for point in memory.series[1].points] == [0.26, 0.13, 0.26]


def test_the_front_is_drawn_from_the_leanest_to_the_fastest(figures: dict[str, Figure]) -> None:
    (panel,) = figures["front"].panels
    line = next(one for one in panel.series if one.key == "front")
    marks = {(point.at, point.value) for one in panel.series if one.key != "front" for point in one.points}
    places = [(point.at, point.value) for point in line.points]
    assert set(places) <= marks
    assert [at for at, _ in places] == sorted(at for at, _ in places)
    assert [ms for _, ms in places] == sorted((ms for _, ms in places), reverse=True)


def test_parts_of_other_kernels_stand_beside_no_whole(papers_rows: list[Row]) -> None:
    other = [
        replace(row, environment=row.environment | {"commit": "f" * 40}) if row.profile else row for row in papers_rows
    ]
    for rows, of_others in ((papers_rows, False), (other, True)):
        pages = Pages(rows)
        (figure,) = next(section.figures for section in pages.sections() if section.name == "chunks")
        assert ("whole" in dict(figure.keys)) is not of_others
        assert ("of other kernels (commit fffffff)" in figure.caption) is of_others
        (claim,) = (one for one in pages.claimed["NVIDIA H200"] if one.claim.name == "chunk-split")
        assert ("other kernels" in claim.outcome.why) is of_others


def test_parts_that_the_sweep_took_stand_before_those_of_profiles(papers_rows: list[Row]) -> None:
    own = {"inter_ms": [40.0] * 9, "intra_ms": [30.0] * 9}
    rows = [
        replace(row, time={**row.time, "parts": own})
        if row.time and (row.case["mode"], row.case["chunk"], row.case["materialize"]) == ("fwd", 64, True) else row
        for row in papers_rows
    ]  # fmt: skip
    (evidence,) = Pages(rows).evidence.values()
    assert {chunk: both.inter.median for chunk, both in evidence.split.items()} == {64: 40.0}


def test_what_has_a_decay_is_told_where_none_is_asked(figures: dict[str, Figure]) -> None:
    assert "With a decay all the same: GLA, one gate a head" in figures["ungated"].caption


def test_what_lies_under_another_curve_is_not_drawn() -> None:
    lengths = {1024.0: 1.0, 2048.0: 2.0}
    near = {at: 1.005 * value for at, value in lengths.items()}
    assert twin({"gla": lengths, "gla:w": near, "gla:wo": lengths | {1024.0: 3.0}}) == "gla:w"
    assert twin({"gla": lengths, "gla:w": {1024.0: 1.0}}) == twin({"gla:w": lengths}) == ""


def test_what_is_better_than_claimed_is_not_red(pages: Pages) -> None:
    (found,) = pages.claimed.values()
    better = [one for one in found if one.outcome.better]
    assert all(row[1].flag == "" for row in claims_table(better).rows)
    sentences = " ".join(answer.sentence for answer in findings(found))
    assert sentences.count("(it is better here)") == len(better)


def test_errors_that_are_no_number_are_told(figures: dict[str, Figure]) -> None:
    assert "Not finite, and so not drawn: Helion GLA at 16 and Helion GLA at 10000." in figures["strength"].caption


def test_many_numbers_are_told_by_their_ends() -> None:
    few = tuple(Value(f"T {i}k", float(i)) for i in range(1, 5))
    assert short(few) == "T 1k: 1.00×; T 2k: 2.00×; T 3k: 3.00×; T 4k: 4.00×"
    assert short((*few, Value("T 5k", 0.5))) == "0.50× (T 5k) to 4.00× (T 4k)"


def test_rows_of_the_sweep_get_the_page_by_themselves(papers_rows: list[Row], board_rows: list[Row]) -> None:
    assert is_for(papers_rows)
    assert not is_for([*papers_rows, *board_rows[:1]])
    assert is_for([*papers_rows, replace(board_rows[0], status="crashed")])  # it may be a profile that failed
    assert not is_for([row for row in papers_rows if row.profile])  # profiles have a page of their own


def test_any_rows_are_judged_where_they_fit(board_rows: list[Row], quick_rows: list[Row]) -> None:
    rows = Pages([*board_rows, *quick_rows])
    assert list(rows.claimed) == ["NVIDIA H200", "AMD EPYC 9554"]
    for found in rows.claimed.values():
        assert {one.outcome.verdict for one in found} == {"not measured"}
        assert all(
            f"to be measured by {one.claim.needs}, on a GPU" in row[5].text.replace("To", "to")
            for one, row in zip(found, claims_table(found).rows, strict=True)
        )
        assert findings(found)[0].figure.startswith("0 of ")


def test_profiles_alone_are_refused(papers_rows: list[Row]) -> None:
    with pytest.raises(UserError, match="profiles alone"):
        Pages([row for row in papers_rows if row.profile])


def test_tables_have_every_claim(papers_rows: list[Row], tmp_path: Path) -> None:
    (csv,) = papers.csv(papers_rows, tmp_path / "claims.csv")
    assert len(csv.read_text().splitlines()) == len(CLAIMS) + 1
    (md,) = papers.md(papers_rows, tmp_path / "claims.md")
    text = md.read_text()
    assert "## Claims of the papers on NVIDIA H200" in text
    assert all(f"| {claim.says} |" in text for claim in CLAIMS)


@pytest.mark.parametrize("name", ["chunks", "strength"])
def test_a_legend_of_long_names_fits_its_figure(figures: dict[str, Figure], name: str) -> None:
    with draw.settings():
        canvas = draw.whole(figures[name])
        canvas.draw_without_rendering()
        extent = canvas.legends[0].get_window_extent()
    assert extent.x0 >= 0
    assert extent.x1 <= canvas.bbox.x1
