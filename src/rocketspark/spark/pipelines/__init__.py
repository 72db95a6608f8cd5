"""Pipelines that are ready to run, as `rocketspark pipeline NAME` and from Python. Rule: each can be stopped at any
moment and started again.

    from rocketspark.spark.pipelines import archive
    archive.run(spark, "127.0.0.1:9876", ["orders"], "archive")

To add one:

1. `spark/pipelines/NAME.py` holds `run(spark, …, progress=None)`, which returns a NamedTuple of results. It takes an
   explicit SparkSession (classic or Connect) and changes none of its settings; times are UTC whatever the session's
   zone. What is decided (plans, file names, what counts as missing) stands in pure functions with unit tests. What
   executors run, and what would make the file long, stands in `parts/NAME_*.py`.
2. State that a second start needs is written so that a kill at any moment leaves the old or the new state, never half
   of one. `progress.stop.asked` is looked at between micro-batches; `streaming.run_query` does so for a StreamingQuery.
3. `cli/commands/pipelines/NAME.py` holds the command: options of its own, an example in its help, imports of Spark
   inside the function; its argument `shared: SharedOptions` stands for the options that all pipelines have.
   `shared.start` gives the session and the progress, `shared.finish` prints the result (text, or one JSON object) and
   ends with the exit code. One line in `cli/commands/pipeline.py` registers the command.
4. A page in docs/use/pipelines; tests in tests/spark/pipelines, with the shared session.

Start with archive, then connection and parts.
"""
