"""Pairs and threes under a controller as processes, and an attacker that draws by seed what it does to them.

Processes are killed, ended and frozen, links of replication cut one way or both, what a broker and its controller say
to each other held back, the controller killed. NEMESIS_ROUNDS of NEMESIS_FAULTS each (SOAK_SEED draws the same again);
after each round nothing that was answered is lost, doubled, or another message, and all are in sync.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.failovers import Load, Member, OurMember, ReplicaSet, check

pytestmark = pytest.mark.shows("nemesis, planted defects")

ROUNDS, FAULTS = int(os.environ.get("NEMESIS_ROUNDS", "50")), int(os.environ.get("NEMESIS_FAULTS", "8"))
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
    "haBindAddress": "127.0.0.1",
}


class Relay:
    """What comes to `address` goes to the same port of 127.0.0.1. `held`: sides whose bytes stand still."""

    def __init__(self, address: str, renamed: tuple[bytes, bytes] = (b"", b"")) -> None:
        host, _, port = address.rpartition(":")
        self._port, self._renamed = int(port), renamed
        self._listener = socket.create_server((host, self._port))
        self._ends: list[socket.socket] = []
        self.held: frozenset[str] = frozenset()
        self.refuses = False
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
                if self.refuses:
                    near.close()
                    continue
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._port), 5)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            self._ends += [near, far]
            for side, source, target in (("up", near, far), ("down", far, near)):
                threading.Thread(target=self._copy, args=(side, source, target), daemon=True).start()

    def _copy(self, side: str, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                while side in self.held:
                    time.sleep(0.01)
                target.sendall(data.replace(*self._renamed) if self._renamed[0] and side == "down" else data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def reset(self) -> None:
        """End all connections."""
        ends, self._ends = self._ends, []
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End it."""
        self._listener.close()
        self.held = frozenset()
        self.reset()


class Attacked(ReplicaSet):
    """Brokers whose links of replication and to the controller go through relays. `links`, `words`: by broker."""

    def __init__(self, folder: Path, count: int, config: dict[str, Any]) -> None:
        self.links: list[Relay] = []
        self.words: list[Relay] = []
        super().__init__(folder, "P" * count, config=QUICK | config)

    def add(self, kind: str) -> Member:
        number = len(self.members)
        # As long as the controller's own, which it names as the leader's.
        word = f"127.0.0.{5 + number}:{self.controller.rpartition(':')[2]}"
        self.words.append(Relay(word, (self.controller.encode(), word.encode())))
        host = f"127.0.0.{2 + number}"
        config = self._config | {"brokerIP2": host, "controllerAddr": word}
        folder, store = self._folder / f"broker-{number}", self._folder / f"store-{number}"
        found = OurMember(folder, self.namesrv, store, self.controller, config)
        self._servers.append(found)
        self.members.append(found)
        self.links.append(Relay(f"{host}:{int(found.broker.rpartition(':')[2]) + 1}"))
        return found

    def close(self) -> None:
        super().close()
        for relay in self.links + self.words:
            relay.close()


class Nemesis:
    """Does one thing after the other, and mends each after a while."""

    def __init__(self, found: Attacked, chance: random.Random) -> None:
        self._set, self._chance = found, chance
        self._mends: list[Callable[[], None]] = []
        self._struck: set[int] = set()

    def strike(self) -> str:
        """Do one or two things at once, wait a while, mend them; returns what it was."""
        done = [
            self._chance.choice([self._process, self._link, self._link, self._word, self._word, self._controller])()
        ]
        if self._chance.random() < 0.6:
            time.sleep(self._chance.uniform(0, 2.5))
            done.append(self._chance.choice([self._process, self._link, self._word])())
        time.sleep(self._chance.uniform(0.2, 5))
        self._chance.shuffle(self._mends)
        while self._mends:
            self._mends.pop()()
        self._struck.clear()
        return " + ".join(done)

    def _member(self) -> tuple[int, OurMember]:
        master = None
        if self._chance.random() < 0.6:
            # Nobody says while the controller is down.
            with contextlib.suppress(OSError):
                master = self._set.master()
        found = master or self._chance.choice(self._set.members)
        assert isinstance(found, OurMember)
        return self._set.members.index(found), found

    def _process(self) -> str:
        number, member = self._member()
        how = self._chance.choice(["kill", "kill", "end", "freeze"])
        if number in self._struck:
            return "nothing"
        self._struck.add(number)
        if how == "freeze":
            member.signal(signal.SIGSTOP)
            self._mends.append(lambda: member.signal(signal.SIGCONT))
            return f"freeze {number}"
        if how == "kill":
            member.kill()
        else:
            member.stop()
        self._mends.append(member.start)
        return f"{how} {number}"

    def _cut(self, relay: Relay, what: str) -> str:
        how = self._chance.choice(["up", "down", "both", "refuse", "reset"])
        if how in ("refuse", "reset"):
            relay.refuses = how == "refuse"
            relay.reset()
        else:
            relay.held = frozenset(["up", "down"] if how == "both" else [how])

        def mend() -> None:
            # Of a link that stood still the ends go too, sometimes.
            relay.held, relay.refuses = frozenset(), False
            if self._chance.random() < 0.5:
                relay.reset()

        self._mends.append(mend)
        return f"{what} {how}"

    def _link(self) -> str:
        number, _ = self._member()
        return self._cut(self._set.links[number], f"replication of {number}")

    def _word(self) -> str:
        number, _ = self._member()
        return self._cut(self._set.words[number], f"controller and {number}")

    def _controller(self) -> str:
        self._set.control.kill()
        self._mends.append(self._set.control.start)
        return "kill the controller"


@pytest.mark.soak
@pytest.mark.parametrize("number", range(ROUNDS))
def test_nothing_answered_is_lost_whatever_is_done_to_brokers_links_and_controller(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], number: int
) -> None:
    seed = int(os.environ.get("SOAK_SEED", time.time_ns() % 10**6)) + number
    chance = random.Random(seed)
    count = chance.choice([2, 2, 3])
    config = {"minInSyncReplicas": 2} if chance.random() < 0.3 else {}
    found = Attacked(tmp_path, count, config)
    told = [f"\nnemesis, SOAK_SEED={seed}: {count} brokers, {config}"]
    try:
        load = Load(found)
        try:
            load.wait_for_answers(50)
            nemesis = Nemesis(found, chance)
            for _ in range(FAULTS):
                told.append(nemesis.strike())
                if chance.random() < 0.6:
                    found.wait_in_sync(count)
            found.wait_in_sync(count)
            load.wait_for_answers(20)
            load.end()
            told.append(f"{len(load.answered_s)} answered")
            check(found, load)
        finally:
            load.close()
    finally:
        found.close()
        with capsys.disabled():
            print("; ".join(told), flush=True)
