"""Idempotent consuming: a message that comes again is not processed again.

Rule: the work and the record that it was done commit in one transaction, or neither does.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import inspect
import re
from collections.abc import Callable
from typing import Any, Literal

from rocketspark.client.arguments import names_arguments
from rocketspark.client.hooks import is_coroutine_function
from rocketspark.errors import UsageError
from rocketspark.model import ReceivedMessage
from rocketspark.protocol.message import properties
from rocketspark.recipes.database import KEY_CHARACTERS_MAX
from rocketspark.recipes.outbox_entries import KEY_PROPERTY
from rocketspark.recipes.seen_store import SeenStore

By = Literal["id", "key"] | Callable[[ReceivedMessage], str]
Listener = Callable[[Any, Any], Any]


class _Undo(Exception):
    """Raised when the listener returned False: the transaction is rolled back, and False returned."""


@names_arguments
def deduplicate(
    *, store: SeenStore | str, by: By = "id", scope: str = ""
) -> Callable[[Listener], Callable[[Any], Any]]:
    """Wrap a listener so that each message is processed once, however often it is delivered.

    The listener is called with what the consumer hands over, a message or a list of them, and a connection in the
    transaction that also records the ids: what it does with that connection is done once. A list holds only messages
    that are new; if none is, the listener is not called. If it raises or returns False, all is rolled back and the
    messages are delivered again. It neither commits nor rolls back itself. A plain function gets a `sqlite3.Connection`
    or a `psycopg.Connection`; a coroutine function a `psycopg.AsyncConnection`, or with SQLite a `sqlite3.Connection`.
    Two consumers that get one message at once: the second waits for the first, and has nothing to do if that commits.

    Args:
        store: where ids are recorded: a SeenStore, or the URL of a database for one with the defaults.
        by: what tells messages apart: "id", the producer's unique id, the same in every delivery of one send; "key",
            the message's only key, also the same if the application sends it again; or a function, see `outbox_key`.
        scope: ids are remembered apart for each scope: give groups that share a database different ones.

    >>> @consumer.listen
    ... @deduplicate(store=SeenStore("sqlite:///bank.db"), by="key", scope="billing")
    ... def pay(message, connection):
    ...     connection.execute("UPDATE account SET balance = balance - ? WHERE name = ?", read(message.body))
    """
    seen = SeenStore(store) if isinstance(store, str) else store
    id_of = _named(by) if isinstance(by, str) else by

    def wrap(listener: Listener) -> Callable[[Any], Any]:
        if is_coroutine_function(listener):
            return _wrap_coroutine(listener, seen, id_of, scope)
        return _wrap_function(listener, seen, id_of, scope)

    return wrap


def _wrap_function(
    listener: Listener, seen: SeenStore, id_of: Callable[[ReceivedMessage], str], scope: str
) -> Callable[[Any], Any]:
    @functools.wraps(listener)
    def call(given: Any) -> Any:
        firsts = _firsts(given, id_of)
        try:
            with seen.database.transaction() as connection:
                new = seen.record(connection, scope, firsts)
                result = listener(_only(given, firsts, new), connection) if new else None
                if result is False:
                    raise _Undo
                if inspect.isawaitable(result):
                    raise _no_coroutine(result)
        except _Undo:
            return False
        if seen.purge_is_due():
            seen.purge_some()
        return result

    del call.__wrapped__  # Its arguments are others.
    return call


def _wrap_coroutine(
    listener: Listener, seen: SeenStore, id_of: Callable[[ReceivedMessage], str], scope: str
) -> Callable[[Any], Any]:
    @functools.wraps(listener)
    async def call(given: Any) -> Any:
        firsts = _firsts(given, id_of)
        try:
            async with seen.database.transaction_async() as connection:
                new = await seen.record_async(connection, scope, firsts)
                result = await listener(_only(given, firsts, new), connection) if new else None
                if result is False:
                    raise _Undo
        except _Undo:
            return False
        if seen.purge_is_due():
            await asyncio.to_thread(seen.purge_some)
        return result

    del call.__wrapped__
    return call


def _no_coroutine(result: Any) -> UsageError:
    # It would do the message's work after its id was recorded, and outside the transaction.
    if hasattr(result, "close"):
        result.close()
    return UsageError("the listener is a plain function that returns a coroutine: make it an async def, wrappers too")


def _firsts(given: Any, id_of: Callable[[ReceivedMessage], str]) -> dict[str, ReceivedMessage]:
    """Return the first message of each id, in order."""
    firsts: dict[str, ReceivedMessage] = {}
    for message in given if isinstance(given, list) else [given]:
        firsts.setdefault(_short(id_of(message)), message)
    return firsts


def _only(given: Any, firsts: dict[str, ReceivedMessage], new: set[str]) -> Any:
    if not isinstance(given, list):
        return given
    return [message for i, message in firsts.items() if i in new]


def _short(text: str) -> str:
    if not isinstance(text, str) or not text:
        raise UsageError(f"{text!r} does not identify a message: a text that is not empty is needed")
    if len(text) <= KEY_CHARACTERS_MAX and _STORABLE.fullmatch(text):
        return text
    return "sha256:" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _unique_id(message: ReceivedMessage) -> str:
    # Without a producer's id, the broker's at first storing: a retry is stored anew.
    found = message.properties
    return found.get(properties.UNIQUE_ID) or found.get(properties.ORIGIN_MESSAGE_ID) or message.offset_message_id


def _only_key(message: ReceivedMessage) -> str:
    if len(message.keys) != 1:
        text = f"message {message.message_id} of topic {message.topic!r} has {len(message.keys)} keys"
        raise UsageError(f'{text}: by="key" needs exactly one; give a function that makes an id of a message')
    return f"{message.topic}/{message.keys[0]}"


def outbox_key(message: ReceivedMessage) -> str:
    """Return the key that an outbox was given with the message; without one its unique id. For `by`."""
    key = message.properties.get(KEY_PROPERTY)
    return f"{message.topic}/{key}" if key else _unique_id(message)


# Texts that every database takes: no 0x00, no half of a surrogate pair.
_STORABLE = re.compile("[^\x00\ud800-\udfff]*")
_BY: dict[str, Callable[[ReceivedMessage], str]] = {"id": _unique_id, "key": _only_key}


def _named(by: str) -> Callable[[ReceivedMessage], str]:
    if by not in _BY:
        raise UsageError(f'by={by!r}: "id", "key" or a function of the message is needed')
    return _BY[by]
