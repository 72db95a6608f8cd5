"""Raw sends of SEND_MESSAGE_V2 over one connection, a window in flight; frames are encoded before the clock starts.

Run: python -m bench.raw_send 127.0.0.1:10911 --window 64 --body-bytes 128 --seconds 3
"""

from __future__ import annotations

import argparse
import json
import secrets
import ssl
import time
from collections.abc import Sequence
from functools import lru_cache

from bench.load import Load, Stream, pump
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers import SendHeader, to_ext
from rocketspark.protocol.message import batch
from rocketspark.protocol.request_signing import sign
from rocketspark.transport.request_frames import request

FRAME_COUNT = 8192
STREAM_BYTES_MAX = 64 << 20
QUEUE_COUNT = 4
TOPIC = "BenchmarkTest"


def frame(
    topic: str,
    queue_id: int,
    body: bytes,
    unique_id: str,
    opaque: int,
    *,
    batched: bool = False,
    key: tuple[str, str] | None = None,
    properties: str = "",
) -> bytes:
    """One request as the Java client writes it; `key`: access key and secret to sign it with; `properties`: more of
    them, as they are sent.
    """
    header = SendHeader(
        producer_group="bench",
        topic=topic,
        queue_id=queue_id,
        sys_flag=0,
        born_time_ms=int(time.time() * 1000),
        flag=0,
        properties=f"UNIQ_KEY\x01{unique_id}\x02WAIT\x01true\x02TAGS\x01TagA\x02{properties}",
        batch=batched,
        broker_name="broker-a",
    )
    code = RequestCode.SEND_BATCH_MESSAGE if batched else RequestCode.SEND_MESSAGE_V2
    if key is None:
        return request(code, header, body, opaque=opaque, language="JAVA")
    ext = to_ext(header)
    sign(ext, body, key[0], key[1].encode())
    return request(code, ext, body, opaque=opaque, language="JAVA")


@lru_cache(maxsize=4)
def stream(topic: str, body_bytes: int, queues: int = QUEUE_COUNT, key: tuple[str, str] | None = None) -> Stream:
    """Messages with a unique id each, the queues in turn."""
    prefix = secrets.token_hex(12).upper()
    body = secrets.token_hex(body_bytes // 2 + 1).encode()[:body_bytes]
    count = max(min(FRAME_COUNT, STREAM_BYTES_MAX // (body_bytes + 300)), 64)
    return Stream(frame(topic, i % queues, body, f"{prefix}{i:08X}", 100_000 + i, key=key) for i in range(count))


def batches(topic: str, body_bytes: int, batch_count: int, queues: int) -> Stream:
    """Batches of `batch_count` messages, the queues in turn; a whole number of turns."""
    prefix = secrets.token_hex(12).upper()
    body = b"x" * body_bytes
    rounds = max(STREAM_BYTES_MAX // (body_bytes + 80) // batch_count // queues, 1)

    def one(number: int) -> bytes:
        first = number * batch_count
        ids = [f"{prefix}{first + i:08X}" for i in range(batch_count)]
        items = [batch.BatchItem(0, body, f"UNIQ_KEY\x01{u}\x02WAIT\x01true\x02".encode()) for u in ids]
        return frame(topic, number % queues, batch.encode(items), ids[0], number, batched=True)

    return Stream(one(i) for i in range(queues * min(rounds, 64)))


def run(
    address: str, topic: str, *, window: int, body_bytes: int, seconds: float, tls: ssl.SSLContext | None = None
) -> Load:
    """Send for about `seconds` with `window` in flight. Raises ConnectionError if a reply is no success."""
    return pump(address, stream(topic, body_bytes), window=window, seconds=seconds, tls=tls)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address")
    parser.add_argument("--topic", default=TOPIC)
    parser.add_argument("--window", type=int, default=64)
    parser.add_argument("--body-bytes", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    a = parser.parse_args(arguments)
    load = run(a.address, a.topic, window=a.window, body_bytes=a.body_bytes, seconds=a.seconds)
    if a.json:
        print(json.dumps(load._asdict()))
        return
    tool = f"tool {load.tool_cpu_s / load.seconds:.2f} CPU s/s"
    print(f"{load.per_second:,.0f} msg/s ({load.done} in {load.seconds:.2f} s, {load.busy} busy, {tool})")


if __name__ == "__main__":
    main()
