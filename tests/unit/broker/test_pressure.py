"""What makes a broker refuse: long waits, a slow put, too many who wait for a flush; and how many connections."""

from __future__ import annotations

import asyncio
import math
import resource

import pytest
from tests.live.support import run, until

from rocketspark.broker import pressure as pressure_module
from rocketspark.broker.pressure import SENDS, Pressure
from rocketspark.broker.settings import BrokerSettings
from rocketspark.protocol import frames
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.frames import Frame


def refused(pressure: Pressure, code: int, waited_s: float = 0.0) -> str | None:
    """The remark to a request of `code`, None if it is served."""
    (item,) = frames.Splitter().feed(frames.encode(Frame(code=code, opaque=5)))
    served, replies = pressure.overload.sift([item], waited_s)
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
    pressure = Pressure(settings)
    assert refused(pressure, code, min(limit_s, 1e6) - 0.001) is None
    remark = refused(pressure, code, min(limit_s, 1e6))
    assert (remark is None) == (limit_s == math.inf)
    settings.refuse_when_behind = False
    pressure.configure()
    assert refused(pressure, code, 1e6) is None


def test_a_slow_put_refuses_sends_until_one_is_fast_again() -> None:
    async def main() -> None:
        pressure = Pressure(BrokerSettings(slow_put_ms=50))
        pressure.put_took(50)
        assert not pressure.overload.refusing
        pressure.put_took(51)
        for code in SENDS:
            assert refused(pressure, code) == "[REJECTREQUEST]system busy, start flow control for a while"
        assert refused(pressure, RequestCode.PULL_MESSAGE) is None
        pressure.put_took(60)
        pressure.put_took(1)
        assert refused(pressure, RequestCode.SEND_MESSAGE) is None
        pressure.close()

    run(main())


def test_a_slow_put_is_forgotten_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pressure_module, "SLOW_PUT_PAUSE_S", 0.01)

    async def main() -> None:
        pressure = Pressure(BrokerSettings(slow_put_ms=50))
        pressure.put_took(51)
        assert pressure.overload.refusing
        await until(lambda: not pressure.overload.refusing)
        settings = BrokerSettings(slow_put_ms=50, refuse_when_behind=False)
        Pressure(settings).put_took(51)
        assert asyncio.get_running_loop()

    run(main())


def test_too_many_waiting_for_a_flush() -> None:
    pressure = Pressure(BrokerSettings())
    pressure.flushes_waiting(True)
    assert refused(pressure, RequestCode.SEND_MESSAGE) == "[OVERLOAD]system busy, start flow control for a while"
    pressure.flushes_waiting(False)
    assert refused(pressure, RequestCode.SEND_MESSAGE) is None


def test_connections_that_are_allowed() -> None:
    assert Pressure(BrokerSettings(connections_max=7)).connections_max() == 7
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    expected = math.inf if files == resource.RLIM_INFINITY else max(16, files // 2)
    assert Pressure(BrokerSettings()).connections_max() == expected
