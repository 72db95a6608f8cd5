"""Every exception of RocketSpark, in one tree.

    RocketSparkError
      UsageError            the caller asked for something that cannot be: mend the call
        MessageIllegal        topic, group, body or properties break RocketMQ's rules
        FilterIllegal         a filter expression that cannot be compiled (`position`)
        ConfigError           a setting or address that cannot be used
        StateError            used before start or after close
      ProtocolError         bytes that are not what they should be
        FrameError            a frame: too large, truncated, header unreadable
        RecordError           a stored record: size, magic or CRC wrong
        BodyUndecodable       a body that is not what it is to be decoded as
      TransportError        no reply could be had (`retriable`)
        NotSent               the request never left this process
          NoNameServer          no NameServer answers
          TooManyInFlight       too much is in flight already
        NoReply               sent, but no reply in time: it may have been carried out
          RequestTimedOut       no consumer replied to a request in time
        ConnectionLost        the connection ended before the reply: it may have been carried out
      ServerError           a server replied with a code other than success
        RouteNotFound         the NameServer knows no broker for the topic
          BrokerNotFound        the topic has no broker of that name
      SendFailed            a send gave up after its attempts
      ReceiptExpired        a message that was received is visible again: another receive gets it
      StoreError            the message store cannot do it
        StoreFull             no room on the disk
        StoreLocked           another process has the directory
        StoreUnwritable       a directory or file that cannot be written
        NotMaster             the store holds a copy of another broker's log
        ReplicationError      another broker's log that does not continue this one (`reason`)
      MessageStays          a due message cannot leave this broker now: it is tried again
      RegistryFailed        a schema registry did not give a schema
        SchemaUnknown         it has none of this id, subject or version
        RegistryRefused       it refuses, or its answer is none of a registry's
        RegistryAway          it did not answer in its time
      DatabaseFailed        the database of an outbox, seen ids or a catalog does not answer or refuses (`retriable`)

Rule: every error says what to do next, and `retriable` says whether trying again can help. Each comes out of another
process (pickle) or a copy as it was: text, facts and cause.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, Self


class RocketSparkError(Exception):
    """Base of all errors raised by RocketSpark. `retriable`: trying again may help."""

    retriable: bool = False

    @property
    def no_permission(self) -> bool:
        """True if a server refused it, as the sender may not do what it asked for."""
        return False

    def __reduce__(self) -> tuple[Any, ...]:
        # Made anew without `__init__`, whose arguments are others than the text. The state is set by attribute.
        state = {**self.__dict__, "__suppress_context__": self.__suppress_context__}
        if self.__cause__ is not None:
            state["__cause__"] = _portable(self.__cause__)
        return _bare, (type(self), *self.args), state

    def __copy__(self) -> Self:
        made = self.__new__(type(self), *self.args)
        made.__dict__.update(self.__dict__)
        made.__cause__, made.__suppress_context__ = self.__cause__, self.__suppress_context__
        return made.with_traceback(self.__traceback__)


def _bare(kind: type[RocketSparkError], *args: Any) -> RocketSparkError:
    return kind.__new__(kind, *args)


def _portable(cause: BaseException) -> BaseException:
    """Return a cause that can go to another process: itself, or its text, as libraries' errors often cannot."""
    if isinstance(cause, RocketSparkError):
        return cause
    try:
        if type(pickle.loads(pickle.dumps(cause))) is type(cause):
            return cause
    except Exception:
        pass
    return RocketSparkError(f"{type(cause).__name__}: {cause}")


class UsageError(RocketSparkError, ValueError):
    """The call cannot be carried out as asked; the message says how to mend it."""


class MessageIllegal(UsageError):
    """A topic, group, body or property set that breaks RocketMQ's rules."""

    def __init__(self, message: str, *, topic: str | None = None) -> None:
        super().__init__(message)
        self.topic = topic


class FilterIllegal(UsageError):
    """A filter expression that cannot be compiled. `position`: offset of the mistake in characters, from 0."""

    def __init__(self, message: str, *, position: int = 0) -> None:
        super().__init__(message)
        self.position = position


class ConfigError(UsageError):
    """A setting, address or file that cannot be used as given."""


class LogMissing(ConfigError):
    """The disk of a store's log is not there, or another one."""


class StateError(UsageError):
    """A client or a server was used before its `start` or after its `close`."""


class ProtocolError(RocketSparkError):
    """Bytes that do not follow the protocol or the disk format."""


class FrameError(ProtocolError):
    """A frame that is oversize, truncated or has an unreadable header."""


class RecordError(ProtocolError):
    """A log record whose size, magic number, CRC or fields are wrong."""


class BodyUndecodable(ProtocolError):
    """A message's body that is not what it is to be decoded as."""


class TransportError(RocketSparkError):
    """No reply could be had from a server. `address`: "host:port" of it; `code`: RocketMQ's ClientErrorCode."""

    retriable = True
    code = 10001

    def __init__(self, message: str, *, address: str = "") -> None:
        super().__init__(message)
        self.address = address

    @property
    def client_code(self) -> int:
        """RocketMQ's ClientErrorCode."""
        return self.code


class NotSent(TransportError):
    """The request never left this process: it was certainly not carried out."""


class NoNameServer(NotSent):
    """No NameServer answers, and nothing is known from before."""

    code = 10004


class TooManyInFlight(NotSent):
    """No room for one more request within its time: too much is in flight."""

    code = 10002


class NoReply(TransportError):
    """The request was sent but not answered in time: it may have been carried out."""

    code = 10002


class RequestTimedOut(NoReply):
    """A message sent with `request` is stored, but no reply to it came in time."""

    code = 10006


class ConnectionLost(TransportError):
    """The connection ended before the reply: the request may have been carried out."""


# How refusals of access control 1.0 begin, with the code that RocketMQ has for whatever failed.
_ACL_EXCEPTION = "org.apache.rocketmq.acl.common.AclException"
# What brokers with access control on say (1.0, and 2.0 of 5.3 and later), and what mends it.
_ACCESS_HINTS = (
    ("username cannot be null", "the broker wants signed requests: give access_key and secret_key"),
    (f"{_ACL_EXCEPTION}: No accessKey", "the broker wants signed requests: give access_key and secret_key"),
    ("check signature failed", "secret_key is not the one of this access_key"),
    (f"{_ACL_EXCEPTION}: Check signature failed", "secret_key is not the one of this access_key"),
    ("User:", "the broker knows the user by the name given as access_key: check it, and what he may do"),
    # What brokers say of users and rules where they keep none.
    ("An system error occurred", "a broker without access control has no users and rules: start it with --secure"),
)


def is_no_permission(code: int, remark: str | None) -> bool:
    """Tell whether a response says that the sender may not do what it asked for: by code 16, or as access control 1.0
    says it.
    """
    return code == 16 or (remark or "").startswith(_ACL_EXCEPTION)


class ServerError(RocketSparkError):
    """A server replied with a code other than success.

    `code`: the response code (see `protocol.codes.ResponseCode`); `remark`: the server's text;
    `address`: who replied; `retriable`: from the code table.
    """

    def __init__(
        self, code: int, remark: str | None, *, address: str = "", doing: str = "", retriable: bool = False
    ) -> None:
        what = f"{doing}: " if doing else ""
        where = f" from {address}" if address else ""
        hint = next((f" ({text})" for found, text in _ACCESS_HINTS if (remark or "").startswith(found)), "")
        super().__init__(f"{what}code {code}{where}: {remark or 'no remark'}{hint}")
        self.code = code
        self.remark = remark or ""
        self.address = address
        self.retriable = retriable

    @property
    def no_permission(self) -> bool:
        """True if the sender may not do what it asked for: the code is 16, or access control 1.0 refused it."""
        return is_no_permission(self.code, self.remark)


class RouteNotFound(ServerError):
    """The NameServer knows no broker that has the topic. `client_code`: RocketMQ's ClientErrorCode."""

    client_code = 10005

    def __init__(self, topic: str, *, remark: str | None = None, address: str = "") -> None:
        super().__init__(
            17,
            remark or _no_route(topic),
            address=address,
            doing=f"route of topic {topic!r}",
            retriable=True,
        )
        self.topic = topic


def _no_route(topic: str) -> str:
    if topic.startswith("%LMQ%"):
        return f"{topic!r} is a light queue, which has no route: a consumer reads it by `assign`, no command does"
    return f"no route for topic {topic!r}; create it, or check the NameServer address and that a broker is up"


class BrokerNotFound(RouteNotFound):
    """A queue names a broker that no route of its topic knows."""

    client_code = 10003


class SendFailed(RocketSparkError):
    """A send gave up.

    `topic`; `attempts`: how many were made; `brokers`: names tried in order; `cost_ms`: time spent in all.
    `__cause__` is the error of the last attempt; `code` its response code, or RocketMQ's ClientErrorCode if no server
    replied (10001 no connection, 10002 no reply in time, 10003 no such broker); `remark` the server's text.
    """

    def __init__(
        self, topic: str, cause: BaseException, *, attempts: int, brokers: tuple[str, ...], cost_ms: float
    ) -> None:
        super().__init__(
            f"send to topic {topic!r} failed after {attempts} attempt(s) on {', '.join(brokers) or 'no broker'}"
            f" in {cost_ms:.0f} ms: {cause}"
        )
        self.topic = topic
        self.attempts = attempts
        self.brokers = brokers
        self.cost_ms = cost_ms
        self.code: int | None = getattr(cause, "client_code", getattr(cause, "code", None))
        self.remark: str = getattr(cause, "remark", "")
        self.retriable = bool(getattr(cause, "retriable", False))
        self.__cause__ = cause


class ReceiptExpired(RocketSparkError):
    """A message's invisible time is over: its receipt handle is worth nothing, and it comes again.

    `message_id`; `invisible_ms`: for how long it was invisible; `late_ms`: since when it is not.
    """

    def __init__(self, message_id: str, invisible_ms: int, late_ms: float) -> None:
        super().__init__(
            f"message {message_id} was invisible for {invisible_ms} ms and is visible again since {late_ms:.0f} ms: it"
            " comes again; receive with a longer invisible_ms, or call change_invisible_time before it is over"
        )
        self.message_id = message_id
        self.invisible_ms = invisible_ms
        self.late_ms = late_ms


class StoreError(RocketSparkError):
    """The message store cannot do what was asked."""


class StoreFull(StoreError):
    """No room left: the disk, or a configured bound."""

    def __init__(self, message: str, *, needed_bytes: int = 0, free_bytes: int = 0) -> None:
        super().__init__(message)
        self.needed_bytes = needed_bytes
        self.free_bytes = free_bytes


class StoreLocked(StoreError):
    """Another process holds the store directory."""


class StoreUnwritable(StoreError):
    """The store stopped writing: a directory or file that cannot be written, or a failed flush.

    `retriable`: nothing is lost and it may go on by itself (no file descriptor was free).
    """

    def __init__(self, message: str, *, retriable: bool = False) -> None:
        super().__init__(message)
        self.retriable = retriable


class NotMaster(StoreError):
    """The store holds a copy of another broker's log: messages are taken by the master alone."""

    retriable = True


class ReplicationError(StoreError):
    """Another broker's log that does not continue this one, or a place that is none of its records'.

    `reason`: one word that it is counted by.
    """

    def __init__(self, message: str, *, reason: str = "diverged") -> None:
        super().__init__(message)
        self.reason = reason


class MessageStays(RocketSparkError):
    """A due message stays where it is for now: no master of this name, and no other broker that has it yet.

    `when_ended`: given a callback, it is called once the way to another broker has ended; None if none is under way.
    """

    retriable = True

    def __init__(self, message: str, when_ended: Callable[[Callable[[], None]], None] | None = None) -> None:
        super().__init__(message)
        self.when_ended = when_ended

    def __reduce__(self) -> tuple[Any, ...]:
        made, args, state = super().__reduce__()
        return made, args, state | {"when_ended": None}  # It is of this process.


class RegistryFailed(RocketSparkError):
    """A schema registry did not give a schema."""


class SchemaUnknown(RegistryFailed):
    """The registry has no schema of this id, subject or version."""


class RegistryRefused(RegistryFailed):
    """The registry refuses, or its answer is none of a schema registry's."""


class RegistryAway(RegistryFailed):
    """The registry did not answer in its time."""


class DatabaseFailed(RocketSparkError):
    """The database of an outbox, of seen ids or of a table catalog does not answer, refuses, or is locked too long."""

    retriable = True
