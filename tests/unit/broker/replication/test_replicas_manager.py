"""A broker under a controller: what it makes of elections in any order; its number through kills at any byte."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.broker.test_parts import Asked

from rocketspark.broker.consumers.long_polling import LongPolling
from rocketspark.broker.replication.broker_identity import BrokerIdentity
from rocketspark.broker.replication.controller_client import AcceptedSet, Elected, Master, SetState
from rocketspark.broker.replication.in_sync_set import NO_NUMBER, InSyncReplicas
from rocketspark.broker.replication.replicas_manager import ControlledRole, ReplicasManager, RoleDriver
from rocketspark.broker.replication.role import BrokerRole, Role
from rocketspark.broker.settings import BrokerSettings
from rocketspark.errors import ConfigError, ServerError, StoreFull, StoreUnwritable
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.headers.controller import ElectMasterReply
from rocketspark.protocol.json import bodies
from rocketspark.protocol.json.operator_bodies import SyncStateSet
from rocketspark.store.files.epoch_file import EpochList

pytestmark = pytest.mark.shows(
    "identity files cut at every byte, also by a writer that is not atomic; another broker's, or that cannot "
    "be written",
    "elections heard late, again, at once, with a disk that fails and restarts between",
)

CODE = ResponseCode


class FakeLog:
    """A store as far as a role needs one."""

    def __init__(self) -> None:
        self.written_position = self.end_position = 0
        self.confirmed_position = self.min_position = 0
        self.log = SimpleNamespace(is_replica=True, damaged=(), failed=None, refused=None)
        self.may_lack = False
        self.visible: int | None = None

    def become_master(self) -> None:
        self.log.is_replica = False

    def show_up_to(self, position: int | None) -> None:
        self.visible = position

    @property
    def shown_end(self) -> int:
        return self.written_position if self.visible is None else self.visible

    def dispatch_received(self) -> None:
        pass


class FakeController:
    """A controller's table of numbers and what it says of the set. `taken`: check code by number."""

    def __init__(self, taken: dict[int, str]) -> None:
        self.taken = taken
        self.registered: list[int] = []
        # Who gave its word that it begins, and in which epoch.
        self.words: list[tuple[int, int]] = []
        self.refuses = False

    async def next_id(self, cluster: str, name: str) -> int:
        return max(self.taken, default=0) + 1

    async def apply_id(self, cluster: str, name: str, broker_id: int, code: str) -> None:
        if self.taken.setdefault(broker_id, code) != code:
            raise ServerError(CODE.CONTROLLER_BROKER_ID_INVALID, "taken", address="c", doing="apply")

    async def register(self, cluster: str, name: str, broker_id: int, address: str) -> SetState:
        self.registered.append(broker_id)
        return SetState(None, None, frozenset(), 0)

    async def heartbeat(self, header: Any) -> None:
        pass

    async def alter_in_sync(self, name: str, own_id: int, epoch: int, members: set[int], set_epoch: int) -> AcceptedSet:
        if self.refuses:
            raise ServerError(CODE.CONTROLLER_INVALID_MASTER, "another is master", address="c", doing="alter")
        self.words.append((own_id, epoch))
        return AcceptedSet(frozenset(members), set_epoch + 1)


class Broker(RoleDriver):
    """One broker: its files stay over `restart`. `office`: what happened, as (role, epoch)."""

    def __init__(self, folder: Path, number: int) -> None:
        self.number, self.folder = number, folder / f"store{number}"
        self.folder.mkdir()
        self.store = FakeLog()
        BrokerIdentity(f"{self.folder}/brokerIdentity", "DefaultCluster", "broker-a").grant(number)
        self.fails = False
        self.office: list[tuple[Role, int]] = []
        self.restart()

    def restart(self) -> None:
        made = BrokerSettings(store_root=str(self.folder), broker_name="broker-a")
        self.role = BrokerRole(made)
        self.role.kind = Role.FENCED
        self.store.log.is_replica = True
        self.epochs = EpochList(f"{self.folder}/epochFileCheckpoint")
        quiet: Any = SimpleNamespace(connections=[], set_members=lambda *of: None)
        polling: Any = SimpleNamespace(keep_recent=lambda *of: None, shown=lambda end: None)
        none: Any = None
        store: Any = self.store
        in_sync = InSyncReplicas(made, store, self.role, quiet, quiet, self.epochs, none, polling)
        self.controlled = ControlledRole(store, self.role, self.epochs, self, in_sync, polling)
        self.manager = ReplicasManager(made, store, self.role, self.epochs, self.controlled, none)
        self.controlled.begin(self.number)
        assert self.manager.own_id == self.number

    async def finish_copying(self) -> None:
        await asyncio.sleep(0)
        if self.fails:
            self.fails = False
            raise StoreUnwritable("the disk fails once")

    async def take_office(self, reason: str, epoch: int) -> None:
        assert not self.store.log.is_replica
        await asyncio.sleep(0)
        self.role.kind, self.role.epoch = Role.MASTER, epoch
        self.office.append((Role.MASTER, epoch))

    async def follow_master(self, reason: str, address: str, epoch: int, own_id: int) -> None:
        self.role.kind, self.role.epoch, self.role.master_address = Role.SLAVE, epoch, address
        self.office.append((Role.SLAVE, epoch))
        await asyncio.sleep(0)
        self.store.log.is_replica = True

    async def write(self) -> None:
        """A master takes a message."""
        if self.role.kind is Role.MASTER:
            self.store.written_position += 100
            self.store.end_position = self.store.written_position


class Election(NamedTuple):
    master: int
    epoch: int


async def told(broker: Broker, by: Election) -> None:
    """The broker hears of an election: it asked, or is told (1008)."""
    found = Master(by.master, f"127.0.0.1:{by.master}", by.epoch, 1)
    await broker.manager._tried("hear", lambda: broker.manager._take(SetState(found, by.epoch, frozenset({1, 2}), 1)))


async def notified(broker: Broker, by: Election) -> None:
    ext = ElectMasterReply(
        master_broker_id=by.master,
        master_address=f"127.0.0.1:{by.master}",
        master_epoch=by.epoch,
        sync_state_set_epoch=by.epoch,
    )
    request: Any = SimpleNamespace(ext=ext, opaque=1)
    peer: Any = None
    body = bodies.encode(SyncStateSet(sync_state_set=[by.master], sync_state_set_epoch=by.epoch))
    await broker.manager.notified(peer, request, body)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("elect"), st.integers(1, 2), st.just(0)),
        st.tuples(st.sampled_from(["told", "notified"]), st.integers(1, 2), st.integers(0, 3)),
        st.tuples(st.sampled_from(["write", "fail", "restart"]), st.integers(1, 2), st.just(0)),
    ),
    max_size=40,
)


@settings(max_examples=60)
@given(STEPS)
def test_elections_heard_in_any_order_make_one_master_of_each_epoch(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int]]
) -> None:
    """Notices and answers come late, again, at once; a disk fails; brokers restart."""

    async def main() -> None:
        folder = tmp_path_factory.mktemp("brokers")
        brokers = {number: Broker(folder, number) for number in (1, 2)}
        history = [Election(1, 1)]
        running: list[asyncio.Task[None]] = []
        heard = {1: 0, 2: 0}
        for what, number, back in steps:
            broker = brokers[number]
            if what == "elect":
                history.append(Election(number, history[-1].epoch + 1))
            elif what in ("told", "notified"):
                by = history[max(len(history) - 1 - back, 0)]
                act = told if what == "told" else notified
                running.append(asyncio.create_task(act(broker, by)))
            else:
                await asyncio.gather(*running)
                if what == "write":
                    await broker.write()
                elif what == "fail":
                    broker.fails = True
                else:
                    heard[number] = 0
                    broker.restart()
            for found in brokers.values():
                # An epoch is left for a higher one only.
                assert found.role.epoch >= heard[found.number]
                heard[found.number] = found.role.epoch
        await asyncio.gather(*running)
        for number, broker in brokers.items():
            for role, epoch in broker.office:
                assert (role is Role.MASTER) == (history[epoch - 1].master == number)
            starts = EpochList(f"{broker.folder}/epochFileCheckpoint").starts
            assert list(starts) == sorted(set(starts))
            broker.fails = False
            await told(broker, history[-1])
        last = brokers[history[-1].master]
        other = brokers[3 - history[-1].master]
        # One that knows a higher epoch by its log than the controller does would stay fenced.
        assert (last.role.kind, last.role.epoch) == (Role.MASTER, history[-1].epoch)
        assert (other.role.kind, other.role.epoch) == (Role.SLAVE, history[-1].epoch)
        assert other.role.master_address == f"127.0.0.1:{last.number}"
        assert (last.store.log.is_replica, other.store.log.is_replica) == (False, True)
        assert last.store.visible is None or last.store.visible <= last.store.written_position

    asyncio.run(main())


@pytest.mark.shows("a notice of an election ends with the broker that takes it, and counts no more once it stops")
def test_a_change_that_came_by_a_notice_ends_with_its_broker(tmp_path: Path) -> None:
    async def main() -> None:
        broker = Broker(tmp_path, 1)
        begun, may_go_on = asyncio.Event(), asyncio.Event()

        async def finish_copying() -> None:
            begun.set()
            await may_go_on.wait()

        async def close() -> None:
            pass

        broker.finish_copying = finish_copying  # type: ignore[method-assign]
        broker.manager._controller = SimpleNamespace(close=close)  # type: ignore[assignment]
        notice = asyncio.create_task(notified(broker, Election(1, 1)))
        await begun.wait()
        await broker.manager.stop()
        may_go_on.set()
        await notice
        await notified(broker, Election(1, 2))
        assert (broker.office, broker.store.log.is_replica, broker.epochs.last_epoch) == ([], True, -1)

    asyncio.run(main())


def test_a_controller_that_lost_its_data_makes_no_master(tmp_path: Path) -> None:
    async def main() -> None:
        broker = Broker(tmp_path, 1)
        await told(broker, Election(1, 7))
        await broker.write()
        broker.restart()
        await told(broker, Election(1, 2))
        assert (broker.role.kind, broker.epochs.last_epoch) == (Role.FENCED, 7)

    asyncio.run(main())


def test_who_is_elected_begins_once_the_controller_took_its_word(tmp_path: Path) -> None:
    async def main() -> None:
        broker = Broker(tmp_path, 1)
        controller: Any = FakeController({})
        broker.manager._controller = controller
        controller.refuses = True
        found = SetState(Master(1, "127.0.0.1:1", 4, 7, awaits_word=True), 4, frozenset({1}), 7)
        await broker.manager._tried("hear", lambda: broker.manager._take(found))
        assert (broker.office, broker.epochs.last_epoch, broker.role.epoch) == ([], -1, 0)
        controller.refuses = False
        await broker.manager._tried("hear", lambda: broker.manager._take(found))
        assert (broker.office, controller.words) == ([(Role.MASTER, 4)], [(1, 4)])
        assert broker.controlled.in_sync.set.epoch == 8
        # It has begun: what it is told late, or after a start, asks it for no more.
        broker.restart()
        broker.manager._controller = controller
        await broker.manager._tried("hear", lambda: broker.manager._take(found))
        assert (broker.role.kind, controller.words) == (Role.MASTER, [(1, 4)])

    asyncio.run(main())


def test_an_election_told_before_the_number_is_confirmed_is_asked_for_later(tmp_path: Path) -> None:
    async def main() -> None:
        broker = Broker(tmp_path, 1)
        broker.controlled.begin(NO_NUMBER)
        await notified(broker, Election(2, 3))
        assert (broker.office, broker.role.epoch) == ([], 0)
        assert broker.manager._look_now.is_set()
        broker.controlled.begin(1)
        await told(broker, Election(2, 3))
        assert broker.office == [(Role.SLAVE, 3)]

    asyncio.run(main())


def test_a_master_that_registers_again_keeps_its_in_sync_set(tmp_path: Path) -> None:
    """The rest of a registration may fail after an election was told: the whole of it is tried again."""

    async def main() -> None:
        broker = Broker(tmp_path, 1)
        await told(broker, Election(1, 7))
        before = broker.controlled.in_sync.set
        assert (before.members, before.epoch) == ({1, 2}, 1)
        broker.controlled.begin(1)
        assert broker.controlled.in_sync.set is before

    asyncio.run(main())


# -- the number ---------------------------------------------------------------------------------------------------

GRANTED = "DefaultCluster#broker-a#12"
APPLIED = "DefaultCluster#broker-a#12#127.0.0.1:10911;1700000000000"
OTHERS = {number: f"other:{number}" for number in range(1, 12)}


def registered(folder: Path, taken: dict[int, str]) -> int:
    """Number of a broker that starts on what lies in its folder; with tries again as in life."""

    async def main() -> int:
        made = BrokerSettings(store_root=str(folder), broker_name="broker-a")
        store: Any = FakeLog()
        begun: list[int] = []
        controlled: Any = SimpleNamespace(begin=begun.append, in_sync=SimpleNamespace())
        role, controller = BrokerRole(made), FakeController(taken)
        apply_id = controller.apply_id

        async def noted_first(cluster: str, name: str, broker_id: int, code: str) -> None:
            noted = (folder / "brokerIdentity-temp").read_text()
            assert noted == f"{cluster}#{name}#{broker_id}#{code}"
            await apply_id(cluster, name, broker_id, code)

        controller.apply_id = noted_first  # type: ignore[method-assign]
        manager = ReplicasManager(made, store, role, EpochList(None), controlled, controller)  # type: ignore[arg-type]
        manager._address = "127.0.0.1:10911"
        for _ in range(3):
            if await manager._tried("register", manager._register):
                break
        assert [manager.own_id] == begun == controller.registered[-1:]
        assert manager.own_id is not None
        return manager.own_id

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("count", "answered"), [(count, False) for count in range(len(APPLIED) + 1)] + [(len(APPLIED), True)]
)
def test_a_kill_while_the_number_is_applied_for(tmp_path: Path, count: int, answered: bool) -> None:
    """Cut where a writer that is not atomic may be cut; the controller heard of the whole of it or of nothing."""
    (tmp_path / "brokerIdentity-temp").write_text(APPLIED[:count])
    taken = OTHERS | ({12: APPLIED.rpartition("#")[2]} if answered else {})
    assert registered(tmp_path, taken) == 12
    assert (tmp_path / "brokerIdentity").read_text() == GRANTED
    assert not (tmp_path / "brokerIdentity-temp").exists()


@pytest.mark.parametrize("count", range(len(GRANTED) + 1))
def test_a_kill_while_the_number_is_noted(tmp_path: Path, count: int) -> None:
    """A part of the file may look like another broker's number: the one applied for counts while it is there."""
    (tmp_path / "brokerIdentity-temp").write_text(APPLIED)
    (tmp_path / "brokerIdentity").write_text(GRANTED[:count])
    taken = OTHERS | {12: APPLIED.rpartition("#")[2]}
    assert registered(tmp_path, taken) == 12
    assert taken == OTHERS | {12: APPLIED.rpartition("#")[2]}
    assert (tmp_path / "brokerIdentity").read_text() == GRANTED
    assert not (tmp_path / "brokerIdentity-temp").exists()


def test_a_number_that_another_broker_got_first_is_given_up(tmp_path: Path) -> None:
    (tmp_path / "brokerIdentity-temp").write_text(APPLIED)
    taken = OTHERS | {12: "another:1"}
    assert registered(tmp_path, taken) == 13
    assert taken[12] == "another:1"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is no identity of a broker"),
        ("DefaultCluster#broker-a", "is no identity of a broker"),
        ("Other#broker-a#1", "is that of Other#broker-a, not of DefaultCluster#broker-a"),
        ("DefaultCluster#broker-b#1", "is that of DefaultCluster#broker-b, not of DefaultCluster#broker-a"),
        ("DefaultCluster#broker-a#0", "gives no number above 0 but '0'"),
        ("DefaultCluster#broker-a#x\n", "gives no number above 0 but"),
    ],
)
def test_an_identity_of_another_broker_or_of_none_refuses_to_start(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "brokerIdentity").write_text(text)
    with pytest.raises(ConfigError) as e:
        BrokerIdentity(str(tmp_path / "brokerIdentity"), "DefaultCluster", "broker-a").granted()
    assert said in str(e.value)
    assert "\n" not in str(e.value)


def test_a_check_of_the_in_sync_set_that_fails_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full for a while keeps no slave in the set that is behind for good."""

    async def main() -> None:
        broker = Broker(tmp_path, 1)
        broker.manager._settings.sync_set_check_interval_ms = 1
        again = asyncio.Event()
        checks: list[None] = []

        def check() -> None:
            checks.append(None)
            if len(checks) == 1:
                raise StoreUnwritable("the disk fails once")
            again.set()

        monkeypatch.setattr(broker.controlled, "check", check)
        task = asyncio.create_task(broker.manager._check_in_sync())
        done, _ = await asyncio.wait([task, asyncio.create_task(again.wait())], return_when=asyncio.FIRST_COMPLETED)
        assert task not in done
        task.cancel()

    asyncio.run(main())


@pytest.mark.shows(
    "mended: all machines lost power: a replica whose log had a hole was elected in the place of one that had all"
)
def test_a_log_counts_up_to_its_first_hole(tmp_path: Path) -> None:
    async def main() -> None:
        broker = Broker(tmp_path, 1)
        store = broker.store
        store.end_position = 900
        assert broker.manager._heartbeat().max_offset == 900
        store.log.damaged = ((100, 200), (500, 600))
        assert broker.manager._heartbeat().max_offset == 100
        store.min_position = 200
        assert broker.manager._heartbeat().max_offset == 500

    asyncio.run(main())


@pytest.mark.shows("a replica whose disk takes nothing says so, and is elected last")
def test_a_disk_that_takes_nothing_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        broker = Broker(tmp_path, 1)
        log = broker.store.log
        assert broker.manager._heartbeat().may_lack is None
        log.refused = StoreFull("91 % of the disk is in use")
        assert broker.manager._heartbeat().may_lack
        log.refused, log.failed = None, StoreUnwritable("a flush failed")
        assert broker.manager._heartbeat().may_lack
        log.failed = None
        assert broker.manager._heartbeat().may_lack is None

    asyncio.run(main())


@pytest.mark.shows("a master whose disk fails in a flush has RocketMQ's controller elect a slave in sync, once")
def test_a_controller_that_keeps_a_living_master_is_told_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, bool]] = []

    class Apache(FakeController):
        async def elect(
            self, cluster: str, name: str, broker_id: int, *, designate: bool = False, may_lack: bool = False
        ) -> Elected:
            asked.append((broker_id, designate))
            chosen = broker_id if designate else 1
            return Elected(Master(chosen, f"127.0.0.1:{chosen}", 1 + designate, 2), frozenset({chosen}), designate)

    async def main() -> None:
        broker = Broker(tmp_path, 1)
        controller: Any = Apache({})
        broker.manager._controller = controller
        slave: Any = SimpleNamespace(is_open=True, link=SimpleNamespace(replica_id=2, acked=0))
        monkeypatch.setattr(broker.controlled, "check", lambda: None)
        await told(broker, Election(1, 1))
        await broker.manager._check()
        broker.store.log.failed = StoreUnwritable("a flush failed")
        await broker.manager._check()
        assert not asked  # The slave is not connected.
        broker.controlled.in_sync._listener.connections.append(slave)
        await broker.manager._check()
        assert asked == [(1, False), (2, True)]
        assert broker.office == [(Role.MASTER, 1), (Role.SLAVE, 2)]
        await told(broker, Election(1, 3))
        await broker.manager._check()
        assert asked[2:] == [(1, False)]

    asyncio.run(main())


def test_that_nobody_can_be_elected_is_one_line_until_the_reason_changes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Nobody(FakeController):
        why = "none is alive"

        async def replica_info(self, name: str) -> SetState:
            return SetState(None, None, frozenset(), 0)

        async def elect(self, cluster: str, name: str, broker_id: int) -> Elected:
            raise ServerError(CODE.CONTROLLER_ELECT_MASTER_FAILED, self.why, address="c", doing="elect")

    async def main() -> None:
        broker = Broker(tmp_path, 1)
        controller: Any = Nobody({})
        broker.manager._controller = controller
        for why in ("none is alive", "none fits"):
            controller.why = why
            for _ in range(3):
                await broker.manager._tried("look", broker.manager._look)

    asyncio.run(main())
    lines = [line for line in caplog.messages if line.startswith("no master can be elected yet: ")]
    assert [line.rpartition(": ")[2] for line in lines] == ["none is alive", "none fits"]


@pytest.mark.shows(
    "mended: a pull held at a slave was not told of what came from the next master, once it was confirmed"
)
def test_a_pull_held_at_a_slave_is_asked_again_once_what_came_is_confirmed(tmp_path: Path) -> None:
    async def main() -> None:
        broker = Broker(tmp_path, 2)
        arrivals = LongPolling(log_end=lambda: broker.store.written_position)
        broker.controlled._long_polling = arrivals
        await told(broker, Election(1, 1))
        waiter = Asked()
        arrivals.wait(("T", 0), 60, waiter)
        broker.store.written_position = 7
        arrivals.mark("T", 0)
        await asyncio.sleep(0)
        assert waiter.asked == [False]
        broker.controlled.confirmed(7)
        await asyncio.sleep(0)
        assert waiter.asked == [False, False]
        arrivals.close()

    asyncio.run(main())


def test_pulls_are_asked_again_only_if_more_is_shown(tmp_path: Path) -> None:
    async def main() -> None:
        broker = Broker(tmp_path, 1)
        shown: list[int] = []
        quiet: Any = SimpleNamespace(keep_recent=lambda *of: None, shown=shown.append)
        broker.controlled.in_sync._long_polling = quiet
        await told(broker, Election(1, 1))
        await broker.write()
        for _ in range(3):
            # Nothing of it is flushed yet, say.
            broker.controlled.in_sync.confirm()
        assert shown == []

    asyncio.run(main())
