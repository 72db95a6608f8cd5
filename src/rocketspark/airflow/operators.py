"""Operators that produce, consume, and wait for a message."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from airflow.sdk import BaseOperator

from rocketspark import machine
from rocketspark.airflow.hook import DEFAULT, RocketMQHook
from rocketspark.airflow.trigger import RocketMQMessageTrigger
from rocketspark.client.callbacks import on_loop
from rocketspark.client.consumer.offsets import ConsumeFrom
from rocketspark.errors import UsageError
from rocketspark.model import Message, ReceivedMessage


class RocketMQProduceOperator(BaseOperator):
    """Sends messages, and returns their ids once all are stored.

    Args:
        topic: where to.
        messages: texts, bytes, or dicts with `body` and other fields of a Message; or a function that returns them.
        tag: of those that name none.
        rocketmq_conn_id: the Airflow connection.

    A task that is tried again sends all of them again: consumers have to stand that.
    """

    template_fields: Sequence[str] = ("topic", "messages", "tag")

    def __init__(
        self,
        *,
        topic: str,
        messages: Iterable[Any] | Callable[[], Iterable[Any]],
        tag: str | None = None,
        rocketmq_conn_id: str = DEFAULT,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.topic, self.messages, self.tag = topic, messages, tag
        self.rocketmq_conn_id = rocketmq_conn_id

    def execute(self, context: Any) -> list[str]:
        """Send. Raises UsageError for what is no message, else as `Producer.send`."""
        given = self.messages() if callable(self.messages) else self.messages
        if isinstance(given, str | bytes | Mapping):
            # A text that a template made of a list, for one: each of its characters would be a message.
            raise UsageError(f"messages is {given!r:.80}: a list is needed, of one message too")
        messages = [self._message(one) for one in given]
        with RocketMQHook(self.rocketmq_conn_id).get_conn() as producer:
            return [producer.send(message).message_id for message in messages]

    def _message(self, given: Any) -> Message:
        fields = dict(given) if isinstance(given, Mapping) else {"body": given}
        body = fields.pop("body", None)
        if not isinstance(body, str | bytes):
            raise UsageError(f"{given!r} is no message: a text, bytes, or a dict with a body is needed")
        fields["tag"] = fields.get("tag") or self.tag
        return Message(self.topic, body.encode() if isinstance(body, str) else body, **fields)


class RocketMQConsumeOperator(BaseOperator):
    """Hands the messages that are there to a function, in lists, and commits each list once the function has returned.

    Args:
        topic: what is read, by the members of `group`, from where the group is.
        group: the consumer group.
        function: plain or async, gets a list of ReceivedMessage; its results other than None are what the task returns.
        tags, sql: which messages.
        count_max: how many messages at most; None: all that come until none comes for `idle_s` seconds.
        batch_max: how long a list is at most.
        consume_from: where a group begins that never read: "first", "last" or ms since 1970.

    If the function raises, the task fails, and its list and all behind it are read again by the next try.
    """

    template_fields: Sequence[str] = ("topic", "group", "tags", "sql")

    def __init__(
        self,
        *,
        topic: str,
        group: str,
        function: Callable[[list[ReceivedMessage]], Any],
        tags: str = "*",
        sql: str | None = None,
        count_max: int | None = None,
        batch_max: int = 1000,
        idle_s: float = 5.0,
        consume_from: ConsumeFrom = "first",
        rocketmq_conn_id: str = DEFAULT,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.topic, self.group, self.function = topic, group, function
        self.tags, self.sql, self.consume_from = tags, sql, consume_from
        self.count_max, self.batch_max, self.idle_s = count_max, batch_max, idle_s
        self.rocketmq_conn_id = rocketmq_conn_id

    def execute(self, context: Any) -> list[Any]:
        """Consume. Raises what the function raises, else as PullConsumer."""
        hook, results, count = RocketMQHook(self.rocketmq_conn_id), [], 0
        with hook.consumer(self.group, auto_commit=False, consume_from=self.consume_from) as consumer:
            consumer.subscribe(self.topic, self.tags, sql=self.sql)
            while self.count_max is None or count < self.count_max:
                most = self.batch_max if self.count_max is None else min(self.batch_max, self.count_max - count)
                messages = consumer.poll(self.idle_s * 1000, count_max=most)
                if not messages:
                    break
                # What is only begun would be committed: a coroutine is run, a generator refused.
                if (result := self.function(messages)) is not None:
                    results.append(asyncio.run(on_loop(result)))
                consumer.commit({message.queue: message.queue_offset + 1 for message in messages})
                count += len(messages)
        self.log.info("%d messages of topic %s consumed by group %s", count, self.topic, self.group)
        return results


class RocketMQWaitOperator(BaseOperator):
    """Waits for a message without holding a worker, and returns it as a dict: topic, tag, keys, body, message_id.

    Args:
        topic, group, tags, sql: what is read, and by whom.
        function: the import path of a function, plain or async, that gets a ReceivedMessage and tells whether it is the
            one; by default the first one is. Those passed over are done.
        consume_from: where a group begins that never read; by default with what is stored from the task's start on.
        wait_timeout: after which the task fails.
    """

    template_fields: Sequence[str] = ("topic", "group", "tags", "sql")

    def __init__(
        self,
        *,
        topic: str,
        group: str,
        tags: str = "*",
        sql: str | None = None,
        function: str | None = None,
        consume_from: ConsumeFrom = "last",
        wait_timeout: timedelta | None = None,
        rocketmq_conn_id: str = DEFAULT,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.topic, self.group, self.tags, self.sql = topic, group, tags, sql
        self.function, self.consume_from, self.wait_timeout = function, consume_from, wait_timeout
        self.rocketmq_conn_id = rocketmq_conn_id

    def execute(self, context: Any) -> None:
        """Hand the wait to the triggerer."""
        # What comes until a triggerer reads, or another one after it, is waited for too.
        began_ms = int(machine.time() * 1000)
        trigger = RocketMQMessageTrigger(
            topic=self.topic,
            group=self.group,
            tags=self.tags,
            sql=self.sql,
            function=self.function,
            consume_from=began_ms if self.consume_from == "last" else self.consume_from,
            rocketmq_conn_id=self.rocketmq_conn_id,
        )
        self.defer(trigger=trigger, method_name="execute_complete", timeout=self.wait_timeout)

    def execute_complete(self, context: Any, event: dict[str, Any]) -> dict[str, Any]:
        """Return the message that was waited for."""
        return event
