"""Static topics: made, and given more logical queues. Rule: which broker leads which queue is decided before any broker
is told (rule: TopicQueueMappingUtils.createTopicConfigMapping, 5.5.0).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from rocketspark import machine
from rocketspark.admin.cluster_client import ClusterClient
from rocketspark.client import validators
from rocketspark.client.connection import admin_api
from rocketspark.errors import RouteNotFound, UsageError
from rocketspark.model.text import shown
from rocketspark.protocol.json.static_topics import GLOBAL_SCOPE, MappingDetail, MappingItem, TopicConfigAndMapping

QUEUES_MAX = 10_000
# How much an epoch grows at least, for brokers whose clocks differ.
EPOCH_STEP_MS = 1000
ROUTE_WAIT_S = 3.0


class StaticTopicMade(NamedTuple):
    """A static topic as it is now. `epoch`: of its mapping; `leaders`: the broker of each logical queue, by the queue's
    number; `existed`: it was there before.
    """

    topic: str
    epoch: int
    leaders: dict[int, str]
    existed: bool

    @property
    def queue_count(self) -> int:
        """The number of logical queues."""
        return len(self.leaders)


class StaticTopicOperations(ClusterClient):
    """The part of AsyncAdmin that is about static topics."""

    async def create_static_topic(
        self, topic: str, queue_count: int, *, cluster: str | None = None, brokers: Iterable[str] | None = None
    ) -> StaticTopicMade:
        """Create a topic of so many logical queues, spread evenly over masters, or give a static topic more of them;
        what is there stays where it is, and calling it again changes nothing. Its queues can be moved to other brokers
        later, by mqadmin's remappingStaticTopic.

        Args:
            queue_count: in all, not on each broker.
            cluster, brokers: only that cluster's brokers, or those of the names given, lead new queues; by default all.

        Returns once the NameServer shows it. Raises MessageIllegal; UsageError for a topic that is not a static one, or
        has more queues; what a broker raises, after all others were asked.
        """
        validators.check_target(topic)
        if not 1 <= queue_count <= QUEUES_MAX:
            raise UsageError(f"{queue_count} queues: 1 to {QUEUES_MAX} are needed")
        everyone = await self._masters(None, None)
        targets = [target.broker_name for target in await self._masters(cluster, brokers)]
        there = await self._ask_all(
            everyone,
            f"look at topic {topic!r}",
            lambda peer: admin_api.static_topic_config(peer, topic, timeout_ms=self._timeout_ms),
        )
        known = {name: config for name, config in there.items() if config is not None}
        wanted = spread(topic, queue_count, targets, known, machine.time_ns() // 1_000_000)
        made = StaticTopicMade(topic, epoch_of(wanted or known), leaders_of(wanted or known), bool(known))
        if not wanted:
            return made
        addresses = {each.broker_name: each for each in everyone}

        async def put(name: str) -> None:
            await self._ask_all(
                [addresses[name]],
                f"create static topic {topic!r} on {shown(name)}",
                lambda peer: admin_api.create_static_topic(peer, wanted[name], timeout_ms=self._timeout_ms),
            )

        for name in wanted:
            await put(name)
        end_s = machine.monotonic() + ROUTE_WAIT_S
        while machine.monotonic() < end_s:
            try:
                route = await self._routes.refresh(topic)
            except RouteNotFound:
                pass
            else:
                if {queue.queue_id: leader for queue, leader in route.leaders.items()} == made.leaders:
                    break
            await asyncio.sleep(0.02)
        return made


def _agreed_total(topic: str, details: Mapping[str, MappingDetail], leaders: Mapping[int, str]) -> int:
    """Return how many queues all brokers say that a static topic has, each with one that leads it; 0 of a new topic."""
    totals = {detail.total_queues for detail in details.values()}
    if len(totals) > 1 or len({detail.epoch for detail in details.values()}) > 1:
        raise UsageError(
            f"brokers do not agree about static topic {topic!r}, as a change of it did not reach all: delete it and"
            " make it anew, or have mqadmin updateStaticTopic write one mapping to all"
        )
    total = totals.pop() if totals else 0
    if len(leaders) != total:
        raise UsageError(
            f"{total - len(leaders)} of {total} queues of static topic {topic!r} have no broker that leads them:"
            " start the brokers that are down, or delete the topic if it was not made whole"
        )
    return total


def spread(
    topic: str, queue_count: int, targets: Iterable[str], there: Mapping[str, TopicConfigAndMapping], now_ms: int
) -> dict[str, TopicConfigAndMapping]:
    """Return what each broker is to be told, by name; nothing if the topic has so many queues already.

    `targets`: who may lead new queues; `there`: what brokers have of the topic. Raises UsageError.
    """
    details = {name: config.mapping_detail for name, config in there.items() if config.mapping_detail is not None}
    if there.keys() - details.keys():
        raise UsageError(f"topic {topic!r} is there, and is not a static one: choose another name, or delete it first")
    leaders = leaders_of(there)
    before = _agreed_total(topic, details, leaders)
    if queue_count < before:
        raise UsageError(f"static topic {topic!r} has {before} queues, and none can be taken away")
    if queue_count == before:
        return {}
    epoch = max([now_ms, *(detail.epoch + EPOCH_STEP_MS for detail in details.values())])
    queues = {name: dict(detail.hosted_queues) for name, detail in details.items()}
    # Numbers of a broker's own queues that are in use, also by parts that ended.
    counts = {name: max(config.read_queue_nums, config.write_queue_nums) for name, config in there.items()}
    candidates = list(dict.fromkeys(targets))
    led = Counter(leaders.values())
    for queue_id in range(before, queue_count):
        name = min(candidates, key=led.__getitem__)
        led[name] += 1
        own = counts.get(name, 0)
        counts[name] = own + 1
        queues.setdefault(name, {})[queue_id] = [MappingItem(queue_id=own, bname=name)]
    found = {}
    for name in [*queues, *(name for name in candidates if name not in queues)]:
        config = there.get(name)
        found[name] = TopicConfigAndMapping(
            topic_name=topic,
            read_queue_nums=counts.get(name, 0),
            write_queue_nums=counts.get(name, 0),
            perm=6 if config is None else config.perm,
            topic_filter_type="SINGLE_TAG" if config is None else config.topic_filter_type,
            topic_sys_flag=0 if config is None else config.topic_sys_flag,
            mapping_detail=MappingDetail(
                topic=topic,
                scope=GLOBAL_SCOPE,
                total_queues=queue_count,
                bname=name,
                epoch=epoch,
                hosted_queues=queues.get(name, {}),
            ),
        )
    return found


def leaders_of(found: Mapping[str, TopicConfigAndMapping]) -> dict[int, str]:
    """Return the broker that leads each logical queue, by the queue's number."""
    leaders = {}
    for name, config in found.items():
        detail = config.mapping_detail
        for queue_id, items in detail.hosted_queues.items() if detail is not None else ():
            if items and items[-1].bname == name:
                leaders[queue_id] = name
    return dict(sorted(leaders.items()))


def epoch_of(found: Mapping[str, TopicConfigAndMapping]) -> int:
    """Return the epoch of a static topic's mapping."""
    return max((each.mapping_detail.epoch for each in found.values() if each.mapping_detail is not None), default=0)
