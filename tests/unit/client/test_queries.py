"""Questions to several brokers: one that is away takes nothing from what the others know."""

from __future__ import annotations

import zlib
from typing import Any

import pytest
from tests.unit.client.fake import Fake, FakeBroker, in_loop

from rocketspark.client import AsyncProducer
from rocketspark.client.connection import client_api
from rocketspark.client.results import QueryResult
from rocketspark.errors import NotSent, ServerError
from rocketspark.protocol import headers
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.message import properties, sysflags
from rocketspark.protocol.message.message_ids import offset_message_id, pack_host
from rocketspark.transport.request_frames import reply

pytestmark = pytest.mark.shows("mended: QueryResult's index time and position")


def answers(fake: Fake) -> None:
    """Have the brokers answer queries from what they keep."""
    for number, broker in enumerate(fake.brokers):

        def find(peer: Any, asked: Any, body: bytes, broker: Any = broker, number: int = number) -> bytes:
            key = asked.ext.key.encode()
            name = b"UNIQ_KEY" if asked.ext.unique else b"KEYS"
            kept = [r for queue in broker.queues.values() for r in queue]
            found = [r for r in kept if (properties.find(r, name) or b"") == key or (name + b"\x01" + key) in r]
            if not found:
                return reply(asked.opaque, ResponseCode.QUERY_NOT_FOUND, remark="none")
            header = headers.QueryMessageReply(updated_ms=1000 + number, updated_position=2000 - number)
            return reply(asked.opaque, 0, header, b"".join(found))

        broker.routes.add(RequestCode.QUERY_MESSAGE, find, headers.QueryMessageHeader)


@pytest.mark.shows("mended: query_message, view_message fail when one broker is away")
@in_loop
async def test_a_broker_that_is_away_is_left_out() -> None:
    async with Fake(2, t=1) as fake, AsyncProducer(fake.namesrv, "pg", retries=0) as producer:
        answers(fake)
        first, second = await producer.queues("t")
        sent = await producer.send("t", b"1", keys="k", queue=first)
        await producer.send("t", b"2", keys="k", queue=second)
        found = await producer.query_message("t", "k")
        assert isinstance(found, QueryResult)
        assert sorted(m.body for m in found) == [b"1", b"2"]
        assert (found.index_time_ms, found.index_position) == (1001, 2000)
        assert await producer.query_message("t", "none") == []
        await fake.brokers[1].server.close()
        found = await producer.query_message("t", "k")
        assert [m.body for m in found] == [b"1"]
        assert (found.index_time_ms, found.index_position) == (1000, 2000)
        assert (await producer.view_message("t", sent.message_id)).body == b"1"
        # It may be there.
        with pytest.raises(NotSent):
            await producer.query_message("t", "none")
        # A slave of it answers.
        fake.names.slaves["broker-b"] = {1: fake.brokers[0].address}
        await producer._routes.refresh("t")
        assert await producer.query_message("t", "none") == []
        with pytest.raises(ServerError, match="no message"):
            await producer.view_message("t", "none")


@in_loop
async def test_a_body_that_cannot_be_had_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_api, "FOUND_INFLATED_BYTES", 3000)
    deflated = sysflags.COMPRESSED | sysflags.COMPRESSION_ZLIB
    async with Fake(t=1) as fake, AsyncProducer(fake.namesrv, "pg", retries=0) as producer:
        answers(fake)
        fake.broker.put("t", 0, b"not deflated", "KEYS\x01k\x02", sys_flag=deflated)
        fake.broker.put("t", 0, b"flipped", "KEYS\x01k\x02")
        kept = fake.broker.queues["t", 0]
        kept[1] = kept[1].replace(b"flipped", b"fl1pped")
        for number in range(6):
            body = zlib.compress(b"%d" % number * 1000)
            fake.broker.put("t", 0, body, f"KEYS\x01k\x02UNIQ_KEY\x01u{number}\x02", sys_flag=deflated)
        fake.broker.put("t", 0, b"plain", "KEYS\x01k\x02")
        found = sorted(await producer.query_message("t", "k"), key=lambda m: m.queue_offset)
        whole = [m.queue_offset for m in found if m.body_error is None]
        assert (len(found), whole) == (9, [2, 3, 4, 8])
        assert [m.body for m in found[1:4]] == [b"fl1pped", b"0" * 1000, b"1" * 1000]
        # Each alone can be had.
        assert (await producer.view_message("t", "u5")).body == b"5" * 1000


@pytest.mark.shows("mended: an id that somebody made up had view_message connect and sign to any address")
@in_loop
async def test_an_id_is_no_address_to_dial() -> None:
    stranger = await FakeBroker("stranger").start()
    host, _, port = stranger.address.rpartition(":")
    try:
        async with Fake(t=1) as fake, AsyncProducer(fake.namesrv, "pg", retries=0) as producer:
            answers(fake)
            made_up = offset_message_id(pack_host(host, int(port)), 0)
            with pytest.raises(ServerError, match="no message"):
                await producer.view_message("t", made_up)
            assert dict(stranger.requests) == {}
    finally:
        await stranger.server.close()


@in_loop
async def test_where_the_topic_s_route_names_the_broker_the_whole_cluster_is_not_asked_for() -> None:
    async with Fake(t=1) as fake, AsyncProducer(fake.namesrv, "pg") as producer:
        fake.broker.put("t", 0, b"1")
        (kept,) = fake.broker.queues["t", 0]

        def view(peer: Any, asked: Any, body: bytes) -> bytes:
            return reply(asked.opaque, 0, None, kept)

        fake.broker.routes.add(RequestCode.VIEW_MESSAGE_BY_ID, view, headers.ViewMessageHeader)
        fake.names.brokers = {}
        host, _, port = fake.broker.address.rpartition(":")
        message_id = offset_message_id(pack_host(host, int(port)), 0)
        fake.names.addresses = {"broker-a": {0: fake.broker.address}}
        for _ in range(2):
            assert (await producer.view_message("t", message_id)).body == b"1"
        assert fake.names.fetches["t"] == 1
