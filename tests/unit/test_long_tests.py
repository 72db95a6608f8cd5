"""A test shows one thing and fits a screen; one over 60 lines stands here with its reason."""

from __future__ import annotations

import ast
import re
from itertools import pairwise
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
LINES_MAX = 60
REASONS = {
    "clients/test_outages.py::test_brokers_hang_die_and_come_back_and_name_servers_go": (
        "one story of processes that are halted and killed in turn, whose messages are counted at its end"
    ),
    "clients/test_slaves.py::test_reading_from_a_slave_while_the_master_is_down": (
        "one story: what is read from the slave is told to the master that comes back"
    ),
    "java/test_controller.py::test_mqadmin_works_on_our_controller": "what Java's tool prints, word for word",
    "java/test_mqadmin.py::test_topics_are_made_changed_and_deleted": "what Java's tool prints, word for word",
    "java/test_store_from_java.py::test_a_store_that_the_java_broker_began": (
        "one store, begun by a Java broker that takes long to start, looked at from every side"
    ),
    "live/test_metrics.py::test_histograms": "one scrape of one broker, whose bounds are listed whole",
    "live/test_slave_synchronize_hostile.py::test_a_master_takes_back_what_a_slave_did_meanwhile": (
        "tables that stay as they were over answers of every kind, in this order"
    ),
    "live/test_static_topic_clients.py::test_a_producer_and_consumers_go_through_a_move": "one move, of each client",
    "live/test_static_topics.py::test_a_queue_moves_to_another_broker_and_is_read_through": "one move, on both sides",
    "spark/lakehouse/test_table_archives.py::test_decoded_bodies_are_columns": (
        "one table that grows from run to run, each of which takes seconds of Spark"
    ),
    "spark/pipelines/test_audit.py::test_a_known_scene": "one report, compared whole",
    "unit/spark/pipelines/parts/test_trace_records.py::test_every_kind": "rows of every kind, listed whole",
}


def spans_many_lines(text: str) -> bool:
    """Whether a test may be as long: reading what all files say as Python takes seconds."""
    lines = text.splitlines()
    # A file of one class of tests has them one step in.
    starts = [i for i, line in enumerate(lines) if re.match(r"(async )?def | {4}(async )?def test_", line)] + [
        len(lines)
    ]
    return any(end - start >= LINES_MAX for start, end in pairwise(starts))


def test_a_test_over_60_lines_has_a_reason() -> None:
    long = {
        f"{file.relative_to(TESTS).as_posix()}::{node.name}"
        for file in TESTS.rglob("test_*.py")
        if spans_many_lines(text := file.read_text("utf-8"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
        if (node.end_lineno or 0) - node.lineno >= LINES_MAX
    }
    assert long == REASONS.keys()
