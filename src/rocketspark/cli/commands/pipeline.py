"""`pipeline NAME`: pipelines on Spark that are ready to run. Rule: one line for each; its file is in pipelines/."""

from __future__ import annotations

import typer

from rocketspark.cli.commands.pipelines import archive, audit, dedupe, dlq, outbox, restore, sql, trace

app = typer.Typer(help="Run a pipeline on Spark: archive, replay, watch and mend topics.", no_args_is_help=True)
app.command("audit")(audit.audit)
app.command("trace")(trace.trace)
app.command("dlq")(dlq.dlq)
app.command("archive")(archive.archive)
app.command("restore")(restore.restore)
app.command("replay")(restore.replay)
app.command("sql")(sql.sql)
app.command("dedupe")(dedupe.dedupe)
app.command("outbox")(outbox.outbox)
