"""Forms that browsers post: read as they are meant, and bounded whoever posts them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from urllib.parse import parse_qsl, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketspark.console.content.forms import FIELDS_MAX, SMALL_BYTES_MAX, Forms, fields_of
from rocketspark.errors import UsageError

pytestmark = pytest.mark.shows("the console's forms are bounded: before a login, and all together")

TEXT = st.text(st.characters(codec="utf-8"), max_size=30)


@given(st.dictionaries(TEXT, TEXT, max_size=5))
def test_what_a_browser_writes_is_what_was_typed(fields: dict[str, str]) -> None:
    assert fields_of(urlencode(fields).encode()) == fields


@pytest.mark.parametrize(
    "written", ["", "a", "a=", "=b", "a=b=c", "&&a=1&&", "a=+%2B+", "a=b \t", "a=%e2%82%AC", "a==41"]
)
def test_odd_forms_are_read_as_everywhere(written: str) -> None:
    assert fields_of(written.encode()) == dict(parse_qsl(written, keep_blank_values=True))


@pytest.mark.parametrize(
    ("written", "why"),
    [
        (b"a=%", "no escape"),
        (b"a=%4", "no escape"),
        (b"a=%zz", "no escape"),
        (b"a=%ff", "UTF-8"),
        (b"a=\xff", "UTF-8"),
        (b"&" * FIELDS_MAX, "fields"),
    ],
)
def test_what_is_no_form_is_refused(written: bytes, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        fields_of(written)


def test_a_body_alone_is_long() -> None:
    long = "x" * (SMALL_BYTES_MAX + 1)
    assert fields_of(f"body={long}&json={long}".encode()) == {"body": long, "json": long}
    for written in (f"properties={long}", f"{long}=1"):
        with pytest.raises(UsageError, match="more than 65536 characters"):
            fields_of(written.encode())


async def pieces(*given: int) -> AsyncIterator[bytes]:
    for size in given:
        yield b"x" * size


async def sent(forms: Forms, *sizes: int, bytes_max: int = 10 * SMALL_BYTES_MAX) -> int:
    async with forms.read(pieces(*sizes), bytes_max) as body:
        return len(body)


def test_large_forms_are_bounded_together_and_small_ones_always_find_room() -> None:
    async def main() -> None:
        forms = Forms(bytes_max=2 * SMALL_BYTES_MAX)
        with pytest.raises(UsageError, match="more than"):
            await sent(forms, 100, 50, bytes_max=149)
        assert await sent(forms, 100, 50, bytes_max=150) == 150
        async with forms.read(pieces(SMALL_BYTES_MAX, SMALL_BYTES_MAX, SMALL_BYTES_MAX), 1 << 30):
            assert forms.held == 2 * SMALL_BYTES_MAX
            assert await sent(forms, SMALL_BYTES_MAX) == SMALL_BYTES_MAX
            with pytest.raises(UsageError, match="send it again"):
                await sent(forms, SMALL_BYTES_MAX, 1)
        assert forms.held == 0
        assert await sent(forms, SMALL_BYTES_MAX, 1) == SMALL_BYTES_MAX + 1

    asyncio.run(main())
