"""Every page in a browser on clusters of all kinds: empty, without a broker, away, locked, with 1,000 topics."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Page, expect
from tests.console.running import console
from tests.support.browser import Faults, overflow_px, serious_faults
from tests.support.ports import free_ports

from rocketspark import Producer
from rocketspark.admin import Admin
from rocketspark.admin.groups import GroupSettings
from rocketspark.console.navigation import NAVIGATION
from rocketspark.protocol.json import bodies
from rocketspark.protocol.json.bodies import TopicConfig
from rocketspark.testing import run_cluster

pytestmark = [
    pytest.mark.browser,
    pytest.mark.shows("console: each page in a browser on empty, broken, locked and large clusters; axe-core; narrow"),
]
PATHS = [path for _, path in NAVIGATION]
SCHEMES: tuple[Literal["dark", "light"], ...] = ("dark", "light")


def looks_right(page: Page) -> None:
    """The page has no serious fault, and fits a narrow window."""
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    assert serious_faults(page) == []
    assert overflow_px(page) == 0


def test_an_empty_cluster(page: Page) -> None:
    with run_cluster() as cluster, console(cluster.namesrv, requests_per_second=200) as home:
        for path in PATHS:
            page.goto(home + path)
            assert page.locator(".note.bad").count() == 0
            page.emulate_media(color_scheme="dark")
            assert serious_faults(page) == []
            page.emulate_media(color_scheme="light")
            looks_right(page)


def test_a_page_that_still_asks_can_be_read(page: Page) -> None:
    with run_cluster() as cluster, console(cluster.namesrv, requests_per_second=200) as home:
        page.route("**/waiting/*", lambda route: None)
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme)
            page.goto(f"{home}/waiting")
            expect(page.locator(".htmx-request .empty").first).to_have_text("Asking …")
            looks_right(page)


def test_lite_topics_are_searched_and_lead_to_one(page: Page) -> None:
    with run_cluster(lmq=True, multi_dispatch=True) as cluster, Producer(cluster.namesrv) as producer:
        with Admin(cluster.namesrv) as admin:
            admin.create_topic("chats", message_type="LITE")
            admin.put_group("agents", GroupSettings(attributes="+lite.bind.topic=chats"))
        for name in ("monday", "tuesday"):
            producer.send("chats", b"hello", lite_topic=name)
        with console(cluster.namesrv, requests_per_second=200) as home:
            page.goto(f"{home}/topic?name=chats")
            page.get_by_role("link", name="Lite topics").click()
            expect(page.get_by_role("rowheader", name="monday")).to_be_visible()
            looks_right(page)
            page.get_by_label("Search").fill("tue")
            expect(page.get_by_role("rowheader", name="monday")).to_have_count(0)
            page.get_by_role("link", name="tuesday").click()
            expect(page.get_by_role("heading", level=1)).to_contain_text("tuesday")
            expect(page.get_by_role("rowheader", name="agents")).to_be_visible()
            looks_right(page)


def test_a_cluster_that_is_away(page: Page, faults: Faults) -> None:
    with console(f"127.0.0.1:{free_ports()}") as home:
        for path in PATHS:
            page.goto(home + path)
            expect(page.get_by_role("alert").first).to_be_visible()
            looks_right(page)
    # Every page said so, as an error of what lies behind it; none failed in any other way.
    assert {line[:8] for line in faults} <= {"502: GET", "503: GET"}, faults
    faults.clear()


def test_a_locked_cluster_asks_who_it_is(page: Page, faults: Faults) -> None:
    with run_cluster(secure=True) as cluster:
        options = cluster.client_options
        tls = {name: value for name, value in options.items() if name.startswith(("use_tls", "tls_"))}
        with console(cluster.namesrv, options=tls, requests_per_second=200) as home:
            page.goto(f"{home}/groups")
            expect(page.get_by_role("heading", level=1)).to_have_text("Log in")
            looks_right(page)
            page.get_by_label("Access key").fill(options["access_key"])
            page.get_by_label("Secret key").fill("wrong")
            page.get_by_role("button", name="Log in").click()
            expect(page.get_by_role("alert")).to_be_visible()
            faults.expect("401: POST")
            page.get_by_label("Secret key").fill(options["secret_key"])
            page.get_by_role("button", name="Log in").click()
            expect(page.get_by_role("heading", level=1)).to_have_text("Groups")
            for path in PATHS:
                page.goto(home + path)
                looks_right(page)
            page.get_by_role("button", name="Log out").click()
            expect(page.get_by_role("heading", level=1)).to_have_text("Log in")


def test_a_thousand_topics_and_groups(page: Page, tmp_path: Path) -> None:
    config = tmp_path / "broker-a" / "config"
    config.mkdir(parents=True)
    topics = {f"topic-{n:04}": TopicConfig(topic_name=f"topic-{n:04}") for n in range(1000)}
    groups = {f"group-{n:03}": bodies.GroupConfig(group_name=f"group-{n:03}") for n in range(500)}
    (config / "topics.json").write_bytes(bodies.encode(bodies.TopicConfigTable(topic_config_table=topics)))
    (config / "subscriptionGroup.json").write_bytes(
        bodies.encode(bodies.GroupConfigTable(subscription_group_table=groups))
    )
    with run_cluster(store=tmp_path) as cluster, console(cluster.namesrv, requests_per_second=200) as home:
        page.goto(f"{home}/topics")
        expect(page.get_by_role("status").first).to_have_text("1\u202f000 topics")
        looks_right(page)
        page.goto(f"{home}/groups?q=group-4")
        expect(page.get_by_role("status").first).to_have_text("100 groups")
        page.get_by_role("link", name="Next").click()
        expect(page.get_by_role("rowheader", name="group-420")).to_be_visible()
        looks_right(page)
        page.goto(f"{home}/clients?page=25")
        looks_right(page)
        page.goto(f"{home}/messages?topic=topic-0999")
        expect(page.get_by_text("That is all: 0 messages")).to_be_visible()


SET_HIDDEN = """hidden => {
  Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}"""


@pytest.mark.shows("console: any number of its pages can be open in one browser")
def test_pages_that_nobody_sees_leave_their_connections_to_others(page: Page) -> None:
    with run_cluster() as cluster, console(cluster.namesrv, requests_per_second=200) as home:
        # A browser has six connections to one server. Without a head it takes each page for one that is seen.
        for _ in range(8):
            tab = page.context.new_page()
            with tab.expect_request("**/events?*"):
                tab.goto(home)
            tab.evaluate(SET_HIDDEN, True)
        with tab.expect_request("**/events?*"), tab.expect_response("**/samples?*") as response:
            tab.evaluate(SET_HIDDEN, False)
        assert response.value.ok


@pytest.mark.shows("console: figures of a page go on once the cluster, or a place, is there again")
def test_a_page_whose_figures_were_refused_asks_again(page: Page, faults: Faults) -> None:
    with run_cluster() as cluster, console(cluster.namesrv, requests_per_second=200) as home:
        for path in ("samples", "events"):
            page.route(f"**/{path}?*", lambda route: route.fulfill(status=503), times=1)
        with page.expect_response(lambda answer: "/events?" in answer.url and answer.ok):
            page.goto(home)
        faults.expect("503: GET", "503: GET")
