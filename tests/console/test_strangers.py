"""What strangers, pages of others and senders of messages try with a console."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from html import unescape
from typing import Any

import pytest
from tests.console.support import HIDDEN, ORIGIN, opened, posted, token_of
from tests.console.test_foundation import log_in, tls_of

from rocketspark.admin import Admin
from rocketspark.admin.operations import AsyncAdmin
from rocketspark.console import ConsoleSettings, app, make_app, server, sessions
from rocketspark.console.cluster.pace import Pace
from rocketspark.console.cluster.view import ClusterView
from rocketspark.console.content.forms import SMALL_BYTES_MAX
from rocketspark.console.pages import messages
from rocketspark.console.sessions import ATTEMPTS_OF_HOST_MAX
from rocketspark.errors import ConfigError, ServerError
from rocketspark.model.limited_log import LINES_MAX
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
        answer = client.get("/events?names=lag")
        assert (answer.status_code, "lag" in answer.text, len(told)) == (200, False, 1)


@pytest.mark.parametrize("takes", ["delete_user", "delete_acl"])
def test_figures_are_told_no_more_once_the_user_or_his_right_is_deleted(
    locked: Cluster, monkeypatch: pytest.MonkeyPatch, takes: str
) -> None:
    told = list[int]()
    monkeypatch.setattr(app, "ALLOWED_AGAIN_S", 0.0)
    with (
        Admin(locked.namesrv, **locked.client_options) as admin,
        opened(locked.namesrv, options=tls_of(locked)) as client,
    ):
        admin.create_user("leaver", "leaver-secret")
        admin.create_acl("User:leaver", ["Cluster:*"], ["Get", "List"], decision="Allow")
        assert log_in(client, "leaver", "leaver-secret").status_code == 303
        console = client.app.state.console  # type: ignore[attr-defined]
        cookie = client.cookies["rocketspark_console_80"]

        async def next_() -> tuple[float, dict[str, float]]:
            told.append(1)
            if len(told) == 2:
                await asyncio.to_thread(getattr(admin, takes), "leaver")
                console.sessions.find(cookie).view.forget()
            elif len(told) > 2:
                console.closing.set()
            return float(len(told)), {"lag": 7.0}

        monkeypatch.setattr(console.sampler, "next", next_)
        answer = client.get("/events?names=lag")
        if takes == "delete_acl":
            admin.delete_user("leaver")
    assert (answer.text.count("event: sample"), len(told)) == (1, 2)


def test_a_page_that_nobody_uses_keeps_no_session_alive(locked: Cluster) -> None:
    with opened(locked.namesrv, options=tls_of(locked)) as client:
        log_in(client, "reader", "reader-secret")
        console = client.app.state.console  # type: ignore[attr-defined]
        session = console.sessions.find(client.cookies["rocketspark_console_80"])
        session.seen_s -= 60
        seen_s = session.seen_s
        for path in ("/samples?names=lag", "/group/progress?name=billing"):
            client.get(path, headers={"HX-Request": "true"})
        client.get("/streams", headers={"HX-Request": "true"})
        assert session.seen_s == seen_s
        client.get("/topics")
        assert session.seen_s > seen_s


def test_one_user_leaves_places_of_pages_that_follow_to_others(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "STREAMS_OF_ONE_MAX", 0)
    with opened(cluster.namesrv) as client:
        # Pages ask again where the server says that it is its own fault.
        assert client.get("/events").status_code == 503


def test_pages_that_ask_at_once_to_be_kept_up_to_date_are_no_more_than_may_be(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "STREAMS_OF_ONE_MAX", 2)
    asked = list[int]()

    async def may_see(ways: Any, call: Any) -> None:
        asked.append(1)
        while len(asked) < 5:
            await asyncio.sleep(0.001)

    async def next_() -> tuple[float, dict[str, float]]:
        begun.append(1)
        # A stream that ended sooner would leave its place to another one.
        while len(begun) < 3 and sum(one.done() for one in asking) < 3:
            await asyncio.sleep(0.001)
        console.closing.set()
        return 1.0, {}

    begun, asking = list[int](), list[Future[Any]]()
    with opened(cluster.namesrv) as client, ThreadPoolExecutor(5) as threads:
        console = client.app.state.console  # type: ignore[attr-defined]
        monkeypatch.setattr(app._Ways, "_may_see_figures", may_see)
        monkeypatch.setattr(console.sampler, "next", next_)
        asking += [threads.submit(client.get, "/events") for _ in range(5)]
        # Others end at once, or are refused if they looked later.
        assert [one.result().text.partition("\n")[0] for one in asking].count("retry: 3000") == 2


def test_who_logs_in_again_and_again_ends_his_own_sessions_alone() -> None:
    kept, view = sessions.Sessions(), ClusterView("127.0.0.1:1", Pace(1), {})
    other, _ = kept.begin(sessions.Session("other", view))
    cookies, ended = list[str](), list[sessions.Session]()
    for _ in range(sessions.SESSIONS_MAX + 1):
        cookie, over = kept.begin(sessions.Session("eager", view))
        cookies.append(cookie)
        ended += over
    assert kept.find(other) is not None
    assert [kept.find(each) is not None for each in cookies[-sessions.SESSIONS_OF_ONE_MAX - 1 :]].count(False) == 1
    assert len(ended) == len(cookies) - sessions.SESSIONS_OF_ONE_MAX


def test_figures_of_a_cluster_that_is_away_are_no_fault_of_who_asks() -> None:
    with opened("127.0.0.1:1") as client:
        assert (client.get("/samples").status_code, client.get("/samples").json()) == (200, [])
    with contextlib.ExitStack() as running:
        cluster = running.enter_context(run_cluster(secure=True))
        keys = cluster.client_options
        with opened(cluster.namesrv, options=tls_of(cluster)) as client:
            assert log_in(client, keys["access_key"], keys["secret_key"]).status_code == 303
            running.close()
            assert [client.get(path).status_code for path in ("/samples", "/events")] == [502, 502]


def test_messages_are_asked_for_no_more_once_that_is_refused(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(*given: Any, **named: Any) -> Any:
        raise ServerError(16, "no permission")

    monkeypatch.setattr(messages, "_next", refused)
    with opened(cluster.namesrv) as client:
        assert client.get("/messages/tail/events?topic=orders").text.count("no permission") == 1


def test_the_lag_of_a_group_is_told_to_those_who_may_see_the_group(locked: Cluster) -> None:
    with (
        Admin(locked.namesrv, **locked.client_options) as admin,
        opened(locked.namesrv, options=tls_of(locked)) as client,
    ):
        for name in ("billing", "payroll"):
            admin.put_group(name)
        admin.create_acl("User:reader", ["Group:payroll"], ["Get"], decision="Deny")
        log_in(client, "reader", "reader-secret")
        console = client.app.state.console  # type: ignore[attr-defined]
        console.sampler.samples.append((1.0, {"lag": 9.0, "lag:billing": 2.0, "lag:payroll": 7.0}))
        named = client.get("/samples?names=lag,lag:billing,lag:payroll").json()[-1][1]
        assert (named, client.get("/samples").json()[-1][1]) == ({"lag": 9.0, "lag:billing": 2.0}, {})


def test_a_change_of_a_topic_made_anew_since_is_refused(cluster: Cluster) -> None:
    with Admin(cluster.namesrv) as admin, opened(cluster.namesrv) as client:
        admin.create_topic("renewed", queue_count=1)
        forms = {}
        for path, fields in (
            ("/topic/delete", {}),
            ("/topic/change", {"write_queues": "3"}),
            ("/topic/send", {"body": "for the old one"}),
        ):
            asked = posted(client, path, name="renewed", **fields)
            forms[path] = {name: unescape(value) for name, value in HIDDEN.findall(asked.text)} | {"confirmed": "yes"}
        admin.delete_topic("renewed")
        admin.create_topic("renewed", queue_count=1)
        for path, fields in forms.items():
            answer = client.post(path, data=fields, headers={"Origin": ORIGIN})
            assert (answer.status_code, "made anew" in answer.text) == (400, True)
        (config,) = admin.topic_configs("renewed").values()
        (queue,) = admin.topic_stats("renewed").queues
        assert (config.write_queue_nums, queue.max_offset) == (1, 0)
        # What is sent meanwhile makes it no other topic.
        asked = posted(client, "/topic/delete", name="renewed")
        fields = {name: unescape(value) for name, value in HIDDEN.findall(asked.text)}
        admin.send_message("renewed", b"meanwhile")
        assert client.post("/topic/delete", data=fields, headers={"Origin": ORIGIN}).status_code == 303


def test_silent_connections_end_and_keep_nobody_out(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "CONNECTIONS_OF_HOST_MAX", 3)

    async def answer_of(address: str) -> bytes:
        reader, writer = await asyncio.open_connection(*address.split(":"))
        writer.write(f"GET /login HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n".encode())
        found = await reader.read()
        writer.close()
        return found[:12]

    async def run() -> tuple[list[bytes], bytes]:
        running = server.ConsoleServer(ConsoleSettings(namesrv=cluster.namesrv, port=0, sample_interval_s=60))
        await running.start()
        monkeypatch.setattr(server, "REQUEST_S", 0.3)
        try:
            opened = [await asyncio.open_connection(*running.address.split(":")) for _ in range(4)]
            opened[1][1].write(b"GET /login HTTP/1.1\r\nHost: half")
            ends = [await _rest(reader) for reader, _ in opened]
            for _, writer in opened:
                writer.close()
            return ends, await answer_of(running.address)
        finally:
            await running.close()

    async def _rest(reader: asyncio.StreamReader) -> bytes:
        try:
            return await asyncio.wait_for(reader.read(), 30)
        except ConnectionError:
            return b""

    assert asyncio.run(run()) == ([b""] * 4, b"HTTP/1.1 200")


def test_a_stranger_sends_small_forms_in_one_piece_alone(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    async def answer_of(address: str, head: str, body: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(*address.split(":"))
        own = f"Host: {address}\r\nOrigin: http://{address}\r\n"
        writer.write(f"POST /login HTTP/1.1\r\n{own}{head}\r\n\r\n".encode() + body)
        found = await asyncio.wait_for(reader.readuntil(b"\r\n"), 30) if body else b""
        writer.close()
        return found

    async def run() -> list[bytes]:
        running = server.ConsoleServer(ConsoleSettings(namesrv=cluster.namesrv, port=0, sample_interval_s=60))
        await running.start()
        large = b"access_key=" + b"%41" * SMALL_BYTES_MAX
        assert running._server is not None
        state = running._server.server_state
        try:
            found = [
                await answer_of(running.address, f"Content-Length: {len(large)}", large),
                await answer_of(running.address, "Transfer-Encoding: chunked", b"1\r\nx\r\n0\r\n\r\n"),
                # Who goes before his form is whole is no fault of the console's.
                await answer_of(running.address, "Content-Length: 9", b""),
            ]
            async with asyncio.timeout(30):
                while state.connections or state.tasks:
                    await asyncio.sleep(0.01)
            return found
        finally:
            await running.close()

    assert [line[:12] for line in asyncio.run(run())] == [b"HTTP/1.1 400", b"HTTP/1.1 400", b""]
    assert "Traceback" not in caplog.text


def test_requests_that_are_none_are_a_few_lines_in_the_log(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        running = server.ConsoleServer(ConsoleSettings(namesrv=cluster.namesrv, port=0, sample_interval_s=60))
        await running.start()
        try:
            for _ in range(3 * LINES_MAX):
                reader, writer = await asyncio.open_connection(*running.address.split(":"))
                writer.write(b"no request\r\n\r\n")
                assert (await reader.read()).startswith(b"HTTP/1.1 400")
                writer.close()
        finally:
            await running.close()

    asyncio.run(run())
    assert 0 < caplog.text.count("Invalid HTTP request") <= LINES_MAX


def test_who_reads_no_answers_loses_the_connection(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "UNREAD_S", 0.3)

    async def run() -> None:
        running = server.ConsoleServer(ConsoleSettings(namesrv=cluster.namesrv, port=0, sample_interval_s=60))
        await running.start()
        assert running._server is not None
        connections = running._server.server_state.connections
        host, port = running.address.split(":")
        loop = asyncio.get_running_loop()
        with socket.socket() as link:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            link.setblocking(False)
            await loop.sock_connect(link, (host, int(port)))
            ask = f"GET /static/vendor/htmx.min.js HTTP/1.1\r\nHost: {host}\r\n\r\n"
            await loop.sock_sendall(link, ask.encode() * 300)
            async with asyncio.timeout(30):
                while not connections:
                    await asyncio.sleep(0.01)
                while connections:
                    await asyncio.sleep(0.01)
        await running.close()

    asyncio.run(run())


@pytest.mark.parametrize("proxies", [(), ("127.0.0.1",)])
def test_who_asks_at_once_gets_in_beside_silent_connections(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, proxies: tuple[str, ...]
) -> None:
    """Of one address, and of many, which those of a proxy count as: the oldest silent one gives way."""
    monkeypatch.setattr(server, "CONNECTIONS_OF_HOST_MAX", 6)
    monkeypatch.setattr(server, "CONNECTIONS_MAX", 6)
    monkeypatch.setattr(server, "REQUEST_S", 600.0)

    async def run() -> tuple[list[bytes], int]:
        settings = ConsoleSettings(namesrv=cluster.namesrv, port=0, sample_interval_s=60, trusted_proxies=proxies)
        running = server.ConsoleServer(settings)
        await running.start()
        host, port = running.address.split(":")
        silent = [await asyncio.open_connection(host, port) for _ in range(40)]
        answers = []
        try:
            for _ in range(3):
                reader, writer = await asyncio.open_connection(host, port)
                writer.write(f"GET /login HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
                answers.append((await reader.read())[:12])
                writer.close()
            # The newest ones of those that say nothing are there still.
            for reader, _ in silent[:34]:
                with contextlib.suppress(ConnectionError):
                    assert await reader.read() == b""
            return answers, sum(1 for reader, _ in silent[-2:] if not reader.at_eof())
        finally:
            for _, writer in silent:
                writer.close()
            await running.close()

    assert asyncio.run(run()) == ([b"HTTP/1.1 200"] * 3, 2)


PUBLIC = "https://console.example"


@pytest.mark.parametrize(
    ("host", "origin", "code"),
    [
        ("console.example", PUBLIC, 303),
        ("127.0.0.1:8080", PUBLIC, 303),
        ("console.example", "https://evil.example", 403),
        ("console.example", "https://console.example:8443", 403),
        ("evil.example", PUBLIC, 421),
    ],
)
def test_changes_come_through_a_proxy_that_ends_tls(cluster: Cluster, host: str, origin: str, code: int) -> None:
    with opened(cluster.namesrv, public_url=PUBLIC) as client:
        first = client.get("/topics")
        assert "; Secure" in first.headers["set-cookie"]
        assert "Strict-Transport-Security" in first.headers
        cookie = first.headers["set-cookie"].partition(";")[0]
        console = client.app.state.console  # type: ignore[attr-defined]
        token = console.sessions.token(cookie.partition("=")[2])
        headers = {"Host": host, "Origin": origin, "Cookie": cookie}
        assert client.post("/logout", data={"token": token}, headers=headers).status_code == code


def test_logins_through_a_proxy_are_bounded_by_who_it_asks_for(locked: Cluster) -> None:
    def codes(*proxies: str, many: str = "198.51.100.1", last: str = "198.51.100.2") -> list[int]:
        with opened(locked.namesrv, options=tls_of(locked), trusted_proxies=proxies, client=("10.0.0.9", 5)) as client:
            client.get("/login")
            console = client.app.state.console  # type: ignore[attr-defined]
            token = console.sessions.token(client.cookies["rocketspark_console_80"])
            fields = {"token": token, "access_key": "reader", "secret_key": "guess"}
            return [
                client.post(
                    "/login", data=fields, headers={"Origin": ORIGIN, "X-Forwarded-For": f"192.0.2.{i}, {asks}"}
                ).status_code
                for i, asks in enumerate([many.format(n) for n in range(ATTEMPTS_OF_HOST_MAX + 1)] + [last])
            ]

    refused = [401] * ATTEMPTS_OF_HOST_MAX + [429]
    assert codes("10.0.0.9") == [*refused, 401]
    assert codes() == [*refused, 429]
    # One host has as many addresses of IPv6 as it likes.
    assert codes("10.0.0.9", many="2001:db8::{}", last="2001:db8:0:1::1") == [*refused, 401]


@pytest.mark.parametrize(
    "settings",
    [{"public_url": "console.example"}, {"public_url": "https://a.example/b"}, {"trusted_proxies": ("proxy",)}],
)
def test_a_proxy_that_cannot_be_is_one_line(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="needed"):
        make_app(ConsoleSettings(**settings))


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
