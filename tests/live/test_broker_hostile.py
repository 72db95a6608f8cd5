"""What a hostile peer asks of a broker, and that nobody else notices. Each request is bounded, or refused by name."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.live.support import (
    GROUP,
    TOPIC,
    beat,
    broker,
    connected,
    create,
    create_group,
    name_server,
    pull,
    pull_header,
    records,
    run,
    send_header,
    sent,
    until,
)
from tests.support.patience import LIMIT_S, in_time

from rocketspark.broker import topic_names
from rocketspark.broker.declared_settings import QUEUES_MAX
from rocketspark.broker.storage.json_tables import JsonFile
from rocketspark.protocol import frames, headers
from rocketspark.protocol.message import batch, properties, sysflags
from rocketspark.transport.processor_table import Routes
from rocketspark.transport.request_frames import reply, request
from rocketspark.transport.server import Server

REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"


@pytest.mark.shows("mended: SEND_REPLY_MESSAGE skips every check of a send")
@pytest.mark.parametrize("code", [324, 325])
def test_a_reply_goes_through_the_checks_of_a_send(tmp_path: Path, code: int) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer)

            async def put(topic: str, queue_id: int = 0, sys_flag: int = 0) -> int:
                header = send_header(topic, queue_id, sys_flag=sys_flag, pairs={"REPLY_TO_CLIENT": "nobody"})
                if code == 324:
                    fields = {name: getattr(header, name) for name in headers.SendHeaderV1.__struct_fields__}
                    header = headers.SendHeaderV1(**fields)
                return (await peer.request(code, header, b"x")).code

            for topic in sorted(topic_names.NOT_SENDABLE):
                assert await put(topic) in (16, 17), topic
            assert await put(TOPIC, 4) == 29
            assert await put(TOPIC, 2**31 - 1) == 29
            for flags in (sysflags.INNER_BATCH, sysflags.INNER_BATCH | sysflags.NEED_UNWRAP, 0x4, 0x8, 0xC):
                assert await put(REPLY_TOPIC, 0, flags) == 13
            assert server.store.written_position == 0
            assert await put(REPLY_TOPIC) == 0
            assert await put(REPLY_TOPIC, -1) == 0

    run(main())


@pytest.mark.shows("mended: retryQueueNums=2147483647, heartbeat, stats of %RETRY%")
def test_no_topic_has_more_queues_than_all_can_be_asked_for(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            for count in (2**31 - 1, QUEUES_MAX + 1, -1):
                for code, body in (
                    (200, {"groupName": GROUP, "retryQueueNums": count}),
                    (225, {"groupConfigList": [{"groupName": GROUP, "retryQueueNums": count}]}),
                ):
                    answer = await peer.request(code, None, json.dumps(body).encode())
                    assert (answer.code, "retry queues asked" in (answer.remark or "")) == (29, True)
            assert server._groups.table.get(GROUP) is None
            # As a file of before may hold it.
            await create_group(peer)
            server._groups.table[GROUP].retry_queue_nums = 2**31 - 1
            await beat(peer)
            config = server._topics.get(topic_names.retry_topic(GROUP))
            assert config is not None
            assert config.read_queue_nums == QUEUES_MAX

    run(main())


@pytest.mark.shows("mended: names of 15 MB persisted by 353, 70 KB by 314")
def test_what_requests_leave_behind_has_names_and_numbers_of_a_bounded_size(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer)
            await create_group(peer)
            long = "x" * 70_000
            forbid = {"group": long, "topic": TOPIC, "readable": "false"}
            assert (await peer.request(353, forbid)).code == 29
            assert (await peer.request(353, forbid | {"group": GROUP, "topic": long})).code == 29
            assert server._groups.forbidden == {}
            clone = headers.CloneOffsetsHeader(source=GROUP, target=long, topic=TOPIC)
            assert (await peer.request(314, clone)).code == 29
            commit = headers.UpdateConsumerOffsetHeader(group=GROUP, topic=TOPIC, queue_id=QUEUES_MAX, commit_offset=1)
            assert (await peer.request(15, commit)).code == 1
            locks = {"consumerGroup": long, "clientId": "c", "mqSet": []}
            assert (await peer.request(41, None, json.dumps(locks).encode())).code == 29
            queues = [{"topic": TOPIC, "brokerName": "b", "queueId": n} for n in range(QUEUES_MAX + 1)]
            locks = {"consumerGroup": GROUP, "clientId": "c", "mqSet": queues}
            assert (await peer.request(41, None, json.dumps(locks).encode())).code == 29
            group = {"groupName": GROUP, "attributes": {"+a": "v" * 2000}}
            assert (await peer.request(200, None, json.dumps(group).encode())).code == 29
            header = headers.CreateTopicHeader(
                topic="T2", perm=6, read_queue_count=1, write_queue_count=1, filter_type=long
            )
            assert (await peer.request(17, header)).code == 29

    run(main())


@pytest.mark.shows("mended: resets outlive topic and group")
@pytest.mark.parametrize("code", [207, 215])
def test_an_offset_set_by_hand_ends_with_its_group_and_topic(tmp_path: Path, code: int) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer, queues=1)
            await create_group(peer)
            for _ in range(3):
                await sent(peer)
            reset = headers.ResetOffsetHeader(topic=TOPIC, group=GROUP, queue_id=0, offset=3, time_ms=-1, force=True)
            (await peer.request(222, reset)).raise_for_code("reset")
            assert server._offsets.is_reset(GROUP, TOPIC, 0)
            ended = {"groupName": GROUP, "cleanOffset": "false"} if code == 207 else {"topic": TOPIC}
            (await peer.request(code, ended)).raise_for_code("delete")
            assert not server._offsets.is_reset(GROUP, TOPIC, 0)
            if code == 215:
                await create(peer, queues=1)
                await sent(peer, b"new")
                assert (await pull(peer)).code == 0

    run(main())


def pulls(count: int, offset: int, suspend_ms: int = 60_000, **changes: Any) -> bytes:
    """Frames of pulls that are held, with opaques from 0 on."""
    header = pull_header(TOPIC, 0, offset, sys_flag=6, suspend_ms=suspend_ms, **changes)
    return b"".join(request(11, header, opaque=number) for number in range(count))


@pytest.mark.shows("mended: a held pull with a filter sleeps through matches behind 800 others")
def test_a_held_pull_with_a_filter_sees_a_match_behind_many_others(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer, connected(server.address) as waiting:
            await create(peer, queues=1)
            await sent(peer, pairs={"TAGS": "b"})
            held = asyncio.ensure_future(pull(waiting, TOPIC, 0, 1, subscription="b", sys_flag=6, suspend_ms=20_000))
            await until(lambda: server._long_polling.waiting == 1)
            items = [(b"x", {"TAGS": "a"})] * 2000 + [(b"the one", {"TAGS": "b"})]
            body = b"".join(batch.encode_item(0, b, properties.encode(p).encode()) for b, p in items)
            await sent(peer, body, code=320, batch=True)
            (found,) = records((await asyncio.wait_for(held, 120)).raise_for_code("pull"))
            assert found.body == b"the one"

    run(main())


@pytest.mark.shows(
    "mended: 600 held pulls and one 4 MiB message; replies ignore writability; held pulls not freed on disconnect"
)
def test_large_replies_to_held_pulls_wait_until_they_are_read(tmp_path: Path) -> None:
    count, size = 12, 4 << 20

    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer, queues=1)
            await sent(peer)
            reader, writer = await asyncio.open_connection("127.0.0.1", int(server.address.rpartition(":")[2]))
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(pulls(count, 1))
            await until(lambda: server._long_polling.waiting == count)
            await sent(peer, bytes(size))
            await until(lambda: server._long_polling.waiting < count)
            # Others are served, and no more than a buffer's fill is made for the one that does not read.
            for _ in range(20):
                await sent(peer, b"x", TOPIC)
            buffered = sum(p._transport.get_write_buffer_size() for p in server._server.peers if p._transport)
            assert buffered < 3 * size
            assert server._long_polling.waiting >= count - 4
            writer.transport.resume_reading()  # type: ignore[attr-defined]
            splitter, seen = frames.Splitter(), set()
            while len(seen) < count:
                for _, header, body in splitter.feed(await asyncio.wait_for(reader.read(1 << 20), 120)):
                    frame = frames.decode_header(header, 0)
                    assert (frame.code, len(body) > size) == (0, True)
                    seen.add(frame.opaque)
            assert seen == set(range(count))
            writer.close()

    run(main())


@pytest.mark.shows(
    "mended: 600 held pulls and one 4 MiB message; replies ignore writability; held pulls not freed on disconnect"
)
def test_what_is_held_for_a_connection_is_bounded_and_ends_with_it(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with broker(tmp_path, held_pulls_of_connection_max=50) as server, connected(server.address) as peer:
            await create(peer, queues=1)
            await sent(peer)
            reader, writer = await asyncio.open_connection("127.0.0.1", int(server.address.rpartition(":")[2]))
            writer.write(pulls(60, 1))
            splitter, refused = frames.Splitter(), []
            while len(refused) < 10:
                for _, header, _ in splitter.feed(await asyncio.wait_for(reader.read(65536), 120)):
                    refused.append(frames.decode_header(header, 0).code)
            assert refused == [2] * 10
            # Nobody else is kept from waiting.
            held = asyncio.ensure_future(pull(peer, TOPIC, 0, 1, sys_flag=6, suspend_ms=20_000))
            await until(lambda: server._long_polling.waiting == 51)
            writer.close()
            await until(lambda: server._long_polling.waiting == 1)
            await sent(peer, b"y")
            assert [m.body for m in records(await held)] == [b"y"]

    run(main())


@pytest.mark.shows("mended: longPollingEnable=false answers at once")
def test_without_long_polling_a_pull_is_held_for_the_short_time(tmp_path: Path) -> None:
    async def main(folder: Path) -> None:
        changes = {"long_polling": False, "short_polling_ms": 300}
        async with broker(folder, **changes) as server, connected(server.address) as peer:
            await create(peer, queues=1)
            await sent(peer)
            held = asyncio.ensure_future(pull(peer, TOPIC, 0, 1, sys_flag=6, suspend_ms=20_000))
            await until(lambda: server._long_polling.waiting == 1)
            await sent(peer, b"y")
            # What comes does not end the wait, its end looks once more.
            assert not held.done()
            assert [m.body for m in records(await asyncio.wait_for(held, 120))] == [b"y"]
            nothing = await pull(peer, TOPIC, 0, 2, sys_flag=6, suspend_ms=20_000)
            assert nothing.code == 19

    in_time(lambda folder: run(main(folder)), tmp_path)


class Counted:
    """How often a function was called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        self.count = 0
        act = getattr(owner, name)

        def counted(*args: Any, **options: Any) -> Any:
            self.count += 1
            return act(*args, **options)

        monkeypatch.setattr(owner, name, counted)


async def all_answered(address: str, asked: bytes, count: int) -> list[frames.Frame]:
    """The replies to what is written at once on a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(address.rpartition(":")[2]))
    writer.write(asked)
    splitter, found = frames.Splitter(), []
    while len(found) < count:
        data = await asyncio.wait_for(reader.read(1 << 20), LIMIT_S)
        assert data
        found += [frames.decode_header(header, 0) for _, header, _ in splitter.feed(data)]
    writer.close()
    return found


@pytest.mark.shows("mended: one peer stops the loop for all")
def test_many_topics_and_groups_of_one_peer_are_saved_and_told_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 300

    async def main() -> None:
        async with name_server() as names_of, broker(tmp_path, namesrv_addresses=names_of.address) as server:
            saved = Counted(monkeypatch, JsonFile, "write")
            told = Counted(monkeypatch, server._registration, "_register")
            async with connected(server.address) as peer:
                # One request, with all of them.
                configs = [{"topicName": f"one-{n}", "readQueueNums": 1, "writeQueueNums": 1} for n in range(count)]
                body = json.dumps({"topicConfigList": configs}).encode()
                (await peer.request(18, None, body)).raise_for_code("create")
                assert (saved.count, told.count) == (1, 1)
                # As many requests, written at once.
                header = {"read_queue_count": 1, "write_queue_count": 1, "perm": 6}
                asked = [
                    request(17, headers.CreateTopicHeader(topic=f"each-{n}", **header), opaque=n) for n in range(count)
                ]
                replies = await all_answered(server.address, b"".join(asked), count)
                assert {(r.code, r.opaque) for r in replies} == {(0, n) for n in range(count)}
                # Once a turn of the loop, however few of them a busy machine brings in one.
                assert saved.count < count // 3
                assert told.count < count // 3
                # First sends, which make their topics.
                sends = [request(310, send_header(f"auto-{n}"), b"x", opaque=n) for n in range(count)]
                replies = await all_answered(server.address, b"".join(sends), count)
                assert {r.code for r in replies} == {0}
                assert saved.count < 2 * count // 3
                # Pulls and heartbeats, which make groups.
                asked = [request(11, pull_header("one-1", 0, 0, group=f"G{n}"), opaque=n) for n in range(count)]
                await all_answered(server.address, b"".join(asked), count)
                consumers = [{"groupName": f"H{n}"} for n in range(count)]
                beaten = json.dumps({"clientID": "c", "consumerDataSet": consumers, "producerDataSet": []}).encode()
                (await peer.request(34, None, beaten)).raise_for_code("heartbeat")
                assert saved.count < count
        async with broker(tmp_path) as server:
            for name in ("one-7", "each-7", "auto-7", "%RETRY%H7"):
                assert server._topics.get(name) is not None, name
            assert {"G7", "H7"} <= server._groups.table.keys()

    run(main())


@pytest.mark.shows("mended: one peer stops the loop for all")
def test_what_a_heartbeat_or_a_filter_may_hold_is_bounded(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer)

            async def beaten(**data: Any) -> int:
                whole = {"clientID": "c", "consumerDataSet": [], "producerDataSet": []} | data
                return (await peer.request(34, None, json.dumps(whole).encode())).code

            assert await beaten(producerDataSet=[{"groupName": f"{n}"} for n in range(10_001)]) == 29
            assert await beaten(consumerDataSet=[{"groupName": f"{n}"} for n in range(1001)]) == 29
            # Several heartbeats hold no more than one.
            assert await beaten(producerDataSet=[{"groupName": f"{n}"} for n in range(9000)]) == 0
            assert await beaten(producerDataSet=[{"groupName": f"x{n}"} for n in range(1001)]) == 29
            tags = "||".join(f"{n:x}" for n in range(20_000))
            wanted = [{"topic": TOPIC, "subString": tags, "tagsSet": tags.split("||"), "codeSet": list(range(20_000))}]
            assert await beaten(consumerDataSet=[{"groupName": GROUP, "subscriptionDataSet": wanted}]) == 23
            assert server._clients.consumers == {}
            assert (await pull(peer, subscription=tags)).code == 23
            odd = b'{"clientID":"c","x":[' + b"1," * 100_000 + b'1],"y":{1:2}}'
            refused = await peer.request(34, None, odd)
            assert refused.code == 1
            assert "only standard JSON" in (refused.remark or "")

    run(main())


@pytest.mark.shows("mended: 25 ms per disconnect with 600,000 groups")
def test_the_end_of_a_connection_costs_what_it_was_in(tmp_path: Path) -> None:
    class Own(dict[str, Any]):
        def __iter__(self) -> Any:
            raise AssertionError("all groups were looked at")

        items = keys = values = __iter__

    async def main() -> None:
        async with broker(tmp_path) as server:
            async with connected(server.address) as peer:
                await beat(peer, producer="P")
                clients = server._clients
                assert (list(clients.producers), list(clients.consumers)) == (["P"], [GROUP])
                clients.producers, clients.consumers = Own(clients.producers), Own(clients.consumers)
            await until(lambda: not server._server.peers)
            assert (len(clients.producers), len(clients.consumers)) == (0, 0)
            assert (clients._produces, clients._consumes) == ({}, {})
            clients.producers, clients.consumers = {}, {}

    run(main())


@pytest.mark.shows("mended: one peer stops the loop for all")
def test_a_long_answer_is_made_in_turns(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            broker(tmp_path) as server,
            connected(server.address) as peer,
            connected(server.address) as other,
        ):
            await create(peer, queues=20_000)
            await create(peer, "U")
            asked = [asyncio.ensure_future(peer.request(202, {"topic": TOPIC})) for _ in range(3)]
            await asyncio.sleep(0)
            for _ in range(5):
                await sent(other, b"x", "U")
            # Sends of others are answered while the answers are made.
            assert not any(each.done() for each in asked)
            for each in asked:
                assert (await each).raise_for_code("stats").body.count(b"maxOffset") == 20_000

    run(main())


@pytest.mark.shows("mended: order table in the registration's reply")
def test_the_order_table_of_a_registration_marks_its_topics(tmp_path: Path) -> None:
    async def main() -> None:
        orders = Routes()
        table = {"table": {TOPIC: "broker-a:4", "Unknown": "broker-a:1"}}
        orders.add(103, lambda peer, request, body: reply(request.opaque, header={}, body=json.dumps(table).encode()))
        names_of = Server(orders)
        await names_of.start("127.0.0.1", 0)
        changes = {"namesrv_addresses": names_of.address, "register_interval_ms": 50}
        async with broker(tmp_path, **changes) as server, connected(server.address) as peer:
            await create(peer)
            await create(peer, "U")
            await until(lambda: server._topics.table[TOPIC].order)
            assert not server._topics.table["U"].order
        await names_of.close()

    run(main())
