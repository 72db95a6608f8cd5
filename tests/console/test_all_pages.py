"""Every page in a browser on Apache's servers: none fails, has a serious fault or is wider than its window."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect
from tests.console import scene
from tests.console.running import console
from tests.java.apache import ApacheCluster
from tests.support.browser import overflow_px, serious_faults
from tests.support.patience import LIMIT_MS, LIMIT_S

from rocketspark.admin import Admin
from rocketspark.console.navigation import MODULES, NAVIGATION
from rocketspark.model import ReceivedMessage

pytestmark = pytest.mark.browser

TOPIC, READERS, GIVERS = "apache-orders", "apache-readers", "apache-givers"
PAGES = [path for _, path in NAVIGATION] + [
    *([f"/topic?name={TOPIC}"] if "topic" in MODULES else []),
    f"/messages?topic={TOPIC}",
    f"/messages/tail?topic={TOPIC}",
    f"/group?name={READERS}",
    "/clients?role=producer",
    f"/dead-letters?group={GIVERS}",
]


@pytest.fixture(scope="module")
def apache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheCluster]:
    """The official NameServer and broker 5.5.0."""
    cluster = ApacheCluster(tmp_path_factory.mktemp("apache"))
    yield cluster
    cluster.close()


@pytest.fixture(scope="module")
def messages(apache: ApacheCluster) -> Iterator[dict[str, ReceivedMessage]]:
    """Messages of each kind, dead letters of a group, and a connected member of another."""
    found = scene.fill(apache, TOPIC)
    scene.bury(apache, GIVERS, TOPIC, len(found))
    with scene.member(apache, READERS, TOPIC, instance_name="reader-1"):
        yield found


@pytest.fixture(scope="module")
def home(apache: ApacheCluster, messages: dict[str, ReceivedMessage]) -> Iterator[str]:
    with console(apache.namesrv, options={"timeout_ms": LIMIT_MS}, requests_per_second=200) as url:
        yield url


@pytest.mark.parametrize("path", PAGES)
def test_each_page_opens_on_apaches_servers(page: Page, home: str, path: str) -> None:
    def notes() -> list[str]:
        page.goto(home + path)
        for piece in page.locator("[hx-trigger^=load]").all():
            expect(piece).not_to_contain_text("Asking …")
        return page.locator(".note.bad").all_inner_texts()

    until_s = time.monotonic() + LIMIT_S
    # A busy machine's broker may be late; a page says so, and the next one asks it again.
    while (found := notes()) and all("has not answered" in note for note in found) and time.monotonic() < until_s:
        pass
    assert found == []
    assert serious_faults(page) == []
    assert overflow_px(page) == 0


def test_what_pages_change_is_changed_on_apaches_servers(
    page: Page, home: str, apache: ApacheCluster, messages: dict[str, ReceivedMessage]
) -> None:
    m = messages["json"]
    with Admin(apache.namesrv) as admin:
        before = admin.show_topic(TOPIC).message_count
        page.goto(f"{home}/message?topic={TOPIC}&at={m.broker_name}/{m.queue_id}/{m.queue_offset}")
        page.get_by_label("By group").fill(READERS)
        page.get_by_role("button", name="Have it consumed").click()
        page.get_by_role("button", name="Have it consumed").click()
        expect(page.get_by_role("status").first).to_contain_text("consumed it in")
        page.get_by_role("button", name="Send again").click()
        page.get_by_role("button", name="Send again").click()
        expect(page.get_by_role("status").first).to_contain_text(f"It was sent to topic {TOPIC}")
        scene.until(lambda: admin.show_topic(TOPIC).message_count == before + 1)
        page.goto(f"{home}/group?name={GIVERS}")
        form = page.locator("section[aria-labelledby=reset]")
        form.get_by_label("Topic").fill(TOPIC)
        form.get_by_role("button").click()
        expect(page.locator("main")).to_contain_text("are consumed once more")
        page.get_by_role("button", name="Reset").click()
        expect(page.get_by_role("status").first).to_contain_text(f"Group {GIVERS} was reset")
        assert sum(each.committed or 0 for each in admin.show_progress(GIVERS, TOPIC)) == 0
