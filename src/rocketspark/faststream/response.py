"""What a handler returns or an application publishes, with RocketMQ's fields."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, TypedDict

from faststream.response import BatchPublishCommand, PublishCommand, PublishType, Response

from rocketspark.model import ReceivedMessage

# How long a request waits for its reply, if nothing else is said.
REQUEST_S = 3.0


class PublishOptions(TypedDict, total=False):
    """The arguments of publishes and requests, besides body and topic.

    tag, keys: what subscribers filter and operators search by.
    sharding_key: messages of one keep their order.
    delay_ms: how much later it is delivered.
    deliver_at: when it is delivered: a datetime, or ms since 1970.
    headers: the message's properties; values become texts. content-type and correlation_id are added.
    correlation_id: an id that the message shares with its reply and with what handlers publish; None: a new one.
    reply_to: the topic to which the handler's result is published.
    timeout: seconds, over all attempts, of a request for its reply too; None: the producer's.
    """

    tag: str | None
    keys: str | Sequence[str]
    sharding_key: str | None
    delay_ms: int
    deliver_at: datetime | int | None
    headers: dict[str, Any] | None
    correlation_id: str | None
    reply_to: str
    timeout: float | None


class RocketResponse(Response):
    """A body to publish with RocketMQ's fields (see PublishOptions): returned by a handler, or one of a batch."""

    def __init__(
        self,
        body: Any,
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        tag: str | None = None,
        keys: str | Sequence[str] = (),
        sharding_key: str | None = None,
        delay_ms: int = 0,
        deliver_at: datetime | int | None = None,
    ) -> None:
        super().__init__(body, headers=headers, correlation_id=correlation_id)
        self.tag = tag
        self.keys = keys
        self.sharding_key = sharding_key
        self.delay_ms = delay_ms
        self.deliver_at = deliver_at

    def get_publish_key(self) -> Any | None:
        """Return the sharding key."""
        return self.sharding_key

    def as_publish_command(self) -> RocketPublishCommand:
        """Return the command that publishes it, without a topic."""
        return RocketPublishCommand(
            self.body,
            headers=self.headers,
            correlation_id=self.correlation_id,
            tag=self.tag,
            keys=self.keys,
            sharding_key=self.sharding_key,
            delay_ms=self.delay_ms,
            deliver_at=self.deliver_at,
            _publish_type=PublishType.PUBLISH,
        )


class RocketPublishCommand(BatchPublishCommand):
    """What the producer is to publish, as middlewares see and change it. `destination`: the topic; `timeout`: in
    seconds, None for the producer's; `request`: the received message that it replies to.
    """

    def __init__(
        self,
        message: Any,
        /,
        *messages: Any,
        topic: str = "",
        tag: str | None = None,
        keys: str | Sequence[str] = (),
        sharding_key: str | None = None,
        delay_ms: int = 0,
        deliver_at: datetime | int | None = None,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        timeout: float | None = None,
        _publish_type: PublishType,
    ) -> None:
        super().__init__(
            message,
            *messages,
            destination=topic,
            headers=headers,
            correlation_id=correlation_id,
            reply_to=reply_to,
            _publish_type=_publish_type,
        )
        self.tag = tag
        self.keys = keys
        self.sharding_key = sharding_key
        self.delay_ms = delay_ms
        self.deliver_at = deliver_at
        self.timeout = timeout
        self.request: ReceivedMessage | None = None

    @classmethod
    def from_cmd(cls, cmd: PublishCommand, *, batch: bool = False) -> RocketPublishCommand:
        """Make one of any broker's command. `batch`: a sequence as body is several bodies."""
        if isinstance(cmd, RocketPublishCommand):
            if batch and not cmd.extra_bodies:
                cmd.body, cmd.extra_bodies = cls._parse_bodies(cmd.body, batch=True)
            return cmd
        body, more = cls._parse_bodies(cmd.body, batch=batch)
        return cls(
            body,
            *more,
            topic=cmd.destination,
            headers=cmd.headers,
            correlation_id=cmd.correlation_id,
            reply_to=cmd.reply_to,
            _publish_type=cmd.publish_type,
        )


def command(
    kind: PublishType, new_id: Callable[[], str], *messages: Any, topic: str, options: PublishOptions
) -> RocketPublishCommand:
    """Return the command of a publish or request. Raises TypeError for an option that there is not."""
    options["correlation_id"] = options.get("correlation_id") or new_id()
    return RocketPublishCommand(*messages, topic=topic, _publish_type=kind, **options)


def at_ms(when: datetime | int | None) -> int:
    """Return a time in ms since 1970, 0 for none. A datetime without a zone is this machine's."""
    if isinstance(when, datetime):
        return int(when.timestamp() * 1000)
    return when or 0
