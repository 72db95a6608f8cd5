"""The pictures of docs/run/console.md: eight pages of a small shop's cluster. `make pictures` takes them anew."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from tests.console import scene
from tests.console.running import console

from rocketspark.admin import Admin
from rocketspark.client import Producer
from rocketspark.model import Message, ReceivedMessage
from rocketspark.testing import run_cluster

pytestmark = pytest.mark.browser

DOCS = Path(__file__).resolve().parents[2] / "docs"
SIZE = {"width": 1200, "height": 760}
COUNT = 24
PAGES = {
    "overview": "/",
    "topics": "/topics",
    "topic": "/topic?name=orders",
    "messages": "/messages?topic=orders",
    "message": "/message?topic=orders&at=broker-a/0/0",
    "groups": "/groups",
    "group": "/group?name=shipping",
    "dead-letters": "/dead-letters?group=billing",
}


def order(number: int) -> Message:
    body = f'{{"order": {4200 + number}, "customer": "c-{number % 7}", "total": {19.9 + number:.2f}}}'
    return Message("orders", body.encode(), tag="new", keys=[f"order-{4200 + number}"])


@pytest.fixture(scope="module")
def home() -> Iterator[str]:
    """A console on a cluster of a shop: one group is up to date, one has given messages up."""

    def bill(message: ReceivedMessage) -> bool:
        return int(message.keys[0].removeprefix("order-")) % 6 != 0

    with (
        run_cluster(brokers=2, trace_topic_enabled=True) as cluster,
        Admin(cluster.namesrv) as admin,
        Producer(cluster.namesrv, "shop", trace=True) as producer,
    ):
        for topic in ("invoices", "orders", "payments", "refunds", "shipments"):
            admin.create_topic(topic, queue_count=2)
        for number in range(COUNT):
            producer.send(order(number))
        with (
            scene.member(cluster, "shipping", "orders", instance_name="shipping-1", commit_interval_ms=50, trace=True),
            scene.member(cluster, "billing", "orders", bill, instance_name="billing-1", max_reconsume_times=0),
            console(cluster.namesrv, requests_per_second=200) as url,
        ):
            dead = "%DLQ%billing"
            scene.until(lambda: dead in admin.list_topics() and admin.show_topic(dead).message_count == COUNT // 6)
            scene.until(lambda: sum(q.committed or 0 for q in admin.show_progress("shipping", "orders")) == COUNT)
            yield url


@pytest.mark.parametrize("name", PAGES)
def test_a_picture_of_each_page_is_in_the_docs(page: Page, home: str, tmp_path: Path, name: str) -> None:
    page.set_viewport_size(SIZE)
    page.goto(home + PAGES[name])
    for piece in page.locator("[hx-trigger^=load]").all():
        expect(piece).not_to_contain_text("Asking …")
    for plot in page.locator("[data-plot]").all():
        expect(plot.locator("canvas")).to_be_visible()
    assert page.locator(".note.bad").count() == 0
    # Where the cluster of the test happens to be.
    page.locator(".where").evaluate("element => { element.textContent = '127.0.0.1:9876'; }")
    file = f"console-{name}.png"
    folder = DOCS / "images" if os.environ.get("PICTURES") else tmp_path
    folder.mkdir(exist_ok=True)
    page.screenshot(path=folder / file)
    assert (folder / file).stat().st_size < 200_000
    assert re.search(rf"\]\(\.\./images/{file}\)", (DOCS / "run" / "console.md").read_text("utf-8"))
    assert (DOCS / "images" / file).exists()
