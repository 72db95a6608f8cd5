"""Limits what clients may create by merely naming it: topics, groups, and rows of committed offsets.

Rule: each kind has a maximum for all clients together, and one for each address and minute. What an operator creates
counts towards the first and is never refused. What the broker creates for an existing group (retries, dead letters)
goes with that group. All is pure: the time is handed in."""

from __future__ import annotations

from collections.abc import Callable, Sized
from enum import Enum

from rocketspark import machine
from rocketspark.broker.settings import BrokerSettings
from rocketspark.errors import ServerError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.protocol.codes import ResponseCode
from rocketspark.transport.server_bounds import host_of, place_of

log = LimitedLog("rocketspark.broker")

PERIOD_S = 60.0
# Addresses that are counted one by one; those beyond share one count until the minute is over.
ADDRESSES_MAX = 10_000
# Progress is kept for each pair of a topic and a group: one more client may bring many at once.
OFFSETS_OF_CREATION = 20


class Made(Enum):
    """The kinds of things that clients' requests create.

    Each value: the kind's name in error messages, and the setting that says how many of the kind a broker may have.
    """

    TOPIC = ("topic", "maxAutoCreateTopics")
    GROUP = ("subscription group", "maxAutoCreateGroups")
    OFFSETS = ("pair of topic and group with offsets", "maxConsumerOffsets")


class AutomaticCreation:
    """Counts what clients' requests create on one broker, and refuses what is over the limits of its settings."""

    def __init__(self, settings: BrokerSettings, now: Callable[[], float] = lambda: machine.monotonic()) -> None:
        self._settings = settings
        self._now = now
        self._since = now()
        self._made: dict[tuple[bool, str], int] = {}

    def admit(self, kind: Made, table: Sized, address: str) -> None:
        """Count a topic, group or row of offsets that a client's request is about to create in `table`.

        `address`: the client's "host:port"; "" for the broker itself, which is never refused. Raises ServerError 2 if
        the table is full, or the address has created as much as it may in a minute; the client may try again later.
        """
        if not address:
            return
        s = self._settings
        most = {
            Made.TOPIC: s.auto_topics_max,
            Made.GROUP: s.auto_groups_max,
            Made.OFFSETS: s.offset_rows_max,
        }[kind]
        what, key = kind.value
        if len(table) >= most:
            self._refuse(f"no {what} more is made by asking: there are {len(table)}, {key} is {most}", address)
        now = self._now()
        if not 0 <= now - self._since < PERIOD_S:
            self._since = now
            self._made.clear()
        host = place_of(host_of(address))
        counted = (kind is Made.OFFSETS, host)
        if counted not in self._made and len(self._made) >= ADDRESSES_MAX:
            counted = (kind is Made.OFFSETS, "")
        made, quickly = self._made.get(counted, 0), s.auto_creations_per_minute
        if kind is Made.OFFSETS:
            quickly *= OFFSETS_OF_CREATION
        if made >= quickly:
            self._refuse(f"no {what} more is made for {host} in this minute: maxAutoCreatePerMinute", address)
        self._made[counted] = made + 1

    def _refuse(self, why: str, address: str) -> None:
        log.warning("%s was refused: %s", address, why)
        raise ServerError(ResponseCode.SYSTEM_BUSY, why)
