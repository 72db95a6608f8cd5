"""Rules as an operator writes them: what is meant is taken, what no rule can have is named."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketspark.admin.access import acl_info
from rocketspark.errors import UsageError
from rocketspark.protocol.json.operator_bodies import AclInfo, PolicyEntryInfo, PolicyInfo


def test_what_is_meant_is_taken() -> None:
    made = acl_info(
        "shop", ["topic:Orders*", "*", "GROUP:g"], ["pub", "ALL"], decision="deny", source_ips=["10.1.2.3/8"]
    )
    entries = [
        PolicyEntryInfo(resource=resource, actions=["Pub", "All"], source_ips=["10.1.2.3/8"], decision="Deny")
        for resource in ("Topic:Orders*", "*", "Group:g")
    ]
    assert made == AclInfo(subject="User:shop", policies=[PolicyInfo(policy_type="Custom", entries=entries)])
    assert acl_info("User:shop", ["*"], ["Get"], policy_type="default").subject == "User:shop"


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"subject": " "}, "is no name of a user"),
        ({"subject": "x" * 300}, "is no name of a user"),
        ({"subject": "a\x1b[31m"}, "is no name of a user"),
        ({"resources": []}, "a rule needs a resource"),
        ({"resources": ["orders"]}, "'orders' is no resource"),
        ({"resources": ["Topic:"]}, "is no resource"),
        ({"resources": ["Queue:x"]}, "is no resource"),
        ({"resources": ["Topic:a\nb"]}, "is no resource"),
        ({"actions": ["Any"]}, "action 'Any' is not one of All, Pub, Sub"),
        ({"actions": []}, "an action, as Pub"),
        ({"decision": "maybe"}, "is not one of Allow, Deny"),
        ({"source_ips": ["10.0.0"]}, "is no source address"),
        ({"source_ips": ["10.0.0.0/33"]}, "is no source address"),
        ({"policy_type": "Mine"}, "is not one of Custom, Default"),
    ],
)
def test_what_no_rule_can_have_is_named(changed: dict[str, Any], says: str) -> None:
    given_: dict[str, Any] = {"subject": "shop", "resources": ["Topic:a"], "actions": ["Pub"]} | changed
    with pytest.raises(UsageError, match=says) as wrong:
        acl_info(given_.pop("subject"), given_.pop("resources"), given_.pop("actions"), **given_)
    assert str(wrong.value).isprintable()
    assert len(str(wrong.value)) < 300


@given(st.text(max_size=40), st.text(max_size=40), st.text(max_size=40), st.text(max_size=40))
def test_any_text_is_taken_or_named_in_one_line(subject: str, resource: str, action: str, ip: str) -> None:
    said = ""
    try:
        assert acl_info(subject, [resource], [action], source_ips=[ip]).policies
    except UsageError as e:
        said = str(e)
    assert said.isprintable()
