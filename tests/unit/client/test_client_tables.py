"""The tables of docs/use/clients: arguments with their defaults, fields of messages and results, errors."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rocketspark import MessageBatch, ReceivedMessage, SendResult, SendStatus, errors
from rocketspark.client import (
    AsyncProducer,
    AsyncPullConsumer,
    AsyncPushConsumer,
    AsyncSimpleConsumer,
    AsyncTransactionProducer,
    Producer,
    PullConsumer,
    PushConsumer,
    TransactionProducer,
)
from rocketspark.client.connection.instance import InstanceSettings
from rocketspark.client.options import ClientOptions, ProducerOptions, ProducerSettings
from rocketspark.client.producer.send_attempts import RETRY_CODES
from rocketspark.model import Message
from rocketspark.model.message import LATE

pytestmark = pytest.mark.shows(
    "docs: options held to the code, recipes run and compared, good practice; `log_sends`",
    "`seek_to_beginning`, `ReceivedMessage.physical_offset`, Spark's column `physicalOffset`",
)

FOLDER = Path(__file__).resolve().parents[3] / "docs" / "use" / "clients"
MESSAGES, ERRORS = ((FOLDER / name).read_text("utf-8") for name in ("messages.md", "errors.md"))
PAGE = "\n".join(page.read_text("utf-8") for page in sorted(FOLDER.glob("*.md")))
NONE = inspect.Parameter.empty
# What AsyncClient takes out before it makes the Instance, with its defaults there.
OF_THE_BASE = {"hooks": (), "trace": False, "telemetry": None}


def arguments(function: Callable[..., Any]) -> dict[str, Any]:
    """The arguments that are given by name, with their defaults."""
    found = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in found if p.kind is p.KEYWORD_ONLY}


def client_options() -> dict[str, Any]:
    defaults = {f.name: f.default for f in msgspec.structs.fields(InstanceSettings)} | OF_THE_BASE
    return {name: defaults[name] for name in ClientOptions.__annotations__}


def producer_options() -> dict[str, Any]:
    own = [name for name in ProducerOptions.__annotations__ if name not in ClientOptions.__annotations__]
    defaults = {f.name: f.default for f in msgspec.structs.fields(ProducerSettings)}
    assert own == list(defaults)
    return defaults


def message_fields() -> dict[str, Any]:
    fields = msgspec.structs.fields(Message)
    made = Message(topic="t", body=b"")
    return {f.name: NONE if f.required else getattr(made, f.name) for f in fields}


TABLES = {
    "## Of every client": client_options,
    "## Of producers": producer_options,
    "A `TransactionProducer` also takes:": lambda: arguments(AsyncTransactionProducer.__init__),
    "## Of push consumers": lambda: arguments(AsyncPushConsumer.__init__),
    "## Of pull consumers": lambda: arguments(AsyncPullConsumer.__init__),
    "## Of simple consumers": lambda: arguments(AsyncSimpleConsumer.__init__),
    "### Of a message": message_fields,
}


def cells(text: str) -> list[list[str]]:
    """The cells of the first table of a text."""
    rows = re.findall(r"^\|.*$", text.split("\n| ", 1)[1].join(["\n| ", ""]).split("\n\n", 1)[0], re.MULTILINE)[2:]
    return [[cell.strip(" `").replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", row)] for row in rows]


def table(heading: str) -> dict[str, Any]:
    """Names and defaults of the table below a line."""
    found = cells(PAGE.split(f"\n{heading}\n", 1)[1])
    return {name: eval(text, {"RETRY_CODES": RETRY_CODES}) if text else NONE for _, name, text, *_ in found}


@pytest.mark.parametrize("heading", TABLES)
def test_the_table_names_each_argument_with_its_default(heading: str) -> None:
    shown, real = table(heading), TABLES[heading]()
    assert list(shown) == list(real)
    assert shown == real


@pytest.mark.parametrize("options", [ClientOptions, ProducerOptions])
def test_rocketmq_s_names_are_those_of_the_docstrings(options: type) -> None:
    named = {word for group in re.findall(r"\[([\w, ]+)\]", options.__doc__ or "") for word in group.split(", ")}
    assert len(named) >= 8
    assert [name for name in sorted(named) if not re.search(rf"\| [^|]*\b{name}\b[^|]* \|", PAGE)] == []


@pytest.mark.parametrize("both", [
    (Producer, AsyncProducer), (TransactionProducer, AsyncTransactionProducer),
    (PushConsumer, AsyncPushConsumer), (PullConsumer, AsyncPullConsumer),
])  # fmt: skip
def test_every_method_is_named(both: tuple[type, type]) -> None:
    life = {"start", "close", "client_id", "end_s", "post", "settle", "send_packed", "send_half", "end"}
    names = {name for one in both for name in dir(one) if not name.startswith("_")} - life
    missing = [n for n in sorted(names) if callable(getattr(both[0], n, None)) and not re.search(rf"`{n}\b", PAGE)]
    assert missing == []


def test_the_table_names_each_field_of_a_received_message_with_its_type() -> None:
    shown = {name: kind for _, name, kind, *_ in cells(MESSAGES.split("## A received message", 1)[1])}
    signature = inspect.signature(ReceivedMessage)
    real: dict[str, Any] = {name: given.annotation for name, given in signature.parameters.items()}
    real |= dict.fromkeys(("body_error", "read_from", "receipt_handle", "lite_topic"), "str | None")
    real |= {"physical_offset": "int", "log_position": "int", "queue": "MessageQueue", "transaction_id": "str"}
    assert {*ReceivedMessage.__struct_fields__, *LATE} - {"_at", "_rest"} < {*real}
    assert shown == real


def test_the_table_names_each_field_of_a_result_with_its_type() -> None:
    shown = [(name, kind) for _, name, kind, *_ in cells(MESSAGES.split("## A send's result", 1)[1])]
    assert shown == list(inspect.get_annotations(SendResult).items())
    assert re.findall(r"^\| `([A-Z_]+)` \|", MESSAGES, re.MULTILINE) == list(SendStatus)


def test_the_table_names_each_column_of_a_batch() -> None:
    shown = {
        name for row in cells(MESSAGES.split("## A batch of received", 1)[1]) for name in re.findall(r"\w+", row[1])
    }
    assert shown == {n for n in dir(MessageBatch) if n[0] != "_"} - {"of_parts", "of_records", "count", "index"}


def test_the_table_of_errors_says_of_each_whether_it_may_be_retried() -> None:
    rows = cells(ERRORS.split("## Errors of clients", 1)[1])
    made = {"no": False, "yes": True, "as answered": False}
    for _, name, _, retriable, *_ in rows:
        kind = getattr(errors, name)
        instance = kind("topic") if issubclass(kind, errors.RouteNotFound) else kind
        assert instance.retriable is made[retriable], name
    clients = {
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.TransportError)
    }
    assert {k.__name__ for k in clients} - {row[1] for row in rows} == {"TransportError", "NotSent"}
