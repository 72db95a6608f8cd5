"""What the other tests here rely on: a page's faults are found by the browser's watch, axe-core and the width."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, Page, Route, expect
from tests.support.browser import Faults, overflow_px, serious_faults, tab_to, watched_page

HOME = "http://console.test/"


def serve(page: Page, body: str, policy: str = "default-src 'none'; script-src 'self' 'unsafe-inline'") -> None:
    """Have the page show a document, without a server; every other address is an error of the server."""

    def answer(route: Route) -> None:
        if route.request.url == HOME:
            whole = f"<!doctype html><html lang=en><title>x</title><main><h1>x</h1>{body}</main></html>"
            route.fulfill(body=whole, content_type="text/html", headers={"content-security-policy": policy})
        else:
            route.fulfill(status=500, body="no")

    page.route("**", answer)
    page.goto(HOME)


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ("<script>console.error('alas')</script>", "console: alas"),
        ("<script>nowhere()</script>", "uncaught: nowhere is not defined"),
        ("<script src=/gone.js></script>", f"500: GET {HOME}gone.js"),
        ("<img src=/x.png alt=''>", "console: Loading the image"),
        ("<p style='color: red'>", "console: Applying inline style violates"),
    ],
)
def test_a_fault_of_a_page_fails_the_test(browser: Browser, body: str, fault: str) -> None:
    faults = Faults()

    def look() -> None:
        with watched_page(browser, faults) as page:
            serve(page, body)
            expect(page.locator("h1")).to_have_text("x")

    with pytest.raises(AssertionError):
        look()
    assert [line for line in faults if line.startswith(fault)], faults


def test_axe_the_width_and_the_keyboard_tell_faults(page: Page) -> None:
    serve(page, "<p>fine</p><a href=/a>one</a> <a href=/b>two</a>")
    assert serious_faults(page) == []
    assert overflow_px(page) == 0
    tab_to(page, page.get_by_text("two"))
    page.unroute("**")
    serve(page, "<input><pre>" + "wide " * 100 + "</pre>")
    assert [line.split(":")[0] for line in serious_faults(page)] == ["label"]
    assert overflow_px(page) > 1000
    with pytest.raises(pytest.fail.Exception):
        tab_to(page, page.locator("pre"), presses_max=5)
