"""A stream's progress as a consumer group's offsets, for operators. Rule: nothing that fails here fails a query.

The checkpoint alone says where a stream goes on; the group only shows it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from rocketspark.errors import RocketSparkError, ServerError
from rocketspark.model import MessageQueue
from rocketspark.protocol.codes import ResponseCode
from rocketspark.spark.cluster_queries import ClusterQueries
from rocketspark.spark.offset_ranges import Offsets

log = logging.getLogger("rocketspark.spark")


class GroupOffsets:
    """Commits offsets to a group, which need not exist."""

    def __init__(self, cluster: ClusterQueries, group: str) -> None:
        self._cluster = cluster
        self._group = group
        self._shown: Offsets = {}
        self._registered = False
        self._failing = False

    def show(self, offsets: Offsets) -> None:
        """Commit the offsets that have changed. A failure is one warning until it works again."""
        changed = {queue: offset for queue, offset in offsets.items() if self._shown.get(queue) != offset}
        if not changed:
            return
        try:
            if not self._registered and not self._cluster.knows_group(self._group):
                self._cluster.register_group(changed, self._group)
            self._registered = True
            done = self._commit(changed)
        except RocketSparkError as e:
            self._warn(str(e))
            return
        self._shown.update((queue, changed[queue]) for queue in done)
        if away := sorted({queue.broker_name for queue in changed.keys() - set(done)}):
            self._warn(f"no answer from {', '.join(away)}")
        else:
            self._failing = False

    def _commit(self, changed: Offsets) -> Iterable[MessageQueue]:
        try:
            return self._cluster.commit(changed, self._group)
        except ServerError as e:
            if e.code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                raise
        # A broker that came later, or whose groups were deleted.
        self._cluster.register_group(changed, self._group)
        return self._cluster.commit(changed, self._group)

    def _warn(self, why: str) -> None:
        if not self._failing:
            log.warning("progress is not shown as group %r: %s; the query goes on", self._group, why)
        self._failing = True
