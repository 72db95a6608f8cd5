"""What the pages about messages, groups, clients and dead letters answer, asked without a browser."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import re
from collections.abc import AsyncGenerator, Iterator
from html import unescape
from typing import Any

import pyarrow.parquet as pq
import pytest
from starlette.testclient import TestClient
from tests.console import scene
from tests.console.support import opened, posted

from rocketspark import Producer
from rocketspark.admin import Admin
from rocketspark.console import ConsoleSettings, make_app
from rocketspark.console.content import downloads, event_streams
from rocketspark.console.pages import messages as pages_of_messages
from rocketspark.errors import UsageError
from rocketspark.model import ReceivedMessage
from rocketspark.testing import Cluster, run_cluster

PAGES = ("/messages", "/groups", "/clients", "/clients?role=producer", "/dead-letters")
# Characters that no answer may hold as they are.
NEXT = re.compile(r'hx-get="(/messages/more[^"]*)"')
UNSEEN = ("\x00", "\x1b", "\u202e", "\u2066", "\u200b")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """One without a topic of traces, as clusters are by default."""
    with run_cluster() as running:
        yield running


@pytest.fixture(scope="module")
def messages(cluster: Cluster) -> dict[str, ReceivedMessage]:
    return scene.fill(cluster, "orders")


@pytest.fixture(scope="module")
def client(cluster: Cluster) -> Iterator[TestClient]:
    app = make_app(ConsoleSettings(namesrv=cluster.namesrv, requests_per_second=200))
    with TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=True) as asked:
        yield asked


@pytest.mark.parametrize("path", PAGES)
def test_pages_of_an_empty_cluster_say_so(path: str) -> None:
    with run_cluster() as empty:
        app = make_app(ConsoleSettings(namesrv=empty.namesrv, requests_per_second=200))
        with TestClient(app, base_url="http://127.0.0.1") as asked:
            answer = asked.get(path)
    assert answer.status_code == 200
    assert 'class="empty"' in answer.text


def test_no_byte_of_a_message_is_markup_or_hides(client: TestClient, messages: dict[str, ReceivedMessage]) -> None:
    pages = ["/messages?topic=orders"]
    pages += [f"/message?topic=orders&at={m.broker_name}/{m.queue_id}/{m.queue_offset}" for m in messages.values()]
    for path in pages:
        answer = client.get(path)
        assert answer.status_code == 200
        assert len(answer.text) < 200_000
        for forbidden in (*UNSEEN, "<script>alert", "<img src=x", "<i>own", "<b>&amp;amp;"):
            assert forbidden not in answer.text, path


def test_what_was_not_traced_says_so(client: TestClient, messages: dict[str, ReceivedMessage]) -> None:
    m = messages["json"]
    answer = client.get(f"/message/fate?topic=orders&at={m.broker_name}/{m.queue_id}/{m.queue_offset}")
    assert (answer.status_code, "No client traced it" in answer.text) == (200, True)
    answer = client.get(f"/dead-letters/reason?id={m.message_id}&group=g")
    assert answer.text.strip() == "no trace tells why"


def test_all_that_a_search_finds_is_a_file_in_each_format(
    client: TestClient, messages: dict[str, ReceivedMessage]
) -> None:
    lines = client.get("/messages/export?topic=orders&kind=jsonl").text.splitlines()
    assert {json.loads(line)["tag"] for line in lines} == scene.BODIES.keys()
    csv.field_size_limit(16 << 20)
    rows = list(csv.DictReader(io.StringIO(client.get("/messages/export?topic=orders&kind=csv&tag=json").text)))
    assert [row["body"] for row in rows] == [scene.JSON.decode()]
    answer = client.get("/messages/export?topic=orders&kind=parquet")
    assert answer.headers["content-disposition"] == 'attachment; filename="orders.parquet"'
    table = pq.read_table(io.BytesIO(answer.content))
    assert sorted(table.column("body").to_pylist()) == sorted(scene.BODIES.values())


def test_a_file_has_a_bound_of_bytes(
    client: TestClient, messages: dict[str, ReceivedMessage], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages_of_messages, "FILE_BYTES_MAX", 1 << 20)
    m = messages["large"]
    place = f"{m.broker_name}/{m.queue_id}/{m.queue_offset}"
    for path in (f"/messages/export?topic=orders&pick={place}", "/messages/export?topic=orders"):
        answer = client.get(path)
        assert (answer.status_code, "more than 1 MiB: save fewer" in answer.text) == (400, True)


def test_a_search_goes_on_in_every_queue_however_many_there_are(
    client: TestClient, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues, of_each = 24, 3
    with Admin(cluster.namesrv) as admin, Producer(cluster.namesrv) as producer:
        admin.create_topic("wide", queue_count=queues)
        for queue in producer.queues("wide"):
            for number in range(of_each):
                producer.send("wide", b"%d" % number, queue=queue)
    monkeypatch.setattr(pages_of_messages, "STEP", queues)
    answer, places = client.get("/messages?topic=wide&order=oldest"), list[str]()
    while True:
        assert answer.status_code == 200, answer.text
        places += re.findall(r'name="pick" value="([^"]*)"', answer.text)
        after = NEXT.search(answer.text)
        if after is None:
            break
        answer = client.get(unescape(after[1]))
    assert len(places) == len(set(places)) == queues * of_each


def test_a_step_of_a_search_holds_so_many_bytes_and_goes_on(
    client: TestClient, messages: dict[str, ReceivedMessage], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages_of_messages, "STEP_BYTES_MAX", 1)
    path, seen = "/messages?topic=orders", 0
    while path:
        answer = client.get(path)
        assert answer.text.count('name="pick"') <= 1
        seen += answer.text.count('name="pick"')
        found = NEXT.search(answer.text)
        path = unescape(found[1]) if found else ""
    assert seen == len(messages)
    # A file takes all steps.
    lines = client.get("/messages/export?topic=orders&kind=jsonl").text.splitlines()
    assert len(lines) == len(messages)


def test_files_that_are_not_read_leave_room_to_others_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "SEND_S", 0.05)
    counted = downloads.Downloads()

    async def make() -> tuple[bytes, str, str]:
        return bytes(downloads.PIECE_BYTES + 1), "f.bin", "application/octet-stream"

    async def received() -> Any:
        raise AssertionError("nothing is read of the browser")

    sizes = list[int]()

    async def main() -> None:
        async def reads(message: Any) -> None:
            sizes.append(len(message.get("body", b"")))

        async def reads_no_more(message: Any) -> None:
            await asyncio.Event().wait()

        mine = [await counted.answer("mine", make) for _ in range(downloads.FILES_OF_ONE_MAX)]
        with pytest.raises(UsageError, match="try again"):
            await counted.answer("mine", make)
        other = await counted.answer("other", make)
        await other({}, received, reads)
        for one in mine:
            await one({}, received, reads_no_more)
        await (await counted.answer("mine", make))({}, received, reads)

    asyncio.run(main())
    assert sizes == [0, downloads.PIECE_BYTES, 1, 0] * 2


def test_a_slow_line_gets_a_large_file_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "SEND_S", 1.5)
    monkeypatch.setattr(downloads, "PIECE_BYTES", 1)
    monkeypatch.setattr(downloads, "BYTES_PER_S_MIN", 1)
    read = bytearray()

    async def main() -> None:
        async def reads(message: Any) -> None:
            await asyncio.sleep(0.2)
            read.extend(message.get("body", b""))

        await downloads.Download(b"ten bytes.", "f.bin", "text/plain", list)({}, reads, reads)

    asyncio.run(main())
    assert read == b"ten bytes."


def test_events_that_are_not_read_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_streams, "READ_S", 0.05)
    sent, ended = list[Any](), list[bool]()

    async def events() -> AsyncGenerator[bytes]:
        try:
            while True:
                yield b"event"
        finally:
            ended.append(True)

    async def send(message: Any) -> None:
        if len(sent) == 3:
            await asyncio.Event().wait()
        sent.append(message)

    asyncio.run(event_streams.EventStream(events()).stream_response(send))
    assert ([each["type"] for each in sent[1:]], ended) == (["http.response.body"] * 2, [True])


def test_more_pages_that_watch_than_may_be_are_refused(
    client: TestClient, messages: dict[str, ReceivedMessage]
) -> None:
    console = client.app.state.console  # type: ignore[attr-defined]
    console.tails += pages_of_messages.TAILS_MAX
    try:
        answer = client.get("/messages/tail/events?topic=orders")
    finally:
        console.tails -= pages_of_messages.TAILS_MAX
    assert (answer.status_code, "watch messages already" in answer.text) == (400, True)


def test_a_whole_body_is_saved_under_a_plain_name(client: TestClient, messages: dict[str, ReceivedMessage]) -> None:
    m = messages["large"]
    answer = client.get(f"/message/body?topic=orders&at={m.broker_name}/{m.queue_id}/{m.queue_offset}")
    assert answer.content == scene.LARGE
    assert answer.headers["content-type"] == "application/octet-stream"
    name = f"orders-{m.broker_name}_{m.queue_id}_{m.queue_offset}.bin"
    assert answer.headers["content-disposition"] == f'attachment; filename="{name}"'


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/messages?topic=orders&path=a.b", 200, "is no path into JSON"),
        ("/messages?topic=orders&since=yesterday", 200, "is no time"),
        ("/messages?topic=nowhere", 200, "no route for topic"),
        ("/messages?topic=orders&queue=x&offset=y", 400, "is no place of a message"),
        ("/messages/more?topic=orders&at=broker-a/77/0", 400, "has no queue broker-a/77"),
        ("/message", 400, "name a message"),
        ("/message?topic=orders&at=broker-a/0/99999", 404, "has no message at offset 99999"),
        ("/message?id=00&topic=orders", 404, "no message 00 of topic"),
        ("/messages/export?topic=orders&kind=exe", 400, "a file of messages is jsonl, csv, parquet"),
        ("/messages/tail/events?topic=nowhere", 404, "no route for topic"),
        ("/group/progress?name=%00", 200, "It has consumed nothing yet"),
        ("/client?id=nobody", 400, "no client"),
        ("/dead-letters?group=never", 200, "no dead letters of group"),
        ("/clients?role=%3Cscript%3E", 200, "Nobody is connected here"),
    ],
)
def test_a_wrong_question_is_answered_in_a_line(
    client: TestClient, messages: dict[str, ReceivedMessage], path: str, status: int, text: str
) -> None:
    answer = client.get(path)
    assert (answer.status_code, text in answer.text) == (status, True), answer.text[-1500:]
    assert "<script>" not in answer.text


@pytest.mark.parametrize(
    "path",
    [
        *("/message/resend", "/message/consume", "/group/reset", "/group/mode", "/group/delete"),
        "/dead-letters/resend",
    ],
)
@pytest.mark.parametrize(
    "fields", [{}, {"name": "g", "topic": "orders", "at": "x", "all": "yes"}, {"confirmed": "yes"}]
)
def test_a_form_that_lacks_fields_or_holds_odd_ones_is_refused(
    cluster: Cluster, messages: dict[str, ReceivedMessage], path: str, fields: dict[str, str]
) -> None:
    if path == "/group/delete" and fields.get("name"):
        return  # All that it needs.
    with opened(cluster.namesrv, requests_per_second=200) as asked:
        answer = posted(asked, path, **fields)
    assert answer.status_code == 400, answer.text
    assert '<p class="note bad" role="alert">' in answer.text


def test_a_read_only_console_has_no_forms_that_change(cluster: Cluster, messages: dict[str, ReceivedMessage]) -> None:
    m = messages["json"]
    app = make_app(ConsoleSettings(namesrv=cluster.namesrv, read_only=True, requests_per_second=200))
    with TestClient(app, base_url="http://127.0.0.1") as asked:
        for path in (f"/message?topic=orders&at={m.broker_name}/{m.queue_id}/{m.queue_offset}", "/group?name=g"):
            assert 'method="post"' not in asked.get(path).text


@pytest.mark.parametrize(
    "path",
    [
        "/message?topic=orders&at=broker-a/0/99999",
        "/message?topic=orders&at=broker-a/77/0",
        "/message?topic=orders&at=broker-z/0/0",
        "/message?topic=nowhere&at=broker-a/0/0",
        f"/message?topic=orders&id={'A' * 32}",
        f"/message?id={'0' * 32}",
        "/message/body?topic=orders&at=broker-a/77/0",
    ],
)
def test_a_message_that_is_not_there_is_not_found(
    client: TestClient, messages: dict[str, ReceivedMessage], path: str
) -> None:
    answer = client.get(path)
    assert (answer.status_code, "Not there" in answer.text) == (404, True)
