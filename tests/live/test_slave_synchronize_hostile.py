"""Masters that lie, end or are behind; and a master that takes back what its slave did."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.live.support import broker, connected, run, until
from tests.live.table_copies import look, offsets_of, slave

from rocketspark.broker.replication import slave_synchronize
from rocketspark.broker.replication.master_api import HaInfo, ask_ha_info, tell_ha_info
from rocketspark.broker.replication.slave_synchronize import StoreSide, reverse_synchronize
from rocketspark.errors import NotSent, ProtocolError, RocketSparkError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers.topics import MasterFlushOffsetHeader
from rocketspark.protocol.json.bodies import DataVersion
from rocketspark.store.timers.timer_files import TimerCheckpoint
from rocketspark.transport.connections import Connections
from rocketspark.transport.processor_table import Routes
from rocketspark.transport.request_frames import reply
from rocketspark.transport.server import Server

pytestmark = pytest.mark.shows(
    "a slave's tables equal its master's, of ours and Java's, at once and every 3 s; a garbled answer changes nothing"
)

# -- masters that do not answer as they should ------------------------------------------------------------------------


class FakeMaster:
    """Answers each request with what it is told to; everything else as a broker that does not know it."""

    def __init__(self) -> None:
        self.answers: dict[int, bytes] = {}
        self.heads: dict[int, dict[str, str]] = {}
        self.routes = Routes()
        for code in (21, 201, 43, 45, 402, 60, 61, 907, RequestCode.GET_BROKER_STATE, 906):
            self.routes.add(code, self._answer)
        self.server = Server(self.routes)

    def _answer(self, peer: Any, request: Any, body: bytes) -> bytes:
        answer = self.answers.get(request.code)
        if answer is None:
            return reply(request.opaque, 3)
        return reply(request.opaque, header=self.heads.get(request.code), body=answer)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"


@asynccontextmanager
async def fake_master() -> AsyncIterator[FakeMaster]:
    fake = FakeMaster()
    await fake.server.start("127.0.0.1", 0)
    try:
        yield fake
    finally:
        await fake.server.close()


V = b'"dataVersion":{"counter":7,"stateVersion":1,"timestamp":5}'
GOOD = {
    21: b'{%b,"topicConfigTable":{"X":{"topicName":"X","readQueueNums":1,"writeQueueNums":1}}}' % V,
    201: b'{%b,"subscriptionGroupTable":{"GX":{"groupName":"GX"}},"forbiddenTable":{}}' % V,
    43: b'{%b,"offsetTable":{"X@GX":{0:9}}}' % V,
    45: b'{%b,"offsetTable":{3:8}}' % V,
    402: b'{"messageRequestModeMap":{}}',
    60: TimerCheckpoint(5000, 1, 2, 3, 1, 5, 7).encode(),
    61: b'{%b,"timingCount":{"X":{"count":2,"timeStamp":5}}}' % V,
    907: b'{"masterCommitLogMaxOffset":0}',
}
ITEMS = {21: "topics", 201: "groups", 43: "offsets", 45: "delay levels", 402: "request modes", 60: "timers"} | {
    61: "timer counts",
    RequestCode.GET_BROKER_STATE: "state",
}
BAD = [
    *((code, body) for code in ITEMS for body in (b"", b"{}", b"[]", b"null", b"\xff\x00", b'{"dataVersion":7}')),
    (21, b'{%b,"topicConfigTable":{}}' % V),
    (21, GOOD[21].replace(b'"topicName":"X"', b'"topicName":"Y"')),
    (21, GOOD[21].replace(b'"readQueueNums":1', b'"readQueueNums":70000')),
    (21, GOOD[21].replace(b'"readQueueNums":1', b'"readQueueNums":-1')),
    (21, GOOD[21].replace(b'"X"', b'"X\\u0000"')),
    (21, GOOD[21].replace(b'"counter":7', b'"counter":99999999999999999999')),
    (21, b'{"topicConfigTable":{"X":{"topicName":"X"}}}'),
    (201, GOOD[201].replace(b'"groupName":"GX"', b'"groupName":"Other"')),
    (201, GOOD[201].replace(b'"forbiddenTable":{}', b'"forbiddenTable":{"GX":{"X":-1}}')),
    (43, b'{%b,"offsetTable":{"X@GX":{0:-2}}}' % V),
    (43, b'{%b,"offsetTable":{"X@GX":{-1:2}}}' % V),
    (43, b'{%b,"offsetTable":{"":{0:2}}}' % V),
    (43, b'{%b,"offsetTable":{"X@GX":{0:92233720368547758070}}}' % V),
    (45, b'{%b,"offsetTable":{0:1}}' % V),
    (45, b'{%b,"offsetTable":{1:-1}}' % V),
    (60, b"\x00" * 55),
    (60, b"\xff" * 31 + b"\x00" * 25),
    (RequestCode.GET_BROKER_STATE, b'{"layout":2}'),
    (RequestCode.GET_BROKER_STATE, b'{"layout":1,"deletedTopics":{"X":-1}}'),
    (RequestCode.GET_BROKER_STATE, b'{"layout":1,"resets":[{"group":"","topic":"X","queueId":0,"offset":1}]}'),
]


def test_a_garbled_answer_changes_nothing_and_stops_no_other_table(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # More lines than a log takes in some seconds.
    monkeypatch.setattr(slave_synchronize, "log", LimitedLog("rocketspark.broker", lines_max=1000))

    async def main() -> None:
        async with fake_master() as fake, slave(tmp_path, None, interval_s=3600) as (copies, follow):
            fake.answers.update(GOOD)
            follow.set_master(fake.address)
            await follow.passed()
            assert not follow.failing
            assert list(copies.tables.topics.table) == ["X"]
            assert copies.messages.timers.checkpoint() == TimerCheckpoint(5000, 0, 0, 3, 1, 5, 7)
            assert copies.messages.delays.table().offset_table == {3: 8}

            def state() -> Any:
                tables, messages = copies.tables, copies.messages
                return (
                    dict(tables.topics.table),
                    tables.topics.version,
                    dict(tables.groups.table),
                    tables.groups.version,
                    dict(tables.groups.forbidden),
                    offsets_of(tables),
                    tables.offsets.version,
                    tables.offsets.resets(),
                    tables.request_modes.table,
                    messages.delays.table(),
                    messages.timers.checkpoint(),
                    messages.timers.statistics.table(),
                    messages.quarantine.entries(),
                )

            before = state()
            for code, body in BAD:
                fake.answers = GOOD | {code: body}
                # A new connection has the state asked for again.
                follow.set_master(None)
                follow.set_master(fake.address)
                caplog.clear()
                await look(follow)
                await look(follow)
                assert set(follow.failing) == {ITEMS[code]}, (code, body)
                assert state() == before, (code, body)
                told = [r.getMessage() for r in caplog.records if r.name == "rocketspark.broker"]
                assert len([line for line in told if "were not taken" in line]) == 1, told
                assert not any("Traceback" in line for line in told)

    with caplog.at_level(logging.INFO, "rocketspark.broker"):
        run(main())


def test_a_master_that_promises_more_topics_than_it_has_is_named(tmp_path: Path) -> None:
    async def main() -> None:
        async with fake_master() as fake, slave(tmp_path, None, interval_s=3600) as (copies, follow):
            fake.answers.update(GOOD)
            fake.heads[21] = {"totalTopicNum": "4000"}
            before = dict(copies.tables.topics.table)
            follow.set_master(fake.address)
            await follow.passed()
            assert follow.failing.keys() == {"topics"}
            assert "told to have 4000 rows, after 1 no other comes" in follow.failing["topics"]
            assert copies.tables.topics.table == before

    run(main())


def test_a_master_that_ends_within_a_look_costs_one_line(tmp_path: Path) -> None:
    async def main() -> None:
        async with fake_master() as fake, slave(tmp_path, None, interval_s=3600) as (copies, follow):
            fake.answers.update(GOOD)

            def hang_up(peer: Any, request: Any, body: bytes) -> None:
                peer.abort()

            fake.routes.add(201, hang_up)
            follow.set_master(fake.address)
            await follow.passed()
            assert follow.failing.keys() == {"groups"}
            assert list(copies.tables.topics.table) == ["X"]

    run(main())


# -- what counts messages waits for the log ---------------------------------------------------------------------------


@pytest.mark.shows("offsets, delay levels and timers are taken only as far as the log has arrived")
def test_what_counts_messages_is_taken_when_the_log_has_arrived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slave_synchronize, "ARRIVE_S", 0.0)

    async def main() -> None:
        ends = [100]
        side = StoreSide(log_end=lambda: ends[0])
        async with fake_master() as fake, slave(tmp_path, None, side, interval_s=3600) as (copies, follow):

            def master(end: int, offset: int) -> None:
                fake.answers = GOOD | {
                    907: b'{"masterCommitLogMaxOffset":%d}' % end,
                    43: b'{%b,"offsetTable":{"X@GX":{0:%d}}}' % (V, offset),
                    45: b'{%b,"offsetTable":{3:%d}}' % (V, offset),
                    60: TimerCheckpoint(offset, 1, 2, offset, 1, 5, 7).encode(),
                }

            def taken() -> set[int | None]:
                checkpoint = copies.messages.timers.checkpoint()
                delays = copies.messages.delays.table().offset_table
                return {copies.tables.offsets.get("GX", "X", 0) or 0, delays.get(3, 0), checkpoint.read_time_ms}

            master(100, 5)
            follow.set_master(fake.address)
            await follow.passed()
            assert taken() == {5}
            master(200, 6)
            await look(follow)
            assert taken() == {5}, "the log here ends at 100"
            # Newer ones come, and the oldest is not pushed out: else a slave that lags would never take any.
            master(300, 7)
            await look(follow)
            assert taken() == {5}
            ends[0] = 250
            await look(follow)
            assert taken() == {6}
            ends[0] = 300
            await look(follow)
            assert taken() == {7}
            # A master whose log ends earlier is another one: what waited for the old end is forgotten.
            master(400, 8)
            await look(follow)
            master(300, 9)
            await look(follow)
            assert taken() == {9}
            assert not follow.failing

    run(main())


# -- the other direction ----------------------------------------------------------------------------------------------


@pytest.mark.shows("a master takes back offsets, delay levels and timers")
def test_a_master_takes_back_what_a_slave_did_meanwhile(tmp_path: Path) -> None:
    async def main() -> None:
        connections = Connections()
        async with fake_master() as fake, slave(tmp_path, None) as (copies, _):
            tables, messages = copies.tables, copies.messages
            tables.offsets.take(
                {"X@GX": {0: 5, 1: 50}, "Y@GX": {0: 1}}, DataVersion(state_version=1, timestamp=5, counter=7)
            )
            messages.delays.take({3: 5, 4: 9}, DataVersion(state_version=1, timestamp=5, counter=7))
            messages.timers.take_checkpoint(TimerCheckpoint(4000, 0, 0, 9, 1, 5, 7))

            def version(counter: int) -> bytes:
                return b'"dataVersion":{"counter":%d,"stateVersion":1,"timestamp":5}' % counter

            def answers(counter: int) -> dict[int, bytes]:
                return {
                    43: b'{%b,"offsetTable":{"X@GX":{0:9,1:40,2:1},"Z@GX":{0:3}}}' % version(counter),
                    45: b'{%b,"offsetTable":{3:8,4:8,5:1}}' % version(counter),
                    60: TimerCheckpoint(5000, 1, 2, 3, 1, 5, counter).encode(),
                }

            async def take_back() -> None:
                await reverse_synchronize(connections, fake.address, tables, messages)

            def state() -> Any:
                return offsets_of(tables), messages.delays.table(), messages.timers.checkpoint()

            before = state()
            # Any of the three that is not there, or has no version, or is garbled: nothing is taken, and it is told.
            no_version = {43: b'{"offsetTable":{}}', 45: b'{"offsetTable":{}}'}
            for code, error in ((43, ProtocolError), (45, ProtocolError), (60, RocketSparkError)):
                fake.answers = answers(8)
                del fake.answers[code]
                with pytest.raises(RocketSparkError):
                    await take_back()
                for body in (b"{}", no_version.get(code, b"\x00" * 20)):
                    fake.answers[code] = body
                    with pytest.raises(error):
                        await take_back()
                assert state() == before
            # An older version: offsets stay, but what the slave sent elsewhere is not delivered again. Of timers it
            # never had those from the queue offset 3 on: these still wait here.
            fake.answers = answers(6)
            await take_back()
            assert offsets_of(tables) == before[0]
            assert messages.delays.table().offset_table == {3: 8, 4: 9, 5: 1}
            assert messages.delays.version == DataVersion(state_version=1, timestamp=5, counter=7)
            assert messages.timers.checkpoint() == TimerCheckpoint(5000, 0, 0, 3, 1, 5, 7)
            # The same version, and a newer one: the higher number of each queue.
            for counter in (7, 8):
                fake.answers = answers(counter)
                await take_back()
                offsets = {"X@GX": {0: 9, 1: 50, 2: 1}, "Y@GX": {0: 1}, "Z@GX": {0: 3}}
                assert offsets_of(tables) == offsets
                assert tables.offsets.version == DataVersion(state_version=1, timestamp=5, counter=counter)
                assert messages.delays.table().offset_table == {3: 8, 4: 9, 5: 1}
                assert messages.delays.version == DataVersion(state_version=1, timestamp=5, counter=counter)
                assert messages.timers.checkpoint() == TimerCheckpoint(5000, 0, 0, 3, 1, 5, counter)
            again = copies.saved()
            assert offsets_of(again.tables) == offsets
            assert again.messages.timers.checkpoint() == messages.timers.checkpoint()
            copies.store = again.store
        with pytest.raises(NotSent):
            await take_back()
        await connections.close()

    run(main())


def test_addresses_are_told_and_asked(tmp_path: Path) -> None:
    async def main() -> None:
        connections = Connections()
        async with broker(tmp_path) as server, connected(server.address) as peer:
            told: list[HaInfo] = []
            numbers: list[int] = []
            own = server._ha_info.own()
            # The port after its own, if nobody has that.
            assert own == HaInfo(f"127.0.0.1:{server.replication.listener.port}", 0, server.address)
            assert await ask_ha_info(connections, server.address) == own
            server._ha_info.told = told.append
            server._ha_info.reset_flush_offset = numbers.append
            info = HaInfo("127.0.0.1:7", 9, "127.0.0.1:5")
            await tell_ha_info(connections, server.address, info)
            assert told == [info]
            reset = MasterFlushOffsetHeader(offset=11)
            assert (await peer.request(RequestCode.RESET_MASTER_FLUSH_OFFSET, reset)).code == 0
            assert numbers == [], "a master's own stays"
            # A slave has no address to give, and takes the number.
            server._ha_info.own = lambda: None
            assert await ask_ha_info(connections, server.address) is None
            assert (await peer.request(RequestCode.RESET_MASTER_FLUSH_OFFSET, reset)).code == 0
            assert numbers == [11]
            assert (await peer.request(RequestCode.RESET_MASTER_FLUSH_OFFSET)).code == 1
        await connections.close()

    run(main())


@pytest.mark.shows("elected while it waits for the log of the master before")
@pytest.mark.parametrize("arrives", [False, True])
def test_who_is_elected_while_the_log_of_the_master_before_is_awaited_waits_for_it_no_more(
    tmp_path: Path, arrives: bool
) -> None:
    """The log here grows past it by what this broker takes itself: looked at without a pause, it held the loop."""

    async def main() -> None:
        end, asked = 100, 0

        def log_end() -> int:
            nonlocal asked
            asked += 1
            assert asked < 1000, "the loop is held"
            return end

        async with (
            fake_master() as fake,
            slave(tmp_path, None, StoreSide(log_end=log_end)) as (copies, follow),
        ):
            fake.answers = GOOD | {
                907: b'{"masterCommitLogMaxOffset":200}',
                43: b'{%b,"offsetTable":{"X@GX":{0:5}}}' % V,
            }
            follow.set_master(fake.address)
            await until(lambda: asked > 1)
            follow.set_master(None)
            end = 250 if arrives else end
            await until(lambda: follow.passes == 1)
            end = 250
            follow.look()
            await until(lambda: not follow._wake.is_set())
            assert follow._task is not None
            assert not follow._task.done()
            assert copies.tables.offsets.get("GX", "X", 0) is None

    run(main())
