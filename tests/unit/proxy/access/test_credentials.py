"""What a call shows of its sender, as 5.5.0's proxy reads it."""

from __future__ import annotations

import contextlib
import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketspark.proxy.access.credentials import UNREADABLE, Credentials, NotReadable, credentials_of

DATE = "20261123T061500Z"
SIGNED = hmac.new(b"secret", DATE.encode(), hashlib.sha1).hexdigest()
START = "MQv2-HMAC-SHA1 Credential="


def shown(text: str, date: str = DATE) -> Credentials:
    return credentials_of({"authorization": text, "x-mq-date-time": date})


@pytest.mark.parametrize(
    ("text", "user", "good"),
    [
        (f"{START}ann, SignedHeaders=x-mq-date-time, Signature={SIGNED.upper()}", "ann", True),
        (f"{START}ann, SignedHeaders=x-mq-date-time, Signature={SIGNED}", "ann", True),
        (f"{START}ann//Rocketmq, SignedHeaders=x-mq-date-time, Signature={SIGNED}", "ann", True),
        (f"{START}ann/cn/x,SignedHeaders=x-mq-date-time,Signature={SIGNED}", "ann", True),
        (f"{START}, SignedHeaders=x-mq-date-time, Signature={SIGNED}", "", True),
        (f"{START}ann, SignedHeaders=x-mq-date-time, Signature={SIGNED[2:]}", "ann", False),
        (f"{START}ann, SignedHeaders=x-mq-date-time, Signature=", "ann", False),
        (f"{START}ann, SignedHeaders=x-mq-date-time", "ann", False),
        (f"{START}ann, Signature={SIGNED[:2]} {SIGNED[2:]}", "ann", False),
        (f"MQv2-HMAC-SHA1 Signature={SIGNED}", None, True),
    ],
)
def test_what_a_field_says(text: str, user: str | None, good: bool) -> None:
    found = shown(text)
    assert found.username == user
    assert found.are_signed_with(b"secret") is good
    assert not found.are_signed_with(b"other")


@pytest.mark.parametrize(
    ("text", "date", "why"),
    [
        ("MQv2-HMAC-SHA1", DATE, "authentication header is incorrect."),
        ("MQv2-HMAC-SHA1 Credential", DATE, "authentication keyValues length is incorrect, actual length=1."),
        (f"{START}ann, Signature=xyz", DATE, UNREADABLE),
        (f"{START}ann, Signature=abc", DATE, UNREADABLE),
        (f"{START}ann, Signature={SIGNED}", "", "datetime is null."),
        (f"{START}ann, Signature={SIGNED}", "  ", "datetime is null."),
    ],
)
def test_what_cannot_be_read(text: str, date: str, why: str) -> None:
    with pytest.raises(NotReadable, match=why):
        shown(text, date)


def test_no_field_is_nobody() -> None:
    assert credentials_of({}).username is None
    assert credentials_of({"authorization": ""}).username is None


@given(st.text(), st.text())
def test_any_text_is_read_or_refused(text: str, date: str) -> None:
    with contextlib.suppress(NotReadable):
        assert not shown(text, date).are_signed_with(b"secret")
