"""The pages about dead letters, in a browser: by group, with reasons, and chosen ones sent again once."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect
from tests.console import scene
from tests.support.browser import Faults, overflow_px, serious_faults

from rocketspark.admin import Admin
from rocketspark.model import ReceivedMessage
from rocketspark.testing import Cluster

pytestmark = [
    pytest.mark.browser,
    pytest.mark.shows("console: dead letters by group with reasons, chosen ones sent again once, in a browser"),
]

TOPIC, GROUP = "bills", "givers"


@pytest.fixture(scope="module")
def letters(cluster: Cluster) -> dict[str, ReceivedMessage]:
    """The dead letters of a group, one of each kind of message."""
    scene.fill(cluster, TOPIC, queues=1)
    return {m.keys[0]: m for m in scene.bury(cluster, GROUP, TOPIC, len(scene.BODIES))}


def place(message: ReceivedMessage) -> str:
    return f"{message.broker_name}/{message.queue_id}/{message.queue_offset}"


def test_groups_with_dead_letters_are_listed_and_lead_to_them(
    page: Page, home: str, letters: dict[str, ReceivedMessage]
) -> None:
    page.goto(f"{home}/dead-letters")
    row = page.get_by_role("region").get_by_role("row").filter(has_text=GROUP)
    expect(row.get_by_role("cell")).to_have_text(["7", f"%DLQ%{GROUP}"])
    assert serious_faults(page) == []
    row.get_by_role("link", name=GROUP).click()
    table = page.get_by_role("region", name="Table of dead letters")
    found = table.get_by_role("row").filter(has_text=place(letters["script"]))
    expect(found).to_contain_text(scene.SCRIPT.decode())
    expect(found).to_contain_text(TOPIC)
    found.get_by_role("button", name="Ask why").click()
    # What its consumer's trace says of the only attempt.
    expect(found).to_contain_text(re.compile(r"\d\d:\d\d: failed"))
    assert serious_faults(page) == []
    assert overflow_px(page) == 0
    found.get_by_role("link", name=place(letters["script"])).click()
    expect(page.locator(".timeline .bad")).to_contain_text(f"consumed by {GROUP}")


def test_chosen_letters_are_sent_again_once(
    page: Page, home: str, cluster: Cluster, admin: Admin, letters: dict[str, ReceivedMessage]
) -> None:
    before = admin.show_topic(TOPIC).message_count
    for sentence in ("2 dead letters were sent again.", "0 dead letters were sent again, 2 had been sent before."):
        page.goto(f"{home}/dead-letters?group={GROUP}")
        for kind in ("json", "image"):
            page.get_by_label(f"Pick {place(letters[kind])}", exact=True).check()
        page.get_by_role("button", name="Send those picked again").click()
        expect(page.locator("main")).to_contain_text(f"dead letters of group {GROUP} are sent again, each once")
        assert serious_faults(page) == []
        page.get_by_role("button", name="Send again").click()
        expect(page.get_by_role("status").first).to_have_text(sentence)
    assert admin.show_topic(TOPIC).message_count == before + 2
    bodies = [m.body for m in scene.read(cluster, TOPIC, before + 2)]
    assert {kind for kind, body in scene.BODIES.items() if bodies.count(body) == 2} == {"json", "image"}


def test_all_that_were_searched_for_go_to_a_topic_of_choice(
    page: Page, home: str, cluster: Cluster, admin: Admin, letters: dict[str, ReceivedMessage]
) -> None:
    admin.create_topic("second", queue_count=1, brokers=["broker-a"])
    page.goto(f"{home}/dead-letters?group={GROUP}")
    page.get_by_label("Text in the body").fill("onerror")
    page.get_by_role("button", name="Search", exact=True).click()
    expect(page.get_by_label(f"Pick {place(letters['image'])}", exact=True)).to_be_visible()
    page.get_by_label("this topic:").check()
    page.get_by_label("Topic to send to").fill("second")
    page.get_by_role("button", name="Send all").click()
    expect(page.locator("main")).to_contain_text("1 to topic second.")
    page.get_by_role("button", name="Send again").click()
    expect(page.get_by_role("status").first).to_have_text("1 dead letters were sent again.")
    assert [m.body for m in scene.read(cluster, "second", 1)] == [scene.IMAGE]


def test_nothing_picked_is_one_line(page: Page, home: str, faults: Faults, letters: dict[str, ReceivedMessage]) -> None:
    page.goto(f"{home}/dead-letters?group={GROUP}")
    page.get_by_role("button", name="Send those picked again").click()
    expect(page.get_by_role("alert")).to_have_text("pick the dead letters to send again, or take all")
    faults.expect("400: POST")
