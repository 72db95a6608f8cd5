"""What executors need, as one archive."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketspark.errors import ConfigError
from rocketspark.spark.environment import pack


def test_an_extra_that_there_is_not_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    target = tmp_path / "env.tar.gz"
    with pytest.raises(ConfigError, match=r"there is no extra 'avro': .*schemas"):
        pack(target, ("spark", "avro"))
    assert not target.exists()
