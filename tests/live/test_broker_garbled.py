"""Servers fed with bytes that are no frames, or frames that mean harm: only that connection suffers."""

from __future__ import annotations

import socket
import zlib
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.live.support import pull_header, send_header
from tests.support.patience import LIMIT_S
from tests.unit.protocol import golden

from rocketspark.protocol import frames, headers
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.frames import RESPONSE_FLAG, Frame
from rocketspark.protocol.json import java_json
from rocketspark.testing import Cluster, run_cluster

pytestmark = pytest.mark.shows("truncated or oversize frame, header that is no JSON")

BROKER_REQUESTS = [
    f.data
    for f in golden.frames()
    if not f.is_reply and len(f.data) < 4000 and f.header["code"] not in (RequestCode.GET_ROUTEINFO_BY_TOPIC,)
][::7]
NAMESRV_REQUESTS = [
    # Another broker's name: one that takes the place of the cluster's own is rightly believed.
    f.data.replace(b"broker-a", b"broker-z")
    for f in golden.frames()
    if not f.is_reply
    and len(f.data) < 4000
    and f.header["code"] in (100, 101, 102, 103, 104, 105, 106, 205, 206, 216, 219, 224, 327)
]
FUZZ = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


class Line:
    """A plain blocking connection."""

    def __init__(self, address: str) -> None:
        host, port = address.split(":")
        self.socket = socket.create_connection((host, int(port)), LIMIT_S)

    def read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            data += self.socket.recv(count - len(data)) or pytest.fail("the connection ended")
        return data

    def ask(self, frame: Frame) -> Frame:
        self.socket.sendall(frames.encode(frame))
        head = self.read(4)
        return frames.decode(head + self.read(int.from_bytes(head, "big")))

    def feed(self, data: bytes) -> bytes:
        """Send bytes and nothing more; everything that came back until the other side closed."""
        back = b""
        try:
            self.socket.sendall(data)
            self.socket.shutdown(socket.SHUT_WR)
            while chunk := self.socket.recv(1 << 20):
                back += chunk
        except TimeoutError:
            pytest.fail("the server neither answered nor closed")
        except OSError:
            pass  # reset: the other side closed before it had read everything
        finally:
            self.socket.close()
        return back


class Watched:
    """A cluster and a well-behaved client of it that must notice nothing."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.broker = cluster.brokers[0]
        self.good = Line(self.broker)
        self.names = Line(cluster.namesrv)
        self.sent = 0

    def check(self) -> None:
        ext = headers.to_ext(send_header("Watched", 0))
        answer = self.good.ask(Frame(code=310, opaque=self.sent, ext=ext, body=b"%d" % self.sent))
        assert (answer.code, answer.ext and answer.ext["queueOffset"]) == (0, str(self.sent)), answer
        answer = self.good.ask(Frame(code=11, ext=headers.to_ext(pull_header("Watched", 0, self.sent))))
        assert (answer.code, b"%d" % self.sent in answer.body) == (0, True)
        self.sent += 1
        answer = self.names.ask(Frame(code=105, ext={"topic": "TBW102"}))
        assert (answer.code, self.broker.encode() in answer.body) == (0, True)


@pytest.fixture(scope="module")
def watched() -> Iterator[Watched]:
    with run_cluster() as cluster:
        yield Watched(cluster)


def whole_replies(back: bytes) -> list[Frame]:
    """The replies in what a server sent back: whole frames, and else only what brokers ask clients."""
    splitter = frames.Splitter()
    found = [frames.decode_header(header, form) for form, header, _ in splitter.feed(back)]
    assert splitter.held == 0
    assert all(f.flag & RESPONSE_FLAG or f.code in (39, 40, 220, 221, 307, 309, 326) for f in found)
    return [f for f in found if f.flag & RESPONSE_FLAG]


@FUZZ
@given(data=st.binary(max_size=300), to_names=st.booleans())
def test_random_bytes(watched: Watched, data: bytes, to_names: bool) -> None:
    whole_replies(Line(watched.cluster.namesrv if to_names else watched.broker).feed(data))
    watched.check()


@FUZZ
@given(header=st.binary(max_size=100), form=st.integers(0, 3), body=st.binary(max_size=50), lengths=st.integers(-9, 9))
def test_frames_of_random_bytes(watched: Watched, header: bytes, form: int, body: bytes, lengths: int) -> None:
    data = bytearray(frames.join(header, body, form))
    data[7] = (data[7] + lengths) & 0xFF
    whole_replies(Line(watched.broker).feed(bytes(data)))
    watched.check()


def garbled(data: bytes, draw: st.DataObject) -> bytes:
    """A captured request with some bytes of its header or body changed, its lengths kept."""
    changed = bytearray(data)
    for at in draw.draw(st.lists(st.integers(8, len(data) - 1), max_size=6)):
        changed[at] = draw.draw(st.sampled_from(b'0129-"{}:,\x00\x01\x02\xffbZ'))
    return bytes(changed)


@FUZZ
@given(draw=st.data())
def test_captured_requests_garbled_at_the_broker(watched: Watched, draw: st.DataObject) -> None:
    data = [garbled(draw.draw(st.sampled_from(BROKER_REQUESTS)), draw) for _ in range(3)]
    for found in whole_replies(Line(watched.broker).feed(b"".join(data))):
        assert found.code is not None
    watched.check()


@FUZZ
@given(draw=st.data())
def test_captured_requests_garbled_at_the_name_server(watched: Watched, draw: st.DataObject) -> None:
    request = garbled(draw.draw(st.sampled_from(NAMESRV_REQUESTS)), draw)
    whole_replies(Line(watched.cluster.namesrv).feed(request))
    watched.check()


CODES = sorted({*headers.REQUEST_HEADERS, *(int(code) for code in RequestCode)} - {RequestCode.DELETE_TOPIC_IN_BROKER})
VALUES = st.sampled_from(
    [
        "",
        "0",
        "1",
        "-1",
        "2147483648",
        "9" * 19,
        "9" * 40,
        "x",
        "true",
        "T",
        "%RETRY%G",
        "../x",
        "\x01\x02",
        "é" * 50,
        "null",
    ]
)


@settings(FUZZ, max_examples=150)
@given(code=st.sampled_from(CODES), draw=st.data(), body=st.binary(max_size=30), oneway=st.booleans())
def test_any_request_with_any_values_is_answered_or_one_way(
    watched: Watched, code: int, draw: st.DataObject, body: bytes, oneway: bool
) -> None:
    """Every code, some of its fields filled with odd values: a reply, or silence where none is wanted."""
    kind = headers.REQUEST_HEADERS.get(code, headers.NoHeader)
    ext = {f.encode_name: "T" if f.type is str else "0" for f in msgspec.structs.fields(kind) if f.required}
    for name in draw.draw(
        st.lists(st.sampled_from([f.encode_name for f in msgspec.structs.fields(kind)] or ["x"]), max_size=3)
    ):
        ext[name] = draw.draw(VALUES)
    if "suspendTimeoutMillis" in ext:
        ext["suspendTimeoutMillis"] = "0"
    for address in (watched.broker, watched.cluster.namesrv):
        request = Frame(code=code, opaque=77, flag=2 if oneway else 0, ext=ext, body=body)
        line = Line(address)
        if oneway:
            assert whole_replies(line.feed(frames.encode(request))) == []
        else:
            answer = line.ask(request)
            assert (answer.opaque, answer.flag & RESPONSE_FLAG) == (77, True)
            line.socket.close()
    if code in (RequestCode.UNREGISTER_BROKER, RequestCode.WIPE_WRITE_PERM_OF_BROKER):
        return
    watched.check()


def test_a_registration_that_lies_about_its_size(watched: Watched) -> None:
    ext = {"brokerName": "x", "brokerAddr": "h:1", "clusterName": "c", "brokerId": "0", "compressed": "true"}
    bomb = zlib.compress(bytes(40 << 20), 9)
    answer = Line(watched.cluster.namesrv).ask(Frame(code=103, ext=ext, body=bomb))
    assert answer.code == 1
    watched.check()


def test_everything_is_in_order_at_the_end(watched: Watched) -> None:
    watched.check()
    answer = watched.good.ask(Frame(code=RequestCode.GET_ALL_TOPIC_CONFIG))
    topics = java_json.decode(answer.body, dict)["topicConfigTable"]
    assert "Watched" in topics
    assert all("/" not in name and "\n" not in name for name in topics)
