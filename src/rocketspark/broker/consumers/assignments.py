"""What the broker's queue assignments are made from: the queues of topics on all brokers, and the mode of each group.

The mode (SET_MESSAGE_REQUEST_MODE) says whether a group's consumers pull or pop a topic; the queues are those that the
NameServers tell.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from rocketspark.broker import topic_names
from rocketspark.broker.inner_connections import inner_connections
from rocketspark.broker.settings import BrokerSettings
from rocketspark.broker.storage.json_tables import JsonFile
from rocketspark.errors import ConfigError, RocketSparkError, ServerError
from rocketspark.model import MessageQueue
from rocketspark.model.limited_log import LimitedLog
from rocketspark.model.text import shown
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers.namesrv import RouteHeader
from rocketspark.protocol.json import bodies
from rocketspark.protocol.json.bodies import TopicConfig
from rocketspark.protocol.json.metadata import RequestMode, RequestModeTable
from rocketspark.transport.shared_task import outcome_of

log = LimitedLog("rocketspark.broker")

ROUTE_MS = 3000
TOPICS_MAX = 10_000
# Of a retry topic, which is named after a group and a topic.
TOPIC_CHARACTERS_MAX = 255
# How many questions to the NameServers may be under way; others wait their turn.
FETCHES_MAX = 16
# A topic that nobody knows is not asked for again so soon.
UNKNOWN_KEPT_S = 1.0


class TopicQueues:
    """The queues of topics on all brokers, as the NameServers last sent them to this broker.

    `own_topic`: returns a topic's settings on this broker, which alone count if no NameServer is set.
    """

    def __init__(self, settings: BrokerSettings, own_topic: Callable[[str], TopicConfig | None]) -> None:
        self._settings = settings
        self._own_topic = own_topic
        self._connections = inner_connections(settings)
        # By topic, those asked for last at the end; None: there is no such topic.
        self._known: dict[str, list[MessageQueue] | None] = {}
        # The logical queues of static topics.
        self._logical: dict[str, list[MessageQueue]] = {}
        self._asked_s: dict[str, float] = {}
        self._fetches: dict[str, asyncio.Task[None]] = {}
        self._turns = asyncio.Semaphore(FETCHES_MAX)

    async def of(self, topic: str, *, logical: bool = False) -> list[MessageQueue] | None:
        """Return the topic's queues that can be read, sorted; None if they are not known.

        `logical`: of a static topic the logical ones, which are pulled. Popped are the brokers' own, which RocketMQ
        gives to those that pull, too: their broker takes such a number for that of a logical queue.
        """
        queues = await self._physical(topic)
        return self._logical.get(topic, queues) if logical and queues is not None else queues

    async def _physical(self, topic: str) -> list[MessageQueue] | None:
        if len(topic) > TOPIC_CHARACTERS_MAX:
            return None
        if not self._settings.namesrvs():
            return self._own(topic)
        queues = self._known.pop(topic, None)
        age_s = asyncio.get_running_loop().time() - self._asked_s.get(topic, -UNKNOWN_KEPT_S)
        if queues:
            self._known[topic] = queues
            if age_s * 1000 >= self._settings.route_interval_ms:
                # What is known serves until the new one is there.
                self._fetch(topic)
        elif age_s >= UNKNOWN_KEPT_S:
            await outcome_of(self._fetch(topic))
        return self._known.get(topic)

    def _own(self, topic: str) -> list[MessageQueue] | None:
        config = self._own_topic(topic)
        if config is None:
            return None
        return [MessageQueue(topic, self._settings.broker_name, i) for i in range(config.read_queue_nums)]

    def _fetch(self, topic: str) -> asyncio.Task[None]:
        task = self._fetches.get(topic)
        if task is None:
            task = self._fetches[topic] = asyncio.get_running_loop().create_task(self._ask(topic))
            task.add_done_callback(lambda done: self._fetches.pop(topic, None))
        return task

    async def _ask(self, topic: str) -> None:
        async with self._turns:
            await self._ask_in_turn(topic)

    async def _ask_in_turn(self, topic: str) -> None:
        for namesrv in self._settings.namesrvs():
            try:
                peer = await self._connections.get(namesrv)
                header = RouteHeader(topic=topic, standard_json=True)
                reply = await peer.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, header, timeout_ms=ROUTE_MS)
                if reply.code == ResponseCode.TOPIC_NOT_EXIST:
                    if not topic.startswith(topic_names.RETRY_PREFIX):
                        self._forget(topic)
                    break
                route = bodies.decode_route(topic, reply.raise_for_code("route").body)
                # The physical queues, of static topics too.
                self._known[topic] = sorted(msgspec.structs.replace(route, leaders={}).read_queues())
                self._logical.pop(topic, None)
                if route.leaders:
                    self._logical[topic] = sorted(route.read_queues())
                break
            except RocketSparkError as e:
                log.info("the queues of topic %s are not told by %s: %s", shown(topic), namesrv, e)
        self._asked_s.pop(topic, None)
        self._asked_s[topic] = asyncio.get_running_loop().time()
        while len(self._asked_s) > TOPICS_MAX:
            oldest = next(iter(self._asked_s))
            del self._asked_s[oldest]
            self._forget(oldest)

    def _forget(self, topic: str) -> None:
        self._known.pop(topic, None)
        self._logical.pop(topic, None)

    async def close(self) -> None:
        """Cancel the requests to NameServers that are under way, and close the connections."""
        for task in list(self._fetches.values()):
            task.cancel()
        await self._connections.close()


FILE_NAME = "messageRequestMode.json"
# The file is written anew at each change.
MODES_MAX = 10_000


class RequestModes:
    """Whether the consumers of a group pull or pop a topic, for all groups and topics of one broker."""

    def __init__(self, file: JsonFile[RequestModeTable]) -> None:
        self._file = file
        self._changed = False
        try:
            self.table = file.load() or RequestModeTable(message_request_mode_map={})
        except ConfigError as e:
            # No consumer is served differently for them.
            log.error("the message request modes cannot be read and begin empty: %s", e)
            self.table = RequestModeTable(message_request_mode_map={})

    def set(self, mode: RequestMode) -> None:
        """Set whether a group pulls or pops a topic. Raises StoreError; ServerError 2 if the table is full."""
        modes = self.table.message_request_mode_map
        if mode.consumer_group not in modes.get(mode.topic, {}) and sum(map(len, modes.values())) >= MODES_MAX:
            raise ServerError(ResponseCode.SYSTEM_BUSY, f"there are {MODES_MAX} request modes, no more are kept")
        modes.setdefault(mode.topic, {})[mode.consumer_group] = mode
        self._changed = True
        self.save()

    def take(self, table: RequestModeTable) -> None:
        """Replace the table by that of the master, on a slave. Raises StoreError."""
        self._changed |= table != self.table
        self.table = table
        self.save()

    def save(self) -> None:
        """Write the table if it changed. Raises StoreError."""
        if self._changed:
            self._file.save(self.table)
            self._changed = False
