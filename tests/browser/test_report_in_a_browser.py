"""The page of an explanation in a real browser: it draws, it loads nothing, it fits, and its timelines can be moved.

Screenshots are left in build/screenshots by `make test`, else in pytest's folder of the test.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
from browsers import assert_nothing_overflows, chromium, screenshot
from explanations import a_hostile_one, an_explanation
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, expect
from slices import a_slice_explanation

from systolic.report import explanation_page

PLOTS = ["roofline", "overview", "window-1", "window-2", "window-3", "vmem", "units", "traffic"]
DOMAIN = "(name) => document.querySelector(`#plot-${name}`).systolicView.scale('x').domain()"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "explained.html"
    path.write_text(explanation_page(an_explanation()), encoding="utf-8")
    return path


class Watched:
    """A page, and what it did that it should not."""

    def __init__(self, page: Page, file: Path) -> None:
        self.page = page
        self.requests: list[str] = []
        self.complaints: list[str] = []
        page.on("request", self._request)
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.goto(file.as_uri())
        page.wait_for_selector("html[data-drawn]", state="attached", timeout=60_000)

    def _request(self, request: Request) -> None:
        self.requests.append(request.url)

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)


def opened(browser: Browser, file: Path, *, scheme: str = "light", width: int = 1280, height: int = 900) -> Watched:
    page = browser.new_page(
        color_scheme="dark" if scheme == "dark" else "light", viewport={"width": width, "height": height}
    )
    return Watched(page, file)


@pytest.mark.exhaustive
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 500])
def test_it_draws_fits_and_loads_nothing(browser: Browser, file: Path, tmp_path: Path, scheme: str, width: int) -> None:
    check_drawing(browser, file, PLOTS, tmp_path, scheme=scheme, width=width)


@pytest.mark.exhaustive
@pytest.mark.parametrize("width", [1280, 500])
def test_a_slice_is_drawn(browser: Browser, tmp_path: Path, width: int) -> None:
    file = tmp_path / "slice.html"
    file.write_text(explanation_page(a_slice_explanation()), encoding="utf-8")
    check_drawing(browser, file, [PLOTS[0], "slice", *PLOTS[1:]], tmp_path, scheme="light", width=width)


def check_drawing(browser: Browser, file: Path, plots: list[str], folder: Path, *, scheme: str, width: int) -> None:
    """Assert that a page draws these plots, that nothing overflows, and that it asks for nothing."""
    watched = opened(browser, file, scheme=scheme, width=width)
    page = watched.page
    drawn = page.evaluate(
        "() => Object.fromEntries([...document.querySelectorAll('.plot')].map((plot) => [plot.dataset.plot,"
        " plot.querySelectorAll('svg .mark-rect path, svg .mark-symbol path').length]))"
    )
    assert list(drawn) == plots
    assert all(marks > 0 for marks in drawn.values()), drawn
    assert_nothing_overflows(page, may_scroll=width < 1280)
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 28)"
    assert dark == (scheme == "dark")
    screenshot(page, folder, f"{file.stem}-{scheme}-{width}")
    assert watched.requests == [file.as_uri()]
    assert watched.complaints == []
    page.close()


def test_text_can_be_read_in_both_schemes(browser: Browser, file: Path) -> None:
    """WCAG's contrast of 4.5 for text, and of 3 for the colours of plots, against the page."""
    watched = opened(browser, file)
    contrast = """(names) => {
      const place = document.createElement('i');
      document.body.append(place);
      const light = (name) => {
        place.style.color = `var(--${name})`;
        const parts = getComputedStyle(place).color.match(/[\\d.]+/g).slice(0, 3).map((part) => part / 255);
        const [r, g, b] = parts.map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05;
      };
      const ratio = (a, b) => Math.max(light(a), light(b)) / Math.min(light(a), light(b));
      return Object.fromEntries(names.map(([a, b]) => [`${a} on ${b}`, ratio(a, b)]));
    }"""
    tones = ["read", "written", "moved", "matrix", "code", "wait", "this", "xla", "other", "change"]
    text = [(ink, "paper") for ink in ("ink", "ink-soft", "wait-ink", "this", "matrix", "xla", "other")]
    text += [("ink", "panel"), ("ink-soft", "panel"), ("ink", "track")]
    text += [("on-bar", tone) for tone in tones[:7]]
    for scheme in ("light", "dark"):
        watched.page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
        found = watched.page.evaluate(contrast, text)
        assert {pair: ratio for pair, ratio in found.items() if ratio < 4.5} == {}, scheme
        found = watched.page.evaluate(contrast, [(tone, "paper") for tone in tones])
        assert {pair: ratio for pair, ratio in found.items() if ratio < 3} == {}, scheme
    watched.page.close()


@pytest.mark.exhaustive
def test_the_scheme_follows_the_system_and_the_button(browser: Browser, file: Path, tmp_path: Path) -> None:
    watched = opened(browser, file)
    page = watched.page
    colour = (
        "() => getComputedStyle(document.querySelector('#plot-units .role-axis-label text')).fill"
        " + getComputedStyle(document.body).backgroundColor"
    )
    light = page.evaluate(colour)
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate(colour)
    assert light != dark
    expect(page.locator("#scheme")).to_have_text("☀ light")  # the page is told a moment later
    page.click("#scheme")
    assert page.evaluate(colour) == light
    page.click("#scheme")
    assert page.evaluate(colour) == dark
    # Paper is white.
    page.emulate_media(media="print")
    assert page.evaluate(colour) == light
    page.pdf(path=tmp_path / "printed.pdf")
    assert watched.complaints == []
    page.close()


def test_a_timeline_can_be_zoomed_and_moved(browser: Browser, file: Path) -> None:
    watched = opened(browser, file)
    page = watched.page
    first = page.evaluate(DOMAIN, "window-1")
    assert first == [0, 7.4]
    plot = page.locator("#plot-window-1")
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    assert box is not None
    middle = (box["x"] + box["width"] / 2, box["y"] + 60)
    page.mouse.move(*middle)

    # The wheel alone scrolls the page: a page full of plots could not be read otherwise.
    before = page.evaluate("window.scrollY")
    page.mouse.wheel(0, 40)
    page.wait_for_function("(before) => window.scrollY !== before", arg=before)
    assert page.evaluate(DOMAIN, "window-1") == first
    plot.scroll_into_view_if_needed()
    page.evaluate("(before) => window.scrollTo({ top: before, behavior: 'instant' })", before)
    page.mouse.move(*middle)

    labels = "() => document.querySelector('#plot-window-1 .role-axis-label').textContent"
    shown = page.evaluate(labels)
    page.keyboard.down("Control")
    page.mouse.wheel(0, -400)
    page.keyboard.up("Control")
    page.wait_for_function(f"(first) => ({DOMAIN})('window-1')[0] > first", arg=first[0])
    begin, end = page.evaluate(DOMAIN, "window-1")
    assert end - begin < 7.4
    assert page.evaluate(labels) != shown

    page.mouse.down()
    page.mouse.move(middle[0] - 120, middle[1], steps=4)
    page.mouse.up()
    page.wait_for_function(f"(begin) => ({DOMAIN})('window-1')[0] > begin", arg=begin)

    page.mouse.dblclick(*middle)
    page.wait_for_function(f"() => ({DOMAIN})('window-1')[1] === 7.4")
    for how in ("in", "right", "out", "left"):
        now = page.evaluate(DOMAIN, "window-1")
        page.click(f"button[data-of='window-1'][data-zoom='{how}']")
        page.wait_for_function(f"(now) => ({DOMAIN})('window-1').some((edge, at) => edge !== now[at])", arg=now)
    page.click("button[data-of='window-1'][data-zoom='reset']")
    page.wait_for_function(f"() => ({DOMAIN})('window-1')[1] === 7.4")
    assert watched.complaints == []
    page.close()


# Pairs of words of one plot that lie upon each other, by more than the white around a letter.
OVERLAPS = """() => [...document.querySelectorAll('.plot')].flatMap((plot) => {
  const words = [...plot.querySelectorAll('svg text')].filter(
    (each) => each.textContent.trim() && Number(getComputedStyle(each).opacity) > 0); // no room: not shown
  const boxes = words.map((each) => [each.textContent, each.getBoundingClientRect()]);
  return boxes.flatMap(([one, a], at) => boxes.slice(at + 1).filter(([, b]) =>
    Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 &&
    Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 2.5
  ).map(([other]) => [plot.dataset.plot, one, other]));
})"""


@pytest.mark.exhaustive
def test_no_words_lie_upon_others_on_a_narrow_screen(browser: Browser, tmp_path: Path) -> None:
    # Programs that are about as fast as each other have points, and names, in about the same place.
    made = an_explanation()
    xla = next(each for each in made.programs if each.role == "xla")
    near = dataclasses.replace(xla, label="systolic.matmul", role="other", run=None)
    path = tmp_path / "near.html"
    path.write_text(explanation_page(dataclasses.replace(made, programs=(*made.programs, near))), encoding="utf-8")
    watched = opened(browser, path, width=500)
    assert watched.page.locator("#plot-roofline text", has_text="systolic.matmul").count() == 1
    assert watched.page.evaluate(OVERLAPS) == []
    watched.page.close()


def test_a_bar_says_what_it_is(browser: Browser, file: Path) -> None:
    watched = opened(browser, file)
    page = watched.page
    page.locator("#plot-window-1 .mark-rect path").nth(1).hover(force=True)
    tip = page.locator("#vg-tooltip-element.visible")
    tip.wait_for()
    assert "copy hbm → vmem, 1 MiB" in tip.inner_text()
    assert watched.complaints == []
    page.close()


@pytest.mark.exhaustive
def test_hostile_names_stay_text(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "hostile.html"
    path.write_text(explanation_page(a_hostile_one()), encoding="utf-8")
    watched = opened(browser, path)
    page = watched.page
    page.locator("#plot-vmem .mark-rect path").first.hover(force=True)
    page.locator("#vg-tooltip-element.visible").wait_for()
    assert page.locator("b#hacked").count() == 0
    assert "</script><b id='hacked'>" in page.inner_text("h1")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert watched.requests == [path.as_uri()]
    assert watched.complaints == []
    page.close()
