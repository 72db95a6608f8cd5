"""Samples of plots that outlive the console: bounded, beside what is not ours, shared by two consoles."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import stat
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.console.scene import until
from tests.console.support import opened

from rocketspark import machine
from rocketspark.console import ConsoleSettings
from rocketspark.console.cluster.kept_samples import AGE_S, KeptSamples, Sample
from rocketspark.console.cluster.sampler import thinned
from rocketspark.errors import ConfigError
from rocketspark.testing import run_cluster

pytestmark = pytest.mark.shows("the console: samples of plots are kept over restarts, bounded in rows and age")
T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(main)


async def write(kept: KeptSamples, *samples: Sample) -> None:
    for at, figures in samples:
        kept.add(at, figures)
        assert kept._writing is not None
        await asyncio.wrap_future(kept._writing)


def now_s() -> float:
    return machine.time_ns() / 1e9


def of(path: Path, namesrv: str = "a:9876", samples_max: int = 10) -> KeptSamples:
    return KeptSamples(path, namesrv, samples_max)


def test_plots_go_on_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "samples.db"
    with run_cluster() as cluster:
        settings = {"samples_path": str(path), "sample_interval_s": 0.05}
        with opened(cluster.namesrv, **settings) as client:
            until(lambda: len(client.get("/samples?names=put_rate").json()) >= 3)
            before = client.get("/samples?names=put_rate").json()[:2]
        with opened(cluster.namesrv, **settings) as client:
            until(lambda: client.get("/samples?names=put_rate").json())
            assert client.get("/samples?names=put_rate").json()[:2] == before
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_samples_are_bounded_in_rows_and_age_and_of_one_cluster(tmp_path: Path) -> None:
    async def main() -> None:
        path, now = tmp_path / "s", now_s()
        first, second, other = of(path, samples_max=3), of(path, samples_max=3), of(path, "b:9876")
        old = (now - AGE_S + 2, {"lag": 1.0})
        await write(other, old)
        assert await other.load() == [old]
        # Two consoles of one cluster, and one of another.
        await write(first, (now - 9, {"lag": 2.0}), (now - 7, {"lag": 3.0}))
        await write(second, (now - 8, {"lag": 4.0}), (now - 6, {"lag": 5.0}), (now - 6, {"lag": 6.0}))
        found = [(now - 8, {"lag": 4.0}), (now - 7, {"lag": 3.0}), (now - 6, {"lag": 6.0})]
        assert await first.load() == await second.load() == found
        assert await other.load() == [old]
        await write(first, (now + 5, {"lag": 7.0}))
        assert await other.load() == []
        # What is of the future, as the clock was set back, is not shown.
        assert await first.load() == found[1:]
        for each in (first, second, other):
            await each.close()

    run(main())


def test_two_consoles_samples_are_thinned() -> None:
    samples: list[Sample] = [(float(at), {}) for at in (0, 1, 5, 6, 7, 10)]
    assert [at for at, _ in thinned(samples, 2.5)] == [0, 5, 10]


def a_database_of_something_else(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE samples (mine TEXT)")
    connection.commit()
    connection.close()


def a_text(path: Path) -> None:
    path.write_text("what somebody wrote\n" * 1000)


def a_damaged_file(path: Path) -> None:
    async def main() -> None:
        kept = of(path)
        await write(kept, (now_s(), {f"lag:{n}": 1.0 for n in range(2000)}))
        await kept.close()

    run(main())
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + b"\xff" * (len(whole) - 4096))


@pytest.mark.parametrize("make", [a_database_of_something_else, a_text, a_damaged_file])
def test_a_file_of_something_else_is_left_and_one_beside_it_is_used(
    tmp_path: Path, make: Any, caplog: pytest.LogCaptureFixture
) -> None:
    make(tmp_path / "s")
    before = (tmp_path / "s").read_bytes()
    caplog.set_level(logging.WARNING, "rocketspark.console")
    for wanted in (0, 1):

        async def main() -> int:
            kept = of(tmp_path / "s")
            found = len(await kept.load())
            await write(kept, (now_s(), {"lag": 1.0}))
            await kept.close()
            return found

        caplog.clear()
        assert run(main()) == wanted
        (line,) = caplog.messages
        assert line.startswith(f"{tmp_path / 's'} is ")
        assert line.endswith("it is left as it is, and samples are kept in a file beside it")
    assert (tmp_path / "s").read_bytes() == before
    assert (tmp_path / "s.1").exists()


def test_a_disk_that_takes_nothing_costs_the_samples_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        kept = of(tmp_path)
        assert await kept.load() == []
        await write(kept, (now_s(), {}))
        await kept.close()

    run(main())
    assert caplog.messages[0].startswith(f"samples are not kept, as {tmp_path} cannot be used")
    with pytest.raises(ConfigError, match="no file can be made in"):
        ConsoleSettings(samples_path="/no/such/folder/samples").check()
