"""A body as text, JSON and hex: which ways it can be read, where each is cut, and that nothing in it hides."""

from __future__ import annotations

import pytest

from rocketspark.console.content.shown_body import HEX_BYTES_MAX, TEXT_CHARACTERS_MAX, View, preview, views


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", [View("text", ""), View("hex", "")]),
        (b'{"a":"\xc3\xa9"}', [View("JSON", '{\n  "a": "é"\n}'), View("text", '{"a":"é"}')]),
        (b'{"a": "\\u202e\\u0000"}', [View("JSON", '{\n  "a": "\\u202e\\u0000"\n}')]),
        (b"one\n\ttwo\r\n", [View("text", "one\n\ttwo\\r\n")]),
        (b"\x00\xff<i>", [View("hex", "00000000  00 ff 3c 69 3e" + " " * 33 + "  ..<i>")]),
        ("\u202eabc\u200b\x1b[1m".encode(), [View("text", "\\u202eabc\\u200b\\x1b[1m")]),
        (b"{not json", [View("text", "{not json")]),
        (b"[" * 100_000, [View("text", "[" * TEXT_CHARACTERS_MAX, 100_000 - TEXT_CHARACTERS_MAX)]),
    ],
)
def test_a_body_is_shown_in_each_way_it_can_be_read(body: bytes, expected: list[View]) -> None:
    found = views(body)
    assert found[: len(expected)] == expected
    assert found[-1].name == "hex"
    assert len(found) == len({view.name for view in found})


def test_long_bodies_are_cut_and_say_how_much_is_left() -> None:
    # A character of two bytes lies across the place where the text is cut.
    text = "x" + "é" * (2 << 20)
    body = text.encode()
    by_name = {view.name: view for view in views(body)}
    assert by_name["text"].text == text[:TEXT_CHARACTERS_MAX]
    assert by_name["text"].left_bytes == len(body) - (2 * TEXT_CHARACTERS_MAX - 1)
    assert by_name["hex"].left_bytes == len(body) - HEX_BYTES_MAX
    assert len(by_name["hex"].text.splitlines()) == HEX_BYTES_MAX // 16
    assert [view.name for view in views(body[:-1])] == ["hex"]
    large = b"[" + b"1," * 300_000 + b"1]"
    (as_json, *_) = views(large)
    # A line of "  1," for each number.
    assert (as_json.name, as_json.left_bytes) == ("JSON", 300_001 * 5 + 2 - TEXT_CHARACTERS_MAX)


def test_half_a_character_in_what_is_cut_off_fails_nothing() -> None:
    (as_json, *_) = views(b'["' + b"x" * TEXT_CHARACTERS_MAX + b'\\ud800"]')
    # What is cut off: six x, which the beginning pushed out, three bytes of the half, and the end.
    assert (as_json.name, as_json.left_bytes) == ("JSON", 5 + 3 + 3)


def test_lists_in_lists_are_no_gigabytes_of_spaces() -> None:
    nested = b"[" * 300 + b"]" * 300
    assert [view.name for view in views(nested)] == ["JSON", "text", "hex"]
    assert [view.name for view in views(b"[" + b",".join([nested] * 50) + b"]")] == ["text", "hex"]


def test_a_preview_is_one_short_line() -> None:
    assert preview(b"a\nb\xff") == "a\\nb\\xff"
    assert preview(b"y" * 1000) == "y" * 120 + "…"
    assert preview("é".encode() * 300)[:120] == "é" * 120
