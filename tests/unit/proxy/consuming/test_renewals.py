"""The table of handles that are renewed: against a simple model, with a clock that is set."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.patience import LIMIT_S

from rocketspark.errors import NotSent
from rocketspark.protocol.json.bodies import GroupConfig
from rocketspark.protocol.pop_answers import ReceiptHandle, with_new_time
from rocketspark.proxy.brokers import retry_wait_ms
from rocketspark.proxy.clients import Telemetry
from rocketspark.proxy.consuming import outcomes as outcomes_module
from rocketspark.proxy.consuming.handle_calls import Held, check_valid
from rocketspark.proxy.consuming.outcomes import Outcomes
from rocketspark.proxy.consuming.renewals import AT_ONCE_MAX, STEPS_MS, Renewals, RenewSettings
from rocketspark.proxy.settings import ProxySettings
from rocketspark.proxy.wire import messages
from rocketspark.proxy.wire.enumerations import Code
from rocketspark.proxy.wire.statuses import Refused
from rocketspark.transport.request_frames import Reply

pytestmark = pytest.mark.shows("handles renewed; a client that ends or vanishes frees its push messages")

MINUTE_MS = 60_000


def held(offset: int, pop_time_ms: int = 0, invisible_ms: int = MINUTE_MS, topic: str = "T") -> Held:
    handle = ReceiptHandle(
        start_offset=0, pop_time_ms=pop_time_ms, invisible_time_ms=invisible_ms, revive_queue_id=0, retry_flag="0",
        broker_name="b", queue_id=0, queue_offset=offset, physical_offset=offset,
    )  # fmt: skip
    return Held("G", topic, handle)


class Broker:
    """Changes times, or fails as told; `asked`: by how much."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.asked: list[tuple[int, int]] = []
        self.failure: Exception | None = None
        self.refuses = False
        self.wait: asyncio.Event | None = None

    async def change(self, one: Held, invisible_ms: int) -> ReceiptHandle | None:
        self.asked.append((one.handle.queue_offset, invisible_ms))
        if self.wait is not None:
            await self.wait.wait()
        if self.failure is not None:
            raise self.failure
        return None if self.refuses else with_new_time(one.handle, self.now_ms, invisible_ms, 1)

    async def retry_wait(self, group: str, attempts: int) -> int | None:
        return 77_000 + attempts

    def table(self, **options: Any) -> Renewals:
        return Renewals(self.change, self.retry_wait, lambda: self.now_ms, RenewSettings(), **options)


def test_each_renewal_is_longer_until_three_hours_are_over() -> None:
    async def run() -> list[tuple[int, int]]:
        broker = Broker()
        table = broker.table()
        table.add("c", held(1), 4)
        while table.count:
            broker.now_ms += 5000
            await table.renew_due()
        return broker.asked

    asked = [wait_ms for _, wait_ms in asyncio.run(run())]
    assert asked == [*STEPS_MS, STEPS_MS[-1], STEPS_MS[-1], 77_004]


def test_nothing_is_renewed_before_its_time() -> None:
    async def run() -> None:
        broker = Broker()
        table = broker.table()
        table.add("c", held(1), 0)
        for broker.now_ms, expected in ((49_999, 0), (50_000, 1), (50_001, 1), (100_000, 2)):
            await table.renew_due()
            assert len(broker.asked) == expected

    asyncio.run(run())


def test_what_a_client_may_not_have_got_is_given_back_with_it_and_not_renewed() -> None:
    async def run() -> None:
        broker = Broker()
        table = broker.table()
        for number in (1, 2, 3):
            table.add("c", held(number), 0)
            table.doubt("c", held(number))
        table.doubt("c", held(3, pop_time_ms=1))
        table.doubt("nobody", held(1))
        assert (await table.take("c", held(1))).handle == held(1).handle
        broker.now_ms = 49_999
        await table.renew_due()
        assert [one.handle for one in table.of_client("c")] == [held(2).handle, held(3).handle]
        taken = await table.take_renewal("c", held(3))
        assert taken is not None
        table.restore("c", taken)  # Its client named it, so it has it.
        broker.now_ms = 50_000
        await table.renew_due()
        assert broker.asked == [(3, MINUTE_MS)]
        assert table.count == 1

    asyncio.run(run())


def test_three_failures_in_a_row_are_too_many_and_a_refusal_is_the_end() -> None:
    async def run() -> None:
        broker = Broker()
        table = broker.table()
        broker.now_ms = 55_000
        # The second: its broker has no master for a moment.
        for number, broker.failure in enumerate((NotSent("gone"), Refused(Code.BAD_REQUEST, "no master"))):
            table.add("c", held(1), 0)
            for count in (1, 1, 1, 0):
                await table.renew_due()
                assert table.count == count
            assert len(broker.asked) == 3 * (number + 1)
        for failure, refuses in ((Refused(Code.INVALID_RECEIPT_HANDLE, "expired"), False), (None, True)):
            broker.failure, broker.refuses = failure, refuses
            table.add("c", held(1), 0)
            await table.renew_due()
            assert table.count == 0

    asyncio.run(run())


@pytest.mark.shows("attacks: huge texts, made-up handles, brokers that are dead or silent beside others")
def test_a_silent_broker_holds_up_its_own_handles_alone() -> None:
    async def run() -> None:
        broker = Broker()
        silent = asyncio.Event()
        begun: list[str] = []

        async def change(one: Held, invisible_ms: int) -> ReceiptHandle | None:
            name = one.handle.broker_name
            begun.append(name)
            if name == "silent":
                await silent.wait()
            return await broker.change(one, invisible_ms)

        table = Renewals(change, broker.retry_wait, lambda: broker.now_ms, RenewSettings())
        for number in range(AT_ONCE_MAX + 1):
            one = held(number)
            table.add("c", one._replace(handle=msgspec.structs.replace(one.handle, broker_name="silent")), 0)
        table.add("c", held(1), 0)
        for round_ in (1, 2):
            broker.now_ms = table.of_client("c")[-1].handle.next_visible_ms - 1
            done, _ = await asyncio.wait(table.begin_due(), return_when=asyncio.FIRST_COMPLETED, timeout=LIMIT_S)
            assert len(done) == 1
            assert (begun.count("b"), begun.count("silent")) == (round_, AT_ONCE_MAX)
        await table.close()
        assert table.count == AT_ONCE_MAX + 2, "what was not renewed is there to be given back"

    asyncio.run(run())


def test_an_acknowledgement_waits_for_a_change_that_is_under_way() -> None:
    async def run() -> None:
        broker = Broker()
        table = broker.table()
        table.add("c", held(1), 0)
        broker.now_ms, broker.wait = 55_000, asyncio.Event()
        renewing = asyncio.ensure_future(table.renew_due())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        taking = asyncio.ensure_future(table.take("c", held(1)))
        await asyncio.sleep(0)
        given_up = asyncio.ensure_future(table.take("c", held(1)))
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.sleep(0)
        assert not taking.done()
        assert table.count == 1, "who gave up has taken nothing"
        broker.wait.set()
        now = await taking
        await renewing
        assert table.count == 0
        assert (now.handle.pop_time_ms, now.handle.invisible_time_ms) == (55_000, STEPS_MS[0])

    asyncio.run(run())


class Telling:
    """A client's outcomes before a broker that answers, fails, or is silent, and the handles that it acknowledged."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.broker = Broker()
        self.table = self.broker.table()
        self.failure: Exception | None = None
        self.silent = False
        self.acked: list[ReceiptHandle] = []
        self.there = {"c"}
        monkeypatch.setattr(outcomes_module.pop_api, "ack_all", lambda *_: self._ack(held(1)))
        brokers: Any = SimpleNamespace(peer=lambda name: asyncio.sleep(0))
        calls: Any = SimpleNamespace(
            ack=self._ack, change=lambda one, ms, suspend: self._ack(one), forward=lambda one, _: self._ack(one)
        )
        self.outcomes = Outcomes(ProxySettings(namesrv="n"), brokers, calls, self.table, self.there.__contains__)

    async def _ack(self, one: Held) -> Reply:
        if self.silent:
            await asyncio.Event().wait()
        if self.failure is not None:
            raise self.failure
        self.acked.append(one.handle)
        return Reply(0, None, b"", b"", "")

    async def tell(self, one: Held) -> int:
        """Acknowledge by a message's first handle; return the code of its entry."""
        (status,) = await self.outcomes._ack_each("c", "G", "T", entries_of(one))
        return int(status.code)


def entries_of(one: Held) -> list[Any]:
    return [SimpleNamespace(receipt_handle=one.handle.encode(), lite_topic="")]


@pytest.mark.shows("late redelivery after SIGKILL, renewals after a failed acknowledgement")
def test_a_message_whose_broker_could_not_be_told_is_renewed_on_and_its_first_handle_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        client = Telling(monkeypatch)
        client.failure = NotSent("away")
        client.table.add("c", held(1), 0)
        client.broker.now_ms = 55_000
        await client.table.renew_due()
        assert (await client.tell(held(1)), client.table.count) == (Code.PROXY_TIMEOUT, 1)
        client.broker.now_ms += 55_000
        await client.table.renew_due()
        client.failure = None
        assert (await client.tell(held(1)), client.table.count) == (Code.OK, 0)
        assert [handle.next_visible_ms for handle in client.acked] == [110_000 + STEPS_MS[1]]

    asyncio.run(run())


@pytest.mark.parametrize(
    ("failure", "there"), [(NotSent("away"), False), (Refused(Code.INVALID_RECEIPT_HANDLE, "expired"), True)]
)
def test_nothing_goes_on_of_a_client_that_is_gone_or_by_a_handle_that_says_nothing_any_more(
    monkeypatch: pytest.MonkeyPatch, failure: Exception, there: bool
) -> None:
    async def run() -> None:
        client = Telling(monkeypatch)
        client.failure = failure
        client.table.add("c", held(1), 0)
        if not there:
            client.there.clear()
        await client.tell(held(1))
        assert client.table.count == 0

    asyncio.run(run())


def test_a_client_whose_deadline_passes_while_its_broker_is_silent_tells_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        client, first = Telling(monkeypatch), held(1, pop_time_ms=1 << 45)
        client.silent = True
        at: dict[str, Any] = {"topic": {"name": "T"}, "group": {"name": "G"}, "receipt_handle": first.handle.encode()}
        who: Any = SimpleNamespace(identity="c")
        outcomes = client.outcomes
        for make in (
            lambda: client.tell(first),
            lambda: outcomes._ack_together("c", "G", "T", entries_of(first)),
            lambda: outcomes.change_invisible_duration(who, messages.ChangeInvisibleDurationRequest(**at)),
            lambda: outcomes.forward(who, messages.ForwardMessageToDeadLetterQueueRequest(**at)),
        ):
            client.table.add("c", first, 0)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await make()
            assert client.table.count == 1

    asyncio.run(run())


def test_an_older_deliverys_handle_says_nothing_of_the_new_one() -> None:
    async def run() -> None:
        table = Broker().table()
        table.add("c", held(1), 0)
        table.add("c", held(1, pop_time_ms=70_000), 1)
        assert await table.take("c", held(1)) == held(1)
        assert table.count == 1
        assert await table.take("c", held(1, pop_time_ms=70_000)) == held(1, pop_time_ms=70_000)
        assert table.count == 0

    asyncio.run(run())


def test_a_full_table_takes_no_more() -> None:
    async def run() -> None:
        table = Broker().table(count_max=2)
        for offset in range(3):
            table.add(f"c{offset}", held(offset), 0, f"host-{offset}")
        assert (table.count, table.clients()) == (2, ["c0", "c1"])
        assert await table.take("c2", held(2)) == held(2)

    asyncio.run(run())


def test_one_host_leaves_handles_to_others() -> None:
    async def run() -> None:
        table = Broker().table(count_max=4)
        for offset in range(4):
            table.add("a", held(offset), 0, "host")
        # Given out anew it is the same one.
        table.add("a", held(2), 1, "host")
        assert (table.count, len(table.of_client("a"))) == (3, 3)
        table.add("b", held(9), 0, "other")
        assert table.count == 4
        renewal = await table.take_renewal("a", held(0))
        assert renewal is not None
        table.restore("a", renewal)
        assert table._shares.of_host == {"host": 3, "other": 1}
        await table.take_all("a")
        table.forget("b", held(9))
        assert (table.count, table._shares.of_host) == (0, {})

    asyncio.run(run())


_ACTS = st.lists(
    st.tuples(
        st.sampled_from(["add", "take", "forget", "gone", "tick", "renew"]), st.integers(0, 2), st.integers(0, 3)
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(acts=_ACTS)
def test_any_life_against_a_model(acts: list[tuple[str, int, int]]) -> None:
    async def run() -> None:
        broker = Broker()
        table = broker.table()
        # By client and offset: what was given, and what holds.
        model: dict[tuple[str, int], tuple[Held, Held]] = {}
        for act, number, offset in acts:
            client, key = f"c{number}", (f"c{number}", offset)
            if act == "add":
                one = held(offset, broker.now_ms)
                table.add(client, one, 0)
                model[key] = (one, one)
            elif act == "take":
                given_, now = model.pop(key, (held(offset, -1), held(offset, -1)))
                assert await table.take(client, given_) == now
            elif act == "forget":
                given_, _ = model.pop(key, (held(offset, -1), held(offset, -1)))
                table.forget(client, given_)
            elif act == "gone":
                gone = {k: v for k, v in model.items() if k[0] == client}
                assert sorted(one.handle.queue_offset for one in await table.take_all(client)) == sorted(
                    k[1] for k in gone
                )
                for k in gone:
                    del model[k]
            elif act == "tick":
                broker.now_ms += 20_000
            else:
                before = len(broker.asked)
                await table.renew_due()
                due = {k: v for k, v in model.items() if v[1].handle.next_visible_ms - broker.now_ms <= 10_000}
                assert sorted(o for o, _ in broker.asked[before:]) == sorted(k[1] for k in due)
                steps = dict(broker.asked[before:])
                for k, (first, now) in due.items():
                    new = with_new_time(now.handle, broker.now_ms, steps[k[1]], 1)
                    model[k] = (first, now._replace(handle=new))
                    table_now = table._clients[k[0]]
                    assert any(r.held.handle.next_visible_ms > broker.now_ms for r in table_now.values())
                    model[k] = next((first, r.held) for r in table_now.values() if r.given == first.handle)
            assert table.count == table._shares.of_host.total() == len(model)

    asyncio.run(run())


@pytest.mark.shows("retries below 0, retry policies that are none")
@pytest.mark.parametrize(
    ("policy", "waits_s"),
    [
        ({}, [10, 30, 60, 120]),
        ({"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1000, 2000, 3000]}}, [3, 3, 3, 3]),
        ({"type": "EXPONENTIAL"}, [5, 10, 20, 40]),
        # Brokers keep whatever operators say.
        ({"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": 5}}, [10, 30, 60, 120]),
        ({"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1000, "x", -1]}}, [10, 30, 60, 120]),
        ({"type": "EXPONENTIAL", "exponentialRetryPolicy": [1]}, [5, 10, 20, 40]),
        (
            {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": None, "max": 10**30, "multiplier": "nan"}},
            [5, 10, 20, 40],
        ),
        (
            {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 1000, "max": 3000, "multiplier": 2}},
            [1, 2, 3, 3],
        ),
    ],
)
def test_waits_of_retry_policies(policy: dict[str, Any], waits_s: list[int]) -> None:
    assert [retry_wait_ms(policy, attempts) // 1000 for attempts in range(4)] == waits_s
    assert retry_wait_ms(policy, -1) == retry_wait_ms(policy, 0)
    unused: Any = None
    group = GroupConfig(group_name="G", retry_max_times=-1, group_retry_policy=policy)
    merged = messages.Settings()
    Telemetry(ProxySettings(namesrv="n"), unused, unused)._merge_consumer(merged, group)
    assert merged.backoff_policy.max_attempts == 1, "official clients take no fewer"
    assert merged.backoff_policy.ByteSize() > 8


def test_a_handle_is_the_same_value_when_it_is_read_again() -> None:
    one = held(1).handle
    assert ReceiptHandle.decode(one.encode()) == one
    assert msgspec.structs.replace(one, queue_id=1) != one


def test_a_handle_says_nothing_from_the_moment_its_message_is_visible_again() -> None:
    handle = ReceiptHandle(0, 1000, 60_000, 0, "0", "broker-a", 0, 0)
    check_valid(handle, 60_999)
    with pytest.raises(Refused):
        check_valid(handle, 61_000)
