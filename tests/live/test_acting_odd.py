"""A slave that acts for its master where something else happens too: others hang, start, or are known elsewhere."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from tests.live.pop_support import BROKER, ack, pop, popped
from tests.live.support import GROUP, TOPIC, connected, create, run, send_header, sent, until
from tests.live.test_acting_master import HALF, Hung, bodies_of, commit, create_on, replicas
from tests.live.test_broker_transactions import half

from rocketspark.broker.replication.acting import acting_master
from rocketspark.broker.replication.role import Role
from rocketspark.broker.server import BrokerServer
from rocketspark.broker.storage.json_tables import now_ms
from rocketspark.protocol.codes import RequestCode, ResponseCode

LEVELS = "1s 2s 9s"


async def send_late(master: BrokerServer, level: str, timer_ms: int) -> Counter[bytes]:
    """Messages that are due later, and one that is not; returns how often each should come."""
    bodies = [b"plain"]
    async with connected(master.address) as peer:
        await sent(peer, b"plain")
        for number in range(3):
            for body, pairs in (
                (b"level %d" % number, {"DELAY": level}),
                (b"timer %d" % number, {"TIMER_DELAY_MS": str(timer_ms)}),
            ):
                await sent(peer, body, pairs=pairs)
                bodies.append(body)
    return Counter(bodies)


async def all_come(expected: Counter[bytes], *brokers: BrokerServer) -> None:
    """Wait until each message came, and then for one sent last, which comes after what would come twice."""

    def found() -> Counter[bytes]:
        return sum((bodies_of(broker.store) for broker in brokers), Counter())

    await until(lambda: found() >= expected)
    async with connected(brokers[0].address) as peer:
        await sent(peer, b"last", pairs={"TIMER_DELAY_MS": "500"})
        await sent(peer, b"last level", pairs={"DELAY": "1"})
    await until(lambda: found()[b"last"] and found()[b"last level"])
    assert found() == expected + Counter([b"last", b"last level"])


@pytest.mark.shows("a slave whose link comes from another address than it registers: its master comes back")
def test_a_slave_known_by_another_address_is_found_linked(tmp_path: Path) -> None:
    async def main() -> None:
        async with replicas(tmp_path) as r:
            master = await r.start(0)
            slave = await r.start(1, listen_host="0.0.0.0", advertised_host="127.0.0.2")
            assert slave.address.startswith("127.0.0.2:")
            await create_on(master)
            async with connected(master.address) as peer:
                await sent(peer, b"plain")
            await r.copied()
            await r.stop(0)
            await until(lambda: slave.role.kind is Role.ACTING)
            master = await r.start(0)
            acting = master.replication._acting
            assert acting is not None
            await until(lambda: acting.is_online and slave.role.has_live_master)
            # Nor is it away for a slave that it cannot tell by its address.
            await until(lambda: acting._is_held())

    run(main())


@pytest.mark.shows("a NameServer that starts with the master knows no slave; another one does")
def test_a_master_asks_all_name_servers_who_acted_for_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with replicas(tmp_path) as r, AsyncExitStack() as servers:
            second = r._namesrv(0)
            await second.start()
            servers.push_async_callback(second.close)
            both = f"{r.namesrv.address};{second.address}"
            other = await r.other(namesrv_addresses=second.address)
            master = await r.start(0, namesrv_addresses=both)
            # The first never knows it; in life it does not for some seconds.
            slave = await r.start(1, namesrv_addresses=second.address)
            await create_on(other, master)
            expected = await send_late(master, "2", 2000)
            await r.copied()
            port = int(r.namesrv.address.rpartition(":")[2])
            await r.running.pop(0).kill()
            await r.namesrv.close()
            await until(lambda: slave.role.kind is Role.ACTING)
            await until(lambda: len(bodies_of(other.store)) == len(expected) - 1)
            r.namesrv = r._namesrv(port)
            await r.namesrv.start()
            master = await r.start(0, namesrv_addresses=both)
            await all_come(expected, master, other)

    run(main())


@pytest.mark.shows("an acting slave that hung: what its master did meanwhile does not leave")
def test_a_slave_that_hung_while_it_acted_sends_nothing_more(tmp_path: Path) -> None:
    async def main() -> None:
        async with replicas(tmp_path, delay_levels=LEVELS, not_active_timeout_ms=2000) as r:
            other, master, hung = await r.other(), await r.start(0), Hung(r, 1)
            slave = await hung.ready()
            try:
                await create_on(other, master)
                expected = await send_late(master, "3", 9000)
                synchronize = slave.replication.synchronize
                assert synchronize is not None
                await until(lambda: slave.store.written_position == master.store.written_position)
                passes = synchronize.passes
                await until(lambda: synchronize.passes > passes)
                await r.stop(0)
                await until(lambda: slave.role.kind is Role.ACTING)
                hung.freeze()
                while (await r.route())[0]:
                    await asyncio.sleep(0.1)
                master = await r.start(0)
                await until(lambda: bodies_of(master.store) >= expected)
                hung.go_on()
                await until(lambda: slave.role.kind is Role.SLAVE)
                await all_come(expected, master, other)
            finally:
                await hung.close()

    run(main())


@pytest.mark.shows("a slave that acts again while its master waits for another one: that is taken back too")
def test_a_slave_that_acts_again_before_its_master_is_back_hands_back_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acting_master, "RETURN_S", 1.0)

    async def main() -> None:
        async with replicas(tmp_path, replicas_total=3, not_active_timeout_ms=8000) as r:
            other, master, slave, hung = await r.other(), await r.start(0), await r.start(1), Hung(r, 2)
            await hung.ready()
            try:
                await create_on(other, master)
                expected = await send_late(master, "3", 6000)
                await r.copied()
                await r.stop(0)
                await until(lambda: slave.role.kind is Role.ACTING)
                hung.freeze()
                master = await r.start(0)
                acting = master.replication._acting
                assert acting is not None
                assert not acting.is_online
                # It gives up waiting for its master, which waits for the one that hangs.
                await until(lambda: len(bodies_of(other.store)) == len(expected) - 1)
                assert not acting.is_online
                monkeypatch.setattr(acting_master, "RETURN_S", 15.0)
                await until(lambda: acting.is_online)
                await all_come(expected, master, other)
            finally:
                await hung.close()

    run(main())


@pytest.mark.shows("an acting slave that is killed: what left it does not leave again, nor is it delivered")
@pytest.mark.parametrize("as_master", [False, True])
def test_what_left_a_slave_that_was_killed_does_not_leave_again(tmp_path: Path, as_master: bool) -> None:
    async def main() -> None:
        async with replicas(tmp_path) as r:
            other, master, slave = await r.other(), await r.start(0), await r.start(1)
            await create_on(other, master)
            expected = await send_late(master, "2", 2000)
            async with connected(master.address) as peer:
                await half(peer, 1)
            await r.copied()
            await r.stop(0)
            await until(lambda: slave.role.kind is Role.ACTING)
            await until(lambda: len(bodies_of(other.store)) == len(expected) - 1)
            await until(lambda: other.store.queue_range(HALF, 0)[1])
            await r.running.pop(1).kill()
            if as_master:
                # By hand, as the master's machine is lost.
                (tmp_path / "a1").rename(tmp_path / "a0-before")
                shutil.rmtree(tmp_path / "a0")
                (tmp_path / "a0-before").rename(tmp_path / "a0")
                master = await r.start(0, replicas_total=1, in_sync_replicas=1)
            else:
                slave = await r.start(1)
                await until(lambda: slave.role.kind is Role.ACTING)
                master = await r.start(0)
            await all_come(expected, master, other)
            assert master._transactions.open_count == 0

    run(main())


@pytest.mark.shows("a slot of timers of which some left and one could not: the master delivers that one alone")
def test_what_left_of_a_slot_is_not_delivered_with_the_rest(tmp_path: Path) -> None:
    async def main() -> None:
        async with replicas(tmp_path, timer_precision_ms=1000) as r:
            other, master, slave = await r.other(), await r.start(0), await r.start(1)
            await create_on(other, master)
            due = {"TIMER_DELIVER_MS": str(now_ms() + 3000)}
            async with connected(master.address) as peer:
                # No other broker has it.
                await create(peer, "Only", 1)
                for number in range(3):
                    await sent(peer, b"before %d" % number, pairs=due)
                await sent(peer, b"only", "Only", pairs=due)
                for number in range(3):
                    await sent(peer, b"after %d" % number, pairs=due)
            await r.copied()
            await r.stop(0)
            await until(lambda: slave.role.kind is Role.ACTING)
            await until(lambda: len(bodies_of(other.store)) == 3)
            master = await r.start(0)
            await until(lambda: bodies_of(master.store, "Only") == {b"only": 1})
            expected = Counter(b"%b %d" % (word, number) for word in (b"before", b"after") for number in range(3))
            await all_come(expected, master, other)

    run(main())


@pytest.mark.shows("a slave with a lower id that comes back takes over from the one that acts")
def test_a_slave_that_acts_instead_of_another_goes_on_where_that_one_was(tmp_path: Path) -> None:
    async def main() -> None:
        async with replicas(tmp_path, replicas_total=3) as r:
            other, master, first, second = await r.other(), await r.start(0), await r.start(1), await r.start(2)
            await create_on(other, master)
            expected = await send_late(master, "3", 6000)
            await r.copied()
            await until(lambda: second.store.written_position == master.store.written_position)
            synchronize = second.replication.synchronize
            assert synchronize is not None
            synchronize.look()
            await synchronize.passed()
            await r.stop(1)
            await r.stop(0)
            await until(lambda: second.role.kind is Role.ACTING)
            await until(lambda: len(bodies_of(other.store)) == len(expected) - 1)
            await commit(second.address, 3)
            first = await r.start(1)
            await until(lambda: first.role.kind is Role.ACTING and second.role.kind is Role.SLAVE)
            assert first._offsets.get(GROUP, TOPIC, 0) == 3
            master = await r.start(0)
            await all_come(expected, master, other)

    run(main())


@pytest.mark.shows("mended: a slave wrote pops and replies into its copy of the log, and was no copy any more")
def test_a_slave_that_is_asked_for_pops_and_replies_stays_a_copy(tmp_path: Path) -> None:
    async def main() -> None:
        async with replicas(tmp_path) as r:
            master, slave = await r.start(0), await r.start(1)
            await create_on(master)
            async with connected(master.address) as peer:
                for number in range(3):
                    await sent(peer, b"%d" % number)
                (given,) = await popped(peer, count_max=1)
            handle = given.handle.replace(BROKER, master.settings.broker_name)
            await r.copied()
            end = slave.store.written_position
            reply = send_header("DefaultCluster_REPLY_TOPIC", 0, pairs={"REPLY_TO_CLIENT": "nobody"})
            async with connected(slave.address) as peer:
                for is_away in (False, True):
                    if is_away:
                        await r.stop(0)
                        await until(lambda: slave.role.kind is Role.ACTING)
                    replied = await peer.request(RequestCode.SEND_REPLY_MESSAGE_V2, reply, b"x")
                    assert replied.code == ResponseCode.SERVICE_NOT_AVAILABLE
                    assert not (await pop(peer)).body
                    assert (await ack(peer, given, handle=handle)).code == ResponseCode.SERVICE_NOT_AVAILABLE
                    assert slave.store.end_position == end
            master = await r.start(0)
            async with connected(master.address) as peer:
                await sent(peer, b"it is copied on")
            await r.copied()

    run(main())
