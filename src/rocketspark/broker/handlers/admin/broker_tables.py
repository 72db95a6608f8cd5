"""Requests by which the brokers of one name keep their tables equal: delays, timers, request modes, addresses.

The tables of topics, groups and offsets are sent by their own handlers. Rule: a table is sent with its version, since a
master and its slaves compare versions.
"""

from __future__ import annotations

import asyncio
from typing import Any

from rocketspark.broker.messages.schedule_messages import encode_delay_offsets
from rocketspark.broker.parts import Messages, Tables
from rocketspark.broker.replication.master_api import HaInfoExchange, header_of, info_of
from rocketspark.broker.storage.json_tables import sorted_json
from rocketspark.errors import ServerError
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import Request
from rocketspark.protocol.headers.topics import HaInfoHeader, MasterFlushOffsetHeader, StateHeader
from rocketspark.protocol.json.metadata import STATE_LAYOUT, BrokerState, ResetOffset
from rocketspark.store.store import Store
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Routes
from rocketspark.transport.request_frames import reply

# In one answer, and topics that are looked at without a pause.
ENDS_MAX, TOPICS_IN_TURN = 20_000, 32


class BrokerTablesHandler:
    """Serves the other brokers of this name."""

    def __init__(
        self,
        tables: Tables,
        messages: Messages,
        store: Store,
        ha_info: HaInfoExchange,
    ) -> None:
        self._offsets = tables.offsets
        self._request_modes = tables.request_modes
        self._delays = messages.delays
        self._timers = messages.timers
        self._quarantine = messages.quarantine
        self._store = store
        self._ha_info = ha_info

    def routes(self, routes: Routes) -> None:
        """Add what this handler serves."""
        routes.add(RequestCode.GET_ALL_DELAY_OFFSET, self.delay_offsets)
        routes.add(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, self.request_modes)
        routes.add(RequestCode.GET_TIMER_CHECK_POINT, self.timer_checkpoint)
        routes.add(RequestCode.GET_TIMER_METRICS, self.timer_metrics)
        routes.add(RequestCode.GET_BROKER_STATE, self.state, StateHeader)
        routes.add(RequestCode.EXCHANGE_BROKER_HA_INFO, self.exchange_ha_info, HaInfoHeader)
        routes.add(RequestCode.RESET_MASTER_FLUSH_OFFSET, self.reset_flush_offset, MasterFlushOffsetHeader)

    def delay_offsets(self, peer: Peer, request: Request[Any], body: bytes) -> bytes:
        """GET_ALL_DELAY_OFFSET (45): how far the messages of each delay level are delivered."""
        return reply(request.opaque, body=encode_delay_offsets(self._delays.table()))

    def request_modes(self, peer: Peer, request: Request[Any], body: bytes) -> bytes:
        """GET_ALL_MESSAGE_REQUEST_MODE (402): how groups are given the messages of topics, by pull or pop."""
        return reply(request.opaque, body=sorted_json(self._request_modes.table))

    def timer_checkpoint(self, peer: Peer, request: Request[Any], body: bytes) -> bytes:
        """GET_TIMER_CHECK_POINT (60): how far the timer messages are read and delivered, as 56 bytes."""
        return reply(request.opaque, body=self._timers.checkpoint().encode())

    def timer_metrics(self, peer: Peer, request: Request[Any], body: bytes) -> bytes:
        """GET_TIMER_METRICS (61): how many timer messages wait for each topic."""
        return reply(request.opaque, body=sorted_json(self._timers.statistics.table()))

    async def state(self, peer: Peer, request: Request[StateHeader], body: bytes) -> bytes:
        """GET_BROKER_STATE (7310004): the tables that our brokers have and RocketMQ's do not, for a slave of ours."""
        ends: dict[str, dict[int, int]] = {}
        until = after = request.ext.ends_after
        # The ends first: what is told of deletions is then not older.
        if after is not None:
            ends, until = await self._queue_ends(after)
        resets = [
            ResetOffset(group=group, topic=topic, queue_id=queue_id, offset=offset)
            for group, topic, queue_id, offset in self._offsets.resets()
        ]
        answer = BrokerState(
            layout=STATE_LAYOUT,
            quarantine=self._quarantine.entries(),
            resets=resets,
            deleted_topics=self._store.deleted_topics(),
            epoch=self._ha_info.epoch(),
            queue_ends=ends,
            ends_until=until,
        )
        return reply(request.opaque, body=sorted_json(answer))

    async def _queue_ends(self, after: str) -> tuple[dict[str, dict[int, int]], str | None]:
        """Return where queues end that have no messages any more, of topics after a name, and where to go on."""
        queues, found, count = self._store.consume_queues, [], 0
        names = sorted(name for name in queues.queues() if name > after)
        until = None
        for number, topic in enumerate(names, 1):
            ends = queues.emptied(topic)
            if ends:
                found.append(topic)
                count += len(ends)
            if count >= ENDS_MAX and number < len(names):
                until = topic
                break
            if number % TOPICS_IN_TURN == 0:
                await asyncio.sleep(0)
        # Some may have got a message, or have been deleted, meanwhile.
        return {topic: ends for topic in found if (ends := queues.emptied(topic))}, until

    async def exchange_ha_info(self, peer: Peer, request: Request[HaInfoHeader], body: bytes) -> bytes:
        """EXCHANGE_BROKER_HA_INFO (906): a master tells its addresses and offsets, or a slave asks for them."""
        told = info_of(request.ext)
        if told is not None:
            followed = self._ha_info.told(told)
            notes = await followed if followed is not None else None
            return reply(request.opaque, header={}, body=notes or b"")
        return reply(request.opaque, header=header_of(self._ha_info.own()))

    def reset_flush_offset(self, peer: Peer, request: Request[MasterFlushOffsetHeader], body: bytes) -> bytes:
        """RESET_MASTER_FLUSH_OFFSET (908): set what a slave takes for the end of its master's log; not on a master.

        Rule: AdminBrokerProcessor, 5.x.
        """
        if self._ha_info.own() is None:
            if request.ext.offset is None:
                raise ServerError(ResponseCode.SYSTEM_ERROR, "masterFlushOffset is needed")
            self._ha_info.reset_flush_offset(request.ext.offset)
        return reply(request.opaque)
