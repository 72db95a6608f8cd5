"""Message ids: the broker's (address and physical offset) and the producer's unique one."""

from __future__ import annotations

import ipaddress
import itertools
import os
import struct
from datetime import datetime
from functools import lru_cache

from rocketspark import machine
from rocketspark.errors import UsageError

# Of a unique id, where the address in it is none of IPv6.
ID_CHARACTERS = 32
ID_WITH_IPV6_CHARACTERS = 56


@lru_cache(maxsize=4096)
def pack_host(host: str, port: int) -> bytes:
    """Return a host as records store it: ip (4 or 16 bytes) and i4 port."""
    return ipaddress.ip_address(host).packed + port.to_bytes(4, "big")


@lru_cache(maxsize=65536)
def unpack_host(packed: bytes) -> str:
    """Return the "ip:port" text of a stored host; IPv6 in brackets."""
    ip = ipaddress.ip_address(packed[:-4])
    port = int.from_bytes(packed[-4:], "big")
    return f"{ip}:{port}" if ip.version == 4 else f"[{ip}]:{port}"


def offset_message_id(store_host: bytes, physical_offset: int) -> str:
    """Return the broker's id of a record: 32 hex digits, 56 with IPv6. `store_host` as stored."""
    return (store_host + physical_offset.to_bytes(8, "big", signed=True)).hex().upper()


def parse_offset_message_id(message_id: str) -> tuple[str, int, int]:
    """Return (ip, port, physical offset). Raises UsageError for anything else than such an id."""
    try:
        raw = bytes.fromhex(message_id)
    except ValueError:
        raw = b""
    if len(raw) not in (16, 28):
        raise UsageError(f"{message_id!r} is no offset message id: 32 or 56 hex digits are needed")
    ip = ipaddress.ip_address(raw[:-12])
    return str(ip), int.from_bytes(raw[-12:-8], "big"), int.from_bytes(raw[-8:], "big")


class UniqueIds:
    """Makes the producer's unique ids: ip, process, a constant, ms since the month began, counter.

    One object per process is enough; it is thread-safe. `ip`: the 4 or 16 packed address bytes.
    """

    def __init__(self, ip: bytes = b"\x7f\x00\x00\x01", pid: int | None = None) -> None:
        process = (machine.getpid() if pid is None else pid) & 0xFFFF
        # A random constant where Java has a class loader's hash: tells apart processes that share ip and pid.
        self._prefix = (ip + struct.pack(">HI", process, machine.randbits(32))).hex().upper()
        # A step of it is one in C: no two threads get one number, and none waits for a lock.
        self._numbers = itertools.count()
        self._month_ms = (0, 0)

    def next(self) -> str:
        """Return a new id: 32 hex digits, 56 with IPv6."""
        now_ms = int(machine.time() * 1000)
        start_ms, end_ms = self._month_ms
        if not start_ms <= now_ms < end_ms:
            start_ms, _ = self._month_ms = _month_of(now_ms)
        return f"{self._prefix}%08X%04X" % ((now_ms - start_ms) & 0xFFFFFFFF, next(self._numbers) & 0xFFFF)


class UniqueIdBlocks:
    """Makes unique ids for many messages at a time. Its random constant makes them differ from all other ids."""

    def __init__(self, ip: bytes = b"\x7f\x00\x00\x01") -> None:
        process = struct.pack(">HI", machine.getpid() & 0xFFFF, machine.randbits(32))
        self._prefix = (ip + process).hex().upper()
        self._month_ms = (0, 0)
        self._next = 0

    def take(self, count: int) -> tuple[str, int]:
        """Reserve `count` ids. Returns (prefix, number): the ids are the prefix and `number`, `number + 1` … as 12 hex
        digits each.

        A number is ms since the month began and a counter of 16 bits; a larger block takes numbers of ms that are still
        to come.
        """
        now_ms = int(machine.time() * 1000)
        start_ms, end_ms = self._month_ms
        if not start_ms <= now_ms < end_ms:
            start_ms, _ = self._month_ms = _month_of(now_ms)
            self._next = 0
        first = max((now_ms - start_ms) << 16, self._next)
        self._next = first + count
        return self._prefix, first

    def joined(self, count: int) -> str:
        """Return `count` new ids, comma separated."""
        return joined_ids(*self.take(count), count)


def joined_ids(prefix: str, first: int, count: int) -> str:
    """Return the ids of a block, comma separated."""
    # One formatting for all: an id by itself costs six times as much.
    return (f",{prefix}%012X" * count)[1:] % (*range(first, first + count),)


def id_after(unique_id: str, count: int) -> str:
    """Return the id that stands so many places behind one in a block; "" if it is no such id."""
    prefix, number = unique_id[:-12], unique_id[-12:]
    if not count:
        return unique_id
    try:
        return joined_ids(prefix.replace("%", "%%"), int(number, 16) + count, 1)
    except ValueError:
        return ""


def _month_of(now_ms: int) -> tuple[int, int]:
    """Return begin and end of the month of this time, in ms."""
    now = datetime.fromtimestamp(now_ms / 1000)
    start = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    after = start.replace(year=start.year + start.month // 12, month=start.month % 12 + 1)
    return int(start.timestamp() * 1000), int(after.timestamp() * 1000)


unique_ids = UniqueIds()
# A forked child must not repeat its parent's ids.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: unique_ids.__init__())  # type: ignore[misc]
