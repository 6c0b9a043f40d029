"""The pages build without a warning, and hold what they are generated from."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from browsers import assert_nothing_overflows, chromium, screenshot
from playwright.sync_api import Browser, Page, expect

import systolic
from systolic.cli.commands import TASKS
from systolic.lessons import LESSONS
from systolic.lessons.ladder import RUNGS

pytestmark = pytest.mark.exhaustive

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from nothing: what was read before does not warn again."""
    pytest.importorskip("sphinx_copybutton")
    folder = tmp_path_factory.mktemp("docs")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-d", folder / "read", DOCS, folder / "html"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "html"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


def test_every_command_has_a_page_with_its_options(built: Path) -> None:
    for name in (name for commands in TASKS.values() for name in commands):
        page = (built / "generated" / "commands" / f"{name}.html").read_text("utf-8")
        assert f"systolic {name}" in page
    assert "--topology" in (built / "generated" / "commands" / "simulate.html").read_text("utf-8")


def test_two_dashes_stay_two(built: Path) -> None:
    for page in ("ladder", "lessons"):
        text = (built / "generated" / f"{page}.html").read_text("utf-8")
        assert "–chip" not in text
        assert 'class="command' in text


def test_every_lesson_and_rung_has_a_page_with_its_code(built: Path) -> None:
    for folder, names in (("lessons", LESSONS), ("ladder", RUNGS)):
        for name in names:
            page = (built / "generated" / folder / f"{name}.html").read_text("utf-8")
            assert 'class="highlight-python' in page
            assert 'id="numbers"' in page
            drawn = folder == "ladder" or name == "pipelining"
            assert (f"_images/{name}.svg" in page) == drawn


def test_every_public_name_is_on_one_page_of_the_interface(built: Path) -> None:
    pages = [page.read_text("utf-8") for page in (built / "api").glob("*.html")]
    for name in systolic.__all__:
        if name != "__version__":
            assert sum(f'id="systolic.{name}"' in page for page in pages) == 1, name


def test_every_page_but_the_last_has_its_next(built: Path) -> None:
    pages = [path for path in built.rglob("*.html") if path.parent.name != "reports"]
    without = {path.stem for path in pages if 'class="next-page"' not in path.read_text("utf-8")}
    assert without == {"changelog", "genindex", "search"}


def test_commands_are_told_from_what_they_print(built: Path) -> None:
    page = (built / "generated" / "readme.html").read_text("utf-8")
    blocks = re.findall(
        r'<div class="(?:(command)|sentences)? ?highlight-\w+ notranslate">(.*?)</div>', page, re.DOTALL
    )
    commands = [re.sub(r"<[^>]+>", "", text) for command, text in blocks if command]
    others = [re.sub(r"<[^>]+>", "", text) for command, text in blocks if not command]
    assert all(text.startswith(("systolic ", "python ", "make ")) for text in commands)
    assert any("--topology 2x2" in text for text in commands)
    # It stands in the same block of the page's source, below an empty line.
    assert any(text.startswith("simulated ") for text in others)


def test_the_gallery_has_every_report(built: Path) -> None:
    page = (built / "generated" / "gallery.html").read_text("utf-8")
    reports = re.findall(r'<iframe class="report" src="\.\./(reports/\w+\.html)"', page)
    assert len(reports) == 4
    for report in reports:
        assert "data-plot" in (built / report).read_text("utf-8")
    assert "dropped-tail" in page
    assert "examples/planted_faults.py:45" in page
    assert "µs" in (built / "_images" / "front.svg").read_text("utf-8")


PICTURED = (
    "index",
    "first_kernel",
    *(
        pytest.param(name, marks=pytest.mark.exhaustive)
        for name in (
            "trust",
            "trust/rows_v5e",
            "trust/constants",
            "operation_costs/shapes",
            "results/quantized",
            "generated/readme",
            "generated/gallery",
            "generated/ladder/v5",
            "generated/commands/explain",
        )
    ),
)


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    page = browser.new_page()
    yield page
    page.close()


@pytest.mark.parametrize("name", PICTURED)
def test_nothing_overflows(built: Path, page: Page, tmp_path: Path, name: str) -> None:
    page.goto((built / f"{name}.html").as_uri())
    for width in (1280, 500):
        page.set_viewport_size({"width": width, "height": 900})
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
            assert_nothing_overflows(page, may_scroll=width < 1280)
            screenshot(page, tmp_path, f"{name.replace('/', '-')}-{scheme}-{width}")


def test_pictures_can_be_read_on_a_phone(built: Path, page: Page) -> None:
    page.set_viewport_size({"width": 500, "height": 900})
    for name in ("index", "generated/ladder/v8", "generated/lessons/pipelining"):
        page.goto((built / f"{name}.html").as_uri())
        scales = page.evaluate(
            "[...document.querySelectorAll('article img[src$=svg]')].map((image) => image.width / image.naturalWidth)"
        )
        assert scales
        assert min(scales) > 0.95


def test_plots_are_dark_in_the_dark(built: Path, page: Page) -> None:
    page.emulate_media(color_scheme="dark")
    page.goto((built / "trust.html").as_uri())
    plot = page.locator("article img[src$='trust.png']")
    expect(plot).to_be_visible()
    assert "invert" in plot.evaluate("(image) => getComputedStyle(image).filter")


def test_tables_and_code_of_lessons_fit(built: Path, page: Page) -> None:
    page.set_viewport_size({"width": 1280, "height": 900})
    for name in LESSONS:
        page.goto((built / "generated" / "lessons" / f"{name}.html").as_uri())
        assert_nothing_overflows(page, may_scroll=False)


def test_a_frame_of_the_gallery_shows_the_first_finding(built: Path, page: Page) -> None:
    page.set_viewport_size({"width": 1280, "height": 900})
    page.goto((built / "generated" / "gallery.html").as_uri())
    frame = page.frame_locator("iframe.report").first
    finding = frame.locator("#findings tbody tr").first
    expect(finding).to_be_visible()
    height = page.locator("iframe.report").first.evaluate("(frame) => frame.clientHeight")
    assert finding.evaluate("(row) => row.getBoundingClientRect().bottom") < height
    assert [frame.locator(".verdict dt").nth(row).inner_text() for row in range(3)] == ["time", "cause", "fix"]


def test_a_command_breaks_between_its_options(built: Path, page: Page) -> None:
    page.set_viewport_size({"width": 500, "height": 900})
    page.goto((built / "explain.html").as_uri())
    options = page.locator("div.command .na")
    assert options.count() > 3
    assert options.evaluate_all("(all) => all.filter((option) => option.getClientRects().length > 1).length") == 0


def test_copy_buttons_stand_at_commands_alone(built: Path, browser: Browser) -> None:
    page = browser.new_page()
    page.goto((built / "explain.html").as_uri())
    page.wait_for_selector("button.copybtn", state="attached")
    assert page.locator("div.command button.copybtn").count() == page.locator("div.command").count() > 0
    outputs = page.locator("div.highlight-text, div.highlight-none")
    assert outputs.count() > 0
    assert outputs.locator("button.copybtn").count() == 0
    wide = page.evaluate("[...document.querySelectorAll('.command pre')].filter((e) => e.scrollWidth > e.clientWidth)")
    assert wide == []
    page.close()


def test_the_search_finds_a_function(built: Path, browser: Browser) -> None:
    page = browser.new_page()
    page.goto(f"{(built / 'search.html').as_uri()}?q=gated_matmul")
    expect(page.locator("#search-results a[href*='api/multiply.html']").first).to_be_visible(timeout=20_000)
    page.close()


def test_pages_that_people_wrote_are_reached(built: Path) -> None:
    index = (built / "index.html").read_text("utf-8")
    for page in DOCS.rglob("*.md"):
        name = page.relative_to(DOCS).with_suffix("")
        if page.stem != "index" and name.parts[0] != "generated":
            assert f'href="{name}.html"' in index, name
