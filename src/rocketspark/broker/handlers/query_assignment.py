"""Assignments: which queues of a topic a member of a group reads, by pulling or by popping them.

Rule (QueryAssignmentProcessor, 5.x): no list in the answer means that the member keeps what it has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rocketspark.broker import topic_names
from rocketspark.broker.consumers.assignments import TopicQueues
from rocketspark.broker.consumers.connected_clients import ConsumerGroup
from rocketspark.broker.parts import Tables
from rocketspark.broker.settings import BrokerSettings
from rocketspark.errors import ServerError
from rocketspark.model import MessageQueue
from rocketspark.model.allocation import BROKER_STRATEGIES, pop_share
from rocketspark.model.limited_log import LimitedLog
from rocketspark.model.text import INT_MAX, shown
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import Request
from rocketspark.protocol.json import bodies, java_json
from rocketspark.protocol.json.bodies import QueueBody
from rocketspark.protocol.json.metadata import RequestMode
from rocketspark.protocol.json.pop_records import Assigned, Assignment, AssignmentQuery
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Routes
from rocketspark.transport.request_frames import reply

log = LimitedLog("rocketspark.broker")

MODES = ("PULL", "POP")
MODELS = ("CLUSTERING", "BROADCASTING")


class AssignmentHandler:
    """Serves QUERY_ASSIGNMENT and SET_MESSAGE_REQUEST_MODE. `notify` tells a group's members to ask again."""

    def __init__(
        self,
        settings: BrokerSettings,
        tables: Tables,
        topic_queues: TopicQueues,
        notify: Callable[[ConsumerGroup], None],
    ) -> None:
        self._settings = settings
        self._topics = tables.topics
        self._groups = tables.groups
        self._clients = tables.clients
        self._modes = tables.request_modes
        self._topic_queues = topic_queues
        self._notify = notify

    def routes(self, routes: Routes) -> None:
        """Add what this handler serves."""
        routes.add(RequestCode.QUERY_ASSIGNMENT, self.query)
        routes.add(RequestCode.SET_MESSAGE_REQUEST_MODE, self.set_mode)

    async def query(self, peer: Peer, request: Request[Any], body: bytes) -> bytes:
        """QUERY_ASSIGNMENT (400): the queues of a topic that a member of a group is to read, and how."""
        asked = java_json.decode_request(body, AssignmentQuery)
        if asked.message_model not in MODELS:
            raise ServerError(
                ResponseCode.INVALID_PARAMETER, f"messageModel {shown(asked.message_model)!r} is not one of {MODELS}"
            )
        mode = self._mode(asked.topic, asked.consumer_group)
        queues = await self._assigned(asked, mode)
        found = None
        if queues is not None:
            found = [Assigned(message_queue=QueueBody.of(q), mode=mode.mode) for q in queues]
        return reply(request.opaque, body=bodies.encode(Assignment(message_queue_assignments=found)))

    def _mode(self, topic: str, group: str) -> RequestMode:
        s = self._settings
        known = self._modes.table.message_request_mode_map.get(topic, {}).get(group)
        if known is not None:
            return known
        if topic.startswith(topic_names.RETRY_PREFIX) or s.default_request_mode == "PULL":
            return RequestMode(topic=topic, consumer_group=group, mode="PULL")
        share = s.default_pop_share_queue_num
        return RequestMode(topic=topic, consumer_group=group, mode="POP", pop_share_queue_num=share)

    async def _assigned(self, asked: AssignmentQuery, mode: RequestMode) -> Sequence[MessageQueue] | None:
        topic, group = shown(asked.topic), shown(asked.consumer_group)
        if asked.topic.startswith(topic_names.LIGHT_PREFIX) and asked.message_model == "CLUSTERING":
            queues: list[MessageQueue] | None = [MessageQueue(asked.topic, self._settings.broker_name, 0)]
        else:
            queues = await self._topic_queues.of(asked.topic, logical=mode.mode == "PULL")
        if queues is None or asked.message_model == "BROADCASTING" or not self._settings.server_load_balancer:
            return queues
        members = self._clients.consumers.get(asked.consumer_group)
        if members is None:
            log.info("no queues of topic %s are given to group %s: it has no members here", topic, group)
            return None
        strategy = BROKER_STRATEGIES.get(asked.strategy_name)
        if strategy is None:
            names = ", ".join(BROKER_STRATEGIES)
            text = "no queues of topic %s are given to group %s: strategy %s is not one of %s"
            log.warning(text, topic, group, shown(asked.strategy_name), names)
            return None
        client_ids = sorted(members.client_ids())
        if mode.mode == "POP":
            share = mode.pop_share_queue_num
            if (share <= 0 or share >= len(client_ids) - 1) or (queues and asked.client_id.strip()):
                return pop_share(strategy, asked.client_id, queues, client_ids, share)
            return None
        if not queues or not asked.client_id.strip():
            return None
        return strategy(asked.client_id, queues, client_ids)

    def set_mode(self, peer: Peer, request: Request[Any], body: bytes) -> bytes:
        """SET_MESSAGE_REQUEST_MODE (401): how a group is given a topic's messages from now on."""
        wanted = java_json.decode_request(body, RequestMode)
        if wanted.topic.startswith(topic_names.RETRY_PREFIX):
            raise ServerError(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
        if self._topics.get(wanted.topic) is None:
            raise ServerError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{wanted.topic}] not exist")
        if self._groups.get(wanted.consumer_group, by=peer.address) is None:
            raise ServerError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "subscription group does not exist")
        if wanted.mode not in MODES:
            raise ServerError(
                ResponseCode.INVALID_PARAMETER, f"mode {shown(wanted.mode)!r} is not one of {', '.join(MODES)}"
            )
        if not -INT_MAX - 1 <= wanted.pop_share_queue_num <= INT_MAX:
            raise ServerError(
                ResponseCode.INVALID_PARAMETER, f"popShareQueueNum {wanted.pop_share_queue_num} is no number of Java's"
            )
        self._modes.set(wanted)
        # RocketMQ leaves it to their next rebalance, up to 20 s later.
        if (group := self._clients.consumers.get(wanted.consumer_group)) is not None:
            self._notify(group)
        return reply(request.opaque)
