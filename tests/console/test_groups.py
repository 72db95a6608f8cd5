"""The pages about groups and clients, in a browser: members, lag, reset after a dry run, modes, stacks, deletion."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect
from tests.console import scene
from tests.support.browser import Faults, overflow_px, serious_faults, tab_to

from rocketspark.admin import Admin
from rocketspark.client import Producer, PushConsumer
from rocketspark.testing import Cluster

pytestmark = [
    pytest.mark.browser,
    pytest.mark.shows(
        "console: groups with members and lag, reset after a dry run, modes; clients with stacks, in a browser"
    ),
]

TOPIC, GROUP, OFFLINE = "payments", "payers", "sleepers"


@pytest.fixture(scope="module")
def member(cluster: Cluster, admin: Admin) -> Iterator[PushConsumer]:
    """A connected member of a group that has consumed ten messages, as has one that is gone."""
    admin.create_topic(TOPIC, queue_count=1)
    with Producer(cluster.namesrv, "scene") as producer:
        producer.send_many(TOPIC, [b"%d" % n for n in range(10)])
        with scene.member(cluster, OFFLINE, TOPIC):
            scene.until(lambda: consumed(admin, OFFLINE) == 10)
        with scene.member(cluster, GROUP, TOPIC, instance_name="payer-1", commit_interval_ms=50) as joined:
            scene.until(lambda: consumed(admin, GROUP) == 10)
            yield joined


def consumed(admin: Admin, group: str) -> int:
    return sum(each.committed or 0 for each in admin.show_progress(group, TOPIC))


def test_groups_are_searched_and_lead_to_their_progress_and_members(
    page: Page, home: str, member: PushConsumer
) -> None:
    page.goto(f"{home}/groups")
    tab_to(page, page.locator("#q"))
    page.keyboard.type("paye")
    table = page.get_by_role("region", name="Table of groups")
    expect(table.locator("tbody tr")).to_have_count(1)
    expect(table.locator("tbody tr td")).to_have_text(["1", "PUSH", re.compile("^V"), "0", "0", re.compile(r"\d")])
    assert serious_faults(page) == []
    tab_to(page, table.get_by_role("link", name=GROUP))
    page.keyboard.press("Enter")
    queues = page.get_by_role("region", name="Table of queues")
    expect(queues.locator("tbody tr").filter(has_text=TOPIC)).to_have_count(2)
    expect(queues.get_by_role("link", name=re.compile("payer-1")).first).to_be_visible()
    expect(page.get_by_role("img", name="Plot of messages").locator("canvas")).to_be_visible()
    members = page.get_by_role("region", name="Table of members")
    expect(members.locator("tbody tr")).to_contain_text([f"{TOPIC}: *"])
    assert serious_faults(page) == []
    assert overflow_px(page) == 0


def test_members_that_disagree_are_marked(page: Page, home: str, cluster: Cluster, member: PushConsumer) -> None:
    with (
        scene.member(cluster, "torn", TOPIC, instance_name="torn-1"),
        scene.member(cluster, "torn", TOPIC, tags="sale", instance_name="torn-2"),
    ):
        page.goto(f"{home}/group?name=torn")
        expect(page.locator("#members + div")).to_contain_text("their subscriptions disagree")


def test_a_reset_is_shown_first_and_then_done(page: Page, home: str, admin: Admin, member: PushConsumer) -> None:
    page.goto(f"{home}/group?name={OFFLINE}")
    form = page.locator("section[aria-labelledby=reset]")
    form.get_by_label("Topic").fill(TOPIC)
    form.get_by_label("Go on at").select_option("earliest")
    form.get_by_role("button").click()
    main = page.locator("main")
    expect(main).to_contain_text(
        f"Group {OFFLINE} goes on elsewhere in topic {TOPIC}: 0 messages are passed over, 10 are consumed once more."
    )
    assert serious_faults(page) == []
    assert consumed(admin, OFFLINE) == 10
    page.get_by_role("button", name="Reset").click()
    expect(page.get_by_role("status").first).to_contain_text(f"Group {OFFLINE} was reset in 2 queues")
    assert consumed(admin, OFFLINE) == 0
    # To an offset of one queue.
    form.get_by_label("Topic").fill(TOPIC)
    form.get_by_label("Go on at").select_option("offset")
    form.get_by_label("Offset").fill("0")
    form.get_by_label("Queue").fill("0")
    form.get_by_role("button").click()
    expect(main).to_contain_text("It is there already in every queue.")


def test_a_wrong_place_is_one_line(page: Page, home: str, faults: Faults, member: PushConsumer) -> None:
    page.goto(f"{home}/group?name={OFFLINE}")
    form = page.locator("section[aria-labelledby=reset]")
    form.get_by_label("Topic").fill(TOPIC)
    form.get_by_label("Go on at").select_option("offset")
    form.get_by_label("Offset").fill("999")
    form.get_by_role("button").click()
    expect(page.get_by_role("alert")).to_contain_text("offset 999 is not in queue 0 of topic 'payments'")
    faults.expect("400: POST")


def test_a_group_is_made_and_changed(page: Page, home: str, admin: Admin, faults: Faults) -> None:
    page.goto(f"{home}/groups")
    page.get_by_role("link", name="New group").click()
    assert serious_faults(page) == []
    page.get_by_label("Name").fill("made")
    page.get_by_label("Messages in order").select_option("yes")
    page.get_by_label("Retries at most").fill("3")
    page.get_by_label("Attributes").fill("+lite.bind.topic=chats")
    page.get_by_role("button", name="Create").click()
    expect(page.locator("main")).to_contain_text("Retries at most: 3.")
    assert "made" not in admin.list_groups()
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("status").first).to_have_text("Group made was set on broker-a, broker-b.")
    form = page.locator("section[aria-labelledby=change]")
    form.get_by_label("May consume").select_option("no")
    form.get_by_role("button").click()
    expect(page.locator("main")).to_contain_text("May consume: no.")
    page.get_by_role("button", name="Change").click()
    expect(page.get_by_role("status").first).to_have_text("Group made was set on broker-a, broker-b.")
    for settings in admin.show_group("made").values():
        assert (settings.consume_enable, settings.consume_message_orderly, settings.retry_max_times) == (False, True, 3)
        assert settings.attributes == {"lite.bind.topic": "chats"}
    page.goto(f"{home}/groups/new")
    page.get_by_label("Name").fill("made")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("alert")).to_contain_text("group 'made' is there already: open it to change it")
    faults.expect("400: POST")


def test_a_group_is_set_to_pop_and_deleted(page: Page, home: str, admin: Admin, member: PushConsumer) -> None:
    admin.put_group("gone")
    page.goto(f"{home}/group?name=gone")
    form = page.locator("section[aria-labelledby=mode]")
    form.get_by_label("Topic").fill(TOPIC)
    form.get_by_label("Members").select_option("POP")
    form.get_by_role("button").click()
    page.get_by_role("button", name="Set to POP").click()
    expect(page.get_by_role("status").first).to_have_text(
        f"Group gone reads topic {TOPIC} by POP on broker-a, broker-b."
    )
    page.get_by_label("its offsets").check()
    page.get_by_role("button", name="Delete the group").click()
    expect(page.locator("main")).to_contain_text("This cannot be undone.")
    assert "gone" in admin.list_groups()
    page.get_by_role("button", name="Delete").click()
    expect(page.get_by_role("status").first).to_have_text("Group gone was deleted on broker-a, broker-b.")
    assert "gone" not in admin.list_groups()


def test_clients_are_listed_and_tell_what_they_do(page: Page, home: str, member: PushConsumer) -> None:
    page.goto(f"{home}/clients?role=producer")
    table = page.get_by_role("region", name="Table of clients")
    expect(table.locator("tbody tr").filter(has_text="scene").first).to_contain_text("broker-a")
    page.goto(f"{home}/clients?q={GROUP}")
    expect(table.locator("tbody tr")).to_have_count(1)
    assert serious_faults(page) == []
    table.get_by_role("link", name=re.compile("payer-1")).click()
    expect(page.get_by_role("heading", name=f"Consumer of {GROUP}")).to_be_visible()
    queues = page.get_by_role("region", name="Queues it reads").locator("tbody tr")
    expect(queues.filter(has_text=TOPIC)).to_have_count(2)
    page.get_by_role("link", name="Show the stacks").click()
    expect(page.get_by_role("region", name="Stacks")).to_contain_text("rocketspark")
    assert serious_faults(page) == []
    assert overflow_px(page) == 0
