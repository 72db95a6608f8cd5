"""What a group of controllers agrees on: the entries of its log, the state that they make, and the snapshot. Pure.

Rule: an entry names the state that it was decided on, by the count of changes, and changes nothing if that is not the
state it meets: whoever decided it did not know of a change that came before. All members see that alike.
"""

from __future__ import annotations

import functools

import msgspec

from rocketspark.controller.headed_content import HeadedFormat
from rocketspark.controller.replica_sets import Event, Looked, MasterElected, Sets, apply

# What the changes of one entry may take.
ENTRY_BYTES_MAX = 1 << 19


class State(msgspec.Struct, frozen=True):
    """What a controller knows. `version`: counts the changes; `looked`: by broker name, how far its master looked."""

    version: int = 0
    sets: Sets = {}
    looked: dict[str, Looked] = {}


class Entry(msgspec.Struct, frozen=True):
    """One entry of the log. Without a change it shows that whoever asks led, and knew all, when it was written."""

    base: int
    events: tuple[Event, ...] = ()
    looked: tuple[Looked, ...] = ()


def advance(state: State, events: tuple[Event, ...], looked: tuple[Looked, ...]) -> State:
    """Return the state after changes; `version` stays if there are none.

    An election ends what was looked at before: what is asked for in an earlier epoch is refused by its epoch, and who
    is elected may be another process than the one that looked when this broker was master before.
    """
    if not events and not looked:
        return state
    sets = functools.reduce(apply, events, state.sets)
    elected = {event.broker_name for event in events if isinstance(event, MasterElected)}
    seen = {name: each for name, each in state.looked.items() if name not in elected}
    seen |= {each.broker_name: each for each in looked}
    return State(state.version + 1, sets, {name: each for name, each in seen.items() if name in sets})


def applied(state: State, entry: Entry) -> State | None:
    """Return the state after an entry; None if the entry was decided on another one."""
    return advance(state, entry.events, entry.looked) if entry.base == state.version else None


def encode_entry(entry: Entry) -> bytes:
    """Return an entry's bytes."""
    return msgspec.msgpack.encode(entry)


_entries = msgspec.msgpack.Decoder(Entry)


def decode_entry(content: bytes) -> Entry:
    """Return the entry of these bytes. Raises msgspec.DecodeError."""
    return _entries.decode(content)


class LogEntry(msgspec.Struct, frozen=True, array_like=True):
    """An entry as it stands in the log of the library."""

    command: bytes
    index: int
    term: int


class Snapshot(msgspec.Struct, frozen=True):
    """The state after the entry `last`, with who the members were; `previous`: the entry before it."""

    state: State
    last: LogEntry
    previous: LogEntry
    members: tuple[str, ...]


START_ANEW = "empty this controller's folder, and it takes all from the other members"
_FORMAT = HeadedFormat("rocketspark controller snapshot", 1, cure=START_ANEW)
_snapshots = msgspec.msgpack.Decoder(Snapshot)


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """Return the content of a snapshot's file."""
    return _FORMAT.encode(msgspec.msgpack.encode(snapshot))


def decode_snapshot(content: bytes, path: str) -> Snapshot:
    """Return the snapshot of a file's content. Raises ConfigError if it is damaged or of another version."""
    return _FORMAT.decode(content, path, _snapshots.decode)
