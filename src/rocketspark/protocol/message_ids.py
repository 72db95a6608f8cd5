"""Message ids: the broker's (address and log position) and the producer's unique one."""

from __future__ import annotations

import ipaddress
import os
import secrets
import struct
import threading
import time
from datetime import datetime
from functools import lru_cache

from rocketspark.errors import UsageError


@lru_cache(maxsize=4096)
def pack_host(host: str, port: int) -> bytes:
    """ip (4 or 16 bytes) and i4 port, as stored in records."""
    return ipaddress.ip_address(host).packed + port.to_bytes(4, "big")


@lru_cache(maxsize=65536)
def unpack_host(packed: bytes) -> str:
    """The "ip:port" text of a stored host; IPv6 in brackets."""
    ip = ipaddress.ip_address(packed[:-4])
    port = int.from_bytes(packed[-4:], "big")
    return f"{ip}:{port}" if ip.version == 4 else f"[{ip}]:{port}"


def offset_message_id(store_host: bytes, log_position: int) -> str:
    """The broker's id of a record: 32 hex digits, 56 with IPv6. `store_host` as stored."""
    return (store_host + log_position.to_bytes(8, "big", signed=True)).hex().upper()


def parse_offset_message_id(message_id: str) -> tuple[str, int, int]:
    """(ip, port, log position). Raises UsageError for anything else than such an id."""
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
        process = (os.getpid() if pid is None else pid) & 0xFFFF
        # A random constant where Java has a class loader's hash: tells apart processes that share ip and pid.
        self._prefix = (ip + struct.pack(">HI", process, secrets.randbits(32))).hex().upper()
        self._lock = threading.Lock()
        self._counter = 0
        self._month_start_ms = 0
        self._month_end_ms = 0

    def next(self) -> str:
        """A new id: 32 hex digits, 56 with IPv6."""
        now_ms = int(time.time() * 1000)
        with self._lock:
            if not self._month_start_ms <= now_ms < self._month_end_ms:
                self._find_month(now_ms)
            count = self._counter
            self._counter = (count + 1) & 0xFFFF
        return f"{self._prefix}{(now_ms - self._month_start_ms) & 0xFFFFFFFF:08X}{count:04X}"

    def _find_month(self, now_ms: int) -> None:
        now = datetime.fromtimestamp(now_ms / 1000)
        start = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        after = start.replace(year=start.year + start.month // 12, month=start.month % 12 + 1)
        self._month_start_ms = int(start.timestamp() * 1000)
        self._month_end_ms = int(after.timestamp() * 1000)


unique_ids = UniqueIds()
# A forked child must not repeat its parent's ids.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: unique_ids.__init__())  # type: ignore[misc]
