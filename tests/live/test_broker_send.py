"""Sends as they arrive on the wire: what is stored, what is replied, what is refused and how."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from tests.live.support import (
    TOPIC,
    broker,
    connected,
    create,
    pairs,
    pull,
    pulled,
    run,
    send,
    send_header,
    sent,
    settings,
)

from rocketspark.client.connection import admin_api
from rocketspark.errors import StoreFull, StoreUnwritable
from rocketspark.protocol import headers
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers import SendReply
from rocketspark.protocol.json import bodies, java_json
from rocketspark.protocol.json.bodies import TopicConfig
from rocketspark.protocol.message import batch, message_ids, properties, record, sysflags
from rocketspark.protocol.message.batch import BatchItem
from rocketspark.transport.peer import Peer

pytestmark = pytest.mark.shows(
    "limits of topic, group, properties, body; permissions; automatic creation off",
    "one send, broker: the fast path only decodes, what is accepted is decided in one place",
)

MARKS = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}


async def config(peer: Peer, topic: str) -> bodies.TopicConfig:
    reply = await peer.request(RequestCode.GET_TOPIC_CONFIG, headers.TopicHeader(topic=topic))
    return java_json.decode(reply.raise_for_code("show").body, bodies.TopicConfig)


@pytest.mark.shows("broker: send, V2, one-way")
def test_a_send_is_stored_as_it_was_sent_and_answered_in_full(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer)
            before = int(time.time() * 1000)
            given = {"TAGS": "a", "KEYS": "k1 k2", "UNIQ_KEY": "0123456789ABCDEF", "WAIT": "true", "mine": "ü"}
            first = await send(peer, b"\x00body", TOPIC, 2, pairs=given, flag=7, sys_flag=1, reconsume_times=3)
            answer = first.raise_for_code("send").header(SendReply)
            assert (answer.queue_id, answer.queue_offset, answer.transaction_id) == (2, 0, "0123456789ABCDEF")
            assert (answer.region, answer.trace_on) == ("DefaultRegion", True)
            assert first.body == b""
            assert await sent(peer, b"next", TOPIC, 2) == 1

            one, two = await pulled(peer, TOPIC, 2)
            assert (one.body, one.flag, one.sys_flag, one.reconsume_times) == (b"\x00body", 7, 1, 3)
            assert (one.topic, one.queue_id, one.queue_offset, two.queue_offset) == (b"T", 2, 0, 1)
            assert one.born_time_ms == 1_795_214_738_976
            assert before <= one.store_time_ms <= time.time() * 1000
            assert pairs(one) == given | {"CLUSTER": "DefaultCluster"} | MARKS
            assert message_ids.offset_message_id(one.store_host, one.position) == answer.message_id
            host, port = server.address.split(":")
            assert one.store_host == message_ids.pack_host(host, int(port))
            assert one.born_host[:4] == bytes([127, 0, 0, 1])
            # A unique id is made where the producer sent none, and told.
            assert len(pairs(two)["UNIQ_KEY"]) == 32
            assert (two.body, two.flag) == (b"next", 0)

    run(main())


@pytest.mark.shows("MULTI_TAGS; TRANS_CHECK_MAX_TIME_TOPIC")
def test_messages_of_topics_with_many_tags_have_the_flag(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            for kind in ("SINGLE_TAG", "MULTI_TAG", "SINGLE_TAG"):
                await admin_api.create_topic(
                    peer, TopicConfig(topic_name=TOPIC, read_queue_nums=1, write_queue_nums=1, topic_filter_type=kind)
                )
                # The first ones are looked at one by one, those like them are not.
                for _ in range(4):
                    await sent(peer, b"x", TOPIC, 0)
            flags = [r.sys_flag & sysflags.MULTI_TAGS for r in await pulled(peer, TOPIC, 0)]
            assert flags == [0] * 4 + [sysflags.MULTI_TAGS] * 4 + [0] * 4

    run(main())


def test_the_long_header_names_and_one_way_sends(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer)
            header = headers.SendHeaderV1(
                producer_group="P", topic=TOPIC, queue_id=1, sys_flag=0, born_time_ms=5, flag=2, properties="TAGS\x01t"
            )
            reply = await peer.request(RequestCode.SEND_MESSAGE, header, b"v1")
            assert reply.raise_for_code("send").header(SendReply).queue_offset == 0
            peer.oneway(RequestCode.SEND_MESSAGE, header, b"silent")
            peer.oneway(RequestCode.SEND_MESSAGE_V2, send_header(TOPIC, 1), b"silent too")
            assert await sent(peer, b"v2", TOPIC, 1) == 3
            found = await pulled(peer, TOPIC, 1)
            assert [m.body for m in found] == [b"v1", b"silent", b"silent too", b"v2"]
            # The stored text gets its last 0x02 before the broker's own properties.
            assert pairs(found[0])["TAGS"] == "t"
            assert pairs(found[0]).items() >= MARKS.items()

    run(main())


def test_a_negative_queue_id_leaves_the_choice_to_the_broker(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer, queues=3)
            chosen = set()
            for _ in range(60):
                reply = await send(peer, b"x", TOPIC, -1)
                chosen.add(reply.raise_for_code("send").header(SendReply).queue_id)
            assert chosen == {0, 1, 2}

    run(main())


def items(count: int) -> list[BatchItem]:
    return [
        BatchItem(
            i, b"body %d" % i, properties.encode({"UNIQ_KEY": f"U{i}", "TAGS": f"t{i % 2}", "KEYS": f"k{i}"}).encode()
        )
        for i in range(count)
    ]


@pytest.mark.shows("broker: batch")
@pytest.mark.parametrize("code", [RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_MESSAGE_V2])
def test_a_batch_becomes_one_message_each(tmp_path: Path, code: RequestCode) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer)
            await sent(peer, b"before")
            outer = {"UNIQ_KEY": "OUTER", "WAIT": "true"}
            reply = await send(peer, batch.encode(items(5)), code=code, batch=True, pairs=outer)
            answer = reply.raise_for_code("batch").header(SendReply)
            assert (answer.queue_offset, answer.transaction_id) == (1, "OUTER")
            found = (await pulled(peer))[1:]
            assert [m.body for m in found] == [b"body %d" % i for i in range(5)]
            assert [(m.queue_offset, m.flag) for m in found] == [(i + 1, i) for i in range(5)]
            assert answer.message_id.split(",") == [
                message_ids.offset_message_id(m.store_host, m.position) for m in found
            ]
            # Batched messages carry none of the broker's own properties, as 5.5.0 stores them.
            assert pairs(found[4]) == {"UNIQ_KEY": "U4", "TAGS": "t0", "KEYS": "k4"}
            assert [m.body for m in await pulled(peer, TOPIC, 0, 1, subscription="t1")] == [b"body 1", b"body 3"]

    run(main())


@pytest.mark.shows("mended: a batch with TIMER_OUT_MS and no UNIQ_KEY is answered as an error")
def test_a_batch_with_a_time_and_no_key_is_stored_and_has_no_handle(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path, recall_enabled=True) as server, connected(server.address) as peer:
            await create(peer)
            for outer in ({"TIMER_OUT_MS": "99"}, {"TIMER_OUT_MS": "99", "REAL_TOPIC": TOPIC}):
                reply = await send(peer, batch.encode(items(2)), code=320, batch=True, pairs=outer)
                assert reply.raise_for_code("batch").header(SendReply).recall_handle is None
            assert [m.body for m in await pulled(peer)] == [b"body 0", b"body 1"] * 2

    run(main())


def test_batches_that_are_none_are_refused_whole(tmp_path: Path) -> None:
    async def main() -> None:
        good = batch.encode(items(2))
        wrong = [b"", b"x", good[:-1], good + b"x", good[:16] + b"\x7f" + good[17:], b"\x7f" + good[1:]]
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer)
            for body in wrong:
                reply = await send(peer, body, code=RequestCode.SEND_BATCH_MESSAGE)
                assert (reply.code, reply.header(headers.NoHeader)) == (13, headers.NoHeader()), body
                assert reply.remark is not None
                assert reply.remark.startswith("the message is illegal: ")
            reply = await send(peer, good, code=RequestCode.SEND_BATCH_MESSAGE, born_time_ms=2**70)
            assert (reply.code, "Expected `int`" in (reply.remark or "")) == (1, True)
            too_large = batch.encode([BatchItem(0, bytes(2 << 20), b"")] * 2)
            assert (await send(peer, too_large, code=RequestCode.SEND_BATCH_MESSAGE)).code == 13
            reply = await send(peer, good, "%RETRY%G", code=RequestCode.SEND_BATCH_MESSAGE)
            assert (reply.code, reply.remark) == (13, "batches cannot be sent to the retry topic %RETRY%G")
            assert await sent(peer) == 0

    run(main())


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("abc", {}),
        ("abc\x01", {}),
        ("a\x01b", {"a": "b"}),
        ("a\x01b\x02junk", {"a": "b"}),
        ("UNIQ_KEY\x01u\x02junk\x01", {"UNIQ_KEY": "u"}),
    ],
)
@pytest.mark.parametrize("prepared", [False, True])
def test_property_text_that_is_no_pair_is_dropped(
    tmp_path: Path, text: str, kept: dict[str, str], prepared: bool
) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer)
            await sent(peer, properties=text, sys_flag=4 if prepared else 0)
            topic = "RMQ_SYS_TRANS_HALF_TOPIC" if prepared else TOPIC
            (stored,) = server.store.read(topic, 0, 0, 1, 1 << 20).records
            (message,) = record.decode_all(stored)
            ours = {"UNIQ_KEY", "MSG_REGION", "TRACE_ON", "CLUSTER", "REAL_TOPIC", "REAL_QID", "__transactionId__"}
            assert {k: v for k, v in pairs(message).items() if k in kept or k not in ours} == kept
            assert b"abc" not in message.properties
            assert b"junk" not in message.properties

    run(main())


@pytest.mark.shows("topics: create, update, delete; TBW102")
@pytest.mark.parametrize(("asked", "made"), [(4, 4), (8, 8), (16, 8), (1, 1)])
def test_an_unknown_topic_is_made_with_no_more_queues_than_the_default_s(tmp_path: Path, asked: int, made: int) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            assert await sent(peer, b"x", "New", 0, default_topic_queue_count=asked) == 0
            found = await config(peer, "New")
            assert (found.read_queue_nums, found.write_queue_nums, found.perm) == (made, made, 6)
            assert (await send(peer, b"x", "New", made)).code == 29

    run(main())


def test_automatic_creation_can_be_off(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path, auto_create_topic=False) as server, connected(server.address) as peer:
            reply = await send(peer, b"x", "New")
            assert (reply.code, reply.header(headers.NoHeader)) == (17, headers.NoHeader())
            assert reply.remark is not None
            assert reply.remark.startswith("topic[New] not exist, apply first please!")
            assert (await pull(peer, "New")).code == 17
            # Retry topics are the broker's own affair.
            assert await sent(peer, b"x", "%RETRY%G") == 0

    run(main())


REFUSED: list[tuple[str, dict[str, Any], int, str]] = [
    ("Bad Topic!", {}, 29, "The specified topic: Bad Topic!, contains illegal characters"),
    ("bad\n", {}, 29, "contains illegal characters"),
    ("../bad", {}, 29, "contains illegal characters"),
    ("", {}, 29, "The specified topic is blank."),
    ("T" * 128, {}, 29, "is longer than topic max length: 127"),
    ("SCHEDULE_TOPIC_XXXX", {}, 16, "Sending message to topic[SCHEDULE_TOPIC_XXXX] is forbidden."),
    ("RMQ_SYS_TRANS_HALF_TOPIC", {}, 16, "is forbidden"),
    (TOPIC, {"queue_id": 4}, 29, "request queueId[4] is illegal"),
    (TOPIC, {"queue_id": 77}, 29, "request queueId[77] is illegal"),
    ("New", {"default_topic": "NotTBW102"}, 17, "topic[New] not exist, apply first please!"),
    ("New", {"default_topic": TOPIC}, 17, "topic[New] not exist, apply first please!"),
    (TOPIC, {"body": bytes((4 << 20) + 1)}, 13, "the message is illegal: body of 4194305 bytes, the limit is 4194304"),
    (TOPIC, {"pairs": {"k": "v" * 32765}}, 13, "the message is illegal: properties"),
    (TOPIC, {"properties": "k\x01" + "v" * 1_000_000}, 13, "the message is illegal: properties of 1000"),
    (TOPIC, {"pairs": {"TIMER_DELAY_SEC": "259201"}}, 13, "should not be bigger than the max delay 259200000ms"),
    (TOPIC, {"pairs": {"TIMER_DELAY_MS": "soon"}}, 13, "timer message illegal"),
    (TOPIC, {"pairs": {"TIMER_DELIVER_MS": "4000000000000"}}, 13, "timer message illegal"),
]


@pytest.mark.shows("message too large, empty or illegal topic and group")
def test_what_is_refused_is_told_and_disturbs_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer)
            for number, (topic, changes, code, remark) in enumerate(REFUSED):
                given = dict(changes)
                reply = await send(peer, given.pop("body", b"x"), topic, given.pop("queue_id", 0), **given)
                assert reply.code == code, (topic, reply)
                assert remark in (reply.remark or ""), reply
                # Replies to refused sends carry these too, as 5.5.0's do.
                assert reply.header(_Marks) == _Marks(region="DefaultRegion", trace_on="true")
                assert await sent(peer, b"good") == number
            assert len(await pulled(peer, TOPIC, 0, 0)) == len(REFUSED)

    run(main())


class _Marks(headers.Header, kw_only=True, rename={"region": "MSG_REGION", "trace_on": "TRACE_ON"}):
    region: str
    trace_on: str


def test_the_largest_message_is_taken(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer)
            body = bytes(range(256)) * (16 << 10)
            assert len(body) == 4 << 20
            assert await sent(peer, body) == 0
            # What is stored counts: the broker's own properties take 98 bytes beside the unique id.
            room = 32767 - len("UNIQ_KEY\x010123\x02MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02")
            room -= len("CLUSTER\x01DefaultCluster\x02") + len("k\x01\x02")
            assert await sent(peer, b"x", pairs={"UNIQ_KEY": "0123", "k": "v" * room}) == 1
            assert (await send(peer, b"x", pairs={"UNIQ_KEY": "0123", "k": "v" * (room + 1)})).code == 13
            # One message is always returned, whatever its size.
            (first,) = await pulled(peer)
            assert first.body == body
            (second,) = await pulled(peer, TOPIC, 0, 1)
            assert (len(second.properties), pairs(second)["k"]) == (32767, "v" * room)

    run(main())


def test_a_smaller_limit_is_obeyed(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path, message_bytes_max=1000) as server, connected(server.address) as peer:
            assert await sent(peer, bytes(1000)) == 0
            reply = await send(peer, bytes(1001))
            assert (reply.code, "the limit is 1000" in (reply.remark or "")) == (13, True)
            body = batch.encode([BatchItem(0, bytes(500), b"")] * 2)
            assert (await send(peer, body, code=RequestCode.SEND_BATCH_MESSAGE)).code == 13

    run(main())


def test_a_topic_s_own_permission_does_not_stop_a_send_the_broker_s_does(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer, "ReadOnly", perm=4)
            assert await sent(peer, b"x", "ReadOnly") == 0
            await create(peer, "WriteOnly", perm=2)
            assert await sent(peer, b"x", "WriteOnly") == 0
            reply = await pull(peer, "WriteOnly")
            assert (reply.code, reply.remark) == (16, "the topic[WriteOnly] pulling message is forbidden")
            # A queue id is legal if it is either a read or a write queue.
            await create(peer, "Narrowed", read_queue_count=4, write_queue_count=2)
            assert await sent(peer, b"x", "Narrowed", 3) == 0
        async with broker(tmp_path, broker_permission=4) as server, connected(server.address) as peer:
            reply = await send(peer, b"x", "ReadOnly")
            assert (reply.code, reply.remark) == (16, "the broker[broker-a] sending message is forbidden")
            assert len(await pulled(peer, "ReadOnly")) == 1
        async with broker(tmp_path, broker_permission=2) as server, connected(server.address) as peer:
            reply = await pull(peer, "ReadOnly")
            assert (reply.code, reply.remark) == (16, "the broker[broker-a] pulling message is forbidden")
            assert await sent(peer, b"x", "ReadOnly") == 1

    run(main())


@pytest.mark.parametrize(
    ("error", "remark"),
    [
        (StoreFull("no room", needed_bytes=5), "service not available now: the disk is full: no room"),
        (StoreUnwritable("gone"), "service not available now: the store is not writable: gone"),
    ],
    ids=["full", "unwritable"],
)
def test_a_store_that_takes_nothing_is_told_and_reads_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, remark: str
) -> None:
    from rocketspark.store.store import Store

    failing = False
    append, append_batch = Store.append, Store.append_batch

    def refuse(self: Store, *arguments: Any, **named: Any) -> Any:
        if failing:
            raise error
        return append(self, *arguments, **named)

    def refuse_batch(self: Store, *arguments: Any, **named: Any) -> Any:
        if failing:
            raise error
        return append_batch(self, *arguments, **named)

    monkeypatch.setattr(Store, "append", refuse)
    monkeypatch.setattr(Store, "append_batch", refuse_batch)

    async def main() -> None:
        nonlocal failing
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await sent(peer, b"kept")
            failing = True
            reply = await send(peer, b"lost")
            assert (reply.code, reply.remark) == (14, remark)
            reply = await send(peer, batch.encode(items(2)), code=RequestCode.SEND_BATCH_MESSAGE)
            assert (reply.code, reply.remark) == (14, remark)
            back = headers.SendBackHeader(physical_offset=0, group="G", delay_level=0)
            reply = await peer.request(RequestCode.CONSUMER_SEND_MSG_BACK, back)
            assert (reply.code, reply.remark) == (14, remark)
            assert [m.body for m in await pulled(peer)] == [b"kept"]
            failing = False
            assert await sent(peer, b"again") == 1

    run(main())


@pytest.mark.shows("SYNC_FLUSH with group commit, WAIT=false")
def test_a_sync_flush_broker_answers_once_the_log_is_on_disk(tmp_path: Path) -> None:
    async def main() -> None:
        slow = {"flush_interval_ms": 60_000, "flush_queue_interval_ms": 60_000}
        async with (
            broker(tmp_path, flush_disk_type="SYNC_FLUSH", **slow) as server,
            connected(server.address) as peer,
        ):
            for n in range(3):
                assert await sent(peer, b"x") == n
                (last,) = await pulled(peer, TOPIC, 0, n)
                assert server.store.flushed_position >= last.position + last.size
            flushed = server.store.flushed_position
            # WAIT=false asks not to wait for it.
            assert await sent(peer, b"x", pairs={"WAIT": "false"}) == 3
            reply = await send(peer, batch.encode(items(3)), code=RequestCode.SEND_BATCH_MESSAGE)
            assert reply.raise_for_code("send").header(SendReply).queue_offset == 4
            assert server.store.flushed_position == server.store.written_position > flushed
            peer.oneway(RequestCode.SEND_MESSAGE_V2, send_header(), b"silent")
            assert await sent(peer) == 8

    run(main())


def test_a_flush_that_fails_is_told_as_code_10_and_the_store_takes_no_more(tmp_path: Path) -> None:
    async def main() -> None:
        server_settings = settings(tmp_path, flush_disk_type="SYNC_FLUSH", flush_interval_ms=60_000)
        from rocketspark.broker.server import BrokerServer

        server = BrokerServer(server_settings)
        await server.start()
        try:
            async with connected(server.address) as peer:
                await sent(peer)

                def broken() -> int:
                    raise StoreUnwritable("the disk is gone")

                server.store.flush_log = broken  # type: ignore[method-assign]
                reply = await send(peer, b"maybe")
                assert reply.code == 10
                assert reply.header(SendReply).queue_offset == 1
                assert (await send(peer, b"more")).code in (10, 14)
                # Readers are shown what is on the disk alone: whether these are, only the next start knows.
                assert len(await pulled(peer)) == 1
        finally:
            del server.store.flush_log
            # What was not flushed may be lost: a start looks through what is there.
            with pytest.raises(StoreUnwritable, match="the disk is gone"):
                await server.close()
        async with broker(tmp_path) as again, connected(again.address) as peer:
            assert [m.body for m in await pulled(peer)][1:2] == [b"maybe"]
            assert (await send(peer, b"once more")).code == 0

    run(main())


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"flag": 2**40}, 13),
        ({"flag": -(2**31) - 1}, 13),
        # 1: no number that Java reads either, so the header is broken.
        ({"born_time_ms": 2**70}, 1),
        ({"reconsume_times": 2**31}, 13),
        ({"sys_flag": 2**33}, 13),
        ({"sys_flag": 0x30}, 0),
        ({"sys_flag": -(2**31) - 1}, 13),
        ({"queue_id": 2**40}, 29),
        ({"queue_id": -(2**70)}, 1),
        ({"default_topic_queue_count": -5}, 0),
        ({"properties": "\x01\x02\x01=\x02\x02"}, 0),
        ({"properties": "DELAY\x01x\x02"}, 0),
        ({"properties": "DELAY\x01-3\x02"}, 0),
        ({"properties": 'UNIQ_KEY\x01%d"\\\x02'}, 0),
        ({"properties": "TAGS\x01" + "\U0001f680" * 50}, 0),
    ],
    ids=lambda c: str(c)[:40],
)
def test_hostile_values_leave_the_queue_whole(tmp_path: Path, changes: dict[str, Any], code: int) -> None:
    """Whatever a header states, the next message is stored and read as ever."""

    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer)
            assert await sent(peer, b"first") == 0
            queue_id = changes.get("queue_id", 0)
            others = {name: value for name, value in changes.items() if name != "queue_id"}
            reply = await send(peer, b"odd", TOPIC, queue_id, **others)
            # A queue id below 0 leaves the choice to the broker.
            taken = reply.code == 0 and reply.header(headers.SendReply).queue_id == 0
            assert reply.code == code, reply
            offset = await sent(peer, b"last")
            assert offset == 1 + taken
            assert [m.body for m in await pulled(peer)] == [b"first", *([b"odd"] if taken else []), b"last"]
        async with broker(tmp_path) as server, connected(server.address) as peer:
            assert await sent(peer, b"after") == offset + 1
            assert (await pulled(peer, TOPIC, 0, offset))[0].body == b"last"

    run(main())
