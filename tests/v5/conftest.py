"""Fixtures of the tests with RocketMQ 5's official clients: servers and clients, each started once, when first used."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
from tests.support.commanded import Commanded
from tests.v5 import drivers
from tests.v5.scenarios import Play, Scenario
from tests.v5.servers import Servers, running


def need(what: str) -> None:
    """Without what set-up brings, tests are skipped by hand-run pytest; with CI=true that is a failure."""
    if missing := drivers.missing(what):
        if os.environ.get("CI", "").lower() in ("1", "true"):
            pytest.fail(missing)
        pytest.skip(missing)


class Theatre:
    """Plays every scenario that was asked for at once, on the servers and with the clients that they share."""

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        self._factory = factory
        self._stack = ExitStack()
        self._things: dict[str, Future[Any]] = {}
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(100, "play")
        self._plays: dict[tuple[str, str, str], Future[None]] = {}

    def servers(self, kind: str) -> Servers:
        if kind == "ours" and os.environ.get("JAVA_TESTS_ON") == "apache":
            kind = "apache"
        if "apache" in kind:
            need("proxy")

        def make() -> Servers:
            return self._stack.enter_context(running(kind, self._factory.mktemp(kind.replace(" ", "-"))))

        made: Servers = self._once(f"servers {kind}", make)
        return made

    def client(self, language: str) -> Commanded:
        def make() -> Commanded:
            client = drivers.start(language, self._factory.mktemp(f"{language}-client"))
            self._stack.callback(client.close)
            return client

        made: Commanded = self._once(language, make)
        return made

    def begin(self, kind: str, language: str, scenario: Scenario) -> None:
        def play() -> None:
            scenario(Play(self.servers(kind), self.client(language)))

        self._plays[kind, language, scenario.__name__] = self._pool.submit(play)

    def outcome(self, kind: str, language: str, scenario: Scenario) -> None:
        """Wait for the play, and raise what it raised; asked again, it is played again."""
        need(language)
        row = (kind, language, scenario.__name__)
        if row not in self._plays:
            self.begin(kind, language, scenario)
        self._plays.pop(row).result()

    def _once(self, name: str, make: Any) -> Any:
        with self._lock:
            if first := name not in self._things:
                self._things[name] = Future()
        if first:
            try:
                self._things[name].set_result(make())
            except BaseException as e:
                self._things[name].set_exception(e)
        return self._things[name].result(300)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._stack.close()


@pytest.fixture(scope="module")
def theatre(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Theatre]:
    """All plays that the selected tests of the module ask for have begun."""
    made = Theatre(tmp_path_factory)
    for item in request.session.items:
        values = getattr(getattr(item, "callspec", None), "params", {})
        here = getattr(item, "module", None) is request.module and "scenario" in values
        if here and drivers.missing(values["language"]) is None:
            made.begin(values["kind"], values["language"], values["scenario"])
    yield made
    made.close()
