"""Rules as another broker lists them."""

from __future__ import annotations

import pytest

from rocketspark.access.policies import Acl
from rocketspark.access.wire_forms import acls_from
from rocketspark.protocol.json.operator_bodies import AclInfo, PolicyEntryInfo, PolicyInfo


def listed(username: str, **entry: object) -> AclInfo:
    whole = PolicyEntryInfo(resource="Topic:orders", actions=["Pub"], decision="Allow")
    for name, value in entry.items():
        setattr(whole, name, value)
    return AclInfo(subject=f"User:{username}", policies=[PolicyInfo(policy_type="Custom", entries=[whole])])


def test_a_rule_that_cannot_be_read_harms_its_user_alone(caplog: pytest.LogCaptureFixture) -> None:
    """A RocketMQ broker keeps some that we do not take."""
    for _ in range(3):
        acls = acls_from(
            [
                listed("shop"),
                listed("odd", source_ips=["10.0.0.0/nonsense"]),
                listed("any", actions=["Any"]),
                AclInfo(subject="User:none"),
            ]
        )
    assert [acl == Acl() for acl in acls.values()] == [False, True, True, True]
    assert acls["shop"].deciding("Topic", "orders", ("Pub",), "10.0.0.7")
    assert acls["odd"].deciding("Topic", "orders", ("Pub",), "10.0.0.7") is None
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 3, "each is told once"
    assert "the rules of user odd cannot be read, so he may do nothing: The source ip is invalid." in told
