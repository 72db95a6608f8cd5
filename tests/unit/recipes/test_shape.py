"""The synchronous outbox has the methods and options of the asynchronous one; psycopg is asked for by name."""

from __future__ import annotations

import inspect
import sys

import pytest
from tests.unit.client.test_sync import public

import rocketspark.recipes
from rocketspark.errors import ConfigError
from rocketspark.recipes import AsyncOutbox, Outbox, database_of
from rocketspark.recipes.outbox import OutboxOptions


def test_same_methods_and_signatures() -> None:
    facade, core = public(Outbox), public(AsyncOutbox)
    assert set(core) - set(facade) == {"prepare"}
    assert set(facade) - set(core) == set()
    for name in set(facade) - {"__init__"}:
        assert facade[name] == core[name], name
    options = [p.name for p in core["__init__"].parameters.values() if p.kind is inspect.Parameter.KEYWORD_ONLY]
    assert options == list(OutboxOptions.__annotations__)


def test_every_name_is_there() -> None:
    for name in rocketspark.recipes.__all__:
        assert getattr(rocketspark.recipes, name).__name__ == name
    with pytest.raises(AttributeError):
        _ = rocketspark.recipes.nonsense


def test_without_psycopg_one_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "rocketspark.recipes.postgres", raising=False)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ConfigError, match=r"pip install 'rocketspark\[postgres\]'"):
        database_of("postgresql://me@host/db")
