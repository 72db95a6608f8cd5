"""Lines of a log as people may look at them. Rule: a message is one line, and nothing in it moves the cursor.

`escape_values` holds for every logger of ours, whoever reads it; `ShownFormatter` is that of our own servers, and
takes care of tracebacks and of other libraries' lines too.
"""

from __future__ import annotations

import logging
from typing import Any

from rocketspark.model.text import shown

CHARACTERS_MAX = 8000
# All loggers that this package writes to: a filter holds for its own logger only.
LOGGERS = tuple(
    f"rocketspark{name}"
    for name in (
        *("", ".access", ".audit", ".broker", ".broker.access", ".broker.replication", ".client", ".controller"),
        *(".namesrv", ".proxy", ".proxy.audit", ".recipes", ".sends", ".spark", ".store", ".transport"),
    )
)


def escape_values() -> None:
    """Escape what comes into the messages of our loggers."""
    for name in LOGGERS:
        logging.getLogger(name).addFilter(_escaped)


def _escaped(record: logging.LogRecord) -> bool:
    # LimitedLog has done so before it added the lines of a traceback.
    if record.args and not getattr(record, "has_place", False):
        if isinstance(record.args, tuple):
            record.args = tuple(map(_value, record.args))
        else:
            record.args = {name: _value(value) for name, value in record.args.items()}
    return True


def _value(value: Any) -> Any:
    return value if value is None or isinstance(value, int | float) else shown(value, characters_max=CHARACTERS_MAX)


class ShownFormatter(logging.Formatter):
    """Formats as its base does, with the message and each line of a traceback escaped."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line without its traceback."""
        # Of LimitedLog, whose values are escaped: the lines of its traceback stay lines.
        lines = record.message.split("\n") if getattr(record, "has_place", False) else [record.message]
        record.message = "\n".join(shown(line, characters_max=CHARACTERS_MAX) for line in lines)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:
        """Return a traceback, escaped line by line."""
        text = super().formatException(ei)
        return "\n".join(shown(line, characters_max=CHARACTERS_MAX) for line in text.split("\n"))
