"""Log lines as people may look at them. Rule: a message is one line, nothing in it moves the cursor, and of each kind
that peers can cause a few are written, then a count.

A server's log is then as large as its operator wants it, and holds one line per event, whatever the peers send.
`escape_values` holds for every logger of ours, whoever reads it; `ShownFormatter` is that of our own servers, and takes
care of tracebacks and of other libraries' lines too.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Callable
from typing import Any

from rocketspark import machine
from rocketspark.model.text import shown

LINES_MAX = 10
PERIOD_S = 10.0


class LimitedLog:
    """A logger for lines that peers can cause: `lines_max` of each kind in `period_s`, then how many were left out.

    A line's kind is its text without the values. Values that are no numbers are written through `shown`.
    """

    # Lines of all kinds and of all logs of the process.
    left_out_count = 0

    def __init__(
        self,
        name: str,
        *,
        lines_max: int = LINES_MAX,
        period_s: float = PERIOD_S,
        now: Callable[[], float] = lambda: machine.monotonic(),
    ) -> None:
        self._log = logging.getLogger(name)
        self._lines_max = lines_max
        self._period_s = period_s
        self._now = now
        # By kind: when its period began, lines written in it, lines left out.
        self._kinds: dict[str, tuple[float, int, int]] = {}

    def info(self, text: str, *values: object) -> None:
        """Log an event."""
        self._write(logging.INFO, text, values)

    def warning(self, text: str, *values: object) -> None:
        """Log a problem that does not stop the work."""
        self._write(logging.WARNING, text, values)

    def error(self, text: str, *values: object) -> None:
        """Log a failure."""
        self._write(logging.ERROR, text, values)

    def exception(self, text: str, *values: object) -> None:
        """Log a failure with the traceback of the exception being handled."""
        self._write(logging.ERROR, text, values, with_place=True)

    def _write(self, level: int, text: str, values: tuple[object, ...], *, with_place: bool = False) -> None:
        if not self._log.isEnabledFor(level):
            return
        now_s = self._now()
        began_s, written, left_out = self._kinds.get(text, (now_s, 0, 0))
        if now_s - began_s >= self._period_s:
            if left_out:
                self._log.log(level, "%d more lines like the next one were left out", left_out)
            began_s, written, left_out = now_s, 0, 0
        if written >= self._lines_max:
            self._kinds[text] = (began_s, written, left_out + 1)
            LimitedLog.left_out_count += 1
            return
        self._kinds[text] = (began_s, written + 1, left_out)
        values = tuple(value if isinstance(value, int | float) else shown(value) for value in values)
        if with_place:
            _, error, place = sys.exc_info()
            text += "\n%s%s"
            values = (*values, "".join(traceback.format_tb(place)), f"{type(error).__name__}: {shown(error)}")
        self._log.log(level, text, *values, stacklevel=3, extra={"has_place": with_place})


CHARACTERS_MAX = 8000
# All loggers that this package writes to: a filter holds for its own logger only.
LOGGERS = tuple(
    f"rocketspark{name}"
    for name in (
        *("", ".access", ".audit", ".broker", ".broker.access", ".broker.replication", ".client", ".console"),
        *(
            ".controller",
            ".metrics",
            ".namesrv",
            ".proxy",
            ".proxy.audit",
            ".recipes",
            ".sends",
            ".spark",
            ".store",
            ".transport",
        ),
    )
)


def escape_values() -> None:
    """Make the loggers of this package escape the values that are put into their messages, whoever reads them."""
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
