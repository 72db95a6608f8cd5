"""What makes a broker refuse: long waits, a slow put, too many who wait for a flush; and how many connections."""

from __future__ import annotations

import asyncio
import math
import resource

import pytest
from tests.live.support import run, until

from rocketspark.broker.operations import fast_failure as fast_failure_module
from rocketspark.broker.operations.fast_failure import SENDS, FastFailure
from rocketspark.broker.settings import BrokerSettings
from rocketspark.protocol import frames
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.frames import Frame


def refused(fast_failure: FastFailure, code: int, waited_s: float = 0.0) -> str | None:
    """The remark to a request of `code`, None if it is served."""
    (item,) = frames.Splitter().feed(frames.encode(Frame(code=code, opaque=5)))
    served, replies = fast_failure.overload.sift([item], waited_s)
    if not replies:
        assert served == [item]
        return None
    answer = frames.decode(replies[0])
    assert (answer.code, answer.opaque, served) == (2, 5, [])
    return answer.remark


@pytest.mark.parametrize(
    ("code", "limit_s"),
    [
        (RequestCode.SEND_MESSAGE, 0.2),
        (RequestCode.SEND_MESSAGE_V2, 0.2),
        (RequestCode.SEND_BATCH_MESSAGE, 0.2),
        (RequestCode.CONSUMER_SEND_MSG_BACK, 0.2),
        (RequestCode.PULL_MESSAGE, 5),
        (RequestCode.LITE_PULL_MESSAGE, 5),
        (RequestCode.HEART_BEAT, 31),
        (RequestCode.END_TRANSACTION, 3),
        (RequestCode.QUERY_CONSUMER_OFFSET, math.inf),
    ],
)
def test_how_long_each_kind_may_wait(code: int, limit_s: float) -> None:
    settings = BrokerSettings()
    fast_failure = FastFailure(settings)
    assert refused(fast_failure, code, min(limit_s, 1e6) - 0.001) is None
    remark = refused(fast_failure, code, min(limit_s, 1e6))
    assert (remark is None) == (limit_s == math.inf)
    settings.refuse_when_behind = False
    fast_failure.configure()
    assert refused(fast_failure, code, 1e6) is None


def test_a_slow_put_refuses_sends_until_one_is_fast_again() -> None:
    async def main() -> None:
        fast_failure = FastFailure(BrokerSettings(slow_put_ms=50))
        fast_failure.put_took(50)
        assert not fast_failure.overload.refusing
        fast_failure.put_took(51)
        for code in SENDS:
            assert refused(fast_failure, code) == "[REJECTREQUEST]system busy, start flow control for a while"
        assert refused(fast_failure, RequestCode.PULL_MESSAGE) is None
        fast_failure.put_took(60)
        fast_failure.put_took(1)
        assert refused(fast_failure, RequestCode.SEND_MESSAGE) is None
        fast_failure.close()

    run(main())


def test_a_slow_put_is_forgotten_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_failure_module, "SLOW_PUT_PAUSE_S", 0.01)

    async def main() -> None:
        fast_failure = FastFailure(BrokerSettings(slow_put_ms=50))
        fast_failure.put_took(51)
        assert fast_failure.overload.refusing
        await until(lambda: not fast_failure.overload.refusing)
        settings = BrokerSettings(slow_put_ms=50, refuse_when_behind=False)
        FastFailure(settings).put_took(51)
        assert asyncio.get_running_loop()

    run(main())


def test_too_many_waiting_for_a_flush() -> None:
    fast_failure = FastFailure(BrokerSettings())
    fast_failure.flushes_waiting(True)
    assert refused(fast_failure, RequestCode.SEND_MESSAGE) == "[OVERLOAD]system busy, start flow control for a while"
    fast_failure.flushes_waiting(False)
    assert refused(fast_failure, RequestCode.SEND_MESSAGE) is None


def test_connections_that_are_allowed() -> None:
    assert FastFailure(BrokerSettings(connections_max=7)).connections_max() == 7
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    expected = math.inf if files == resource.RLIM_INFINITY else max(16, files // 2)
    assert FastFailure(BrokerSettings()).connections_max() == expected
