"""Brokers of one name that replicate, in twos and threes, ours beside Java's.

Measured: synchronous and asynchronous sends, the slave's cost, failover. With BENCH_BEFORE set to the root of another
version of this repository its broker is measured without replication too, in turn with this one.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path

from tests.java.apache_pair import caught_up

from bench import raw_send
from bench.load import ANY, OK, Load, connect, pump
from bench.measure import compare, figure
from bench.pairs import (
    SYNC,
    Controlled,
    apache_pair,
    java_controlled,
    lag_bytes,
    our_controlled,
    our_pair,
    until,
)
from bench.peers import Servers, both, cpu_seconds, end_rows, memory_kib, ours
from bench.plan import Plan
from bench.raw import send, warm_up
from bench.report import Figure, Row, progress, rates_row, show, values_row

WINDOWS = (1, 64, 256)
# After it a slave has taken what it acknowledged into its queues.
SETTLE_S = 0.3
LOAD_WINDOW = 64
TRY_TIMEOUT_S = 1.0
PAUSE_S = 0.005


def run(plan: Plan) -> list[Row]:
    """One row per case, ours first."""
    rows: list[Row] = []
    with both(plan.alone, our_pair(SYNC | plan.config), apache_pair(SYNC)) as (mine, java):
        warm_up(mine, java, plan.of((64, 256), (64,), ()), plan.of(6.0, 2.0, 0.05))
        for window in WINDOWS:
            rows += _shown(sync_rows(plan, mine, java, window), first=not rows)
        rows += _shown(end_rows(mine, java, "sync master"))
    with both(plan.alone, our_pair(SYNC | plan.config, slaves=2), apache_pair(SYNC, slaves=2)) as (mine, java):
        warm_up(mine, java, plan.of((64, 256), (64,), ()), plan.of(6.0, 2.0, 0.05))
        for window in WINDOWS:
            rows += _shown(sync_rows(plan, mine, java, window, replicas=3))
    with both(plan.alone, our_pair(plan.config), apache_pair({})) as (mine, java):
        warm_up(mine, java, plan.of((256,), (64,), ()), plan.of(8.0, 2.0, 0.05))
        rows += _shown(async_rows(plan, mine, java))
        rows += _shown(slave_memory_row(mine, java))
    rows += _shown(failover_rows(plan))
    if before := os.environ.get("BENCH_BEFORE"):
        rows += _shown(before_rows(plan, Path(before)))
    return rows


def _shown(rows: list[Row], *, first: bool = False) -> list[Row]:
    show(rows, heading=first)
    return rows


class Round:
    """One load on a pair: what it cost master and slave, and how far behind the slave was when it ended."""

    def __init__(self, servers: Servers, *, window: int, seconds: float) -> None:
        slave_before = cpu_seconds(servers.pids[1])
        self.master = figure(servers, partial(send, window=window, seconds=seconds))
        self.lag_bytes = lag_bytes(servers.broker)
        self.lag_s = until(lambda: caught_up(servers.broker, len(servers.brokers) - 1))
        time.sleep(SETTLE_S)
        done = self.master.done
        self.slave_us = (cpu_seconds(servers.pids[1]) - slave_before) / done * 1e6
        self.slave = Figure(done, self.master.seconds + self.lag_s, 0.0)


def _measure(plan: Plan, mine: Servers, java: Servers | None, *, window: int) -> list[tuple[Round, Round | None]]:
    seconds = plan.of(2.0, 1.0, 0.05)
    found = []
    for number in range(plan.rounds(5)):
        progress(f"{window} in flight: round {number + 1}")
        first = Round(mine, window=window, seconds=seconds)
        found.append((first, Round(java, window=window, seconds=seconds) if java else None))
    return found


def _slave_row(name: str, rounds: list[tuple[Round, Round | None]]) -> Row:
    pairs = [(o.slave_us, p.slave_us if p else None) for o, p in rounds]
    return values_row(name, "us", pairs, less_is_better=True)


def sync_rows(plan: Plan, mine: Servers, java: Servers | None, window: int, replicas: int = 2) -> list[Row]:
    """Sends that are answered once a slave has them, the one of two replicas or the faster of three."""
    rounds = _measure(plan, mine, java, window=window)
    name = f"inSyncReplicas=2 of {replicas}, {window} in flight, 128 B"
    rates = [(o.master, p.master if p else None) for o, p in rounds]
    return [rates_row(name, "msg/s", rates), _slave_row("  slave's CPU a message", rounds)]


def async_rows(plan: Plan, mine: Servers, java: Servers | None) -> list[Row]:
    """Sends at full speed that wait for no slave, and how the slave keeps up."""
    rounds = _measure(plan, mine, java, window=256)
    rates = [(o.master, p.master if p else None) for o, p in rounds]
    kib = [(o.lag_bytes / 1024, p.lag_bytes / 1024 if p else None) for o, p in rounds]
    late = [(o.lag_s * 1000, p.lag_s * 1000 if p else None) for o, p in rounds]
    share = [(o.slave.rate / o.master.rate, p.slave.rate / p.master.rate if p else None) for o, p in rounds]
    return [
        rates_row("asynchronous, 256 in flight, 128 B", "msg/s", rates),
        values_row("  slave's rate, of the master's", "x", share),
        values_row("  lag when the load ends", "KiB", kib, less_is_better=True),
        values_row("  until the slave has all", "ms", late, less_is_better=True),
        _slave_row("  slave's CPU a message", rounds),
    ]


def slave_memory_row(mine: Servers, java: Servers | None) -> list[Row]:
    """What a slave takes."""
    found = [memory_kib(s.pids[1])["RssAnon"] / 1024 for s in (mine, java) if s]
    pair = (found[0], found[1] if len(found) > 1 else None)
    return [values_row("slave at the end: RssAnon", "MiB", [pair], less_is_better=True)]


# -- failover


def failover_s(pair: Controlled, loaded_s: float) -> float:
    """Kill the master after so long under load; the seconds until the other broker acknowledges a send."""
    master = pair.wait_in_sync()
    stream = raw_send.stream(raw_send.TOPIC, 128)

    def load() -> None:
        try:
            pump(master, stream, window=LOAD_WINDOW, seconds=60.0)
        except OSError:
            pass

    thread = threading.Thread(target=load)
    thread.start()
    time.sleep(loaded_s)
    other = pair.kill_master()
    began = time.perf_counter()
    until(partial(_acknowledged, other), look_s=PAUSE_S)
    taken = time.perf_counter() - began
    thread.join()
    return taken


def _acknowledged(address: str) -> bool:
    with connect(address) as s:
        s.settimeout(TRY_TIMEOUT_S)
        while True:
            s.sendall(raw_send.stream(raw_send.TOPIC, 128).part(0, 1))
            data = b""
            while ANY not in data or len(data) < 24:
                part = s.recv(1 << 16)
                if not part:
                    return False
                data += part
            if OK in data:
                return True
            time.sleep(PAUSE_S)


def failover_rows(plan: Plan) -> list[Row]:
    """In turn: the other broker of each pair dies in the next round."""
    makers: list[AbstractContextManager[Controlled]] = [our_controlled()]
    if not plan.alone:
        makers.append(java_controlled())
    found: list[list[float]] = []
    with ExitStack() as stack:
        pairs = [stack.enter_context(maker) for maker in makers]
        for pair in pairs:
            master = pair.wait_in_sync()
            pump(master, raw_send.stream(raw_send.TOPIC, 128), window=LOAD_WINDOW, seconds=plan.of(2.0, 1.0, 0.05))
        for number in range(plan.rounds()):
            progress(f"failover: round {number + 1}")
            found.append([])
            for pair in pairs:
                found[-1].append(failover_s(pair, plan.of(1.0, 1.0, 0.05)))
                pair.start_again()
    values = [(row[0] * 1000, row[1] * 1000 if len(row) > 1 else None) for row in found]
    return [values_row("master killed under load: next answer", "ms", values, less_is_better=True)]


# -- without replication, beside another version


def before_rows(plan: Plan, source: Path) -> list[Row]:
    """This version in the first column, the other in the second."""
    rows = []
    with ours(config=plan.config) as mine, ours(config=plan.config, source=source) as before:
        warm_up(mine, before._replace(name="before"), (64,), 1.0)
        for window in WINDOWS:
            act: partial[Load] = partial(send, window=window, seconds=plan.of(1.0, 0.5, 0.05))
            name = f"no replica, {window} in flight; before: 2nd"
            rows.append(compare(name, "msg/s", 2 * plan.rounds(5), mine, before, act))
    return rows
