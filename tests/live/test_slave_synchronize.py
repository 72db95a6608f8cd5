"""A slave's tables follow its master's: all of them, whatever changes, and whatever the master sends."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.live.support import broker, connected, create, create_group, run, sent, until
from tests.live.table_copies import TableCopies, look, offsets_of, slave
from tests.support.ports import free_ports

from rocketspark.broker.replication.master_api import MasterApi
from rocketspark.broker.replication.role import Role
from rocketspark.broker.replication.slave_synchronize import StoreSide
from rocketspark.protocol import headers
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.json.bodies import TopicConfig
from rocketspark.protocol.json.static_topics import MappingDetail
from rocketspark.transport.connections import Connections

pytestmark = pytest.mark.shows(
    "a slave's tables equal its master's, of ours and Java's, at once and every 3 s; a garbled answer changes nothing",
    "topics deleted at the master, the quarantine and offsets set by hand reach slaves of ours",
)


def topics(count: int, prefix: str = "many") -> list[TopicConfig]:
    return [TopicConfig(topic_name=f"{prefix}-{n:05}") for n in range(count)]


def assert_equal(copies: TableCopies, server: Any) -> None:
    """Every table is the master's, with its version."""
    mine = copies.tables
    assert (mine.topics.table, mine.topics.version) == (server._topics.table, server._topics.version)
    assert (mine.topics.statics.table, mine.topics.statics.version) == (
        server._topics.statics.table,
        server._topics.statics.version,
    )
    assert (mine.groups.table, mine.groups.version) == (server._groups.table, server._groups.version)
    assert mine.groups.forbidden == server._groups.forbidden
    assert offsets_of(mine) == server._offsets.table
    assert mine.offsets.version == server._offsets.version
    assert copies.messages.delays.table() == server._delays.table()
    assert copies.messages.quarantine.entries() == server._quarantine.entries()
    assert copies.messages.timers.statistics.table() == server._wheel.statistics.table()


async def change_everything(peer: Any, server: Any, number: int) -> None:
    await create(peer, f"T{number}", 3 + number, perm=4)
    await create_group(peer, f"G{number}")
    forbid = headers.ForbiddenHeader(group=f"G{number}", topic=f"T{number}", readable=False)
    (await peer.request(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, forbid)).raise_for_code("forbid")
    mode = {"topic": f"T{number}", "consumerGroup": f"G{number}", "mode": "PULL", "popShareQueueNum": number}
    (await peer.request(RequestCode.SET_MESSAGE_REQUEST_MODE, None, msgspec.json.encode(mode))).raise_for_code("mode")
    commit = headers.UpdateConsumerOffsetHeader(
        group=f"G{number}", topic=f"T{number}", queue_id=number, commit_offset=7 + number
    )
    (await peer.request(RequestCode.UPDATE_CONSUMER_OFFSET, commit)).raise_for_code("commit")
    server._offsets.reset(f"G{number}", f"T{number}", 0, 3)
    server._topics.statics.put(
        MappingDetail(topic=f"T{number}", bname="broker-a", epoch=1000, total_queues=1, hosted_queues={})
    )
    server._quarantine.add("delay", f"T{number}", 0, number, 1000 + number, "no record")


def test_all_tables_come_at_once_and_then_whatever_changes(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            broker(tmp_path / "m") as server,
            connected(server.address) as peer,
        ):
            await change_everything(peer, server, 0)
            await sent(peer, b"later", "T0w", pairs={"DELAY": "1"})
            await until(lambda: server._delays.table().offset_table.get(1) == 1)
            store_side, took, gone, deleted = StoreSide(), [], [], {}
            store_side.topics_taken = took.extend
            store_side.topics_gone = gone.extend
            store_side.deleted_topics = deleted.update
            async with slave(tmp_path / "s", server.address, store_side) as (copies, follow):
                assert not follow.failing
                assert_equal(copies, server)
                assert "T0" in {config.topic_name for config in took}
                assert copies.tables.request_modes.table.message_request_mode_map["T0"]["G0"].consumer_group == "G0"
                assert copies.tables.offsets.resets() == [("G0", "T0", 0, 3)]
                took.clear()
                await change_everything(peer, server, 1)
                (
                    await peer.request(RequestCode.DELETE_TOPIC_IN_BROKER, headers.TopicHeader(topic="T0"))
                ).raise_for_code("delete")
                gone_group = headers.DeleteGroupHeader(group="G0", clean_offsets=True)
                (await peer.request(RequestCode.DELETE_SUBSCRIPTIONGROUP, gone_group)).raise_for_code("delete")
                server._quarantine.discard("delay-1000")
                # An operator sets an offset back: the slave's falls too.
                server._offsets.commit("G1", "T1", 1, 2)
                await look(follow)
                assert_equal(copies, server)
                assert [config.topic_name for config in took] == ["T1"]
                # A master of ours tells when: the queues go by that.
                assert gone == []
                assert deleted == server.store.deleted_topics()
                assert list(deleted) == ["T0"]
                assert copies.tables.offsets.get("G1", "T1", 1) == 2
                assert copies.tables.offsets.of("G0", "T0") == {}
                # Topics and groups made on the slave go, and what is committed there.
                copies.tables.topics.put(TopicConfig(topic_name="mine"))
                copies.tables.offsets.commit("G1", "T1", 1, 99)
                await look(follow)
                assert_equal(copies, server)
                again = copies.saved()
                again.messages.timers.statistics.open()
                assert_equal(again, server)
                copies.store = again.store

    run(main())


def test_it_costs_one_topic_and_one_group_while_nothing_changes(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path / "m") as server:
            server._topics.put_all(topics(4001))
            async with slave(tmp_path / "s", server.address) as (copies, follow):
                # The second look has it whole once more, as a Java master's version may be ahead of its rows.
                await look(follow)
                connections = Connections()
                api = MasterApi(connections, server.address)
                asked: list[Any] = []
                original = api._ask

                async def ask(code: Any, header: Any = None, **arguments: Any) -> Any:
                    found = await original(code, header, **arguments)
                    asked.append((code, len(found.body)))
                    return found

                api._ask = ask  # type: ignore[method-assign]
                assert await api.topics(copies.tables.topics.version) is None
                assert await api.groups(copies.tables.groups.version) is None
                whole = await api.offsets()
                assert whole is not None
                assert await api.offsets(whole.state or "") is None
                server._offsets.commit("G", "T", 0, 1)
                assert await api.offsets(whole.state or "") is not None
                assert [code for code, _ in asked] == [21, 201, 43, 43, 43]
                assert all(size < 700 for _, size in asked)
                assert asked[3][1] == 0
                await connections.close()

    run(main())


@pytest.mark.parametrize("count", [2001, 4001])
def test_a_topic_alone_on_the_last_page_comes_too(tmp_path: Path, count: int) -> None:
    async def main() -> None:
        async with broker(tmp_path / "m") as server:
            known = len(server._topics.table)
            server._topics.put_all(topics(count - known, "z"))
            server._groups.put_all([])
            assert len(server._topics.table) == count
            async with slave(tmp_path / "s", server.address) as (copies, follow):
                assert not follow.failing
                assert_equal(copies, server)

    run(main())


def test_a_change_between_two_pages_begins_the_fetch_anew(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path / "m") as server:
            server._topics.put_all(topics(4001))
            pages = server._handled_pages = []
            route = server._server._routes.table[RequestCode.GET_ALL_TOPIC_CONFIG]

            def show(peer: Any, request: Any, body: bytes) -> Any:
                pages.append(request.ext.start)
                if len(pages) == 2:
                    server._topics.put(TopicConfig(topic_name="between"))
                    server._topics.delete("many-00000")
                return route[2](peer, request, body)

            server._server._routes.add(RequestCode.GET_ALL_TOPIC_CONFIG, show, route[1])
            async with slave(tmp_path / "s", server.address) as (copies, follow):
                assert not follow.failing
                assert pages == [0, 2000, 0, 2000, 4000]
                assert "between" in copies.tables.topics.table
                assert_equal(copies, server)

    run(main())


def test_a_master_that_was_away_is_followed_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        port = free_ports()
        async with slave(tmp_path / "s", f"127.0.0.1:{port}", interval_s=0.05) as (copies, follow):
            await until(lambda: follow.passes > 3)
            assert set(follow.failing) == {"connection"}
            before = dict(copies.tables.topics.table)
            async with broker(tmp_path / "m", listen_port=port) as server, connected(server.address) as peer:
                await create(peer, "first")
                await until(lambda: not follow.failing)
                await look(follow)
                assert_equal(copies, server)
            await until(lambda: "connection" in follow.failing)
            assert "first" in copies.tables.topics.table
            assert before.keys() < copies.tables.topics.table.keys()
            async with broker(tmp_path / "m", listen_port=port) as server, connected(server.address) as peer:
                await create(peer, "second")
                await until(lambda: "second" in copies.tables.topics.table)
                await look(follow)
                assert_equal(copies, server)
                follow.set_master(None)
                await create(peer, "third")
                passes = follow.passes
                follow.look()
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                assert follow.passes <= passes + 1
                assert "third" not in copies.tables.topics.table

    with caplog.at_level(logging.INFO, "rocketspark.broker"):
        run(main())
    lines = [r.getMessage() for r in caplog.records if "connection of the master" in r.getMessage()]
    # A line when it goes and one when it is back, however often it was tried.
    assert [("not taken" in line, "again" in line.rpartition(" ")[2]) for line in lines] == [
        (True, True),
        (False, True),
        (True, True),
        (False, True),
    ]


def test_a_new_version_that_came_with_the_old_rows_comes_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics_of = MasterApi.topics

    async def before_its_rows(api: MasterApi, known: Any) -> Any:
        found = await topics_of(api, known)
        assert found is not None
        del found.table["late"]
        monkeypatch.setattr(MasterApi, "topics", topics_of)
        return found

    async def main() -> None:
        async with (
            broker(tmp_path / "m") as server,
            connected(server.address) as peer,
            slave(tmp_path / "s", server.address) as (copies, follow),
        ):
            await look(follow)
            await create(peer, "late")
            monkeypatch.setattr(MasterApi, "topics", before_its_rows)
            await look(follow)
            assert "late" not in copies.tables.topics.table
            assert copies.tables.topics.version == server._topics.version
            await look(follow)
            assert_equal(copies, server)

    run(main())


def test_a_broker_never_follows_itself(tmp_path: Path) -> None:
    async def main() -> None:
        async with slave(tmp_path, None, own_address="127.0.0.1:1") as (_, follow):
            follow.set_master("127.0.0.1:1")
            assert follow.master is None

    run(main())


@pytest.mark.parametrize("kind", [Role.MASTER, Role.FENCED, Role.SLAVE])
def test_what_counts_messages_waits_for_the_log_of_a_master_that_steps_down_too(tmp_path: Path, kind: Role) -> None:
    """Who is elected takes the tables of the one before, which delivered what the log here may not have."""

    async def main() -> None:
        async with broker(tmp_path / "m") as server, connected(server.address) as peer:
            await create_group(peer, "G")
            await sent(peer, b"1", "T")
            commit = headers.UpdateConsumerOffsetHeader(group="G", topic="T", queue_id=0, commit_offset=1)
            (await peer.request(RequestCode.UPDATE_CONSUMER_OFFSET, commit)).raise_for_code("commit")
            server.role.kind = kind
            here = [server.store.end_position - 1]
            async with slave(tmp_path / "s", server.address, StoreSide(log_end=lambda: here[0])) as (copies, follow):
                assert (copies.tables.offsets.get("G", "T", 0), follow.is_taken) == (None, False)
                here[0] += 1
                await until(lambda: follow.is_taken)
                assert copies.tables.offsets.get("G", "T", 0) == 1

    run(main())
