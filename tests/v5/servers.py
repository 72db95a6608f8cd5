"""The servers that official clients of RocketMQ 5 are played on: each kind of proxy before each kind of broker.

"ours": our proxy, our broker. "apache": Apache's proxy with its broker inside. "ours before apache" and
"apache before ours": one's proxy, the other's broker. JAVA_TESTS_ON=apache plays on "apache" what is for "ours".
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.java.apache import ApacheCluster, ask
from tests.java.conftest import QUICK
from tests.v5.apache_proxy import ApacheLocalProxy, ApacheProxy

from rocketspark.proxy.server import ProxyServer
from rocketspark.proxy.settings import ProxySettings
from rocketspark.testing.process import run_server_process

# Waits of minutes shortened to seconds, in Apache's names and in ours.
APACHE_QUICK = {
    "minInvisibleTimeMillsForRecv": 1000,
    "defaultInvisibleTimeMills": 5000,
    "renewAheadTimeMillis": 3000,
    "renewSchedulePeriodMillis": 500,
    "grpcClientConsumerMinLongPollingTimeoutMillis": 1000,
    "topicConfigCacheRefreshSeconds": 1,
    "subscriptionGroupConfigCacheRefreshSeconds": 1,
    "topicRouteServiceCacheRefreshSeconds": 1,
}
OURS_QUICK = {
    "receive_invisible_ms_min": 1000,
    "default_invisible_ms": 5000,
    "renew_ahead_ms": 3000,
    "renew_interval_ms": 500,
    "long_polling_ms_min": 1000,
    "route_refresh_ms": 1000,
}
# Backoffs stay the broker's own: messages that come again are timed by their invisible time.
BROKER = {key: value for key, value in QUICK.items() if key != "messageDelayLevel"} | {
    "brokerName": "broker-a",
    "recallMessageEnable": "true",
    # Lite topics are light queues.
    "enableLmq": "true",
    "enableMultiDispatch": "true",
}


class Servers:
    """A proxy and its broker. `endpoints`: for clients of RocketMQ 5; `namesrv`, `broker`: for others."""

    def __init__(self, kind: str, endpoints: str, namesrv: str, broker: str) -> None:
        self.kind = kind
        self.endpoints = endpoints
        self.namesrv = namesrv
        self.broker = broker

    def make_topic(self, topic: str, kind: str = "NORMAL", queues: int = 4) -> None:
        """Make a topic whose messages are NORMAL, FIFO, DELAY, TRANSACTION, PRIORITY, LITE or MIXED."""
        fields = {
            "topic": topic,
            "defaultTopic": "TBW102",
            "readQueueNums": str(queues),
            "writeQueueNums": str(queues),
            "perm": "6",
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
            "attributes": f"+message.type={kind}",
        }
        answer = ask(self.broker, 17, ext_fields=fields)
        assert answer.code == 0, answer

    def make_group(self, group: str, **settings: Any) -> None:
        """Make a consumer group; `settings` by the broker's names."""
        answer = ask(self.broker, 200, json.dumps({"groupName": group} | settings).encode())
        assert answer.code == 0, answer


@contextmanager
def our_proxy(namesrv: str, *, port: int = 0, **settings: Any) -> Iterator[ProxyServer]:
    """Our proxy in a thread of this process, before any cluster."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="proxy", daemon=True)
    thread.start()

    async def make() -> ProxyServer:
        made = ProxyServer(ProxySettings(namesrv=namesrv, port=port, **settings))
        await made.start()
        return made

    try:
        server = asyncio.run_coroutine_threadsafe(make(), loop).result(60)
        try:
            yield server
        finally:
            asyncio.run_coroutine_threadsafe(server.close(), loop).result(60)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()


@contextmanager
def running(kind: str, folder: Path) -> Iterator[Servers]:
    """Start the servers of a kind; their logs and stores go to `folder`."""
    with ExitStack() as stack:
        if kind == "apache":
            local = ApacheLocalProxy(folder / "apache", BROKER, APACHE_QUICK)
            stack.callback(local.close)
            yield Servers(kind, local.endpoints, local.namesrv, local.broker)
            return
        cluster: Any
        if kind == "ours before apache":
            cluster = ApacheCluster(folder / "broker", config=BROKER)
            stack.callback(cluster.close)
        else:
            cluster = stack.enter_context(run_server_process(folder / "store", config=BROKER))
        if kind == "apache before ours":
            proxy = ApacheProxy(folder / "proxy", cluster.namesrv, APACHE_QUICK)
            stack.callback(proxy.kill)
            endpoints = proxy.endpoints
        else:
            endpoints = stack.enter_context(our_proxy(cluster.namesrv, **OURS_QUICK)).address
        yield Servers(kind, endpoints, cluster.namesrv, cluster.broker)
