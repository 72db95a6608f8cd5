"""Every error of the tree comes out of pickle, copy and deepcopy as it was: text, facts and cause."""

from __future__ import annotations

import copy
import inspect
import multiprocessing
import pickle
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest

from rocketspark import errors
from rocketspark.broker.storage.tier_reads import ColdMiss
from rocketspark.errors import RocketSparkError
from rocketspark.model import MessageQueue
from rocketspark.proxy.call import Code
from rocketspark.proxy.wire.statuses import Refused
from rocketspark.spark.exactly_once.batch_commit import TakenOver
from rocketspark.spark.exactly_once.commit_topic import NotSafelyStored
from rocketspark.spark.exactly_once.end_transactions import NoRanges
from rocketspark.spark.read.queue_discovery import QueueGone
from rocketspark.tables.offset_ranges import OffsetRange
from rocketspark.tables.read.data_loss import DataLost

pytestmark = pytest.mark.shows("every error of the tree pickles and copies")

TEXT = "what is wrong, and what to do"


class Closed(Exception):
    """As libraries have them: made of other arguments than those its base is given."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(f"{host}:{port} closed")


def server_error() -> errors.ServerError:
    return errors.ServerError(2, "busy", address="127.0.0.1:1", doing="send", retriable=True)


def no_route() -> errors.RouteNotFound:
    return errors.RouteNotFound("T", remark="none", address="127.0.0.1:1")


# Those that are made of more than a text.
OTHERS: dict[type[RocketSparkError], Callable[[], RocketSparkError]] = {
    errors.MessageIllegal: lambda: errors.MessageIllegal(TEXT, topic="T"),
    errors.FilterIllegal: lambda: errors.FilterIllegal(TEXT, position=7),
    errors.ServerError: server_error,
    errors.RouteNotFound: no_route,
    errors.BrokerNotFound: lambda: errors.BrokerNotFound("T", remark="no broker-a", address="127.0.0.1:1"),
    errors.SendFailed: lambda: errors.SendFailed(
        "T", server_error(), attempts=3, brokers=("broker-a", "broker-b"), cost_ms=12.5
    ),
    errors.ReceiptExpired: lambda: errors.ReceiptExpired("01AB", 60_000, 12.5),
    errors.StoreFull: lambda: errors.StoreFull(TEXT, needed_bytes=10, free_bytes=3),
    errors.StoreUnwritable: lambda: errors.StoreUnwritable(TEXT, retriable=True),
    errors.ReplicationError: lambda: errors.ReplicationError(TEXT, reason="magic"),
    errors.MessageStays: lambda: errors.MessageStays(TEXT, when_ended=lambda told: None),
    QueueGone: lambda: QueueGone(MessageQueue("T", "broker-a", 1), 7, "deleted"),
    DataLost: lambda: DataLost(OffsetRange(MessageQueue("T", "broker-a", 1), 3, 9), 3, 8, "deleted"),
    Refused: lambda: Refused(Code.FORBIDDEN, TEXT),
    ColdMiss: lambda: ColdMiss(2, "busy"),
}


def tree(kind: type[RocketSparkError] = RocketSparkError) -> set[type[RocketSparkError]]:
    found = {kind for kind in kind.__subclasses__() if kind.__module__.startswith("rocketspark.")}
    return found.union({RocketSparkError}, *map(tree, found))


def made(kind: type[RocketSparkError]) -> RocketSparkError:
    if kind in OTHERS:
        return OTHERS[kind]()
    if issubclass(kind, errors.TransportError):
        return kind(TEXT, address="127.0.0.1:1")
    # Whoever adds one with arguments of its own adds it above.
    own = kind.__dict__.get("__init__")
    assert own is None or len(inspect.signature(own).parameters) == 2, kind
    return kind(TEXT)


def facts(error: BaseException | None) -> Any:
    if error is None:
        return None
    known = {name: value for name, value in vars(error).items() if name != "when_ended"}
    return type(error), str(error), error.args, known, facts(error.__cause__), error.__suppress_context__


def sent(error: RocketSparkError) -> RocketSparkError:
    again: RocketSparkError = pickle.loads(pickle.dumps(error))
    return again


WAYS: list[Callable[[RocketSparkError], RocketSparkError]] = [sent, copy.copy, copy.deepcopy]


@pytest.mark.parametrize("kind", sorted(tree(), key=str))
@pytest.mark.parametrize("way", WAYS)
def test_it_comes_back_as_it_was(
    kind: type[RocketSparkError], way: Callable[[RocketSparkError], RocketSparkError]
) -> None:
    error = made(kind)
    error.__cause__ = error.__cause__ or errors.ConnectionLost("lost", address="127.0.0.1:2")
    error.__cause__.__cause__ = OSError(32, "Broken pipe")
    error.add_note("seen in a test")
    back = way(error)
    told = facts(error)
    # Errors of the system are equal by their text.
    assert repr(facts(back)) == repr(told)
    assert back.retriable == error.retriable
    assert repr(facts(way(back))) == repr(told)


def test_all_errors_are_tried() -> None:
    others = {TakenOver, NotSafelyStored, NoRanges, QueueGone, DataLost, Refused}
    assert others < tree()
    assert {k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, RocketSparkError)} < tree()


def test_a_cause_that_cannot_go_goes_as_its_text() -> None:
    failed = errors.DatabaseFailed("the database does not answer")
    failed.__cause__ = Closed("db", 5432)
    with pytest.raises(TypeError):
        pickle.loads(pickle.dumps(failed.__cause__))
    cause = sent(failed).__cause__
    assert (type(cause), str(cause)) == (RocketSparkError, "Closed: db:5432 closed")
    assert copy.copy(failed).__cause__ is failed.__cause__


def fail() -> None:
    raise errors.SendFailed("T", no_route(), attempts=3, brokers=("broker-a",), cost_ms=12.5)


def test_a_pool_of_processes_tells_it() -> None:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        told = pool.submit(fail).exception(timeout=120)
    assert isinstance(told, errors.SendFailed)
    assert (str(told), told.topic, told.attempts, told.brokers) == (
        "send to topic 'T' failed after 3 attempt(s) on broker-a in 12 ms: route of topic 'T': code 17 from"
        " 127.0.0.1:1: none",
        "T",
        3,
        ("broker-a",),
    )


def test_a_broker_without_users_is_named_as_such() -> None:
    told = str(errors.ServerError(1, "An system error occurred, please try again later.", doing="list users"))
    assert told.endswith("(a broker without access control has no users and rules: start it with --secure)")


def test_a_refusal_of_either_access_control_is_one() -> None:
    refused = "org.apache.rocketmq.acl.common.AclException: No permission for topic:orders, org.apache.rocketmq.acl"
    assert errors.ServerError(16, "User:bob has no permission").no_permission
    assert errors.ServerError(1, refused).no_permission
    assert not errors.ServerError(1, "no consumer for this group").no_permission
    unsigned = "org.apache.rocketmq.acl.common.AclException: No accessKey is configured, org.apache.rocketmq.acl"
    told = str(errors.ServerError(1, unsigned))
    assert told.endswith("(the broker wants signed requests: give access_key and secret_key)")
