"""The trigger that waits for a message. Rule: it commits the message first, for nothing runs after the event."""

from __future__ import annotations

import asyncio
import inspect
import pkgutil
from collections.abc import AsyncIterator, Callable
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from rocketspark.airflow.hook import DEFAULT, RocketMQHook
from rocketspark.client import AsyncPullConsumer
from rocketspark.client.consumer.offsets import ConsumeFrom
from rocketspark.model import ReceivedMessage


class RocketMQMessageTrigger(BaseTrigger):
    """Fires at the first message of a topic that a function takes. Arguments: as RocketMQWaitOperator's."""

    def __init__(
        self,
        *,
        topic: str,
        group: str,
        tags: str = "*",
        sql: str | None = None,
        function: str | None = None,
        consume_from: ConsumeFrom = "last",
        rocketmq_conn_id: str = DEFAULT,
    ) -> None:
        super().__init__()
        self._arguments: dict[str, Any] = {
            "topic": topic,
            "group": group,
            "tags": tags,
            "sql": sql,
            "function": function,
            "consume_from": consume_from,
            "rocketmq_conn_id": rocketmq_conn_id,
        }

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return what the triggerer makes it of."""
        return "rocketspark.airflow.trigger.RocketMQMessageTrigger", dict(self._arguments)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Give one event, the message. What is read behind it stays for the next one of the group."""
        given = self._arguments
        takes: Callable[[ReceivedMessage], Any] = _first
        if given["function"] is not None:
            takes = pkgutil.resolve_name(given["function"])
        options = await RocketMQHook(given["rocketmq_conn_id"]).aarguments()
        options |= {"auto_commit": False, "consume_from": given["consume_from"]}
        async with AsyncPullConsumer(group=given["group"], **options) as consumer:
            consumer.subscribe(given["topic"], given["tags"], sql=given["sql"])
            while True:
                for message in await consumer.poll(1000, count_max=1):
                    # In a thread, as the triggerer's loop is shared by all waits.
                    taken = await asyncio.to_thread(takes, message)
                    if inspect.isawaitable(taken):
                        taken = await taken
                    await consumer.commit({message.queue: message.queue_offset + 1})
                    if taken:
                        yield TriggerEvent(told(message))
                        return


def told(message: ReceivedMessage) -> dict[str, Any]:
    """Return a message as a JSON object; a body that is no UTF-8 text has escapes in it."""
    return {
        "topic": message.topic,
        "tag": message.tag,
        "keys": list(message.keys),
        "body": message.body.decode("utf-8", "backslashreplace"),
        "message_id": message.message_id,
    }


def _first(message: ReceivedMessage) -> bool:
    return True
