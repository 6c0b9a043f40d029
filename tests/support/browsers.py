"""A browser for tests that look at pages, and where their screenshots go."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Error, Page, sync_playwright


@contextmanager
def chromium() -> Iterator[Browser]:
    """A Chromium that runs; the test is skipped where there is none."""
    # Its sandbox does not start for root.
    arguments = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        path = _installed()
        if path is None and not Path(playwright.chromium.executable_path).exists():
            pytest.skip("no Chromium: neither chromium, chromium-browser nor google-chrome, nor Playwright's own")
        try:
            started = playwright.chromium.launch(executable_path=path, args=arguments)
        except Error as error:
            pytest.skip(f"{path or 'Playwright’s Chromium'} does not start: {error.message.splitlines()[0]}")
        yield started
        started.close()


# Elements that stick out of the one around them, unless that one or another around it scrolls or cuts; and elements
# that cut their content.
_OVERFLOWING = """() => {
  const name = (element) => `${element.tagName.toLowerCase()}.${element.className} ${element.textContent.trim()}`;
  const style = (element) => getComputedStyle(element);
  const scrolls = (element) => element && (style(element).overflowX !== 'visible' || scrolls(element.parentElement));
  const sticksOut = (element) => !scrolls(element.parentElement) &&
    element.getBoundingClientRect().right > element.parentElement.getBoundingClientRect().right + 1;
  const isWide = (element) => element.clientWidth > 0 && element.scrollWidth > element.clientWidth + 1;
  const elements = [...document.querySelectorAll('body *')].filter(
    (element) => element.checkVisibility() && !element.closest('svg, .sidebar-drawer, .toc-drawer'));
  const scrolling = elements.filter(
    (element) => isWide(element) && ['auto', 'scroll'].includes(style(element).overflowX));
  return {
    page: document.documentElement.scrollWidth - innerWidth,
    sticking: elements.filter(sticksOut).map(name),
    cut: elements.filter((element) => isWide(element) && style(element).overflowX === 'hidden').map(name),
    scrolling: scrolling.map(name),
    unmarked: scrolling.filter((element) => !style(element).backgroundImage.includes('gradient')).map(name),
  };
}"""


def assert_nothing_overflows(page: Page, *, may_scroll: bool) -> None:
    """Assert that the page is no wider than its window, and that nothing sticks out of its box or is cut.

    Args:
      may_scroll: whether tables and code may scroll in their boxes; a shadow must show where one goes on.
    """
    overflowing = page.evaluate(_OVERFLOWING)
    assert overflowing["page"] <= 0
    assert {kind: overflowing[kind] for kind in ("sticking", "cut", "unmarked")} == {
        "sticking": [],
        "cut": [],
        "unmarked": [],
    }
    assert may_scroll or overflowing["scrolling"] == []


def screenshot(page: Page, folder: Path, name: str) -> None:
    """Leaves a picture of the whole page in `folder`, or in SYSTOLIC_SCREENSHOTS, which `make test` sets."""
    folder = Path(os.environ.get("SYSTOLIC_SCREENSHOTS") or folder)
    folder.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=folder / f"{name}.png", full_page=True)


def _installed() -> str | None:
    """A Chromium of the system; None: Playwright's own, if it has been installed."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next((found for name in names if (found := shutil.which(name)) is not None), None)
