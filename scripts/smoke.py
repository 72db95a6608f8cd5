"""What an installed package does in a bare environment: a server as a command, a send, a receive, a clear error."""

import subprocess
import sys
import tempfile
from pathlib import Path

from rocketspark import Producer, PullConsumer

command = str(Path(sys.executable).with_name("rocketspark"))
version = subprocess.run([command, "--version"], capture_output=True, text=True, check=True).stdout.strip()
with tempfile.TemporaryDirectory() as store:
    options = ["--store", store, "--no-grpc", "--broker-port", "0", "--namesrv-port", "0"]
    server = subprocess.Popen([command, "server", *options], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        ready = next(line for line in server.stdout if line.startswith("ready "))
        namesrv = dict(part.split("=") for part in ready.split()[1:])["namesrv"]
        with Producer(namesrv) as producer:
            for number in range(100):
                producer.send("smoke", b"%d" % number)
        received: list[bytes] = []
        with PullConsumer(namesrv, "smoke-group", consume_from="first") as consumer:
            consumer.subscribe("smoke")
            while len(received) < 100:
                received += [message.body for message in consumer.poll(10_000)]
    finally:
        server.terminate()
        server.wait(30)
assert sorted(received, key=int) == [b"%d" % number for number in range(100)]
try:
    from rocketspark.spark import session  # noqa: F401
except ImportError as e:
    said = str(e)
else:
    sys.exit("PySpark is there: this environment is not bare")
if said != "rocketspark.spark needs PySpark: pip install 'rocketspark[spark]'":
    sys.exit(said)
print(f"{version} on Python {sys.version.split()[0]}: 100 messages sent and received")
