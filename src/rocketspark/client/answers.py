"""What a consumer answers when a broker asks about it. Rule: what MQClientInstance, 5.x, answers for push and for lite
pull consumers; names and units of the bodies are RocketMQ's.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from rocketspark.client.fetcher import Fetcher
from rocketspark.client.hooks import is_coroutine_function
from rocketspark.client.membership import Membership
from rocketspark.client.validate import RETRY_PREFIX
from rocketspark.model import MessageQueue, ReceivedMessage
from rocketspark.protocol import bodies, java_json, properties
from rocketspark.protocol.bodies import QueueBody

log = logging.getLogger("rocketspark.client")

# The version that our frames name.
CLIENT_VERSION = "V5_5_0"
MIB = 1 << 20


class PullAnswers:
    """Those of a pull consumer: it tells of its queues, and is told nothing.

    `settings`: what it was made with, as text, by the names of RocketMQ's properties.
    """

    consume_type = "CONSUME_ACTIVELY"

    def __init__(self, membership: Membership, settings: Mapping[str, object]) -> None:
        self._membership = membership
        self._settings = settings
        self._began_ms = int(time.time() * 1000)

    async def reset(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Nothing: whoever polls decides where."""
        log.info("group %s polls for itself: it is not reset by a broker", self._membership.group)

    def positions(self, topic: str) -> dict[MessageQueue, int]:
        """None."""
        return {}

    async def consume(self, message: ReceivedMessage) -> bytes | None:
        """None: there is no listener."""
        return None

    def running_info(self, *, stacks: bool) -> bytes:
        """The body of the answer to GET_CONSUMER_RUNNING_INFO (307); `stacks`: with those of this process's threads."""
        members, settings = self._membership, {k: _text(v) for k, v in self._settings.items()}
        settings |= {
            "PROP_NAMESERVER_ADDR": "".join(f"{a};" for a in members.instance.routes.addresses),
            "PROP_CONSUME_TYPE": self.consume_type,
            "PROP_CLIENT_VERSION": CLIENT_VERSION,
            "PROP_CONSUMER_START_TIMESTAMP": str(self._began_ms),
            "consumerGroup": members.group,
            "language": "PYTHON",
        }
        subscribed = [bodies.SubscriptionBody.of(s) for _, s in sorted(members.subscriptions.items())]
        queues = [(QueueBody.of(q), self._queue(f)) for q, f in sorted(members.fetchers.items())]
        parts = [
            b'"mqPopTable":{},"mqTable":%b' % java_json.encode_object_keys(queues),
            b'"properties":%b' % bodies.encode(settings),
            b'"statusTable":%b' % bodies.encode(self._status()),
            b'"subscriptionSet":%b' % bodies.encode(subscribed),
        ]
        if stacks:
            parts.insert(0, b'"jstack":%b' % bodies.encode(thread_stacks()))
        return b"{%b}" % b",".join(parts)

    def _status(self) -> dict[str, dict[str, float]]:
        return {}

    def _queue(self, fetcher: Fetcher) -> dict[str, Any]:
        backlog, locks = fetcher.backlog, self._membership.locks
        held = len(backlog) > 0
        return {
            "cachedMsgCount": len(backlog),
            "cachedMsgMaxOffset": backlog.highest if held else 0,
            "cachedMsgMinOffset": backlog.lowest if held else 0,
            "cachedMsgSizeInMiB": backlog.bytes // MIB,
            "commitOffset": self._membership.to_commit(fetcher),
            "droped": fetcher.dropped,
            "lastConsumeTimestamp": fetcher.consumed_ms,
            "lastLockTimestamp": locks.locked_ms(fetcher.queue) if locks else fetcher.began_ms,
            "lastPullTimestamp": fetcher.pulled_ms,
            "locked": locks.holds(fetcher.queue) if locks else False,
            "transactionMsgCount": 0,
            "transactionMsgMaxOffset": 0,
            "transactionMsgMinOffset": 0,
            "tryUnlockTimes": 0,
        }


class PushAnswers(PullAnswers):
    """Those of a push consumer. `listener`: without hooks; `batched`: it gets lists; `bare`: takes a namespace off."""

    consume_type = "CONSUME_PASSIVELY"

    def __init__(
        self,
        membership: Membership,
        settings: Mapping[str, object],
        listener: Callable[[Any], Any],
        *,
        ordered: bool,
        batched: bool,
        bare: Callable[[ReceivedMessage], ReceivedMessage],
    ) -> None:
        more = {"PROP_CONSUMEORDERLY": ordered, "PROP_THREADPOOL_CORE_SIZE": settings["consumeThreadMax"]}
        super().__init__(membership, {**settings, **more})
        self._listener = listener
        self._ordered = ordered
        self._batched = batched
        self._bare = bare

    async def reset(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Read those of the topic's queues that are read here on from these offsets, and commit them."""
        await self._membership.reset({q: offset for q, offset in offsets.items() if q.topic == topic})

    def positions(self, topic: str) -> dict[MessageQueue, int]:
        """How far the topic's queues here were read; those of all topics for ""."""
        members = self._membership
        return {q: members.to_commit(f) for q, f in sorted(members.fetchers.items()) if topic in ("", q.topic)}

    async def consume(self, message: ReceivedMessage) -> bytes | None:
        """Hand a message to the listener at once; the body of the answer to CONSUME_MESSAGE_DIRECTLY (309).

        Nothing is committed or delivered again for it.
        """
        if message.topic == RETRY_PREFIX + self._membership.group:
            message.topic = message.properties.get(properties.RETRY_TOPIC, message.topic)
        given = [self._bare(message)] if self._batched else self._bare(message)
        began_s = time.monotonic()
        remark = None
        try:
            if is_coroutine_function(self._listener):
                returned = await self._listener(given)
            else:
                returned = await asyncio.to_thread(self._listener, given)
            result = "CR_LATER" if returned is False else "CR_SUCCESS"
        except Exception as e:
            log.warning("the listener failed on message %s, given to it by hand", message.message_id, exc_info=e)
            result, remark = "CR_THROW_EXCEPTION", "".join(traceback.format_exception_only(e)).strip()
        told = {
            "autoCommit": True,
            "consumeResult": result,
            "order": self._ordered,
            "remark": remark,
            "spentTimeMills": int((time.monotonic() - began_s) * 1000),
        }
        return bodies.encode({k: v for k, v in told.items() if v is not None})

    def _status(self) -> dict[str, dict[str, float]]:
        return {topic: self._membership.rates.status(topic) for topic in sorted(self._membership.subscriptions)}


def thread_stacks() -> str:
    """What every thread of this process is doing, innermost call first."""
    names = {t.ident: t.name for t in threading.enumerate()}
    found: list[str] = []
    for ident, frame in sys._current_frames().items():
        name = f"{names.get(ident, 'unknown'):40}"
        found.append(f"{name}TID: {ident} STATE: {'RUNNABLE' if ident == threading.get_ident() else 'UNKNOWN'}")
        calls = reversed(traceback.extract_stack(frame))
        found += [f"{name}{call.name}({call.filename}:{call.lineno})" for call in calls]
        found.append("")
    return "\n".join(found)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
