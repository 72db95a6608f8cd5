"""What stands before and below every page of the console."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import json
import re
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.console.support import ORIGIN, log_in, opened, posted, token_of
from tests.support import plain_acl_rows

from rocketspark import console, machine
from rocketspark.access import audit
from rocketspark.admin import Admin
from rocketspark.cli.serving.serve import loop_factory
from rocketspark.console import ConsoleServer, ConsoleSettings, make_app, routes, server, sessions, state
from rocketspark.console.cluster.pace import Pace, TooBusy
from rocketspark.console.content.decoded import SCHEMA_CHARACTERS_MAX
from rocketspark.console.guard import HEADERS, host_name
from rocketspark.console.sessions import ATTEMPTS_OF_HOST_MAX
from rocketspark.errors import ConfigError
from rocketspark.testing import Cluster, run_cluster

pytestmark = pytest.mark.shows("the console: what stands before its pages: headers, hosts, tokens, login, pace")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with run_cluster(2) as running, Admin(running.namesrv) as admin:
        admin.create_topic("orders", queue_count=2)
        yield running


@pytest.fixture
def client(cluster: Cluster) -> Iterator[TestClient]:
    with opened(cluster.namesrv) as found:
        yield found


@pytest.mark.parametrize("path", ["/", "/topics", "/login", "/nowhere", "/static/console.css"])
def test_every_answer_has_the_headers_of_safety(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert {name: answer.headers[name] for name in HEADERS} == HEADERS
    assert "'unsafe" not in answer.headers["Content-Security-Policy"]
    assert ("Cache-Control" in answer.headers) == (not path.startswith("/static/"))


def test_the_cookie_is_for_this_site_alone(client: TestClient) -> None:
    cookie = client.get("/").headers["set-cookie"]
    assert re.fullmatch(r"rocketspark_console_80=[\w-]{43}; HttpOnly; Path=/; SameSite=strict", cookie)
    assert "set-cookie" not in client.get("/").headers


@pytest.mark.parametrize(
    ("host", "code"),
    [
        ("127.0.0.1:8080", 200),
        ("[::1]:8080", 200),
        ("localhost:80", 200),
        ("10.1.2.3", 200),
        ("console.example", 200),
        ("evil.example:8080", 421),
        ("127.0.0.1.evil.example", 421),
        ("", 421),
    ],
)
def test_a_name_that_only_leads_here_is_refused(cluster: Cluster, host: str, code: int) -> None:
    with opened(cluster.namesrv, public_names=("console.example",)) as client:
        assert client.get("/", headers={"Host": host}).status_code == code


def test_host_names() -> None:
    hosts = ("a:1", "[::1]:80", "::1", "A.B", "")
    assert [host_name(host) for host in hosts] == ["a", "::1", "::1", "a.b", ""]


def test_the_overview_tells_of_every_broker(client: TestClient, cluster: Cluster) -> None:
    page = client.get("/").text
    for name, address in zip(("broker-a", "broker-b"), cluster.brokers, strict=True):
        assert name in page
        assert address in page
    assert "2 of 2" in page
    assert page.count("V5_5_0") == 2


@pytest.mark.parametrize("headers", [{}, {"Origin": "http://evil.example"}, {"Origin": "null"}])
def test_a_change_from_elsewhere_is_refused(client: TestClient, headers: dict[str, str]) -> None:
    answer = client.post("/logout", data={"token": token_of(client)}, headers=headers)
    assert answer.status_code == 403


@pytest.mark.parametrize("site", ["cross-site", "same-site", "none"])
def test_a_change_that_the_browser_says_is_from_elsewhere_is_refused(client: TestClient, site: str) -> None:
    headers = {"Origin": ORIGIN, "Sec-Fetch-Site": site}
    assert client.post("/logout", data={"token": token_of(client)}, headers=headers).status_code == 403


def test_a_token_holds_in_its_session_alone(client: TestClient, cluster: Cluster) -> None:
    other = token_of(client)
    client.cookies.clear()
    client.get("/")
    for token in (other, "", "0" * 64, "\u00e9"):
        answer = client.post("/logout", data={"token": token}, headers={"Origin": ORIGIN})
        assert answer.status_code == 403
        assert "from another session" in answer.text


def test_a_form_that_is_too_large_is_refused(client: TestClient) -> None:
    answer = client.post("/logout", content=b"a" * (9 << 20), headers={"Origin": ORIGIN})
    assert answer.status_code == 413

    def pieces() -> Iterator[bytes]:
        for _ in range(9):
            yield b"a" * (1 << 20)

    answer = client.post("/logout", content=pieces(), headers={"Origin": ORIGIN})
    assert answer.status_code == 400


def test_a_page_that_is_not_there_says_so(client: TestClient) -> None:
    answer = client.get("/nowhere")
    assert answer.status_code == 404
    assert "there is no such page" in answer.text


def test_a_cluster_that_is_down_is_one_line() -> None:
    with opened("127.0.0.1:1") as client:
        answer = client.get("/")
    assert answer.status_code == 502
    assert "127.0.0.1:1" in answer.text
    assert "Traceback" not in answer.text


def test_samples_come_and_are_told_as_events(cluster: Cluster) -> None:
    settings = ConsoleSettings(namesrv=cluster.namesrv, port=0, sample_interval_s=0.05, samples_max=3)
    wanted = {"put_rate", "get_rate", "disk", "lag", "put_rate:broker-a", "put_rate:broker-b"}

    async def events(address: str) -> list[Any]:
        host, port = address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        names = ",".join(wanted)
        writer.write(f"GET /events?names={names} HTTP/1.1\r\nHost: {address}\r\n\r\n".encode())
        found: list[Any] = []
        while len(found) < 2:
            line = await reader.readline()
            if line.startswith(b"data: "):
                found.append(json.loads(line[6:]))
        writer.close()
        return found

    async def run() -> list[Any]:
        server = ConsoleServer(settings)
        await server.start()
        try:
            async with asyncio.timeout(20):
                return await events(server.address)
        finally:
            await server.close()

    first, second = asyncio.run(run())
    assert first[0] < second[0]
    assert wanted == set(second[1])


def test_a_console_ends_while_pages_are_kept_up_to_date(cluster: Cluster) -> None:
    async def run() -> float:
        server = ConsoleServer(ConsoleSettings(namesrv=cluster.namesrv, port=0, sample_interval_s=60))
        await server.start()
        host, port = server.address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"GET /events HTTP/1.1\r\nHost: {server.address}\r\n\r\n".encode())
        while b"retry" not in await reader.readline():
            pass
        began = time.monotonic()
        await server.close()
        writer.close()
        return time.monotonic() - began

    assert asyncio.run(run()) < 2.5


# -- pace --------------------------------------------------------------------------------------------------------------


def test_no_broker_is_asked_more_often_than_that() -> None:
    async def run() -> tuple[list[float], int]:
        pace, left_s = Pace(50), list[float]()
        for _ in range(75):
            await pace.turn("a:1")
            left_s.append(machine.monotonic())
        for _ in range(10):
            await pace.turn("b:1")
        return left_s, pace.sent

    left_s, sent = asyncio.run(run())
    assert sent == 85
    assert all(later - earlier >= 1.0 for earlier, later in zip(left_s, left_s[50:], strict=False))


def test_a_user_who_asks_for_much_keeps_nobody_from_the_brokers() -> None:
    async def run() -> tuple[int, list[str]]:
        pace, left = Pace(40), list[str]()

        async def ask(who: str) -> None:
            await pace.turn("a:1", who)
            left.append(who)

        greedy = [asyncio.ensure_future(ask("greedy")) for _ in range(1000)]
        await asyncio.sleep(0)
        refused = sum(one.done() and isinstance(one.exception(), TooBusy) for one in greedy)
        # One that is given up keeps no place.
        gone = asyncio.ensure_future(ask("gone"))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.gather(*(ask("other") for _ in range(3)))
        for one in greedy:
            one.cancel()
        return refused, left

    refused, left = asyncio.run(run())
    assert refused > 600
    first = left.index("other")
    assert left[first : first + 5] == ["other", "greedy", "other", "greedy", "other"]


def test_who_would_wait_too_long_is_told() -> None:
    async def run() -> int:
        pace = Pace(1)
        asked = [asyncio.ensure_future(pace.turn("a:1")) for _ in range(20)]
        await asyncio.sleep(0)
        refused = [one for one in asked if one.done() and isinstance(one.exception(), TooBusy)]
        for one in asked:
            one.cancel()
        return len(refused)

    assert asyncio.run(run()) == 12


def test_a_hundred_looks_are_few_requests(cluster: Cluster) -> None:
    with opened(cluster.namesrv, sample_interval_s=60) as client:
        client.get("/")
        client.get("/topics")
        console = client.app.state.console  # type: ignore[attr-defined]
        before = console.pace.sent
        for _ in range(50):
            assert client.get("/").status_code == client.get("/topics").status_code == 200
        assert console.pace.sent - before <= 12


@pytest.mark.shows("mended: a schema of over some 10,000 characters was no request to the console")
def test_the_longest_schema_fits_in_an_address(cluster: Cluster) -> None:
    async def run() -> bytes:
        running = server.ConsoleServer(ConsoleSettings(namesrv=cluster.namesrv, port=0, sample_interval_s=60))
        await running.start()
        reader, writer = await asyncio.open_connection(*running.address.split(":"))
        schema = "%7B" * SCHEMA_CHARACTERS_MAX
        head = f"GET /message/decoded?kind=avro&schema={schema} HTTP/1.1\r\nHost: {running.address}\r\n"
        try:
            for at in range(0, len(head), 8192):
                writer.write(head[at : at + 8192].encode())
                await writer.drain()
                # As pieces of a network: each is read by itself.
                await asyncio.sleep(0.001)
            writer.write(b"Connection: close\r\n\r\n")
            return await reader.read()
        finally:
            writer.close()
            await running.close()

    assert asyncio.run(run()).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("route", [r.path for r in routes.all_routes() if isinstance(r, routes.ChangeRoute)])
def test_a_form_without_its_fields_is_told_so(client: TestClient, route: str) -> None:
    assert posted(client, route, confirmed="yes").status_code == 400
    assert posted(client, route, group="billing", topic="orders", name="x", at="broker-a/0/0").status_code != 500


# -- login -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def locked() -> Iterator[Cluster]:
    with run_cluster(secure=True) as running, Admin(running.namesrv, **running.client_options) as admin:
        admin.create_user("reader", "reader-secret")
        admin.create_user("nobody", "nobody-secret")
        admin.create_acl("User:reader", ["Cluster:*", "Topic:*", "Group:*"], ["Get", "List"], decision="Allow")
        yield running


def tls_of(cluster: Cluster) -> dict[str, Any]:
    return {name: value for name, value in cluster.client_options.items() if "key" not in name}


def test_where_the_cluster_asks_for_keys_a_user_logs_in(locked: Cluster) -> None:
    with opened(locked.namesrv, options=tls_of(locked)) as client:
        asked = client.get("/topics?kind=user")
        assert (asked.status_code, asked.headers["location"]) == (303, "/login?next=%2Ftopics%3Fkind%3Duser")
        assert client.get("/samples").status_code == 401
        before = client.cookies["rocketspark_console_80"]
        came = log_in(client, "reader", "reader-secret")
        assert (came.status_code, came.headers["location"]) == (303, "/topics")
        # A cookie that somebody planted before is worth nothing.
        assert client.cookies["rocketspark_console_80"] != before
        page = client.get("/topics")
        assert (page.status_code, "reader" in page.text, "reader-secret" in page.text) == (200, True, False)
        assert posted(client, "/logout").headers["location"] == "/login"
        assert client.get("/topics").status_code == 303


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, loop_factory()])
def test_handshakes_that_are_never_done_are_bounded(
    locked: Cluster, monkeypatch: pytest.MonkeyPatch, loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    monkeypatch.setattr(server, "CONNECTIONS_OF_HOST_MAX", 3)
    cert = Path(locked.client_options["tls_ca"])
    settings = ConsoleSettings(
        namesrv=locked.namesrv,
        port=0,
        sample_interval_s=60,
        tls_cert=str(cert),
        tls_key=str(cert.with_name("key.pem")),
        options=locked.client_options,
    )

    async def run() -> bytes:
        running = server.ConsoleServer(settings)
        await running.start()
        address = running.address.split(":")
        silent = [await asyncio.open_connection(*address) for _ in range(6)]
        try:
            # The oldest three gave way.
            for reader, _ in silent[:3]:
                with contextlib.suppress(ConnectionError):
                    assert await asyncio.wait_for(reader.read(), 30) == b""
            assert not any(reader.at_eof() for reader, _ in silent[3:])
            trusts = ssl.create_default_context(cafile=cert)
            reader, writer = await asyncio.open_connection(*address, ssl=trusts)
            writer.write(f"GET /login HTTP/1.1\r\nHost: {address[0]}\r\nConnection: close\r\n\r\n".encode())
            found = await reader.read()
            writer.close()
            return found[:12]
        finally:
            for _, writer in silent:
                writer.close()
            await running.close()

    with asyncio.Runner(loop_factory=loop) as runner:
        assert runner.run(run()) == b"HTTP/1.1 200"


def test_the_users_rules_decide(locked: Cluster) -> None:
    with opened(locked.namesrv, options=tls_of(locked)) as client:
        assert log_in(client, "nobody", "nobody-secret").status_code == 303
        answer = client.get("/topics")
        assert answer.status_code == 403
        assert "User:nobody has no permission" in answer.text


@pytest.mark.shows("mended: the console sent nobody to its login where access control 1.0 asks for keys")
def test_where_access_control_1_0_asks_for_keys_a_user_logs_in(tmp_path: Path) -> None:
    plain_acl_rows.write_files(tmp_path)
    with run_cluster(acl=True, acl_home=str(tmp_path)) as running, opened(running.namesrv) as client:
        for path in ("/", "/brokers", "/topics"):
            asked = client.get(path)
            assert (asked.status_code, asked.headers["location"][:6]) == (303, "/login"), path
        assert log_in(client, "adminKey", "wrong").status_code == 401
        assert log_in(client, "adminKey", "adminSecret").status_code == 303
        assert client.get("/brokers").status_code == 200


WHITE = """
globalWhiteRemoteAddresses: []
accounts:
- {accessKey: whiteKey, secretKey: boss-secret, whiteRemoteAddress: 127.0.0.1, admin: true}
- {accessKey: otherKey, secretKey: other-secret, admin: true}
"""


@pytest.mark.shows("mended: an account whose white list has the console's address logged in there with any secret")
@pytest.mark.parametrize("login", [False, True])
def test_a_secret_that_the_cluster_does_not_look_at_is_no_login(tmp_path: Path, *, login: bool) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "plain_acl.yml").write_text(WHITE)
    with run_cluster(acl=True, acl_home=str(tmp_path)) as running, opened(running.namesrv, login=login) as client:
        for secret in ("made-up", "boss-secret"):
            answer = log_in(client, "whiteKey", secret)
            assert (answer.status_code, "so that a login proves nothing" in answer.text) == (401, True)
        assert client.get("/brokers").status_code == 303
        assert log_in(client, "otherKey", "made-up").status_code == 401
        assert log_in(client, "otherKey", "other-secret").status_code == 303


def test_keys_of_the_console_let_nobody_in(locked: Cluster) -> None:
    with opened(locked.namesrv, options=locked.client_options) as client:
        for path in ("/", "/topics", "/events", "/samples"):
            assert client.get(path).status_code in (303, 401)


def test_wrong_keys_are_refused_and_put_on_record(locked: Cluster, tmp_path: Path) -> None:
    with opened(locked.namesrv, options=tls_of(locked), audit_path=str(tmp_path / "audit.log")) as client:
        for name, secret in (("reader", "wrong"), ("stranger", "reader-secret"), ("", ""), ("reader", "")):
            answer = log_in(client, name, secret)
            assert answer.status_code == 401
            assert 'role="alert"' in answer.text
        assert client.get("/topics").status_code == 303
    lines = [json.loads(line) for line in (tmp_path / "audit.log").read_text().splitlines()]
    assert [(line["user"], line["event"], line["request"]) for line in lines[:2]] == [
        ("reader", "refused", "login"),
        ("stranger", "refused", "login"),
    ]


def test_keys_are_not_tried_in_turn(locked: Cluster) -> None:
    with opened(locked.namesrv, options=tls_of(locked)) as client:
        codes = [log_in(client, "reader", f"guess{i}").status_code for i in range(ATTEMPTS_OF_HOST_MAX)]
        assert codes == [401] * ATTEMPTS_OF_HOST_MAX
        answer = log_in(client, "reader", "reader-secret")
        assert answer.status_code == 429
        assert "try again in" in answer.text


@pytest.mark.parametrize("after", ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)"])
def test_login_leads_nowhere_else(locked: Cluster, after: str) -> None:
    with opened(locked.namesrv, options=tls_of(locked)) as client:
        client.get("/login")
        console = client.app.state.console  # type: ignore[attr-defined]
        token = console.sessions.token(client.cookies["rocketspark_console_80"])
        fields = {"token": token, "access_key": "reader", "secret_key": "reader-secret"}
        came = client.post("/login", params={"next": after}, data=fields, headers={"Origin": ORIGIN})
        assert (came.status_code, came.headers["location"]) == (303, "/")


# -- settings ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"host": "0.0.0.0"}, "can be reached from outside"),
        ({"host": "0.0.0.0", "login": True}, "can be reached from outside"),
        ({"host": "192.0.2.1", "tls_cert": "a", "tls_key": "b"}, "can be reached from outside"),
        ({"tls_cert": "a"}, "given together"),
        ({"requests_per_second": 0}, "at least one request"),
    ],
)
def test_a_console_that_is_not_safe_does_not_start(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make_app(ConsoleSettings(**settings))


def test_without_the_files_for_browsers_the_command_that_gets_them_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("rocketspark.console.assets.are_there", lambda: False)
    with pytest.raises(ConfigError, match="make console-assets"):
        ConsoleSettings().check()


def test_answers_that_are_kept_have_a_key_for_each_operation() -> None:
    """Else a page gets what another one asked for."""
    operations: dict[str, set[str]] = {}
    for path in Path(console.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and len(node.args) > 1):
                continue
            key, act = node.args[0], node.args[1]
            name = key.elts[0] if isinstance(key, ast.Tuple) else key
            if node.func.attr == "read" and isinstance(name, ast.Constant) and isinstance(act, ast.Lambda):
                assert isinstance(act.body, ast.Call)
                operations.setdefault(name.value, set()).add(ast.unparse(act.body.func))
    assert len(operations) > 20
    assert {key: found for key, found in operations.items() if len(found) != 1} == {}


def test_sessions_that_are_over_and_lines_left_out_are_seen_to_every_second(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "TICK_S", 0.01)

    async def run() -> None:
        kept = state.Console(ConsoleSettings(namesrv=cluster.namesrv, audit_path=str(tmp_path / "audit")))
        kept.start()
        view = kept.view_of("ann", "secret")
        cookie = await kept.begin_session("ann", view)
        closed = asyncio.Event()
        monkeypatch.setattr(view, "close", lambda: _set(closed))
        for _ in range(audit.LINES_MAX + 5):
            kept.refused_login("bob", "10.0.0.1:5", "a wrong secret")
        session = kept.sessions.find(cookie)
        assert session is not None
        session.began_s -= sessions.LIFE_S + 1
        await asyncio.wait_for(closed.wait(), 60)
        await kept.close()

    asyncio.run(run())
    assert '"left_out"' in (tmp_path / "audit").read_text()


async def _set(event: asyncio.Event) -> None:
    event.set()


def test_consoles_on_two_ports_of_a_host_leave_each_other_s_sessions_alone(cluster: Cluster) -> None:
    names = set()
    for port in (8080, 8081):
        app = make_app(ConsoleSettings(namesrv=cluster.namesrv))
        with TestClient(app, base_url=f"http://127.0.0.1:{port}") as browser:
            browser.get("/login")
            names |= set(browser.cookies)
    assert names == {"rocketspark_console_8080", "rocketspark_console_8081"}
