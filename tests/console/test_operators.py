"""The console's pages about brokers, users and rules, and what is set aside; each effect is seen by a client."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from tests.console.support import HIDDEN, done, opened, posted
from tests.console.test_foundation import log_in, tls_of
from tests.live.support import broker, name_server, run

from rocketspark import Producer
from rocketspark.admin import Admin
from rocketspark.admin.broker_states import Replica, ReplicaSet
from rocketspark.admin.operations import AsyncAdmin
from rocketspark.console.drawing import NONE
from rocketspark.errors import SendFailed, ServerError
from rocketspark.testing import Cluster, run_cluster

pytestmark = pytest.mark.shows(
    "the console: brokers' settings, users and rules, the quarantine, changed after a confirmation"
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with run_cluster(2) as running:
        yield running


@pytest.fixture
def client(cluster: Cluster) -> Iterator[TestClient]:
    with opened(cluster.namesrv) as found:
        yield found


# -- brokers -----------------------------------------------------------------------------------------------------------


def test_every_broker_is_listed(client: TestClient, cluster: Cluster) -> None:
    page = client.get("/brokers").text
    assert all(address in page for address in cluster.brokers)
    assert page.count('<span class="tag good">master</span>') == 2


def rows(page: str) -> list[str]:
    return re.findall(r'<th scope="row" class="code">([^<]*)</th>', page)


def test_a_broker_shows_what_differs_and_what_may_change(client: TestClient, cluster: Cluster) -> None:
    address = cluster.brokers[0]
    differing = rows(client.get("/broker", params={"address": address}).text)
    assert "listenPort" in differing
    assert "flushIntervalCommitLog" not in differing
    live = rows(client.get("/broker", params={"address": address, "which": "live"}).text)
    assert "flushIntervalCommitLog" in live
    assert "listenPort" not in live
    everything = rows(client.get("/broker", params={"address": address, "which": "all"}).text)
    assert set(live) < set(everything)
    part = client.get(
        "/broker", params={"address": address, "which": "all", "q": "flushinterval"}, headers={"HX-Request": "true"}
    ).text
    assert rows(part) == [key for key in everything if "flushinterval" in key.lower()]
    assert client.get("/broker?address=nobody").status_code == 400


def test_a_setting_is_changed(client: TestClient, cluster: Cluster) -> None:
    address = cluster.brokers[1]
    fields = {"address": address, "key": "flushIntervalCommitLog", "value": "333"}
    form = client.get("/broker/setting", params={"address": address, "key": "flushIntervalCommitLog"})
    assert "default is 500" in form.text
    asked = posted(client, "/broker/setting", **fields)
    assert "flushIntervalCommitLog is 500 and becomes 333" in asked.text
    assert f"of broker-b at {address}" in asked.text
    assert "flushIntervalCommitLog is 333 now." in done(client, "/broker/setting", **fields)
    with Admin(cluster.namesrv) as admin:
        found = {name: {s.key: s.value for s in admin.broker_config(name)} for name in ("broker-a", "broker-b")}
    assert [found[name]["flushIntervalCommitLog"] for name in ("broker-a", "broker-b")] == ["500", "333"]


@pytest.mark.parametrize(
    ("key", "value", "status", "says"),
    [
        ("noSuchKey", "1", 400, "no setting"),
        ("flushIntervalCommitLog", "often", 502, "flushIntervalCommitLog"),
        ("listenPort", "1", 502, "listenPort"),
    ],
)
def test_a_setting_that_cannot_be_changed_says_why(
    client: TestClient, cluster: Cluster, key: str, value: str, status: int, says: str
) -> None:
    answer = posted(client, "/broker/setting", address=cluster.brokers[0], key=key, value=value, confirmed="yes")
    assert answer.status_code == status
    assert says in answer.text


# -- users and rules ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def locked() -> Iterator[Cluster]:
    with run_cluster(secure=True) as running:
        yield running


@pytest.fixture
def super_user(locked: Cluster) -> Iterator[TestClient]:
    with opened(locked.namesrv, options=tls_of(locked)) as client:
        keys = locked.client_options
        assert log_in(client, keys["access_key"], keys["secret_key"]).status_code == 303
        yield client


def sends(cluster: Cluster, name: str, secret: str) -> bool:
    keys = {**tls_of(cluster), "access_key": name, "secret_key": secret}
    try:
        with Producer(cluster.namesrv, group="p", retries=0, **keys) as producer:
            producer.send("orders", b"x")
    except (SendFailed, ServerError):
        return False
    return True


def test_a_user_is_made_allowed_locked_out_and_deleted(super_user: TestClient, locked: Cluster) -> None:
    client = super_user
    with Admin(locked.namesrv, **locked.client_options) as admin:
        admin.create_topic("orders", queue_count=1)
    asked = posted(client, "/users/create", username="eve", password="eve-secret", user_type="Normal")
    assert "Create the normal user eve" in asked.text
    page = done(client, "/users/create", username="eve", password="eve-secret", user_type="Normal")
    assert "User eve was created on broker-a." in page
    assert not sends(locked, "eve", "eve-secret")
    rule = {"username": "eve", "resource": "Topic:orders", "action-Pub": "yes", "decision": "Allow"}
    assert "Allow eve Pub on Topic:orders" in posted(client, "/rules/put", **rule).text
    assert "The rule of eve for Topic:orders was put on broker-a." in done(client, "/rules/put", **rule)
    assert sends(locked, "eve", "eve-secret")
    done(client, "/users/status", username="eve", status="disable")
    assert not sends(locked, "eve", "eve-secret")
    done(client, "/users/status", username="eve", status="enable")
    done(client, "/users/password", username="eve", password="other-secret")
    assert (sends(locked, "eve", "eve-secret"), sends(locked, "eve", "other-secret")) == (False, True)
    done(client, "/rules/delete", subject="User:eve", resource="Topic:orders", policy="Custom")
    assert not sends(locked, "eve", "other-secret")
    page = client.get("/users").text
    assert "No rule." in page
    assert "eve" in page
    assert "User eve was deleted on broker-a." in done(client, "/users/delete", username="eve")
    assert ">eve<" not in client.get("/users").text


def test_a_button_takes_the_rule_and_the_user_of_its_row_and_no_other(super_user: TestClient, locked: Cluster) -> None:
    def press(path: str, **row: str) -> None:
        """Press the button of a row, as the page has it, and confirm."""
        page = super_user.get("/users").text
        parts = page.split(f'<form method="post" action="{path}"')[1:]
        forms = [HIDDEN.findall(part.partition("</form>")[0]) for part in parts]
        found = [{name: unescape(value) for name, value in form} for form in forms]
        (fields,) = [each for each in found if row.items() <= each.items()]
        fields.pop("token")
        done(super_user, path, **fields)

    with Admin(locked.namesrv, **locked.client_options) as admin:
        for name in ("ann", "ann "):
            admin.create_user(name, "ann-secret")
        admin.create_acl("ann", ["Topic:bills"], ["All"], decision="Deny")
        admin.create_acl("ann", ["Topic:bills"], ["Pub"], policy_type="Default")
        press("/rules/delete", resource="Topic:bills", policy="Default")
        assert [(each.policy_type, each.decision) for each in admin.get_acl("ann")] == [("Custom", "Deny")]
        press("/users/status", username="ann ")
        press("/users/delete", username="ann ")
        assert [(each.username, each.status) for each in admin.list_users("ann")] == [("ann", "enable")]
        admin.delete_user("ann")


def test_secrets_are_in_no_page_of_users(super_user: TestClient, locked: Cluster) -> None:
    page = super_user.get("/users").text
    assert "rocketspark-inner" in page
    assert locked.client_options["secret_key"] not in page


@pytest.mark.parametrize(
    ("path", "fields", "says"),
    [
        ("/users/create", {"username": "", "password": "x"}, "a user needs a name"),
        ("/users/create", {"username": "a", "password": " "}, "not blank"),
        ("/rules/put", {"username": "a", "resource": "Topic:x"}, "a rule needs an action"),
        ("/rules/put", {"username": "a", "resource": "Nope:x", "action-Get": "yes", "confirmed": "yes"}, "Nope:x"),
    ],
)
def test_what_is_wrong_is_said(super_user: TestClient, path: str, fields: dict[str, str], says: str) -> None:
    answer = posted(super_user, path, **fields)
    assert answer.status_code == 400
    assert says in answer.text


def test_who_may_not_is_refused_by_the_cluster(locked: Cluster) -> None:
    with Admin(locked.namesrv, **locked.client_options) as admin:
        admin.create_user("small", "small-secret")
    with opened(locked.namesrv, options=tls_of(locked)) as client:
        assert log_in(client, "small", "small-secret").status_code == 303
        page = client.get("/users").text
        assert "has no permission" in page
        answer = posted(client, "/users/create", username="x", password="x-secret", confirmed="yes")
        assert answer.status_code == 403
        assert "User:small has no permission" in answer.text


def test_where_everybody_may_everything_that_is_said(client: TestClient) -> None:
    page = client.get("/users").text
    assert "Access control 2.0 is off" in page
    assert "<form" not in page


# -- what is set aside -------------------------------------------------------------------------------------------------


def test_what_is_set_aside_is_tried_again_or_dropped(tmp_path: Path) -> None:
    async def main() -> None:
        async with name_server() as namesrv, broker(tmp_path, namesrv_addresses=namesrv.address) as server:
            tried: list[str] = []
            server._quarantine.retries("pop", lambda entry: tried.append(entry.name))
            for position in (7, 9):
                server._quarantine.add("pop", "T", 1, 2, position, "rotten <b>")

            def look() -> None:
                with opened(namesrv.address) as client:
                    page = client.get("/quarantine").text
                    assert "2 set aside" in page
                    assert "rotten &lt;b&gt;" in page
                    assert "set 2 messages aside" in client.get("/").text
                    name = server.settings.broker_name
                    asked = posted(client, "/quarantine/retry", name="pop-7", broker=name)
                    assert "It lies in T, queue 1, offset 2." in asked.text
                    assert tried == []
                    done(client, "/quarantine/retry", name="pop-7", broker=name)
                    assert tried == ["pop-7"]
                    assert f"pop-9 of {name} was dropped." in done(
                        client, "/quarantine/drop", name="pop-9", broker=name
                    )
                    assert "Nothing is set aside." in client.get("/quarantine").text
                    gone = posted(client, "/quarantine/drop", name="pop-9", broker=name)
                    assert gone.status_code == 400

            await asyncio.to_thread(look)

    run(main())


def test_the_overview_tells_epochs_and_sets_in_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    async def replica_sets(self: AsyncAdmin) -> dict[str, ReplicaSet]:
        replicas = (Replica(1, "a:1", True, True), Replica(2, "a:2", True, False))
        return {"broker-a": ReplicaSet("broker-a", "c:1", "a:1", 47, 3, replicas)}

    monkeypatch.setattr(AsyncAdmin, "replica_sets", replica_sets)
    with run_cluster(brokers=2) as cluster, opened(cluster.namesrv) as client:
        page = client.get("/").text
    assert re.findall(r'<td class="n">([^<]*)</td><td class="n">(\d of \d|[^<]*)</td>', page) == [
        ("47", "1 of 2"),
        (NONE, NONE),
    ]
