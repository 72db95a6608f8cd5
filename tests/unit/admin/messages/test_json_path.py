"""Paths into bodies that are JSON: what they lead to, and bodies that are made to take memory and time."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, cast

import pytest

from rocketspark.admin.messages import search
from rocketspark.admin.messages.json_path import VALUES_MAX, JsonPath, same_value
from rocketspark.admin.messages.search import Search, _Bounds, _Scan
from rocketspark.model import ReceivedMessage

pytestmark = pytest.mark.shows("a search by JSONPath is bounded for each body, and holds up nobody beside it")


@pytest.mark.parametrize(
    ("path", "found"),
    [("$.a[*].x", [1, None]), ("$.a[0]", [{"x": 1}]), ("$['b c']", [[2]]), ("$.none", []), ("$.a[9]", [])],
)
def test_a_path_leads_to_values(path: str, found: list[Any]) -> None:
    assert list(JsonPath(path).values_in(b'{"a":[{"x":1},{"x":null},3],"b c":[2]}')) == found


def test_a_body_of_millions_of_values_is_not_looked_into() -> None:
    each = JsonPath("$[*]")
    text = b'["%b"]' % (b"x" * (VALUES_MAX + 1))
    assert len(list(each.values_in(text))) == 1
    assert list(each.values_in(b"[%b0]" % (b"0," * (VALUES_MAX + 1)))) == []
    assert sum(1 for _ in each.values_in(b"[%b0]" % (b"0," * 1000))) == 1001


def test_a_value_is_the_one_that_a_text_names() -> None:
    assert same_value("7", "7")
    assert same_value(7, "7")
    assert same_value({"a": [1]}, '{"a":[1]}')
    assert not same_value(True, "1")
    assert not same_value(7, "{")


def test_long_bodies_are_looked_at_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "IN_TURN_BYTES", 10)
    looked: list[bool] = []

    def meant(message: ReceivedMessage) -> bool:
        looked.append(threading.current_thread() is threading.main_thread())
        return Search(contains="x").predicate()(message)

    async def main() -> list[bool]:
        scan = _Scan([], meant, False, _Bounds(1, 1, 1), None)
        bodies = (b"x" * 10, b"x" * 11, b"y" * 11)
        messages = [cast(ReceivedMessage, _Message(body)) for body in bodies]
        return [await scan._is_meant(message) for message in messages]

    assert asyncio.run(main()) == [True, True, False]
    assert looked == [True, False, False]


class _Message:
    store_time_ms, message_id, offset_message_id = 0, "", ""

    def __init__(self, body: bytes) -> None:
        self.body = body
