"""The figures of plots: taken every few seconds while the console runs, the newest kept in a ring of fixed length.

Rule: each broker is asked once a round, every third time about groups too; one that does not answer costs the others
nothing.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import deque
from collections.abc import Iterable

from rocketspark import machine
from rocketspark.admin.broker_states import BrokerFigures, GroupTraffic
from rocketspark.console.cluster.kept_samples import KeptSamples, Sample
from rocketspark.console.cluster.view import ClusterView
from rocketspark.errors import RocketSparkError
from rocketspark.transport.shared_task import end_tasks

log = logging.getLogger("rocketspark.console")
LAG_LIFE_S = 15.0
# Groups in a topic whose lag is in a sample of its own: those with the most.
LAGS_MAX = 200


class Sampler:
    """Takes a sample of the cluster in each round. A sample is figures by name: `put_rate`, `get_rate` (messages a
    second of all masters), `disk` (the fullest, percent), `lag` (messages that groups have before them),
    `put_rate:broker-a` of each master, `lag:group` of those with the most. `kept`: where they outlive the
    process.
    """

    def __init__(self, view: ClusterView, interval_s: float, samples_max: int, kept: KeptSamples | None = None) -> None:
        self._view = view
        self._kept = kept
        self._interval_s = interval_s
        self.samples: deque[tuple[float, dict[str, float]]] = deque(maxlen=samples_max)
        self._task: asyncio.Task[None] | None = None
        self._came = asyncio.Event()

    def start(self) -> None:
        """Begin to take samples."""
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """End it."""
        await end_tasks(self._task)
        if self._kept is not None:
            await self._kept.close()

    async def next(self) -> tuple[float, dict[str, float]]:
        """Return the next sample, once it is taken."""
        await self._came.wait()
        return self.samples[-1]

    async def _run(self) -> None:
        if self._kept is not None:
            self.samples.extend(thinned(await self._kept.load(), self._interval_s / 2))
        while True:
            try:
                found = await figures(self._view)
                groups = await lags(self._view)
            except RocketSparkError as e:
                log.debug("no sample: %s", e)
            else:
                if any(not each.error for each in found):
                    self.samples.append(taken := (machine.time_ns() / 1e9, sample(found, groups)))
                    if self._kept is not None:
                        self._kept.add(*taken)
                    came, self._came = self._came, asyncio.Event()
                    came.set()
            await asyncio.sleep(self._interval_s)


def thinned(samples: Iterable[Sample], apart_s: float) -> list[Sample]:
    """Return samples so far apart at least: two consoles may have kept theirs in one file."""
    found: list[Sample] = []
    for each in samples:
        if not found or each[0] - found[-1][0] >= apart_s:
            found.append(each)
    return found


async def figures(view: ClusterView) -> list[BrokerFigures]:
    """Return the state of each broker that the NameServer knows. Raises what `broker_states` does."""
    return await view.read("broker_states", lambda admin: admin.broker_states())


async def lags(view: ClusterView) -> list[GroupTraffic]:
    """Return every group in each topic that it consumes, with its lag; looked at now and then, as brokers look through
    all groups for it.
    """
    return await view.read("group_traffic", lambda admin: admin.group_traffic(), LAG_LIFE_S)


def sample(found: Iterable[BrokerFigures], groups: Iterable[GroupTraffic]) -> dict[str, float]:
    """Return the figures of a sample."""
    values = {"put_rate": 0.0, "get_rate": 0.0, "disk": 0.0, "lag": 0.0}
    for each in found:
        if each.error:
            continue
        values["disk"] = max(values["disk"], each.disk_used * 100)
        if each.broker_id == 0:
            values["put_rate"] += each.in_tps
            values["get_rate"] += each.out_tps
            values[f"put_rate:{each.broker_name}"] = each.in_tps
            values[f"get_rate:{each.broker_name}"] = each.out_tps
    most = heapq.nlargest(LAGS_MAX, groups, key=lambda group: group.lag)
    for group in groups:
        values["lag"] += group.lag
    of_group: dict[str, float] = {}
    for group in most:
        of_group[group.group] = of_group.get(group.group, 0) + group.lag
    values |= {f"lag:{name}": lag for name, lag in of_group.items()}
    return {name: round(value, 2) for name, value in values.items()}
