"""What RocketMQ 5's official clients put on the wire: of each client and method one message for each set of fields.

They lie in tests/vectors/v5/client_messages.json; `python -m tests.v5.recorded` plays the scenarios before our proxy,
and writes them anew.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc

FILE = Path(__file__).resolve().parents[1] / "vectors" / "v5" / "client_messages.json"
BYTES_MAX = 1000
# By client and type of message: the bytes.
Recorded = dict[str, dict[str, list[bytes]]]


def load() -> Recorded:
    found = json.loads(FILE.read_text())
    return {
        client: {kind: [bytes.fromhex(data) for data in one] for kind, one in kinds.items()}
        for client, kinds in found.items()
    }


def fields_of(message: Any, before: str = "") -> Iterator[str]:
    """The paths of the fields that are set, and of those that bytes hold which no definition knows."""
    for field, value in message.ListFields():
        yield before + field.name
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            several = not hasattr(value, "ListFields")
            for one in value if several else (value,):
                yield from fields_of(one, f"{before}{field.name}.")


def record(language: str, folder: Path) -> dict[str, list[bytes]]:
    """Play the scenarios with one client; returns its messages, as it wrote them."""
    from tests.v5 import drivers
    from tests.v5.scenarios import PLAYED, Play
    from tests.v5.servers import running

    seen: dict[tuple[str, frozenset[str]], bytes] = {}

    def noted(make: Any) -> Any:
        def handler(call: Any, request_deserializer: Any, **more: Any) -> Any:
            def read(data: bytes) -> Any:
                made = request_deserializer(data)
                if len(data) <= BYTES_MAX:
                    seen.setdefault((type(made).__name__, frozenset(fields_of(made))), data)
                return made

            return make(call, request_deserializer=read, **more)

        return handler

    for shape in ("unary_unary", "unary_stream", "stream_stream"):
        name = f"{shape}_rpc_method_handler"
        setattr(grpc, name, noted(getattr(grpc, name)))
    folder.mkdir()
    client = drivers.start(language, folder)
    try:
        with running("ours", folder) as servers:
            for scenario in PLAYED[language]:
                scenario(Play(servers, client))
    finally:
        client.close()
    found: dict[str, list[bytes]] = {}
    for (kind, _), data in sorted(seen.items(), key=lambda one: (one[0][0], one[1])):
        found.setdefault(kind, []).append(data)
    return found


def main() -> None:
    from tests.v5.drivers import LANGUAGES

    made = {}
    with tempfile.TemporaryDirectory() as folder:
        for language in LANGUAGES:
            kinds = record(language, Path(folder) / language)
            made[language] = {kind: [data.hex() for data in one] for kind, one in kinds.items()}
    FILE.write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
