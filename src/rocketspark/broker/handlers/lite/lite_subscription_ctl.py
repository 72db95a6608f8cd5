"""LITE_SUBSCRIPTION_CTL: clients, or proxies for them, subscribe to lite topics and end subscriptions.

Rules (LiteSubscriptionCtlProcessor, 5.5.0): an entry without client, group or topic is passed over; what one entry did
stays if a later one is refused.
"""

from __future__ import annotations

from typing import Any

from rocketspark.broker.consumers.assignments import TopicQueues
from rocketspark.broker.consumers.connected_clients import CLIENT_ID_LENGTH_MAX
from rocketspark.broker.lite import attributes
from rocketspark.broker.lite.subscriptions import LiteSubscriptions, illegal_state
from rocketspark.broker.parts import Tables
from rocketspark.broker.settings import BrokerSettings
from rocketspark.broker.storage.long_scans import LongScans
from rocketspark.broker.topic_names import GROUP_LENGTH_MAX, TOPIC_LENGTH_MAX
from rocketspark.errors import ServerError
from rocketspark.model.allocation import bucket_of
from rocketspark.model.text import shown
from rocketspark.protocol import lite_topics
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import Request
from rocketspark.protocol.json import java_json
from rocketspark.protocol.json.lite_bodies import LiteAction, LiteSubscription
from rocketspark.protocol.json.lite_bodies import LiteSubscriptions as Changes
from rocketspark.protocol.light_queues import QUEUE_ID
from rocketspark.store.store import Store
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Answer, Routes
from rocketspark.transport.request_frames import reply


class LiteSharding:
    """Tells which broker has a lite topic that is new (rule: LiteShardingImpl, 5.5.0)."""

    def __init__(self, settings: BrokerSettings, store: Store, queues: TopicQueues) -> None:
        self._settings = settings
        self._store = store
        self._queues = queues

    @property
    def has_queues(self) -> bool:
        """Tell whether messages go into light queues here."""
        return self._store.consume_queues.light

    async def brokers_of(self, topic: str) -> list[str]:
        """Return the broker of each queue of a topic; none if they are not known."""
        return [queue.broker_name for queue in await self._queues.of(topic) or ()]

    def is_here(self, brokers: list[str], name: str) -> bool:
        """Tell whether the lite topic of this name belongs to this broker."""
        return not brokers or brokers[bucket_of(name, len(brokers))] == self._settings.broker_name

    def has(self, brokers: list[str], topic: str, name: str) -> bool:
        """Tell whether the lite topic is this broker's, or has messages here."""
        return (
            self.is_here(brokers, name) or self._store.queue_range(lite_topics.queue_name(topic, name), QUEUE_ID)[1] > 0
        )

    def may_have(self, topic: str, name: str) -> bool:
        """Tell whether a message may be sent to a lite topic of this name."""
        queue = lite_topics.queue_name(topic, name)
        is_name = "," not in name and lite_topics.of_queue(queue) is not None
        return is_name and self._store.consume_queues.can_have(queue.encode("utf-8", "replace"))


class LiteSubscriptionHandler:
    """Serves changes of subscriptions."""

    def __init__(
        self, tables: Tables, subscriptions: LiteSubscriptions, sharding: LiteSharding, scans: LongScans
    ) -> None:
        self._groups = tables.groups
        self._subscriptions = subscriptions
        self._sharding = sharding
        self._scans = scans

    def routes(self, routes: Routes) -> None:
        """Add what this handler serves."""
        routes.add(RequestCode.LITE_SUBSCRIPTION_CTL, self.change)

    def change(self, peer: Peer, request: Request[Any], body: bytes) -> Answer:
        """LITE_SUBSCRIPTION_CTL (200071): change what clients are subscribed to."""
        if not body:
            raise ServerError(ResponseCode.ILLEGAL_OPERATION, "Request body is null.")
        changes = java_json.decode_request(body, Changes).subscription_set
        if not changes:
            raise ServerError(ResponseCode.ILLEGAL_OPERATION, "LiteSubscriptionCtlRequestBody is empty.")
        return peer.alone(self._change(peer, request, changes))

    async def _change(self, peer: Peer, request: Request[Any], changes: list[LiteSubscription]) -> bytes:
        for change in changes:
            if _is_told(change.client_id) and _is_told(change.group) and _is_told(change.topic):
                await self._one(peer, change)
        return reply(request.opaque)

    async def _one(self, peer: Peer, change: LiteSubscription) -> None:
        client_id, group, topic = change.client_id or "", change.group or "", change.topic or ""
        for what, name, most in (
            ("client id", client_id, CLIENT_ID_LENGTH_MAX),
            ("group", group, GROUP_LENGTH_MAX),
            ("topic", topic, TOPIC_LENGTH_MAX),
        ):
            if len(name) > most:
                text = f"a {what} has {len(name)} characters, more than {most}"
                raise ServerError(ResponseCode.INVALID_PARAMETER, text)
        if change.action is None:
            raise ServerError(ResponseCode.SYSTEM_ERROR, f"client {shown(client_id)}: no action is given")
        if change.action == LiteAction.COMPLETE_REMOVE:
            await self._remove_all(peer, client_id, group)
        elif change.action == LiteAction.PARTIAL_REMOVE:
            await self._remove(client_id, group, topic, change.lite_topic_set or [])
        else:
            await self._add(peer, change, client_id, group, topic)

    async def _remove_all(self, peer: Peer, client_id: str, group: str) -> None:
        known = self._subscriptions
        found = known.clients.get(client_id)
        # One of another group is another's; a proxy that a client left may say so after the next one has it.
        if found is None or found.subscriber.group != group or known.is_told_elsewhere(client_id, peer):
            return
        async for part in self._scans.pieces(list(found.queues)):
            known.remove(found, part, begin_anew=False)
        if known.clients.get(client_id) is found and not found.queues:
            known.remove_all(client_id)

    async def _remove(self, client_id: str, group: str, topic: str, names: list[str]) -> None:
        known = self._subscriptions
        if client_id not in known.clients:
            # Nothing is to be removed, and nothing is kept of who it is.
            return
        anew = attributes.is_true(self._groups.table.get(group), attributes.RESET_UNSUBSCRIBE)
        found = known.of_client(client_id, group, topic)
        async for part in self._scans.pieces(names):
            known.remove(found, [lite_topics.queue_name(topic, name) for name in part if name], begin_anew=anew)

    async def _add(self, peer: Peer, change: LiteSubscription, client_id: str, group: str, topic: str) -> None:
        """Subscribe a client to lite topics beside those that it has (PARTIAL_ADD), or in their place."""
        known = self._subscriptions
        if not self._sharding.has_queues:
            # RocketMQ takes it, and no message ever comes.
            raise illegal_state("lite topics need the broker's settings enableLmq=true and enableMultiDispatch=true")
        config = known.check_group(group, peer.address)
        has_wildcard = attributes.is_wildcard(config)
        is_partial = change.action == LiteAction.PARTIAL_ADD
        if is_partial:
            known.check_room()
            if has_wildcard:
                raise illegal_state("subscribe lite operation is not supported for this group")
        found = known.of_client(client_id, group, topic, peer)
        if has_wildcard:
            known.add_wildcard(found)
            return
        wanted = await self._own_queues(topic, change.lite_topic_set or [])
        if not is_partial:
            kept = dict.fromkeys(wanted)
            async for part in self._scans.pieces([queue for queue in found.queues if queue not in kept]):
                known.remove(found, part, begin_anew=False)
        alone = is_partial and attributes.is_exclusive(config)
        async for part in self._scans.pieces(wanted):
            if known.clients.get(client_id) is not found:
                # Removed meanwhile by another request.
                return
            known.add(found, part, option=change.offset_option if is_partial else None, alone=alone)

    async def _own_queues(self, topic: str, names: list[str]) -> list[str]:
        """Return the light queues of those lite topics that this broker has; others are on other brokers, or none."""
        brokers = await self._sharding.brokers_of(topic)
        wanted = list[str]()
        async for some in self._scans.pieces(list(dict.fromkeys(names))):
            wanted += [
                lite_topics.queue_name(topic, name)
                for name in some
                if name and self._sharding.may_have(topic, name) and self._sharding.has(brokers, topic, name)
            ]
        return wanted


def _is_told(value: str | None) -> bool:
    return bool(value and value.strip())
