"""What strangers, pages of others and senders of messages try with a console."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.console.support import ORIGIN, opened, posted, token_of
from tests.console.test_foundation import log_in, tls_of

from rocketspark.admin import Admin
from rocketspark.admin.operations import AsyncAdmin
from rocketspark.console.pages import messages
from rocketspark.console.sessions import ATTEMPTS_OF_HOST_MAX
from rocketspark.testing import Cluster, run_cluster

pytestmark = pytest.mark.shows("the console: strangers, pages of others, sessions that ended, names without end")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with run_cluster() as running, Admin(running.namesrv) as admin:
        admin.create_topic("orders", queue_count=2)
        yield running


def test_made_up_keys_are_no_login_where_the_cluster_asks_for_none(cluster: Cluster) -> None:
    with opened(cluster.namesrv, login=True) as client:
        answer = log_in(client, "stranger", "anything")
        assert (answer.status_code, "a login proves nothing" in answer.text) == (401, True)
        assert client.get("/topics").status_code == 303


@pytest.fixture(scope="module")
def locked() -> Iterator[Cluster]:
    with run_cluster(secure=True) as running, Admin(running.namesrv, **running.client_options) as admin:
        admin.create_topic("orders", queue_count=1)
        admin.create_user("reader", "reader-secret")
        admin.create_acl("User:reader", ["Cluster:*", "Topic:*", "Group:*"], ["Get", "List", "Sub"], decision="Allow")
        yield running


def test_messages_are_told_no_more_once_the_session_ended(locked: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[int]()
    real = messages._next
    with opened(locked.namesrv, options=tls_of(locked)) as client:
        log_in(client, "reader", "reader-secret")
        console = client.app.state.console  # type: ignore[attr-defined]
        cookie = client.cookies["rocketspark_console_80"]

        async def next_(admin: AsyncAdmin, **wanted: Any) -> Any:
            asked.append(1)
            found = await real(admin, **wanted)
            if len(asked) == 1:
                console.sessions.end(cookie)
            else:
                console.closing.set()
            return found

        monkeypatch.setattr(messages, "_next", next_)
        assert client.get("/messages/tail/events?topic=orders").status_code == 200
        assert (len(asked), console.tails) == (1, 0)


def test_figures_are_told_no_more_once_the_session_ended(locked: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    told = list[int]()
    with opened(locked.namesrv, options=tls_of(locked)) as client:
        log_in(client, "reader", "reader-secret")
        console = client.app.state.console  # type: ignore[attr-defined]
        cookie = client.cookies["rocketspark_console_80"]

        async def next_() -> tuple[float, dict[str, float]]:
            told.append(1)
            if len(told) == 1:
                console.sessions.end(cookie)
            else:
                console.closing.set()
            return 1.0, {"lag": 7.0}

        monkeypatch.setattr(console.sampler, "next", next_)
        answer = client.get("/events")
        assert (answer.status_code, "lag" in answer.text, len(told)) == (200, False, 1)


def test_who_tries_many_keys_at_once_has_no_more_tries(locked: Cluster) -> None:
    with opened(locked.namesrv, options=tls_of(locked)) as client:
        client.get("/login")
        console = client.app.state.console  # type: ignore[attr-defined]
        token = console.sessions.token(client.cookies["rocketspark_console_80"])

        def guess(number: int) -> int:
            fields = {"token": token, "access_key": "reader", "secret_key": f"guess{number}"}
            return int(client.post("/login", data=fields, headers={"Origin": ORIGIN}).status_code)

        with ThreadPoolExecutor(12) as pool:
            codes = sorted(pool.map(guess, range(12)))
    assert codes == [401] * ATTEMPTS_OF_HOST_MAX + [429] * (12 - ATTEMPTS_OF_HOST_MAX)


def test_who_gets_in_is_not_counted_as_one_who_failed(locked: Cluster) -> None:
    with opened(locked.namesrv, options=tls_of(locked)) as client:
        codes = [log_in(client, "reader", "reader-secret").status_code for _ in range(ATTEMPTS_OF_HOST_MAX + 2)]
    assert codes == [303] * (ATTEMPTS_OF_HOST_MAX + 2)


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}, 403),
        ({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}, 200),
        ({"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty"}, 200),
    ],
)
def test_pages_of_others_draw_nothing_in(cluster: Cluster, headers: Mapping[str, str], code: int) -> None:
    with opened(cluster.namesrv) as client:
        assert client.get("/messages?topic=orders", headers=headers).status_code == code


def test_a_link_on_a_page_of_others_ends_no_session(cluster: Cluster) -> None:
    followed = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    with opened(cluster.namesrv) as client:
        # The browser does not send the cookie that it has.
        first = client.get("/topics", headers=followed)
        assert ("set-cookie" in first.headers, 'http-equiv="refresh"' in first.text) == (False, True)
        token_of(client)
        assert "<h1>Topics</h1>" in client.get("/topics", headers=followed).text


def test_a_confirmation_is_read_whole_however_long_it_is(cluster: Cluster) -> None:
    places = [f"10.0.{i}.0/24" for i in range(60)]
    rule = {"username": "app", "resource": f"Topic:{'t' * 120}", "source_ips": ", ".join(places)}
    with opened(cluster.namesrv) as client:
        page = posted(client, "/rules/put", **rule, **{"action-Pub": "yes"}).text
    title = re.search("<h1>(.*)</h1>", page)
    assert title is not None
    assert title[1].endswith(", ".join(places))
