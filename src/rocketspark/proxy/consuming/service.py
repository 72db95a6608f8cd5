"""All that consumers ask of the proxy, put together. Wiring only."""

from __future__ import annotations

import asyncio
from typing import Any

from rocketspark.model.limited_log import LimitedLog
from rocketspark.protocol.receipt_handle import ReceiptHandle
from rocketspark.proxy.brokers import Brokers
from rocketspark.proxy.calls.service import Service
from rocketspark.proxy.clients import Clients, ProxyClient
from rocketspark.proxy.consuming.group_members import GroupMembers
from rocketspark.proxy.consuming.handle_calls import HandleCalls, Held, changed, now_ms
from rocketspark.proxy.consuming.outcomes import Outcomes
from rocketspark.proxy.consuming.questions import Questions
from rocketspark.proxy.consuming.receive import Receives
from rocketspark.proxy.consuming.renewals import Renewals, RenewSettings
from rocketspark.proxy.retry_waits import retry_wait_ms
from rocketspark.proxy.settings import ProxySettings

log = LimitedLog("rocketspark.proxy")

END_S = 2.0


class Consuming:
    """Serves ReceiveMessage and what clients tell of received messages; gives back what vanished clients had; tells
    brokers of consumers, and answers what they ask about them.
    """

    def __init__(self, settings: ProxySettings, brokers: Brokers, clients: Clients, service: Service) -> None:
        self._brokers = brokers
        self._interval_s = settings.renew_interval_ms / 1000
        self.calls = HandleCalls(brokers, settings.invisible_ms_of_undelivered)
        how = RenewSettings(settings.renew_ahead_ms, settings.renew_ms_max, settings.renew_failures_max)
        self.renewals = Renewals(self._change, self._retry_wait_ms, now_ms, how)
        self._task: asyncio.Task[None] | None = None
        outcomes = Outcomes(
            settings, brokers, self.calls, self.renewals, lambda identity: clients.get(identity) is not None
        )
        self.receives = Receives(settings, brokers, clients, self.calls, self.renewals)
        service.serve("ReceiveMessage", self.receives.receive_message)
        service.serve("AckMessage", outcomes.ack_message)
        service.serve("ChangeInvisibleDuration", outcomes.change_invisible_duration)
        service.serve("ForwardMessageToDeadLetterQueue", outcomes.forward)
        questions = Questions(clients, self.renewals, settings.namesrv, settings.relay_timeout_ms)
        self.members = GroupMembers(
            brokers,
            clients,
            lambda language: brokers.connections(questions.routes, language),
            settings.heartbeat_interval_ms / 1000,
        )
        clients.when_told(self.members.changed)
        clients.when_gone(self.members.gone)
        clients.when_gone(self._gone)

    async def _change(self, held: Held, invisible_ms: int) -> ReceiptHandle | None:
        reply = await self.calls.change(held, invisible_ms)
        return None if reply.code else changed(held.handle, reply)

    async def _retry_wait_ms(self, group: str, attempts: int) -> int | None:
        config = await self._brokers.group(group)
        return None if config is None else retry_wait_ms(config.group_retry_policy, attempts)

    async def _gone(self, client: ProxyClient) -> None:
        self.calls.give_back(await self.renewals.take_all(client.identity), had=True)

    def begin(self) -> None:
        """Begin what goes on in the background."""
        self._task = asyncio.ensure_future(self._renew())
        self.members.begin()

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                self.renewals.begin_due()
            except Exception as e:
                log.exception("handles were not renewed: %s", e)

    async def close(self) -> None:
        """Give back what clients have, as nobody renews it any more, and end what goes on in the background."""
        task: asyncio.Task[Any] | None = self._task
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))
        await self.renewals.close()
        await self.members.close()
        for client in self.renewals.clients():
            self.calls.give_back(await self.renewals.take_all(client), had=True)
        await self.calls.settle(END_S)
