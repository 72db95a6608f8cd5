"""SyncLiteSubscription: which lite topics a client reads, told to the brokers of their parent topic, and back to the
client what a broker takes from it.

Rule (ClientActivity, ClientProcessor, 5.5.0): nothing is kept here but that a client has subscribed: brokers keep it,
and clients say it anew every 30 s, so a proxy or a broker that was started again knows it by then. Each change goes to
all brokers of the topic; a client that is gone is taken out at once.
"""

from __future__ import annotations

import asyncio
from typing import Any

from rocketspark import machine
from rocketspark.client.callbacks import Tasks
from rocketspark.client.connection import lite_api
from rocketspark.errors import RocketSparkError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.model.route import PERM_READ
from rocketspark.model.text import shown
from rocketspark.protocol.headers import NotifyUnsubscribeLiteHeader, Request
from rocketspark.protocol.json.lite_bodies import (
    POLICY_LAST,
    POLICY_MAX,
    POLICY_MIN,
    LiteAction,
    LiteSubscription,
    OffsetOption,
    OffsetOptionType,
)
from rocketspark.proxy.brokers import Brokers
from rocketspark.proxy.call import Call
from rocketspark.proxy.checks import check_bound_topic, check_lite_topic, checked_group, checked_topic, lite_quota
from rocketspark.proxy.clients import Clients, ProxyClient
from rocketspark.proxy.settings import ProxySettings
from rocketspark.proxy.wire import messages
from rocketspark.proxy.wire.enumerations import ClientType, Code
from rocketspark.proxy.wire.statuses import Refused, status
from rocketspark.transport.peer import Peer

log = LimitedLog("rocketspark.proxy")

TIMEOUT_MS = 2000.0
# A request may name so many more than the quota: clients that meet it are told by themselves.
QUOTA_SPARE = 300
# By their numbers on the wire.
ACTIONS = (LiteAction.PARTIAL_ADD, LiteAction.PARTIAL_REMOVE, LiteAction.COMPLETE_ADD, LiteAction.COMPLETE_REMOVE)
POLICIES = (POLICY_LAST, POLICY_MIN, POLICY_MAX)
_TYPES = {
    "offset": OffsetOptionType.OFFSET,
    "tail_n": OffsetOptionType.TAIL_N,
    "timestamp": OffsetOptionType.TIMESTAMP,
}


class LiteSubscriptions:
    """Serves the SyncLiteSubscription calls of one proxy, and what brokers tell of subscriptions."""

    def __init__(self, settings: ProxySettings, brokers: Brokers, clients: Clients) -> None:
        self._settings, self._brokers, self._clients = settings, brokers, clients
        self._second, self._count = 0, 0
        self._tasks = Tasks()

    async def sync(self, call: Call, request: Any) -> Any:
        """Serve SyncLiteSubscription. Raises Refused, RocketSparkError."""
        topic, group = checked_topic(request.topic.name), checked_group(request.group.name)
        if not 0 <= request.action < len(ACTIONS):
            raise Refused(Code.BAD_REQUEST, f"action {request.action}: only 0 to {len(ACTIONS) - 1} are known")
        action = ACTIONS[request.action]
        names = list(dict.fromkeys(request.lite_topic_set))
        if action is LiteAction.PARTIAL_ADD:
            for name in names:
                check_lite_topic(name, self._settings.lite_topic_bytes_max)
        option = None
        if action is LiteAction.PARTIAL_ADD and request.HasField("offset_option"):
            option = _offset_option(request.offset_option)
        config = await self._brokers.group(group)
        check_bound_topic(group, config, topic)
        if names and len(names) > (quota := lite_quota(config)) + QUOTA_SPARE:
            raise Refused(Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED, f"lite subscription quota exceeded: {quota}")
        if action is LiteAction.PARTIAL_ADD and not self._is_in_turn():
            text = f"too many lite subscriptions a second, of group {group} the last"
            raise Refused(Code.TOO_MANY_REQUESTS, text)
        client = self._clients.beats(call, group, ClientType.LITE_PUSH_CONSUMER)
        client.lite_parent = topic
        await self._tell(
            LiteSubscription(
                action=action,
                client_id=call.client_id,
                group=group,
                topic=topic,
                lite_topic_set=names,
                offset_option=option,
                version=min(request.version, (1 << 63) - 1),
            )
        )
        return messages.SyncLiteSubscriptionResponse(status=status(Code.OK))

    def _is_in_turn(self) -> bool:
        second = int(machine.monotonic())
        if second != self._second:
            self._second, self._count = second, 0
        self._count += 1
        return self._count <= self._settings.lite_subscriptions_per_s_max

    async def _tell(self, change: LiteSubscription) -> None:
        """Tell all brokers of the topic. Raises Refused or RocketSparkError: the first failure, after all answers."""
        route = await self._brokers.route(change.topic or "")
        names = [
            data.broker_name
            for data in route.queues
            if data.perm & PERM_READ
            and data.read_queue_count
            and (broker := route.broker(data.broker_name)) is not None
            and broker.master is not None
        ]
        if not names:
            self._brokers.forget_route(change.topic or "")
            raise Refused(Code.FORBIDDEN, "no readable queue")
        for outcome in await asyncio.gather(*(self._tell_one(n, change) for n in names), return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def _tell_one(self, broker_name: str, change: LiteSubscription) -> None:
        async with asyncio.timeout(2 * TIMEOUT_MS / 1000):
            peer = await self._brokers.peer(broker_name)
            await lite_api.subscribe(peer, change, timeout_ms=TIMEOUT_MS)

    async def gone(self, client: ProxyClient) -> None:
        """End the subscriptions of a client that is gone."""
        if not client.lite_parent:
            return
        change = LiteSubscription(
            action=LiteAction.COMPLETE_REMOVE,
            client_id=client.client_id,
            group=client.group,
            topic=client.lite_parent,
            lite_topic_set=[],
        )
        try:
            await self._tell(change)
        except (RocketSparkError, TimeoutError) as e:
            log.info("a broker was not told that client %s is gone: %s", shown(client.client_id), e)

    def unsubscribed(self, peer: Peer, request: Request[NotifyUnsubscribeLiteHeader], body: bytes) -> bytes | None:
        """Serve NOTIFY_UNSUBSCRIBE_LITE (200073): tell a client that a lite topic is another's."""
        h = request.ext
        client = self._clients.of_group(h.client_id, h.group)
        if client is not None and client.streams:
            command = messages.TelemetryCommand(notify_unsubscribe_lite_command={"lite_topic": h.lite_topic})
            self._tasks.begin(client.streams[-1].send(command))
        return None


def _offset_option(given: Any) -> OffsetOption:
    """Return where a subscription begins. Raises Refused for an option that says nothing."""
    kind = given.WhichOneof("offset_type")
    if kind == "policy" and 0 <= given.policy < len(POLICIES):
        return OffsetOption(type=OffsetOptionType.POLICY, value=POLICIES[given.policy])
    if kind not in _TYPES:
        raise Refused(Code.BAD_REQUEST, "offset option: a policy, an offset, a count or a time is needed")
    return OffsetOption(type=_TYPES[kind], value=getattr(given, kind))
