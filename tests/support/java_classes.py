"""The classes of the official RocketMQ in one file per folder of jars, which JVMs map instead of loading each anew.

Rule: set-up makes them, `python -m tests.support.java_classes`; a JVM that finds none, or one of other jars or another
Java, does without.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

from tests.java.apache import SERVER_JARS, ApacheCluster
from tests.java.driver import CLIENT_VERSIONS, JARS, JavaDriver, class_archive, java_tool, message
from tests.java.mqadmin import MqAdmin
from tests.support.official import SHORT_LIVED
from tests.v5 import drivers
from tests.v5.apache_proxy import PROXY_JARS, ApacheLocalProxy

TOPIC = GROUP = "classes"
CLIENT_JARS = [JARS / f"client-{version}" for version in CLIENT_VERSIONS]


def make(folder: Path) -> None:
    """Have each program do a little, write down the classes that it loads, and make the files of them."""
    for jars in (SERVER_JARS, *CLIENT_JARS, PROXY_JARS, drivers.CLIENT_JARS):
        class_archive(jars).unlink(missing_ok=True)
    with ExitStack() as running:
        noting(folder, SERVER_JARS)
        cluster = ApacheCluster(folder / "apache")
        running.callback(cluster.stop)
        mqadmin = MqAdmin(folder / "mqadmin", cluster.namesrv, cluster.broker)
        running.callback(mqadmin.close)
        mqadmin("updateTopic", "-b", cluster.broker, "-t", TOPIC, "-r", "1", "-w", "1")
        for version, jars in zip(CLIENT_VERSIONS, CLIENT_JARS, strict=True):
            noting(folder, jars)
            with closing(JavaDriver(version, folder / version)) as client:
                use(client, cluster)
        mqadmin("clusterList")
        noting(folder, PROXY_JARS)
        # Its NameServer, whose jars are others, does no harm.
        running.callback(ApacheLocalProxy(folder / "proxy").stop)
        noting(folder, drivers.CLIENT_JARS)
        drivers.start("java", folder / "newer").close()
    del os.environ["JAVA_TOOL_OPTIONS"]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda jars: write(folder, jars), (SERVER_JARS, *CLIENT_JARS, PROXY_JARS, drivers.CLIENT_JARS)))


def noting(folder: Path, jars: Path) -> None:
    """From now on JVMs write down the classes that they load, as those of these jars."""
    os.environ["JAVA_TOOL_OPTIONS"] = f"-XX:DumpLoadedClassList={folder}/{jars.name}.%p.classes"


def use(client: JavaDriver, cluster: ApacheCluster) -> None:
    """A message from a producer to a consumer."""
    with client.started("producer", namesrv=cluster.namesrv, group=GROUP) as producer:
        client.call("send", name=producer, messages=[message(TOPIC, "body", keys="k", tag="A")])
    wanted = [{"topic": TOPIC, "tags": "*"}]
    with client.started("push", namesrv=cluster.namesrv, group=GROUP, subscriptions=wanted) as consumer:
        client.call("push_await", name=consumer, count=1, timeout_ms=60_000)


def write(folder: Path, jars: Path) -> None:
    """Make the file of the classes that were noted."""
    lines = dict.fromkeys(line for path in sorted(folder.glob(f"{jars.name}.*.classes")) for line in path.open())
    noted = folder / f"{jars.name}.classes"
    noted.write_text("".join(lines))
    path = class_archive(jars)
    path.parent.mkdir(exist_ok=True)
    made = path.with_suffix(".making")
    call = [java_tool("java"), "-Xshare:dump", *SHORT_LIVED.split(), f"-XX:SharedClassListFile={noted}"]
    call += [f"-XX:SharedArchiveFile={made}", "-Xlog:disable", "-cp", str(jars / "*")]
    subprocess.run(call, check=True, stdout=subprocess.DEVNULL, cwd=folder)
    made.replace(path)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        make(Path(name))
