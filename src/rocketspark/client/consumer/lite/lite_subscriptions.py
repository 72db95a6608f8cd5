"""The lite topics that one client reads, as the brokers of their parent topic are told.

Rule (LitePushConsumerImpl of the clients 5.2, LiteSubscriptionRegistryImpl, 5.5.0): a change is told at once to every
broker; all of them are told again every 30 s, and before the first pop over each connection: a broker keeps nothing
over a restart. A lite topic that a broker took away is not asked for again.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Callable, Sequence
from typing import Literal

from rocketspark.client import validators
from rocketspark.client.callbacks import Tasks, ends_loop, on_loop, passes_on
from rocketspark.client.connection import admin_api, lite_api
from rocketspark.client.connection.instance import Instance
from rocketspark.client.hooks import is_coroutine_function
from rocketspark.errors import RocketSparkError, ServerError, UsageError
from rocketspark.model.route import PERM_READ
from rocketspark.model.text import INT_MAX, LONG_MAX, whole_number
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.json.lite_bodies import (
    POLICY_MAX,
    POLICY_MIN,
    LiteAction,
    LiteSubscription,
    OffsetOption,
    OffsetOptionType,
)
from rocketspark.protocol.lite_topics import BIND_TOPIC, WILDCARD
from rocketspark.transport.peer import Peer

log = logging.getLogger("rocketspark.client")

AGAIN_S = 30.0
TROUBLE_S = 1.0
# The group's attribute, and what holds without it.
QUOTA, QUOTA_DEFAULT = "lite.sub.client.quota", 2000

Position = Literal["group", "first", "end"]
_POLICIES = {"first": POLICY_MIN, "end": POLICY_MAX}


def offset_option(position: Position, offset: int | None, tail_count: int | None) -> OffsetOption | None:
    """Return where a subscription begins, None for where the group was. Raises UsageError."""
    if (position != "group") + (offset is not None) + (tail_count is not None) > 1:
        raise UsageError("give one of position, offset and tail_count")
    for name, value in (("offset", offset), ("tail_count", tail_count)):
        if value is not None and (not isinstance(value, int) or not 0 <= value <= LONG_MAX):
            raise UsageError(f"{name} {value!r}: a whole number from 0 on is needed")
    if offset is not None:
        return OffsetOption(type=OffsetOptionType.OFFSET, value=offset)
    if tail_count is not None:
        return OffsetOption(type=OffsetOptionType.TAIL_N, value=tail_count)
    if position == "group":
        return None
    if position not in _POLICIES:
        raise UsageError(f"position {position!r} is not one of group, first, end")
    return OffsetOption(type=OffsetOptionType.POLICY, value=_POLICIES[position])


class LiteSubscriptions:
    """The subscriptions of one client: `name in subscriptions`. `topic`: the parent; `lost`: gets the name of one that
    a broker took away.
    """

    def __init__(self, instance: Instance, group: str, topic: str, lost: Callable[[str], object] | None) -> None:
        self._instance, self._group, self._topic = instance, group, topic
        self._lost = lost
        self.names: set[str] = set()
        # The group's wildcard: brokers give its clients all lite topics once they have told that they are there.
        self._reads_all = False
        self._sees_settings = True
        # Connections over which everything was told.
        self._told: weakref.WeakSet[Peer] = weakref.WeakSet()
        self._tasks = Tasks()

    def begin(self) -> None:
        """Begin to tell the brokers from time to time."""
        self._instance.asked.lite_losses[self._group] = self._taken_away
        self._tasks.begin(self._repeat())

    def __contains__(self, name: object) -> bool:
        return self._reads_all or name in self.names

    async def add(self, name: str, option: OffsetOption | None) -> None:
        """Subscribe to a lite topic, unless it is read already. Raises UsageError for a group of another topic,
        MessageIllegal, ServerError 2018 for one too many, what a broker raises, TransportError.
        """
        validators.check_lite_topic(name)
        if name in self.names:
            return
        brokers = await self._brokers()
        if len(self.names) >= (quota := await self._quota(brokers[0])):
            text = f"a client of group {self._group!r} subscribes to at most {quota} lite topics ({QUOTA})"
            raise ServerError(ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED, text)
        # Before the answer: messages may come sooner.
        self.names.add(name)
        try:
            told = await self._ask(brokers, LiteAction.PARTIAL_ADD, [name], option)
        except BaseException:
            self.names.discard(name)
            self._tasks.begin(self._take_back(brokers, name))
            raise
        failures = [result for result in told if result is not None]
        if failures:
            self.names.discard(name)
            # One that refused has nothing; one that did not answer may have taken it.
            took = [b for b, result in zip(brokers, told, strict=True) if not isinstance(result, ServerError)]
            await self._take_back(took, name)
            raise failures[0]

    async def remove(self, name: str) -> None:
        """End the subscription to a lite topic. Raises what a broker raises, TransportError."""
        if name in self.names:
            brokers = await self._brokers()
            # Before the answer: a repetition of everything that is on its way must not name it.
            self.names.discard(name)
            try:
                await self._tell(brokers, LiteAction.PARTIAL_REMOVE, [name])
            except BaseException:
                self.names.add(name)
                raise

    async def _take_back(self, brokers: Sequence[Peer], name: str) -> None:
        """End a subscription that not every broker took."""
        if name in self.names:
            return
        try:
            async with asyncio.timeout(TROUBLE_S):
                await self._tell(brokers, LiteAction.PARTIAL_REMOVE, [name])
        except (RocketSparkError, TimeoutError) as e:
            log.info("group %s: a broker forgets lite topic %s only in some minutes: %s", self._group, name, e)

    async def tell_once(self, broker: Peer) -> None:
        """Tell a broker of everything, if it was not yet over this connection: it may have been started again. Raises
        TransportError.
        """
        if broker in self._told or not (self.names or self._reads_all):
            return
        try:
            await self._tell([broker], LiteAction.COMPLETE_ADD, sorted(self.names))
        except ServerError as e:
            log.info("group %s: %s was not told of lite topics: %s", self._group, broker.address, e)
        self._told.add(broker)

    async def end(self, timeout_s: float) -> None:
        """Unsubscribe from everything, if the brokers answer in time."""
        for task in list(self._tasks):
            task.cancel()
        self._instance.asked.lite_losses.pop(self._group, None)
        if not self.names and not self._reads_all:
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self._tell(await self._brokers(), LiteAction.COMPLETE_REMOVE, [])
        except (RocketSparkError, TimeoutError) as e:
            log.info("group %s: brokers were not told that a consumer of lite topics left: %s", self._group, e)

    def _taken_away(self, name: str) -> None:
        if name not in self.names:
            return
        self.names.discard(name)
        log.info("group %s: lite topic %s is not read here any more", self._group, name)
        if self._lost is not None:
            self._tasks.begin(self._call(self._lost, name))

    async def _call(self, function: Callable[[str], object], name: str) -> None:
        try:
            await on_loop(
                function(name) if is_coroutine_function(function) else await asyncio.to_thread(function, name)
            )
        except BaseException as e:
            if passes_on(e):
                raise
            log.exception("on_lost failed; the consumer goes on")

    async def _repeat(self) -> None:
        while True:
            wait_s = AGAIN_S
            try:
                await self._tell_all()
            except BaseException as e:
                if ends_loop(e):
                    raise
                wait_s = TROUBLE_S
                if self.names or self._reads_all:
                    text = "group %s: brokers were not told of lite topics, again in %g s: %s"
                    log.info(text, self._group, wait_s, e)
            await asyncio.sleep(wait_s)

    async def _tell_all(self) -> None:
        """Tell the brokers of everything that is read, if anything is, or was because of a wildcard."""
        brokers, had_all = await self._brokers(), self._reads_all
        if self._sees_settings:
            try:
                config = await admin_api.group_config(brokers[0], self._group, timeout_ms=self._instance.timeout_ms)
                self._reads_all = config is not None and WILDCARD in config.attributes
            except ServerError as e:
                # Brokers keep an account of what they refuse: one line of it is enough.
                self._sees_settings = not e.no_permission
        if self.names or self._reads_all or had_all:
            await self._tell(brokers, LiteAction.COMPLETE_ADD, sorted(self.names))
            self._told.update(brokers)

    async def _brokers(self) -> list[Peer]:
        """Return the connections to all brokers that the topic is read from. Raises RouteNotFound, TransportError."""
        routes = self._instance.routes
        route = await routes.get(self._topic)
        names = sorted({q.broker_name for q in route.queues if q.perm & PERM_READ and q.read_queue_count})
        found = [address for name in names if (address := routes.readable(name)) is not None]
        if not found:
            raise ServerError(ResponseCode.TOPIC_NOT_EXIST, f"topic {self._topic!r} has no broker to be read from")
        return [await self._instance.broker(address) for address in found]

    async def _quota(self, broker: Peer) -> int:
        """Return how many lite topics the client may have. Raises UsageError for a group that reads others, or all."""
        try:
            config = await admin_api.group_config(broker, self._group, timeout_ms=self._instance.timeout_ms)
        except ServerError as e:
            if not e.no_permission:
                raise
            # Who may subscribe may not always see settings; the broker refuses pops for a group of another topic.
            return QUOTA_DEFAULT
        if config is None or config.attributes.get(BIND_TOPIC) != self._topic:
            raise UsageError(
                f"group {self._group!r} does not read the lite topics of {self._topic!r}: give it the attribute"
                f" {BIND_TOPIC}={self._topic}"
            )
        if WILDCARD in config.attributes:
            text = f"group {self._group!r} reads all lite topics of {self._topic!r} by itself ({WILDCARD})"
            raise UsageError(text)
        given = whole_number(config.attributes.get(QUOTA), high=INT_MAX)
        return QUOTA_DEFAULT if given is None else given

    async def _tell(
        self, brokers: Sequence[Peer], action: LiteAction, names: list[str], option: OffsetOption | None = None
    ) -> None:
        for result in await self._ask(brokers, action, names, option):
            if result is not None:
                raise result

    async def _ask(
        self, brokers: Sequence[Peer], action: LiteAction, names: list[str], option: OffsetOption | None = None
    ) -> list[BaseException | None]:
        """Tell brokers of a change; return what each failed with, None for one that took it."""
        change = LiteSubscription(
            action=action,
            client_id=self._instance.client_id,
            group=self._group,
            topic=self._topic,
            lite_topic_set=names,
            offset_option=option,
        )
        timeout_ms = self._instance.timeout_ms
        calls = (lite_api.subscribe(broker, change, timeout_ms=timeout_ms) for broker in brokers)
        return await asyncio.gather(*calls, return_exceptions=True)
