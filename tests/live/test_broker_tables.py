"""Brokers with many topics, groups and offsets: saving, registering and showing them holds up nobody."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.live.support import broker, connected, create, create_group, name_server, run, send, sent, until
from tests.support.patience import LIMIT_S

from rocketspark.broker.storage import table_saving
from rocketspark.broker.storage.json_tables import JsonFile
from rocketspark.model.route import PERM_READ, PERM_WRITE
from rocketspark.protocol import headers
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.json import bodies, java_json
from rocketspark.protocol.json.bodies import GroupConfigTable, TopicConfig, TopicConfigTable
from rocketspark.transport.peer import Peer
from rocketspark.transport.request_frames import request

pytestmark = pytest.mark.shows("100,000 topics, groups or offsets", "floods of requests for all settings")

MANY = 3000


def many_topics(server: Any, count: int = MANY) -> None:
    server._topics.put_all([TopicConfig(topic_name=f"many-{n}") for n in range(count)])


def topics_on_disk(root: Path) -> set[str]:
    table = JsonFile(root / "config" / "topics.json", TopicConfigTable).load()
    assert table is not None
    return set(table.topic_config_table)


async def put_topic(peer: Peer, topic: str) -> asyncio.Future[Any]:
    header = headers.CreateTopicHeader(topic=topic, perm=6, read_queue_count=4, write_queue_count=4)
    return peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header)


class Gate:
    """What is done in a thread waits until it is opened; on the loop it would be done at once."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.passed = 0
        self._loop = threading.current_thread()

    def before(self, act: Any) -> Any:
        def wait(*arguments: Any) -> Any:
            self.passed += 1
            assert threading.current_thread() is self._loop or self.opened.wait(LIMIT_S)
            return act(*arguments)

        return wait


def test_saving_many_topics_holds_up_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with (
            broker(tmp_path) as server,
            connected(server.address) as peer,
            connected(server.address) as other,
        ):
            await create(peer)
            many_topics(server)
            await server._settled()
            gate = Gate()
            monkeypatch.setattr(server._topics.unsaved, "_write", gate.before(server._topics.unsaved._write))
            asked = [await put_topic(peer, "first")]
            for number in range(5):
                # Answered while topics.json is on its way; one more topic each time.
                await sent(other, b"meanwhile")
                asked.append(await put_topic(other, f"later-{number}"))
            automatic = asyncio.create_task(sent(peer, b"x", "automatic"))
            await sent(other, b"meanwhile")
            assert not any(future.done() for future in (*asked, automatic))
            assert "first" not in topics_on_disk(tmp_path)
            gate.opened.set()
            for future in asked:
                (await future).raise_for_code("create")
            await automatic
            # Who was told finds it on disk; those that came during one save went with the next.
            assert topics_on_disk(tmp_path) == set(server._topics.table)
            assert gate.passed <= 4
            header = headers.TopicHeader(topic="first")
            (await peer.request(RequestCode.DELETE_TOPIC_IN_BROKER, header)).raise_for_code("delete")
            assert "first" not in topics_on_disk(tmp_path)

    run(main())


def test_saving_many_groups_holds_up_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with (
            broker(tmp_path) as server,
            connected(server.address) as peer,
            connected(server.address) as other,
        ):
            await create(peer)
            rows = b",".join(b'{"groupName":"many-%d"}' % n for n in range(MANY))
            body = b'{"groupConfigList":[%b]}' % rows
            code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
            (await peer.request(code, None, body)).raise_for_code("create")
            gate = Gate()
            monkeypatch.setattr(server._groups.unsaved, "_write", gate.before(server._groups.unsaved._write))
            created = asyncio.create_task(create_group(peer, "one-more"))
            await asyncio.sleep(0)
            for _ in range(5):
                await sent(other, b"meanwhile")
            assert not created.done()
            gate.opened.set()
            await created
            table = JsonFile(tmp_path / "config" / "subscriptionGroup.json", GroupConfigTable).load()
            assert table is not None
            assert table.subscription_group_table == server._groups.table
            assert {"one-more", "many-0", f"many-{MANY - 1}"} <= set(table.subscription_group_table)

    run(main())


def test_a_broker_that_ends_writes_all_it_knew(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path, flush_offsets_interval_ms=10) as server, connected(server.address) as peer:
            await create(peer)
            for n in range(MANY):
                server._offsets.commit(f"g{n}", "T", 0, n)
            many_topics(server)
            await until(lambda: (tmp_path / "config" / "consumerOffset.json").exists())
            many_topics(server, MANY + 1)
            server._offsets.commit("last", "T", 0, 7)
        assert topics_on_disk(tmp_path) == set(server._topics.table)
        assert not [t for t in threading.enumerate() if t.name.startswith("rocketspark-tables")]
        async with broker(tmp_path) as again:
            assert again._offsets.table == server._offsets.table
            assert again._offsets.get("last", "T", 0) == 7

    run(main())


def test_registering_many_topics_holds_up_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()

    async def main() -> None:
        async with (
            name_server() as names,
            broker(tmp_path, namesrv_addresses=names.address) as server,
            connected(server.address) as peer,
        ):
            await create(peer)
            server._topics.table.update((f"many-{n}", TopicConfig(topic_name=f"many-{n}")) for n in range(MANY))
            monkeypatch.setattr("rocketspark.broker.operations.registration.joined", gate.before(table_saving.joined))
            # A NameServer that lost its connection is registered at anew, with all topics.
            for at in list(names._server.peers):
                at.close()
            await until(lambda: gate.passed)
            for _ in range(10):
                await sent(peer, b"meanwhile")
            assert "many-0" not in names.registry.topics()
            gate.opened.set()
            await until(lambda: f"many-{MANY - 1}" in names.registry.topics())
            assert set(names.registry.topics()) == set(server._topics.table)

    run(main())


ALL = {
    RequestCode.GET_ALL_TOPIC_CONFIG: ("topicConfigTable", "many-7"),
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: ("subscriptionGroupTable", "many-7"),
    RequestCode.GET_ALL_CONSUMER_OFFSET: ("offsetTable", "T@many-7"),
}


@pytest.mark.parametrize("code", ALL, ids=[code.name for code in ALL])
def test_a_table_is_made_once_for_all_who_ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: RequestCode
) -> None:
    gate = Gate()

    async def main() -> None:
        async with (
            broker(tmp_path) as server,
            connected(server.address) as peer,
            connected(server.address) as second,
            connected(server.address) as other,
        ):
            await create(peer)
            many_topics(server)
            server._groups.put_all([bodies.GroupConfig(group_name=f"many-{n}") for n in range(MANY)])
            for n in range(MANY):
                server._offsets.commit(f"many-{n}", "T", 0, n)
            await server._settled()
            await server._groups.unsaved.saved()
            monkeypatch.setattr(table_saving, "joined", gate.before(table_saving.joined))
            asked = [by.ask(code, None) for by in (peer, second) for _ in range(40)]
            for _ in range(10):
                await sent(other, b"meanwhile")
            assert not any(future.done() for future in asked)
            gate.opened.set()
            answers = await asyncio.gather(*asked)
            # One for those that came before it began, one for those that came while it was made.
            assert gate.passed <= 2
            assert len({answer.body for answer in answers}) == 1
            field, name = ALL[code]
            text = answers[0].raise_for_code("all").body
            if code == RequestCode.GET_ALL_CONSUMER_OFFSET:
                assert text.count(b"@many-") == MANY
            else:
                table = java_json.decode(text, dict[str, Any])[field]
                (count,) = msgspec.json.decode(bytes(answers[0].ext)).values()
                assert len(table) == int(count)
                assert name in table
            # Not made again before something changes.
            passed = gate.passed
            assert (await peer.request(code)).body == text
            assert gate.passed == passed
            if code == RequestCode.GET_ALL_TOPIC_CONFIG:
                await create(peer, "changed")
            elif code == RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG:
                await create_group(peer, "changed")
            else:
                server._offsets.commit("changed", "T", 0, 1)
            assert b"changed" in (await peer.request(code)).body

    run(main())


def test_small_tables_are_shown_as_they_are_now(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer)
            for number in range(3):
                await create(peer, f"new-{number}")
                await create_group(peer, f"group-{number}")
                server._offsets.commit(f"group-{number}", "T", 0, number)
                for code, text in zip(
                    ALL, (f'"new-{number}"', f'"group-{number}"', f'"T@group-{number}"'), strict=True
                ):
                    assert text.encode() in (await peer.request(code)).body
            update = f"brokerPermission={PERM_READ}".encode()
            (await peer.request(RequestCode.UPDATE_BROKER_CONFIG, None, update)).raise_for_code("update")
            body = (await peer.request(RequestCode.GET_ALL_TOPIC_CONFIG)).body
            table = java_json.decode(body, TopicConfigTable).topic_config_table
            # The topics' own: a slave takes them, and the broker may be writable again.
            assert all(table[f"new-{number}"].perm == PERM_READ | PERM_WRITE for number in range(3))

    run(main())


def test_who_reads_slowly_is_sent_one_at_a_time(tmp_path: Path) -> None:
    """Hundreds of large answers that nobody reads are not made ready in memory."""

    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as other:
            await create(other)
            many_topics(server, 30_000)
            await server._settled()
            reader, writer = await asyncio.open_connection(*server.address.split(":"))
            async with connected(server.address) as peer:
                whole = (await peer.request(RequestCode.GET_ALL_TOPIC_CONFIG)).body
            writer.write(b"".join(request(RequestCode.GET_ALL_TOPIC_CONFIG, None, opaque=n) for n in range(300)))
            for _ in range(20):
                await send(other, b"meanwhile")
            (held,) = [
                p for p in server._server.peers if p.address.endswith(f":{writer.get_extra_info('sockname')[1]}")
            ]
            assert held._transport is not None
            assert held._transport.get_write_buffer_size() < 2 * len(whole)
            for number in range(300):
                length = int.from_bytes(await reader.readexactly(4), "big")
                frame = await reader.readexactly(length)
                assert frame.endswith(whole[-100:]), number
            writer.close()

    run(main())
