"""What a gate decided about a request, for the audit. Rule: a decision holds no secret, and no signature."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple


class Check(StrEnum):
    """What was asked: who somebody is, what he may do, or that he changed who may do what."""

    AUTHENTICATION = "authentication"
    AUTHORIZATION = "authorization"
    ADMINISTRATION = "administration"


class Decision(NamedTuple):
    """One decision.

    `subject`: "User:name" as the request claims it, "" for none; `source`: "host:port" of the sender; `code`: that of
    the request; `resource`, `actions`: what was asked for, empty where only the sender was checked; `allowed`: the
    outcome; `rule`: what decided, such as "signature", "whitelist", "super user" or "Custom Topic:orders* Deny";
    `remark`: what a refused sender is told; `call`: the method that came by gRPC, in place of the code.
    """

    check: Check
    subject: str
    source: str
    code: int
    resource: str
    actions: tuple[str, ...]
    allowed: bool
    rule: str
    remark: str = ""
    call: str = ""


Decided = Callable[[Decision], None]


def nobody_told(decision: Decision) -> None:
    """Take a decision that nobody wants to hear of."""
