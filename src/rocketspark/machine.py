"""What the program takes from its machine by itself: time, chance, its process id, and threads that go round in steps.

Rule: every module asks for these here, as `machine.monotonic()`, and keeps none of the functions: a simulation puts its
own in their place before it makes any object. Sockets come from the event loop, files from `store/files/system_calls`.
"""

from __future__ import annotations

import os
import random
import secrets
import threading
import time as _time
import uuid
from collections.abc import Iterator
from typing import Protocol

# Seconds and nanoseconds since 1970, of a clock that may be set.
time = _time.time
time_ns = _time.time_ns
# Seconds and nanoseconds of a clock that is never set; the last one is the finest.
monotonic = _time.monotonic
monotonic_ns = _time.monotonic_ns
perf_counter = _time.perf_counter
sleep = _time.sleep

choice = random.choice
randrange = random.randrange
shuffle = random.shuffle
# Chance that nobody may guess.
randbits = secrets.randbits
token_bytes = secrets.token_bytes
token_hex = secrets.token_hex
uuid4 = uuid.uuid4

getpid = os.getpid

Event = threading.Event


class Joinable(Protocol):
    """Steps that run: `join` waits until they ended, at most so many seconds."""

    def join(self, timeout: float | None = None) -> None: ...

    def is_alive(self) -> bool: ...


# Before its next step it waits until the event is set, at most so many seconds.
Steps = Iterator[tuple[threading.Event, float | None]]


def start_steps(steps: Steps, name: str) -> Joinable:
    """Run steps one after the other in a thread of their own, which does not keep the process from ending."""

    def run() -> None:
        for event, wait_s in steps:
            event.wait(wait_s)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread
