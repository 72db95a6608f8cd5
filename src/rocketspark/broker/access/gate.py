"""The gate of a broker: every check that its settings ask for, in RocketMQ's order: access control 1.0, then 2.0.

Rule: a request passes if all checks let it pass; whoever `decided` is hears of each decision, in one place.
"""

from __future__ import annotations

from rocketspark.broker.access.decisions import Decided, Decision, nobody_told
from rocketspark.transport.gate import Gate, ReceivedRequest, Refusal


class BrokerGate:
    """The checks of one broker. Made before it listens; `checks` may be filled until the first request is served."""

    def __init__(self) -> None:
        self.checks: list[Gate] = []
        # Set by the audit.
        self.decided: Decided = nobody_told

    def tell(self, decision: Decision) -> None:
        """Tell the observer of a decision; the checks call it."""
        self.decided(decision)

    def refuses(self, request: ReceivedRequest) -> Refusal | None:
        """Return what the first check answers that does not let a request pass."""
        for check in self.checks:
            refusal = check.refuses(request)
            if refusal is not None:
                return refusal
        return None
