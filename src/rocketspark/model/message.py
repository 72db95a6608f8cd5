"""Messages: what an application sends and what it receives. Values only; nothing here touches the wire."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Message(msgspec.Struct, kw_only=True):
    """A message to send.

    `body` bytes, at most 4 MiB by default; `keys` are indexed and searched by, none may hold a blank;
    `delay_level` 1..18 (0 = at once); messages of one `sharding_key` keep their order; `flag` is the application's
    own 32-bit number; `wait_store_ok` false lets a SYNC_FLUSH broker answer before the flush.
    `properties` are the application's own; names of RocketMQ's system properties are refused when sending.
    """

    topic: str
    body: bytes
    tag: str | None = None
    keys: Sequence[str] = ()
    properties: dict[str, str] = {}
    sharding_key: str | None = None
    delay_level: int = 0
    flag: int = 0
    wait_store_ok: bool = True


class ReceivedMessage(msgspec.Struct, kw_only=True, gc=False):
    """A message as read from a queue.

    `message_id` is the producer's unique id (UNIQ_KEY), `offset_message_id` the broker's; `queue_offset` counts
    messages of the queue, `log_position` bytes of the broker's commit log; times are ms since 1970; hosts are
    "ip:port". `properties` hold everything stored, system ones too; `body` is inflated.
    """

    topic: str
    body: bytes
    tag: str | None
    keys: tuple[str, ...]
    properties: dict[str, str]
    broker_name: str
    queue_id: int
    queue_offset: int
    log_position: int
    stored_bytes: int
    message_id: str
    offset_message_id: str
    born_time_ms: int
    born_host: str
    store_time_ms: int
    store_host: str
    reconsume_times: int = 0
    prepared_transaction_position: int = 0
    flag: int = 0
    sys_flag: int = 0

    @property
    def queue(self) -> tuple[str, str, int]:
        """(topic, broker name, queue id)."""
        return (self.topic, self.broker_name, self.queue_id)
