"""POP on the remoting protocol: messages popped by 32, each acknowledged by a request of its own, as the Java client
does. One connection, several pops in flight; what is acknowledged and answered counts.
"""

from __future__ import annotations

import json
import socket
import time
from functools import partial

from bench.fill import fill
from bench.load import Load, connect
from bench.measure import compare
from bench.peers import Servers, both, end_rows, ours
from bench.plan import Plan
from bench.report import Row, progress, show
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers.pop import INIT_MIN, AckHeader, PopHeader
from rocketspark.protocol.pop_answers import ReceiptHandle, parse_message_offsets, parse_start_offsets
from rocketspark.transport.request_frames import request

TOPIC, GROUP = "bench-pop", "bench-popper"
QUEUES = 8
POP_COUNT = 32
INVISIBLE_MS = 60_000
WINDOWS = (1, 8)
POPS, ACKS = 0, 1 << 24


def pop_frame(number: int) -> bytes:
    """A pop of any queue, which does not wait."""
    header = PopHeader(
        group=GROUP,
        topic=TOPIC,
        queue_id=-1,
        count_max=POP_COUNT,
        invisible_time_ms=INVISIBLE_MS,
        poll_time_ms=0,
        born_time_ms=time.time_ns() // 1_000_000,
        init_mode=INIT_MIN,
        expression_type="TAG",
        expression="*",
    )
    return request(RequestCode.POP_MESSAGE, header, opaque=POPS + number, language="JAVA")


class _AckFrames:
    """Acknowledgements by a template: the tool must not be what is measured."""

    def __init__(self, broker_name: str) -> None:
        self._broker_name = broker_name
        self._head, self._rest = b"", b""

    def of(self, ext: dict[str, str], first: int) -> list[bytes]:
        """One frame for each message of an answer, numbered from `first`."""
        starts = parse_start_offsets(ext.get("startOffsetInfo"))
        frames = []
        for source, offsets in parse_message_offsets(ext.get("msgOffsetInfo")).items():
            flag, queue_id = source
            for offset in offsets:
                handle = ReceiptHandle(
                    start_offset=starts[source],
                    pop_time_ms=int(ext["popTime"]),
                    invisible_time_ms=int(ext["invisibleTime"]),
                    revive_queue_id=int(ext["reviveQid"]),
                    retry_flag=flag,
                    broker_name=self._broker_name,
                    queue_id=queue_id,
                    queue_offset=offset,
                )
                header = AckHeader(group=GROUP, topic=TOPIC, queue_id=queue_id, handle=handle.encode(), offset=offset)
                number = ACKS + first + len(frames)
                frames.append(request(RequestCode.ACK_MESSAGE, header, opaque=number, language="JAVA"))
        return frames


def run_one(servers: Servers, *, window: int, seconds: float) -> Load:
    """Pop and acknowledge for about `seconds`; `done`: messages whose acknowledgement was answered.

    Raises ConnectionError if there is nothing to pop or an acknowledgement is refused.
    """
    acks = _AckFrames("broker-a")
    cpu_began, began = time.thread_time(), time.perf_counter()
    with connect(servers.broker) as s:
        s.sendall(b"".join(map(pop_frame, range(window))))
        pops, sent, done = window, 0, 0
        left = b""
        while pops or done < sent:
            answers, left = _answers(s, left)
            out = []
            for head in answers:
                if head["opaque"] >= ACKS:
                    if head["code"] != 0:
                        raise ConnectionError(f"an acknowledgement was refused: {head}")
                    done += 1
                    continue
                pops -= 1
                if head["code"] != 0:
                    if time.perf_counter() - began < seconds and not sent:
                        raise ConnectionError(f"nothing was popped: {head}")
                    continue
                frames = acks.of(head["extFields"], sent)
                sent += len(frames)
                out += frames
                if time.perf_counter() - began < seconds:
                    out.append(pop_frame(pops))
                    pops += 1
            if out:
                s.sendall(b"".join(out))
    return Load(done, 0, time.perf_counter() - began, time.thread_time() - cpu_began)


def _answers(s: socket.socket, left: bytes) -> tuple[list[dict[str, object]], bytes]:
    """The headers of the frames that have come, and what is left of the last."""
    data = left + s.recv(1 << 20)
    if len(data) == len(left):
        raise ConnectionError("the broker closed the connection")
    at, heads = 0, []
    while len(data) - at >= 8:
        size = int.from_bytes(data[at : at + 4], "big")
        if len(data) - at < 4 + size:
            break
        header_bytes = int.from_bytes(data[at + 5 : at + 8], "big")
        heads.append(json.loads(data[at + 8 : at + 8 + header_bytes]))
        at += 4 + size
    return heads, data[at:]


def run(plan: Plan) -> list[Row]:
    """One row per window: messages popped and acknowledged per second, ours first."""
    seconds = plan.of(3.0, 1.0, 0.05)
    count = plan.of(1_500_000, 600_000, 4000)
    rows = []
    with both(plan.alone, ours(config=plan.config)) as (mine, java):
        for servers in (java, mine):
            if servers:
                progress(f"filling with {count:,} messages")
                fill(servers.broker, TOPIC, count, queues=QUEUES)
                run_one(servers, window=4, seconds=plan.of(3.0, 1.0, 0.02))
        for window in plan.of(WINDOWS, WINDOWS, (2,)):
            name = f"pop and ack, {window} pops of {POP_COUNT} in flight"
            act = partial(run_one, window=window, seconds=seconds)
            rows.append(compare(name, "msg/s", plan.rounds(), mine, java, act))
            show(rows[-1:], heading=len(rows) == 1)
        ends = end_rows(mine, java)
        show(ends, heading=False)
    return rows + ends
