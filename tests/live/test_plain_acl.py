"""Access control 1.0: a table of requests is decided as by the official 5.2.0; changed files are taken."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import queue
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.live.support import broker, run
from tests.support import plain_acl_rows as rows
from tests.support.patience import LIMIT_S
from tests.support.plain_acl_rows import Row, outcome, send

from rocketspark import Producer, PullConsumer, PushConsumer
from rocketspark.broker.access.plain_acl.rule_files import LoadedRules
from rocketspark.broker.access.settings import AccessSettings
from rocketspark.broker.server import BrokerServer
from rocketspark.errors import ConfigError, RocketSparkError, ServerError
from rocketspark.testing import run_cluster

pytestmark = pytest.mark.shows("access control 1.0: files, address patterns, reload, 50-54, migration")

REFUSED = "org.apache.rocketmq.acl.common.AclException: "
ADMIN = "Need admin permission for request code=%d, but accessKey=plainKey is not"


@asynccontextmanager
async def guarded(tmp_path: Path, *, complete: bool = True, **changes: Any) -> AsyncIterator[BrokerServer]:
    home = tmp_path / "home"
    if not home.exists():
        rows.write_files(home)
    access = AccessSettings(authorization_complete_enable=complete)
    async with broker(tmp_path / "store", acl=True, acl_home=str(home), access=access, **changes) as server:
        yield server


async def asked(server: BrokerServer, row: Row) -> str:
    """The remark of a refusal without its class and place, "" for a request that was served."""
    answer = await asyncio.to_thread(outcome, server.address, row)
    remark = str(answer.get("remark") or "")
    return remark.removeprefix(REFUSED).partition(", org.apache")[0]


def test_each_request_is_decided_as_by_5_2_0(tmp_path: Path) -> None:
    expected = rows.remembered()
    assert len(rows.ROWS) == len(expected) >= 130

    async def main() -> None:
        async with guarded(tmp_path, complete=False) as server:
            found = await asyncio.to_thread(rows.outcomes, server.address, expected)
            assert found == expected

    run(main())


def test_what_requests_change_lies_in_a_closed_file_as_5_2_0_writes_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with guarded(tmp_path) as server:
            for row in rows.ROWS:
                if row.code in (50, 51, 53):
                    await asyncio.to_thread(outcome, server.address, row)

    run(main())
    path = tmp_path / "home/conf/plain_acl.yml"
    assert path.stat().st_mode & 0o777 == 0o600
    lines = path.read_text().splitlines()
    written = [line for line in lines if "timestamp" not in line]
    assert written == (Path(rows.VECTORS).parent / "plain_acl_5.2.0_written.yml").read_text().splitlines()
    assert len(lines) == len(written) + 1
    assert list(path.parent.glob(".acl-*")) == []


def test_the_rules_themselves_are_for_admins_unless_rocketmqs_way_is_wanted(tmp_path: Path) -> None:
    take_over = Row("take over", 50, {"accessKey": "openKey", "secretKey": "takenOver", "admin": "true"}, key="openKey")
    lite = Row("lite pull", 361, rows.pull("both", "deniedGroup"))

    async def main() -> None:
        async with guarded(tmp_path) as server:
            for code in (50, 51, 53, 54, 18, 225):
                row = take_over._replace(code=code)
                assert (
                    await asked(server, row) == f"Need admin permission for request code={code}, but accessKey=openKey"
                    " is not"
                )
            assert await asked(server, lite) == "No permission for group:deniedGroup"
        async with guarded(tmp_path, complete=False) as server:
            assert await asked(server, lite) == ""
            assert await asked(server, take_over) == ""

    run(main())


@pytest.mark.shows(
    "access control 1.0: pops, acknowledgements, places, replies, recalls, locks, notices of roles need what "
    "2.0 asks for"
)
def test_what_1_0_forgets_needs_what_the_same_needs_elsewhere(tmp_path: Path) -> None:
    """5.2.0 lets every account pop, acknowledge and look at what it may not pull, and tell a broker its master."""
    consumes = {"topic": "denied", "consumerGroup": "subGroup", "queueId": "0"}
    of_group = consumes | {"topic": "both", "consumerGroup": "deniedGroup"}
    pop = {"maxMsgNums": "1", "invisibleTime": "10000", "pollTime": "0", "bornTime": "0", "initMode": "0"}
    popped = {"extraInfo": "0 0 60000 0 0 broker-a 0 0", "offset": "0", "invisibleTime": "1000"}
    queues = [{"topic": "denied", "brokerName": "broker-a", "queueId": 0}]
    ack = {"c": "subGroup", "t": "denied", "r": "0", "so": 0, "q": 0, "rq": 0, "pt": 0, "it": 60000, "b": "AQ=="}
    # The first message of the log.
    at = {"offset": "0", "msgId": "7F00000100002A9F" + "0" * 16, "clientId": "c", "brokerName": "broker-a"}
    topic, group = "No permission for topic:denied", "No permission for group:deniedGroup"

    def requests() -> list[tuple[int, dict[str, str], Any, str]]:
        asks = [
            *((code, consumes | pop, None, topic) for code in (200050, 200052, 200054)),
            *((code, of_group | pop, None, group) for code in (200050, 200052, 200054)),
            *((code, consumes | popped, None, topic) for code in (200051, 200053)),
            *((code, of_group | popped, None, group) for code in (200051, 200053)),
            (200151, {}, {"brokerName": "broker-a", "acks": [ack]}, topic),
            *((code, {}, {"consumerGroup": "subGroup", "clientId": "c", "mqSet": queues}, topic) for code in (41, 42)),
            (400, {}, {"topic": "denied", "consumerGroup": "subGroup", "clientId": "c"}, topic),
            (14, consumes, None, topic),
            (14, of_group, None, group),
            (33, at, None, topic),
            (36, at | {"group": "subGroup", "delayLevel": "1"}, None, topic),
            (309, at | {"consumerGroup": "subGroup"}, None, topic),
            (325, send("denied"), None, topic),
            (370, {"topic": "denied", "recallHandle": "h"}, None, topic),
            (310, send("%RETRY%deniedGroup", "subGroup"), None, group),
            (10, {"topic": "%RETRY%deniedGroup+both", "group": "subGroup"}, None, group),
            (11, rows.pull("%RETRY%deniedGroup+both", "subGroup"), None, group),
            (14, consumes | {"topic": "%LMQ%$denied$x"}, None, topic),
        ]
        for name in ("SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", "RMQ_SYS_TRANS_HALF_TOPIC"):
            asks += [(11, rows.pull(name, "subGroup"), None, ADMIN % 11), (310, send(name), None, ADMIN % 310)]
        told = {"masterHaAddress": "10.0.0.1:1", "masterFlushOffset": "0", "masterAddress": "10.0.0.1:2"}
        asks += [(906, told, None, ADMIN % 906), (905, {"minBrokerId": "0"}, None, ADMIN % 905)]
        asks += [(code, {}, None, ADMIN % code) for code in (908, 7310002, 7310003, *range(3001, 3011))]
        return asks

    async def main() -> None:
        for complete in (True, False):
            async with guarded(tmp_path, complete=complete) as server:
                sent = Row("send", 310, send("denied"), key="adminKey", body=b"secret")
                assert await asked(server, sent) == ""
                for code, ext, body, refusal in requests():
                    key = "openKey" if refusal == ADMIN % code and code in (11, 310) else "plainKey"
                    row = Row("", code, ext, key=key, body=b"" if body is None else json.dumps(body).encode())
                    found = await asked(server, row)
                    assert (found == refusal.replace("plainKey", key)) == complete, (code, ext, found)
                # A slave asks where its master is, and what others may see.
                for code in (906, 28, 26, 43, 7310004):
                    assert "Need admin" not in await asked(server, Row("", code, {})), code

    run(main())


def test_changed_added_removed_and_broken_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sends = Row("send", 310, send("other"))
    added = Row("send", 310, send("other"), key="createdKey")

    async def main() -> None:
        async with guarded(tmp_path) as server:
            plain = server.access.plain
            assert plain is not None
            path = tmp_path / "home/conf/plain_acl.yml"
            assert await asked(server, sends) == "No default permission for topic:other"
            path.write_text(rows.PLAIN_ACL.replace("defaultTopicPerm: DENY", "defaultTopicPerm: PUB"))
            await plain.look()
            assert await asked(server, sends) == ""
            path.write_text("accounts: [{accessKey: plainKey, secretKey: 'marker-sec")
            await plain.look()
            await plain.look()
            assert await asked(server, sends) == ""
            more = tmp_path / "home/conf/acl/more.yaml"
            more.write_text("accounts: [{accessKey: createdKey, secretKey: createdSecret, defaultTopicPerm: PUB}]")
            await plain.look()
            assert await asked(server, added) == "No acl config for createdKey"
            path.write_text(rows.PLAIN_ACL)
            await plain.look()
            assert await asked(server, sends) == "No default permission for topic:other"
            assert await asked(server, added) == ""
            more.unlink()
            await plain.look()
            assert await asked(server, added) == "No acl config for createdKey"
            # By itself, within a second or two.
            more.write_text("accounts: [{accessKey: createdKey, secretKey: createdSecret, defaultTopicPerm: PUB}]")
            while await asked(server, added):
                await asyncio.sleep(0.05)

    with caplog.at_level(logging.INFO, "rocketspark"):
        run(main())
    troubles = [r.getMessage() for r in caplog.records if "stay as they were" in r.getMessage()]
    assert len(troubles) == 1
    assert "plain_acl.yml: it is no YAML" in troubles[0]
    for secret in ("marker-sec", "plainSecret", "createdSecret", "adminSecret"):
        assert secret not in caplog.text


def test_what_could_not_be_read_for_a_moment_is_read_without_another_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else an account that was removed would be let in until the next change."""
    removed = Row("send", 310, send("other"), key="createdKey")

    async def main() -> None:
        async with guarded(tmp_path) as server:
            plain = server.access.plain
            assert plain is not None
            more = tmp_path / "home/conf/acl/more.yaml"
            more.write_text("accounts: [{accessKey: createdKey, secretKey: createdSecret, defaultTopicPerm: PUB}]")
            await plain.look()
            assert await asked(server, removed) == ""
            real, failed = plain.files.load, list[int]()

            def load() -> LoadedRules:
                if not failed:
                    failed.append(1)
                    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
                return real()

            monkeypatch.setattr(plain.files, "load", load)
            more.unlink()
            async with asyncio.timeout(LIMIT_S):
                while not failed or await asked(server, removed) == "":
                    await plain.look()
            assert await asked(server, removed) == "No acl config for createdKey"

    run(main())


def test_a_broken_file_refuses_to_start(tmp_path: Path) -> None:
    home = tmp_path / "home"
    rows.write_files(home)
    (home / "conf/acl/bad.yml").write_text("accounts:\n- accessKey: short\n  secretKey: marker-secret\n")

    async def main() -> None:
        with pytest.raises(ConfigError) as e:
            async with guarded(tmp_path):
                pass
        assert "bad.yml: account 'short': accessKey and secretKey of at least 7 characters are needed" in str(e.value)
        assert "marker" not in str(e.value)

    run(main())


def test_refusals_are_on_record_without_secrets(tmp_path: Path) -> None:
    async def main() -> None:
        async with guarded(tmp_path) as server:
            await asked(server, Row("send", 310, send("denied")))
            await asked(server, Row("send", 310, send("both"), spoil="secret"))
            update = {"accessKey": "createdKey", "secretKey": "createdSecret"}
            await asked(server, Row("make", 50, update, key="adminKey"))

    run(main())
    text = (tmp_path / "store/audit.log").read_text()
    found = [json.loads(line) for line in text.splitlines()]
    told = [tuple(line.get(name) for name in ("event", "rule", "user", "resource", "actions")) for line in found]
    assert told == [
        ("refused", "permission", "plainKey", "Topic:denied", ["Pub"]),
        ("refused", "signature", "plainKey", None, None),
        ("changed", "admin", "adminKey", None, None),
    ], found
    assert "Secret" not in text


def test_without_yaml_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "yaml", None)

    async def main() -> None:
        with pytest.raises(ConfigError, match=r"needs PyYAML: pip install 'rocketspark\[acl\]'"):
            async with guarded(tmp_path):
                pass

    run(main())


def test_accounts_become_users(tmp_path: Path) -> None:
    home = tmp_path / "home"
    rows.write_files(home)
    access = AccessSettings(
        migrate_auth_from_v1_enabled=True,
        authentication_metadata_provider="org.apache.rocketmq.auth.authentication.provider.LocalAuthenticationMetadataProvider",
        authorization_metadata_provider="org.apache.rocketmq.auth.authorization.provider.LocalAuthorizationMetadataProvider",
    )

    async def main() -> None:
        more = {"acl_home": str(home), "access": access, "authentication": True, "authorization": True}
        async with broker(tmp_path / "store", **more) as server:
            users = server.access.tables.users
            assert {name: user.user_type for name, user in users.items()} == {
                "adminKey": "Super",
                "plainKey": "Normal",
                "openKey": "Normal",
                "bareKey": "Super",
                "secondKey": "Normal",
            }
            for topic, served in (("sendable", True), ("readable", False), ("odd", False), ("other", False)):
                row = Row("send", 310, send(topic), body=b"x")
                assert await send_code(server, row) == (0 if served else 16), topic
            assert await send_code(server, Row("send", 310, send("sendable"), spoil="secret", body=b"x")) == 16
            assert await send_code(server, Row("send", 310, send("any"), key="adminKey", body=b"x")) == 0

    run(main())


async def send_code(server: BrokerServer, row: Row) -> int:
    return int((await asyncio.to_thread(rows.answer, server.address, row))["code"])


@pytest.mark.parametrize(("role", "warned"), [("ASYNC_MASTER", 0), ("SYNC_MASTER", 1), ("SLAVE", 1)])
def test_who_has_replicas_is_told_that_the_brokers_own_credentials_are_missing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, role: str, warned: int
) -> None:
    async def main() -> None:
        async with guarded(tmp_path, broker_role=role, broker_id=int(role == "SLAVE")):
            lines = [line for line in caplog.messages if "innerClientAuthenticationCredentials is not set" in line]
            assert len(lines) == warned

    run(main())


@pytest.mark.shows("mended: a consumer that access control 1.0 refuses tells nobody, and reads nothing")
def test_who_is_refused_by_1_0_is_told(tmp_path: Path) -> None:
    home = tmp_path / "home"
    rows.write_files(home)
    keys = {"access_key": "plainKey", "secret_key": "plainSecret"}
    told: queue.SimpleQueue[RocketSparkError] = queue.SimpleQueue()
    refused = "No permission for topic:denied"
    with run_cluster(acl=True, acl_home=str(home)) as cluster:
        with Producer(cluster.namesrv, access_key="adminKey", secret_key="adminSecret") as producer:
            producer.send("denied", b"x")
        pushed = PushConsumer(cluster.namesrv, "subGroup", on_error=told.put, **keys)
        pushed.subscribe("denied")
        pushed.listen(lambda message: True)
        with pushed:
            assert refused in str(told.get(timeout=LIMIT_S))
        with PullConsumer(cluster.namesrv, "subGroup", **keys) as pulled:
            pulled.subscribe("denied")
            with pytest.raises(ServerError, match=refused):
                pulled.poll(LIMIT_S * 1000)
