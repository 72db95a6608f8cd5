"""Frames of requests that differ in numbers alone are those that are made one by one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketspark.errors import FrameError
from rocketspark.protocol import frames, headers
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers import PullHeader
from rocketspark.transport.request_frames import RequestForm, request

numbers = st.integers(-(1 << 63), (1 << 63) - 1)


def header(**fields: object) -> PullHeader:
    values: dict[str, object] = {
        "group": "100%s",
        "topic": 'a"ü\\%d',
        "queue_id": 3,
        "queue_offset": 0,
        "count_max": 0,
        "sys_flag": 4,
        "commit_offset": 0,
        "suspend_ms": 0,
        "subscription": "%d || \x01",
        "subscription_version": 0,
        "expression_type": "TAG",
        "bytes_max": 1 << 20,
        "broker_name": "b",
    }
    return PullHeader(**values | fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("varying", [("queue_offset", "count_max"), ("count_max", "queue_offset"), ("queue_id",), ()])
@given(st.data())
def test_a_form_that_is_filled_is_the_request(varying: tuple[str, ...], data: st.DataObject) -> None:
    form = RequestForm(RequestCode.PULL_MESSAGE, headers.to_ext_of(header(), *varying), len(varying))
    opaque, values = data.draw(numbers), [data.draw(numbers) for _ in varying]
    made = request(RequestCode.PULL_MESSAGE, header(**dict(zip(varying, values, strict=True))), opaque=opaque)
    assert form.filled(opaque, values) == made


def test_a_header_that_nobody_takes_is_not_sent() -> None:
    """Its receiver would end the connection, which others use too."""
    fits = request(10, {"a": "x" * (frames.HEADER_BYTES_MAX - 200)}, opaque=1)
    ((_, header, _),) = frames.Splitter().feed(fits)
    assert len(header) > frames.HEADER_BYTES_MAX - 200
    with pytest.raises(FrameError, match=r"a header of \d+ bytes is over the limit of 1048576: not sent"):
        request(10, {"a": "x" * frames.HEADER_BYTES_MAX}, opaque=1)
