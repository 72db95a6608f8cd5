"""What commands on a cluster share: one operation of an operator's, and its result as JSON."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from rocketspark.admin.operations import Operations
    from rocketspark.cli.options import ClusterAccess

T = TypeVar("T")


def run_operation(at: ClusterAccess, act: Callable[[Operations], Awaitable[T]]) -> T:
    """Do one operation on the cluster."""
    import asyncio

    from rocketspark.admin.operations import Operations
    from rocketspark.cli.serving.serve import loop_factory

    options = at.client_options()

    async def run() -> T:
        async with Operations(at.namesrv, **options) as operations:
            return await act(operations)

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(run())


def print_json(value: Any) -> None:
    """Print a value as one line of JSON on stdout."""
    import msgspec

    from rocketspark.model.text import shown_json

    print(shown_json(msgspec.json.encode(value)))
