"""How the state machines of the clients are run: without the log of failures that are meant to be."""

from __future__ import annotations

import logging

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test


def run_machine(machine: type[RuleBasedStateMachine], examples: int, *, steps: int) -> None:
    """Run a machine `examples` times; its test is marked `hypothesis`."""
    log = logging.getLogger("rocketspark.client")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        run_state_machine_as_test(  # type: ignore[no-untyped-call]
            machine,
            settings=settings(
                max_examples=examples,
                stateful_step_count=steps,
                deadline=None,
                phases=[Phase.generate],
                print_blob=True,
                suppress_health_check=list(HealthCheck),
            ),
        )
    finally:
        log.setLevel(level)
