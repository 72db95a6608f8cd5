"""A consumer's answers to a broker that asks for its status. Rule: the answers of MQClientInstance, 5.x, for push and
for lite pull consumers; names and units of the bodies are RocketMQ's.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from rocketspark import machine
from rocketspark.client.callbacks import on_loop, passes_on
from rocketspark.client.consumer.pop.popper import Popper
from rocketspark.client.consumer.puller import Puller
from rocketspark.client.consumer.rebalance import Rebalance
from rocketspark.client.hooks import is_coroutine_function
from rocketspark.client.validators import RETRY_PREFIX
from rocketspark.model import MessageQueue, ReceivedMessage
from rocketspark.model.text import LONG_MAX
from rocketspark.protocol.json import bodies, java_json
from rocketspark.protocol.json.bodies import QueueBody
from rocketspark.protocol.message import properties

log = logging.getLogger("rocketspark.client")

# The version that our frames name.
CLIENT_VERSION = "V5_5_0"
MIB = 1 << 20


class PullConsumerStatus:
    """A pull consumer's answers: it reports its queues, and takes no commands.

    `settings`: what it was made with, as text, by the names of RocketMQ's properties.
    """

    consume_type = "CONSUME_ACTIVELY"

    def __init__(self, rebalance: Rebalance, settings: Mapping[str, object]) -> None:
        self._rebalance = rebalance
        self._settings = settings
        self._began_ms = int(machine.time() * 1000)

    async def reset(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Do nothing: the application that polls decides where to read."""
        log.info("group %s polls for itself: it is not reset by a broker", self._rebalance.group)

    def positions(self, topic: str) -> dict[MessageQueue, int]:
        """Return an empty dict."""
        return {}

    async def consume(self, message: ReceivedMessage) -> bytes | None:
        """Return None: there is no listener."""
        return None

    def running_info(self, *, stacks: bool) -> bytes:
        """Return the body of the answer to GET_CONSUMER_RUNNING_INFO (307); `stacks`: with those of this process's
        threads.
        """
        members, settings = self._rebalance, {k: _text(v) for k, v in self._settings.items()}
        settings |= {
            "PROP_NAMESERVER_ADDR": "".join(f"{a};" for a in members.instance.routes.addresses),
            "PROP_CONSUME_TYPE": self.consume_type,
            "PROP_CLIENT_VERSION": CLIENT_VERSION,
            "PROP_CONSUMER_START_TIMESTAMP": str(self._began_ms),
            "consumerGroup": members.group,
            "language": "PYTHON",
        }
        subscribed = [bodies.SubscriptionBody.of(s) for _, s in sorted(members.subscriptions.items())]
        queues = [(QueueBody.of(q), self._queue(f)) for q, f in sorted(members.pullers.items())]
        parts = [
            b'"mqPopTable":%b' % java_json.encode_object_keys(self._popped()),
            b'"mqTable":%b' % java_json.encode_object_keys(queues),
            b'"properties":%b' % bodies.encode(settings),
            b'"statusTable":%b' % bodies.encode(self._status()),
            b'"subscriptionSet":%b' % bodies.encode(subscribed),
        ]
        if stacks:
            parts.insert(0, b'"jstack":%b' % bodies.encode(thread_stacks()))
        return b"{%b}" % b",".join(parts)

    def _status(self) -> dict[str, dict[str, float]]:
        return {}

    def _popped(self) -> list[tuple[QueueBody, dict[str, Any]]]:
        return []

    def _queue(self, puller: Puller) -> dict[str, Any]:
        process_queue, locks = puller.process_queue, self._rebalance.locks
        held = len(process_queue) > 0
        return {
            "cachedMsgCount": len(process_queue),
            "cachedMsgMaxOffset": process_queue.highest if held else 0,
            "cachedMsgMinOffset": process_queue.lowest if held else 0,
            "cachedMsgSizeInMiB": process_queue.bytes // MIB,
            "commitOffset": self._rebalance.offsets.to_commit(puller),
            "droped": puller.dropped,
            "lastConsumeTimestamp": puller.consumed_ms,
            "lastLockTimestamp": locks.locked_ms(puller.queue) if locks else puller.began_ms,
            "lastPullTimestamp": puller.pulled_ms,
            "locked": locks.holds(puller.queue) if locks else False,
            "transactionMsgCount": 0,
            "transactionMsgMaxOffset": 0,
            "transactionMsgMinOffset": 0,
            "tryUnlockTimes": 0,
        }


class PushConsumerStatus(PullConsumerStatus):
    """A push consumer's answers to a broker that asks for its status.

    `listener`: the application's, without hooks. `given`: turns one message into what the listener takes (a list,
    columns). `bare`: removes the namespace from a message's topic. `poppers`: by the queue that each pops.
    """

    consume_type = "CONSUME_PASSIVELY"

    def __init__(
        self,
        rebalance: Rebalance,
        settings: Mapping[str, object],
        listener: Callable[[Any], Any],
        *,
        ordered: bool,
        given: Callable[[ReceivedMessage], object],
        bare: Callable[[ReceivedMessage], ReceivedMessage],
        poppers: Mapping[MessageQueue, Popper],
    ) -> None:
        more = {"PROP_CONSUMEORDERLY": ordered, "PROP_THREADPOOL_CORE_SIZE": settings["consumeThreadMax"]}
        super().__init__(rebalance, {**settings, **more})
        self._listener = listener
        self._ordered = ordered
        self._given = given
        self._bare = bare
        self._poppers = poppers

    def _popped(self) -> list[tuple[QueueBody, dict[str, Any]]]:
        return [
            (QueueBody.of(q), {"droped": False, "lastPopTimestamp": p.popped_ms, "waitAckCount": p.waiting})
            for q, p in sorted(self._poppers.items())
        ]

    async def reset(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Continue the topic's queues that this member reads at these offsets, and commit them."""
        of_topic = {q: offset for q, offset in offsets.items() if q.topic == topic and 0 <= offset <= LONG_MAX}
        await self._rebalance.reset(of_topic)

    def positions(self, topic: str) -> dict[MessageQueue, int]:
        """Return the offsets up to which the topic's queues were read here; those of all topics for ""."""
        members = self._rebalance
        return {q: members.offsets.to_commit(f) for q, f in sorted(members.pullers.items()) if topic in ("", q.topic)}

    async def consume(self, message: ReceivedMessage) -> bytes | None:
        """Hand a message to the listener at once; return the body of the answer to CONSUME_MESSAGE_DIRECTLY (309).

        Nothing is committed or delivered again for it.
        """
        if message.topic == RETRY_PREFIX + self._rebalance.group:
            message.topic = message.properties.get(properties.RETRY_TOPIC, message.topic)
        given = self._given(self._bare(message))
        began_s = machine.monotonic()
        remark = None
        try:
            if is_coroutine_function(self._listener):
                returned = await self._listener(given)
            else:
                returned = await asyncio.to_thread(self._listener, given)
            returned = await on_loop(returned)
            result = "CR_LATER" if returned is False else "CR_SUCCESS"
        except BaseException as e:
            if passes_on(e):
                raise
            log.warning("the listener failed on message %s, given to it by hand", message.message_id, exc_info=e)
            result, remark = "CR_THROW_EXCEPTION", "".join(traceback.format_exception_only(e)).strip()
        told = {
            "autoCommit": True,
            "consumeResult": result,
            "order": self._ordered,
            "remark": remark,
            "spentTimeMills": int((machine.monotonic() - began_s) * 1000),
        }
        return bodies.encode({k: v for k, v in told.items() if v is not None})

    def _status(self) -> dict[str, dict[str, float]]:
        return {topic: self._rebalance.rates.status(topic) for topic in sorted(self._rebalance.subscriptions)}


def thread_stacks() -> str:
    """Return the stack of every thread of this process, innermost call first."""
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
