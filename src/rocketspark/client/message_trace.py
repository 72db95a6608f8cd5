"""Message traces of a client, sent in the background. Rule: a trace never delays or fails the traced send or call; when
too many wait, the newest are dropped and counted (rule: AsyncTraceDispatcher, 5.x).
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import deque

from rocketspark import machine
from rocketspark.client.connection.instance import Instance
from rocketspark.client.hooks import Consuming, Ending, Hooks, HookSet, Sending
from rocketspark.client.producer.in_flight_send import AwaitedSend, InFlightSend
from rocketspark.client.producer.prepared_message import PackingSettings, pack
from rocketspark.client.producer.send_attempts import SendAttempts, SendSettings
from rocketspark.client.producer.send_path import SendPath
from rocketspark.client.results import SendStatus
from rocketspark.errors import RocketSparkError
from rocketspark.model import Message, ReceivedMessage
from rocketspark.protocol import trace
from rocketspark.protocol.message import properties
from rocketspark.protocol.message.message_ids import unique_ids

log = logging.getLogger("rocketspark.client")

WAITING_MAX = 2048
BATCH_MAX = 100
BATCH_BYTES = 128_000
# Of all properties of the message that carries them; 100 message ids take 3,300.
KEYS_BYTES = 30_000
_NO_KEY = re.compile("[\x00-\x1f\ud800-\udfff]")
PAUSE_S = 1.0
ATTEMPTS = 3
CLOSE_S = 6.0
PACKING = PackingSettings()
DEFAULT_REGION = "DefaultRegion"
GROUP_PREFIX = "_INNER_TRACE_PRODUCER"
_STATES = {"COMMIT": "COMMIT_MESSAGE", "ROLLBACK": "ROLLBACK_MESSAGE", "UNKNOWN": "UNKNOW"}


class Tracer(Hooks):
    """Writes message traces to a trace topic.

    `group`, `what`: of the client that is traced, "PRODUCE" or "CONSUME"; `dropped` counts what was given up.
    """

    def __init__(self, instance: Instance, topic: str, group: str, what: str) -> None:
        self._topic = topic
        # No hook sees its own sends.
        attempts = SendAttempts(instance, f"{GROUP_PREFIX}-{group}-{what}-1", SendSettings(), HookSet())
        # It sends as long as it runs.
        self._send_path: SendPath[InFlightSend] = SendPath(attempts, lambda: None)
        self._waiting: deque[tuple[str, str]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._closing = False
        self._wake = asyncio.Event()
        self.dropped = 0

    # -- what is seen --------------------------------------------------------------------------------------------

    def after_send(self, sending: Sending) -> None:
        """Trace a send, whether it worked or not."""
        pairs, result = sending.properties, sending.result
        if sending.oneway or not sending.trace_on:
            return
        self._put(
            trace.Published(
                time_ms=sending.born_time_ms,
                region=sending.region or DEFAULT_REGION,
                group=sending.group,
                topic=sending.topic,
                message_id=sending.message_id,
                tag=pairs.get(properties.TAGS, ""),
                keys=pairs.get(properties.KEYS, ""),
                store_host=sending.address,
                body_bytes=sending.body_bytes,
                cost_ms=int(sending.cost_ms),
                kind=_kind(pairs),
                offset_message_id=result.offset_message_id if result else "",
                success=result is not None and result.status is SendStatus.SEND_OK,
            ),
            sending.message_id,
            pairs.get(properties.KEYS, ""),
        )

    def after_end(self, ending: Ending) -> None:
        """Trace the end of a transaction."""
        self._put(
            trace.Ended(
                time_ms=int(machine.time() * 1000),
                region=DEFAULT_REGION,
                group=ending.group,
                topic=ending.topic,
                message_id=ending.message_id,
                tag=ending.tag or "",
                keys=ending.keys,
                store_host=ending.address,
                kind=trace.COMMIT,
                transaction_id=ending.transaction_id,
                state=_STATES[ending.state],
                from_check=ending.from_check,
            ),
            ending.message_id,
            ending.keys,
        )

    def before_consume(self, consuming: Consuming) -> None:
        """Trace that messages are handed to a listener."""
        consuming.notes["trace"] = request_id = unique_ids.next()
        now_ms = int(machine.time() * 1000)
        for message in _traced(consuming):
            keys = " ".join(message.keys)
            region = message.properties.get(properties.REGION, DEFAULT_REGION)
            self._put(
                trace.Received(
                    time_ms=now_ms,
                    region=region,
                    group=consuming.group,
                    request_id=request_id,
                    message_id=message.message_id,
                    retry_times=message.reconsume_times,
                    keys=keys,
                ),
                message.message_id,
                keys,
            )

    def after_consume(self, consuming: Consuming) -> None:
        """Trace that a listener has finished messages."""
        now_ms = int(machine.time() * 1000)
        cost_ms = int(consuming.cost_ms / max(len(consuming.messages), 1))
        context = 0 if consuming.success else 2 if consuming.error is not None else 4
        for message in _traced(consuming):
            keys = " ".join(message.keys)
            self._put(
                trace.Consumed(
                    request_id=consuming.notes.get("trace", ""),
                    message_id=message.message_id,
                    cost_ms=cost_ms,
                    success=consuming.success,
                    keys=keys,
                    context=context,
                    time_ms=now_ms,
                    group=consuming.group,
                ),
                message.message_id,
                keys,
            )

    # -- what is sent --------------------------------------------------------------------------------------------

    def _put(self, record: trace.Trace, message_ids: str, keys: str) -> None:
        """Queue a record. Called on the loop or in a listener's thread: a deque takes both."""
        if len(self._waiting) >= WAITING_MAX:
            self.dropped += 1
            return
        self._waiting.append((trace.encode(record), f"{message_ids.replace(',', ' ')} {keys}"))

    def start(self) -> None:
        """Begin to send."""
        self._task = asyncio.ensure_future(self._run())

    async def close(self) -> None:
        """Send what waits, once, and end."""
        if self._task is None:
            return
        self._closing = True
        self._wake.set()
        # One that is not done by then waits for brokers that do not answer.
        _, late = await asyncio.wait([self._task], timeout=CLOSE_S)
        for task in late:
            task.cancel()
            self.dropped += len(self._waiting)
        if self.dropped:
            log.warning("%d message traces were dropped: they came faster than they could be sent", self.dropped)

    async def _run(self) -> None:
        while not self._closing:
            try:
                async with asyncio.timeout(PAUSE_S):
                    await self._wake.wait()
            except TimeoutError:
                pass
            while self._waiting:
                try:
                    message = self._next_message()
                    out = pack(message, PACKING)
                    await AwaitedSend(self._send_path, out, None, None, None, ATTEMPTS).outcome()
                except RocketSparkError as e:
                    self.dropped += 1
                    log.info("message traces were not sent: %s", e)
                except asyncio.CancelledError:
                    if self._task is None or self._task.cancelling():
                        raise
                    # The send it waited for was cancelled, not this task.
                    self.dropped += 1
                except Exception:
                    self.dropped += 1
                    log.exception("message traces were not sent")

    def _next_message(self) -> Message:
        parts: list[str] = []
        keys: dict[str, None] = {}
        size = keys_size = 0
        while self._waiting and len(parts) < BATCH_MAX and size < BATCH_BYTES:
            text, of_it = self._waiting.popleft()
            parts.append(text)
            size += len(text)
            # Keys are those of messages of anybody. One that may be none, or has no room, costs no trace: its own.
            for key in _NO_KEY.sub(" ", of_it).split():
                key_bytes = len(key.encode(errors="replace")) + 1
                if key not in keys and keys_size + key_bytes <= KEYS_BYTES:
                    keys[key] = None
                    keys_size += key_bytes
        return Message(topic=self._topic, body="".join(parts).encode(errors="replace"), keys=list(keys))


def _traced(consuming: Consuming) -> list[ReceivedMessage]:
    return [m for m in consuming.messages if m.properties.get(properties.TRACE_ON) != "false"]


def _kind(pairs: dict[str, str]) -> int:
    if pairs.get(properties.TRANSACTION) == "true":
        return trace.HALF
    delayed = (properties.DELAY, properties.TIMER_DELAY_MS, properties.TIMER_DELIVER_MS)
    return trace.DELAY if any(name in pairs for name in delayed) else trace.NORMAL
