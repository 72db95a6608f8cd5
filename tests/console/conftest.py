"""A browser, a page in it whose faults fail the test, and a console on a running cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page
from tests.console.running import console
from tests.support.browser import Faults, chromium, watched_page

from rocketspark.admin import Admin
from rocketspark.testing import Cluster, run_cluster


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Of a file of tests: others in this process need the thread's event loop for themselves."""
    with chromium() as running:
        yield running


@pytest.fixture
def faults() -> Faults:
    """What is wrong on the page; must be empty in the end."""
    return Faults()


@pytest.fixture
def page(browser: Browser, faults: Faults) -> Iterator[Page]:
    with watched_page(browser, faults) as opened:
        yield opened


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with run_cluster(brokers=2, trace_topic_enabled=True) as running:
        yield running


@pytest.fixture(scope="module")
def admin(cluster: Cluster) -> Iterator[Admin]:
    """What looks whether a change came about."""
    with Admin(cluster.namesrv) as connected:
        yield connected


@pytest.fixture(scope="module")
def home(cluster: Cluster) -> Iterator[str]:
    """The address of a console on the cluster."""
    with console(cluster.namesrv, requests_per_second=200) as url:
        yield url
