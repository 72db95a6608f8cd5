"""Tables between brokers: a slave's of ours equal a Java master's, and ours answer as the Java broker does."""

from __future__ import annotations

import asyncio
import collections
import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.java.apache import SERVER_JARS, Answer, ApacheCluster, ask
from tests.java.conftest import QUICK
from tests.java.driver import java_tool
from tests.live.support import broker, run, until
from tests.live.table_copies import look, offsets_of, slave
from tests.support.official import SHORT_LIVED, started
from tests.support.patience import LIMIT_S
from tests.support.ports import free_ports

from rocketspark.broker.replication.master_api import HaInfo, ask_ha_info
from rocketspark.broker.replication.slave_synchronize import StoreSide, reverse_synchronize
from rocketspark.broker.storage.json_tables import sorted_json
from rocketspark.protocol.json import java_json
from rocketspark.protocol.json.bodies import TopicConfig
from rocketspark.store.timers.timer_files import TimerCheckpoint, decode_checkpoint
from rocketspark.transport.connections import Connections

pytestmark = pytest.mark.shows(
    "what a broker asks its master for, answered as the Java broker does: topics and groups in pages, "
    "offsets, delay levels, timers, request modes, addresses",
    "a slave's tables equal its master's, of ours and Java's, at once and every 3 s; a garbled answer changes nothing",
)

TOOL = Path(__file__).parent / "tools" / "SlaveAsks.java"
TOPIC, GROUP = "SyncT", "SyncG"
PAGE = {"dataVersion": ""}
# How many delayed messages each master was sent.
delayed: collections.Counter[str] = collections.Counter()


@pytest.fixture(scope="module")
def master(java_tools: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheCluster]:
    """A Java master of this module's own: it gets more topics than a page holds."""
    cluster = ApacheCluster(tmp_path_factory.mktemp("master"), config=QUICK | {"messageDelayLevel": "1s 1h"})
    yield cluster
    cluster.close()


def done(answer: Answer) -> Answer:
    assert answer.code == 0, answer
    return answer


def table(answer: Answer) -> dict[str, Any]:
    found: dict[str, Any] = java_json.decode(done(answer).body, dict[str, Any])
    return found


def put_topic(address: str, topic: str, queues: int = 3) -> None:
    wanted = {"topic": topic, "readQueueNums": str(queues), "writeQueueNums": "2", "perm": "6"}
    more = {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false", "defaultTopic": "TBW102"}
    done(ask(address, 17, ext_fields=wanted | more))


def commit(address: str, queue_id: int, offset: int, group: str = GROUP) -> None:
    fields = {"consumerGroup": group, "topic": TOPIC, "queueId": str(queue_id), "commitOffset": str(offset)}
    done(ask(address, 15, ext_fields=fields))


def asked_to_store(address: str, properties: str) -> Answer:
    fields = {"a": "P", "b": TOPIC, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": str(int(time.time() * 1000))}
    return ask(address, 310, b"x", fields | {"h": "0", "i": properties, "j": "0", "k": "false", "m": "false"})


def send(address: str, properties: str) -> None:
    done(asked_to_store(address, properties))


def fill(address: str) -> None:
    """Something in each table."""
    put_topic(address, TOPIC)
    done(ask(address, 200, json.dumps({"groupName": GROUP, "retryMaxTimes": 3}).encode()))
    done(ask(address, 353, ext_fields={"group": GROUP, "topic": TOPIC, "readable": "false"}))
    # Of a group's first commits that come at once the Java broker forgets one.
    for queue_id in range(2):
        commit(address, queue_id, 5 + queue_id)
    mode = {"topic": TOPIC, "consumerGroup": GROUP, "mode": "PULL", "popShareQueueNum": 0}
    done(ask(address, 401, json.dumps(mode).encode()))
    send(address, "DELAY\x011\x02")
    delayed[address] += 1
    send(address, f"TIMER_DELIVER_MS\x01{int(time.time() * 1000) + 3_600_000}\x02")


async def filled(address: str) -> None:
    """Wait until all delayed messages were delivered and the timer message counted."""
    await until(lambda: table(ask(address, 45))["offsetTable"].get("1", 0) == delayed[address])
    await until(lambda: TOPIC in table(ask(address, 61))["timingCount"])


def assert_equal(copies: Any, address: str) -> None:
    """Each table is what the Java master answers, asked in one piece."""
    topics, groups = table(ask(address, 21)), table(ask(address, 201))
    mine = copies.tables
    as_json = json.loads
    assert as_json(sorted_json(mine.topics.table)) == topics["topicConfigTable"]
    assert as_json(sorted_json(mine.topics.version)) == topics["dataVersion"]
    assert as_json(sorted_json(mine.groups.table)) == groups["subscriptionGroupTable"]
    assert mine.groups.forbidden == groups["forbiddenTable"]
    assert as_json(sorted_json(mine.groups.version)) == groups["dataVersion"]
    offsets, delays = table(ask(address, 43)), table(ask(address, 45))
    of_mine = {key: {str(n): at for n, at in queues.items()} for key, queues in offsets_of(mine).items()}
    assert of_mine == offsets["offsetTable"]
    assert as_json(sorted_json(mine.offsets.version)) == offsets["dataVersion"]
    of_levels = copies.messages.delays.table()
    assert {str(level): at for level, at in of_levels.offset_table.items()} == delays["offsetTable"]
    assert as_json(sorted_json(of_levels.data_version)) == delays["dataVersion"]
    assert as_json(sorted_json(mine.request_modes.table)) == table(ask(address, 402))
    assert as_json(sorted_json(copies.messages.timers.statistics.table())) == table(ask(address, 61))
    theirs, ours = decode_checkpoint(done(ask(address, 60)).body), copies.messages.timers.checkpoint()
    assert ours == theirs._replace(physical_offset=0, queue_offset=0)


def test_a_slave_s_tables_equal_those_of_a_java_master(master: ApacheCluster, tmp_path: Path) -> None:
    async def main() -> None:
        address = master.broker
        fill(address)
        await filled(address)
        side = StoreSide(topics_gone=(gone := []).extend)
        async with slave(tmp_path / "s", address, side, interval_s=3600) as (copies, follow):
            assert not follow.failing
            assert_equal(copies, address)
            assert copies.tables.topics.table[TOPIC].read_queue_nums == 3
            # An offset is set back, topics and groups come and go; 4,001 topics: the last page holds one alone.
            commit(address, 1, 2)
            known = len(copies.tables.topics.table)
            names = [f"z{n:05}" for n in range(4001 - known)]
            configs = [{"topicName": name, "readQueueNums": 1, "writeQueueNums": 1} for name in names]
            done(ask(address, 18, json.dumps({"topicConfigList": configs}).encode()))
            done(ask(address, 200, b'{"groupName":"Another"}'))
            await look(follow)
            assert not follow.failing
            assert len(copies.tables.topics.table) == 4001
            assert_equal(copies, address)
            assert copies.tables.offsets.get(GROUP, TOPIC, 1) == 2
            done(ask(address, 215, ext_fields={"topic": names[0]}))
            done(ask(address, 207, ext_fields={"groupName": "Another", "cleanOffset": "true"}))
            await look(follow)
            assert_equal(copies, address)
            assert len(copies.tables.topics.table) == 4000
            assert gone[-1] == names[0]
            again = copies.saved()
            again.messages.timers.statistics.open()
            assert_equal(again, address)
            copies.store = again.store

    run(main())


def log_end(broker: str) -> int:
    return int(json.loads(done(ask(broker, 907)).body)["masterCommitLogMaxOffset"])


def test_a_whole_slave_broker_of_ours_has_the_tables_and_the_log_of_a_java_master(
    master: ApacheCluster, tmp_path: Path
) -> None:
    """It finds its master by the NameServer. Before the roles change nothing is delivered or taken here."""

    async def main() -> None:
        await asyncio.to_thread(fill, master.broker)
        async with broker(
            tmp_path,
            broker_role="SLAVE",
            broker_id=1,
            log_file_bytes=16 << 20,
            delay_levels="1s 1h",
            namesrv_addresses=master.namesrv,
        ) as server:
            follow = server.replication.synchronize
            await until(lambda: follow.master == master.broker)
            await filled(master.broker)
            parts: Any = SimpleNamespace(
                tables=SimpleNamespace(
                    topics=server._topics, groups=server._groups, offsets=server._offsets, request_modes=server._modes
                ),
                messages=SimpleNamespace(delays=server._delays, timers=server._wheel),
            )
            end = await asyncio.to_thread(log_end, master.broker)
            await until(lambda: server.store.written_position >= end)
            await look(follow)
            assert not follow.failing
            await asyncio.to_thread(assert_equal, parts, master.broker)
            commit(master.broker, 0, 1)
            await look(follow)
            await asyncio.to_thread(assert_equal, parts, master.broker)
            refused = await asyncio.to_thread(asked_to_store, server.address, "")
            assert refused.code == 2
            # What it refused is not in its log, which is the master's, however long that became meanwhile.
            end = await asyncio.to_thread(log_end, master.broker)
            await until(lambda: server.store.written_position >= end)
            log = (master.store / "commitlog" / f"{0:020}").read_bytes()[:end]
            assert bytes(server.store.log_bytes(0, end)) == log

    run(main())


@pytest.mark.shows("a master takes back offsets, delay levels and timers")
def test_the_master_takes_back_from_a_java_broker(master: ApacheCluster, tmp_path: Path) -> None:
    """The higher offset of each queue wins; a Java broker tells its versions and addresses as ours reads them."""

    async def main() -> None:
        fill(master.broker)
        commit(master.broker, 0, 50)
        await filled(master.broker)
        connections = Connections(language="JAVA")
        info = await ask_ha_info(connections, master.broker)
        host, _, port = master.broker.rpartition(":")
        assert info is not None
        assert (info.ha_address, info.master_address) == (f"{host}:{int(port) + 1}", master.broker)
        async with slave(tmp_path / "m", None) as (copies, _):
            copies.tables.offsets.commit(GROUP, TOPIC, 0, 7)
            copies.tables.offsets.commit(GROUP, TOPIC, 1, 1000)
            copies.tables.offsets.commit("Mine", TOPIC, 0, 1)
            await reverse_synchronize(connections, master.broker, copies.tables, copies.messages)
            assert copies.tables.offsets.of(GROUP, TOPIC) == {0: 50, 1: 1000}
            assert copies.tables.offsets.of("Mine", TOPIC) == {0: 1}
            assert copies.messages.delays.table().offset_table == {
                int(level): at for level, at in table(ask(master.broker, 45))["offsetTable"].items()
            }
            theirs = decode_checkpoint(done(ask(master.broker, 60)).body)
            assert copies.messages.timers.checkpoint().read_time_ms == theirs.read_time_ms
        await connections.close()

    run(main())


# -- our answers beside the Java broker's -----------------------------------------------------------------------------

# What is asked, and the rows that both brokers have.
ASKED: list[tuple[int, dict[str, str]]] = [
    (21, {}),
    (21, PAGE | {"topicSeq": "0", "maxTopicNum": "2000"}),
    (43, {}),
    (45, {}),
    (61, {}),
    (201, {}),
    (201, PAGE | {"groupSeq": "0", "maxGroupNum": "2000"}),
    (402, {}),
]


def stable(value: Any) -> Any:
    """A document without times, numbers of changes, and rows that only one of the brokers has."""
    if isinstance(value, dict):
        # How many delayed messages were delivered depends on the tests before.
        varying = ("timestamp", "timeStamp", "counter", "count", "1")
        kept = {k: stable(v) for k, v in value.items() if k not in varying}
        if any(TOPIC in k or GROUP in k for k in kept):
            kept = {k: v for k, v in kept.items() if TOPIC in k or GROUP in k}
        return kept
    return value


def test_ours_answers_other_brokers_as_the_java_broker_does(master: ApacheCluster, tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path, delay_levels="1s 1h", broker_name="broker-a") as server:
            ours = server.address
            theirs = master.broker

            def asked(address: str, code: int, fields: dict[str, str]) -> Answer:
                return ask(address, code, ext_fields=fields)

            await asyncio.to_thread(fill, ours)
            await asyncio.to_thread(fill, theirs)
            await until(lambda: server._delays.table().offset_table.get(1) == 1)
            await until(lambda: TOPIC in server._wheel.statistics.table().counts)
            for code, fields in ASKED:
                mine = await asyncio.to_thread(asked, ours, code, fields)
                java = await asyncio.to_thread(asked, theirs, code, fields)
                assert mine.ext_fields.keys() == java.ext_fields.keys(), code
                found, wanted = stable(table(mine)), stable(table(java))
                assert found == wanted, (code, fields)
            for address in (ours, theirs):
                body = done(await asyncio.to_thread(asked, address, 60, {})).body
                assert len(body) == 56
                assert decode_checkpoint(body).read_time_ms > 0
                info = done(await asyncio.to_thread(asked, address, 906, {}))
                host, _, port = address.rpartition(":")
                # Where another program has the port after that of ours, it is another one.
                ha_address = server.replication._own_ha_address if address == ours else f"{host}:{int(port) + 1}"
                assert info.ext_fields.pop("masterFlushOffset").isdigit()
                assert info.ext_fields == {"masterAddress": address, "masterHaAddress": ha_address}
                reset = await asyncio.to_thread(asked, address, 908, {"masterFlushOffset": "5"})
                assert (reset.code, reset.ext_fields, reset.body) == (0, {}, b"")
            # A page out of the middle, of a version that is not the table's, begins at the first row.
            middle = PAGE | {"topicSeq": "3", "maxTopicNum": "2"}
            for address in (ours, theirs):
                rows = table(await asyncio.to_thread(asked, address, 21, middle))["topicConfigTable"]
                assert sorted(rows)[0] == "BenchmarkTest"
                assert len(rows) == 2

    run(main())


def slave_asks(address: str) -> dict[str, Any]:
    """What the official slave's own code reads from a broker; topics and timers two ports below its own."""
    command = [java_tool("java"), *SHORT_LIVED.split(), "-cp", str(SERVER_JARS / "*"), str(TOOL), address]
    started("SlaveAsks")
    done = subprocess.run(command, capture_output=True, check=True, timeout=LIMIT_S)
    found: dict[str, Any] = java_json.decode(done.stdout.strip().splitlines()[-1], dict[str, Any])
    return found


@pytest.mark.parametrize("count", [2001, 4001])
def test_the_java_slave_s_own_code_reads_all_tables_of_ours(java_tools: None, tmp_path: Path, count: int) -> None:
    async def main() -> None:
        async with broker(tmp_path, delay_levels="1s 1h", listen_port=free_ports(-2, 0, 1)) as server:
            await asyncio.to_thread(fill, server.address)
            await until(lambda: server._delays.table().offset_table.get(1) == 1)
            await until(lambda: TOPIC in server._wheel.statistics.table().counts)
            names = [f"z{n:05}" for n in range(count - len(server._topics.table))]
            server._topics.put_all([TopicConfig(topic_name=name) for name in names])
            told: list[HaInfo] = []
            server._ha_info.told = told.append
            host, _, port = server.address.rpartition(":")
            found = await asyncio.to_thread(slave_asks, server.address)

            def same(value: Any) -> Any:
                return json.loads(sorted_json(value))

            # Also the last one, alone on its page: the pages are cut so that Java's slave asks for it.
            assert found["topics"]["topicConfigTable"] == same(server._topics.table)
            assert len(found["topics"]["topicConfigTable"]) == count
            assert found["topics"]["dataVersion"] == same(server._topics.version)
            assert found["topics"]["mappingDataVersion"] == {"counter": 0, "stateVersion": 0, "timestamp": 0}
            assert found["groups"]["subscriptionGroupTable"] == same(server._groups.table)
            assert found["groups"]["forbiddenTable"] == {GROUP: {TOPIC: 4}}
            assert found["groups"]["dataVersion"] == same(server._groups.version)
            assert found["offsets"]["offsetTable"] == {f"{TOPIC}@{GROUP}": {"0": 5, "1": 6}}
            assert found["offsets"]["dataVersion"] == same(server._offsets.version)
            delays = java_json.decode(found["delays"].encode(), dict[str, Any])
            assert (delays["offsetTable"], delays["dataVersion"]) == ({"1": 1}, same(server._delays.version))
            assert found["modes"] == same(server._modes.table)
            assert found["timerCounts"] == same(server._wheel.statistics.table())
            read, now = TimerCheckpoint(*found["timers"]), server._wheel.checkpoint()
            assert 0 < read.read_time_ms <= now.read_time_ms
            assert read.version_counter <= now.version_counter
            assert found["haInfo"] == [f"{host}:{int(port) + 1}", 0, server.address]
            assert told == [HaInfo("127.0.0.1:7", 9, "127.0.0.1:5")]

    run(main())


@pytest.mark.soak
def test_the_java_slave_s_own_code_misses_a_row_of_a_java_master(master: ApacheCluster) -> None:
    """Why ours cuts its pages otherwise."""
    known = table(ask(master.broker, 21))["topicConfigTable"]
    names = [f"y{n:05}" for n in range(4001 - len(known))] if len(known) < 4001 else []
    configs = [{"topicName": name, "readQueueNums": 1, "writeQueueNums": 1} for name in names]
    done(ask(master.broker, 18, json.dumps({"topicConfigList": configs}).encode()))
    found = slave_asks(master.broker)["topics"]["topicConfigTable"]
    theirs = table(ask(master.broker, 21))["topicConfigTable"]
    assert len(theirs) == 4001
    assert theirs.keys() - found.keys() == {max(theirs)}
