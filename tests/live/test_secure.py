"""A cluster that takes TLS and signed requests alone: who comes in, who does not, and what is on record of it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.clients.scene import Inbox
from tests.live.support import connected
from tests.support.patience import LIMIT_MS, LIMIT_S

from rocketspark.admin.operations import Admin
from rocketspark.client import Producer, PushConsumer
from rocketspark.errors import NoNameServer, RouteNotFound, SendFailed, ServerError, UsageError
from rocketspark.protocol.codes import RequestCode
from rocketspark.testing import Cluster, run_cluster
from rocketspark.transport.tls import ClientTls

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "run" / "security.md").read_text("utf-8")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with run_cluster(store=tmp_path_factory.mktemp("secure"), secure=True) as cluster:
        yield cluster


def audit(cluster: Cluster) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (cluster.store / "broker-a/audit.log").read_text().splitlines()]


def keys(cluster: Cluster, user: str, password: str) -> dict[str, Any]:
    return cluster.client_options | {"access_key": user, "secret_key": password}


@pytest.mark.shows("an embedded cluster with `run_cluster(secure=True)`")
def test_the_administrator_sends_and_consumes(cluster: Cluster) -> None:
    inbox = Inbox()
    with Admin(cluster.namesrv, **cluster.client_options) as operations:
        operations.create_topic("orders", queue_count=1)
        assert "orders" in operations.list_topics()
    consumer = PushConsumer(cluster.namesrv, "billing", consume_from="first", **cluster.client_options)
    consumer.subscribe("orders")
    consumer.listen(inbox)
    with Producer(cluster.namesrv, **cluster.client_options) as producer, consumer:
        assert producer.send("orders", b"hello").status == "SEND_OK"
        assert [m.body for m in inbox.wait_for(1)] == [b"hello"]


def test_nobody_else_comes_in(cluster: Cluster) -> None:
    with pytest.raises(NoNameServer), Producer(cluster.namesrv) as producer:
        producer.send("orders", b"plain")
    unsigned = {name: value for name, value in cluster.client_options.items() if name.startswith(("use_tls", "tls_"))}
    for options, remark in (
        (unsigned, "username cannot be null."),
        (keys(cluster, "admin", "wrong"), "check signature failed."),
        (keys(cluster, "nobody", "wrong"), "User:nobody is not found."),
    ):
        with Producer(cluster.namesrv, retries=0, **options) as producer, pytest.raises(SendFailed) as refused:
            producer.send("orders", b"x")
        assert (refused.value.code, refused.value.remark) == (16, remark)


def test_who_may_read_and_no_more_begins_at_either_end(cluster: Cluster) -> None:
    """The rules of docs/run/security.md: where a queue ends a consumer need not be allowed to ask."""
    with Admin(cluster.namesrv, **cluster.client_options) as operations:
        operations.create_topic("bills", queue_count=1)
        operations.create_user("reader", "marker-of-reader")
        operations.create_acl("reader", ["Topic:bills", "Group:readers-*"], ["Sub"])
    with Producer(cluster.namesrv, **cluster.client_options) as producer:
        producer.send("bills", b"old")
        # Without messages that are gone a group begins at the first one, as in RocketMQ, the second time where it was.
        for consume_from, group, wanted in (
            ("first", "readers-a", b"old"),
            ("last", "readers-b", b"old"),
            ("last", "readers-b", b"new"),
        ):
            inbox = Inbox()
            consumer = PushConsumer(
                cluster.namesrv, group, consume_from=consume_from, **keys(cluster, "reader", "marker-of-reader")
            )
            consumer.subscribe("bills")
            consumer.listen(inbox)
            deadline = time.monotonic() + LIMIT_S
            with consumer:
                while not inbox.received:
                    assert time.monotonic() < deadline, f"nothing came to {group}"
                    producer.send("bills", b"new")
                    time.sleep(0.1)
            assert inbox.received[0].body == wanted


@pytest.mark.shows("behind it the NameServer takes changes from the brokers and the first administrator alone")
def test_the_nameserver_lets_no_stranger_write(cluster: Cluster) -> None:
    async def stranger() -> tuple[int, int]:
        async with connected(cluster.namesrv, tls=ClientTls(ca=cluster.client_options["tls_ca"])) as peer:
            wipe = await peer.request(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"})
            route = await peer.request(RequestCode.GET_BROKER_CLUSTER_INFO)
            return wipe.code, route.code

    assert asyncio.run(stranger()) == (16, 0)
    with Admin(cluster.namesrv, **cluster.client_options) as operations:
        operations.create_topic("short-lived", queue_count=1)
        assert operations.delete_topic("short-lived") == ["broker-a"]


def test_a_topic_that_a_user_deletes_is_gone_from_the_nameserver(cluster: Cluster) -> None:
    with Admin(cluster.namesrv, **cluster.client_options) as operations:
        for topic in ("his", "kept"):
            operations.create_topic(topic, queue_count=1)
        operations.create_user("keeper", "secret-of-keeper")
        operations.create_acl("keeper", ["Topic:his"], ["Delete"])
        with Admin(cluster.namesrv, **keys(cluster, "keeper", "secret-of-keeper")) as his:
            assert his.delete_topic("his") == ["broker-a"]
            with pytest.raises(ServerError, match="no permission to access Topic:kept"):
                his.delete_topic("kept")
        with pytest.raises(RouteNotFound):
            operations.show_topic("his")
        assert [each.queue.topic for each in operations.show_topic("kept").queues] == ["kept"]
        operations.create_topic("his", queue_count=1)
        operations.delete_user("keeper")


@pytest.mark.shows("`rocketspark user`, `rocketspark acl`, and the same from Python")
def test_users_do_what_rules_allow_and_all_is_on_record(cluster: Cluster) -> None:
    with Admin(cluster.namesrv, **cluster.client_options) as operations:
        operations.create_topic("stock", queue_count=1)
        assert operations.create_user("shop", "marker-of-shop") == ["broker-a"]
        operations.create_acl("shop", ["Topic:stock"], ["Pub"], source_ips=["127.0.0.0/8"])
        with Producer(cluster.namesrv, retries=0, **keys(cluster, "shop", "marker-of-shop")) as producer:
            assert producer.send("stock", b"x").status == "SEND_OK"
            with pytest.raises(SendFailed, match=r"User:shop has no permission to access Topic:orders from 127.0.0.1"):
                producer.send("orders", b"x")
            operations.update_user("shop", status="disable")
            with pytest.raises(SendFailed, match=r"User:shop is disabled."):
                producer.send("stock", b"x")
        with Admin(cluster.namesrv, **keys(cluster, "admin", "no")) as stranger, pytest.raises(ServerError):
            stranger.delete_topic("stock")
        operations.delete_topic("stock")
        operations.delete_user("shop")
    deadline = time.monotonic() + LIMIT_S
    while not any(e["request"] == "AUTH_DELETE_USER" for e in audit(cluster)):
        assert time.monotonic() < deadline, "the audit does not come to its end"
        time.sleep(0.01)
    found = [e for e in audit(cluster) if e["user"] == "shop" or e["event"] == "changed"]
    told = [(e["event"], e["user"], e["request"], e["outcome"]) for e in found]
    for expected in (
        ("changed", "admin", "UPDATE_AND_CREATE_TOPIC", "done"),
        ("changed", "admin", "AUTH_CREATE_USER", "done"),
        ("changed", "admin", "AUTH_CREATE_ACL", "done"),
        ("refused", "shop", "SEND_MESSAGE_V2", "refused"),
        ("changed", "admin", "AUTH_UPDATE_USER", "done"),
    ):
        assert expected in told
    (refusal,) = [e for e in found if e["event"] == "refused" and e["check"] == "authorization"]
    assert (refusal["resource"], refusal["actions"], refusal["rule"]) == ("Topic:orders", ["Pub"], "no matching rule")
    assert {e["rule"] for e in found if (e["event"], e["user"]) == ("changed", "admin")} == {"super user"}
    secrets = ("marker-of-shop", cluster.client_options["secret_key"])
    text = (cluster.store / "broker-a/audit.log").read_text()
    assert [secret for secret in secrets if secret in text] == []


def test_users_and_rules_are_copied_to_another_broker(tmp_path: Path) -> None:
    with (
        run_cluster(brokers=2, secure=True, store=tmp_path) as cluster,
        Admin(cluster.namesrv, **cluster.client_options) as operations,
    ):
        for name in ("shop", "billing"):
            operations.create_user(name, f"password of {name}", brokers=["broker-a"])
            operations.create_acl(name, ["Topic:orders"], ["Pub"], brokers=["broker-a"])
        # One that is there is changed, one that is not is made.
        operations.create_user("shop", "an older password", user_type="Super", brokers=["broker-b"])
        with pytest.raises(UsageError, match="broker-a has no user 'nobody'"):
            operations.copy_users("broker-a", usernames=["nobody"])
        operations.create_user("bare", "password of bare", user_type="Super", brokers=["broker-a"])
        with pytest.raises(UsageError, match="broker-a has no rules of 'User:bare'"):
            operations.copy_acls("broker-a", subjects=["bare"])
        assert operations.copy_users("broker-a", usernames=["shop"]) == {"broker-b": ["shop"]}
        assert operations.copy_acls("broker-a", subjects=["shop"]) == {"broker-b": ["User:shop"]}
        operations.copy_users("broker-a")
        operations.copy_acls("broker-a")
        found = [(u.broker_name, u.username, u.user_type) for u in operations.list_users() if u.user_type == "Normal"]
        assert found == [(f"broker-{n}", name, "Normal") for n in "ab" for name in ("billing", "shop")]
        rules = [(r.broker_name, r.subject, r.resource) for r in operations.list_acls()]
        assert rules == [(f"broker-{n}", f"User:{name}", "Topic:orders") for n in "ab" for name in ("billing", "shop")]


@pytest.mark.shows("an embedded cluster with `run_cluster(secure=True)`")
def test_replicas_copy_and_take_over_behind_the_door(tmp_path: Path) -> None:
    with run_cluster(store=tmp_path, secure=True, replicas=2) as cluster:
        with Admin(cluster.namesrv, **cluster.client_options) as operations:
            operations.create_topic("orders", queue_count=1)
            operations.create_user("shop", "secret-of-shop")
            operations.create_acl("shop", ["Topic:orders"], ["Pub"])
            (slave,) = set(cluster.brokers) - {cluster.master()}
            deadline = time.monotonic() + LIMIT_S
            while not operations.list_acls("shop", brokers=[slave]):
                assert time.monotonic() < deadline, "the slave does not take the rules"
                time.sleep(0.05)
        with Producer(cluster.namesrv, **keys(cluster, "shop", "secret-of-shop")) as producer:
            assert producer.send("orders", b"before").status == "SEND_OK"
            cluster.kill_master()
            assert cluster.wait_in_sync(1) == slave
            assert producer.send("orders", b"after", timeout_ms=LIMIT_MS).status == "SEND_OK"


COMMAND = [sys.executable, "-m", "rocketspark.cli.main"]


@contextmanager
def server(folder: Path, *options: str) -> Iterator[tuple[str, list[str]]]:
    """`server --secure` as a process: its ready line, and the lines that say how to enter."""
    command = [*COMMAND, "server", "--secure", "--namesrv-port", "0", "--broker-port", "0", "--controller-port", "0"]
    command += ["--store", "store", *options]
    with (folder / "server.log").open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=folder)
    try:
        assert process.stdout is not None
        ready = process.stdout.readline()
        said = (folder / "server.log").read_text()
        assert ready.startswith("ready "), said
        yield ready, [line[4:] for line in said.splitlines() if line.startswith("    ")]
        process.terminate()
        assert process.wait(120) == 0
    finally:
        process.kill()
        process.communicate()


def shell(folder: Path, lines: list[str]) -> str:
    """What a new user sees who copies the lines into a shell."""
    (folder / "bin").mkdir(exist_ok=True)
    command = folder / "bin" / "rocketspark"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m rocketspark.cli.main "$@"\n')
    command.chmod(0o755)
    kept = {k: v for k, v in os.environ.items() if not k.startswith("ROCKETMQ_")}
    environment = kept | {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["sh", "-e"], input="\n".join(lines), capture_output=True, text=True, cwd=folder, env=environment, timeout=240
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


@pytest.mark.shows(
    "`server --secure`: what the first start prints is copied into a shell; certificate and users are used again"
)
def test_what_the_first_start_prints_can_be_copied_into_a_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "a b"
    folder.mkdir()
    with server(folder) as (ready, lines):
        (reset,) = [line.removeprefix("# ") for line in lines if line.startswith("# ROCKETMQ_")]
        printed = shell(folder, [*lines, reset])
        for part in ("created orders with 4 queues", "hello", "created shop on broker-a", "created rules of"):
            assert part in printed, printed
        _, password = re.findall("password: (.*)", printed)
        options = {"use_tls": True, "tls_ca": str(folder / "store/secure/cert.pem"), "access_key": "admin"}
        namesrv = ready.split()[1].removeprefix("namesrv=")
        first = (folder / "store/secure/admin.secret").read_text().strip()
        with Admin(namesrv, **options, secret_key=first) as old, pytest.raises(ServerError, match="signature"):
            old.list_users()
        with Admin(namesrv, **options, secret_key=password) as operations:
            operations.delete_user("shop")
            assert [u.username for u in operations.list_users()] == ["admin", "rocketspark-inner"]
        # The program of docs/run/security.md, once the new password is where the page says.
        (program,) = re.findall(r"```python\n(from rocketspark import Producer\n.*?)```", PAGE, re.DOTALL)
        (folder / "store/secure/admin.secret").write_text(f"{password}\n")
        monkeypatch.chdir(folder)
        exec(program.replace("127.0.0.1:9876", namesrv), {})
        with Admin(namesrv, **options, secret_key=password) as operations:
            assert operations.show_topic("orders").message_count == 2
    secure = folder / "store/secure"
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in secure.iterdir()}
    assert modes == {"cert.pem": 0o644, "key.pem": 0o600, "admin.secret": 0o600, "inner.secret": 0o600}
    certificate = (secure / "cert.pem").read_bytes()
    log = (folder / "server.log").read_text()
    assert (secure / "inner.secret").read_text().strip() not in log
    with server(folder) as (ready, again):
        assert (secure / "cert.pem").read_bytes() == certificate
        assert [line.split("=")[0] for line in again if line] == [
            "export ROCKETMQ_NAMESRV_ADDR",
            "export ROCKETMQ_ACCESS_KEY",
            "# a new password for admin:",
            "# ROCKETMQ_ACCESS_KEY",
        ]
        assert first not in (folder / "server.log").read_text()
        namesrv = ready.split()[1].removeprefix("namesrv=")
        with Admin(namesrv, **options, secret_key=password) as operations:
            assert "orders" in operations.list_topics()


@pytest.mark.shows("`server --secure` with `--brokers` and `--replicas`")
@pytest.mark.parametrize(
    "options", [pytest.param(["--brokers", "2"], marks=pytest.mark.soak), ["--replicas", "2"]], ids=" ".join
)
def test_several_processes_behind_the_door(tmp_path: Path, options: list[str]) -> None:
    with server(tmp_path, *options) as (ready, _):
        assert len(ready.split("broker=")[1].split(",")) == 2
        names = ["broker-a", "broker-b"] if "--brokers" in options else ["broker-a"]
        secure = tmp_path / "store/secure"
        keys = {"access_key": "admin", "secret_key": (secure / "admin.secret").read_text().strip()}
        tls = {"use_tls": True, "tls_ca": str(secure / "cert.pem")}
        namesrv = ready.split()[1].removeprefix("namesrv=")
        with Admin(namesrv, **keys, **tls) as operations:
            operations.create_topic("orders", queue_count=1)
            assert operations.create_user("shop", "secret-of-shop") == names
            assert operations.create_acl("shop", ["Topic:orders"], ["Pub"]) == names
            assert [u.broker_name for u in operations.get_user("shop")] == names
        with Producer(namesrv, retries=0, access_key="shop", secret_key="secret-of-shop", **tls) as producer:
            assert {producer.send("orders", b"x").queue.broker_name for _ in range(4)} == set(names)
