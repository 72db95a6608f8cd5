"""Pairs of brokers of one name that replicate, ours and Apache RocketMQ's, each broker a process of its own."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.java.apache import ApacheBroker
from tests.java.apache_pair import JavaPair, Mode, PairBroker, caught_up, ha_status, replicas

from bench.peers import JAVA_DEFAULTS, JIT, Config, Servers, started

READY_S = 90.0
LOOK_S = 0.002
NAME = "broker-a"
SYNC: dict[str, str | int] = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 2}
SLAVE: dict[str, str | int] = {"brokerRole": "SLAVE", "brokerId": 1}
# As in a broker.conf and a controller.conf that say nothing.
CONTROLLER_TIMES = {"controllerHeartBeatTimeoutMills": 10_000}
# Three processes are more than one: less heap for each.
HEAP = ("-Xms1g", "-Xmx1g", "-XX:MaxDirectMemorySize=1g")


def until(done: Callable[[], bool], limit_s: float = READY_S, look_s: float = LOOK_S) -> float:
    """Wait for it; returns the seconds that took. A server that does not answer yet is asked again."""
    began = time.perf_counter()
    while True:
        try:
            if done():
                return time.perf_counter() - began
        except OSError:
            pass
        if time.perf_counter() - began > limit_s:
            raise SystemExit(f"a pair of brokers was not ready within {limit_s:.0f} s")
        time.sleep(look_s)


def _conf(folder: Path, config: Config) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "broker.conf"
    path.write_text("".join(f"{key}={value}\n" for key, value in config.items()))
    return str(path)


@contextmanager
def our_pair(config: Config, slaves: int = 1) -> Iterator[Servers]:
    """A NameServer, a master with `config` in its broker.conf, and its slaves. `brokers`: the master first."""
    with tempfile.TemporaryDirectory(prefix="rocketspark-bench-") as folder, ExitStack() as stack:
        root = Path(folder)
        _, found, _ = stack.enter_context(started(["namesrv", "-p", "0"], r"ready namesrv=(\S+)", root))
        pids, brokers = [], []
        for number in range(1 + slaves):
            own = SLAVE | {"brokerId": number} if number else {"brokerRole": "ASYNC_MASTER", **config}
            place = root / f"broker-{number}"
            command = ["broker", "-c", _conf(place, own), "-p", "0", "--store", str(place / "store"), "-n", found[1]]
            pid, ready, _ = stack.enter_context(started(command, r"ready broker=(\S+)", place))
            pids.append(pid)
            brokers.append(ready[1])
        until(lambda: caught_up(brokers[0], slaves))
        yield Servers(found[1], brokers[0], pids[0], 0.0, root, tuple(brokers), tuple(pids))


@contextmanager
def apache_pair(config: Config, slaves: int = 1) -> Iterator[Servers]:
    """The same of Apache RocketMQ 5.5.0."""
    with _java("classic", dict(config)) as pair:
        brokers = (pair.first, pair.second, *(pair.add(number, dict(JAVA_DEFAULTS)) for number in range(2, 1 + slaves)))
        pair.wait_in_sync()
        pids = tuple(broker._process.pid for broker in brokers)
        addresses = tuple(broker.broker for broker in brokers)
        until(lambda: caught_up(addresses[0], slaves))
        yield Servers(pair.namesrv, addresses[0], pids[0], 0.0, pair.first.store, addresses, pids, "java")


@contextmanager
def _java(mode: Mode, first: dict[str, str | int]) -> Iterator[JavaPair]:
    ApacheBroker.jvm_flags, ApacheBroker._flags = JIT, HEAP
    with tempfile.TemporaryDirectory(prefix="rocketspark-bench-java-") as folder:
        times = CONTROLLER_TIMES if mode == "controller" else {}
        pair = JavaPair(Path(folder), mode, config=JAVA_DEFAULTS | times, first=first)
        try:
            yield pair
        finally:
            pair.close()


def lag_bytes(master: str) -> int:
    """How many bytes of the master's log its slave has not acknowledged."""
    status = ha_status(master)
    slaves = status.get("haConnectionInfo") or []
    end = int(status["masterCommitLogMaxOffset"])
    return end - max((int(slave["slaveAckOffset"]) for slave in slaves), default=0)


class Controlled:
    """A pair under a controller. `controller`: its address; `kill_master` and `start_again` in turn."""

    name = "ours"
    controller: str

    def kill_master(self) -> str:
        """SIGKILL; returns the address of the other one."""
        raise NotImplementedError

    def start_again(self) -> None:
        """Start the killed one and wait until it is in sync."""
        raise NotImplementedError

    def wait_in_sync(self) -> str:
        """Wait until both are in the controller's set; returns the master's address."""

        def found() -> bool:
            known = replicas(self.controller, NAME)
            return known.master is not None and len(known.in_sync) > 1 and caught_up(known.master)

        until(found, look_s=0.05)
        return replicas(self.controller, NAME).master or ""


class OurControlled(Controlled):
    """NameServer, controller and two brokers of ours."""

    def __init__(self, root: Path, stack: ExitStack) -> None:
        self._root = root
        _, found, _ = stack.enter_context(started(["namesrv", "-p", "0"], r"ready namesrv=(\S+)", root))
        self._namesrv = found[1]
        command = ["controller", "--listen", "127.0.0.1:0", "--store", str(root / "controller")]
        _, found, _ = stack.enter_context(started(command, r"ready controller=(\S+)", root))
        self.controller = found[1]
        self._running: dict[str, tuple[int, ExitStack]] = {}
        self._pids: dict[str, int] = {}
        stack.callback(self._end)
        for number in (1, 2):
            self._start(number, "0")
        self._killed = ("", 0)

    def _start(self, number: int, port: str) -> None:
        place = self._root / f"broker-{number}"
        config = {"allAckInSyncStateSet": "true"}
        command = ["broker", "-c", _conf(place, config), "-p", port, "--store", str(place / "store")]
        command += ["-n", self._namesrv, "--controller", self.controller]
        own = ExitStack()
        pid, ready, _ = own.enter_context(started(command, r"ready broker=(\S+)", place))
        self._running[ready[1]] = number, own
        self._pids[ready[1]] = pid

    def _end(self) -> None:
        for _, own in self._running.values():
            own.close()

    def kill_master(self) -> str:
        """SIGKILL; returns the address of the other one."""
        master = replicas(self.controller, NAME).master or ""
        os.kill(self._pids[master], signal.SIGKILL)
        number, own = self._running.pop(master)
        self._killed = master, number
        self._own = own
        return next(iter(self._running))

    def start_again(self) -> None:
        """Start the killed one and wait until it is in sync."""
        self._own.close()
        address, number = self._killed
        self._start(number, address.rpartition(":")[2])
        self.wait_in_sync()


class JavaControlled(Controlled):
    """The same of Apache RocketMQ 5.5.0, the controller inside the NameServer."""

    name = "java"

    def __init__(self, pair: JavaPair) -> None:
        self._pair = pair
        self.controller = pair.controller
        self._killed: PairBroker | None = None

    def kill_master(self) -> str:
        """SIGKILL; returns the address of the other one."""
        found = self._pair.master()
        assert found is not None
        self._killed = found
        found.kill()
        return next(b.broker for b in (self._pair.first, self._pair.second) if b is not found)

    def start_again(self) -> None:
        """Start the killed one and wait until it is in sync."""
        assert self._killed is not None
        self._killed.start()
        self.wait_in_sync()


@contextmanager
def our_controlled() -> Iterator[Controlled]:
    """A pair of ours under our controller."""
    with tempfile.TemporaryDirectory(prefix="rocketspark-bench-") as folder, ExitStack() as stack:
        yield OurControlled(Path(folder), stack)


@contextmanager
def java_controlled() -> Iterator[Controlled]:
    """A Java pair under Apache's controller."""
    with _java("controller", {}) as pair:
        yield JavaControlled(pair)
