"""The captured frames of tests/vectors/frames, read once. Rule: nothing here uses the code that is tested."""

from __future__ import annotations

import json
import tarfile
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

VECTORS = Path(__file__).parents[2] / "vectors" / "frames"


class Captured(NamedTuple):
    """One frame: its bytes, the header as the capture decoded it, and the code of the request it answers."""

    scenario: str
    index: int
    data: bytes
    binary: bool
    header: dict[str, Any]
    is_reply: bool
    request_code: int | None

    @property
    def header_bytes(self) -> bytes:
        return self.data[8 : 8 + int.from_bytes(self.data[5:8], "big")]

    @property
    def body(self) -> bytes:
        return self.data[8 + int.from_bytes(self.data[5:8], "big") :]

    @property
    def ext(self) -> dict[str, str]:
        return self.header.get("extFields") or {}

    @property
    def where(self) -> str:
        return f"{self.scenario}[{self.index}]"


@lru_cache
def frames() -> tuple[Captured, ...]:
    found = []
    with tarfile.open(VECTORS / "frames.tar.gz") as tar:
        for member in tar:
            file = tar.extractfile(member)
            assert file is not None
            scenario = json.load(file)
            codes = {f["i"]: f["header"]["code"] for f in scenario["frames"]}
            for f in scenario["frames"]:
                if f.get("truncated"):  # a body of 4 MiB, left out
                    continue
                found.append(
                    Captured(
                        scenario["scenario"],
                        f["i"],
                        bytes.fromhex(f["hex"]),
                        f["serialization"] == "ROCKETMQ",
                        f["header"],
                        bool(f["header"]["flag"] & 1),
                        codes.get(f.get("response_to")),
                    )
                )
    return tuple(found)


def table(name: str) -> list[dict[str, str]]:
    """The rows of a .tsv."""
    head, *rows = (line.split("\t") for line in (VECTORS / f"{name}.tsv").read_text("utf-8").splitlines())
    return [dict(zip(head, row, strict=True)) for row in rows]


@lru_cache
def hashes() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((VECTORS / "hashes.json").read_text("utf-8"))
    return found
