"""Who is sent what a broker sends of itself: every code of the table, to one who may and to one who may not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.live.support import beat, broker, connected, create, run, send, until
from tests.live.test_access import as_admin, started, user
from tests.support import plain_acl_rows
from tests.support.plain_acl_rows import SECRETS

from rocketspark.broker.access.gate import NEEDED
from rocketspark.broker.consumers import connected_clients
from rocketspark.broker.consumers.connected_clients import ClientIds
from rocketspark.broker.server import BrokerServer
from rocketspark.client.connection import admin_api
from rocketspark.client.connection.credentials import Signer
from rocketspark.protocol.codes import RequestCode as Code
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.headers import SendReply
from rocketspark.protocol.json.operator_bodies import UserInfo
from rocketspark.protocol.message.message_ids import offset_message_id
from rocketspark.protocol.request_signing import FOR_HOST, FOR_USER
from rocketspark.proxy.remoting import _OF_BROKERS
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Routes
from rocketspark.transport.request_frames import reply

pytestmark = pytest.mark.shows("what the broker sends of itself: a table, a test each")

CHECKS = {"transactionTimeOut": "1", "transactionCheckInterval": "50"}
HALF = {"TRAN_MSG": "true", "PGROUP": "payments", "UNIQ_KEY": "U1"}
HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"


class Ear:
    """What a client hears of its broker; it answers all."""

    def __init__(self) -> None:
        self.routes = Routes()
        self.heard: list[tuple[int, bytes]] = []
        for code in _OF_BROKERS:
            self.routes.add(code, self._hear)

    def _hear(self, peer: Peer, request: Any, body: bytes) -> bytes:
        self.heard.append((request.code, body))
        return reply(request.opaque, body=b'{"messageQueueTable":{}}')

    def codes(self) -> set[int]:
        return {code for code, _ in self.heard}


@asynccontextmanager
async def client(address: str, name: str, secret: str = "") -> AsyncIterator[tuple[Peer, Ear]]:
    ear = Ear()
    async with connected(address, ear.routes, hooks=Signer(name, secret or f"secret-of-{name}")) as peer:
        yield peer, ear


def test_every_code_that_goes_to_clients_says_who_may_be_sent_it() -> None:
    # Clients of remoting have no lite topics.
    of_brokers = {*_OF_BROKERS, Code.NOTIFY_UNSUBSCRIBE_LITE}
    assert NEEDED.keys() | {Code.PUSH_REPLY_MESSAGE_TO_CLIENT} == of_brokers


def test_who_is_asked_about_a_half_message_may_send_to_its_topic(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            started(tmp_path, **CHECKS) as server,
            as_admin(server.address) as admin,
            client(server.address, "mallory") as (mallory, hers),
            client(server.address, "other") as (other, its),
            client(server.address, "shop") as (shop, theirs),
        ):
            await user(admin, "mallory")
            await user(admin, "other", ("Topic:other", ["All"]), ("Topic:secret", ["Sub", "Get"]))
            await user(admin, "shop", ("Topic:secret", ["Pub"]))
            for peer in (mallory, other, shop):
                await beat(peer, group=None, producer="payments")
            await send(admin, b"body", "secret", sys_flag=4, producer_group="payments", pairs=HALF)
            # All checks go to the one who may be asked: none is lost.
            await until(lambda: len(theirs.heard) >= 3)
            assert b"body" in theirs.heard[0][1]
            assert hers.heard == its.heard == []

    run(main())


def test_without_rules_whoever_is_known_is_asked_and_nobody_who_was_deleted_or_disabled(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            started(tmp_path, authorizationEnabled="false", **CHECKS) as server,
            as_admin(server.address) as admin,
            client(server.address, "deleted") as (deleted, hers),
            client(server.address, "disabled") as (disabled, its),
            client(server.address, "shop") as (shop, theirs),
        ):
            for name, peer in (("deleted", deleted), ("disabled", disabled), ("shop", shop)):
                await user(admin, name)
                await beat(peer, group=None, producer="payments")
            await admin_api.delete_user(admin, "deleted")
            await admin_api.update_user(admin, UserInfo(username="disabled", user_status="disable"))
            await send(admin, b"body", "secret", sys_flag=4, producer_group="payments", pairs=HALF)
            await until(lambda: len(theirs.heard) >= 3)
            assert hers.heard == its.heard == []

    run(main())


def test_a_proxys_client_is_who_the_proxy_says_and_nobody_else_says_so(tmp_path: Path) -> None:
    heartbeat = b'{"clientID":"%b","producerDataSet":[{"groupName":"payments"}],"consumerDataSet":[]}'

    async def main() -> None:
        async with (
            started(tmp_path, **CHECKS) as server,
            as_admin(server.address) as admin,
            client(server.address, "inner") as (proxy, of_mallory),
            client(server.address, "inner") as (also_proxy, of_shop),
            client(server.address, "mallory") as (mallory, hers),
        ):
            await user(admin, "mallory")
            await user(admin, "shop", ("Topic:secret", ["Pub"]))
            for peer, name in ((proxy, "mallory"), (also_proxy, "shop"), (mallory, "shop")):
                fields = {FOR_USER: name, FOR_HOST: "10.0.0.7"}
                (await peer.request(Code.HEART_BEAT, fields, heartbeat % b"x")).raise_for_code("heartbeat")
            await send(admin, b"body", "secret", sys_flag=4, producer_group="payments", pairs=HALF)
            await until(lambda: len(of_shop.heard) >= 3)
            assert of_mallory.heard == hers.heard == []

    run(main())


def test_a_reply_goes_to_the_user_who_came_with_the_client_id_first(tmp_path: Path) -> None:
    answer = {"MSG_TYPE": "reply", "REPLY_TO_CLIENT": "10.0.0.7@4711#99", "CORRELATION_ID": "c", "UNIQ_KEY": "u"}

    async def main() -> None:
        async with (
            started(tmp_path) as server,
            as_admin(server.address) as admin,
            client(server.address, "mallory") as (mallory, hers),
            client(server.address, "other") as (other, its),
        ):
            await user(admin, "mallory")
            await user(admin, "shop", ("Topic:secret", ["Pub"]))
            await user(admin, "other", ("Topic:other", ["Pub"]))

            await create(admin, "REPLIES")

            async def replied() -> bool:
                return not (await send(admin, b"answer", "REPLIES", code=325, pairs=answer)).remark

            await beat(mallory, client_id="10.0.0.7@4711#99", group=None, producer="AAA")
            assert not await replied()
            async with client(server.address, "shop") as (shop, theirs):
                await beat(shop, client_id="10.0.0.7@4711#99", group=None, producer="shop")
                await beat(other, client_id="10.0.0.7@4711#99", group=None, producer="AAA")
                assert await replied()
                assert theirs.heard == [(326, b"answer")]
            # While he connects anew nobody has taken his id.
            await until(lambda: "shop" not in server._clients.producers)
            async with client(server.address, "shop") as (shop, theirs):
                await beat(shop, client_id="10.0.0.7@4711#99", group=None, producer="shop")
                assert await replied()
                assert theirs.heard == [(326, b"answer")]
                # His connection may have been cut without a word: he is where he was heard of last.
                async with client(server.address, "shop") as (anew, of_anew):
                    await beat(anew, client_id="10.0.0.7@4711#99", group=None, producer="shop")
                    assert await replied()
                    assert of_anew.heard == theirs.heard
            assert hers.heard == its.heard == []

    run(main())


def test_members_of_a_group_are_sent_what_they_may_read_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            started(tmp_path, useServerSideResetOffset="false") as server,
            as_admin(server.address) as admin,
            client(server.address, "bare") as (bare, hers),
            client(server.address, "full") as (full, theirs),
        ):
            await user(admin, "bare", ("Group:g", ["Sub"]), ("Topic:other", ["All"]))
            await user(admin, "full", ("Group:g", ["Sub"]), ("Topic:*", ["All"]))
            await create(admin, "secret", queues=1)
            position = server.store.written_position
            (await send(admin, b"body", "secret")).raise_for_code("send").header(SendReply)
            for peer, name in ((bare, "bare"), (full, "full")):
                await beat(peer, client_id=name, group="g", topics={"other": "*"}, version=500)
            place = {"consumerGroup": "g", "topic": "secret", "msgId": offset_message_id(HOST, position)}

            async def asked(code: int, ext: dict[str, str]) -> int:
                return (await admin.request(code, ext)).code

            for name, expected in (("bare", ResponseCode.NO_PERMISSION), ("full", 0)):
                assert await asked(Code.CONSUME_MESSAGE_DIRECTLY, place | {"clientId": name}) == expected
                assert await asked(Code.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": "g", "clientId": name}) == 0
            done = {"topic": "secret", "consumerGroup": "g", "queueId": "0", "commitOffset": "1"}
            assert await asked(Code.UPDATE_CONSUMER_OFFSET, done) == 0
            both = {"topic": "secret", "group": "g"}
            assert await asked(Code.INVOKE_BROKER_TO_RESET_OFFSET, both | {"timestamp": "0", "isForce": "true"}) == 0
            assert await asked(Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, both) == 0
            await until(lambda: {220, 221, 309} <= theirs.codes())
            assert hers.codes() - {Code.NOTIFY_CONSUMER_IDS_CHANGED} == {Code.GET_CONSUMER_RUNNING_INFO}
            # What is taken from a user holds at once.
            await admin_api.delete_acl(admin, "User:bare")
            hers.heard.clear()
            assert await asked(Code.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": "g", "clientId": "bare"}) == 16
            theirs.heard.clear()
            await beat(full, client_id="full", group="g", topics={"secret": "*"}, version=500)
            await until(lambda: Code.NOTIFY_CONSUMER_IDS_CHANGED in theirs.codes())
            assert hers.heard == []

    run(main())


@pytest.mark.parametrize("complete", [True, False])
def test_access_control_1_0_has_the_same_table(tmp_path: Path, complete: bool) -> None:
    from rocketspark.broker.access.settings import AccessSettings

    plain_acl_rows.write_files(tmp_path / "home")
    options = {
        "acl": True,
        "acl_home": str(tmp_path / "home"),
        "access": AccessSettings(authorization_complete_enable=complete),
        "transaction_timeout_ms": 1,
        "transaction_check_interval_ms": 50,
    }

    async def main(server: BrokerServer) -> None:
        async with (
            client(server.address, "secondKey", SECRETS["secondKey"]) as (stranger, hers),
            client(server.address, "plainKey", SECRETS["plainKey"]) as (publisher, theirs),
        ):
            for peer in (stranger, publisher):
                await beat(peer, group=None, producer="payments")
            await send(publisher, b"body", "sendable", sys_flag=4, producer_group="payments", pairs=HALF)
            await until(lambda: len(theirs.heard) >= 2)
            assert bool(hers.heard) is not complete

    async def whole() -> None:
        async with broker(tmp_path / "store", **options) as server:
            await main(server)

    run(whole())


def test_ids_are_the_first_users_until_he_is_silent_for_long() -> None:
    ids = ClientIds(kept_ms=100)
    ids.said("x", "shop", 0)
    ids.said("x", "mallory", 10)
    ids.said("x", "shop", 90)
    assert ids.turn("x", "shop") < ids.turn("x", "mallory") < ids.turn("x", "nobody")
    ids.expire(150)
    ids.said("x", "mallory", 150)
    assert ids.turn("x", "shop") < ids.turn("x", "mallory")
    ids.expire(200)
    ids.said("x", "shop", 200)
    assert ids.turn("x", "mallory") < ids.turn("x", "shop")


def test_who_says_more_ids_than_are_kept_loses_his_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connected_clients, "KEPT_MAX", 10)
    ids = ClientIds(kept_ms=100)
    ids.said("x", "shop", 0)
    for number in range(100):
        ids.said(f"of-{number}", "mallory", 1)
    ids.said("x", "mallory", 2)
    assert ids.turn("x", "shop") < ids.turn("x", "mallory")
    assert sum(map(len, ids._said.values())) == ids._kept == 10
    ids.expire(200)
    assert (ids._said, ids._kept) == ({}, 0)
