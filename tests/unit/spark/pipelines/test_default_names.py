"""Names that pipelines give themselves."""

from __future__ import annotations

import pytest

from rocketspark.errors import ConfigError
from rocketspark.spark.options import TRANSACTIONAL_ID
from rocketspark.spark.pipelines.default_names import check_name, default_folder, default_name, file_name

LONG = "t" * 120


def test_a_name_that_is_taken_stays_as_it_is() -> None:
    assert default_name("dedupe-orders-orders_once") == "dedupe-orders-orders_once"
    assert default_folder("dedupe-a,b-c") == "dedupe-a,b-c"
    assert file_name("orders", "%RETRY%g") == "orders-_RETRY_g"


@pytest.mark.parametrize("text", ["dedupe-a,b-c", "outbox-public.orders", f"dedupe-{LONG}-x", "dedupe-%DLQ%g-ü", ""])
def test_other_names_are_made_ones_that_the_writer_takes(text: str) -> None:
    made = default_name(text)
    assert TRANSACTIONAL_ID.fullmatch(made)
    assert made != default_name(text + "y")


def test_folders_and_files_of_long_names_can_be_made() -> None:
    assert len(default_folder(f"dedupe-{LONG}-{LONG}").encode()) <= 200
    assert len(file_name(LONG, LONG).encode()) <= 120
    assert file_name(LONG, LONG) != file_name(LONG, LONG + "x")


def test_a_name_that_the_writer_refuses_is_told_as_an_option_of_the_command() -> None:
    assert check_name("a,b", "at-least-once") == "a,b"
    with pytest.raises(ConfigError, match="--name is 'a,b'"):
        check_name("a,b", "exactly-once")
