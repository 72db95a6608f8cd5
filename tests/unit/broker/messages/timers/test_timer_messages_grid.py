"""timerPrecisionMs changed over a restart: what waits comes at its time, once, whenever the broker is killed."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.stand_ins import like
from tests.unit.broker.messages.timers.test_timer_messages import NOW, Clock, Rig, clock, rig

from rocketspark import machine
from rocketspark.broker import topic_names
from rocketspark.broker.messages import put_message as put_message_module
from rocketspark.broker.messages.put_message import pairs_of
from rocketspark.store.files.system_calls import OsFiles

pytestmark = pytest.mark.shows(
    "mended: timerPrecisionMs changed over a restart with a pending timer message",
    "model tests: sends, push, ordered, pull and assigning consumers, rebalance, thread listeners, "
    "transactions of clients and of the broker, delays, timers",
)

__all__ = ["clock", "rig"]

CHANGES = [(1000, 100), (100, 1000), (1000, 500), (500, 200), (200, 500), (100, 200)]


class Killed(BaseException):
    pass


def run_out(broker: Rig) -> None:
    while (wait_s := broker.settle()) is not None:
        broker.clock.now_ms += max(1, round(wait_s * 1000))


def delivered(broker: Rig) -> dict[str, int]:
    keys, stored = broker.keys(), broker.records()
    assert len(set(keys)) == len(keys), keys
    return {key: one.store_time_ms for key, one in zip(keys, stored, strict=True)}


def slot_end(due_ms: int, grid_ms: int) -> int:
    return -(-due_ms // grid_ms) * grid_ms


@pytest.mark.parametrize("kill", [False, True])
@pytest.mark.parametrize("roll_slots", [172_800, 15])
@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_what_waits_comes_at_its_time_also_when_changed_back(
    rig: Callable[..., Rig], clock: Clock, before: int, after: int, roll_slots: int, kill: bool
) -> None:
    due = {f"K{n}": NOW + 4000 + n * 130 for n in range(20)}
    for again in (False, True):
        clock.now_ms = NOW
        broker = rig(precision_ms=before, roll_slots=roll_slots)
        sent = {f"{again}{key}": due_ms for key, due_ms in due.items()}
        outs = {key: int(broker.send(key=key, TIMER_DELIVER_MS=t)[b"TIMER_OUT_MS"]) for key, t in sent.items()}
        broker.settle()
        gone = [f"{again}K3", f"{again}K11", f"{again}K12"]
        for key in gone[:1]:
            broker.recall(outs[key], key)
        broker.at(NOW + 1100)
        change = broker.killed if kill else broker.restarted
        broker = change(precision_ms=after)
        broker.settle()
        assert not broker.timers._files.misfit
        # By the handle that was given out on the other grid.
        for key in gone[1:2]:
            broker.recall(outs[key], key)
        broker.at(NOW + 2100)
        if again:
            change = broker.killed if kill else broker.restarted
            broker = change(precision_ms=before)
        for key in gone[2:3]:
            broker.recall(outs[key], key)
        run_out(broker)
        found = delivered(broker)
        assert found.keys() == sent.keys() - set(gone)
        for key, time_ms in found.items():
            over = slot_end(sent[key], before)
            # In the first slot that is over no earlier than its own.
            over = slot_end(over, after)
            allowed = {slot_end(over, before)} if again else {over}
            # A message that is rolled on finds its own grid again.
            allowed |= {slot_end(sent[key], before)} if again and roll_slots == 15 else set()
            assert time_ms in allowed, (key, sent[key], time_ms)
        # These are saved now and then: after a kill they are about right.
        assert kill or broker.timers.statistics.waiting() == {}
        assert all(b"TIMER_GRID_MS" not in pairs_of(r.properties) for r in broker.records())
        broker.stop()
        shutil.rmtree(broker.root)
        shutil.rmtree(broker.root.parent / "store", ignore_errors=True)


@pytest.mark.parametrize(("before", "after"), [(1000, 100), (100, 1000), (500, 200)])
def test_what_came_before_the_change_and_is_not_on_the_wheel_yet(
    rig: Callable[..., Rig], clock: Clock, before: int, after: int
) -> None:
    broker = rig(precision_ms=before)
    broker.send(key="on", TIMER_DELAY_MS=3010)
    broker.settle()
    broker.checkpoint()
    broker.send(key="unread", TIMER_DELAY_MS=3010)
    broker = broker.killed(precision_ms=after)
    broker.send(key="new", TIMER_DELAY_MS=3010)
    run_out(broker)
    over = slot_end(NOW + 3010, before)
    assert delivered(broker) == {
        "on": slot_end(over, after),
        "unread": slot_end(over, after),
        "new": slot_end(NOW + 3010, after),
    }


@pytest.mark.parametrize("change", ["restarted", "killed"])
@pytest.mark.parametrize("after", [200, 500, 1000])
def test_what_came_in_the_second_before_the_change_comes_once(
    rig: Callable[..., Rig], clock: Clock, after: int, change: str
) -> None:
    broker = rig(precision_ms=100)
    for key, delay_ms in (("came", 150), ("waits", 5000)):
        broker.send(key=key, TIMER_DELAY_MS=delay_ms)
    for at_ms in range(0, 301, 50):
        broker.at(NOW + at_ms)
    assert broker.keys() == ["came"]
    broker.checkpoint()
    broker = getattr(broker, change)(precision_ms=after)
    run_out(broker)
    assert delivered(broker).keys() == {"came", "waits"}


def test_what_lies_beyond_the_other_wheel_s_days_is_rolled(rig: Callable[..., Rig], clock: Clock) -> None:
    broker = rig(precision_ms=1000)
    outs = {
        key: int(broker.send(key=key, TIMER_DELAY_MS=40 * 3_600_000 + 250)[b"TIMER_OUT_MS"]) for key in ("far", "gone")
    }
    broker.settle()
    broker = broker.restarted(precision_ms=100)
    broker.settle()
    assert len(broker.timers._files.pending(0)) == 1
    clock.now_ms = NOW + 39 * 3_600_000
    broker.settle()
    broker.recall(outs["gone"], "gone")
    run_out(broker)
    assert delivered(broker) == {"far": slot_end(NOW + 40 * 3_600_000 + 250, 1000)}
    rolled = [r for r in broker.records(topic_names.TIMER_TOPIC) if b"TIMER_ROLL_TIMES" in r.properties]
    assert len(rolled) == 2


def test_an_old_store_has_room_on_the_finer_wheel(rig: Callable[..., Rig], clock: Clock) -> None:
    broker = rig(precision_ms=1000)
    for n in range(50):
        broker.send(key=f"K{n}", TIMER_DELAY_MS=1000 + n * 3_600_000)
    broker.settle()
    broker.stop()
    clock.now_ms = NOW + 6 * 86_400_000
    broker = rig(precision_ms=100)
    broker.send(key="new", TIMER_DELAY_MS=10_000)
    broker.settle()
    assert broker.keys() == [f"K{n}" for n in range(50)]
    run_out(broker)
    assert broker.keys()[50:] == ["new"]


def test_a_lost_wheel_and_another_grid(rig: Callable[..., Rig], clock: Clock) -> None:
    broker = rig(precision_ms=100)
    for n in range(20):
        broker.send(key=f"K{n}", TIMER_DELAY_MS=5000 + n * 100)
    broker.settle()
    broker.stop()
    (broker.root / "timerwheel").unlink()
    broker = rig(precision_ms=1000)
    run_out(broker)
    assert delivered(broker) == {f"K{n}": slot_end(NOW + 5000 + n * 100, 1000) for n in range(20)}


@pytest.mark.shows("mended: a lost wheel and a finer timerPrecisionMs at one start: up to 900 ms early")
@pytest.mark.parametrize(("before", "after"), [(1000, 100), (500, 100), (1000, 500), (1000, 200)])
def test_a_lost_wheel_and_a_finer_grid_bring_nothing_early(rig: Callable[..., Rig], before: int, after: int) -> None:
    broker = rig(precision_ms=before)
    for n in range(10):
        broker.send(key=f"K{n}", TIMER_DELAY_MS=5000 + n * 130)
    broker.settle()
    broker.stop()
    (broker.root / "timerwheel").unlink()
    broker = rig(precision_ms=after)
    run_out(broker)
    assert delivered(broker) == {f"K{n}": slot_end(slot_end(NOW + 5000 + n * 130, before), after) for n in range(10)}


def test_on_the_same_grid_no_byte_is_changed(rig: Callable[..., Rig], clock: Clock) -> None:
    broker = rig(precision_ms=100)
    for n in range(20):
        broker.send(key=f"K{n}", TIMER_DELAY_MS=n * 70 + 1)
    broker.at(NOW + 500)
    broker.stop()
    paths = [broker.root / "timerwheel", broker.root / "timerlog" / f"{0:020d}", broker.root / "config/timercheck"]
    kept = [path.read_bytes() for path in paths]
    files = rig(precision_ms=100).timers._files
    assert not files.misfit
    assert [path.read_bytes() for path in paths] == kept


@pytest.mark.shows("the grid of timers remade, killed, changed again")
@pytest.mark.parametrize("second", [100, 200, 500, 1000])
def test_a_kill_in_the_midst_of_the_remaking_loses_and_doubles_nothing(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, second: int
) -> None:
    moments = 0
    while True:
        clock.now_ms = NOW
        broker = Rig(tmp_path / f"s{moments}", clock, precision_ms=1000)
        for n in range(5):
            broker.send(key=f"K{n}", TIMER_DELAY_MS=2000 + n * 700)
        out_ms = broker.send(key="gone", TIMER_DELAY_MS=4100)[b"TIMER_OUT_MS"]
        broker.settle()
        broker.recall(int(out_ms), "gone")
        broker.at(NOW + 3500)
        broker.stop()
        left = [moments]

        def counted(call: Callable[..., Any], left: list[int] = left) -> Callable[..., Any]:
            def run(*args: Any, **options: Any) -> Any:
                # A thread that another store left behind is not what is killed.
                if threading.current_thread() is threading.main_thread():
                    left[0] -= 1
                    if left[0] == -1:
                        raise Killed
                return call(*args, **options)

            return run

        killed = False
        with monkeypatch.context() as patch:
            for module, name in [(os, "rename"), (os, "replace"), (os, "ftruncate"), (os, "fdatasync")]:
                patch.setattr(module, name, counted(getattr(module, name)))
            patch.setattr(shutil, "rmtree", counted(shutil.rmtree))
            patch.setattr(os, "fsync", counted(os.fsync))
            try:
                again = Rig(broker.root, clock, precision_ms=100)
                while again.timers._files.misfit:
                    again.timers.work()
                again.store.close()
            except Killed:
                killed = True
        again = Rig(broker.root.rename(tmp_path / f"k{moments}"), clock, precision_ms=second)
        run_out(again)
        due = {f"K{n}": slot_end(NOW + 2000 + n * 700, 1000) for n in range(5)}
        assert delivered(again) == {key: max(NOW + 3500, due_ms) for key, due_ms in due.items()}
        assert not [name for name in os.listdir(again.root) if "remade" in name]
        again.stop()
        if not killed:
            break
        moments += 1
    assert moments >= 8


@pytest.mark.shows(
    "mended: an error that passes after a wheel was remade: new timer messages set aside, none delivered, all "
    "lost by the next start"
)
@pytest.mark.parametrize("call", ["rename", "replace", "fsync", "rmtree", "map"])
@pytest.mark.parametrize("later", ["killed", "restarted", "runs on"])
def test_an_error_that_passes_after_the_remade_files_count_holds_nothing_up(
    rig: Callable[..., Rig], clock: Clock, monkeypatch: pytest.MonkeyPatch, call: str, later: str
) -> None:
    broker = rig(precision_ms=1000)
    for n in range(10):
        broker.send(key=f"K{n}", TIMER_DELAY_MS=5000 + 100 * n)
    broker.settle()
    broker = broker.restarted(precision_ms=100)
    failed = 0
    renamed = working = False

    def failing(real: Callable[..., Any], name: str) -> Callable[..., Any]:
        def run(*args: Any, **options: Any) -> Any:
            nonlocal failed, renamed
            if working and renamed and name == call and not options.get("ignore_errors") and failed < 3:
                failed += 1
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            done = real(*args, **options)
            renamed |= name == "rename" and str(args[0]).endswith(".tmp")
            return done

        return run

    with monkeypatch.context() as patch:
        for module, name in [(os, "rename"), (os, "replace"), (os, "fsync"), (shutil, "rmtree")]:
            patch.setattr(module, name, failing(getattr(module, name), name))
        patch.setattr(OsFiles, "map", failing(OsFiles.map, "map"))
        for _ in range(50):
            assert broker.timers._files.misfit
            broker.store.flush_log()
            working = True
            broker.timers.work()
            working = False
            # Counting and saving go on meanwhile.
            broker.timers.progress()
            broker.timers.save()
            broker.timers.finish()
            if failed == 1:
                broker.send(key="new", TIMER_DELAY_MS=3000)
            if failed == 3:
                break
        assert failed == 3
        if later != "runs on":
            broker = broker.killed() if later == "killed" else broker.restarted()
    run_out(broker)
    assert delivered(broker).keys() == {f"K{n}" for n in range(10)} | {"new"}
    assert all(delivered(broker)[f"K{n}"] >= NOW + 5000 + 100 * n for n in range(10))
    assert broker.quarantine.entries() == []
    broker.stop()


STEPS = st.one_of(
    st.tuples(st.just("send"), st.integers(0, 12_000)),
    st.tuples(st.just("send"), st.integers(0, 60_000)),
    st.tuples(st.just("recall"), st.integers(0, 40)),
    st.tuples(st.just("wait"), st.integers(1, 9000)),
    st.tuples(st.just("work"), st.integers(1, 4)),
    st.tuples(st.just("checkpoint"), st.just(0)),
    st.tuples(st.just("kill"), st.sampled_from([100, 200, 500, 1000])),
    st.tuples(st.just("restart"), st.sampled_from([100, 200, 500, 1000])),
)


@settings(max_examples=25, deadline=None)
@given(st.lists(STEPS, max_size=40))
def test_whatever_is_changed_each_is_delivered_once_not_early_and_the_recalled_never(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    clock = Clock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(put_message_module, "machine", like(machine, time=lambda: clock.now_ms / 1000))
        broker = Rig(tmp_path_factory.mktemp("timers") / "store", clock)
        due: dict[str, int] = {}
        slots: dict[str, int] = {}
        recalled: set[str] = set()
        for what, number in steps:
            if what == "send":
                key = f"K{len(due)}"
                due[key] = clock() + number
                slots[key] = int(broker.send(key=key, TIMER_DELAY_MS=number).get(b"TIMER_OUT_MS", b"0"))
                # Where nothing was on a wheel yet nothing tells of its grid.
                broker.timers.work()
            elif what == "recall" and f"K{number}" in due:
                key = f"K{number}"
                if slots[key] + 1 > clock() and key not in recalled:
                    broker.recall(slots[key], key)
                    recalled.add(key)
            elif what == "wait":
                clock.now_ms += number
            elif what == "work":
                for _ in range(number):
                    broker.store.flush_log()
                    broker.timers.work()
            elif what == "checkpoint":
                broker.checkpoint()
            elif what == "kill":
                broker = broker.killed(precision_ms=number)
            elif what == "restart":
                broker = broker.restarted(precision_ms=number)
            # It may be killed, and changed again, before the wheel is remade.
            while broker.timers._files.misfit and what not in ("work", "kill", "restart"):
                broker.store.flush_log()
                broker.timers.work()
        run_out(broker)
        assert all(r.store_time_ms >= due[k] for r, k in zip(broker.records(), broker.keys(), strict=True))
        assert Counter(broker.keys()) == Counter(k for k in due if k not in recalled)
        broker.stop()
