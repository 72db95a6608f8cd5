"""Each connection that our own code makes is made where keys and TLS are handed on: no other place opens one."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.shows("relays of acting masters and static topics sign themselves")

SOURCES = Path(__file__).resolve().parents[2] / "src" / "rocketspark"
# What opens connections, and who may: the place that knows keys and TLS, for a package.
OPENERS = {
    "create_connection": {
        "transport/dialing.py": "connect_protocol itself",
        "tables/read/pipelined_connection.py": "takes an Access",
        "cli/completion.py": "the command's options",
        "proxy/port.py": "within the proxy: from its port to its gRPC server",
    },
    "connect_protocol": {
        "transport/connections.py": "dial itself",
        "transport/tls/dial.py": "what dial calls",
        "broker/replication/link/doors.py": "the HA link: plain as RocketMQ's, or greeted and in TLS",
    },
    "dial": {
        "transport/connections.py": "Connections",
        "namesrv/min_id_notices.py": "the NameServer's settings",
        "controller/group/links.py": "the controller's settings",
        "proxy/remoting.py": "the proxy's TLS; its clients sign their requests themselves",
    },
    "Connections": {
        "client/connection/instance.py": "a client's options",
        "client/connection/topic_routes.py": "handed on by the instance, or by Access",
        "broker/inner_connections.py": "a broker's settings",
        "controller/server.py": "the controller's settings",
        "controller/group/group_journal.py": "the controller's settings",
        "cli/commands/admin/controllers.py": "the command's options",
        "tables/client_access.py": "Access",
        "proxy/brokers.py": "the proxy's own keys and TLS",
    },
    "RouteCache": {
        "client/connection/instance.py": "a client's options",
        "tables/client_access.py": "Access",
        "proxy/brokers.py": "the proxy's own keys and TLS",
    },
}
# Parts of a broker that take connections; without any they make plain ones, which only tests do.
TAKE_CONNECTIONS = ("ControllerClient", "SlaveSynchronize")
DEFAULTS = {
    "broker/replication/controller_client.py": "Connections",
    "broker/replication/slave_synchronize.py": "Connections",
}
# Clients and operations, which must be given the keys and TLS of whoever makes them.
CLIENTS = ("AsyncProducer", "AsyncPullConsumer", "AsyncPushConsumer", "Producer", "AsyncAdmin", "Admin")
HANDED_ON = ("client_options", "credentials", "options", "access", "kwargs")
MAKERS = ("cli", "spark", "recipes", "testing")

NAMED = re.compile(r"\b(" + "|".join((*OPENERS, *TAKE_CONNECTIONS, *CLIENTS)) + r")\(")


@functools.cache
def calls() -> list[tuple[str, str, ast.Call]]:
    """(file, name, call) of each call in the sources."""
    found = []
    for path in sorted(SOURCES.rglob("*.py")):
        text = path.read_text("utf-8")
        for node in ast.walk(ast.parse(text)) if NAMED.search(text) else ():
            if isinstance(node, ast.Call):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                found.append((path.relative_to(SOURCES).as_posix(), name, node))
    return found


@pytest.mark.parametrize("opener", OPENERS)
def test_connections_are_opened_in_few_places(opener: str) -> None:
    allowed = OPENERS[opener].keys() | {file for file, name in DEFAULTS.items() if name == opener}
    assert {file for file, name, _ in calls() if name == opener} == allowed


def test_each_hands_on_keys_and_tls() -> None:
    makers = {"dial", "Connections", "RouteCache"}
    for file, name, call in calls():
        if name in makers and file not in DEFAULTS:
            given = {keyword.arg for keyword in call.keywords}
            wanted = {"tls"} if file == "proxy/remoting.py" else {"hooks", "tls"}
            assert wanted <= given, (file, call.lineno)


def test_parts_of_a_broker_get_its_connections() -> None:
    for file, name, call in calls():
        if name in TAKE_CONNECTIONS:
            assert "connections" in {keyword.arg for keyword in call.keywords}, (file, call.lineno)


def test_clients_get_the_keys_of_their_makers() -> None:
    checked = 0
    for file, name, call in calls():
        if name in CLIENTS and file.split("/")[0] in MAKERS:
            spread = [ast.unparse(keyword.value) for keyword in call.keywords if keyword.arg is None]
            assert any(word in text for text in spread for word in HANDED_ON), (file, call.lineno)
            checked += 1
    assert checked >= 8
