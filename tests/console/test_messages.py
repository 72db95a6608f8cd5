"""The pages about messages, in a browser: searched, seen as they come, read, saved, sent again, given to a consumer."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from tests.console import scene
from tests.support.browser import overflow_px, serious_faults, tab_to

from rocketspark.admin import Admin
from rocketspark.client import Producer
from rocketspark.model import Message, ReceivedMessage
from rocketspark.testing import Cluster

pytestmark = [
    pytest.mark.browser,
    pytest.mark.shows("console: messages are searched, followed, shown, saved, sent again and consumed, in a browser"),
]

TOPIC = "orders"


@pytest.fixture(scope="module")
def messages(cluster: Cluster) -> dict[str, ReceivedMessage]:
    """A message of each kind in the topic."""
    return scene.fill(cluster, TOPIC)


def place(message: ReceivedMessage) -> str:
    return f"{message.broker_name}/{message.queue_id}/{message.queue_offset}"


def at(message: ReceivedMessage) -> str:
    return f"/message?topic={message.topic}&at={place(message)}"


def test_messages_are_searched_from_the_form_by_keyboard_alone(
    page: Page, home: str, messages: dict[str, ReceivedMessage]
) -> None:
    page.goto(f"{home}/messages")
    tab_to(page, page.locator("#f-topic"))
    page.keyboard.type(TOPIC)
    tab_to(page, page.get_by_label("JSONPath in the body"))
    page.keyboard.type("$.order.id")
    page.keyboard.press("Tab")
    page.keyboard.type("42")
    page.keyboard.press("Enter")
    table = page.get_by_role("region", name="Table of messages")
    expect(table.locator("td a")).to_have_text([place(messages["json"])])
    expect(table.get_by_role("status")).to_have_text(re.compile("That is all: 7 messages were looked at"))
    assert serious_faults(page) == []
    assert overflow_px(page) == 0


@pytest.mark.parametrize(
    ("asked", "kinds"),
    [
        ("", [*scene.BODIES]),
        ("key=large", ["large"]),
        ("tag=zero", ["zero"]),
        ("text=%3Cscript%3E", ["script"]),
        ("path=$.name", ["json"]),
        ("until=2020-01-01T00:00", []),
        ("since=2020-01-01T00:00&tag=image", ["image"]),
    ],
)
def test_a_search_finds_what_it_asks_for(
    page: Page, home: str, messages: dict[str, ReceivedMessage], asked: str, kinds: list[str]
) -> None:
    page.goto(f"{home}/messages?topic={TOPIC}&{asked}")
    found = page.get_by_role("region", name="Table of messages").locator("td a").all_inner_texts()
    assert sorted(found) == sorted(place(messages[kind]) for kind in kinds)


def test_a_message_is_found_by_its_id_and_by_its_place(
    page: Page, home: str, messages: dict[str, ReceivedMessage]
) -> None:
    wanted = messages["json"]
    page.goto(f"{home}/messages")
    page.get_by_text("One message, by its id or its place").click()
    page.get_by_label("Message id").fill(wanted.message_id)
    page.get_by_role("button", name="Find by id").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(f"Message {place(wanted)}")
    page.goto(f"{home}/messages")
    page.get_by_text("One message, by its id or its place").click()
    form = page.get_by_role("form", name="Message by place")
    form.get_by_label("Topic").fill(TOPIC)
    form.get_by_label("Queue").fill(f"{wanted.broker_name}/{wanted.queue_id}")
    form.get_by_label("Offset").fill(str(wanted.queue_offset))
    form.get_by_role("button").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(f"Message {place(wanted)}")
    assert serious_faults(page) == []
    assert overflow_px(page) == 0


def test_a_long_search_goes_on_by_itself_to_its_end(page: Page, home: str, cluster: Cluster, admin: Admin) -> None:
    admin.create_topic("long", queue_count=1, brokers=["broker-a"])
    with Producer(cluster.namesrv, "scene") as producer:
        producer.send_many("long", [b"needle", *(b"hay %d" % n for n in range(5000))])
    page.goto(f"{home}/messages?topic=long&text=needle")
    table = page.get_by_role("region", name="Table of messages")
    expect(table.get_by_role("status")).to_have_text("That is all: 5\u202f001 messages were looked at.")
    assert len(table.locator("td a").all()) == 1
    # Where more match than a step shows, somebody asks for more.
    page.goto(f"{home}/messages?topic=long&order=oldest")
    expect(table.locator("td a")).to_have_count(50)
    page.get_by_role("button", name="Go on").click()
    expect(table.locator("td a")).to_have_count(100)
    assert table.locator("td.body").first.inner_text() == "needle"


@pytest.mark.parametrize("kind", scene.BODIES)
def test_text_of_messages_is_never_markup(
    page: Page, home: str, messages: dict[str, ReceivedMessage], kind: str
) -> None:
    page.goto(home + at(messages[kind]))
    bodies = page.locator("section[aria-labelledby=body]")
    expect(page.locator("#fate + div h3")).to_have_text(["Groups", "Trace"])
    shown = {
        "script": "<script>alert(document.cookie)</script>",
        "image": '"><img src=x onerror=alert(1)>',
        "zero": "a\\x00b\\x1b[31m",
        "bytes": "00000000  00 ff fe 3c 62 3e" + " " * 30 + "  ...<b>",
        "turned": "\\u202eevil\\u2066 \\u200bend",
        "large": "z" * 32_768,
        "json": '{\n  "order": {\n    "id": 42,\n    "lines": [\n      1,\n      2\n    ]\n  },\n  "name": "é"\n}',
    }
    assert bodies.locator("pre").first.text_content() == shown[kind]
    cells = page.get_by_role("region", name="Table of properties").get_by_role("row")
    expect(cells.filter(has_text="<i>own")).to_have_text(re.compile(r"<i>own\s*<b>&amp;</b>"))
    assert page.locator("main i, main b, main script, main img").count() == 0
    if kind == "large":
        expect(bodies.get_by_text("Cut: 4.0 MiB more").first).to_be_visible()
    with page.expect_download() as came:
        bodies.get_by_role("link", name=re.compile("Save the whole body")).click()
    assert Path(came.value.path()).read_bytes() == scene.BODIES[kind]


def test_picked_messages_are_saved_as_a_file(page: Page, home: str, messages: dict[str, ReceivedMessage]) -> None:
    page.goto(f"{home}/messages?topic={TOPIC}")
    for kind in ("json", "bytes"):
        page.get_by_label(f"Pick {place(messages[kind])}").check()
    page.get_by_label("Save those picked").select_option("jsonl")
    with page.expect_download() as came:
        page.get_by_role("button", name="Save as a file").click()
    assert came.value.suggested_filename == "orders.jsonl"
    rows = [json.loads(line) for line in Path(came.value.path()).read_text().splitlines()]
    assert sorted(row["tag"] for row in rows) == ["bytes", "json"]
    assert [row["body"] for row in rows if row["tag"] == "json"] == [scene.JSON.decode()]


def test_messages_appear_as_they_come(page: Page, home: str, cluster: Cluster, admin: Admin) -> None:
    admin.create_topic("live", queue_count=1)
    page.goto(f"{home}/messages/tail?topic=live&tag=wanted")
    state = page.locator("[data-tail-state]")
    expect(state).to_have_text("0 messages came")
    with Producer(cluster.namesrv, "scene") as producer:
        producer.send(Message("live", b"other", tag="other"))
        producer.send(Message("live", scene.SCRIPT, tag="wanted", keys=["<b>"]))
    expect(state).to_have_text("1 message came")
    row = page.locator("[data-tail-rows] tr")
    expect(row).to_have_count(1)
    assert row.locator("td").all_inner_texts()[2:] == ["wanted", "<b>", scene.SCRIPT.decode()]
    assert serious_faults(page) == []
    page.get_by_role("button", name="Stop").click()
    expect(state).to_have_text("Stopped after 1 message")
    row.locator("a").click()
    expect(page.locator("pre").first).to_have_text(scene.SCRIPT.decode())


def test_a_message_is_sent_again_once_it_is_confirmed(
    page: Page, home: str, cluster: Cluster, admin: Admin, messages: dict[str, ReceivedMessage]
) -> None:
    admin.create_topic("elsewhere", queue_count=1, brokers=["broker-a"])
    page.goto(home + at(messages["json"]))
    # By keyboard alone.
    tab_to(page, page.get_by_label("To topic"))
    page.keyboard.type("elsewhere")
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_contain_text(f"{messages['json'].message_id} of topic orders is sent once more")
    assert admin.show_topic("elsewhere").message_count == 0
    assert serious_faults(page) == []
    tab_to(page, page.get_by_role("button", name="Send again"))
    page.keyboard.press("Enter")
    expect(page.get_by_role("status").first).to_contain_text("It was sent to topic elsewhere, queue 0 of broker-a")
    (again,) = scene.read(cluster, "elsewhere", 1)
    assert (again.body, again.tag, again.message_id) == (scene.JSON, "json", messages["json"].message_id)


def test_a_body_is_decoded_by_a_schema_that_is_given(page: Page, home: str, cluster: Cluster, admin: Admin) -> None:
    admin.create_topic("avro", queue_count=1, brokers=["broker-a"])
    with Producer(cluster.namesrv, "scene") as producer:
        producer.send("avro", b"\x0e\x06<b>")
    page.goto(f"{home}/message?topic=avro&at=broker-a/0/0")
    page.get_by_text("Avro or Protobuf").click()
    schema = {"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}, {"name": "t", "type": "string"}]}
    page.get_by_label("Schema").fill(json.dumps(schema))
    page.get_by_role("button", name="Decode").click()
    expect(page.get_by_role("region", name="Body decoded")).to_have_text('{ "n": 7, "t": "<b>" }')
    assert serious_faults(page) == []
    page.get_by_label("Schema").fill("{}")
    page.get_by_role("button", name="Decode").click()
    expect(page.locator("#decoded").get_by_role("alert")).to_be_visible()


@pytest.fixture
def consumed(cluster: Cluster, messages: dict[str, ReceivedMessage]) -> Iterator[list[bytes]]:
    """What the listener of a member of the group `readers` got."""
    got: list[bytes] = []
    ready = threading.Event()

    def listener(message: ReceivedMessage) -> bool:
        got.append(message.body)
        if len(got) == len(messages):
            ready.set()
        return True

    with scene.member(cluster, "readers", TOPIC, listener, instance_name="reader-1", trace=True):
        assert ready.wait(scene.LIMIT_S)
        got.clear()
        yield got


def test_a_message_tells_what_became_of_it_and_is_consumed_by_hand(
    page: Page, home: str, consumed: list[bytes], messages: dict[str, ReceivedMessage]
) -> None:
    page.goto(home + at(messages["image"]))
    groups = page.get_by_role("region", name="Table of groups")
    expect(groups.get_by_role("row").filter(has_text="readers")).to_be_visible()
    page.get_by_label("By group").fill("readers")
    page.get_by_role("button", name="Have it consumed").click()
    expect(page.locator("main")).to_contain_text("the first connected member of group readers")
    assert consumed == []
    page.get_by_role("button", name="Have it consumed").click()
    expect(page.get_by_role("status").first).to_contain_text("consumed it in")
    assert consumed == [scene.IMAGE]
