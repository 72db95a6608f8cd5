"""An operator's work on a cluster. Rule: each operation is written once, here or in access, brokers, groups and
messages, of the calls in client.connection (admin_api, broker_api, client_api); the command line only shows its result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import msgspec

from rocketspark import machine
from rocketspark.admin.access import AccessOperations
from rocketspark.admin.brokers import BrokerOperations
from rocketspark.admin.cluster_client import Aside, QueueProgress, QueueState, TopicMade, TopicState, done_or_raise
from rocketspark.admin.lite_topics import LiteTopicOperations
from rocketspark.admin.messages.operations import MessageOperations
from rocketspark.admin.offsets import OffsetOperations
from rocketspark.admin.progress import ProgressOperations
from rocketspark.admin.static_topics import StaticTopicOperations
from rocketspark.client import validators
from rocketspark.client.connection import admin_api, client_api
from rocketspark.client.connection.topic_changes import TopicChange, put_topic
from rocketspark.client.facade import Facade, arguments_of, blocking
from rocketspark.errors import RouteNotFound, ServerError, UsageError
from rocketspark.model import MessageQueue
from rocketspark.model.route import MASTER_ID
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.topic_attributes import MESSAGE_TYPE, MESSAGE_TYPES

ROUTE_WAIT_S = 3.0


class AsyncAdmin(
    AccessOperations,
    BrokerOperations,
    ProgressOperations,
    OffsetOperations,
    MessageOperations,
    StaticTopicOperations,
    LiteTopicOperations,
):
    """Operations on a cluster, on the running asyncio loop.

    `namesrv`: "host:port;host:port"; None takes ROCKETMQ_NAMESRV_ADDR or NAMESRV_ADDR from the environment.
    `access`: keys that every request is signed with, and TLS.

    >>> async with AsyncAdmin("127.0.0.1:9876") as operations:
    ...     print(await operations.list_topics())
    """

    # -- topics --------------------------------------------------------------------------------------------------

    async def list_topics(self) -> list[str]:
        """Return the names of all topics, sorted; RocketMQ's own are among them."""
        found = await self._routes.ask(lambda peer: admin_api.topic_list(peer, timeout_ms=self._timeout_ms))
        return sorted(found)

    async def show_topic(self, topic: str) -> TopicState:
        """Return a topic's route and the offsets of its queues. Raises RouteNotFound, or what a broker raises."""
        validators.check_topic(topic)
        route = await self._routes.refresh(topic)
        states = await asyncio.gather(*(self._queue_state(q) for q in route.read_queues()))
        master = next((b.master for b in route.brokers if b.master), None)
        config = None
        if master is not None:
            config = await admin_api.topic_settings(await self._broker(master), topic, timeout_ms=self._timeout_ms)
        attributes = dict(config.attributes) if config is not None else {}
        return TopicState(topic, route, tuple(states), attributes.get(MESSAGE_TYPE, ""), attributes)

    async def _queue_state(self, queue: MessageQueue) -> QueueState:
        peer = await self._broker(await self._routes.find_readable(queue))
        lowest, highest = await asyncio.gather(
            client_api.min_offset(peer, queue, timeout_ms=self._timeout_ms),
            client_api.max_offset(peer, queue, timeout_ms=self._timeout_ms),
        )
        return QueueState(queue, lowest, highest)

    async def create_topic(
        self,
        topic: str,
        *,
        queue_count: int | None = None,
        read_queue_count: int | None = None,
        write_queue_count: int | None = None,
        perm: int | None = None,
        order: bool | None = None,
        attributes: str = "",
        message_type: str | None = None,
        cluster: str | None = None,
        brokers: Iterable[str] | None = None,
        force: bool = False,
    ) -> list[TopicMade]:
        """Create a topic on masters; where it exists, what is not named stays as it is. Returns those masters.

        Args:
            queue_count: on each broker, a new topic gets 4; `read_queue_count`, `write_queue_count` if they differ.
            perm: 4 read, 2 write, 6 both; a new topic gets 6.
            attributes: "+name=value,-name".
            message_type: what clients of RocketMQ 5 may send: NORMAL, FIFO, DELAY, TRANSACTION, PRIORITY, LITE
                or MIXED.
            cluster, brokers: only that cluster's brokers, or those of the names given; by default all.
            force: also take queues away that hold messages, which nobody can read then.

        Returns once the NameServer shows the topic as it is now. Raises MessageIllegal, UsageError, or what a broker
        raises, after all others were asked.
        """
        validators.check_target(topic)
        if message_type is not None:
            if message_type not in MESSAGE_TYPES:
                raise UsageError(f"message_type {message_type!r} is not one of {', '.join(MESSAGE_TYPES)}")
            attributes = ",".join(filter(None, (attributes, f"+{MESSAGE_TYPE}={message_type}")))
        change = TopicChange(
            read_queue_count=queue_count if read_queue_count is None else read_queue_count,
            write_queue_count=queue_count if write_queue_count is None else write_queue_count,
            perm=perm,
            order=order,
            attributes=attributes,
        )
        targets = {target.broker_name: target for target in await self._masters(cluster, brokers)}
        done = await put_topic(
            topic,
            change,
            {name: target.address for name, target in targets.items()},
            self._broker,
            self._routes,
            force=force,
            timeout_ms=self._timeout_ms,
        )
        made = []
        for name, put in done_or_raise(f"create topic {topic!r}", done).items():
            at = targets[name]
            made.append(TopicMade(at.cluster, name, 0, at.address, put.existed, put.changed, put.read_queue_count))
        await self._await_route(topic, {(m.broker_name, m.queue_count) for m in made})
        return made

    async def update_topic(
        self,
        topic: str,
        *,
        read_queue_count: int | None = None,
        write_queue_count: int | None = None,
        perm: int | None = None,
        order: bool | None = None,
        attributes: str = "",
        message_type: str | None = None,
        brokers: Iterable[str] | None = None,
        force: bool = False,
    ) -> list[TopicMade]:
        """Change a topic where it is; arguments as for `create_topic`. Raises UsageError where it is not."""
        there = await self.topic_configs(topic)
        wanted = list(there if brokers is None else dict.fromkeys(brokers))
        if missing := [name for name in wanted if name not in there] or ([] if there else ["any broker"]):
            raise UsageError(f"topic {topic!r} is not on {', '.join(missing)}: create it there first")
        return await self.create_topic(
            topic,
            read_queue_count=read_queue_count,
            write_queue_count=write_queue_count,
            perm=perm,
            order=order,
            attributes=attributes,
            message_type=message_type,
            brokers=wanted,
            force=force,
        )

    async def _await_route(self, topic: str, wanted: set[tuple[str, int]]) -> None:
        # Brokers tell the NameServer at once, but not before they answer.
        end_s = machine.monotonic() + ROUTE_WAIT_S
        while machine.monotonic() < end_s:
            try:
                queues = (await self._routes.refresh(topic)).queues
                if wanted <= {(q.broker_name, q.read_queue_count) for q in queues}:
                    return
            except RouteNotFound:
                pass
            await asyncio.sleep(0.02)

    async def delete_topic(self, topic: str) -> list[str]:
        """Remove a topic, with its messages, from all brokers and NameServers; returns the brokers' names.

        Raises RouteNotFound if there is no such topic.
        """
        validators.check_target(topic)
        route = await self._routes.refresh(topic)
        for broker in route.brokers:
            # The master first; under a controller its slaves refuse, as they hear of it from the master.
            for broker_id, address in sorted(broker.addresses.items()):
                try:
                    await admin_api.delete_topic(await self._broker(address), topic, timeout_ms=self._timeout_ms)
                except ServerError as e:
                    if broker_id == MASTER_ID or broker.master is None or e.code != ResponseCode.SYSTEM_ERROR:
                        raise
        self._routes.forget(topic)
        await self._routes.ask_all(lambda peer: admin_api.delete_topic_route(peer, topic, timeout_ms=self._timeout_ms))
        return [b.broker_name for b in route.brokers]

    # -- groups --------------------------------------------------------------------------------------------------

    async def show_progress(self, group: str, topic: str) -> list[QueueProgress]:
        """Return a group's progress in each queue of a topic. Raises RouteNotFound, or what a broker raises."""
        route = await self._routes.refresh(validators.check_topic(topic))
        return list(await asyncio.gather(*(self._progress(group, q) for q in route.read_queues())))

    async def _progress(self, group: str, queue: MessageQueue) -> QueueProgress:
        # The end first: what is committed meanwhile is no less.
        state = await self._queue_state(queue)
        peer = await self._broker(await self._routes.find_readable(queue))
        committed = await client_api.query_consumer_offset(
            peer, queue, group, zero_if_not_found=False, timeout_ms=self._timeout_ms
        )
        return QueueProgress(queue, state.min_offset, state.max_offset, committed)

    # -- what brokers set aside ------------------------------------------------------------------------------------

    async def list_quarantine(self, broker: str | None = None) -> list[Aside]:
        """Return the messages that brokers quarantined, by broker, oldest first: they are not delivered, or checked,
        any more.

        `broker`: only this one's; by default those of all.
        """
        found = []
        for target in await self._masters(None, None if broker is None else [broker]):
            entries = await admin_api.list_quarantine(await self._broker(target.address), timeout_ms=self._timeout_ms)
            found += [Aside(target.broker_name, **msgspec.structs.asdict(entry)) for entry in entries]
        return found

    async def retry_quarantined(self, name: str, broker: str | None = None) -> str:
        """Have a broker try a quarantined message again; returns the broker's name. `name`: as `list_quarantine` gives
        it.

        Raises the broker's error; then the message stays in quarantine.
        """
        return await self._end_quarantine(name, broker, retry=True)

    async def drop_quarantined(self, name: str, broker: str | None = None) -> str:
        """Have a broker drop a quarantined message; returns the broker's name. In the log the message stays until it
        expires.

        `name`: as `list_quarantine` gives it.
        """
        return await self._end_quarantine(name, broker, retry=False)

    async def _end_quarantine(self, name: str, broker: str | None, *, retry: bool) -> str:
        where = sorted({e.broker_name for e in await self.list_quarantine(broker) if e.name == name})
        if len(where) != 1:
            raise UsageError(
                f"{name!r} is set aside on {', '.join(where)}: name the broker"
                if where
                else f"nothing named {name!r} is set aside"
            )
        (target,) = await self._masters(None, where)
        peer = await self._broker(target.address)
        await admin_api.end_quarantine(peer, name, retry=retry, timeout_ms=self._timeout_ms)
        return where[0]


class Admin(Facade[AsyncAdmin]):
    """The operations of `AsyncAdmin` for programs without asyncio; arguments and rules are the same."""

    _closes_unreferenced = True

    @arguments_of(AsyncAdmin.__init__)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(AsyncAdmin(*args, **kwargs))

    list_topics = blocking(AsyncAdmin.list_topics)
    show_topic = blocking(AsyncAdmin.show_topic)
    create_topic = blocking(AsyncAdmin.create_topic)
    create_static_topic = blocking(AsyncAdmin.create_static_topic)
    update_topic = blocking(AsyncAdmin.update_topic)
    delete_topic = blocking(AsyncAdmin.delete_topic)
    list_groups = blocking(AsyncAdmin.list_groups)
    show_progress = blocking(AsyncAdmin.show_progress)
    check_known = blocking(AsyncAdmin.check_known)
    list_group_states = blocking(AsyncAdmin.list_group_states)
    group_lag = blocking(AsyncAdmin.group_lag)
    put_group = blocking(AsyncAdmin.put_group)
    show_group = blocking(AsyncAdmin.show_group)
    set_request_mode = blocking(AsyncAdmin.set_request_mode)
    list_request_modes = blocking(AsyncAdmin.list_request_modes)
    delete_group = blocking(AsyncAdmin.delete_group)
    reset_offsets = blocking(AsyncAdmin.reset_offsets)
    export_offsets = blocking(AsyncAdmin.export_offsets)
    import_offsets = blocking(AsyncAdmin.import_offsets)
    list_members = blocking(AsyncAdmin.list_members)
    list_clients = blocking(AsyncAdmin.list_clients)
    show_client = blocking(AsyncAdmin.show_client)
    list_quarantine = blocking(AsyncAdmin.list_quarantine)
    retry_quarantined = blocking(AsyncAdmin.retry_quarantined)
    drop_quarantined = blocking(AsyncAdmin.drop_quarantined)
    cluster_info = blocking(AsyncAdmin.cluster_info)
    find_broker = blocking(AsyncAdmin.find_broker)
    broker_info = blocking(AsyncAdmin.broker_info)
    broker_states = blocking(AsyncAdmin.broker_states)
    broker_counter = blocking(AsyncAdmin.broker_counter)
    broker_config = blocking(AsyncAdmin.broker_config)
    set_broker_config = blocking(AsyncAdmin.set_broker_config)
    broker_epochs = blocking(AsyncAdmin.broker_epochs)
    replication = blocking(AsyncAdmin.replication)
    replica_sets = blocking(AsyncAdmin.replica_sets)
    topic_stats = blocking(AsyncAdmin.topic_stats)
    topic_configs = blocking(AsyncAdmin.topic_configs)
    topic_making = blocking(AsyncAdmin.topic_making)
    topic_traffic = blocking(AsyncAdmin.topic_traffic)
    group_traffic = blocking(AsyncAdmin.group_traffic)
    list_lite_topics = blocking(AsyncAdmin.list_lite_topics)
    show_lite_topic = blocking(AsyncAdmin.show_lite_topic)
    lite_group_lag = blocking(AsyncAdmin.lite_group_lag)
    show_lite_client = blocking(AsyncAdmin.show_lite_client)
    dispatch_lite = blocking(AsyncAdmin.dispatch_lite)
    lite_broker_info = blocking(AsyncAdmin.lite_broker_info)
    check_keys = blocking(AsyncAdmin.check_keys)
    create_user = blocking(AsyncAdmin.create_user)
    update_user = blocking(AsyncAdmin.update_user)
    delete_user = blocking(AsyncAdmin.delete_user)
    get_user = blocking(AsyncAdmin.get_user)
    list_users = blocking(AsyncAdmin.list_users)
    copy_users = blocking(AsyncAdmin.copy_users)
    create_acl = blocking(AsyncAdmin.create_acl)
    update_acl = blocking(AsyncAdmin.update_acl)
    delete_acl = blocking(AsyncAdmin.delete_acl)
    get_acl = blocking(AsyncAdmin.get_acl)
    list_acls = blocking(AsyncAdmin.list_acls)
    copy_acls = blocking(AsyncAdmin.copy_acls)
    query_message = blocking(AsyncAdmin.query_message)
    view_message = blocking(AsyncAdmin.view_message)
    get_message = blocking(AsyncAdmin.get_message)
    get_message_at = blocking(AsyncAdmin.get_message_at)
    find_messages = blocking(AsyncAdmin.find_messages)
    send_message = blocking(AsyncAdmin.send_message)
    resend_message = blocking(AsyncAdmin.resend_message)
    trace_message = blocking(AsyncAdmin.trace_message)
    track_message = blocking(AsyncAdmin.track_message)
    consume_directly = blocking(AsyncAdmin.consume_directly)
    list_dead_letters = blocking(AsyncAdmin.list_dead_letters)
    show_dead_letters = blocking(AsyncAdmin.show_dead_letters)
    resend_dead_letters = blocking(AsyncAdmin.resend_dead_letters)
    list_delayed = blocking(AsyncAdmin.list_delayed)
    list_transactions = blocking(AsyncAdmin.list_transactions)
    check_transaction = blocking(AsyncAdmin.check_transaction)


__all__ = ["Admin", "AsyncAdmin"]
