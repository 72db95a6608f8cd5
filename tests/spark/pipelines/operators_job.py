"""A driver of its own that runs trace, audit and the resend of dlq: one JSON argument, one line of JSON as answer.

Keys: `master` or `remote`, `settings`, `namesrv`, `topic`, `traces`, `group`.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession

from rocketspark.spark import session
from rocketspark.spark.pipelines import audit, dlq_resend, trace
from rocketspark.spark.pipelines.options import Choice


def main() -> None:
    spec = json.loads(sys.argv[1])
    builder = SparkSession.builder.appName("operators")
    builder = builder.remote(spec["remote"]) if "remote" in spec else builder.master(spec["master"])
    for name, value in spec["settings"].items():
        builder = builder.config(name, value)
    spark = session(builder)
    namesrv, choice = spec["namesrv"], Choice(groups=[spec["group"]])
    told = {
        "trace": [(d.topic, d.group, d.failed) for d in trace.run(spark, namesrv, topic=spec["traces"]).deliveries],
        "audit": [(f.kind, f.number) for f in audit.run(spark, namesrv, [spec["topic"]]).findings],
        "resend": dlq_resend.run(spark, namesrv, choice).sent,
    }
    print(json.dumps(told))
    spark.stop()


if __name__ == "__main__":
    main()
