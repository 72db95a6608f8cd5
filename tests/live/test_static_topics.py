"""Static topics on brokers of ours: the mapping's way, and logical queues that move from one broker to another."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.live.support import broker, connected, create, create_group, name_server, run, send, until

from rocketspark.broker.replication.master_api import MasterApi
from rocketspark.broker.replication.role import Role
from rocketspark.broker.server import BrokerServer
from rocketspark.broker.static_topics.mappings import StaticTopics
from rocketspark.errors import ConfigError
from rocketspark.protocol.json import java_json
from rocketspark.protocol.message import record
from rocketspark.transport.connections import Connections
from rocketspark.transport.peer import Peer
from rocketspark.transport.request_frames import Reply

pytestmark = pytest.mark.shows(
    "static topics on the broker",
    "sends, pulls (held ones too), bounds, times and committed offsets by logical queue, also after a queue "
    "moved: asked of the broker that holds the part",
)

TOPIC, GROUP = "Moved", "G"
SUSPEND, SUBSCRIPTION, COMMIT = 2, 4, 1


def item(gen: int, queue_id: int, bname: str, logic_offset: int) -> dict[str, Any]:
    return {
        "bname": bname,
        "endOffset": -1,
        "gen": gen,
        "logicOffset": logic_offset,
        "queueId": queue_id,
        "startOffset": 0,
        "timeOfEnd": -1,
        "timeOfStart": -1,
    }


def mapping(bname: str, epoch: int, queues: dict[int, list[dict[str, Any]]], total: int = 2) -> dict[str, Any]:
    return {
        "bname": bname,
        "currIdMap": {},
        "dirty": False,
        "epoch": epoch,
        "hostedQueues": queues,
        "scope": "__global__",
        "topic": TOPIC,
        "totalQueues": total,
    }


async def put_mapping(
    peer: Peer, detail: dict[str, Any], queues: int, topic: str = TOPIC, code: int = 0, **changes: str
) -> Reply:
    header = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": str(queues),
        "writeQueueNums": str(queues),
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }
    # Bare number keys, as RocketMQ's tools write them.
    hosted = detail["hostedQueues"]
    text = json.dumps({k: v for k, v in detail.items() if k != "hostedQueues"})[:-1]
    keys = ",".join(f"{queue}:{json.dumps(items)}" for queue, items in hosted.items())
    answer = await peer.request(513, header | changes, f'{text},"hostedQueues":{{{keys}}}}}'.encode())
    assert answer.code == code, answer.remark
    return answer


@asynccontextmanager
async def pair(root: Path, **changes: Any) -> AsyncIterator[tuple[BrokerServer, BrokerServer, Peer, Peer, str]]:
    """Two brokers of one cluster behind a NameServer, and connections to them."""
    async with (
        name_server() as names,
        broker(root / "a", broker_name="a", namesrv_addresses=names.address, **changes) as a,
        broker(root / "b", broker_name="b", namesrv_addresses=names.address, **changes) as b,
        connected(a.address) as to_a,
        connected(b.address) as to_b,
    ):
        for peer in (to_a, to_b):
            await create_group(peer, GROUP)
        yield a, b, to_a, to_b, names.address


async def offset_of(peer: Peer, code: int, queue_id: int, **more: str) -> int:
    answer = await peer.request(code, {"topic": TOPIC, "queueId": str(queue_id)} | more)
    return int(ext(answer.raise_for_code("offset"))["offset"])


def ext(answer: Reply) -> dict[str, str]:
    return {k: str(v) for k, v in json.loads(bytes(answer.ext)).items()}


async def pull(peer: Peer, queue_id: int, offset: int, flags: int = SUBSCRIPTION, **more: str) -> Reply:
    header = {
        "consumerGroup": GROUP,
        "topic": TOPIC,
        "queueId": str(queue_id),
        "queueOffset": str(offset),
        "maxMsgNums": "32",
        "sysFlag": str(flags),
        "commitOffset": "0",
        "suspendTimeoutMillis": "15000",
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
    }
    return await peer.request(11, header | more)


async def read_all(peer: Peer, queue_id: int, offset: int) -> tuple[list[tuple[int, bytes]], int]:
    """Return (logical offset, body) of all messages from an offset on, and where the reader stands."""
    found = []
    while True:
        answer = await pull(peer, queue_id, offset)
        fields = ext(answer)
        if answer.code == 0:
            delta = int(fields["offsetDelta"])
            found += [(m.queue_offset + delta, bytes(m.body)) for m in record.decode_all(answer.body)]
        offset = int(fields["nextBeginOffset"])
        if answer.code == 19:
            return found, offset


@pytest.mark.shows(
    "static topics: mapping file, 513, 21, 351, registration and route; what contradicts a mapping is refused",
)
def test_a_mapping_is_kept_and_told(tmp_path: Path) -> None:
    async def main() -> None:
        async with pair(tmp_path) as (a, _, to_a, _, names), connected(names) as to_names:
            first = mapping("a", 1000, {0: [item(0, 0, "a", 0)], 1: [item(0, 1, "b", 0)]})
            await put_mapping(to_a, first, 1)
            # Kept, and told with 351 and 21.
            file = json.loads((tmp_path / "a/config/topicQueueMapping.json").read_text())
            kept = file["topicQueueMappingInfoMap"][TOPIC]
            assert kept["hostedQueues"] == {"0": [item(0, 0, "a", 0)], "1": [item(0, 1, "b", 0)]}
            shown = json.loads((await to_a.request(351, {"topic": TOPIC, "lo": "true"})).body)
            assert shown["mappingDetail"] == kept
            assert shown["writeQueueNums"] == 1
            assert "mappingDetail" not in json.loads((await to_a.request(351, {"topic": TOPIC})).body)
            table = json.loads((await to_a.request(21)).body)
            assert table["topicQueueMappingDetailMap"] == {TOPIC: kept}
            assert table["mappingDataVersion"] == file["dataVersion"]
            # The route names the queues that the broker leads.
            route = java_json.decode((await to_names.request(105, {"topic": TOPIC})).body, dict[str, Any])
            assert route["topicQueueMappingByBroker"]["a"] == {
                "bname": "a",
                "currIdMap": {"0": 0},
                "dirty": False,
                "epoch": 1000,
                "scope": "__global__",
                "topic": TOPIC,
                "totalQueues": 2,
            }
            # What contradicts it is refused, and changes nothing.
            for wrong, said in [
                (mapping("a", 999, {0: [item(0, 0, "a", 0)]}), "small epoch 999 < 1000"),
                (mapping("a", 1000, {0: [item(0, 0, "a", 0)]}), "equal epoch with null data"),
                (mapping("b", 2000, {}), "another broker"),
                (mapping("a", 2000, {0: [item(1, 0, "b", 5), item(0, 1, "a", 0)]}), "gen does not increase"),
                (mapping("a", 2000, {0: [item(0, 7, "a", 0)]}), "gen 0 moved"),
            ]:
                assert said in ((await put_mapping(to_a, wrong, 1, code=1)).remark or "")
            assert json.loads((tmp_path / "a/config/topicQueueMapping.json").read_text()) == file
            # `force` may move it; other queues stay.
            await put_mapping(to_a, mapping("a", 1, {0: [item(0, 7, "a", 0)]}), 8, force="true")
            assert sorted(a._topics.statics.table[TOPIC].hosted_queues) == [0, 1]
            await to_a.request(215, {"topic": TOPIC})
            assert a._topics.statics.table == {}
        async with broker(tmp_path / "a", broker_name="a") as again:
            assert again._topics.statics.table == {}

    run(main())


def test_one_broker_s_logical_queues_are_its_own_under_other_numbers(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path, broker_name="a") as server, connected(server.address) as peer:
            await create_group(peer, GROUP)
            await create(peer, "Plain")
            # A topic that was sent to quickly before it became static.
            await create(peer, TOPIC, 2)
            for _ in range(40):
                await send(peer, b"before", TOPIC, 0)
            await put_mapping(peer, mapping("a", 1, {0: [item(0, 1, "a", 0)], 1: [item(0, 0, "a", 100)]}), 2)
            for n in range(40):
                fields = ext(await send(peer, b"to 0", TOPIC, 0, pairs={"UNIQ_KEY": f"{n:032X}"}))
                assert (fields["queueId"], fields["queueOffset"]) == ("0", str(n))
            fields = ext(await send(peer, b"to 1", TOPIC, 1))
            assert (fields["queueId"], fields["queueOffset"]) == ("1", "140")
            assert server.store.queue_range(TOPIC, 1) == (0, 40)
            assert server.store.queue_range(TOPIC, 0) == (0, 41)
            found, at = await read_all(peer, 1, 0)
            assert (at, [offset for offset, _ in found]) == (141, list(range(100, 141)))
            assert found[-1] == (140, b"to 1")
            # Below 0 the broker chooses one of its queues; one that it does not lead is refused.
            assert ext(await send(peer, b"any", TOPIC, -1))["queueId"] == "0"
            for answer in (await send(peer, b"x", TOPIC, 5), await pull(peer, 5, 0)):
                assert (answer.code, "Moved-5" in (answer.remark or "")) == (501, True)
            assert await offset_of(peer, 31, 1) == 100
            assert await offset_of(peer, 30, 1) == 141
            assert await offset_of(peer, 29, 1, timestamp="0") == 100
            # A held pull is answered in logical offsets.
            held = asyncio.create_task(pull(peer, 1, 141, SUBSCRIPTION | SUSPEND))
            await until(lambda: server._long_polling.waiting)
            await send(peer, b"late", TOPIC, 1)
            fields = ext(await held)
            assert (fields["nextBeginOffset"], fields["maxOffset"], fields["offsetDelta"]) == ("142", "142", "100")
            # A large reply leaves from where its records lie.
            await send(peer, b"L" * 90_000, TOPIC, 1)
            large = await pull(peer, 1, 142, bulk="true")
            assert ext(large)["nextBeginOffset"] == "143"
            assert [bytes(m.body) for m in record.decode_all(large.body)] == [b"L" * 90_000]
            # Offsets are kept for the broker's queue, told for the logical one.
            query = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "1"}
            await peer.request(15, query | {"commitOffset": "120"})
            assert server._offsets.get(GROUP, TOPIC, 0) == 20
            assert ext(await peer.request(14, query))["offset"] == "120"
            # As brokers ask each other.
            assert await offset_of(peer, 30, 1, lo="false") == 41
            # Ordinary topics are served as ever.
            assert ext(await send(peer, b"x", "Plain", 3))["queueOffset"] == "0"

    run(main())


def test_a_queue_moves_to_another_broker_and_is_read_through(tmp_path: Path) -> None:
    async def main() -> None:
        async with pair(tmp_path) as (a, b, to_a, to_b, _):
            await put_mapping(to_a, mapping("a", 1000, {0: [item(0, 0, "a", 0)]}, 1), 1)
            await put_mapping(to_b, mapping("b", 1000, {}, 1), 0)
            sent = [b"old %d" % n for n in range(50)]
            for body in sent:
                await send(to_a, body, TOPIC, 0)
            query = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0"}
            await to_a.request(15, query | {"commitOffset": "45"})
            # As remappingStaticTopic does it: the new leader without a start, the old one fenced, then the start.
            parts = [item(0, 0, "a", 0), item(1, 0, "b", -1)]
            await put_mapping(to_b, mapping("b", 2000, {0: parts}, 1), 1)
            assert ext(await send(to_b, b"early", TOPIC, 0))["queueOffset"] == "-1"
            await put_mapping(to_a, mapping("a", 2000, {0: parts}, 1), 1)
            assert (await send(to_a, b"x", TOPIC, 0)).code == 501
            assert (await pull(to_a, 0, 0)).code == 501
            # Nobody is led on before the start is decided: the reader waits at the old part's end.
            waiting = asyncio.create_task(pull(to_b, 0, 50, SUBSCRIPTION | SUSPEND))
            await until(lambda: b._topics.statics._waiting)
            parts = [item(0, 0, "a", 0), item(1, 0, "b", 10_000)]
            await put_mapping(to_b, mapping("b", 2000, {0: parts}, 1), 1)
            answer = await waiting
            assert (answer.code, ext(answer)["nextBeginOffset"]) == (19, "50")
            new = [b"new %d" % n for n in range(40)]
            for n, body in enumerate(new):
                assert ext(await send(to_b, body, TOPIC, 0))["queueOffset"] == str(10_001 + n)
            # Everything once, from the new leader, over both brokers.
            found, at = await read_all(to_b, 0, 0)
            expected = [*enumerate(sent), (10_000, b"early"), *((10_001 + n, body) for n, body in enumerate(new))]
            assert (found, at) == (expected, 10_041)
            # The group's place is asked of the old leader, until it commits at the new one.
            assert ext(await to_b.request(14, query))["offset"] == "45"
            await to_b.request(15, query | {"commitOffset": "48"})
            assert a._offsets.get(GROUP, TOPIC, 0) == 48
            await to_b.request(15, query | {"commitOffset": "10000"})
            assert (b._offsets.get(GROUP, TOPIC, 0), a._offsets.get(GROUP, TOPIC, 0)) == (0, 48)
            assert ext(await to_b.request(14, query))["offset"] == "10000"
            unknown = query | {"consumerGroup": "Other"}
            assert (await to_b.request(14, unknown)).code == 22
            # Bounds and times of all parts.
            assert await offset_of(to_b, 31, 0) == 0
            assert await offset_of(to_b, 30, 0) == 10_041
            assert await offset_of(to_b, 29, 0, timestamp="0") == 0
            late = str(b.store.store_time_at(TOPIC, 0, 0))
            assert await offset_of(to_b, 29, 0, timestamp=late) == 10_000
            assert await offset_of(to_b, 29, 0, timestamp=str(2**41)) == 10_041
            assert await offset_of(to_b, 29, 0, timestamp=late, boundaryType="UPPER") >= 10_000
            earliest = ext(await to_b.request(32, {"topic": TOPIC, "queueId": "0"}))["timestamp"]
            assert earliest == str(a.store.store_time_at(TOPIC, 0, 0))
            # A pull's own commit goes to its part.
            await pull(to_b, 0, 10_000, SUBSCRIPTION | COMMIT, commitOffset="10003")
            assert b._offsets.get(GROUP, TOPIC, 0) == 3
            # The old leader away: said by name, at once, and back again.
            address = a.address
            await a.close()
            answer = await pull(to_b, 0, 0)
            assert (answer.code, "broker a" in (answer.remark or "")) == (1, True)
            assert (await pull(to_b, 0, 10_000)).code == 0
            assert address

    run(main())


@pytest.mark.shows(
    "parts that became empty are forgotten by the queue's leader, whole queues by who led them two leaders "
    "ago, in the hours of `deleteWhen` (TopicQueueMappingCleanService)"
)
def test_parts_that_became_empty_are_forgotten(tmp_path: Path) -> None:
    async def main() -> None:
        async with pair(tmp_path) as (a, b, to_a, to_b, _):
            await create(to_a, TOPIC, 3)
            assert (await send(to_a, b"kept", TOPIC, 1)).code == 0
            await put_mapping(to_a, mapping("a", 1000, {}), 3)
            parts = {
                # Never held a message, on the other broker; the next part is the leader's own, and empty too.
                0: [item(0, 0, "a", 0), item(1, 0, "b", 50), item(2, 1, "b", 100)],
                # Holds one.
                1: [item(0, 1, "a", 0), item(1, 2, "b", 100)],
                # It is not decided where the next begins.
                2: [item(0, 2, "a", 0), item(1, 3, "b", -1)],
                # Led by another.
                3: [item(0, 4, "b", 0), item(1, 0, "a", 100)],
            }
            await put_mapping(to_b, mapping("b", 1000, parts, 4), 5)
            cleaning, table = b._logical_queues.cleaning, b._topics.statics.table
            await cleaning.clean()
            left = {queue: [part.gen for part in items] for queue, items in table[TOPIC].hosted_queues.items()}
            assert left == {0: [1, 2], 1: [0, 1], 2: [0, 1], 3: [0, 1]}
            await cleaning.clean()
            assert [part.gen for part in table[TOPIC].hosted_queues[0]] == [2]
            # The last part stays, empty as it is; what remains is on disk, and read and sent as before.
            await cleaning.clean()
            assert [part.gen for part in table[TOPIC].hosted_queues[0]] == [2]
            file = json.loads((tmp_path / "b/config/topicQueueMapping.json").read_text())
            kept = file["topicQueueMappingInfoMap"][TOPIC]
            assert kept["hostedQueues"]["0"] == [item(2, 1, "b", 100)]
            assert kept["epoch"] == 1000
            assert ext(await send(to_b, b"x", TOPIC, 0))["queueOffset"] == "100"
            assert await read_all(to_b, 0, 0) == ([(100, b"x")], 101)
            assert [body for _, body in (await read_all(to_b, 1, 0))[0]] == [b"kept"]
            # Of a broker that is away nothing is known.
            await a.close()
            await cleaning.clean()
            assert [part.gen for part in table[TOPIC].hosted_queues[1]] == [0, 1]

    run(main())


@pytest.mark.shows(
    "parts that became empty are forgotten by the queue's leader, whole queues by who led them two leaders "
    "ago, in the hours of `deleteWhen` (TopicQueueMappingCleanService)"
)
def test_who_led_a_queue_two_leaders_ago_forgets_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with pair(tmp_path) as (a, b, to_a, to_b, _):
            first, now = [item(0, 0, "a", 0), item(1, 0, "c", 10)], [item(1, 0, "c", 10), item(2, 0, "b", 20)]
            other = [item(0, 1, "a", 0), item(1, 1, "b", 10)]
            await put_mapping(to_a, mapping("a", 1000, {0: first, 1: other}), 2)
            cleaning, table = a._logical_queues.cleaning, a._topics.statics.table
            # The new leader is of another epoch: in doubt all stays.
            await put_mapping(to_b, mapping("b", 999, {0: now, 1: other}), 2)
            await cleaning._forget_former(TOPIC)
            assert sorted(table[TOPIC].hosted_queues) == [0, 1]
            await put_mapping(to_b, mapping("b", 1000, {0: now, 1: other}), 2)
            await cleaning._forget_former(TOPIC)
            assert sorted(table[TOPIC].hosted_queues) == [1]
            # A slave leaves it to its master.
            a.role.kind = Role.SLAVE
            await cleaning.clean()
            assert sorted(table[TOPIC].hosted_queues) == [1]
            assert b._topics.statics.table[TOPIC].hosted_queues[0][-1].bname == "b"

    run(main())


@pytest.mark.shows("a slave of ours takes the mappings with the topics")
def test_a_slave_takes_the_mappings_with_the_topics(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path, broker_name="a") as server, connected(server.address) as peer:
            await put_mapping(peer, mapping("a", 1, {0: [item(0, 0, "a", 0)]}, 1), 1)
            connections = Connections()
            found = await MasterApi(connections, server.address).topics(None)
            await connections.close()
            assert found is not None
            copy = StaticTopics("a")
            copy.take(found.mappings, found.mapping_version)
            master = server._topics.statics
            assert (copy.table, copy.version) == (master.table, master.version)
            assert list(copy.table) == [TOPIC]
            # What is not this name's is left out.
            other = StaticTopics("b")
            other.take(found.mappings, found.mapping_version)
            assert other.table == {}

    run(main())


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({TOPIC: mapping("other", 1, {})}, "another broker"),
        ({"Else": mapping("a", 1, {})}, "another topic"),
        ({TOPIC: mapping("a", 1, {0: [item(0, -1, "a", 0)]})}, "should not be negative"),
    ],
)
def test_a_wrong_file_refuses_to_start(tmp_path: Path, table: dict[str, Any], said: str) -> None:
    async def main() -> None:
        (tmp_path / "config").mkdir()
        text = json.dumps({"dataVersion": {}, "topicQueueMappingInfoMap": table})
        (tmp_path / "config/topicQueueMapping.json").write_text(text)
        with pytest.raises(ConfigError, match=said):
            async with broker(tmp_path, broker_name="a"):
                pass

    run(main())
