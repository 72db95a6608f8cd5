"""In-sync sets of three brokers and their controller: answers lost, links that end at any moment, terms that change.

Each broker has the real in-sync set, waits and rules; the controller decides by its real rules. Logs are lists of
numbers. What must hold: whoever is elected has all that was acknowledged, and once all is well everything goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.unit.controller.sets_under_test import NAME, Controlled, address

from rocketspark.broker.replication import in_sync_set
from rocketspark.broker.replication.controller_client import AcceptedSet, Master, SetState
from rocketspark.broker.replication.in_sync_set import RETRY_S, InSyncReplicas, InSyncSet
from rocketspark.broker.replication.role import BrokerRole, Role
from rocketspark.broker.replication.waits import Durability, Mode, ReplicaWaits
from rocketspark.broker.settings import BrokerSettings
from rocketspark.controller.elections import LogEnd
from rocketspark.errors import NoReply, ServerError
from rocketspark.protocol.headers.controller import AlterSyncStateSetReply

pytestmark = pytest.mark.shows("what was asked for counts until answered")

IDS = st.sampled_from([1, 2, 3])
LAG_S = 15.0


class FakeStore:
    """A log of numbers. `visible`: up to where readers are shown it, None for all."""

    def __init__(self) -> None:
        self.log: list[int] = []
        self.confirmed_position = 0
        self.visible: int | None = None

    @property
    def written_position(self) -> int:
        return len(self.log)

    end_position = written_position

    def show_up_to(self, position: int | None) -> None:
        self.visible = position

    @property
    def shown_end(self) -> int:
        return self.written_position if self.visible is None else self.visible

    def cut(self, position: int) -> None:
        del self.log[position:]
        self.confirmed_position = min(self.confirmed_position, position)


class FakeController:
    """One broker's connection to the controller: requests arrive in order, an answer may be lost."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.requests: list[tuple[Callable[[], Any], asyncio.Future[Any]]] = []
        self.waiting: asyncio.Future[Any] | None = None

    async def alter_in_sync(self, name: str, own_id: int, epoch: int, members: Any, set_epoch: int) -> AcceptedSet:
        def decide() -> AcceptedSet:
            decision = self.world.state.alter(own_id, epoch, members, set_epoch)
            if decision.code:
                raise ServerError(decision.code, decision.remark or "", address="c", doing="alter")
            assert isinstance(decision.header, AlterSyncStateSetReply)
            return AcceptedSet(frozenset(members), decision.header.new_sync_state_set_epoch)

        return await self._asked(decide)

    async def replica_info(self, name: str, own_id: int | None = None) -> SetState:
        # What arrives later was asked for later.
        return await self._asked(lambda: self.world.now()._replace(ends_earlier=True))

    async def _asked(self, decide: Callable[[], Any]) -> Any:
        told: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.requests.append((decide, told))
        self.waiting = told
        return await told

    def arrive(self, *, answered: bool) -> None:
        """The first request arrives, and is decided. Of one that nobody waits for any more the answer is no matter."""
        decide, told = self.requests.pop(0)
        try:
            found = decide()
        except ServerError as e:
            if answered and not told.done():
                told.set_exception(e)
        else:
            if answered and not told.done():
                told.set_result(found)

    def time_out(self) -> None:
        """Nobody waits any longer; the requests are still on their way."""
        if self.waiting is not None and not self.waiting.done():
            self.waiting.set_exception(NoReply("no answer", address="c"))


class Link:
    """A slave's connection to its master."""

    def __init__(self, number: int) -> None:
        self.is_open = True
        self.link = SimpleNamespace(replica_id=number, acked=-1, learner=False, caught_up_s=None)


class Broker:
    """One broker. `links`: of the slaves that are connected, by number."""

    def __init__(self, world: World, number: int, made: BrokerSettings) -> None:
        self.number, self.store = number, FakeStore()
        self.role = BrokerRole(made)
        self.role.kind = Role.SLAVE
        self.links: dict[int, Any] = {}
        self.start = 0
        self.controller = FakeController(world)
        self.waits = ReplicaWaits(made)
        quiet: Any = SimpleNamespace(reached=None, show_flushed=lambda only: None)
        self.durability = Durability(made, quiet, self.waits, self.role)
        self.durability.mode = Mode.CONTROLLER
        counts: Any = SimpleNamespace(sync_set_size=lambda: self.in_sync.set.size)
        self.durability.in_sync = counts
        broker: Any = self
        polling: Any = SimpleNamespace(keep_recent=lambda *of: None, shown=lambda end: None)
        self.in_sync = InSyncReplicas(
            made, broker.store, self.role, broker, self.waits, broker, broker.controller, polling
        )
        self.in_sync.set = InSyncSet(number)

    # What the in-sync set asks of the listener and of the epochs.
    @property
    def connections(self) -> list[Any]:
        return list(self.links.values())

    @property
    def last(self) -> Any:
        return SimpleNamespace(start=self.start)


class World(RuleBasedStateMachine):
    """`acked`: the numbers of messages that were answered as stored."""

    @initialize(all_ack=st.booleans())
    def begins(self, all_ack: bool) -> None:
        self.loop = asyncio.new_event_loop()
        self.now_s = 0.0
        self.loop.time = lambda: self.now_s  # type: ignore[method-assign]
        self.state = Controlled()
        self.all_ack = all_ack
        made = BrokerSettings(
            broker_name=NAME, broker_role="SYNC_MASTER", all_ack_in_sync_set=all_ack, slave_timeout_ms=10**9
        )
        self.brokers = {number: Broker(self, number, made) for number in (1, 2, 3)}
        self.acked: list[int] = []
        self.sent = 0
        self.earlier: list[SetState] = []
        for number in self.brokers:
            self.state.apply_id(number)
        self.state.elect(1)
        self.take_office()

    def teardown(self) -> None:
        if hasattr(self, "loop"):
            for broker in self.brokers.values():
                broker.in_sync.end()
            self.turn()
            self.loop.close()

    def turn(self) -> None:
        async def some_turns() -> None:
            for _ in range(6):
                await asyncio.sleep(0)

        self.loop.run_until_complete(some_turns())

    def call(self, act: Callable[..., None], *of: Any) -> None:
        async def run() -> None:
            act(*of)

        self.loop.run_until_complete(run())
        self.turn()

    def now(self) -> SetState:
        s = self.state.set
        master = None
        if s.master is not None:
            master = Master(s.master, address(s.master), s.master_epoch, s.set_epoch)
        return SetState(master, s.master_epoch, frozenset(s.in_sync), s.set_epoch)

    @property
    def masters(self) -> list[Broker]:
        return [broker for broker in self.brokers.values() if broker.role.is_master]

    # -- terms

    def take_office(self) -> None:
        """The master of the controller's set hears of it, and the one before too, if it lives."""
        s = self.state.set
        assert s.master is not None
        broker = self.brokers[s.master]
        assert not self.all_ack or set(self.acked) <= set(broker.store.log), "acknowledged, and gone"
        for other in self.brokers.values():
            if other is not broker and other.role.is_master:
                self.call(self.leave_office, other)
        broker.links.clear()
        broker.start, broker.role.kind, broker.role.epoch = broker.store.written_position, Role.MASTER, s.master_epoch
        broker.durability.refresh()
        self.call(lambda: broker.in_sync.begin(set(s.in_sync), s.set_epoch))

    def leave_office(self, broker: Broker) -> None:
        broker.in_sync.end()
        broker.role.kind = Role.SLAVE
        broker.waits.give_up()
        broker.links.clear()

    @rule(number=IDS, dies=st.booleans())
    def a_term_ends(self, number: int, dies: bool) -> None:
        if dies:
            self.the_master_dies()
        else:
            self.another_is_elected(number)

    def another_is_elected(self, number: int) -> None:
        for broker in self.brokers.values():
            self.state.lives.ends[broker.number] = LogEnd(broker.role.epoch, broker.store.written_position)
        if self.state.elect(number, designate=True).code == 0:
            self.take_office()

    def the_master_dies(self) -> None:
        """Its store stays; it is back as a slave once another was elected, or as the master it was."""
        s = self.state.set
        assert s.master is not None
        broker = self.brokers[s.master]
        self.call(lambda: self.leave_office(broker))
        self.state.lives.living.discard(broker.number)
        self.another_is_elected(-1)
        self.state.lives.living.add(broker.number)
        if self.state.set.master in (None, broker.number):
            self.state.elect(broker.number)
            self.take_office()

    @rule(number=IDS, lives=st.booleans())
    def the_controller_hears(self, number: int, lives: bool) -> None:
        if number != self.state.set.master:
            (self.state.lives.living.add if lives else self.state.lives.living.discard)(number)

    # -- messages and copies

    @rule(count=st.integers(1, 3))
    def messages_are_sent(self, count: int) -> None:
        for broker in self.masters:
            for _ in range(count):
                self.sent += 1
                broker.store.log.append(self.sent)
                self.call(self.send, broker, self.sent)

    def send(self, broker: Broker, number: int) -> None:
        def told(code: int) -> None:
            if code == 0:
                self.acked.append(number)

        broker.durability.when_durable(broker.store.written_position, broker.durability.wanted(), told)
        broker.in_sync.confirm()

    @rule(number=IDS, count=st.integers(0, 4))
    def a_slave_copies(self, number: int, count: int) -> None:
        slave = self.brokers[number]
        for master in self.masters:
            if master is slave or slave.role.is_master:
                continue
            link = master.links.get(number)
            if link is None:
                # Its log is cut first where the two part.
                own, other = slave.store.log, master.store.log
                at = next((i for i, pair in enumerate(zip(own, other, strict=False)) if pair[0] != pair[1]), len(other))
                slave.store.cut(at)
                link = master.links[number] = Link(number)
            at = slave.store.written_position
            slave.store.log += master.store.log[at : at + count]
            link.link.acked = slave.store.written_position
            if slave.store.log == master.store.log:
                link.link.caught_up_s = self.now_s
            slave.store.confirmed_position = min(master.store.confirmed_position, slave.store.written_position)
            self.call(self.reported, master, link)

    def reported(self, master: Broker, link: Any) -> None:
        master.waits.acked(link, link.link.acked, link.link.replica_id)
        master.in_sync.reported(link)

    @rule(number=IDS, count=st.integers(0, 2))
    def a_link_ends(self, number: int, count: int) -> None:
        for master in self.masters:
            link = master.links.pop(number, None)
            if link is not None:
                link.is_open = False
                master.waits.left(link)
                self.call(master.in_sync.lost, link)
        self.messages_are_sent(count)

    # -- the controller's word

    @precondition(lambda self: any(broker.controller.requests for broker in self.brokers.values()))
    @rule(arrives=st.sampled_from(["first", "late", "never answered"]))
    def requests_are_on_their_way(self, arrives: str) -> None:
        """They arrive and are answered; or nobody waits any longer for what still is on its way, or was carried out."""
        for broker in self.brokers.values():
            controller = broker.controller
            if controller.requests and arrives != "late":
                controller.arrive(answered=arrives == "first")
            if arrives != "first":
                controller.time_out()
        self.turn()

    @rule(late=st.integers(0, 3))
    def the_answer_to_a_look_comes(self, late: int) -> None:
        self.earlier.append(self.now())
        for found in self.earlier[-1 - late :][:1]:
            for broker in self.masters:
                if found.master and (found.master.broker_id, found.epoch) == (broker.number, broker.role.epoch):
                    self.call(broker.in_sync.adopt, found.in_sync, found.set_epoch)

    @rule(seconds=st.sampled_from([RETRY_S, LAG_S + 1]))
    def time_goes_on(self, seconds: float) -> None:
        self.now_s += seconds
        self.turn()
        for broker in self.masters:
            self.call(broker.in_sync.check)

    # -- what must hold

    @invariant()
    def whoever_may_be_elected_counts(self) -> None:
        s = self.state.set
        for broker in self.masters:
            if (s.master, s.master_epoch) == (broker.number, broker.role.epoch):
                assert set(s.in_sync) <= broker.in_sync.set.all_members
                visible = broker.store.visible
                assert visible is None or visible <= broker.store.written_position
        if self.all_ack:
            for number in s.in_sync:
                assert set(self.acked) <= set(self.brokers[number].store.log), f"{number} may be elected"

    @rule(gone=st.one_of(st.none(), IDS))
    def all_is_well_again(self, gone: int | None) -> None:
        """The controller answers, all brokers but one that is gone for good are connected: everything goes on."""
        s = self.state.set
        assert s.master is not None
        left = {1, 2, 3} - ({gone} if gone != s.master else set())
        self.state.lives.living |= left
        if len(left) == 2 and gone is not None:
            self.a_link_ends(gone, 0)
        self.earlier.clear()
        for broker in self.brokers.values():
            broker.controller.time_out()
        self.turn()
        for _ in range(4):
            for number in left - {s.master}:
                self.a_slave_copies(number, 10**6)
            for broker in self.brokers.values():
                while broker.controller.requests:
                    broker.controller.arrive(answered=True)
                    self.turn()
            self.time_goes_on(RETRY_S)
        assert set(self.state.set.in_sync) == left
        master = self.brokers[s.master]
        count = len(self.acked)
        self.messages_are_sent(1)
        for number in left - {s.master}:
            self.a_slave_copies(number, 10**6)
        assert len(self.acked) > count
        assert master.in_sync.confirmed == master.store.written_position
        assert master.store.visible in (None, master.store.written_position)


@pytest.mark.parametrize(
    ("all_ack", "steps"),
    [
        # An answer is lost, then the link ends: the slave may be elected, and is waited for until the set is known.
        (True, "copies 2 1; requests lost; link 2 1; well 2"),
        (True, "copies 2 1; requests late; link 2 1; well 2"),
        # The set was taken, which is refused as another one when it is asked for again.
        (True, "copies 2 1; requests lost; time; requests first; link 2 1; requests lost; send; well 3"),
        # The slave is back before the answer that it left.
        (True, "well 0; link 2 0; copies 2 9; requests first; requests lost; send; link 2 1; well 2"),
        # A log that was cut by an election is a master's again.
        (False, "copies 2 0; requests first; send 3; elect 2; send; copies 1 9; requests first; elect 1; send; well 0"),
        (True, "well 0; send 3; copies 2 9; elect 2; send 2; copies 1 9; requests first; elect 1; send; well 3"),
    ],
)
def test_courses_that_went_wrong_once(all_ack: bool, steps: str) -> None:
    world = World()
    acts: dict[str, Callable[..., None]] = {
        "copies": world.a_slave_copies,
        "requests": lambda how: world.requests_are_on_their_way("never answered" if how == "lost" else how),
        "link": world.a_link_ends,
        "send": lambda count=1: world.messages_are_sent(count),
        "elect": lambda number: world.a_term_ends(number, False),
        "time": lambda: world.time_goes_on(RETRY_S),
        "well": lambda gone: world.all_is_well_again(gone or None),
    }
    world.begins(all_ack)
    try:
        for step in steps.split("; "):
            name, *values = step.split()
            acts[name](*(int(value) if value.isdigit() else value for value in values))
            world.whoever_may_be_elected_counts()
    finally:
        world.teardown()


TestWorld = pytest.mark.filterwarnings("ignore::ResourceWarning")(World.TestCase)
TestWorld.settings = settings(stateful_step_count=30)


def test_a_controller_whose_data_are_older_is_asked_once_a_while() -> None:
    """One given an old backup, or that leads no more: its set may lack who can be elected."""

    async def main() -> None:
        made = BrokerSettings(broker_name=NAME, all_ack_in_sync_set=True)
        broker = Broker(SimpleNamespace(), 1, made)  # type: ignore[arg-type]
        looks = 0

        async def replica_info(name: str, own_id: int | None = None) -> SetState:
            nonlocal looks
            looks += 1
            await asyncio.sleep(0)
            return SetState(Master(1, "127.0.0.1:1", 3, 4), 3, frozenset({1}), 4)

        broker.controller.replica_info = replica_info  # type: ignore[method-assign]
        broker.role.kind, broker.role.epoch = Role.MASTER, 3
        broker.in_sync.begin({1, 2}, 5)
        broker.in_sync.set.lost(2)
        broker.in_sync.set.refused()
        broker.in_sync.check()
        for _ in range(30):
            await asyncio.sleep(0)
        assert (looks, broker.in_sync.set.all_members) == (1, {1, 2})
        broker.in_sync.end()

    asyncio.run(main())


@pytest.mark.shows(
    "a request about the in-sync set that RocketMQ's controller may take late: whom it may bring into the set "
    "counts meanwhile"
)
@pytest.mark.parametrize("ends_earlier", [False, True], ids=["RocketMQ's", "ours"])
def test_who_a_late_request_may_bring_into_the_set_counts_until_it_would_have_arrived(
    monkeypatch: pytest.MonkeyPatch, ends_earlier: bool
) -> None:
    """RocketMQ's controller takes it by its epoch, and may elect that broker then."""
    monkeypatch.setattr(in_sync_set, "RETRY_S", 0.0)
    now_s = 0.0

    async def main() -> None:
        nonlocal now_s
        loop = asyncio.get_running_loop()
        made = BrokerSettings(broker_name=NAME, all_ack_in_sync_set=True)
        broker = Broker(SimpleNamespace(), 1, made)  # type: ignore[arg-type]
        state = SetState(Master(1, "127.0.0.1:1", 3, 4), 3, frozenset({1}), 4, ends_earlier)
        looks = 0

        async def alter(*asked: Any) -> AcceptedSet:
            broker.in_sync.set.lost(2)
            raise NoReply("no answer", address="c")

        async def replica_info(name: str, own_id: int | None = None) -> SetState:
            nonlocal looks
            looks += 1
            return state

        broker.controller.alter_in_sync = alter  # type: ignore[method-assign]
        broker.controller.replica_info = replica_info  # type: ignore[method-assign]
        broker.role.kind, broker.role.epoch = Role.MASTER, 3
        monkeypatch.setattr(loop, "time", lambda: now_s)
        broker.in_sync.begin({1}, 4)
        broker.in_sync.set.joined(2, 0, confirmed=0, epoch_start=0)
        broker.in_sync._ask_soon()
        for _ in range(50):
            await asyncio.sleep(0)
        assert broker.in_sync.set.all_members == ({1} if ends_earlier else {1, 2})
        assert looks == 1 if ends_earlier else looks > 1
        if not ends_earlier:
            now_s += in_sync_set.LATE_S
            for _ in range(50):
                await asyncio.sleep(0)
            assert broker.in_sync.set.all_members == {1}
        broker.in_sync.end()

    asyncio.run(main())


def test_a_set_that_changed_since_is_none_of_a_late_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its epoch is another than that request names."""
    monkeypatch.setattr(in_sync_set, "RETRY_S", 0.0)

    async def main() -> None:
        made = BrokerSettings(broker_name=NAME, all_ack_in_sync_set=True)
        broker = Broker(SimpleNamespace(), 1, made)  # type: ignore[arg-type]

        async def alter(*asked: Any) -> AcceptedSet:
            broker.in_sync.set.lost(2)
            raise NoReply("no answer, though it was carried out", address="c")

        async def replica_info(name: str, own_id: int | None = None) -> SetState:
            return SetState(Master(1, "127.0.0.1:1", 3, 5), 3, frozenset({1}), 5)

        broker.controller.alter_in_sync = alter  # type: ignore[method-assign]
        broker.controller.replica_info = replica_info  # type: ignore[method-assign]
        broker.role.kind, broker.role.epoch = Role.MASTER, 3
        broker.in_sync.begin({1}, 4)
        broker.in_sync.set.joined(2, 0, confirmed=0, epoch_start=0)
        broker.in_sync._ask_soon()
        for _ in range(50):
            await asyncio.sleep(0)
        assert (broker.in_sync.set.all_members, broker.in_sync.set.epoch) == ({1}, 5)
        broker.in_sync.end()

    asyncio.run(main())
