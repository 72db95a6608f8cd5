"""What one client can make the proxy do and keep: entries of requests, settings, commands that it does not read."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from google.protobuf import message_factory
from tests.support.patience import LIMIT_S
from tests.unit.proxy.conftest import RawClient, RunningProxy
from tests.unit.proxy.consuming.support import Consumer, make_topic
from tests.unit.proxy.consuming.test_consuming import wait_until
from tests.unit.proxy.consuming.test_receive import stored

from rocketspark.protocol.headers import PopReply
from rocketspark.protocol.message import compression
from rocketspark.proxy import clients as proxy_clients
from rocketspark.proxy import message_form
from rocketspark.proxy.checks import ENTRIES_MAX, REQUEST_BYTES_MAX, TURN, SendLimits, check_bytes, check_size
from rocketspark.proxy.clients import TOPIC_BYTES, WAITING_BYTES_MAX, Clients, TelemetryStream
from rocketspark.proxy.consuming import receive
from rocketspark.proxy.consuming.outcomes import Outcomes
from rocketspark.proxy.consuming.popped import popped
from rocketspark.proxy.consuming.receive import Receives
from rocketspark.proxy.consuming.renewals import Renewals, RenewSettings
from rocketspark.proxy.message_form import AT_ONCE_BYTES_MAX
from rocketspark.proxy.producing.send import Sends
from rocketspark.proxy.service import Asked, Reader, Service
from rocketspark.proxy.settings import ProxySettings
from rocketspark.proxy.wire import messages
from rocketspark.proxy.wire.enumerations import Code
from rocketspark.proxy.wire.statuses import Refused
from rocketspark.testing.cluster import Cluster
from rocketspark.transport.request_frames import Reply

pytestmark = pytest.mark.shows("security S12, S15, TelemetryStream.send without a time limit")

T, G = {"name": "T"}, {"name": "G"}


def lists_of(rpc: str) -> Iterator[str]:
    """Name the repeated fields of a call's request."""
    for field in messages.service().methods_by_name[rpc].input_type.fields:
        if field.is_repeated:
            yield field.name


def test_every_list_of_a_request_is_bounded_before_anybody_is_asked_for_it(proxy: RunningProxy) -> None:
    rpcs = [path.rpartition("/")[2] for path in proxy.server.service._handlers]
    listed = [(rpc, name) for rpc in rpcs for name in lists_of(rpc)]
    assert {rpc for rpc, _ in listed} == {"SendMessage", "AckMessage", "SyncLiteSubscription"}
    for rpc, name in listed:
        request = message_factory.GetMessageClass(messages.service().methods_by_name[rpc].input_type)()
        for _ in range(ENTRIES_MAX):
            getattr(request, name).append("x") if name == "lite_topic_set" else getattr(request, name).add()
        check_size(rpc, request)
        getattr(request, name).MergeFrom(getattr(request, name)[:1])
        with pytest.raises(Refused, match="at most 16384"):
            check_size(rpc, request)
    # What lies deeper has bytes at least.
    check_bytes("QueryRoute", REQUEST_BYTES_MAX)
    with pytest.raises(Refused, match="bytes"):
        check_bytes("QueryRoute", REQUEST_BYTES_MAX + 1)


def test_a_call_that_is_too_large_is_told_so(client: RawClient) -> None:
    request = messages.AckMessageRequest(topic=T, group=G, entries=[{"receipt_handle": "x"}] * (ENTRIES_MAX + 1))
    assert client.call("AckMessage", request).status.code == Code.BAD_REQUEST


async def stored_batch(*_: Any, **__: Any) -> tuple[Reply, str]:
    """Answer as a broker that stored a batch."""
    return Reply(0, None, b'{"msgId":"m","queueId":"0","queueOffset":"0"}', b"", "b"), "b"


def test_entries_that_wait_for_nobody_let_others_have_their_turn() -> None:
    async def main() -> None:
        unused: Any = None
        sends = Sends(unused, unused, SendLimits(), check_types=False)
        sends._send = stored_batch  # type: ignore[method-assign]
        renewals = Renewals(unused, unused, lambda: 0, RenewSettings())
        calls: Any = SimpleNamespace(ack=None)
        outcomes = Outcomes(ProxySettings(namesrv="n"), unused, calls, renewals, lambda identity: True)
        request = messages.AckMessageRequest(topic=T, group=G, entries=[{"receipt_handle": "x"}] * (4 * TURN))
        call: Any = SimpleNamespace(identity="/c", remote_address="1.2.3.4:5")
        sent = messages.SendMessageRequest(
            messages=[{"topic": T, "system_properties": {"message_id": "m"}, "body": b"x"}] * (4 * TURN)
        )
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.ensure_future(other())
        answer = await outcomes.ack_message(call, request)
        assert (answer.status.code, turns >= 3) == (Code.INVALID_RECEIPT_HANDLE, True)
        turns = 0
        answer = await sends.send_message(call, sent)
        # As they are read, and as their results are made.
        assert (answer.status.code, len(answer.entries), turns >= 7) == (Code.OK, 4 * TURN, True)
        task.cancel()

    asyncio.run(main())


def call_of(number: int, host: str = "1.2.3.4") -> Any:
    who = {"identity": f"/{number}", "client_id": str(number), "user": "", "remote_host": host}
    return SimpleNamespace(language="X", version="5", remote_address=f"{host}:5", **who)


def test_of_settings_what_is_used_is_kept_and_all_together_are_bounded() -> None:
    async def main() -> None:
        clients = Clients(1, 1)
        told = messages.Settings(client_type=1, user_agent={"hostname": "h" * 200_000}, access_point={"scheme": 1})
        told.publishing.topics.add(name="T")
        kept = clients.put(call_of(0), told)
        assert (kept.settings.ByteSize() < 300, kept.topics) == (True, {"T"})
        assert kept.kept_bytes - kept.least_bytes - kept.settings.ByteSize() == len("T") + TOPIC_BYTES
        clients.kept.most = 8 * kept.kept_bytes
        for number in range(1, 6):
            clients.put(call_of(number), told)
        for what in (clients.put, lambda call, _: clients.beats(call, "G", 3)):
            with pytest.raises(Refused) as caught:
                what(call_of(6), told)
            assert caught.value.code == Code.TOO_MANY_REQUESTS, "three quarters are one host's"
        for number in range(6, 8):
            clients.put(call_of(number, "other"), told)
        with pytest.raises(Refused):
            clients.put(call_of(8, "third"), told)
        # Who is there tells on.
        clients.put(call_of(5), told)
        with pytest.raises(Refused), clients.holding(kept, 1):
            raise AssertionError("it is too much")
        clients.end(kept)
        clients.put(call_of(8, "third"), told)
        for client in clients.all():
            clients.end(client)
        assert (clients.kept.total, clients.kept.of_host) == (0, {})

    asyncio.run(main())


def test_a_client_is_where_it_told_its_settings_last() -> None:
    """By that address rules decide whether its stream may be sent a message."""

    async def main() -> None:
        clients, told = Clients(1, 1), messages.Settings(client_type=1)
        for host in ("10.0.0.1", "203.0.113.9"):
            client = clients.put(call_of(0, host), told)
            assert client.address == f"{host}:5"
        clients.end(client)
        assert clients.kept.total == 0

    asyncio.run(main())


def test_a_silent_client_counts_for_as_long_as_its_stream_is_open_and_is_there_again_once_it_is_heard() -> None:
    async def main() -> None:
        clients, call, gone, told_again = Clients(-1, 1), call_of(0), list[Any](), list[Any]()

        async def left(client: Any) -> None:
            gone.append(client)

        clients.when_gone(left)
        clients.when_told(told_again.append)
        settings, stream = messages.Settings(client_type=1), TelemetryStream(None)
        settings.publishing.topics.add(name="T")
        client = clients.put(call, settings)
        client.streams.append(stream)
        kept = clients.kept.total
        clients.expire()
        await asyncio.sleep(0)
        assert (clients.all(), gone, clients.kept.total) == ([], [client], kept), "its stream holds what it told"
        # A heartbeat of a producer names no group.
        assert clients.lives(call) is client
        assert (clients.producers_of("T"), told_again[1:], clients.kept.total) == ([client], [client], kept)
        clients.expire()
        # Who is back before that is told is not gone.
        clients.lives(call)
        await asyncio.sleep(0)
        assert gone == [client]
        clients.expire()
        clients.stream_ended(client, stream, cut=True)
        assert (clients.lives(call), clients.kept.total, clients.kept.of_host) == (None, 0, {})

    asyncio.run(main())


@pytest.mark.shows("what one host's clients have brokers hold, and do not read")
def test_what_a_client_says_of_itself_in_each_call_counts_or_is_cut() -> None:
    async def main() -> None:
        clients, call = Clients(1, 1), call_of(0)
        call.identity, call.language, call.version = "/" + "x" * 5000, "L" * 5000, "5" * 5000
        client = clients.beats(call, "G", 3)
        assert (clients.kept.total > 3 * 5000, len(client.language), len(client.version)) == (True, 64, 64)
        clients.end(client)
        assert clients.kept.total == 0

    asyncio.run(main())


def test_a_receive_goes_to_the_broker_asked_for_or_to_those_that_can_be_read_in_turn() -> None:
    async def main() -> None:
        masters = {"a": "1", "b": "1", "c": "1", "slaves": None, "full": "1"}
        queues = [SimpleNamespace(broker_name=name, perm=6, read_queue_count=1) for name in masters]
        queues[2].perm, queues[4].read_queue_count = 2, 0
        queues.append(SimpleNamespace(broker_name="gone", perm=6, read_queue_count=1))
        held = {name: SimpleNamespace(master=master) for name, master in masters.items()}
        route = SimpleNamespace(queues=queues, broker=held.get)
        unused: Any = None
        forgotten: list[str] = []
        brokers: Any = SimpleNamespace(route=lambda topic: asyncio.sleep(0, route), forget_route=forgotten.append)
        receives = Receives(ProxySettings(namesrv="n"), brokers, unused, unused, unused)

        async def asked(name: str) -> str:
            return await receives._broker_name(cast(Any, SimpleNamespace(topic="T", broker_name=name)))

        assert [await asked("b") for _ in range(2)] == ["b", "b"]
        for name in ("", "c", "slaves", "full", "gone"):
            assert {await asked(name), await asked(name)} == {"a", "b"}
        del queues[:2]
        with pytest.raises(Refused) as caught:
            await asked("c")
        assert (caught.value.code, str(caught.value)) == (Code.FORBIDDEN, "no readable queue")
        # A master may be elected at any moment.
        assert forgotten == ["T"]

    asyncio.run(main())


@pytest.mark.shows("what one host's clients have brokers hold, and do not read")
def test_messages_that_clients_do_not_read_are_bounded_and_the_others_are_given_back() -> None:
    async def main() -> None:
        reads, written, given_back = asyncio.Event(), [], list[Any]()

        async def write(answer: Any) -> None:
            written.append(answer)
            if answer.status.code == Code.OK:
                await reads.wait()

        unused: Any = None
        calls: Any = SimpleNamespace(give_back=lambda held, had, at_once: given_back.extend(held))
        receives = Receives(ProxySettings(namesrv="n"), unused, unused, calls, unused)
        receives.unread.most = 1600
        call: Any = SimpleNamespace(context=SimpleNamespace(write=write), write=write)
        client: Any = SimpleNamespace(host="1.2.3.4")
        far_ms = 1 << 45
        told = PopReply(pop_time_ms=far_ms, invisible_time_ms=1, start_offsets="0 1 5", message_offsets="0 1 5")
        wanted: Any = SimpleNamespace(client=client, host=client.host, renews=False, group="G", topic="T")

        def deliver() -> asyncio.Future[None]:
            return asyncio.ensure_future(
                receives._deliver(call, wanted, [*popped(told, stored(5, body=b"x" * 100), "b")])
            )

        reading = [deliver() for _ in range(3)]
        await asyncio.sleep(0)
        await deliver()
        assert (call.code, len(given_back)) == (Code.TOO_MANY_REQUESTS, 1), "three quarters are one host's"
        with pytest.raises(Refused):
            await receives._pop(wanted)
        reads.set()
        await asyncio.gather(*reading)
        assert (receives.unread.total, len(given_back)) == (0, 1)

    asyncio.run(main())


def test_bodies_count_as_they_inflate_and_others_have_their_turn_meanwhile() -> None:
    async def main() -> None:
        written, given_back, turns, reads = list[Any](), list[Any](), 0, asyncio.Event()

        async def write(answer: Any) -> None:
            written.append((answer, turns))
            if answer.message.body:
                await reads.wait()
            elif answer.HasField("delivery_timestamp") and not reads.is_set():
                raise ConnectionError("gone")

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        unused: Any = None
        calls: Any = SimpleNamespace(give_back=lambda held, had, at_once: given_back.extend(held))
        receives = Receives(ProxySettings(namesrv="n"), unused, unused, calls, unused)
        receives.unread.most = 12 * AT_ONCE_BYTES_MAX
        call: Any = SimpleNamespace(context=SimpleNamespace(write=write), write=write)
        told = PopReply(pop_time_ms=1 << 45, invisible_time_ms=1, start_offsets="0 1 5", message_offsets="0 1 5,6")
        wanted: Any = SimpleNamespace(client=unused, host="1.2.3.4", renews=False, group="G", topic="T")
        body, flags = compression.deflate(b"x" * 2 * AT_ONCE_BYTES_MAX)
        stored_twice = b"".join(stored(offset, body=body, sys_flag=flags) for offset in (5, 6))

        def deliver() -> asyncio.Future[None]:
            return asyncio.ensure_future(receives._deliver(call, wanted, [*popped(told, stored_twice, "b")]))

        task, reading = asyncio.ensure_future(other()), [deliver() for _ in range(2)]
        await wait_until_async(lambda: len(written) == 4)
        # While a body inflates in its thread: it is longer than what is inflated at once.
        assert written[2][1] > written[1][1]
        assert receives.unread.total > 8 * AT_ONCE_BYTES_MAX
        with pytest.raises(ConnectionError):
            await deliver()
        answers = [answer for answer, _ in written[4:]]
        assert [answer.WhichOneof("content") for answer in answers] == ["status", "delivery_timestamp"]
        assert len(given_back) == 2, "they come again, each once"
        reads.set()
        await asyncio.gather(*reading)
        task.cancel()
        assert (receives.unread.total, len(given_back)) == (0, 2)

    asyncio.run(main())


def test_a_body_that_nobody_waits_for_is_not_inflated(monkeypatch: pytest.MonkeyPatch) -> None:
    inflated, free = list[bytes](), threading.Event()
    monkeypatch.setattr(message_form, "fill", lambda made, record, topic, pairs, now_ms: inflated.append(record.body))

    async def main() -> None:
        bodies = [compression.deflate(kind * 2 * AT_ONCE_BYTES_MAX) for kind in (b"x", b"y")]
        told = PopReply(pop_time_ms=1 << 45, invisible_time_ms=1, start_offsets="0 1 5", message_offsets="0 1 5,6")
        both = b"".join(stored(5 + i, body=body, sys_flag=flags) for i, (body, flags) in enumerate(bodies))
        message_form._inflating.run(lambda: free.wait(LIMIT_S))
        gone, there = (
            asyncio.ensure_future(message_form.fill_apart(None, one.record, "T", one.pairs, 0))
            for one in popped(told, both, "b")
        )
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        free.set()
        await there
        assert inflated == [bodies[1][0]]

    asyncio.run(main())


async def wait_until_async(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not true():
            await asyncio.sleep(0.001)


@pytest.mark.shows("what one host's clients have brokers hold, and do not read")
def test_what_brokers_hold_of_one_connection_no_client_takes_alone(
    cluster: Cluster, proxy: RunningProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A receive that its client gave up counts until its broker answers it."""
    monkeypatch.setattr(receive, "HELD_MAX", 8)
    make_topic(cluster.brokers[0], "held")
    consumer = Consumer(proxy.address, "G", "held")
    held = [consumer.receiving(polling_ms=5000, expression=tags) for tags in ("x" * 240, "*")]
    shares = proxy.server.consuming.receives.held
    wait_until(lambda: [each.total for each in shares.values()] == [6])
    assert consumer.answers()[0].status.code == Code.TOO_MANY_REQUESTS
    for one in held:
        one.cancel()
    wait_until(lambda: proxy.server.service.at_work == 0)
    assert consumer.answers()[0].status.code == Code.TOO_MANY_REQUESTS
    wait_until(lambda: not shares["broker-a"].total)
    consumer.vanish()


def test_a_filter_that_a_call_names_counts_as_kept() -> None:
    async def main() -> None:
        clients = Clients(1, 1)
        request = messages.ReceiveMessageRequest(group=G, message_queue={"topic": T})
        request.filter_expression.expression = "x" * 1000
        client = clients.receives(call_of(0), request)
        kept = client.kept_bytes
        request.filter_expression.expression = "x" * 3000
        assert clients.receives(call_of(0), request).kept_bytes > kept + 1900
        clients.kept.most = 10_000
        request.filter_expression.expression = "x" * 9000
        with pytest.raises(Refused):
            clients.receives(call_of(0), request)
        assert (clients.all(), clients.kept.total) == ([], 0)

    asyncio.run(main())


def test_nothing_holds_a_command_of_a_stream_while_the_next_one_is_awaited() -> None:
    """grpc.aio keeps what it gave: it is given bytes that are taken out."""

    async def main() -> None:
        asked = Asked(messages.TelemetryCommand().SerializeToString())

        async def received() -> AsyncIterator[Asked]:
            yield asked

        call: Any = SimpleNamespace(rpc="Telemetry")
        async for _ in Service()._guarded(call, received(), Reader("Telemetry")):
            assert asked.data == b""

    asyncio.run(main())
    service = Service()
    service.serve("Telemetry", lambda call, requests: None)
    (handler,) = service._handlers.values()
    assert handler.request_deserializer is Asked


def test_a_client_that_does_not_read_its_commands_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy_clients, "WRITE_S", 0.2)

    async def main() -> None:
        never = asyncio.Event()

        async def write(command: Any) -> None:
            await never.wait()

        stream = TelemetryStream(SimpleNamespace(write=write))
        large = messages.TelemetryCommand(settings={"user_agent": {"hostname": "x" * (WAITING_BYTES_MAX // 4)}})
        # A burst of questions waits for its turn.
        sends = [asyncio.ensure_future(stream.send(messages.TelemetryCommand())) for _ in range(1000)]
        sends += [asyncio.ensure_future(stream.send(large)) for _ in range(4)]
        await asyncio.sleep(0)
        assert sends[-1].done(), "it is one too many"
        assert stream.is_open
        assert await asyncio.gather(*sends) == [False] * 1004
        assert not stream.is_open

    asyncio.run(main())
