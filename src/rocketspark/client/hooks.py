"""Hooks: an application's calls around sends, consuming and requests, to observe or refuse them.

Rule: a hook that raises stops nothing, and is logged; only `check_forbidden` may refuse, by raising, and hooks of
requests are trusted (rule: SendMessageHook, ConsumeMessageHook, EndTransactionHook, CheckForbiddenHook, RPCHook, 5.x).
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec

from rocketspark import machine
from rocketspark.client.callbacks import in_thread, on_loop, passes_on
from rocketspark.client.message_batch import messages_given
from rocketspark.client.results import SendResult
from rocketspark.errors import ConfigError
from rocketspark.model import MessageQueue, ReceivedMessage
from rocketspark.model.text import shown
from rocketspark.protocol.message import properties
from rocketspark.transport.request_frames import Reply

log = logging.getLogger("rocketspark.client")
T = TypeVar("T")
sends_log = logging.getLogger("rocketspark.sends")

# Gets queues; a plain function, called in a thread, or a coroutine function.
OnQueues = Callable[[list[MessageQueue]], object]


class Sending(msgspec.Struct, kw_only=True):
    """One attempt of a send. `properties`, `body`: as they go out, compressed or a whole batch; a hook may change them.
    `address`: of the broker, connected or not; `notes`: for hooks, from before to after.

    `keys`: of the message, or of all messages of a batch; `region`, `trace_on`: what the broker's reply says.
    """

    group: str
    topic: str
    queue: MessageQueue
    address: str
    message_id: str
    properties: dict[str, str]
    body_bytes: int
    born_time_ms: int
    body: bytes = b""
    oneway: bool = False
    result: SendResult | None = None
    error: BaseException | None = None
    cost_ms: float = 0
    notes: dict[str, Any] = {}
    keys: str = ""
    region: str | None = None
    trace_on: bool = True


class Consuming(msgspec.Struct, kw_only=True):
    """One call of a listener. `success`: it took the messages; `error`: what it raised."""

    group: str
    messages: Sequence[ReceivedMessage]
    success: bool = True
    error: BaseException | None = None
    cost_ms: float = 0
    notes: dict[str, Any] = {}


class Ending(msgspec.Struct, kw_only=True, frozen=True):
    """The end of a transaction as the broker is told. `state`: COMMIT, ROLLBACK or UNKNOWN."""

    group: str
    topic: str
    address: str
    message_id: str
    transaction_id: str
    tag: str | None
    keys: str
    state: str
    from_check: bool


class Hooks:
    """Override what you need; give objects of it to a client as `hooks`."""

    def check_forbidden(self, sending: Sending) -> None:
        """Raise to refuse a send; the exception reaches the caller, and nothing is tried again."""

    def before_send(self, sending: Sending) -> None:
        """Before each attempt, and its connection; properties may be added and changed, and the body be another one."""

    def after_send(self, sending: Sending) -> None:
        """After each attempt, also one that failed or could not connect."""

    def after_end(self, ending: Ending) -> None:
        """After a broker was told how a transaction ended."""

    def before_consume(self, consuming: Consuming) -> None:
        """Before each call of a listener; in the listener's thread."""

    def after_consume(self, consuming: Consuming) -> None:
        """After each call of a listener, also a failed one; in the listener's thread."""

    def before_request(self, address: str, code: int, ext: dict[str, str], body: bytes) -> None:
        """Before each request to a server; `ext` may be added to."""

    def after_response(self, address: str, code: int, reply: Reply | None, error: BaseException | None) -> None:
        """After each reply, or error instead of it."""


_NAMES = [name for name in vars(Hooks) if not name.startswith("_")]


class LogSends(Hooks):
    """Logs each attempt of a send to "rocketspark.sends": its result and keys at INFO, a failure at WARNING.

    `log`: another logger.
    """

    def __init__(self, log: logging.Logger = sends_log) -> None:
        self._log = log

    def after_send(self, sending: Sending) -> None:
        """Log one line."""
        result, error = sending.result, sending.error
        level = logging.INFO if error is None else logging.WARNING
        if not self._log.isEnabledFor(level):
            return
        keys, tag = sending.keys, sending.properties.get(properties.TAGS, "")
        queue = f"{sending.queue.broker_name}/{sending.queue.queue_id}"
        what = f"topic={sending.topic} tag={tag} keys={keys!r} id={sending.message_id} queue={queue}"
        cost = f"cost_ms={sending.cost_ms:.1f}"
        if error is not None:
            self._log.log(level, "not sent: %s %s error=%s: %s", what, cost, type(error).__name__, shown(error))
        elif result is None:
            self._log.log(level, "sent one-way: %s", what)
        else:
            self._log.log(level, "sent: %s offset=%d status=%s %s", what, result.queue_offset, result.status, cost)


def hooked(
    listener: Callable[[Any], Any], group: str, hooks: Sequence[Hooks], loop: asyncio.AbstractEventLoop
) -> Callable[[Any], Any]:
    """Wrap a listener, a plain or a coroutine function, so that the hooks run around each of its calls.

    If a plain function returns an awaitable, it is awaited on `loop` before the hooks are told that the call ended.
    """

    @contextmanager
    def around(given: Any) -> Iterator[Consuming]:
        consuming = Consuming(group=group, messages=messages_given(given))
        for each in hooks:
            guarded(each.before_consume, consuming)
        began_s = machine.monotonic()
        try:
            yield consuming
        except BaseException as e:
            consuming.success, consuming.error = False, e
            raise
        finally:
            consuming.cost_ms = (machine.monotonic() - began_s) * 1000
            for each in hooks:
                guarded(each.after_consume, consuming)

    def call(given: Any) -> Any:
        with around(given) as consuming:
            returned = in_thread(listener(given), loop)
            consuming.success = returned is not False
            return returned

    async def call_coroutine(given: Any) -> Any:
        with around(given) as consuming:
            returned = await on_loop(await listener(given))
            consuming.success = returned is not False
            return returned

    return call_coroutine if is_coroutine_function(listener) else call


def is_coroutine_function(function: Callable[..., Any]) -> bool:
    """Tell whether a call of `function` returns an awaitable; it may also be a partial, or an object that can be
    called.
    """
    if inspect.isfunction(function) or inspect.ismethod(function):
        return inspect.iscoroutinefunction(function)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def is_overridden(hooks: Hooks, *names: str) -> bool:
    """Tell whether the class of `hooks` overrides one of the methods `names`."""
    return any(getattr(type(hooks), name) is not getattr(Hooks, name) for name in names)


class HookSet:
    """The hooks of a client, sorted by the calls that they override, so that a call without hooks costs nothing."""

    def __init__(self, hooks: Sequence[Hooks] = ()) -> None:
        for each in hooks:
            if not isinstance(each, Hooks):
                raise ConfigError(f"hooks: {each!r} is not an object of a class derived from client.hooks.Hooks")
            for name in _NAMES:
                method = getattr(each, name)
                if is_coroutine_function(method) or inspect.isgeneratorfunction(method):
                    raise ConfigError(f"hooks: {name} of {each!r} is an async def or holds a `yield`: it would not run")
        self.sends: list[Hooks] = []
        self.consumes: list[Hooks] = []
        self.ends: list[Hooks] = []
        self.requests: list[Hooks] = []
        for each in hooks:
            self.add(each)

    def add(self, hooks: Hooks) -> None:
        """Add the hooks of one object."""
        if is_overridden(hooks, "check_forbidden", "before_send", "after_send"):
            self.sends.append(hooks)
        if is_overridden(hooks, "before_consume", "after_consume"):
            self.consumes.append(hooks)
        if is_overridden(hooks, "after_end"):
            self.ends.append(hooks)
        if is_overridden(hooks, "before_request", "after_response"):
            self.requests.append(hooks)

    # The methods that the transport calls.

    def before_request(self, address: str, code: int, ext: dict[str, str], body: bytes) -> None:
        """Call the `before_request` of each of `requests`."""
        for hooks in self.requests:
            hooks.before_request(address, code, ext, body)

    def after_response(self, address: str, code: int, reply: Reply | None, error: BaseException | None) -> None:
        """Call the `after_response` of each of `requests`."""
        for hooks in self.requests:
            guarded(hooks.after_response, address, code, reply, error)


def guarded(hook: Callable[..., None], *arguments: Any) -> None:
    """Call a hook; what it raises is logged."""
    try:
        hook(*arguments)
    except BaseException as e:
        # A plain function: a CancelledError it raises is its own.
        if isinstance(e, (KeyboardInterrupt, GeneratorExit)):
            raise
        log.exception("a hook failed; it changes nothing")


async def call_with_queues(function: OnQueues, queues: list[MessageQueue]) -> None:
    """Call an application's function with queues that were taken or are given up; what it raises is logged."""
    await call_and_log(function, queues, "on_assigned, on_revoked or the callback of watch_queues")


async def call_and_log(function: Callable[[T], object], given: T, name: str) -> None:
    """Call an application's function, in a thread if it is a plain one; what it raises is logged, with its name."""
    try:
        returned = function(given) if is_coroutine_function(function) else await asyncio.to_thread(function, given)
        await on_loop(returned)
    except BaseException as e:
        if passes_on(e):
            raise
        log.exception("%s failed; the consumer goes on", name)
