"""Raw sends to ours and to the Java broker, in turn, and the ratio of their rounds."""

from __future__ import annotations

from functools import partial

from bench import raw_send
from bench.floor import floor
from bench.load import Load
from bench.measure import compare, figure
from bench.peers import Servers, both, end_rows, ours
from bench.plan import Plan
from bench.report import Row, progress, rates_row, show
from rocketspark.protocol.headers import SendReply
from rocketspark.transport.request_frames import reply

WINDOWS = (1, 16, 64, 256)


def send(servers: Servers, *, window: int, body_bytes: int = 128, seconds: float) -> Load:
    """One round of sends."""
    return raw_send.run(servers.broker, raw_send.TOPIC, window=window, body_bytes=body_bytes, seconds=seconds)


def warm_up(mine: Servers, java: Servers | None, windows: tuple[int, ...], seconds: float) -> None:
    """The JIT doubles the Java broker's rate: both get the same rounds first."""
    for servers in (java, mine):
        if servers:
            for window in windows:
                progress(f"warm-up, {window} in flight")
                send(servers, window=window, seconds=seconds)


def run(plan: Plan) -> list[Row]:
    """One row per window and body size: messages per second, ours first."""
    seconds = plan.of(1.0, 0.5, 0.05)
    windows = plan.of(WINDOWS, WINDOWS, (1, 64))
    rows = floor_rows(windows, seconds)
    show(rows)
    with both(plan.alone, ours(config=plan.config)) as (mine, java):
        warm_up(mine, java, plan.of((1, 64, 256), (64,), ()), plan.of(2.0, 2.0, 0.05))
        for body_bytes in plan.of((128, 1024), (128, 1024), (128,)):
            for window in windows:
                act = partial(send, window=window, body_bytes=body_bytes, seconds=seconds)
                name = f"send, {window} in flight, {body_bytes} B"
                rows.append(compare(name, "msg/s", plan.rounds(5), mine, java, act))
                show(rows[-1:], heading=False)
        ends = end_rows(mine, java)
        show(ends, heading=False)
    return rows + ends


def floor_rows(windows: tuple[int, ...], seconds: float) -> list[Row]:
    """The same load on a server that only answers."""
    header = SendReply(message_id="7F0000010000C0010000000000000000", queue_id=0, queue_offset=123456)
    with floor(reply(1, 0, header)) as servers:
        return [
            rates_row(
                f"the tool alone, {window} in flight, 128 B",
                "msg/s",
                [(figure(servers, partial(send, window=window, seconds=seconds)), None)],
            )
            for window in windows
        ]
