"""A locked cluster, and all that our own code asks on its own behalf: none of it is refused, and no secret is seen."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rocketspark.access.audit import Decision
from rocketspark.admin.operations import Admin
from rocketspark.broker.access.gate import BrokerGate
from rocketspark.broker.access.settings import CLASSES, AccessSettings
from rocketspark.cli import main
from rocketspark.cli.tree import tree
from rocketspark.client import Producer, PullConsumer, PushConsumer, TransactionProducer, TransactionState
from rocketspark.errors import NoNameServer, RocketSparkError
from rocketspark.protocol.codes import RequestCode
from rocketspark.testing import Cluster, run_cluster
from rocketspark.transport.connections import dial
from rocketspark.transport.request_signer import INNER_KEY, RequestSigner

pytestmark = pytest.mark.shows(
    "a locked pair under a controller: registration, synchronisation, notices, failover; clients with traces, "
    "transactions, locks, dead letters: nothing refused"
)

ADMIN = "hide-5d1e7a-admin"
INNER = "hide-5d1e7a-inner"
TOKEN = "hide-5d1e7a-token"
SECRETS = (ADMIN, INNER, TOKEN)
KEYS: dict[str, Any] = {"access_key": "admin", "secret_key": ADMIN, "security_token": TOKEN}
NO_KEYS: dict[str, Any] = {}
ACCESS = AccessSettings(
    authentication_metadata_provider=CLASSES["authenticationMetadataProvider"][0],
    authorization_metadata_provider=CLASSES["authorizationMetadataProvider"][0],
    init_authentication_user=json.dumps({"username": "admin", "password": ADMIN}),
    inner_client_authentication_credentials=json.dumps({"accessKey": "inner", "secretKey": INNER}),
)
LOCKED: dict[str, Any] = {"authentication": True, "authorization": True, "access": ACCESS}


@pytest.fixture(scope="module")
def refused() -> Iterator[list[Decision]]:
    """What any broker of this process refused."""
    seen: list[Decision] = []
    tell = BrokerGate.tell

    def noted(self: BrokerGate, decision: Decision) -> None:
        if not decision.allowed:
            seen.append(decision)
        tell(self, decision)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BrokerGate, "tell", noted)
        yield seen


ROOT = tree()


@pytest.fixture(scope="module")
def locked(refused: list[Decision], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two replicas under a controller, locked, with the topics of the tests."""
    with run_cluster(store=tmp_path_factory.mktemp("locked"), replicas=2, **LOCKED) as cluster:
        with Admin(cluster.namesrv, **KEYS) as operations:
            for topic in ("orders", "often"):
                operations.create_topic(topic, queue_count=1)
        yield cluster


def traced(at: Cluster, keys: dict[str, Any]) -> None:
    """A send, and its trace in a topic of its own."""
    with Producer(at.namesrv, "g-trace", trace=True, retries=0, **keys) as producer:
        producer.send("orders", b"traced")
    with Admin(at.namesrv, **keys) as operations:
        assert operations.show_topic("RMQ_SYS_TRACE_TOPIC").message_count


def in_a_transaction(at: Cluster, keys: dict[str, Any]) -> None:
    class Commits:
        def execute(self, message: Any, transaction: Any) -> TransactionState:
            return TransactionState.COMMIT

        def check(self, message: Any) -> TransactionState:
            return TransactionState.COMMIT

    with TransactionProducer(at.namesrv, "g-tx", listener=Commits(), retries=0, **keys) as producer:
        producer.send_in_transaction("orders", b"in a transaction")


def sent_back(at: Cluster, keys: dict[str, Any]) -> None:
    """Heartbeats, rebalance, pulls and offsets of a consumer; a message it refuses goes to the dead letters."""
    with Producer(at.namesrv, "g-often", retries=0, **keys) as producer:
        producer.send("often", b"not consumed")
    called = threading.Event()

    def listen(message: Any) -> None:
        called.set()
        raise RuntimeError("not consumed")

    consumer = PushConsumer(at.namesrv, "c-often", consume_from="first", max_reconsume_times=0, **keys)
    consumer.subscribe("often")
    consumer.listen(listen)
    with consumer:
        assert called.wait(60)
        with Admin(at.namesrv, **keys) as operations:
            while "%DLQ%c-often" not in operations.list_topics():
                called.wait(0.01)


def ordered(at: Cluster, keys: dict[str, Any]) -> None:
    """Queues are locked at the broker."""
    called = threading.Event()
    consumer = PushConsumer(at.namesrv, "c-ordered", consume_from="first", ordered=True, **keys)
    consumer.subscribe("often")
    consumer.listen(lambda message: called.set())
    with consumer:
        assert called.wait(60)


def operated(at: Cluster, keys: dict[str, Any]) -> None:
    with Admin(at.namesrv, **keys) as operations:
        operations.create_topic("made", queue_count=1)
        operations.show_topic("orders")
        operations.list_groups("orders")
        operations.list_quarantine()
        operations.delete_topic("made")


def read(at: Cluster, keys: dict[str, Any]) -> None:
    with PullConsumer(at.namesrv, "c-read", consume_from="first", **keys) as consumer:
        queue = consumer.queues("orders")[0]
        consumer.assign([queue])
        consumer.seek_to_beginning(queue)
        assert consumer.poll()


CALLS: dict[str, Callable[[Cluster, dict[str, Any]], None]] = {
    call.__name__: call for call in (operated, traced, in_a_transaction, sent_back, ordered, read)
}


@pytest.mark.parametrize("call", CALLS)
def test_what_clients_ask_is_signed(call: str, locked: Cluster, refused: list[Decision]) -> None:
    refused.clear()
    CALLS[call](locked, KEYS)
    assert refused == []


@pytest.mark.parametrize("call", ["operated", "traced", "in_a_transaction", "read"])
def test_without_keys_a_line_says_what_to_give(call: str, locked: Cluster, refused: list[Decision]) -> None:
    for _ in range(10):
        with pytest.raises(RocketSparkError) as caught:
            CALLS[call](locked, NO_KEYS)
        # On a busy machine a NameServer may take more than the 3 s that it is given.
        if not isinstance(caught.value, NoNameServer):
            break
    assert "access_key" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert refused


def test_a_slave_copies_and_takes_over(locked: Cluster, refused: list[Decision]) -> None:
    """Synchronisation, the controller's notices, registration: nothing of it is refused, and users are there."""
    refused.clear()
    with Producer(locked.namesrv, "g-over", **KEYS) as producer:
        producer.send("orders", b"before")
        before = locked.kill_master()
        assert locked.wait_in_sync(1) != before
        producer.send("orders", b"after")
        locked.start_again()
        locked.wait_in_sync()
        producer.send("orders", b"back")
    assert refused == []


def command(arguments: list[str], monkeypatch: pytest.MonkeyPatch, stdin: bytes = b"") -> int:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
    return main.run(arguments)


@pytest.mark.shows(
    "keys and TLS of every command: options, environment, files; a secret in the command line is warned of",
)
def test_commands_take_keys_from_the_environment_or_a_file(
    locked: Cluster,
    refused: list[Decision],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    calls = [
        (["topic", "create", "by-command", "-q", "1"], b""),
        (["produce", "by-command"], b"one\n"),
        (["consume", "by-command", "--from", "first", "-c", "1", "--json"], b""),
        (["topic", "list"], b""),
        (["quarantine", "list"], b""),
        (["user", "list"], b""),
    ]
    monkeypatch.setenv("ROCKETMQ_NAMESRV_ADDR", locked.namesrv)
    for arguments, stdin in calls[:1]:
        assert command(arguments, monkeypatch, stdin) == 1
        error = capsys.readouterr().err.splitlines()[-1]
        assert error.startswith("error: ")
        assert "access_key" in error
    monkeypatch.setenv("ROCKETMQ_ACCESS_KEY", "admin")
    (tmp_path / "secret").write_text(f"{ADMIN}\n")
    monkeypatch.setenv("ROCKETMQ_SECRET_KEY_FILE", str(tmp_path / "secret"))
    refused.clear()
    for arguments, stdin in calls:
        assert command(arguments, monkeypatch, stdin) == 0, arguments
    monkeypatch.delenv("ROCKETMQ_SECRET_KEY_FILE")
    monkeypatch.setenv("ROCKETMQ_SECRET_KEY", ADMIN)
    assert command(["topic", "list"], monkeypatch) == 0
    assert "warning" not in capsys.readouterr().err
    assert command(["user", "list", "--secret-key", f"x{ADMIN}"], monkeypatch) == 1
    said = capsys.readouterr().err
    assert "warning: process lists" in said
    assert ADMIN not in said


@pytest.mark.shows(
    "no secret in plans, event log, checkpoint, archive, logs, errors, shown settings, files but those of users"
)
def test_no_secret_is_seen(locked: Cluster, caplog: pytest.LogCaptureFixture, refused: list[Decision]) -> None:
    """Not in a file but that of the users, not in a log, a setting that is shown, or how anything prints."""
    with caplog.at_level(logging.DEBUG):
        operated(locked, KEYS)
        with pytest.raises(RocketSparkError) as caught:
            operated(locked, {**KEYS, "secret_key": "wrong-" + ADMIN})
    shown = [repr(ACCESS), repr(Admin(locked.namesrv, **KEYS)), str(caught.value), *map(repr, refused)]
    shown += [record.getMessage() for record in caplog.records]
    for address in locked.brokers:
        shown += asyncio.run(told_settings(address))
    files = [path for path in locked.store.rglob("*") if path.is_file() and path.name != "accessControl.json"]
    assert any(path.name == "audit.log" for path in files)
    forms = [form for secret in SECRETS for form in forms_of(secret)]
    assert [text for text in shown if any(form in text.encode() for form in forms)] == []
    for path in files:
        data = path.read_bytes().rstrip(b"\0")
        assert [form for form in forms if form in data] == [], path
    for path in locked.store.rglob("accessControl.json"):
        assert path.stat().st_mode & 0o777 == 0o600


def forms_of(secret: str) -> list[bytes]:
    """A secret as it is, and what of it stands in base64 wherever it begins."""
    return [secret.encode(), *(base64.b64encode(b"x" * n + secret.encode())[4:-4] for n in range(3))]


async def told_settings(address: str) -> list[str]:
    """What a broker tells of its settings and state, to an operator who tried to change a secret of them."""
    peer = await dial(address, hooks=RequestSigner("admin", ADMIN))
    try:
        changed = f'{INNER_KEY}={{"accessKey":"inner","secretKey":"{INNER}"}}'.encode()
        refused = await peer.request(RequestCode.UPDATE_BROKER_CONFIG, None, changed)
        assert (refused.code, refused.remark) == (29, f"{INNER_KEY} cannot change while the broker runs")
        replies = [
            await peer.request(code, None)
            for code in (RequestCode.GET_BROKER_CONFIG, RequestCode.GET_BROKER_RUNTIME_INFO)
        ]
        return [reply.body.decode() for reply in replies]
    finally:
        peer.close()
