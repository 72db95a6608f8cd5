"""The standard library as the simulation has it: time, chance, threads and syncs are those of the node that asks.

Rule: imported before anything of rocketspark, in a process that does nothing else. Outside of a node's strands
everything is as ever.
"""

from __future__ import annotations

import _queue
import _thread
import os
import queue
import random
import socket
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

from tests.simulation import loop

_real_time, _real_monotonic, _real_sleep = time.time, time.monotonic, time.sleep
_real_fsync, _real_fdatasync = os.fsync, os.fdatasync
_real_pid, _real_ident = os.getpid, threading.get_ident
_real_urandom = os.urandom
_real_lock, _real_thread = _thread.allocate_lock, threading.Thread
chance = random.Random(0)
OWN_PID = 1000
_begun = False


def _wall() -> float:
    process = loop.current_process()
    return _real_time() if process is None else float(process.node.clock.wall())


def _steady() -> float:
    process = loop.current_process()
    return _real_monotonic() if process is None else float(process.node.clock.steady())


def _sleep(seconds: float) -> None:
    strand = loop.current_strand()
    if strand is None:
        _real_sleep(seconds)
    elif seconds > 0:
        strand.pause(seconds)
    else:
        strand.wake()
        strand.scheduler.give_way()


def _urandom(count: int) -> bytes:
    return chance.randbytes(count) if _begun else _real_urandom(count)


def _pid() -> int:
    process = loop.current_process()
    if process is None:
        return OWN_PID if _begun else _real_pid()
    return int(process.pid)


def _ident() -> int:
    strand = loop.current_strand()
    return _real_ident() if strand is None else strand.number


def _host_name() -> str:
    process = loop.current_process()
    return "simulation" if process is None else str(process.node.name)


def _synced(real: Callable[[int], None]) -> Callable[[int], None]:
    def sync(fd: int) -> None:
        process = loop.current_process()
        if process is None:
            real(fd)
        else:
            process.node.disk.sync_descriptor(fd)

    return sync


class _Lock:
    """threading.Lock in a node, a real one outside."""

    def __new__(cls) -> Any:
        return _real_lock() if loop.current_strand() is None else loop.SimLock()


def _thread_of(*arguments: Any, **more: Any) -> Any:
    return (_real_thread if loop.current_strand() is None else loop.SimThread)(*arguments, **more)


class _SimpleQueue:
    def __new__(cls) -> Any:
        return (_RealQueue if loop.current_strand() is None else queue._PySimpleQueue)()  # type: ignore[attr-defined]


_RealQueue = _queue.SimpleQueue
_real_rlock = threading.RLock
_main_thread = threading.main_thread()


def _rlock() -> Any:
    return _real_rlock() if loop.current_strand() is None else loop.SimRLock()


def replace_all() -> None:
    time.time, time.monotonic, time.perf_counter = _wall, _steady, _steady
    time.time_ns = lambda: int(_wall() * 1e9)
    time.monotonic_ns = time.perf_counter_ns = lambda: int(_steady() * 1e9)
    time.sleep = _sleep
    os.urandom = _urandom
    random._urandom = _urandom  # type: ignore[attr-defined]
    os.getpid = _pid
    os.fsync, os.fdatasync = _synced(_real_fsync), _synced(_real_fdatasync)
    socket.gethostname = _host_name
    uuid.uuid4 = lambda: uuid.UUID(bytes=_urandom(16), version=4)
    _thread.allocate_lock = threading.Lock = threading._allocate_lock = _Lock  # type: ignore[misc,assignment,attr-defined]
    threading.RLock = _rlock  # type: ignore[assignment]
    threading.Thread = _thread_of  # type: ignore[misc,assignment]
    threading.current_thread = lambda: _main_thread
    threading.get_ident = _thread.get_ident = _ident
    queue.SimpleQueue = _queue.SimpleQueue = _SimpleQueue  # type: ignore[misc,assignment]


def begin(seed: Any) -> None:
    """Draw from this seed from here on."""
    global _begun
    _begun = True
    random.seed(f"{seed}/product")
    chance.seed(f"{seed}/secrets")
    from rocketspark.protocol.message.message_ids import unique_ids

    # A fork draws them anew; one object is all processes' here, so that ids stay unique.
    unique_ids.__init__()  # type: ignore[misc]
