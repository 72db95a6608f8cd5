"""What a broker tells of itself, made into values: odd tables give zeros, never an error."""

from __future__ import annotations

import pytest

from rocketspark.admin.broker_states import BrokerFigures, broker_figures, day_sum, setting_states
from rocketspark.admin.cluster_client import BrokerState
from rocketspark.broker.broker_conf import settings_from
from rocketspark.client.connection.broker_api import Counter, Window

pytestmark = pytest.mark.shows("operations on brokers from Python: state, settings, counters, replicas, traffic")

AT = BrokerState("c", "a", 1, "h:1")


def test_a_table() -> None:
    table = {
        "brokerVersionDesc": "V4_9_7",
        "brokerActive": "false",
        "putTps": "12.5 3.25 1.0",
        "getTransferedTps": "7 8 9",
        "msgPutTotalTodayNow": "110",
        "msgPutTotalTodayMorning": "100",
        "msgPutTotalYesterdayMorning": "70",
        "earliestMessageTimeStamp": "1700000000000",
        "commitLogDiskRatio": "0.25",
        "consumeQueueDiskRatio": "2.5E-1",
        "commitLogMinOffset": "5",
        "commitLogMaxOffset": "9",
    }
    found = broker_figures(AT, table)
    assert found == BrokerFigures(
        *("c", "a", 1, "h:1", "", "V4_9_7", False),
        in_tps=12.5,
        out_tps=7.0,
        in_today=10,
        in_yesterday=30,
        oldest_ms=1_700_000_000_000,
        disk_used=0.25,
        queue_disk_used=0.25,
        log_start=5,
        log_end=9,
        table=table,
    )
    assert found.role == "slave"


@pytest.mark.parametrize("odd", ["", " ", "x", "nan", "inf", "-1", "1e999", "9" * 400, "0.5.5", "²", "1_0"])
def test_what_is_no_number_is_none(odd: str) -> None:
    names = ("putTps", "getTransferredTps", "msgPutTotalTodayNow", "bootTimestamp", "commitLogDiskRatio")
    table = dict.fromkeys((*names, "earliestMessageTimeStamp", "brokerActive"), odd)
    found = broker_figures(AT, table)
    assert found == BrokerFigures("c", "a", 1, "h:1", active=False, table=table)
    assert broker_figures(AT, {}) == BrokerFigures("c", "a", 1, "h:1")


def test_defaults_are_those_of_a_broker_that_nobody_set() -> None:
    plain, _ = settings_from({})
    states = setting_states(plain.properties())
    # Names, addresses and folders are of the machine.
    assert {s.key for s in states if s.differs} == {"brokerIP1", "brokerIP2"}
    changed, _ = settings_from({"brokerName": "x", "fileReservedTime": "71", "ackMessageThreadPoolNums": "3"})
    differing = {s.key: s for s in setting_states(changed.properties()) if s.differs}
    assert differing.keys() == {"brokerIP1", "brokerIP2", "brokerName", "fileReservedTime", "ackMessageThreadPoolNums"}
    assert (differing["fileReservedTime"].default, differing["fileReservedTime"].live) == ("72", True)
    assert (differing["ackMessageThreadPoolNums"].default, differing["ackMessageThreadPoolNums"].live) == ("16", None)
    (unknown,) = setting_states({"ofAnotherVersion": "1"})
    assert (unknown.default, unknown.live, unknown.differs) == (None, None, True)


def test_the_sum_of_a_day_is_that_of_the_longest_window_that_has_one() -> None:
    assert day_sum(Counter(stats_minute=Window(sum=1))) == 1
    assert day_sum(Counter(stats_minute=Window(sum=1), stats_hour=Window(sum=2))) == 2
    assert day_sum(Counter(stats_hour=Window(sum=2), stats_day=Window(sum=3))) == 3
