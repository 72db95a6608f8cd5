"""Load on a gRPC proxy, as a plain client written with grpc.aio puts it: one call a message, so many under way.

Prints JSON: calls or messages done, seconds, the tool's processor seconds, and for latencies p50 and p99 in ms. On two
cores the tool takes a core of its own: some 6,000 calls a second are what it reaches itself.

Run: python -m bench.grpc_load 127.0.0.1:8081 send --topic T --window 64 --seconds 3
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
from google.protobuf import message_factory

from bench.report import percentile
from rocketspark.proxy.wire import messages

METADATA = (("x-mq-client-id", "bench@1"), ("x-mq-language", "PYTHON"), ("x-mq-protocol", "v2"))
CALL_S_MAX = 60.0
RECEIVE_BATCH = 32
SENDS_A_SECOND = 100


class Client:
    """One connection to a proxy."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.aio.insecure_channel(address)
        self._calls = {method.name: self._call(method) for method in messages.service().methods}

    def _call(self, method: Any) -> Any:
        takes = message_factory.GetMessageClass(method.input_type)
        gives = message_factory.GetMessageClass(method.output_type)
        channel = self.channel
        make = channel.unary_stream if method.server_streaming else channel.unary_unary
        if method.client_streaming:
            make = channel.stream_stream
        return make(
            f"/{messages.SERVICE}/{method.name}",
            request_serializer=takes.SerializeToString,
            response_deserializer=gives.FromString,
        )

    async def ask(self, rpc: str, request: Any) -> Any:
        return await self._calls[rpc](request, metadata=METADATA, timeout=CALL_S_MAX)

    def receive(self, topic: str, group: str, polling_s: int = 5) -> Any:
        request = messages.ReceiveMessageRequest(
            group={"name": group},
            message_queue={"topic": {"name": topic}, "broker": {"name": "broker-a"}, "id": -1},
            filter_expression={"type": 1, "expression": "*"},
            batch_size=RECEIVE_BATCH,
        )
        request.invisible_duration.seconds = 60
        request.long_polling_timeout.seconds = polling_s
        return self._calls["ReceiveMessage"](request, metadata=METADATA, timeout=CALL_S_MAX)

    def telemetry(self, commands: AsyncIterator[Any]) -> Any:
        return self._calls["Telemetry"](commands, metadata=METADATA)


def message(topic: str, number: int, body: bytes = b"x" * 128) -> Any:
    made = messages.Message(topic={"name": topic}, body=body)
    properties = made.system_properties
    properties.message_id = f"01{number:032X}"
    properties.message_type = 1
    properties.body_encoding = 1
    properties.born_timestamp.GetCurrentTime()
    properties.born_host = "bench"
    return made


async def send_all(client: Client, topic: str, window: int, *, seconds: float = 0.0, count: int = 0) -> int:
    """Send with so many under way, for a time or until so many are done; return how many were."""
    numbers = iter(range(count or 1 << 60))
    end = time.perf_counter() + seconds if seconds else float("inf")
    done = 0

    async def lane() -> None:
        nonlocal done
        for number in numbers:
            if time.perf_counter() >= end:
                return
            answer = await client.ask("SendMessage", messages.SendMessageRequest(messages=[message(topic, number)]))
            assert answer.status.code == 20000, answer.status
            done += 1

    await asyncio.gather(*(lane() for _ in range(window)))
    return done


class Consumer:
    """A simple consumer: its settings are known to the proxy while the stream is open."""

    def __init__(self, client: Client, topic: str, group: str) -> None:
        self._client, self._topic, self._group = client, topic, group
        self._over = asyncio.Event()

    async def __aenter__(self) -> Consumer:
        async def commands() -> AsyncIterator[Any]:
            made = messages.TelemetryCommand()
            made.settings.client_type = 3
            made.settings.subscription.group.name = self._group
            expression = {"type": 1, "expression": "*"}
            made.settings.subscription.subscriptions.add(topic={"name": self._topic}, expression=expression)
            yield made
            await self._over.wait()

        self._stream = self._client.telemetry(commands())
        told = await self._stream.read()
        assert told.status.code == 20000, told
        return self

    async def __aexit__(self, *_: object) -> None:
        self._over.set()
        self._stream.cancel()

    async def receive(self) -> list[Any]:
        """One call's messages."""
        return [one.message async for one in self._client.receive(self._topic, self._group) if one.HasField("message")]

    async def ack(self, one: Any) -> None:
        properties = one.system_properties
        entry = {"message_id": properties.message_id, "receipt_handle": properties.receipt_handle}
        request = messages.AckMessageRequest(group={"name": self._group}, topic={"name": self._topic}, entries=[entry])
        answer = await self._client.ask("AckMessage", request)
        assert answer.status.code == 20000, answer.status


async def consume(client: Client, topic: str, group: str, window: int, count: int) -> tuple[int, float]:
    """Receive `count` messages that are there already, and acknowledge each; return how many, in how many seconds."""
    left = count
    async with Consumer(client, topic, group) as consumer:
        began = time.perf_counter()

        async def lane() -> None:
            nonlocal left
            while left > 0:
                found = await consumer.receive()
                left -= len(found)
                await asyncio.gather(*(consumer.ack(one) for one in found))

        await asyncio.gather(*(lane() for _ in range(window)))
        return count - left, time.perf_counter() - began


async def latencies(client: Client, topic: str, group: str, count: int) -> list[float]:
    """From the send of a message until a waiting consumer has it, in ms; 100 are sent a second."""
    begun: dict[str, float] = {}
    found: list[float] = []
    async with Consumer(client, topic, group) as consumer:

        async def receive() -> None:
            while len(found) < count:
                for one in await consumer.receive():
                    found.append((time.perf_counter() - begun[one.body.decode()]) * 1000)
                    await consumer.ack(one)

        receiving = asyncio.create_task(receive())
        await asyncio.sleep(0.5)
        for number in range(count):
            begun[str(number)] = time.perf_counter()
            sent = messages.SendMessageRequest(messages=[message(topic, number, str(number).encode())])
            await client.ask("SendMessage", sent)
            await asyncio.sleep(1 / SENDS_A_SECOND)
        await asyncio.wait_for(receiving, CALL_S_MAX)
    return found


async def _run(arguments: argparse.Namespace) -> dict[str, Any]:
    client = Client(arguments.address)
    topic, group = arguments.topic, arguments.group
    began, cpu = time.perf_counter(), time.process_time()
    answer: dict[str, Any] = {}
    if arguments.mode == "send":
        done = await send_all(client, topic, arguments.window, seconds=arguments.seconds)
        seconds = time.perf_counter() - began
    elif arguments.mode == "consume":
        done, seconds = await consume(client, topic, group, arguments.window, arguments.count)
    else:
        found = await latencies(client, topic, group, arguments.count)
        done, seconds = len(found), time.perf_counter() - began
        answer = {"p50_ms": percentile(found, 0.5), "p99_ms": percentile(found, 0.99)}
    await client.channel.close()
    return {"done": done, "seconds": seconds, "tool_cpu_s": time.process_time() - cpu} | answer


def main() -> None:
    """Read the command line, run the load, print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address")
    parser.add_argument("mode", choices=("send", "consume", "latency"))
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", default="bench-grpc")
    parser.add_argument("--window", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--count", type=int, default=1000)
    print(json.dumps(asyncio.run(_run(parser.parse_args()))))


if __name__ == "__main__":
    main()
