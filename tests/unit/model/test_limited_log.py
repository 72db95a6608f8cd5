"""Log lines that others can cause: some of each kind, then a count; nothing in them moves the cursor."""

from __future__ import annotations

import logging

import pytest

from rocketspark.model.limited_log import LimitedLog

pytestmark = pytest.mark.shows(
    "mended: a line per bad request, unlimited; names unshown",
    "mended: escape sequences and newlines from names reach logs, a line per bad request: NameServer, outbox, metrics",
)

NAME = "rocketspark.test"


class Time:
    def __init__(self) -> None:
        self.s = 0.0

    def __call__(self) -> float:
        return self.s


def test_of_one_kind_a_few_lines_are_written_and_then_how_many_were_left_out(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, NAME)
    now = Time()
    log = LimitedLog(NAME, lines_max=2, period_s=10, now=now)
    before = LimitedLog.left_out_count
    for number in range(5):
        log.warning("request %d is broken", number)
    log.info("something else")
    assert LimitedLog.left_out_count == before + 3
    assert caplog.messages == ["request 0 is broken", "request 1 is broken", "something else"]
    caplog.clear()
    now.s = 10.0
    log.warning("request %d is broken", 5)
    assert caplog.messages == ["3 more lines like the next one were left out", "request 5 is broken"]


def test_values_are_shown_so_that_no_line_is_forged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, NAME)
    log = LimitedLog(NAME)
    log.warning("%s asked for %s and %d", "a\nERROR b", ValueError("\x1b[2J"), 3)
    assert caplog.messages == ["a\\nERROR b asked for \\x1b[2J and 3"]


def test_an_exception_is_written_with_its_place_and_a_shown_text(caplog: pytest.LogCaptureFixture) -> None:
    log = LimitedLog(NAME)
    try:
        raise ValueError("a\nb")
    except ValueError:
        log.exception("request %d failed", 7)
    (message,) = caplog.messages
    assert message.startswith("request 7 failed\n  File ")
    assert message.endswith("ValueError: a\\nb")


def test_what_nobody_reads_costs_no_entry(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, NAME)
    log = LimitedLog(NAME)
    log.info("quiet %s", "x")
    assert caplog.messages == []
    assert log._kinds == {}
