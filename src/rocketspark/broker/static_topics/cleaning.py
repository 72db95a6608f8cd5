"""Removes the parts of logical queues that hold nothing any more. Rule: in doubt a part stays until a later round.

Rules (TopicQueueMappingCleanService, 5.5.0): every five minutes in the hours of `deleteWhen`; the leader of a queue
forgets its first part once that is empty, and the broker that led a queue two leaders ago forgets the whole queue."""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections.abc import Callable, Mapping

import msgspec

from rocketspark import machine
from rocketspark.broker.replication.role import BrokerRole
from rocketspark.broker.settings import BrokerSettings
from rocketspark.broker.static_topics.mappings import StaticTopics
from rocketspark.broker.static_topics.other_brokers import OtherBrokers
from rocketspark.errors import RocketSparkError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.model.text import shown
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers import OffsetReply
from rocketspark.protocol.headers.static_topics import PartQueueHeader
from rocketspark.protocol.json.bodies import QueueMapping
from rocketspark.protocol.json.static_topics import MappingDetail, MappingItem
from rocketspark.store.store import Store
from rocketspark.transport.shared_task import end_tasks

log = logging.getLogger("rocketspark.broker")
limited = LimitedLog("rocketspark.broker")

CLEAN_INTERVAL_S = 300.0


def first_parts(detail: MappingDetail) -> dict[int, MappingItem]:
    """Return the oldest part of each logical queue that this broker leads, which may be forgotten once it is empty.

    A queue is left out if it has one part only, or if it is not known yet where its second part begins.
    """
    return {
        queue_id: items[0]
        for queue_id, items in detail.hosted_queues.items()
        if len(items) > 1 and items[-1].bname == detail.bname and items[1].is_decided
    }


def former_leads(detail: MappingDetail) -> dict[int, str]:
    """Return, for each queue that this broker led before, to which broker it handed the queue."""
    leaders = {queue_id: items[-1].bname for queue_id, items in detail.hosted_queues.items() if items}
    return {queue_id: leader for queue_id, leader in leaders.items() if leader != detail.bname}


def real_leaders(route: Mapping[str, QueueMapping]) -> dict[int, str]:
    """Return which broker leads each queue of a route; if two claim it, the one whose mapping has the higher epoch."""
    leaders: dict[int, str] = {}
    for name, mapping in sorted(route.items(), key=lambda entry: entry[1].epoch):
        leaders.update(dict.fromkeys(mapping.curr_id_map, name))
    return leaders


def to_forget(detail: MappingDetail, leaders: Mapping[int, str], theirs: Mapping[str, MappingDetail]) -> list[int]:
    """Return the queues that this broker handed to another, which has handed them on since: they can be forgotten.

    `leaders`: which broker leads each queue now; `theirs`: the mappings of those brokers, which must agree with
    `detail`.
    """
    found = []
    for queue_id, known in former_leads(detail).items():
        leader = leaders.get(queue_id, known)
        other = theirs.get(leader)
        if leader == known or other is None or other.bname != leader:
            continue
        items = other.hosted_queues.get(queue_id)
        agreed = (other.total_queues, other.epoch) == (detail.total_queues, detail.epoch)
        if agreed and items and items[-1].bname == leader:
            found.append(queue_id)
    return found


class MappingCleaning:
    """Removes empty parts from one broker's mappings of static topics, while the broker is the master.

    `hour`: returns the present hour of the day.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        statics: StaticTopics,
        store: Store,
        others: OtherBrokers,
        role: BrokerRole,
        *,
        hour: Callable[[], int] = lambda: datetime.datetime.fromtimestamp(machine.time()).hour,
    ) -> None:
        self._settings = settings
        self._statics = statics
        self._store = store
        self._others = others
        self._role = role
        self._hour = hour
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Clean from time to time."""
        self._task = asyncio.get_running_loop().create_task(self._clean_forever())

    async def stop(self) -> None:
        """Stop cleaning."""
        await end_tasks(self._task)

    async def _clean_forever(self) -> None:
        while True:
            await asyncio.sleep(CLEAN_INTERVAL_S)
            if self._hour() in self._settings.delete_hours():
                await self.clean()

    async def clean(self) -> None:
        """Clean all mappings once. What cannot be found out or saved now stays as it is, and is logged."""
        for topic in list(self._statics.table):
            for act in (self._forget_empty, self._forget_former):
                if not self._role.is_master:
                    return
                try:
                    await act(topic)
                except RocketSparkError as e:
                    limited.warning("topic %s: its empty parts stay for now: %s", shown(topic), e)
                except Exception:
                    log.exception("topic %s: its empty parts stay for now", shown(topic))

    async def _forget_empty(self, topic: str) -> None:
        detail = self._statics.table.get(topic)
        for queue_id, part in first_parts(detail).items() if detail is not None else ():
            if not await self._is_empty(topic, part):
                continue
            # Much may have happened meanwhile.
            now = self._statics.table.get(topic)
            if now is None or not self._role.is_master or first_parts(now).get(queue_id) != part:
                continue
            left = {**now.hosted_queues, queue_id: now.hosted_queues[queue_id][1:]}
            self._statics.put(msgspec.structs.replace(now, hosted_queues=left))
            log.info(
                "queue %d of topic %s: its first part, queue %d of broker %s, is empty and forgotten",
                queue_id,
                shown(topic),
                part.queue_id,
                shown(part.bname),
            )

    async def _is_empty(self, topic: str, part: MappingItem) -> bool:
        if part.bname == self._settings.broker_name:
            low, high = self._store.queue_range(topic, part.queue_id)
            return low >= high
        asked = PartQueueHeader(topic=topic, queue_id=part.queue_id, broker_name=part.bname, lo=False)
        # The end first: it stays where it is, and the begin only comes nearer.
        high = await self._offset(part, RequestCode.GET_MAX_OFFSET, asked)
        low = await self._offset(part, RequestCode.GET_MIN_OFFSET, asked)
        return high == 0 or 0 < high <= low

    async def _offset(self, part: MappingItem, code: int, header: PartQueueHeader) -> int:
        answer = await self._others.ask(part.bname, code, header)
        return answer.raise_for_code("bounds of a part").header(OffsetReply).offset

    async def _forget_former(self, topic: str) -> None:
        detail = self._statics.table.get(topic)
        if detail is None or not (former := former_leads(detail)):
            return
        leaders = real_leaders(await self._others.mappings(topic))
        asked = {leaders[queue_id] for queue_id, known in former.items() if leaders.get(queue_id, known) != known}
        theirs = {name: found for name in asked if (found := await self._others.mapping(name, topic)) is not None}
        if not self._role.is_master or self._statics.table.get(topic) != detail:
            return
        if gone := to_forget(detail, leaders, theirs):
            left = {queue_id: items for queue_id, items in detail.hosted_queues.items() if queue_id not in gone}
            self._statics.put(msgspec.structs.replace(detail, hosted_queues=left))
            log.info("queues %s of topic %s were handed on twice: they are forgotten here", gone, shown(topic))
