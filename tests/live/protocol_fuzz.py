"""Hostile requests by a seed, beside a client that behaves: what is asked, and what the client must not notice.

Requests of every code with odd fields in their headers and odd bodies, captured frames with bytes flipped, cut, swapped
and doubled, bytes that are no frames, in pieces and many at once. Whatever comes: the client's sends all succeed, its
messages come in order, nothing fails in the server but what is answered, and it starts again on its store.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
import ssl
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.live.support import broker, connected, create, pull, records, sent
from tests.support.certificates import Issuer
from tests.support.raw_tls import raw_tls
from tests.unit.protocol import golden

from rocketspark.broker.settings import FIELDS
from rocketspark.protocol import frames, headers
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.frames import Frame
from rocketspark.transport.tls import ClientTls, TlsSettings

HONEST = "HONEST"
# An operator's word, which a broker obeys: these end topics, groups or permissions of others on purpose.
LEFT_OUT = frozenset({RequestCode.DELETE_TOPIC_IN_BROKER, RequestCode.CLEAN_UNUSED_TOPIC})
CODES = [int(code) for code in RequestCode if code not in LEFT_OUT] + [310] * 30 + [11] * 20
CODES += [34, 35, 36, 37, 320, 324, 325, 15, 41, 200, 222, 353] * 6 + [7777, -1, 2**31 - 1]
# Settings whose meaning harms nobody else; the value is what is odd.
SETTINGS = sorted(key for key in FIELDS if "Interval" in key or key.startswith("waitTime") or "file" in key.lower())
INTS = (
    *("0", "0", "1", "2", "3", "4", "6", "7", "8", "12", "16", "64", "128", "192", "300", "-1", "65536"),
    *("2147483647", "-2147483648", "9223372036854775807", "-9223372036854775808", "9999999999999999999"),
    *("1" + "0" * 30, "-1" + "0" * 400, "9" * 5000, "\u00b2", "\u0661", "1e5", "NaN", "+1", " 1", "0x1", "1_0", ""),
)
TEXTS = (
    *("", "T", "G", "%RETRY%G", "%DLQ%G", "RMQ_SYS_TRANS_HALF_TOPIC", "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"),
    *("TBW102", "DefaultCluster_REPLY_TOPIC", "../x", "a/b", "x" * 120, "x" * 127, "x" * 250, "x" * 70_000, "a b"),
    *("\x00", "\x01\x02", "\n", "\x1b[2J", "\u202e", "\U0001f600", "a || b", "||" * 300, "SQL92", "TAG", "*", "F" * 32),
    *("a = 1", "a = " + "9" * 5000, "(" * 200, "NOT " * 50 + "a", "true", "-1", "null", "{", '"'),
)
PROPERTIES = (
    *("UNIQ_KEY\x01k%d\x02", "UNIQ_KEY\x01\x02", "DELAY\x011\x02", "DELAY\x01%d\x02", "DELAY\x01\u00b2\x02"),
    *(
        "TIMER_DELAY_MS\x01100\x02",
        "TIMER_DELAY_SEC\x01%d\x02",
        "TIMER_DELIVER_MS\x019%d\x02",
        "TIMER_OUT_MS\x01%d\x02",
    ),
    *(
        "TIMER_DEL_UNIQKEY\x01k1\x02",
        "TIMER_ROLL_TIMES\x01%d\x02",
        "TAGS\x01a\x02",
        "TAGS\x01\x02",
        "KEYS\x01a b  c\x02",
    ),
    *("PGROUP\x01G\x02", "TRAN_MSG\x01true\x02", "REAL_TOPIC\x01T\x02", "REAL_TOPIC\x01SCHEDULE_TOPIC_XXXX\x02"),
    *("REAL_QID\x01%d\x02", "__transactionId__\x01z\x02", "TRANSACTION_CHECK_TIMES\x01%d\x02"),
    *(
        "CHECK_IMMUNITY_TIME_IN_SECONDS\x01%d\x02",
        "CHECK_IMMUNITY_TIME_IN_SECONDS\x01\u00b2\x02",
        "INNER_NUM\x01%d\x02",
    ),
    *(
        "INNER_BASE\x01zz\x02",
        "\x02",
        "\x01",
        "x",
        "WAIT\x01false\x02",
        "REPLY_TO_CLIENT\x01c\x02",
        "MSG_REGION\x01q\x02",
    ),
    *("__CRC32#\x0112345678\x02", "RETRY_TOPIC\x01%%RETRY%%G\x02", "ORIGIN_MESSAGE_ID\x01zz\x02", "a\x01\x02" * 50),
)
BODIES = (
    *(b"", b"x", b"{}", b"[]", b"null", b'{"a":1}', b"key=value", b"\xff\xfe", b"{" * 3000, b"[" * 3000 + b"]" * 3000),
    b'{"clientID":"c","consumerDataSet":[{"groupName":"G","consumeType":1}],"producerDataSet":[{"groupName":"P"}]}',
    b'{"clientID":"c","consumerDataSet":[{"groupName":"","subscriptionDataSet":[{"topic":"T","subString":"\\u0000"}]}]}',
    b'{"mqSet":[{"topic":"T","brokerName":"b","queueId":0}],"consumerGroup":"G","clientId":"c"}',
    b'{"groupName":"G%d","retryQueueNums":-1}',
    b'{"groupName":"G","retryQueueNums":2147483647}',
    b'{"topicConfigList":[{"topicName":"many","readQueueNums":1,"writeQueueNums":1}]}',
    b'{"topicConfigList":[{"topicName":"T","readQueueNums":99999999999999999999}]}',
    b'{0:{1:2},{"queueId":0}:{}}',
    struct.pack(">iiiii", 23, 0, 0, 0, 1) + b"a\0\0",
    struct.pack(">iiiii", 23, 0, 0, 0, -1) + b"a\0\0",
    struct.pack(">iiiii", 2**31 - 1, 0, 0, 0, 1) + b"a\0\0",
)


def _kinds() -> dict[int, dict[str, str]]:
    """By code: the fields of its header, with what kind of value each has."""
    return {
        int(code): {field.encode_name: str(field.type) for field in msgspec.structs.fields(kind)}
        for code, kind in headers.REQUEST_HEADERS.items()
    }


class Fuzz:
    """Makes what is written on one connection; all comes from `chance`."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self._kinds = _kinds()
        self._captured = [
            f.data
            for f in golden.frames()
            if not f.is_reply and len(f.data) < 4000 and f.header["code"] not in (*LEFT_OUT, 25)
        ]

    def case(self) -> list[bytes]:
        """The pieces in which one connection's bytes are written."""
        c = self.chance
        kind = c.randrange(10)
        if kind == 0:
            return [c.randbytes(c.choice((1, 4, 8, 30, 300)))]
        if kind <= 3:
            return self._pieces(self._mutated(c.choice(self._captured)))
        return self._pieces(b"".join(self._request(number) for number in range(c.choice((1, 1, 3, 40)))))

    def _pieces(self, data: bytes) -> list[bytes]:
        if len(data) < 2 or self.chance.random() < 0.8:
            return [data]
        cuts = sorted(self.chance.randrange(len(data)) for _ in range(4))
        return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]

    def _mutated(self, data: bytes) -> bytes:
        c = self.chance
        changed = bytearray(data)
        for _ in range(c.randrange(1, 4)):
            at = c.randrange(len(changed))
            match c.randrange(5):
                case 0:
                    changed[at] ^= 1 << c.randrange(8)
                case 1:
                    del changed[at : at + c.randrange(1, 9)]
                case 2:
                    changed[at:at] = changed[at : at + 20]
                case 3:
                    changed[at : at + 4] = c.randbytes(4)
                case _:
                    changed[at:at] = c.choice(INTS).encode()
            if not changed:
                return b"\0"
        if c.random() < 0.7:
            # A length that fits leads further in.
            changed[:4] = (len(changed) - 4).to_bytes(4, "big") if len(changed) >= 4 else b""
        return bytes(changed)

    def _request(self, opaque: int) -> bytes:
        c = self.chance
        code = c.choice(CODES)
        ext = {name: self._value(name, kind) for name, kind in self._fields(code).items() if c.random() < 0.98}
        body = self._config() if code == RequestCode.UPDATE_BROKER_CONFIG else c.choice(BODIES)
        frame = Frame(code=code, opaque=opaque, flag=c.choice((0, 0, 0, 0, 2, 1)), ext=ext, body=body)
        if c.random() < 0.1 and -32768 <= code <= 32767:
            frame.serialization = frames.BINARY
        return frames.encode(frame)

    def _fields(self, code: int) -> dict[str, str]:
        return self._kinds.get(code) or dict.fromkeys(("topic", "group", "consumerGroup", "queueId", "offset"), "str")

    def _config(self) -> bytes:
        c = self.chance
        if c.random() < 0.3:
            return c.choice((b"a=b", b"=", b"\xff=1", b"x", b"regionId=a\x01b", b"configBlackList=x"))
        odd = [value for value in INTS if not value.isdigit() or len(value) > 18] + ["0"]
        return f"{c.choice(SETTINGS)}={c.choice(odd)}".encode()

    def _value(self, name: str, kind: str) -> str:
        c = self.chance
        if name in ("i", "properties"):
            chosen = [c.choice(PROPERTIES) for _ in range(c.randrange(6))]
            return "".join(p.replace("%d", c.choice(INTS)).replace("%%", "%") for p in chosen)
        if name in ("topic", "b") and c.random() < 0.6:
            return c.choice(("T", "T", "%RETRY%G", f"new{c.randrange(20)}"))
        if name in ("consumerGroup", "group", "producerGroup", "a") and c.random() < 0.6:
            return "G"
        if name in ("queueId", "e") and c.random() < 0.7:
            return "0"
        if "int" in kind:
            return c.choice(INTS[:16]) if c.random() < 0.7 else c.choice(INTS)
        if "bool" in kind:
            return c.choice(("true", "false", "", "maybe"))
        return c.choice(TEXTS)


class Honest:
    """A client that sends, one after the other, and reads what it sent, in order."""

    def __init__(self) -> None:
        self.sent = 0
        self.read = 0

    async def act(self, address: str, go_on: Callable[[], bool], arguments: dict[str, Any]) -> None:
        async with connected(address, **arguments) as peer:
            while go_on():
                assert await sent(peer, b"%d" % self.sent, HONEST) == self.sent
                self.sent += 1
                await self.take(peer)
                await asyncio.sleep(0)

    async def take(self, peer: Any) -> None:
        for message in records((await pull(peer, HONEST, 0, self.read, group="HONEST_G")).raise_for_code("pull")):
            assert message.body == b"%d" % self.read
            self.read += 1


def _open(writer: asyncio.StreamWriter) -> asyncio.StreamWriter:
    """Raises an error of connections if the other side has closed it, which uvloop does not."""
    if writer.is_closing():
        raise ConnectionResetError
    return writer


async def _feed(address: str, pieces: list[bytes]) -> None:
    """Write the pieces and end this side; what comes back is read until the other side closes, if it does soon."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        for piece in pieces:
            _open(writer).write(piece)
            await writer.drain()
            if len(pieces) > 1:
                await asyncio.sleep(0)
        _open(writer).write_eof()
        while await reader.read(1 << 16):
            pass
    except OSError:
        pass
    finally:
        writer.close()


def _hello(chance: random.Random) -> bytes:
    """The first bytes of a TLS connection."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    inside, outside = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(inside, outside, server_hostname=f"h{chance.randrange(9)}").do_handshake()
    return outside.read()


async def _feed_secure(address: str, pieces: list[bytes], chance: random.Random) -> None:
    """The same over TLS, with an end that is said or not; sometimes bytes between the records that are none."""
    host, _, port = address.rpartition(":")
    try:
        raw = await raw_tls(host, int(port))
    except OSError:
        return
    try:
        await raw.shake()
        for piece in pieces:
            await raw.send(piece, chance.choice((0, 0, 0, 100)))
        end = chance.randrange(3)
        if end == 0:
            with contextlib.suppress(ssl.SSLError):
                raw.tls.unwrap()
            await raw.flush()
        elif end == 1:
            _open(raw.writer).write(chance.randbytes(chance.choice((1, 5, 40))))
        _open(raw.writer).write_eof()
        await raw.rest()
    except (OSError, EOFError, ssl.SSLError):
        pass
    finally:
        raw.writer.close()


class Way:
    """How cases reach a broker: plain, or by a seed over TLS, plain, and as a broken beginning of TLS."""

    def __init__(self, seed: int, issuer: Issuer | None) -> None:
        self._chance = random.Random(seed)
        self._trust = ClientTls(ca=issuer.ca) if issuer else None
        self.tls = TlsSettings()
        if issuer is not None:
            cert, key = issuer.pair()
            self.tls = TlsSettings(cert_path=cert, key_path=key, proxy_networks="127.0.0.1")
        self.arguments = {"tls": self._trust} if issuer else {}

    async def feed(self, address: str, pieces: list[bytes], fuzz: Fuzz) -> None:
        chance = self._chance
        kind = chance.randrange(6) if self._trust else 5
        if kind <= 2:
            await _feed_secure(address, pieces, chance)
        elif kind == 3:
            await _feed(address, [fuzz._mutated(_hello(chance)), *pieces[:1]])
        elif kind == 4:
            await _feed(address, [fuzz._mutated(b"PROXY TCP4 10.1.2.3 127.0.0.1 77 88\r\n"), *pieces])
        else:
            await _feed(address, pieces)


async def run_fuzz(
    root: Path,
    seed: int,
    count: int,
    caplog: pytest.LogCaptureFixture,
    side_by_side: int = 8,
    issuer: Issuer | None = None,
) -> str:
    """Feed `count` cases; fails if the honest client notices, or something in the server failed. Returns a summary.

    `issuer`: of certificates, for TLS; None for plain alone.
    """
    fuzz, honest, way = Fuzz(seed), Honest(), Way(seed, issuer)
    changes = {"property_filter": True, "recall_enabled": True, "tls": way.tls}
    left = count
    with caplog.at_level(logging.INFO):
        async with broker(root, **changes) as server:
            async with connected(server.address) as peer:
                await create(peer, HONEST, 1)
            client = asyncio.create_task(honest.act(server.address, lambda: left > 0, way.arguments))

            async def feed() -> None:
                nonlocal left
                while left > 0 and not client.done():
                    left -= 1
                    pieces = fuzz.case()
                    try:
                        await asyncio.wait_for(way.feed(server.address, pieces, fuzz), 30)
                    except TimeoutError:
                        raise AssertionError(f"seed {seed}: no end after {b''.join(pieces)[:2000]!r}") from None

            await asyncio.gather(*(feed() for _ in range(side_by_side)))
            left = 0
            await client
        failed = [r for r in caplog.records if r.levelno >= logging.ERROR]
        assert not failed, f"seed {seed}: " + "\n".join(r.getMessage() for r in failed[:5])
        async with broker(root, **changes) as server, connected(server.address) as peer:
            assert await sent(peer, b"%d" % honest.sent, HONEST) == honest.sent
            honest.sent, honest.read = honest.sent + 1, 0
            while honest.read < honest.sent:
                await honest.take(peer)
    return json.dumps({"seed": seed, "cases": count, "honest messages": honest.sent})
