"""Offsets of groups and queues, looking up by time and key, and what a restart brings back."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.live.pop_support import popped
from tests.live.support import (
    GROUP,
    TOPIC,
    beat,
    broker,
    connected,
    create,
    create_group,
    pairs,
    pulled,
    records,
    run,
    send,
    sent,
    until,
)

from rocketspark.broker.consumers.consumer_offsets import encode_offsets
from rocketspark.errors import ConfigError, StoreLocked
from rocketspark.protocol import headers
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers import OffsetReply, TimeReply
from rocketspark.protocol.json import java_json
from rocketspark.protocol.json.bodies import OffsetTable
from rocketspark.transport.peer import Peer
from rocketspark.transport.request_frames import Reply

pytestmark = pytest.mark.shows("query by key, unique id, offset id, time")


async def query(peer: Peer, queue_id: int = 0, topic: str = TOPIC, zero: bool | None = None) -> Reply:
    header = headers.QueryConsumerOffsetHeader(group=GROUP, topic=topic, queue_id=queue_id, zero_if_not_found=zero)
    return await peer.request(RequestCode.QUERY_CONSUMER_OFFSET, header)


async def update(peer: Peer, offset: int, queue_id: int = 0, topic: str = TOPIC) -> Reply:
    header = headers.UpdateConsumerOffsetHeader(group=GROUP, topic=topic, queue_id=queue_id, commit_offset=offset)
    return await peer.request(RequestCode.UPDATE_CONSUMER_OFFSET, header)


async def ask(peer: Peer, code: int, queue_id: int = 0, **fields: Any) -> Reply:
    kind = headers.REQUEST_HEADERS[code]
    reply = await peer.request(code, kind(topic=TOPIC, queue_id=queue_id, **fields))
    return reply.raise_for_code("ask")


def offset_of(reply: Reply) -> int:
    return reply.raise_for_code("ask").header(OffsetReply).offset


def test_a_group_s_offset_is_what_was_committed_last(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer)
            # An empty queue: the client decides. The first message is there: from it, unless the client decides.
            assert (await query(peer)).code == 22
            await sent(peer)
            assert offset_of(await query(peer)) == 0
            reply = await query(peer, zero=False)
            assert (reply.code, reply.remark) == (22, "Not found, maybe this group consumer boot first")
            reply = await update(peer, 7)
            assert (reply.code, reply.remark) == (26, f"Group {GROUP} not exist!")
            await create_group(peer)
            (await update(peer, 7)).raise_for_code("update")
            (await update(peer, 3, 1)).raise_for_code("update")
            assert [offset_of(await query(peer, n, zero=False)) for n in (0, 1)] == [7, 3]
            # Backwards too: that is how offsets are reset.
            (await update(peer, 2)).raise_for_code("update")
            assert offset_of(await query(peer)) == 2
            header = headers.UpdateConsumerOffsetHeader(group=GROUP, topic=TOPIC, queue_id=0, commit_offset=9)
            peer.oneway(RequestCode.UPDATE_CONSUMER_OFFSET, header)
            assert offset_of(await query(peer)) == 9

    run(main())


def test_an_old_queue_without_a_committed_offset_is_not_read_from_the_start(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            for _ in range(3):
                await sent(peer)
            queue = server.store.consume_queues.find(TOPIC, 0)
            assert queue is not None
            queue.min = 2
            assert (await query(peer)).code == 22
            queue.min = 0
            assert offset_of(await query(peer)) == 0

    run(main())


def test_updates_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer)
            await create_group(peer)
            assert (await update(peer, 1, topic="NoSuchTopic")).code == 17
            assert (await update(peer, -1)).code == 1
            assert (await update(peer, 1, -1)).code == 1
            assert (await query(peer)).code == 22

    run(main())


@pytest.mark.shows("offsets: query, update, min, max, by time")
def test_the_bounds_of_queues_and_times(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer)
            for code in (RequestCode.GET_MAX_OFFSET, RequestCode.GET_MIN_OFFSET):
                assert offset_of(await ask(peer, code)) == 0
            assert (await ask(peer, RequestCode.GET_EARLIEST_MSG_STORETIME)).header(TimeReply).time_ms == -1
            assert offset_of(await ask(peer, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, time_ms=0)) == 0
            for n in range(4):
                await sent(peer, b"%d" % n)
                await asyncio.sleep(0.004)
            times = [m.store_time_ms for m in await pulled(peer)]
            assert times == sorted(set(times))
            assert offset_of(await ask(peer, RequestCode.GET_MAX_OFFSET)) == 4
            assert offset_of(await ask(peer, RequestCode.GET_MAX_OFFSET, committed=True)) == 4
            assert offset_of(await ask(peer, RequestCode.GET_MIN_OFFSET)) == 0
            assert (await ask(peer, RequestCode.GET_EARLIEST_MSG_STORETIME)).header(TimeReply).time_ms == times[0]

            async def search(time_ms: int, boundary: str | None = None) -> int:
                fields = {"boundary": boundary} if boundary else {}
                return offset_of(await ask(peer, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, time_ms=time_ms, **fields))

            assert [await search(t) for t in times] == [0, 1, 2, 3]
            assert [await search(t + 1) for t in times] == [1, 2, 3, 4]
            assert [await search(t - 1) for t in times] == [0, 1, 2, 3]
            assert [await search(t, "UPPER") for t in times] == [0, 1, 2, 3]
            assert [await search(t - 1, "upper") for t in times] == [0, 0, 1, 2]
            assert await search(2**62) == 4
            assert await search(0) == 0

    run(main())


def test_a_message_is_found_by_key_unique_id_and_offset_id(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            for n in range(5):
                given = {"KEYS": f"k{n} all", "UNIQ_KEY": f"UNIQUE{n}", "TAGS": f"t{n % 2}"}
                reply = await send(peer, b"%d" % n, pairs=given)

            async def found(key: str, **fields: Any) -> list[bytes]:
                values: dict[str, Any] = {"count_max": 64, "begin_ms": 0, "end_ms": 2**62}
                header = headers.QueryMessageHeader(topic=TOPIC, key=key, **values | fields)
                reply = await peer.request(RequestCode.QUERY_MESSAGE, header)
                if reply.code == 22:
                    assert reply.body == b""
                    return []
                hit = reply.raise_for_code("query").header(headers.QueryMessageReply)
                assert hit.updated_position == server.store.written_position
                return [m.body for m in records(reply)]

            assert await found("k3") == [b"3"]
            assert await found("all") == [b"0", b"1", b"2", b"3", b"4"]
            # The newest, in the order of the log.
            assert await found("all", count_max=2) == [b"3", b"4"]
            assert await found("UNIQUE2", unique=True) == await found("UNIQUE2", kind="U") == [b"2"]
            assert await found("t1", kind="T") == [b"1", b"3"]
            assert await found("nothing") == await found("k3", end_ms=1) == await found("k3", unique=True) == []

            message_id = reply.header(headers.SendReply).message_id
            view = headers.ViewMessageHeader(physical_offset=int(message_id[-16:], 16))
            (seen,) = records((await peer.request(RequestCode.VIEW_MESSAGE_BY_ID, view)).raise_for_code("view"))
            assert seen.body == b"4"
            for position in (1, -1, 2**40):
                reply = await peer.request(
                    RequestCode.VIEW_MESSAGE_BY_ID, headers.ViewMessageHeader(physical_offset=position)
                )
                assert (reply.code, "can not find message" in (reply.remark or "")) == (1, True)

    run(main())


@pytest.mark.shows("broker: offsets persisted")
def test_a_restart_brings_everything_back(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer, queues=3, perm=6, attributes="+cleanup.policy=DELETE", order=True)
            await create(peer, "Gone")
            await create_group(peer)
            for n in range(10):
                await sent(peer, b"%d" % n, TOPIC, n % 3, pairs={"KEYS": f"k{n}", "TAGS": "ab"[n % 2]})
            await sent(peer, b"x", "Auto")
            (await update(peer, 2, 1)).raise_for_code("update")
            await beat(peer)
            gone = headers.TopicHeader(topic="Gone")
            (await peer.request(RequestCode.DELETE_TOPIC_IN_BROKER, gone)).raise_for_code("delete")
            topics = (await peer.request(RequestCode.GET_ALL_TOPIC_CONFIG)).body
            before = [m for n in range(3) for m in await pulled(peer, TOPIC, n)]
        async with broker(tmp_path) as server, connected(server.address) as peer:
            after = (await peer.request(RequestCode.GET_ALL_TOPIC_CONFIG)).body
            assert json.loads(after) == json.loads(topics)
            table = json.loads(after)["topicConfigTable"]
            assert {TOPIC, "Auto", "%RETRY%G"} <= table.keys()
            assert "Gone" not in table
            assert table[TOPIC]["attributes"] == {"cleanup.policy": "DELETE"}
            assert offset_of(await query(peer, 1, zero=False)) == 2
            assert (await query(peer, 0, zero=False)).code == 22
            assert [m for n in range(3) for m in await pulled(peer, TOPIC, n)] == before
            assert [m.body for m in await pulled(peer, TOPIC, 0, subscription="b")] == [b"3", b"9"]
            header = headers.QueryMessageHeader(topic=TOPIC, key="k7", count_max=9, begin_ms=0, end_ms=2**62)
            assert [m.body for m in records(await peer.request(RequestCode.QUERY_MESSAGE, header))] == [b"7"]
            assert await sent(peer, b"next", TOPIC, 0) == 4

        config = tmp_path / "config"
        groups = java_json.decode((config / "subscriptionGroup.json").read_bytes(), dict)
        assert GROUP in groups["subscriptionGroupTable"]
        offsets = (config / "consumerOffset.json").read_bytes()
        assert b'"T@G":{1:2}' in offsets
        assert not (tmp_path / "abort").exists()

    run(main())


def test_offsets_are_written_while_the_broker_runs(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            broker(tmp_path, flush_offsets_interval_ms=20) as server,
            connected(server.address) as peer,
        ):
            await create(peer)
            await create_group(peer)
            (await update(peer, 5)).raise_for_code("update")
            path = tmp_path / "config" / "consumerOffset.json"
            await until(lambda: path.exists() and b'"T@G":{0:5}' in path.read_bytes())
            (await update(peer, 6)).raise_for_code("update")
            await until(lambda: b'"T@G":{0:6}' in path.read_bytes())
            # The version before stands beside it.
            assert b'"T@G":{0:5}' in path.with_suffix(".json.bak").read_bytes()

    run(main())


def test_a_broken_config_file_falls_back_to_the_version_before(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer)
            await create(peer, "Second")
        path = tmp_path / "config" / "topics.json"
        path.write_bytes(path.read_bytes()[:40])
        async with broker(tmp_path) as server, connected(server.address) as peer:
            assert server._topics.get(TOPIC) is not None
        path.write_text("{")
        path.with_suffix(".json.bak").write_text("nope")
        with pytest.raises(ConfigError, match=r"topics\.json and its \.bak cannot be read"):
            async with broker(tmp_path):
                pass

    run(main())


def test_a_directory_belongs_to_one_broker(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            with pytest.raises(StoreLocked):
                async with broker(tmp_path):
                    pass
            assert await sent(peer) == 0

    run(main())


def test_a_topic_s_settings_and_figures(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer, queues=2, attributes="+message.type=FIFO,+reserve.time=2")
            for _ in range(3):
                await sent(peer, b"x", TOPIC, 1)
            reply = await peer.request(RequestCode.GET_TOPIC_STATS_INFO, headers.TopicHeader(topic=TOPIC))
            table = java_json.decode(reply.raise_for_code("stats").body, dict)["offsetTable"]
            found = {json.loads(queue)["queueId"]: (row["minOffset"], row["maxOffset"]) for queue, row in table.items()}
            assert found == {0: (0, 0), 1: (0, 3)}
            stored = (await pulled(peer, TOPIC, 1))[-1].store_time_ms
            assert sorted(row["lastUpdateTimestamp"] for row in table.values()) == [0, stored]

            await create(peer, queues=5, perm=4, attributes="-message.type,+cleanup.policy=DELETE")
            reply = await peer.request(RequestCode.GET_TOPIC_CONFIG, headers.TopicHeader(topic=TOPIC))
            shown = json.loads(reply.body)
            assert (shown["readQueueNums"], shown["perm"], shown["attributes"]) == (
                5,
                4,
                {"reserve.time": "2", "cleanup.policy": "DELETE"},
            )
            assert len(await pulled(peer, TOPIC, 1)) == 3
            for code in (RequestCode.GET_TOPIC_CONFIG, RequestCode.GET_TOPIC_STATS_INFO):
                assert (await peer.request(code, headers.TopicHeader(topic="NoSuchTopic"))).code == 17

    run(main())


@pytest.mark.parametrize(
    ("topic", "changes"),
    [
        ("Bad Topic!", {}),
        ("", {}),
        ("TBW102", {}),
        ("SCHEDULE_TOPIC_XXXX", {}),
        ("rmq_sys_x", {}),
        ("broker-a", {}),
        ("DefaultCluster", {}),
        ("DefaultCluster_REPLY_TOPIC", {}),
        (TOPIC, {"read_queue_count": -1}),
        (TOPIC, {"write_queue_count": 10**9}),
        (TOPIC, {"attributes": "nonsense"}),
        (TOPIC, {"attributes": "+=1"}),
        (TOPIC, {"attributes": "+mesage.type=FIFO"}),
    ],
)
def test_topics_that_cannot_be_made(tmp_path: Path, topic: str, changes: dict[str, Any]) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            values: dict[str, Any] = {"read_queue_count": 4, "write_queue_count": 4, "perm": 6}
            header = headers.CreateTopicHeader(topic=topic, **values | changes)
            reply = await peer.request(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
            assert (reply.code, bool(reply.remark)) == (29, True)
            if topic != TOPIC:
                reply = await peer.request(RequestCode.DELETE_TOPIC_IN_BROKER, headers.TopicHeader(topic=topic))
                assert reply.code == 29
            assert server._topics.get(TOPIC) is None

    run(main())


def test_the_topics_of_a_fresh_broker(tmp_path: Path) -> None:
    from tests.unit.protocol.golden import table

    async def main() -> None:
        async with broker(tmp_path, trace_topic_enabled=True) as server, connected(server.address) as peer:
            reply = (await peer.request(RequestCode.GET_ALL_TOPIC_CONFIG)).raise_for_code("topics")
            found = json.loads(reply.body)["topicConfigTable"]
            names = {"<cluster>": "DefaultCluster", "<broker>": "broker-a"}
            wanted = {}
            for row in table("system_topics"):
                name = row["topic"]
                for mark, real in names.items():
                    name = name.replace(mark, real)
                wanted[name] = (row["perm"], row["read_queues"], row["write_queues"])
            for name, config in found.items():
                shown = (str(config["perm"]), str(config["readQueueNums"]), str(config["writeQueueNums"]))
                assert shown == wanted[name], name
            assert {"TBW102", "DefaultCluster", "broker-a", "SELF_TEST_TOPIC", "SCHEDULE_TOPIC_XXXX"} <= found.keys()
            assert await sent(peer, b"trace", "RMQ_SYS_TRACE_TOPIC") == 0
            assert pairs((await pulled(peer, "RMQ_SYS_TRACE_TOPIC"))[0])["CLUSTER"] == "DefaultCluster"

    run(main())


@pytest.mark.shows("offsets of what was deleted, resets and clones over a kill")
@pytest.mark.parametrize(
    ("code", "header", "left"),
    [
        (RequestCode.DELETE_TOPIC_IN_BROKER, headers.TopicHeader(topic=TOPIC), {}),
        (
            RequestCode.DELETE_SUBSCRIPTIONGROUP,
            headers.DeleteGroupHeader(group=GROUP, clean_offsets=True),
            {},
        ),
        (
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
            headers.ResetOffsetHeader(group=GROUP, topic=TOPIC, time_ms=0, force=True),
            {f"{TOPIC}@{GROUP}": {0: 0}},
        ),
        (
            RequestCode.CLONE_GROUP_OFFSET,
            headers.CloneOffsetsHeader(source=GROUP, target="other", topic=TOPIC),
            {f"{TOPIC}@{GROUP}": {0: 3}, f"{TOPIC}@other": {0: 3}},
        ),
    ],
)
def test_what_an_operator_is_answered_is_on_the_disk(
    tmp_path: Path, code: int, header: Any, left: dict[str, dict[int, int]]
) -> None:
    async def main() -> None:
        async with broker(tmp_path, flush_offsets_interval_ms=3_600_000) as server, connected(server.address) as peer:
            await create(peer, queues=1)
            await create_group(peer)
            for _ in range(3):
                await sent(peer)
            (await update(peer, 3)).raise_for_code("update")
            server._offsets.finish()
            (await peer.request(code, header)).raise_for_code("change")
            text = (tmp_path / "config/consumerOffset.json").read_bytes()
            assert java_json.decode(text, OffsetTable).offset_table == left

    run(main())


@pytest.mark.shows("offsets beyond the log's end after a power cut, ordered pops' batches too; at an election")
def test_after_a_kill_no_offset_is_beyond_its_queue_s_end_or_of_a_topic_that_is_gone(tmp_path: Path) -> None:
    """A power cut may take messages that were counted, a kill fall into a topic's deletion."""
    path = tmp_path / "config/consumerOffset.json"

    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer, queues=2)
            await create_group(peer)
            for _ in range(5):
                await sent(peer)
        rows = {f"{TOPIC}@{GROUP}": {0: 9, 1: 4}, f"{TOPIC}@before": {0: 3}, f"Gone@{GROUP}": {0: 2}}
        path.write_bytes(encode_offsets(OffsetTable(offset_table=rows)))
        (tmp_path / "abort").touch()
        async with broker(tmp_path) as server, connected(server.address) as peer:
            wanted = {f"{TOPIC}@{GROUP}": {0: 5, 1: 0}, f"{TOPIC}@before": {0: 3}}
            assert server._offsets.table == wanted
            # Before anything is served: messages that come then could reach the old numbers.
            assert java_json.decode(path.read_bytes(), OffsetTable).offset_table == wanted
            assert [offset_of(await query(peer, n)) for n in (0, 1)] == [5, 0]

    run(main())


def test_offsets_of_a_log_that_lost_its_end_while_nobody_had_it_are_lowered(tmp_path: Path) -> None:
    """Its last run ended in order: what was lost tells that the offsets count too much."""

    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer, queues=1)
            await create_group(peer)
            for _ in range(5):
                await sent(peer)
            server._offsets.commit(GROUP, TOPIC, 0, 5)
        shutil.rmtree(tmp_path / "commitlog")
        async with broker(tmp_path) as server, connected(server.address) as peer:
            assert not server.store.crashed
            assert offset_of(await query(peer)) == 0
            assert await sent(peer, b"next") == 0

    run(main())


@pytest.mark.shows("mended: after a kill pops undid an operator's reset, clone or deletion of offsets")
@pytest.mark.parametrize(
    ("code", "header", "left"),
    [
        (
            RequestCode.DELETE_SUBSCRIPTIONGROUP,
            headers.DeleteGroupHeader(group=GROUP, clean_offsets=True),
            {},
        ),
        (
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
            headers.ResetOffsetHeader(group=GROUP, topic=TOPIC, time_ms=0, force=True),
            {0: 0},
        ),
        (
            RequestCode.CLONE_GROUP_OFFSET,
            headers.CloneOffsetsHeader(source="source", target=GROUP, topic=TOPIC),
            {0: 1},
        ),
    ],
)
def test_after_a_kill_no_pop_of_before_undoes_what_an_operator_set(
    tmp_path: Path, code: int, header: Any, left: dict[int, int]
) -> None:
    """Offsets follow the check points of pops that are newer than the file: not those older than the change."""
    killed = tmp_path / "killed"

    async def old() -> None:
        async with broker(tmp_path / "old") as server, connected(server.address) as peer:
            await create(peer, queues=1)
            await create_group(peer)
            for _ in range(3):
                await sent(peer)
            assert len(await popped(peer)) == 3
            await until(lambda: server._offsets.of(GROUP, TOPIC) == {0: 3})
            server._offsets.commit("source", TOPIC, 0, 1)
            (await peer.request(code, header)).raise_for_code("change")
            # Pops of after it count.
            for _ in range(2):
                await sent(peer)
            await create_group(peer, "other")
            assert len(await popped(peer, group="other")) == 5
            shutil.copytree(tmp_path / "old", killed)

    async def new() -> None:
        async with broker(killed) as server:
            assert server._offsets.of(GROUP, TOPIC) == left
            assert server._offsets.of("other", TOPIC) == {0: 5}

    run(old())
    run(new())


@pytest.mark.shows("an operator's change loses no other pops' offsets")
def test_after_a_kill_pops_count_that_came_just_before_an_operator_s_change(tmp_path: Path) -> None:
    """Their offsets waited for the disk when it was made, and are on it when it is answered."""

    async def main() -> None:
        async with broker(tmp_path, flush_interval_ms=3_600_000) as server, connected(server.address) as peer:
            await create(peer, queues=1)
            await create_group(peer)
            for _ in range(3):
                await sent(peer)
            assert len(await popped(peer, group="other", invisible_time_ms=300)) == 3
            assert server._pops.next_offset(TOPIC, "other", 0) == 3
            header = headers.ResetOffsetHeader(group=GROUP, topic=TOPIC, time_ms=0, force=True)
            (await peer.request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)).raise_for_code("reset")
            await server.kill()
        async with broker(tmp_path) as server:
            assert server._offsets.of("other", TOPIC) == {0: 3}

    run(main())
