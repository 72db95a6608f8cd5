"""Brokers of one name under controllers as processes, and an attacker that draws by seed what it does to them.

Processes are killed, ended and frozen, links of replication cut one way or both, what a broker and its controllers say
to each other held back, disks of ours filled, clocks of ours set, controllers killed, elections asked for.
"""

from __future__ import annotations

import contextlib
import random
import resource
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from tests.java import ha_relay
from tests.java.apache_pair import PairBroker, elect
from tests.support.failovers import Member, OurMember, ReplicaSet
from tests.support.real_world import RealWorld

# Short times: what is drawn lasts up to 5 s.
QUICK = {
    "haSendHeartbeatInterval": 500,
    "haHousekeepingInterval": 4000,
    "haMaxTimeSlaveNotCatchup": 3000,
    "checkSyncStateSetPeriod": 300,
    "syncBrokerMetadataPeriod": 400,
    "brokerHeartbeatInterval": 300,
    "controllerHeartBeatTimeoutMills": 2000,
    "slaveTimeout": 1500,
    "recallMessageEnable": "true",
    "mappedFileSizeCommitLog": 1 << 20,
}
# Files may grow no further than this on a full disk.
FULL_BYTES = 4096
# Whose bytes stand still.
SIDES = {"up": frozenset({"slave"}), "down": frozenset({"master"}), "both": frozenset({"slave", "master"})}


class Relay(ha_relay.Relay):
    """Keeps nothing. `held`: sides whose bytes stand still, "slave" (which came) or "master", while the other's pass.

    Texts are replaced in what the target answers.
    """

    def __init__(self, address: str, target: str, replaced: dict[str, str] | None = None) -> None:
        self.held: frozenset[str] = frozenset()
        super().__init__(target, replaced, address)

    def _pass(self, kept: ha_relay.Relayed, side: str, data: bytes, target: socket.socket) -> None:
        while side in self.held:
            time.sleep(0.01)
        for old, new in self._replaced.items() if side == "master" else ():
            data = data.replace(old, new)
        target.sendall(data)

    def close(self) -> None:
        self.held = frozenset()
        super().close()


class Attacked(ReplicaSet):
    """Brokers whose ways to controllers, and those to a log of ours, go through relays.

    `words`: of each broker, to all controllers; `links`: to the log of each of ours. An official broker listens for
    slaves at every address of the machine, so no relay can stand before it; nor before a controller of jRaft's kind.
    """

    def __init__(
        self,
        folder: Path,
        kinds: str = "PP",
        controller: Literal["ours", "official"] = "ours",
        config: dict[str, Any] | None = None,
        *,
        controllers: int = 1,
    ) -> None:
        self.links: list[Relay | None] = []
        self.words: list[list[Relay]] = []
        super().__init__(folder, kinds, controller, QUICK | (config or {}), controllers=controllers, raft="dledger")

    def _made(self, kind: str, folder: Path, store: Path, controller: str) -> Member:
        number = len(self.members)
        assert self.group is not None
        near = f"127.0.0.{5 + number}"
        # Whom a controller names as the leader is found behind the relays too.
        told = {address: f"{near}:{address.rpartition(':')[2]}" for address in self.group.addresses.values()}
        # The addresses' lengths are the same: of 127.0.0.1 and of 127.0.0.5.
        self.words.append([Relay(new, old, told) for old, new in told.items()])
        controller = ";".join(told.values())
        if kind == "J":
            self.links.append(None)
            return super()._made(kind, folder, store, controller)
        host = f"127.0.0.{2 + number}"
        folder.mkdir()
        config = self._config | {"brokerIP2": host, "haBindAddress": "127.0.0.1"}
        found = OurMember(folder, self.namesrv, store, controller, config, clock=set_clock(folder, 0.0))
        port = int(found.broker.rpartition(":")[2]) + 1
        self.links.append(Relay(f"{host}:{port}", f"127.0.0.1:{port}"))
        return found

    def close(self) -> None:
        super().close()
        for relay in [link for link in self.links if link is not None] + [word for each in self.words for word in each]:
            relay.close()


def set_clock(folder: Path, seconds: float) -> Path:
    """Have the clock of the broker in a folder be so many seconds ahead; returns the file that says so."""
    new = folder / "clock.new"
    new.write_text(f"{seconds:+g}\n")
    return new.replace(folder / "clock")


def limit_files(member: OurMember, *, full: bool) -> None:
    """Let the process write no file beyond its first bytes, as on a full disk; or let it again."""
    _, most = resource.prlimit(member.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(member.pid, resource.RLIMIT_FSIZE, (FULL_BYTES if full else most, most))


class Nemesis:
    """Does one thing after the other, and mends each after a while."""

    def __init__(self, found: Attacked, chance: random.Random, world: RealWorld) -> None:
        self._set, self._chance, self._world = found, chance, world
        self._mends: list[Callable[[], None]] = []
        self._struck: set[int] = set()
        # What is under way.
        self._noted: list[tuple[str, str]] = []

    def strike(self) -> str:
        """Do one or two things at once, wait a while, mend them; returns what it was."""
        kinds = [self._process] * 4 + [self._link, self._word, self._split] * 2
        done = [self._chance.choice([*kinds, self._control, self._full, self._clock, self._elect])()]
        if self._chance.random() < 0.6:
            time.sleep(self._chance.uniform(0, 2.5))
            done.append(self._chance.choice([self._process, self._link, self._word])())
        time.sleep(self._chance.uniform(0.2, 5))
        self._chance.shuffle(self._mends)
        while self._mends:
            self._mends.pop()()
        for what, node in self._noted:
            self._world.record("mended", what=what, node=node)
        self._noted.clear()
        self._struck.clear()
        return " + ".join(done)

    def _note(self, what: str, number: int | str, **more: Any) -> str:
        node = f"broker-{number}" if isinstance(number, int) else number
        self._world.record("fault", what=what, node=node, **more)
        self._noted.append((what, node))
        return f"{what} {number}"

    def _member(self, kinds: str = "PJ") -> int | None:
        """Draw one of these kinds that nothing is done to yet, more often the master than another."""
        master = None
        if self._chance.random() < 0.6:
            # Nobody says while no controller leads.
            with contextlib.suppress(OSError):
                master = self._set.master()
        found = master or self._chance.choice(self._set.members)
        number = self._set.members.index(found)
        return None if number in self._struck or self._set.kinds[number] not in kinds else number

    def _process(self) -> str:
        number = self._member()
        how = self._chance.choice(["kill", "kill", "end", "freeze"])
        if number is None:
            return "nothing"
        self._struck.add(number)
        member = self._set.members[number]
        self._note(how, number)
        if how == "freeze":
            member.signal(signal.SIGSTOP)
            self._mends.append(lambda: member.signal(signal.SIGCONT))
            return f"freeze {number}"
        if how == "kill" or isinstance(member, PairBroker):
            member.kill()
        else:
            member.stop()
        self._mends.append(member.start)
        return f"{how} {number}"

    def _cut(self, relays: list[Relay], what: str, number: int, how: str = "") -> str:
        how = how or self._chance.choice(["up", "down", "both", "refuse", "reset"])
        told = self._note(f"{what} {how}", number)
        for relay in relays:
            if how in ("refuse", "reset"):
                relay.refuses = how == "refuse"
                relay.break_off()
            else:
                relay.held = SIDES[how]
        # Of a link that stood still the ends go too, sometimes.
        resets = self._chance.random() < 0.5

        def mend() -> None:
            for relay in relays:
                relay.held, relay.refuses = frozenset(), False
                if resets:
                    relay.break_off()

        self._mends.append(mend)
        return told

    def _links(self, number: int) -> list[Relay]:
        link = self._set.links[number]
        return [] if link is None else [link]

    def _link(self) -> str:
        number = self._member("P")
        return "nothing" if number is None else self._cut(self._links(number), "replication", number)

    def _word(self) -> str:
        number = self._member()
        return "nothing" if number is None else self._cut(self._set.words[number], "words", number)

    def _split(self) -> str:
        """A broker hears no controller and no other broker, while clients hear all of them."""
        number = self._member()
        if number is None:
            return "nothing"
        links = [relay for n in range(len(self._set.members)) for relay in self._links(n)]
        return self._cut(self._set.words[number] + links, "split", number, "both")

    def _control(self) -> str:
        group = self._set.group
        assert group is not None
        name = group.leader() if self._chance.random() < 0.6 else ""
        name = name or self._chance.choice(list(group.servers))
        group.servers[name].kill()
        self._mends.append(group.servers[name].start)
        return self._note("kill", name)

    def _full(self) -> str:
        number = self._member("P")
        if number is None:
            return "nothing"
        member = self._set.members[number]
        assert isinstance(member, OurMember)
        self._struck.add(number)
        limit_files(member, full=True)

        def mend() -> None:
            # This limit, unlike a disk without space, counts as a flush that failed: what met it takes nothing more.
            limit_files(member, full=False)
            member.kill()
            member.start()

        self._mends.append(mend)
        return self._note("disk full", number)

    def _clock(self) -> str:
        number = self._member("P")
        if number is None:
            return "nothing"
        seconds = self._chance.choice([-1, 1]) * self._chance.choice([0.5, 5.0, 60.0, 3600.0])
        folder = self._set.members[number].config.parent  # type: ignore[union-attr]
        set_clock(folder, seconds)
        if self._chance.random() < 0.7:
            self._mends.append(lambda: set_clock(folder, 0.0) and None)
        self._note("clock", number, value=seconds)
        return f"clock {seconds:+g} {number}"

    def _elect(self) -> str:
        with contextlib.suppress(OSError):
            before = self._set.state()
            others = sorted(before.in_sync - {before.master_id or 0})
            if others:
                wanted = self._chance.choice(others)
                elect(self._set.leading(), wanted)
                return self._note("elect", f"id {wanted}")
        return "nothing"
