"""The page in a real browser: figures, hover, legends, sorting, filters, saving, and a phone's width."""

from __future__ import annotations

import base64
import re
import time
import zlib
from pathlib import Path
from typing import Any

import pytest

from glabench.check import page as check_page
from glabench.check.verdict import check
from glabench.store import Row

pytestmark = pytest.mark.browser
WIDTHS = pytest.mark.parametrize(
    "width", [1440, 360, *(pytest.param(width, marks=pytest.mark.exhaustive) for width in (390, 768))]
)


@pytest.fixture(scope="module")
def address(board_page: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    return written(board_page, tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="module")
def profiles(profile_page: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a page of profiles."""
    return written(profile_page, tmp_path_factory.mktemp("profiles"))


@pytest.fixture(scope="module")
def claims(papers_page: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a papers page."""
    return written(papers_page, tmp_path_factory.mktemp("papers"))


@pytest.fixture(scope="module")
def strengths(strengths_page: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a page of many gate strengths."""
    return written(strengths_page, tmp_path_factory.mktemp("strengths"))


def written(page: str, folder: Path) -> str:
    """The address of the page once it is in the folder."""
    path = folder / "index.html"
    path.write_text(page, encoding="utf-8")
    return path.as_uri()


def open_at(browser: Any, address: str, width: int, height: int = 900, kept: bool = False) -> None:
    """Opens a page in a window of that size; not once more if the test before had it there and left it as it was, which
    is ``kept``."""
    at = (address, width, height)
    before, browser.kept = getattr(browser, "kept", None), at if kept else None
    if before == at:
        browser.execute_script("scrollTo(0, 0)")
        return
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500},
    )
    browser.get(address)
    deadline = time.monotonic() + 30  # a busy machine is told of the page before all of it is read
    while browser.execute_script("return document.readyState") != "complete" and time.monotonic() < deadline:
        time.sleep(0.05)


def into_sight(browser: Any, element: Any) -> None:
    """Scrolls to the element, and waits for the page to have heard of it: what it shows goes when it is scrolled."""
    browser.execute_async_script(
        """arguments[0].scrollIntoView({block: "center"});
        requestAnimationFrame(() => requestAnimationFrame(() => arguments[1]()));""",
        element,
    )


def shown(browser: Any, selector: str) -> list[Any]:
    """The elements that are in no hidden part of the page. One script asks for all of them: a matrix has hundreds."""
    found: list[Any] = browser.execute_script(
        """const seen = {visibilityProperty: true, opacityProperty: true};
        return [...document.querySelectorAll(arguments[0])].filter((one) => {
          const {width, height} = one.getBoundingClientRect();
          return one.checkVisibility(seen) && width > 0 && height > 0;
        });""",
        selector,
    )
    return found


def column(browser: Any, name: str) -> list[str]:
    """The texts of a column of the big table, of the rows that are shown, top to bottom."""
    texts: list[str] = browser.execute_script(
        """const table = document.getElementById("cases");
        const i = [...table.tHead.rows[0].cells].findIndex((cell) => cell.textContent === arguments[0]);
        return [...table.tBodies[0].rows].filter((row) => !row.hidden).map((row) => row.cells[i].textContent);""",
        name,
    )
    return texts


def click_heading(browser: Any, name: str) -> str:
    """Clicks a heading of the big table and returns its aria-sort."""
    button = browser.find_element("xpath", f"//table[@id='cases']//th/button[text()='{name}']")
    into_sight(browser, button)
    button.click()
    return str(button.find_element("xpath", "..").get_attribute("aria-sort"))


def test_no_script_error_nothing_fetched_and_plots_drawn(browser: Any, address: str) -> None:
    open_at(browser, address, 1440, kept=True)
    assert browser.get_log("browser") == []
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
    figures = browser.find_elements("css selector", "figure.card")
    assert len(figures) > 10
    for svg in shown(browser, ".panel svg"):
        assert svg.rect["width"] > 200
        assert svg.rect["height"] > 80


def test_text_stands_out_in_both_themes(browser: Any, address: str) -> None:
    open_at(browser, address, 1440, kept=True)
    for theme, dark in (("dark", True), ("light", False)):
        emulate(browser, theme)
        card, ratio = browser.execute_script(
            """const light = (rgb) => {
              const [r, g, b] = rgb.match(/[\\d.]+/g).slice(0, 3).map((x) => x / 255)
                .map((x) => (x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4));
              return 0.2126 * r + 0.7152 * g + 0.0722 * b;
            };
            const contrast = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
            const card = light(getComputedStyle(document.querySelector(".card")).backgroundColor);
            const words = ["figcaption", ".card h3", ".legend button"].map((s) => document.querySelector(s));
            const parts = words.map((element) => getComputedStyle(element).color);
            parts.push(getComputedStyle(document.querySelector(".panel text")).fill);
            return [card, Math.min(...parts.map((colour) => contrast(light(colour), card)))];"""
        )
        assert (card < 0.5) is dark
        assert ratio >= 4.5  # WCAG 2.1, AA


def emulate(browser: Any, theme: str) -> None:
    feature = {"name": "prefers-color-scheme", "value": theme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})


def test_the_keyboard_goes_from_point_to_point(browser: Any, address: str) -> None:
    from selenium.webdriver import Keys

    open_at(browser, address, 1440, kept=True)
    browser.execute_script("document.querySelector('figure.card .legend button:last-child').focus()")
    tip = browser.find_element("id", "tip")
    assert not tip.is_displayed()

    def after(key: str) -> str:
        browser.switch_to.active_element.send_keys(key)
        assert tip.is_displayed()
        return str(tip.text)

    first = after(Keys.TAB)
    panel = browser.switch_to.active_element
    points = browser.execute_script(
        "return [...arguments[0].querySelectorAll('.hit')].map((hit) => [hit.dataset.s, hit.dataset.tip])", panel
    )
    assert first == points[0][1]
    assert after(Keys.ARROW_RIGHT) == points[1][1]
    second = next(tip for series, tip in points if series != points[0][0])
    assert after(Keys.ARROW_DOWN) == second
    assert after(Keys.ARROW_UP) == first
    assert after(Keys.ARROW_LEFT) == first  # nothing is before it
    assert after(Keys.END) == points[-1][1]
    assert browser.switch_to.active_element == panel
    panel.send_keys(Keys.ESCAPE)
    assert not tip.is_displayed()
    assert after(Keys.ARROW_RIGHT) == first
    panel.send_keys(Keys.TAB)
    assert not tip.is_displayed() or tip.text != first


def test_the_keyboard_passes_over_what_the_legend_hides(browser: Any, address: str) -> None:
    from selenium.webdriver import Keys

    open_at(browser, address, 1440, kept=True)
    button = browser.find_element("css selector", "figure.card .legend button")
    button.send_keys(Keys.ENTER)
    browser.execute_script("document.querySelector('figure.card .panel svg').focus()")
    panel = browser.switch_to.active_element
    panel.send_keys(Keys.HOME)
    lit = panel.find_element("css selector", ".hit.on")
    assert lit.get_attribute("data-s") != button.get_attribute("data-s")
    button.send_keys(Keys.ENTER)


def test_a_point_shows_its_values_on_hover(browser: Any, address: str) -> None:
    from selenium.webdriver import ActionChains

    open_at(browser, address, 1440, kept=True)
    hit = browser.find_element("css selector", "figure.card .hit[data-s='fa2']")
    into_sight(browser, hit)
    tip = browser.find_element("id", "tip")
    assert not tip.is_displayed()
    ActionChains(browser).move_to_element(hit).perform()
    assert tip.is_displayed()
    shown = tip.text
    assert shown == hit.get_attribute("data-tip")
    assert shown.startswith("FlashAttention-2")
    assert "× FLA, kernels (" in shown


def test_the_legend_hides_a_system(browser: Any, address: str) -> None:
    open_at(browser, address, 1440, kept=True)
    figure = browser.find_element("css selector", "figure.card")
    button = figure.find_element("css selector", ".legend button[data-s='fa2']")
    curve = figure.find_element("css selector", ".panel g[data-s='fa2']")
    assert curve.is_displayed()
    into_sight(browser, button)
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert not curve.is_displayed()
    button.click()
    assert curve.is_displayed()


@pytest.mark.parametrize("kind", ["png", pytest.param("svg", marks=pytest.mark.exhaustive)])
def test_a_figure_can_be_saved(browser: Any, address: str, kind: str) -> None:
    open_at(browser, address, 1440, kept=True)
    answer = browser.execute_async_script(
        """const done = arguments[1];
        HTMLAnchorElement.prototype.click = async function () {
          const blob = await (await fetch(this.href)).blob();
          const image = new Image();
          const styled = (await blob.text()).includes("<style>.l0{");
          image.onload = () => done([this.download, blob.type, image.naturalWidth, styled]);
          image.onerror = () => done([this.download, blob.type, "not an image: " + blob.size, styled]);
          image.src = URL.createObjectURL(blob);
        };
        document.querySelector(`.save button[data-save=${arguments[0]}]`).click();""",
        kind,
    )
    name, mime, width, styled = answer
    assert name.startswith("speedup-fla-")
    assert name.endswith(f".{kind}")
    assert mime == {"svg": "image/svg+xml", "png": "image/png"}[kind]
    assert width > 600
    assert styled is (kind == "svg")  # a drawing's looks are classes, which go with it


@WIDTHS
def test_nothing_scrolls_sideways_and_text_of_figures_is_legible(browser: Any, address: str, width: int) -> None:
    open_at(browser, address, width, kept=True)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert smallest_text(browser) >= 8


def smallest_text(browser: Any) -> float:
    """The size of the smallest text in a figure, as it is shown."""
    smallest: float = browser.execute_script(
        """let least = 99;
        for (const svg of document.querySelectorAll(".panel svg")) {
          if (!svg.getBoundingClientRect().width) continue; // of a baseline that is not chosen
          const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
          for (const text of svg.querySelectorAll("text"))
            least = Math.min(least, parseFloat(getComputedStyle(text).fontSize) * scale);
        }
        return least;"""
    )
    return smallest


def test_filters_narrow_the_table(browser: Any, address: str) -> None:
    from selenium.webdriver.support.ui import Select

    open_at(browser, address, 1440)
    everything = len(column(browser, "system"))
    browser.find_element("id", "find").send_keys("chunk_gla bwd")
    kept = set(zip(column(browser, "system"), column(browser, "mode"), strict=True))
    assert kept == {("FLA chunk_gla", "bwd"), ("FLA chunk_gla", "fwdbwd")}
    shown = browser.find_element("id", "shown").text
    assert shown.endswith(f"of {everything} cases")
    Select(browser.find_element("css selector", "select[data-column=mode]")).select_by_value("bwd")
    assert set(column(browser, "mode")) == {"bwd"}


def test_a_click_on_a_heading_sorts_both_ways_by_value(browser: Any, address: str) -> None:
    open_at(browser, address, 1440)
    before = column(browser, "time, ms")
    assert click_heading(browser, "time, ms") == "ascending"
    ascending = column(browser, "time, ms")
    assert ascending != before
    assert sorted(ascending) == sorted(before)
    numbers = [float(x.replace(",", "")) for x in ascending if x != "–"]
    assert numbers == sorted(numbers)
    assert ascending[len(numbers) :] == ["–"] * (len(ascending) - len(numbers))
    assert click_heading(browser, "time, ms") == "descending"
    numbers = [float(x.replace(",", "")) for x in column(browser, "time, ms") if x != "–"]
    assert numbers == sorted(numbers, reverse=True)
    assert click_heading(browser, "system") == "ascending"
    names = column(browser, "system")
    assert names[0].startswith("cuDNN")
    assert names[-1].startswith("PyTorch")


def test_one_mode_takes_the_width_of_its_card(browser: Any, strengths: str) -> None:
    open_at(browser, strengths, 1440, kept=True)
    shares = browser.execute_script(
        """const cards = [...document.querySelectorAll("figure.card")].filter((card) => card.offsetParent);
        return cards.map((card) => {
          const panels = [...card.querySelectorAll(".panel")].map((panel) => panel.getBoundingClientRect());
          return (panels[panels.length - 1].right - panels[0].left) / card.getBoundingClientRect().width;
        });"""
    )
    assert shares
    assert min(shares) > 0.8


@WIDTHS
def test_words_of_figures_stay_inside_their_cards(browser: Any, strengths: str, width: int) -> None:
    open_at(browser, strengths, width, kept=True)
    outside = browser.execute_script(
        """const found = [];
        for (const text of document.querySelectorAll(".panel text")) {
          const box = text.getBoundingClientRect(), card = text.closest(".card").getBoundingClientRect();
          if (box.left < card.left || box.right > card.right) found.push(text.textContent);
        }
        return found;"""
    )
    assert outside == []


@pytest.mark.parametrize("width", [360, *(pytest.param(width, marks=pytest.mark.exhaustive) for width in (420, 1400))])
def test_profiles_fit_every_width_and_load_nothing(browser: Any, profiles: str, width: int) -> None:
    open_at(browser, profiles, width, kept=True)
    assert browser.get_log("browser") == []
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width


def test_a_piece_of_a_bar_answers_all_along(browser: Any, profiles: str) -> None:
    from selenium.webdriver import ActionChains

    open_at(browser, profiles, 1400, kept=True)
    panel = browser.find_element("css selector", "#time .panel svg")
    into_sight(browser, panel)
    tip = browser.find_element("id", "tip")
    shown = []
    for hit in panel.find_elements("css selector", ".hit[data-s='output']")[:3]:
        ActionChains(browser).move_to_element(hit).perform()
        assert tip.is_displayed()
        shown.append(tip.text)
    assert len(shown) == 3
    assert len(set(shown)) == 1  # places of one piece
    assert shown[0].startswith("output\nB16 T1k H16 128")
    assert "to be won at most: " in shown[0]


def test_kernels_are_filtered(browser: Any, profiles: str) -> None:
    from selenium.webdriver.support.ui import Select

    open_at(browser, profiles, 1400)
    everything = len(column(browser, "kernel"))
    Select(browser.find_element("css selector", "select[data-column=kernel]")).select_by_value("grad_qk")
    assert set(column(browser, "kernel")) == {"grad_qk"}
    assert browser.find_element("id", "shown").text.endswith(f"of {everything} kernels")


@pytest.mark.exhaustive
def test_a_page_of_profiles_is_printed_as_large_as_others(browser: Any, strengths: str, profiles: str) -> None:
    assert printed_scales(browser, profiles) == printed_scales(browser, strengths)


def printed_scales(browser: Any, address: str) -> set[bytes]:
    """By how much Chromium scales the sheets of a page, which it shrinks where something is too wide for one."""
    open_at(browser, address, 1280)
    pdf = base64.b64decode(browser.execute_cdp_cmd("Page.printToPDF", {})["data"])
    streams = [found for found in re.findall(rb"stream\r?\n(.*?)endstream", pdf, re.DOTALL) if found[:1] == b"x"]
    contents = [zlib.decompressobj().decompress(found) for found in streams]
    # The first matrix of a sheet is that of the device, the second that of the page.
    sheets = [re.match(rb"\s*[-\d. ]+ cm\s.*?([\d.]+) 0 0 [\d.]+ [-\d. ]+ cm", text, re.DOTALL) for text in contents]
    return {sheet[1] for sheet in sheets if sheet}


@pytest.mark.parametrize("width", [360, pytest.param(1400, marks=pytest.mark.exhaustive)])
def test_claims_fit_every_width_and_load_nothing(browser: Any, claims: str, width: int) -> None:
    open_at(browser, claims, width, kept=True)
    assert browser.get_log("browser") == []
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width


def test_a_printed_number_says_which_paper_and_gpu(browser: Any, claims: str) -> None:
    from selenium.webdriver import ActionChains

    open_at(browser, claims, 1400, kept=True)
    panel = browser.find_element("css selector", "#lengths .panel svg")
    into_sight(browser, panel)
    hit = panel.find_elements("css selector", ".hit[data-s='printed:fa2']")[-1]
    ActionChains(browser).move_to_element(hit).perform()
    assert browser.find_element("id", "tip").text == "2023 paper: FlashAttention-2\n8k\n1037.1 ms\nGPU not named"


def test_all_links_are_in_sight_and_infinity_sorts_last(browser: Any, claims: str) -> None:
    open_at(browser, claims, 1400)
    assert browser.execute_script("const n = document.querySelector('nav div'); return n.scrollWidth <= n.clientWidth")
    click_heading(browser, "error %")
    shares = [share for share in column(browser, "error %") if share != "–"]
    assert shares[-1] == "∞"
    assert shares.count("∞") == sum(share == "∞" for share in shares[shares.index("∞") :])


@pytest.mark.parametrize("width", [360, 1400])
def test_a_check_fits_every_width_and_its_script_runs(
    browser: Any, board_rows: list[Row], tmp_path: Path, width: int
) -> None:
    rows = [row for row in board_rows if row.time][:4]
    found = check(rows, rows, 0.03)
    open_at(browser, written(check_page.render(found), tmp_path), width)
    assert browser.get_log("browser") == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert smallest_text(browser) >= 8
    assert browser.execute_script("return links.size") > 1  # the last parts of the script ran too
