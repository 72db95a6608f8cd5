"""Our proxy answers single requests as Apache's 5.5.0 did: its answers were recorded, see tests/v5/requests.py."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.unit.proxy.conftest import RunningProxy
from tests.v5.requests import ANSWERS, REQUESTS, ask, prepare
from tests.v5.servers import Servers

from rocketspark.testing.cluster import Cluster

pytestmark = pytest.mark.shows("every row of the validation table, answers of Apache's proxy to 72 requests")

APACHE: dict[str, Any] = json.loads(ANSWERS.read_text())
# The answers recorded are those of a proxy with its broker inside. One before a cluster needs endpoints; a topic that
# is not there has no type to be wrong; each message of a batch has its own entry; what cannot be read as a handle or
# as an expression is the client's mistake, not an error inside the proxy.
BAD_HANDLE = {"code": 40013}
OURS: dict[str, dict[str, Any]] = {
    "route without endpoints": {"code": 40001},
    "send two": {"code": 20000, "entries": [20000, 20000]},
    "send to a topic that is not there": {"code": 40402},
    "receive of a topic that is not there": {"code": 40402},
    "receive by nonsense": {"code": 40010},
    "ack nonsense": BAD_HANDLE | {"entries": [40013]},
    "ack nothing": BAD_HANDLE | {"entries": [40013]},
    "change nonsense": BAD_HANDLE,
    "forward nonsense": BAD_HANDLE,
}


@pytest.fixture(scope="module")
def answers(cluster: Cluster, proxy: RunningProxy) -> dict[str, Any]:
    prepare(Servers("ours", proxy.address, cluster.namesrv, cluster.brokers[0]))
    return ask(proxy.address)


@pytest.mark.parametrize("name", ["settings", *REQUESTS, "no client id"])
def test_answer(answers: dict[str, Any], name: str) -> None:
    expected = OURS.get(name) or {key: value for key, value in APACHE[name].items() if key != "message"}
    assert {key: answers[name].get(key) for key in expected} == expected, answers[name]


def test_everything_was_asked_of_apaches_proxy() -> None:
    assert set(APACHE) == {"settings", *REQUESTS, "no client id"}
