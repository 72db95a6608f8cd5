"""What a group of controllers agrees on: the entries of its log, the state that they make, and the snapshot. Pure.

Rule: an entry names the version of the state on which it was decided, and changes nothing if it meets another state:
whoever decided it did not know of a change that came before it. All members see that alike."""

from __future__ import annotations

import functools

import msgspec

from rocketspark.controller.headed_content import HeadedFormat
from rocketspark.controller.replica_sets import Event, Looked, Sets, apply

# What the changes of one entry may take.
ENTRY_BYTES_MAX = 1 << 19


class State(msgspec.Struct, frozen=True):
    """What a controller knows. `version`: counts changes; `looked`: by broker name, the last `Looked` of its master."""

    version: int = 0
    sets: Sets = {}
    looked: dict[str, Looked] = {}


class Entry(msgspec.Struct, frozen=True):
    """One entry of the log. `base`: the version of the state that it was decided on.

    An entry without events shows, once it is agreed on, that whoever proposed it led and knew all entries before it.
    """

    base: int
    events: tuple[Event, ...] = ()
    looked: tuple[Looked, ...] = ()


def advance(state: State, events: tuple[Event, ...], looked: tuple[Looked, ...]) -> State:
    """Return the state after these changes; it is the same, with the same `version`, if there are none."""
    if not events and not looked:
        return state
    sets = functools.reduce(apply, events, state.sets)
    seen = state.looked | {each.broker_name: each for each in looked}
    return State(state.version + 1, sets, {name: each for name, each in seen.items() if name in sets})


def applied(state: State, entry: Entry) -> State | None:
    """Return the state after an entry; None if the entry was decided on another version of the state."""
    return advance(state, entry.events, entry.looked) if entry.base == state.version else None


def encode_entry(entry: Entry) -> bytes:
    """Return an entry's bytes."""
    return msgspec.msgpack.encode(entry)


_entries = msgspec.msgpack.Decoder(Entry)


def decode_entry(content: bytes) -> Entry:
    """Return the entry of these bytes. Raises msgspec.DecodeError."""
    return _entries.decode(content)


class LogEntry(msgspec.Struct, frozen=True, array_like=True):
    """An entry as the library's log holds it: its bytes, index and term."""

    command: bytes
    index: int
    term: int


class Snapshot(msgspec.Struct, frozen=True):
    """The state after the entry `last`, and the members of the group then; `previous`: the entry before `last`."""

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
