"""The pages about topics, brokers, users and rules, in a browser: each form filled in, confirmed, its effect seen."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect
from tests.console import scene
from tests.console.running import console
from tests.support.browser import overflow_px, serious_faults

from rocketspark.admin import Admin
from rocketspark.testing import Cluster, run_cluster

pytestmark = [
    pytest.mark.browser,
    pytest.mark.shows("console: topics, brokers' settings, users and rules changed from a browser, each effect seen"),
]


def confirm(page: Page, button: str) -> None:
    """Look at what is about to be done, and do it."""
    expect(page.locator("form input[name=confirmed]")).to_have_count(1)
    assert serious_faults(page) == []
    page.locator("form:has(input[name=confirmed])").get_by_role("button", name=button).click()
    expect(page.locator(".note.good")).to_be_visible()


def test_a_topic_is_made_sent_to_changed_and_deleted(page: Page, home: str, cluster: Cluster, admin: Admin) -> None:
    page.goto(f"{home}/topics")
    page.get_by_role("link", name="New topic").click()
    assert serious_faults(page) == []
    page.get_by_label("Name").fill("browsed")
    page.get_by_label("Queues on each broker").fill("3")
    page.get_by_role("button", name="Create").click()
    assert "browsed" not in admin.list_topics()
    confirm(page, "Create")
    assert len(admin.show_topic("browsed").queues) == 6
    page.goto(f"{home}/topic?name=browsed")
    assert serious_faults(page) == []
    assert overflow_px(page) == 0
    page.get_by_role("link", name="Send", exact=True).click()
    assert serious_faults(page) == []
    assert overflow_px(page) == 0
    page.get_by_label("Body").fill("grüße\n<b>")
    page.get_by_label("Tag").fill("sale")
    page.get_by_label("Keys").fill("k1 k2")
    page.get_by_label("Properties").fill("source=browser")
    page.get_by_role("button", name="Send").first.click()
    confirm(page, "Send")
    (sent,) = scene.read(cluster, "browsed", 1)
    assert sent.body.decode().splitlines() == ["grüße", "<b>"]
    assert (sent.tag, sent.keys, sent.properties["source"]) == ("sale", ("k1", "k2"), "browser")
    page.goto(f"{home}/topic/edit?name=browsed")
    assert serious_faults(page) == []
    page.get_by_label("Queues to read").fill("5")
    page.get_by_label("Queues to write").fill("5")
    page.get_by_role("button", name="Change").click()
    confirm(page, "Change")
    assert len(admin.show_topic("browsed").queues) == 10
    page.goto(f"{home}/topic?name=browsed")
    page.get_by_role("button", name="Delete").click()
    expect(page.get_by_text("This cannot be undone.")).to_be_visible()
    confirm(page, "Delete")
    assert "browsed" not in admin.list_topics()


def test_a_broker_s_setting_is_changed(page: Page, home: str, cluster: Cluster, admin: Admin) -> None:
    page.goto(f"{home}/brokers")
    page.get_by_role("link", name="broker-a").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("broker-a")
    page.get_by_role("link", name="May change at once").click()
    page.get_by_label("Search").fill("flushIntervalCommitLog")
    expect(page.get_by_role("region", name="Table of settings").locator("tbody tr")).to_have_count(1)
    assert serious_faults(page) == []
    assert overflow_px(page) == 0
    page.get_by_role("link", name="at once flushIntervalCommitLog").click()
    assert serious_faults(page) == []
    page.get_by_label("New value").fill("321")
    page.get_by_role("button", name="Change").click()
    confirm(page, "Change")
    found = {name: {s.key: s.value for s in admin.broker_config(name)} for name in ("broker-a", "broker-b")}
    assert [found[name]["flushIntervalCommitLog"] for name in found] == ["321", "500"]


def test_a_user_and_a_rule_are_made_and_deleted(page: Page) -> None:
    with run_cluster(secure=True) as locked, Admin(locked.namesrv, **locked.client_options) as admin:
        keys = locked.client_options
        tls = {name: value for name, value in keys.items() if name.startswith(("use_tls", "tls_"))}
        with console(locked.namesrv, options=tls, requests_per_second=200) as home:
            page.goto(f"{home}/users")
            page.get_by_label("Access key").fill(keys["access_key"])
            page.get_by_label("Secret key").fill(keys["secret_key"])
            page.get_by_role("button", name="Log in").click()
            assert serious_faults(page) == []
            page.locator("#new-name").fill("eve")
            page.locator("#new-password").fill("eve-secret")
            page.get_by_role("button", name="Create").click()
            confirm(page, "Create")
            assert "eve" in {user.username for user in admin.list_users()}
            page.locator("#rule-name").fill("eve")
            page.get_by_label("Resource").fill("Topic:orders")
            page.get_by_label("Pub", exact=True).check()
            page.get_by_role("button", name="Put").click()
            confirm(page, "Allow")
            rules = page.get_by_role("region", name="Table of rules").get_by_role("row").filter(has_text="Topic:orders")
            expect(rules).to_contain_text("Allow")
            assert serious_faults(page) == []
            assert overflow_px(page) == 0
            rules.get_by_role("button", name="Delete").click()
            confirm(page, "Delete")
            user = page.get_by_role("region", name="Table of users").get_by_role("row").filter(has_text="eve")
            user.get_by_role("button", name="Delete").click()
            confirm(page, "Delete")
            assert "eve" not in {user.username for user in admin.list_users()}
