"""Messages that a listener did not take, on their way back to a broker.

Rule: a message leaves the process queue only once a broker has it, for a later attempt or as a dead letter; while no
broker takes it, it stays here and is tried again.
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Callable

import msgspec

from rocketspark import machine
from rocketspark.client import validators
from rocketspark.client.callbacks import Tasks, end_all
from rocketspark.client.connection import client_api
from rocketspark.client.connection.instance import INNER_GROUP, Instance
from rocketspark.client.consumer.consumer_options import ATTEMPTS_MAX
from rocketspark.client.consumer.puller import Puller
from rocketspark.errors import ServerError
from rocketspark.model import MessageQueue, ReceivedMessage, is_logical, namespace
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.headers import SendHeader
from rocketspark.protocol.message import properties, sysflags
from rocketspark.transport.peer import Peer

log = logging.getLogger("rocketspark.client")

AGAIN_S = 5.0
REFUSED_MAX = 3
FIRST_RETRY_LEVEL = 3
# On their way to brokers at once: of thousands that fail together the last ones' replies would come too late.
IN_FLIGHT_MAX = 64
# Attempts are over: as the group's dead letter.
DEAD_LETTER = -1
# Room for the properties that a broker adds.
BROKERS_BYTES = 512
_FORM_OF_BODY = sysflags.COMPRESSED | sysflags.COMPRESSION_MASK


class ReturnedMessages:
    """The messages of one consumer that its listener did not take, until a broker has them again.

    `of_namespace`: the namespace of the topics, "" for none. `attempts_max`: after so many attempts a broker makes a
    message a dead letter; None for the group's own number. `runs` returns False once the consumer closes: from then on
    a message that no broker takes is not tried again, and stays uncommitted. `again` gives a message to the listener
    once more.
    """

    def __init__(
        self,
        instance: Instance,
        group: str,
        of_namespace: str,
        *,
        attempts_max: int | None,
        runs: Callable[[], bool],
        again: Callable[[Puller, ReceivedMessage], None],
    ) -> None:
        self._instance = instance
        self._group = group
        self._namespace = of_namespace
        self._attempts_max = attempts_max
        self._runs = runs
        self._again = again
        self._tasks = Tasks()
        self._room = asyncio.Semaphore(IN_FLIGHT_MAX)

    def give_back(self, puller: Puller, message: ReceivedMessage) -> None:
        """Hand a message back to the broker for a later attempt; while that fails it stays here and is tried again."""
        self._tasks.begin(self._give_back(puller, message))

    def bury(self, puller: Puller, message: ReceivedMessage) -> None:
        """Make a message that no attempt can give to the listener a dead letter, so that it holds up no others."""
        self._tasks.begin(self._bury(puller, message))

    async def bury_popped(self, message: ReceivedMessage) -> None:
        """Make a popped message a dead letter. Raises what the broker raises."""
        full = self._wrapped(message)
        peer = await self._instance.master_of(MessageQueue(full.topic, message.broker_name, message.queue_id))
        await self._send_dead(peer, full)

    async def bury_in_order(self, puller: Puller, messages: list[ReceivedMessage]) -> bool:
        """Make messages that failed too often in an ordered queue dead letters. False if the broker does not take
        them.
        """
        try:
            for message in messages:
                peer = await self._holder(puller.queue, message)
                await self._send_dead(peer, self._wrapped(message))
        except Exception as e:
            log.warning("messages of %s are not taken as dead letters, they are tried again: %s", puller.queue, e)
            return False
        return True

    async def settle(self) -> None:
        """Wait until no message is on its way to a broker."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def end(self, seconds: float) -> None:
        """End the returns that are on their way; their messages are not committed."""
        await end_all(self._tasks, seconds)

    def _wrapped(self, message: ReceivedMessage) -> ReceivedMessage:
        """Return a message whose topic has its namespace, as brokers name it."""
        if not self._namespace:
            return message
        full = copy.copy(message)
        full.topic = namespace.wrap(self._namespace, message.topic)
        return full

    async def _holder(self, queue: MessageQueue, message: ReceivedMessage) -> Peer:
        """Return the connection to the broker in whose log a message is: one of a logical queue says it itself."""
        return await (
            self._instance.broker(message.store_host) if is_logical(queue) else self._instance.master_of(queue)
        )

    async def _bury(self, puller: Puller, message: ReceivedMessage) -> None:
        refused = 0
        while self._runs() and not puller.dropped:
            try:
                async with self._room:
                    peer = await self._holder(puller.queue, message)
                    await self._send_dead(peer, self._wrapped(message))
            except Exception as e:
                text = "offset %d of %s is not taken as a dead letter: %s"
                log.warning(text, message.queue_offset, puller.queue, e)
                refused += isinstance(e, ServerError)
                if refused < REFUSED_MAX:
                    await asyncio.sleep(AGAIN_S)
                    continue
                # For ever in work it would hold up what comes after it. Its broker has it as long as its queue.
                log.error("offset %d of %s is passed over", message.queue_offset, puller.queue)
            puller.process_queue.finish([message])
            return

    async def _give_back(self, puller: Puller, message: ReceivedMessage) -> None:
        async with self._room:
            if puller.dropped or not await self._is_given_back(puller, message):
                return
        puller.process_queue.finish([message])

    async def _is_given_back(self, puller: Puller, message: ReceivedMessage) -> bool:
        full = self._wrapped(message)
        try:
            if is_logical(puller.queue):
                peer = await self._holder(puller.queue, message)
            else:
                peer = await self._instance.peer_of(puller.queue)
            await self._send_back(peer, full)
            return True
        except Exception as e:
            log.info("message %s was not taken back, it is sent anew: %s", message.message_id, e)
        try:
            await self._send_anew(full)
            return True
        except Exception as e:
            log.warning("message %s is tried again here in %.0f s: %s", message.message_id, AGAIN_S, e)
        if self._runs():
            message.reconsume_times += 1
            asyncio.get_running_loop().call_later(AGAIN_S, self._again, puller, message)
        # Else it stays uncommitted, so that it comes again.
        return False

    async def _send_back(self, peer: Peer, message: ReceivedMessage, *, delay_level: int = 0) -> None:
        await client_api.send_back(
            peer,
            message,
            self._group,
            delay_level=delay_level,
            max_reconsume_times=self._attempts_max,
            unit_mode=self._instance.unit_mode,
        )

    async def _send_dead(self, peer: Peer, message: ReceivedMessage) -> None:
        try:
            await self._send_back(peer, message, delay_level=DEAD_LETTER)
        except ServerError as e:
            # By its place no broker takes back one message of a batch record.
            log.info("message %s was not taken as a dead letter, it is sent anew: %s", message.message_id, e)
            await self._send_anew(message, attempts_max=0)

    async def _send_anew(self, message: ReceivedMessage, *, attempts_max: int | None = None) -> None:
        topic = validators.RETRY_PREFIX + self._group
        times = message.reconsume_times + 1
        pairs = {k: v for k, v in message.properties.items() if k not in (properties.MIN_OFFSET, properties.MAX_OFFSET)}
        pairs.setdefault(properties.ORIGIN_MESSAGE_ID, message.offset_message_id)
        pairs[properties.RETRY_TOPIC] = message.topic
        pairs[properties.RECONSUME_TIME] = str(times)
        attempts_max = self._attempts_max if attempts_max is None else attempts_max
        if attempts_max is not None:
            pairs[properties.MAX_RECONSUME_TIMES] = str(attempts_max)
        pairs[properties.DELAY] = str(FIRST_RETRY_LEVEL + message.reconsume_times)
        # As they came: a value that another client let in keeps no message here.
        stored = whole = properties.of_pairs({k.encode(): v.encode() for k, v in pairs.items()})
        if times > (ATTEMPTS_MAX if attempts_max is None else attempts_max):
            # A dead letter: the broker adds some of its own.
            stored = properties.fitted(whole, properties.BYTES_MAX - BROKERS_BYTES)
        queue = (await self._instance.routes.find_write_queues(topic))[0]
        address = await self._instance.routes.find_master(queue)
        header = SendHeader(
            producer_group=INNER_GROUP,
            topic=topic,
            queue_id=queue.queue_id,
            # A body that did not inflate goes as it came, and says so.
            sys_flag=message.sys_flag & _FORM_OF_BODY if message.body_error is not None else 0,
            born_time_ms=int(machine.time() * 1000),
            flag=message.flag,
            properties=stored.decode(),
            reconsume_times=times,
            max_reconsume_times=attempts_max,
            unit_mode=self._instance.unit_mode,
            broker_name=queue.broker_name,
        )
        peer = await self._instance.broker(address)
        if attempts_max is None and stored is not whole:
            # The group's own number may be higher: a retry keeps all that its broker has room for.
            try:
                await client_api.send(peer, msgspec.structs.replace(header, properties=whole.decode()), message.body)
                return
            except ServerError as e:
                if e.code != ResponseCode.MESSAGE_ILLEGAL:
                    raise
        await client_api.send(peer, header, message.body)
