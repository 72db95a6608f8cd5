"""What the proxy's port costs a call: an echo of grpc.aio, asked directly, through the port plain, and by TLS.

Run: `python -m bench.grpc_front`. Server and port share one process and one loop, as in the proxy.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import ssl
import time
from multiprocessing.connection import Connection
from typing import Any

import grpc
import uvloop

from rocketspark.proxy.port import Port

SECONDS, BODY = 3.0, bytes(1024)
METHOD = "/echo.Echo/Echo"


class _Echo(grpc.GenericRpcHandler):  # type: ignore[misc]
    def service(self, details: Any) -> Any:
        async def echo(request: bytes, context: Any) -> bytes:
            return request

        return grpc.unary_unary_rpc_method_handler(echo)


def _serve(told: Connection) -> None:
    async def run() -> None:
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((_Echo(),))
        inner = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        port = Port()
        told.send((inner, await port.start("127.0.0.1", 0, inner)))
        await asyncio.to_thread(told.recv)
        await port.close()
        await server.stop(0)

    uvloop.run(run())


async def _measure(channel: Any, in_flight: int) -> tuple[float, float, float]:
    """Return calls in a second, and the median and 99th percentile of their times in ms."""
    call = channel.unary_unary(METHOD)
    await call(BODY, timeout=10)
    times: list[float] = []
    end_s = time.perf_counter() + SECONDS

    async def ask() -> None:
        while (began_s := time.perf_counter()) < end_s:
            await call(BODY)
            times.append(time.perf_counter() - began_s)

    await asyncio.gather(*(ask() for _ in range(in_flight)))
    times.sort()
    return len(times) / SECONDS, 1000 * times[len(times) // 2], 1000 * times[len(times) * 99 // 100]


async def _all(inner: int, outer: int) -> None:
    certificate = ssl.get_server_certificate(("127.0.0.1", outer)).encode()
    made = {
        "directly": lambda: grpc.aio.insecure_channel(f"127.0.0.1:{inner}"),
        "through the port, plain": lambda: grpc.aio.insecure_channel(f"127.0.0.1:{outer}"),
        "through the port, TLS": lambda: grpc.aio.secure_channel(
            f"127.0.0.1:{outer}", grpc.ssl_channel_credentials(certificate)
        ),
    }
    for in_flight in (1, 64):
        for name, make in made.items():
            async with make() as channel:
                rate, p50, p99 = await _measure(channel, in_flight)
            print(f"{in_flight:3} in flight, {name:24} {rate:7.0f} calls/s  p50 {p50:6.2f} ms  p99 {p99:6.2f} ms")


def main() -> None:
    """Print the three, with one call in flight and with 64."""
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=_serve, args=(theirs,), daemon=True)
    server.start()
    try:
        asyncio.run(_all(*ours.recv()))
        ours.send(None)
        server.join(10)
    finally:
        server.kill()


if __name__ == "__main__":
    main()
