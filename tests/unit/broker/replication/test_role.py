"""What a slave refuses, row by row, and nothing else."""

from __future__ import annotations

import itertools

import pytest

from rocketspark.broker.replication.role import NOT_HERE, REJECTED, TABLE_CHANGES, Refusal, Situation, refusal
from rocketspark.protocol.codes import RequestCode

pytestmark = pytest.mark.shows("what a slave refuses, with which code")

SEND_CODES = (
    *(RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE),
    RequestCode.SEND_HALF_BATCH,
)
END_CODES = (RequestCode.END_TRANSACTION, RequestCode.END_HALF_RANGES)
SITUATIONS = [Situation(*flags) for flags in itertools.product((False, True), repeat=7)]

SLAVE = Situation(copies=True, recalls_allowed=True)
ACTING = Situation(copies=True, acting_allowed=True, reads_allowed=True, recalls_allowed=True)
FENCED = Situation(fenced=True, recalls_allowed=True)
# Whoever asks it may know it as the master of a moment ago, and take what it answers for done.
ELSEWHERE = "Can't modify topic or subscription group from slave broker, please execute it from master broker."

# (situation, request, code, remark)
ROWS = [
    *((SLAVE, code, 2, REJECTED) for code in (*SEND_CODES, RequestCode.CONSUMER_SEND_MSG_BACK)),
    *((ACTING, code, 14, NOT_HERE) for code in SEND_CODES),
    (ACTING, RequestCode.CONSUMER_SEND_MSG_BACK, 1, "no master available along with 127.0.0.1"),
    *((FENCED, code, 14, NOT_HERE) for code in SEND_CODES),
    (FENCED, RequestCode.CONSUMER_SEND_MSG_BACK, 1, "SERVICE_NOT_AVAILABLE"),
    (SLAVE, RequestCode.PULL_MESSAGE, 2, REJECTED),
    (SLAVE, RequestCode.LITE_PULL_MESSAGE, 2, REJECTED),
    *((situation, code, 11, None) for situation in (SLAVE, ACTING) for code in END_CODES),
    *((FENCED, code, 14, NOT_HERE) for code in END_CODES),
    (SLAVE, RequestCode.RECALL_MESSAGE, 11, "recall failed, broker service not available"),
    (FENCED, RequestCode.RECALL_MESSAGE, 14, "recall failed, broker service not available"),
    *((SLAVE._replace(controlled=True), code, 1, ELSEWHERE) for code in TABLE_CHANGES),
    (SLAVE, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, 1, "Can not reset offset in slave broker"),
]
EVER_REFUSED = {row[1] for row in ROWS}


@pytest.mark.parametrize(("situation", "code", "answer", "remark"), ROWS)
def test_each_row(situation: Situation, code: int, answer: int, remark: str | None) -> None:
    assert refusal(code, situation, host="127.0.0.1") == Refusal(answer, remark)


@pytest.mark.parametrize("code", RequestCode)
def test_no_other_request_is_ever_refused(code: RequestCode) -> None:
    for situation in SITUATIONS:
        found = refusal(code, situation)
        if not situation.copies and not situation.fenced:
            assert found is None, "a master refuses nothing"
        if code not in EVER_REFUSED:
            assert found is None
        if found is not None:
            assert found.code in (1, 2, 11, 14)


@pytest.mark.parametrize("situation", SITUATIONS)
def test_no_message_ever_gets_in_where_none_may(situation: Situation) -> None:
    writes = (*SEND_CODES, RequestCode.CONSUMER_SEND_MSG_BACK, *END_CODES)
    for code in writes:
        assert (refusal(code, situation) is not None) == (situation.copies or situation.fenced)
    for code in (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE):
        # A fenced master may still be read.
        assert (refusal(code, situation) is not None) == (situation.copies and not situation.reads_allowed)


def test_a_slave_without_a_controller_takes_changes_of_tables_as_rocketmqs_does() -> None:
    assert {refusal(code, SLAVE) for code in TABLE_CHANGES} == {None}


def test_settings_that_say_no_by_themselves_say_it_first() -> None:
    assert refusal(RequestCode.RECALL_MESSAGE, SLAVE._replace(recalls_allowed=False)) is None
    assert refusal(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, SLAVE._replace(resets_here=False)) is None
