"""The states of a send and the events that lead from one to another, as a table, by which `in_flight_send` and
`send_attempts` change the state.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class State(StrEnum):
    """The states of a send."""

    PREPARED = "prepared"  # It is made, and not begun.
    WAITING = "waiting"  # For room, its key, its batch, a route or a connection.
    SENT = "sent"  # It is written, and its reply is awaited.
    ANSWERED = "answered"  # Its reply is here.
    RETRIED = "retried"  # An attempt failed, and another is made.
    DONE = "done"  # Its caller is told.


class Event(StrEnum):
    """The events that move a send from one state to another."""

    WAIT = "wait"
    WRITE = "write"
    REPLY = "reply"
    FAIL = "fail"  # This attempt; the send goes on.
    END = "end"  # With a result, or with an error.


TRANSITIONS: Mapping[State, Mapping[Event, State]] = {
    State.PREPARED: {Event.WAIT: State.WAITING, Event.WRITE: State.SENT, Event.END: State.DONE},
    State.WAITING: {
        Event.WAIT: State.WAITING,
        Event.WRITE: State.SENT,
        Event.FAIL: State.RETRIED,  # No connection could be had.
        Event.END: State.DONE,
    },
    State.SENT: {Event.REPLY: State.ANSWERED, Event.FAIL: State.RETRIED, Event.END: State.DONE},
    State.ANSWERED: {Event.FAIL: State.RETRIED, Event.END: State.DONE},
    State.RETRIED: {Event.WRITE: State.SENT, Event.END: State.DONE},
    State.DONE: {},
}


def _after(event: Event) -> Mapping[State, State]:
    return {state: row[event] for state, row in TRANSITIONS.items() if event in row}


# The table's columns: by state, the next. A move is `send.state = AFTER_…[send.state]`: a KeyError if it is not in the
# table.
AFTER_WAIT = _after(Event.WAIT)
AFTER_WRITE = _after(Event.WRITE)
AFTER_REPLY = _after(Event.REPLY)
AFTER_FAIL = _after(Event.FAIL)
AFTER_END = _after(Event.END)
