"""A real Chromium for tests of pages: the system's, headless, driven by Playwright's client, which brings none.

Rule: an error in the browser's console, a request that failed or was refused, and what the content security policy
stopped are faults of the page; a test ends with none left.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, Request, Response, expect, sync_playwright
from tests.support.patience import LIMIT_S

ROOT = Path(__file__).resolve().parents[2]
AXE = ROOT / ".setup" / "axe" / "axe.min.js"
WIDE = (1280, 900)
NARROW = (390, 844)
TABS_MAX = 200

expect.set_options(timeout=LIMIT_S * 1000)


def program() -> str:
    """The path of the browser. Fails the test without one."""
    stamp = ROOT / ".setup" / "chromium"
    found = stamp.read_text().strip() if stamp.exists() else shutil.which("chromium")
    if not found or not os.access(found, os.X_OK):
        pytest.fail("no Chromium: run make setup")
    return found


@contextmanager
def chromium() -> Iterator[Browser]:
    """A running browser. Meanwhile this thread has an event loop of Playwright's: `asyncio.run` cannot be called."""
    # Chromium's own sandbox needs a user that is not root.
    options = ["--headless=new"] + (["--no-sandbox"] if os.geteuid() == 0 else [])
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program(), args=options, timeout=LIMIT_S * 1000)
        try:
            yield browser
        finally:
            browser.close()


class Faults(list[str]):
    """What was wrong on a page so far, a line each. A test that provokes one takes it by `expect`."""

    def watch(self, page: Page) -> None:
        """Note what goes wrong on the page from now on."""
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.append(f"uncaught: {error}"))
        page.on("requestfailed", self._on_failure)
        page.on("response", self._on_response)

    def _on_console(self, message: ConsoleMessage) -> None:
        # Of a refused request the response is noted.
        if message.type in ("error", "warning") and "the server responded with a status" not in message.text:
            self.append(f"console: {message.text}")

    def _on_failure(self, request: Request) -> None:
        # Streams of events and downloads end so.
        if request.failure != "net::ERR_ABORTED":
            self.append(f"failed: {request.method} {request.url}: {request.failure}")

    def _on_response(self, response: Response) -> None:
        if response.status >= 400:
            self.append(f"{response.status}: {response.request.method} {response.url}")

    def expect(self, *beginnings: str) -> None:
        """Take the faults noted so far; they begin as given, in order."""
        found, self[:] = list(self), []
        assert len(found) == len(beginnings), found
        assert all(line.startswith(begin) for line, begin in zip(found, beginnings, strict=True)), found


@contextmanager
def watched_page(browser: Browser, faults: Faults, size: tuple[int, int] = WIDE) -> Iterator[Page]:
    """A page of a browser that knows no cookie, `size` pixels wide and high; in the end it has no fault."""
    width, height = size
    context = browser.new_context(viewport={"width": width, "height": height}, reduced_motion="reduce")
    context.set_default_timeout(LIMIT_S * 1000)
    try:
        page = context.new_page()
        faults.watch(page)
        yield page
        assert faults == [], "\n".join(faults)
    finally:
        context.close()


def serious_faults(page: Page) -> list[str]:
    """What axe-core finds on the page that is serious or critical: the rule and the first element of each."""
    if not AXE.exists():
        pytest.fail("no axe-core: run make setup")
    # By the debugger, which the page's policy does not bind.
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found: dict[str, Any] = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{v['id']}: {v['help']}: {v['nodes'][0]['html'][:200]}"
        for v in found["violations"]
        if v["impact"] in ("serious", "critical")
    ]


def overflow_px(page: Page) -> int:
    """By how many pixels the page is wider than a narrow window, which it is put into; 0 if nothing has to be scrolled
    sideways.
    """
    page.set_viewport_size({"width": NARROW[0], "height": NARROW[1]})
    # What listens for another size acts within a frame.
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    return int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


def tab_to(page: Page, target: Locator, presses_max: int = TABS_MAX) -> None:
    """Go to an element by the Tab key alone. Fails if it is not reached."""
    for _ in range(presses_max):
        page.keyboard.press("Tab")
        if target.evaluate("element => element === document.activeElement"):
            return
    pytest.fail(f"{target} is not reached by {presses_max} presses of Tab")
