"""The matrix in a real browser: on the first screen, with and without script, its selectors, its colours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from glabench.analysis.frame import frame
from glabench.report.matrix import Cell, Grid, grids
from glabench.report.page import render
from glabench.store import Row

from .test_browser import emulate, into_sight, open_at, shown, written
from .test_schedule_matrix import page_of_schedules

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def address(board_page: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    return written(board_page, tmp_path_factory.mktemp("page"))


def choose(browser: Any, where: str, what: str, title: str) -> None:
    """Chooses an option of a selector: ``where`` is "#answer" or "#chart", ``what`` "baseline" or "view"."""
    from selenium.webdriver.support.ui import Select

    Select(browser.find_element("css selector", f"{where} select[data-pick={what}]")).select_by_visible_text(title)


def cells(browser: Any, shape: str) -> list[list[str]]:
    """Class, ratio and word of the cells of a shape that are in sight and have a time."""
    found: list[list[str]] = browser.execute_script(
        """const row = [...document.querySelectorAll("#matrix0 tbody:not([hidden]) tr")]
          .find((row) => row.cells[0].textContent.startsWith(arguments[0]));
        return [...row.querySelectorAll("td[data-by]:not([hidden])")].map((cell) =>
          [cell.className, cell.querySelector("b").textContent, cell.querySelector("em").textContent]);""",
        shape,
    )
    return found


@pytest.fixture(scope="module")
def grid(board_rows: list[Row]) -> Grid:
    (found,) = grids(board_rows, frame(board_rows))
    return found


def expected(grid: Grid, view: str, shape: str, baseline: str) -> list[list[str]]:
    place = [title for _, title in grid.baselines].index(baseline)
    (body,) = (body for body in grid.bodies if body.title == view)
    (line,) = (line for words, _, line in body.rows if " ".join(words) == shape)
    timed = [cell.by[place] for cell in line if isinstance(cell, Cell) and not cell.mark]
    return [[one.said, one.ratio, one.word] for one in timed]


def test_a_baseline_is_chosen_for_the_matrix_and_the_chart(browser: Any, address: str, grid: Grid) -> None:
    open_at(browser, address, 1400, kept=True)
    shape = "B4 T2k H16 128"
    for where, title in (("#answer", "FlashAttention-2"), ("#chart", "GLA recurrent"), ("#answer", "FLA")):
        choose(browser, where, "baseline", title)
        assert cells(browser, shape) == expected(grid, "forward + backward", shape, title)
        (card,) = shown(browser, "#chart figure.card")
        assert card.find_element("css selector", "h3").text == f"Speed beside {title}, kernels"
    before = cells(browser, shape)
    choose(browser, "#chart", "baseline", "none: the times")  # the matrix has no such choice, and stays
    assert cells(browser, shape) == before
    (card,) = shown(browser, "#chart figure.card")
    assert card.find_element("css selector", "h3").text == "Times"
    choose(browser, "#chart", "baseline", "FLA")


def test_a_mode_is_chosen(browser: Any, address: str, grid: Grid) -> None:
    open_at(browser, address, 1400, kept=True)
    shape = "B4 T2k H16 128"
    for view in ("forward", "backward, eager calls", "forward + backward"):
        choose(browser, "#answer", "view", view)
        assert len(shown(browser, "#matrix0 tbody")) == 1
        assert cells(browser, shape) == expected(grid, view, shape, "FLA")


def test_a_system_that_ran_in_no_case_of_a_mode_has_no_column(browser: Any, address: str) -> None:
    open_at(browser, address, 1400, kept=True)
    heads = {head.text for head in shown(browser, "#matrix0 thead th")}
    failed = {"FLA recurrent", "cuDNN attention"}  # forward and backward, their only case
    assert failed < heads
    choose(browser, "#answer", "view", "forward")
    assert {head.text for head in shown(browser, "#matrix0 thead th")} == heads - failed
    choose(browser, "#answer", "view", "forward + backward")
    assert {head.text for head in shown(browser, "#matrix0 thead th")} == heads


@pytest.mark.parametrize(("width", "height", "theme"), [(1400, 900, "light"), (390, 844, "dark")])
def test_the_matrix_is_on_the_first_screen(browser: Any, address: str, width: int, height: int, theme: str) -> None:
    emulate(browser, theme)
    open_at(browser, address, width, height, kept=True)
    for selector, least in (("th[scope=row]", 4), ("td[data-by]", 1)):
        ends = set(
            browser.execute_script(
                "return arguments[0].map((one) => one.getBoundingClientRect().bottom + scrollY)",
                shown(browser, f"#matrix0 {selector}"),
            )
        )
        assert sum(end < height for end in ends) >= least
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width


def test_words_stand_out_on_every_colour(browser: Any, address: str, board_rows: list[Row]) -> None:
    open_at(browser, address, 1400, kept=True)
    for theme in ("dark", "light"):
        emulate(browser, theme)
        ratio = browser.execute_script(
            """const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
            const light = (rgb) => {
              const [r, g, b] = rgb.map((x) => x / 255)
                .map((x) => (x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4));
              return 0.2126 * r + 0.7152 * g + 0.0722 * b;
            };
            const card = parts(getComputedStyle(document.querySelector(".scroll")).backgroundColor).slice(0, 3);
            const contrasts = [];
            for (const cell of document.querySelectorAll("#matrix0 td[data-by]")) {
              const [r, g, b, a = 1] = parts(getComputedStyle(cell).backgroundColor);
              const back = light([r, g, b].map((x, i) => x * a + card[i] * (1 - a)));
              for (const words of cell.querySelectorAll("b, em, span")) {
                const ink = light(parts(getComputedStyle(words).color).slice(0, 3));
                contrasts.push((Math.max(ink, back) + 0.05) / (Math.min(ink, back) + 0.05));
              }
            }
            return [contrasts.length, Math.min(...contrasts)];"""
        )
        assert ratio[0] > 300 / 258 * len(board_rows)  # 300 of a board of 258 rows
        assert ratio[1] >= 4.5  # WCAG 2.1, AA


def test_a_cell_tells_more_on_hover_and_a_failure_its_reason(browser: Any, address: str) -> None:
    from selenium.webdriver import ActionChains

    open_at(browser, address, 1400)
    choose(browser, "#answer", "baseline", "FlashAttention-2")
    tip = browser.find_element("id", "tip")
    for selector, words in (
        ("#matrix0 td.faster", "the speed of FlashAttention-2 ("), ("#matrix0 td.failed", "signal 11 (SIGSEGV)"),
    ):  # fmt: skip
        cell = shown(browser, selector)[0]
        into_sight(browser, cell)
        ActionChains(browser).move_to_element(cell).perform()
        assert tip.is_displayed()
        assert words in tip.text


def test_without_script_every_mode_is_there_beside_the_first_baseline(
    browser: Any, board_page: str, grid: Grid, tmp_path: Path
) -> None:
    start, end = board_page.index("<script>"), board_page.index("</script>")
    open_at(browser, written(board_page[:start] + board_page[end + 9 :], tmp_path), 1400)
    assert len(shown(browser, "#matrix0 tbody")) == 6
    assert shown(browser, ".pick") == []
    assert len(shown(browser, "#chart figure.card")) == 1
    shape = "B4 T2k H16 128"
    assert cells(browser, shape) == expected(grid, "forward + backward", shape, "FLA")


@pytest.mark.parametrize("width", [390, pytest.param(1400, marks=pytest.mark.exhaustive)])
def test_long_words_of_a_shape_stay_in_their_column(
    browser: Any, board_rows: list[Row], tmp_path: Path, width: int
) -> None:
    row = next(row for row in board_rows if row.case["system"] == "fla" and row.time)
    packed = {"B": 1, "T": 2024, "lengths": "100,900,24,1000"}
    rows = [replace(row, case=row.case | packed)]
    open_at(browser, written(render(rows, frame(rows), []), tmp_path), width)
    assert "packed" in browser.find_element("css selector", "#matrix0 tbody th[scope=row]").text
    outside = browser.execute_script(
        """return [...document.querySelectorAll("#matrix0 th[scope=row] span")].filter((span) =>
          span.getBoundingClientRect().right > span.closest("th").getBoundingClientRect().right).length"""
    )
    assert outside == 0


@pytest.fixture(scope="module")
def schedules(made_once: Callable[[str, Callable[[], str]], str], tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a page of schedules."""
    return written(page_of_schedules(made_once), tmp_path_factory.mktemp("schedules"))


@pytest.mark.parametrize(("width", "height", "theme"), [(1400, 900, "dark"), (390, 844, "light")])
def test_schedules_are_on_the_first_screen(
    browser: Any, schedules: str, width: int, height: int, theme: str
) -> None:  # fmt: skip
    from selenium.webdriver import ActionChains

    emulate(browser, theme)
    open_at(browser, schedules, width, height)
    lines = [one.rect for one in shown(browser, ".schedules th[scope=row]")]
    assert len([at for at in lines if at["y"] + at["height"] < height]) == 6  # five chunks, and the default
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    first = shown(browser, ".schedules td.first")[0]
    ActionChains(browser).move_to_element(first).perform()
    assert "GLA with states C64/64" in browser.find_element("id", "tip").text
