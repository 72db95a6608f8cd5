"""The commit topic: what is no NameServer is told so."""

from __future__ import annotations

import pytest
from tests.unit.client.fake import Fake, in_loop

from rocketspark.errors import ConfigError
from rocketspark.spark.exactly_once.commit_topic import CommitTopic
from rocketspark.tables.options import parse_write

pytestmark = pytest.mark.shows("exactly once with a proxy's address as `namesrv` is refused in one line")


@in_loop
async def test_the_address_of_a_broker_or_proxy_is_refused_at_once() -> None:
    """Both answer code 3 to the first question."""
    async with Fake(1, t=1) as fake:
        given = {"namesrv": fake.broker.address, "topic": "t", "delivery": "exactly-once", "transactionalId": "q"}
        log = CommitTopic(parse_write(given))
        await log.start()
        try:
            with pytest.raises(ConfigError, match=rf"^{fake.broker.address} is no NameServer.*give namesrv the addr"):
                await log.make()
        finally:
            await log.close()
