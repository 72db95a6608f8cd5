"""Captured conversations played again: the clients' frames go to our servers, their answers beside the captured ones.

Rule: nothing is expected of ours but what the capture holds; what may differ is in golden_differences.py alone.
"""

from __future__ import annotations

import asyncio
import json
import tarfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from tests.live.golden_values import ABSENT, Seen, json_of, pairs_of, settings_of

from rocketspark.broker.server import BrokerServer
from rocketspark.protocol import frames
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.frames import RESPONSE_FLAG, Frame
from rocketspark.protocol.message import message_ids, properties, record

VECTORS = Path(__file__).parents[1] / "vectors" / "frames"
# The captured servers.
BROKER = "127.0.0.1:33911"
BROKER_HOST = message_ids.pack_host("127.0.0.1", 33911)
CAPTURED_MS = (1_795_214_700_000, 1_795_217_000_000)
# A pull that was held in vain until its time was over is held this long.
IN_VAIN_MS = "100"
PATIENCE_S = 120.0
NOBODY_S_CODE = 31_999
SUSPEND = 2
DAY_MS = 86_400_000


class Captured(NamedTuple):
    """One frame of a scenario; `answers` is the index of its request."""

    scenario: str
    index: int
    connection: int
    link: str
    sender: str
    answers: int | None
    frame: Frame

    @property
    def where(self) -> str:
        return f"{self.scenario}[{self.index}]"


@lru_cache
def scenarios() -> dict[str, list[Captured]]:
    """All captured scenarios in the order in which they ran, without the replication link."""
    # In order.tsv each frame's sender is a letter: of client, broker, namesrv, slave.
    lines = (VECTORS / "order.tsv").read_text("utf-8").splitlines()
    senders = dict(line.split("\t") for line in lines)
    found: dict[str, list[Captured]] = {}
    with tarfile.open(VECTORS / "frames.tar.gz") as tar:
        for member in tar:
            file = tar.extractfile(member)
            assert file is not None
            scenario = json.load(file)
            letters = senders[scenario["scenario"]]
            found[scenario["scenario"]] = [
                Captured(
                    *(scenario["scenario"], f["i"], f["conn"], f["link"], letters[f["i"]], f.get("response_to")),
                    too_large(f["header"]) if f.get("truncated") else frames.decode(bytes.fromhex(f["hex"])),
                )
                for f in scenario["frames"]
            ]
    return {name: found[name] for name in senders}


def too_large(header: dict[str, Any]) -> Frame:
    """The one frame that the capture cuts short: its body is 4 MiB and one byte."""
    body = b"x" * ((4 << 20) + 1)
    return Frame(code=header["code"], opaque=header["opaque"], language="PYTHON", ext=header["extFields"], body=body)


class Link:
    """A connection of the play: sends frames as they are, keeps what comes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.replies: dict[int, Frame] = {}
        self.requests: list[Frame] = []
        self.ended = False
        self._barrier = 1 << 30
        self._came = asyncio.Event()
        self._task = asyncio.create_task(self._read(reader))

    @classmethod
    async def to(cls, address: str) -> Link:
        host, port = address.split(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        splitter = frames.Splitter()
        while data := await reader.read(1 << 16):
            for form, header, body in splitter.feed(data):
                frame = frames.decode(frames.join(header, body, form))
                if frame.flag & RESPONSE_FLAG:
                    self.replies[frame.opaque] = frame
                else:
                    self.requests.append(frame)
            self._came.set()
        self.ended = True
        self._came.set()

    def send(self, frame: Frame) -> None:
        # Not by the library: it refuses what is too large, and a server must be able to refuse it too.
        header = frames.encode_header(frame)
        total = 4 + len(header) + len(frame.body)
        lengths = total.to_bytes(4, "big") + (frame.serialization << 24 | len(header)).to_bytes(4, "big")
        self.writer.write(lengths + header + frame.body)

    async def reply(self, opaque: int) -> Frame | None:
        """The reply with this opaque, awaited; None when it does not come."""
        return self.replies.pop(opaque) if await self._wait(lambda: opaque in self.replies) else None

    async def request(self, code: int) -> Frame | None:
        """The next request of the server with this code."""
        wanted = await self._wait(lambda: [f for f in self.requests if f.code == code])
        if not wanted:
            return None
        self.requests.remove(wanted[0])
        return wanted[0]  # type: ignore[no-any-return]

    async def _wait(self, true: Any) -> Any:
        end = time.monotonic() + PATIENCE_S
        while not (found := true()):
            if self.ended or time.monotonic() > end:
                return None
            self._came.clear()
            try:
                await asyncio.wait_for(self._came.wait(), end - time.monotonic())
            except TimeoutError:
                return None
        return found

    async def served(self) -> None:
        """Return once all that was sent before has been looked at by the server: it answers in order."""
        self._barrier += 1
        self.send(Frame(code=NOBODY_S_CODE, opaque=self._barrier))
        assert await self.reply(self._barrier) is not None

    async def ask(self, code: int, ext: dict[str, str] | None = None, body: bytes = b"") -> Frame:
        """A request that is no part of the capture; fails unless it succeeds."""
        reply = await self.answer(code, ext, body)
        assert reply.code == 0, (code, reply)
        return reply

    async def answer(self, code: int, ext: dict[str, str] | None = None, body: bytes = b"") -> Frame:
        """The same, whatever its answer's code."""
        self._barrier += 1
        self.send(Frame(code=code, opaque=self._barrier, ext=ext, body=body, language="JAVA"))
        reply = await self.reply(self._barrier)
        assert reply is not None, code
        return reply

    async def close(self) -> None:
        self.writer.close()
        await asyncio.gather(self._task, return_exceptions=True)


Step = Callable[["Replay"], Awaitable[None]]


class Replay:
    """One run of servers to which scenarios are played one after the other.

    `server`: ours, in this process; `addresses`: of "broker", of "namesrv", and of the "registry", a NameServer that
    hears what the captured broker said.
    """

    def __init__(self, server: BrokerServer, addresses: dict[str, str]) -> None:
        self.server = server
        self.addresses = addresses
        self.port = int(addresses["broker"].split(":")[1])
        self.links: dict[int, Link] = {}
        self.seen: list[Seen] = []
        self.compared = 0
        # Where the captured broker had a record in its log, and where ours has it.
        self.positions: dict[int, int] = {}
        self.handles: dict[str, str] = {}
        # By connection and captured opaque: the request of a pull that was answered in a later scenario.
        self.asked: dict[tuple[int, int], Captured] = {}

    async def side(self) -> Link:
        """A connection to the broker for what the capture did not catch."""
        return await self.connection(-1)

    async def end(self, number: int) -> int:
        """Close a connection that plays no part any more; returns the port it had."""
        link = self.links[number]
        port: int = link.writer.get_extra_info("sockname")[1]
        await link.close()
        return port

    async def close(self) -> None:
        for link in self.links.values():
            await link.close()

    async def _link(self, captured: Captured) -> Link:
        to = {"client-namesrv": "namesrv", "client-broker": "broker", "broker-namesrv": "registry"}[captured.link]
        return await self.connection(captured.connection, to)

    async def connection(self, number: int, to: str = "broker") -> Link:
        """The captured connection of this number, or one that was not captured (below 0)."""
        if number not in self.links:
            self.links[number] = await Link.to(self.addresses[to])
        return self.links[number]

    def unasked(self) -> list[str]:
        """Requests of our broker that the captured one did not make."""
        links = self.links.items()
        return [f"connection {n}: {name_of(f.code)}" for n, link in links for f in link.requests if n >= 0]

    async def play(self, captured: list[Captured], steps: dict[int, Step] | None = None) -> None:
        """Send the clients' frames; compare every answer and every request of the broker where the capture has it.

        `steps`: by index, what is done before a frame is played, because the capture did not catch it.
        """
        by_index = {c.index: c for c in captured}
        ours: dict[int, Frame] = {}
        in_vain = {
            c.answers
            for c in captured
            if c.frame.remark in ("NO_MESSAGE_IN_QUEUE", "OFFSET_OVERFLOW_ONE") and c.answers
        }
        for position, c in enumerate(captured):
            if steps and c.index in steps:
                await steps[c.index](self)
            link = await self._link(c)
            asks = c.link == "broker-namesrv" and c.sender == "b"
            if c.sender == "c" or asks:
                if c.frame.flag & RESPONSE_FLAG:
                    # A client's answer to what the broker asked.
                    asked = ours.get(c.answers) if c.answers is not None else None
                    if asked is None:
                        continue
                    link.send(self._rewritten(c, opaque=asked.opaque))
                    await link.served()
                    continue
                self.asked[c.connection, c.frame.opaque] = c
                if c.frame.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
                    await self._routed(c, captured)
                link.send(self._rewritten(c, in_vain=c.index in in_vain))
                after = captured[position + 1] if position + 1 < len(captured) else None
                if after is None or after.answers != c.index:
                    await link.served()
            elif c.frame.flag & RESPONSE_FLAG:
                request = by_index.get(c.answers) if c.answers is not None else None
                request = request or self.asked.get((c.connection, c.frame.opaque))
                assert request is not None, c.where
                reply = await link.reply(c.frame.opaque)
                self.compare(c, name_of(request.frame.code), reply)
            else:
                came = await link.request(c.frame.code)
                if came is not None:
                    ours[c.index] = came
                self.compare(c, name_of(c.frame.code), came)

    async def _routed(self, asked: Captured, captured: list[Captured]) -> None:
        """What the captured NameServer knew by then, ours has heard of: the broker tells it besides its answers."""
        reply = next((c for c in captured if c.answers == asked.index and c.frame.flag & RESPONSE_FLAG), None)
        if reply is None or reply.frame.code != 0:
            return
        if asked.link == "client-namesrv":
            await routed(await self.connection(-4, "namesrv"), (asked.frame.ext or {})["topic"])

    # -- what is sent --------------------------------------------------------------------------------------------

    def _rewritten(self, c: Captured, *, opaque: int | None = None, in_vain: bool = False) -> Frame:
        """The captured frame with our log's positions, this run's times, and our broker's address."""
        frame = frames.decode(frames.encode(c.frame)) if len(c.frame.body) < 4 << 20 else c.frame
        if opaque is not None:
            frame.opaque = opaque
        ext = frame.ext
        if not ext or c.frame.flag & RESPONSE_FLAG:
            return frame
        frame.repeated_ext = ()
        code = frame.code
        if code in (RequestCode.END_TRANSACTION, RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.VIEW_MESSAGE_BY_ID):
            key = "commitLogOffset" if code == RequestCode.END_TRANSACTION else "offset"
            ext[key] = str(self.positions.get(int(ext[key]), int(ext[key])))
        if code == RequestCode.CONSUME_MESSAGE_DIRECTLY:
            _, _, position = message_ids.parse_offset_message_id(ext["msgId"])
            host = message_ids.pack_host("127.0.0.1", self.port)
            ext["msgId"] = message_ids.offset_message_id(host, self.positions[position])
        if code == RequestCode.RECALL_MESSAGE:
            ext["recallHandle"] = self.handles[ext["recallHandle"]]
        if code == RequestCode.SEARCH_OFFSET_BY_TIMESTAMP and ext["timestamp"] != "0":
            # Those were asked for "now".
            ext["timestamp"] = str(now_ms() + 1)
        if code == RequestCode.PULL_MESSAGE and in_vain and int(ext["sysFlag"]) & SUSPEND:
            ext["suspendTimeoutMillis"] = IN_VAIN_MS
        if code == RequestCode.QUERY_MESSAGE and ext["beginTimestamp"] != "0":
            ext["beginTimestamp"] = str(now_ms() - DAY_MS)
        if "TIMER_DELIVER_MS" in ext.get("i", ""):
            found = properties.decode(ext["i"])
            found["TIMER_DELIVER_MS"] = str(int(found["TIMER_DELIVER_MS"]) - int(ext["g"]) + now_ms())
            ext["i"] = properties.encode(found)
        return frame

    # -- what is compared ----------------------------------------------------------------------------------------

    def compare(self, c: Captured, request: str, ours: Frame | None) -> None:
        """Note every value of a captured frame beside that of ours."""
        self.compared += 1

        def see(path: str, captured: Any, got: Any) -> None:
            self.seen.append(Seen(c.scenario, c.where, request, path, captured, got))

        if ours is None:
            see("frame", "there", ABSENT)
            return
        see("code", c.frame.code, ours.code)
        see("remark", c.frame.remark, self._as_captured(ours.remark))
        see("flag", c.frame.flag, ours.flag)
        see("language", c.frame.language, ours.language)
        see("version", c.frame.version, ours.version)
        see("serialization", c.frame.serialization, ours.serialization)
        self._learn(c.frame.ext or {}, ours.ext or {})
        ext = (dict(c.frame.ext or {}), self._as_captured(ours.ext or {}))
        if c.frame.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT:
            for one in ext:
                one["properties"] = properties.decode(one["properties"])
        for path, captured, got in pairs_of(*ext, "ext"):
            see(path, captured, got)
        for path, captured, got in self._bodies(c, request, c.frame.body, ours.body):
            see(path, captured, got)

    def _as_captured(self, value: Any) -> Any:
        """Ours with the captured broker's address in place of our own."""
        if isinstance(value, str):
            port, wanted = f"7F000001{self.port:08X}", f"7F000001{33911:08X}"
            return value.replace(f"127.0.0.1:{self.port}", BROKER).replace(port, wanted)
        if isinstance(value, dict):
            return {self._as_captured(k): self._as_captured(v) for k, v in value.items()}
        if isinstance(value, list):
            return [self._as_captured(v) for v in value]
        return value

    def _learn(self, captured: dict[str, str], ours: dict[str, str]) -> None:
        for name in ("msgId", "offsetMsgId"):
            for one, other in zip(captured.get(name, "").split(","), ours.get(name, "").split(","), strict=False):
                if one.startswith("7F000001") and other.startswith("7F000001"):
                    self.positions[int(one[16:], 16)] = int(other[16:], 16)
        if "recallHandle" in captured and "recallHandle" in ours:
            self.handles[captured["recallHandle"]] = ours["recallHandle"]

    def _bodies(self, c: Captured, request: str, captured: bytes, ours: bytes) -> Iterator[tuple[str, Any, Any]]:
        if captured[:1] in (b"{", b"[") and ours[:1] in (b"{", b"["):
            yield from pairs_of(json_of(captured), self._as_captured(json_of(ours)), "body")
        elif request in ("GET_BROKER_CONFIG", "GET_NAMESRV_CONFIG"):
            yield from pairs_of(settings_of(captured), self._as_captured(settings_of(ours)), "body")
        elif captured and ours and request in RECORDS:
            yield from self._records(captured, ours)
        else:
            yield "body", captured, ours

    def _records(self, captured: bytes, ours: bytes) -> Iterator[tuple[str, Any, Any]]:
        theirs, found = list(record.decode_all(captured)), list(record.decode_all(ours))
        yield "records", len(theirs), len(found)
        for one, other in zip(theirs, found, strict=False):
            self.positions[one.position] = other.position
            own = message_ids.pack_host("127.0.0.1", self.port)
            other = other._replace(store_host=BROKER_HOST if other.store_host == own else other.store_host)
            for name, captured_value in one._asdict().items():
                value = getattr(other, name)
                if name == "properties":
                    pairs = (properties.decode(p.decode()) for p in (captured_value, value))
                    yield from pairs_of(next(pairs), self._as_captured(next(pairs)), "record.properties")
                else:
                    yield f"record.{name}", captured_value, value


RECORDS = {
    *("PULL_MESSAGE", "QUERY_MESSAGE", "VIEW_MESSAGE_BY_ID", "CONSUME_MESSAGE_DIRECTLY"),
    "CHECK_TRANSACTION_STATE",
}


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def name_of(code: int) -> str:
    return RequestCode(code).name if code in set(RequestCode) else str(code)


class Tap:
    """Stands between our broker and its NameServer and keeps what the broker asks."""

    def __init__(self, target: str) -> None:
        self._target = target
        self.asked: list[Frame] = []
        self.address = ""
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._pair, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _pair(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = self._target.split(":")
        back, on = await asyncio.open_connection(host, int(port))
        answers = asyncio.create_task(self._pass(back, writer, None))
        self._tasks.add(answers)
        await self._pass(reader, on, frames.Splitter())
        await answers

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, splitter: frames.Splitter | None
    ) -> None:
        try:
            while data := await reader.read(1 << 16):
                if splitter is not None:
                    for form, header, body in splitter.feed(data):
                        self.asked.append(frames.decode(frames.join(header, body, form)))
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def close(self) -> None:
        self._server.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def first(self, code: int, text: bytes = b"") -> Frame | None:
        """The first request with this code and this text in its body."""
        return next((f for f in self.asked if f.code == code and text in f.body), None)


@asynccontextmanager
async def tapped(target: str) -> AsyncIterator[Tap]:
    tap = Tap(target)
    await tap.start()
    try:
        yield tap
    finally:
        await tap.close()


async def routed(link: Link, topic: str) -> None:
    """Return once the NameServer has a route of a topic."""
    end = time.monotonic() + PATIENCE_S
    while (await link.answer(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})).code != 0:
        assert time.monotonic() < end, f"no route of {topic}"
        await asyncio.sleep(0.02)


async def filled(link: Link, topic: str, queue_id: int, offset: int) -> None:
    """Return once a queue ends at `offset`: what is delivered later has come."""

    end = time.monotonic() + PATIENCE_S
    while True:
        reply = await link.ask(RequestCode.GET_MAX_OFFSET, {"topic": topic, "queueId": str(queue_id)})
        assert reply.ext is not None
        if int(reply.ext["offset"]) >= offset:
            return
        assert time.monotonic() < end, f"{topic}/{queue_id} ends at {reply.ext['offset']}, not {offset}"
        await asyncio.sleep(0.02)
