"""Topics and stores as tables of Arrow, without Spark; Spark's half reads by the same code.

Start with read_table.
"""

from __future__ import annotations

from importlib.util import find_spec

from rocketspark.errors import ConfigError

if find_spec("pyarrow") is None:
    raise ConfigError("a table needs pyarrow: pip install 'rocketspark[arrow]'")
