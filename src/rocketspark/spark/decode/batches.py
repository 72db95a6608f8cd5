"""Batches of rows with decoded columns added. Rule: what a bad row comes to is decided here: kept, sent, left out, or
the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rocketspark.errors import BodyUndecodable
from rocketspark.spark.decode.bodies import decoder_of
from rocketspark.spark.decode.options import DROPMALFORMED, FAILFAST, DecodeOptions

# The columns that name a message's place.
PLACE = ("topic", "broker", "queueId", "queueOffset")


class Decoded:
    """A batch's values, reasons and the rows that stay."""

    def __init__(self, options: DecodeOptions, bodies: pa.Array, place: Mapping[str, pa.Array]) -> None:
        """Raises BodyUndecodable with mode FAILFAST."""
        if pa.types.is_string(bodies.type) or pa.types.is_large_string(bodies.type):
            bodies = bodies.cast(pa.binary())
        self.values, self.reasons = decoder_of(options).decode(bodies.to_pylist())
        self.bad = [i for i, reason in enumerate(self.reasons) if reason is not None]
        if self.bad and options.mode == FAILFAST:
            first = self.bad[0]
            where = ", ".join(f"{name} {place[name][first].as_py()}" for name in PLACE if name in place)
            raise BodyUndecodable(
                f"a body cannot be decoded ({where or f'row {first} of a batch'}): {self.reasons[first]}; decodeMode"
                " PERMISSIVE keeps such rows"
            )
        self._drops = bool(self.bad) and options.mode == DROPMALFORMED

    def kept(self, column: Any) -> Any:
        """Return a column of the rows that stay."""
        if not self._drops:
            return column
        good = pa.array([reason is None for reason in self.reasons], pa.bool_())
        return pc.filter(column, good)

    def columns(self) -> tuple[pa.Array, pa.Array]:
        """Return the values and the reasons of the rows that stay."""
        return self.kept(self.values), self.kept(pa.array(self.reasons, pa.string()))
