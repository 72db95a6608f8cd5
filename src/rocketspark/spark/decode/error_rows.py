"""bad_rows(df): the rows of a decoded frame whose bodies are bad, as messages. Rule: as option decodeErrorTopic sends
them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rocketspark.errors import ConfigError
from rocketspark.tables.decode.bodies import PLACE
from rocketspark.tables.decode.error_rows import BODY_BYTES, BODY_BYTES_MAX, NAMES, REASON, REASON_CHARACTERS_MAX

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def bad_rows(frame: DataFrame, *, column: str = "body", error_column: str = "_decode_error") -> DataFrame:
    """Return the rows of a decoded frame whose bodies are bad, as messages that can be written: the body as it came;
    its topic, broker, queue and offset and the reason as properties.

    Raises ConfigError if the frame was not decoded, or has no body any more.
    """
    from pyspark.sql import functions as F

    names: list[Any] = frame.columns
    for name in (column, error_column):
        if name not in names:
            raise ConfigError(f"bad_rows: the rows have no column {name!r}; there are: {', '.join(names)}")
    told = [(NAMES[name], F.col(name).cast("string")) for name in PLACE if name in names]
    reason = F.regexp_replace(F.col(error_column), r"\p{Cntrl}", "?")
    told.append((REASON, F.substring(reason, 1, REASON_CHARACTERS_MAX)))
    body = F.col(column).cast("binary")
    told.append((BODY_BYTES, F.when(F.length(body) > BODY_BYTES_MAX, F.length(body).cast("string"))))
    properties = F.create_map(*(part for name, value in told for part in (F.lit(name), value)))
    body = F.when(F.length(body) > 0, F.substring(body, 1, BODY_BYTES_MAX)).otherwise(F.lit(b" "))
    return frame.where(F.col(error_column).isNotNull()).select(body.alias("body"), properties.alias("properties"))
