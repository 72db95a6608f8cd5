"""Names that tests give their topics and groups."""

from __future__ import annotations

from tests.support.names import own_name


def test_each_attempt_has_a_name_of_its_own() -> None:
    name = own_name("attempt") + " of a test"
    assert [own_name(name) for _ in range(3)] == [name, f"{name}-2", f"{name}-3"]
    assert own_name(f"{name} more") == f"{name} more"
