"""Topics created on brokers, or changed there, for programs and operators.

Rule: what is not named stays as it is, and queues that hold messages are not taken away unless that is asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from rocketspark.client.connection import admin_api, client_api
from rocketspark.client.connection.topic_routes import RouteCache
from rocketspark.errors import RouteNotFound, ServerError, TransportError, UsageError
from rocketspark.model import MessageQueue
from rocketspark.model.route import DEFAULT_QUEUE_COUNT
from rocketspark.protocol import light_queues
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.json.bodies import TopicConfig
from rocketspark.transport.peer import Peer

QUEUE_COUNT_MAX = 1024
PERMS = (2, 4, 6)
# Brokers before 5.0 do not tell a topic's settings, others only to those who may read them: its route tells most.
_UNTOLD = ResponseCode.REQUEST_CODE_NOT_SUPPORTED


class TopicChange(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be set on a topic; None keeps it, a new topic gets RocketMQ's default. `attributes`: "+name=value"."""

    read_queue_count: int | None = None
    write_queue_count: int | None = None
    perm: int | None = None
    order: bool | None = None
    topic_sys_flag: int | None = None
    attributes: str = ""

    def __post_init__(self) -> None:
        for count in (self.read_queue_count, self.write_queue_count):
            if count is not None and (type(count) is not int or not 1 <= count <= QUEUE_COUNT_MAX):
                raise UsageError(f"queue_count {count!r} must be a whole number from 1 to {QUEUE_COUNT_MAX}")
        if self.perm not in (None, *PERMS):
            raise UsageError(f"perm {self.perm!r} must be one of 2 (write), 4 (read), 6 (both)")

    def over(self, known: TopicConfig) -> TopicConfig:
        """Return a topic's settings `known` with these changes, but with its attributes as they were: the broker
        changes those itself.
        """

        def pick(named: int | None, kept: int) -> int:
            return kept if named is None else named

        return msgspec.structs.replace(
            known,
            read_queue_nums=pick(self.read_queue_count, known.read_queue_nums),
            write_queue_nums=pick(self.write_queue_count, known.write_queue_nums),
            perm=pick(self.perm, known.perm),
            order=known.order if self.order is None else self.order,
            topic_sys_flag=pick(self.topic_sys_flag, known.topic_sys_flag),
        )


class TopicPut(msgspec.Struct, frozen=True):
    """A topic as it is now on one broker. `existed`: it was there before; `changed`: something differs now."""

    existed: bool
    changed: bool
    read_queue_count: int


async def put_topic(
    topic: str,
    change: TopicChange,
    masters: Mapping[str, str],
    broker: Callable[[str], Awaitable[Peer]],
    routes: RouteCache,
    *,
    force: bool,
    timeout_ms: float = client_api.TIMEOUT_MS,
) -> dict[str, TopicPut | TransportError]:
    """Create the topic on `masters` (addresses by name), or change it there: what came of it, by name.

    All are looked at before the first is changed. Raises UsageError for a light queue, and where queues that hold
    messages would go and `force` is not given, ServerError.
    """
    if topic.startswith(light_queues.NAME_PREFIX):
        raise UsageError(f"{topic!r} is a light queue: the first message that names it makes it")

    async def look(name: str, address: str) -> tuple[Peer, TopicConfig | None] | TransportError:
        try:
            peer = await broker(address)
            known = await _known(peer, topic, name, routes, timeout_ms)
            if known is not None and not force:
                await _check_hidden(peer, name, known, change.over(known), timeout_ms)
        except TransportError as e:
            return e
        return peer, known

    async def put(found: tuple[Peer, TopicConfig | None] | TransportError) -> TopicPut | TransportError:
        if isinstance(found, TransportError):
            return found
        peer, known = found
        new = TopicConfig(topic_name=topic, read_queue_nums=DEFAULT_QUEUE_COUNT, write_queue_nums=DEFAULT_QUEUE_COUNT)
        config = change.over(known or new)
        changed = known is None or config != known or not _has(known, change.attributes)
        try:
            if changed:
                await admin_api.create_topic(peer, config, attributes=change.attributes, timeout_ms=timeout_ms)
        except TransportError as e:
            return e
        return TopicPut(known is not None, changed, config.read_queue_nums)

    looked = await asyncio.gather(*(look(*master) for master in masters.items()))
    # One after the other, so that the NameServer hears of them in this order.
    return {name: await put(found) for name, found in zip(masters, looked, strict=True)}


def _has(known: TopicConfig, attributes: str) -> bool:
    """Tell whether a topic has these attributes already."""
    for part in filter(None, map(str.strip, attributes.split(","))):
        name, _, value = part.removeprefix("+").partition("=")
        if part[0] == "-" or known.attributes.get(name) != value:
            return False
    return True


async def _known(peer: Peer, topic: str, name: str, routes: RouteCache, timeout_ms: float) -> TopicConfig | None:
    try:
        return await admin_api.topic_settings(peer, topic, timeout_ms=timeout_ms)
    except ServerError as e:
        if not e.no_permission and e.code != _UNTOLD:
            raise
    try:
        queues = (await routes.refresh(topic)).queues
    except RouteNotFound:
        return None
    return next(
        (
            TopicConfig(
                topic_name=topic,
                read_queue_nums=q.read_queue_count,
                write_queue_nums=q.write_queue_count,
                perm=q.perm,
                topic_sys_flag=q.topic_sys_flag,
            )
            for q in queues
            if q.broker_name == name
        ),
        None,
    )


async def _check_hidden(peer: Peer, name: str, known: TopicConfig, wanted: TopicConfig, timeout_ms: float) -> None:
    going = [MessageQueue(known.topic_name, name, i) for i in range(wanted.read_queue_nums, known.read_queue_nums)]
    ends = await asyncio.gather(
        *(client_api.max_offset(peer, queue, timeout_ms=timeout_ms) for queue in going),
        *(client_api.min_offset(peer, queue, timeout_ms=timeout_ms) for queue in going),
    )
    held = [high - low for high, low in zip(ends[: len(going)], ends[len(going) :], strict=True) if high > low]
    if held:
        raise UsageError(
            f"topic {known.topic_name!r} has {known.read_queue_nums} queues on {name}, and with"
            f" {wanted.read_queue_nums} nobody could read the {sum(held)} message(s) in {len(held)} of the others:"
            " keep as many, or say that they may be hidden with force=True (--force)"
        )
