"""Who may vote when a member starts with an empty disk, by what the others tell."""

from __future__ import annotations

import itertools

import pytest

from rocketspark.controller.group.founding import Beginning, obstacle, standing
from rocketspark.controller.group.members import Member, own_node, parse_members
from rocketspark.errors import ConfigError

FRESH, SEED, FOUNDING, SEEDED, LEARNING, MEMBER = Beginning
OTHERS = ("n1-b:1", "n2-c:1")


def told(first: str | None, second: str | None) -> dict[str, str]:
    return {name: what for name, what in zip(OTHERS, (first, second), strict=True) if what is not None}


@pytest.mark.parametrize(
    ("own", "first", "second", "expected"),
    [
        (FRESH, FRESH, FRESH, "founding"),
        (FRESH, FRESH, FOUNDING, "founding"),
        (FRESH, FRESH, None, None),
        (FRESH, None, None, None),
        (FRESH, SEED, FRESH, "waiting"),
        (FRESH, SEEDED, FOUNDING, "waiting"),
        (FRESH, SEED, SEED, None),
        (FRESH, MEMBER, None, "learner"),
        (FRESH, MEMBER, FRESH, "learner"),
        (FRESH, LEARNING, FRESH, None),
        (SEED, FRESH, FRESH, "seeding"),
        (SEED, FOUNDING, FRESH, "seeding"),
        (SEED, SEED, FRESH, None),
        (SEED, FRESH, None, None),
        (SEED, MEMBER, MEMBER, None),
    ],
)
def test_how_a_member_stands(own: Beginning, first: str | None, second: str | None, expected: str | None) -> None:
    assert standing(own, OTHERS, told(first, second)) == expected
    assert standing(own, OTHERS, told(second, first)) == expected


def test_whoever_cannot_begin_says_why_in_one_line() -> None:
    for own, first, second in itertools.product((FRESH, SEED), (*Beginning, None), (*Beginning, None)):
        if standing(own, OTHERS, told(first, second)) is None:
            text = obstacle(own, OTHERS, told(first, second), "/c/controllerState")
            assert "\n" not in text
            assert len(text) > 20
    assert "n2-c:1 cannot be reached" in obstacle(FRESH, OTHERS, told(FRESH, None), "")
    assert "remove that file" in obstacle(SEED, OTHERS, told(MEMBER, MEMBER), "/c/controllerState")
    assert "keep one" in obstacle(FRESH, OTHERS, told(SEED, SEED), "")


def test_members_are_read_in_both_ways() -> None:
    three = [Member("n0", "a:1"), Member("n1", "b-2.local:1"), Member("n2", "[::1]:9")]
    assert parse_members("a:1, b-2.local:1,[::1]:9") == three
    assert parse_members("n0-a:1;n1-b-2.local:1;n2-[::1]:9;") == three
    assert (own_node(three, "n1"), own_node(three, "1")) == ("n1", "n1")
    with pytest.raises(ConfigError, match="no controller is named 'n3': n0, n1, n2 are"):
        own_node(three, "n3")
    for wrong in ("a", "n0-a", "a:1,a:1", "n0-a:0", ",".join(f"h{i}:1" for i in range(10))):
        with pytest.raises(ConfigError):
            parse_members(wrong)
