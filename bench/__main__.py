"""`make bench`, or `python -m bench [part ...]`: every peer in the same run, ratios printed."""

from __future__ import annotations

import argparse
import importlib

PARTS = {
    "raw": "raw sends to the broker, beside the Java broker 5.5.0",
    "embedded": "time until the embedded server is ready, and its idle memory",
    "client": "our client and broker beside the Java client and broker",
    "spark": "Spark batch read of 2 M messages, and where the time goes",
}


def main() -> None:
    """Run the parts asked for, all by default."""
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measures RocketSpark beside its peers in one run; only the ratios count on a shared machine.",
        epilog="example: python -m bench raw --runs 5",
    )
    parser.add_argument("parts", nargs="*", metavar="part", help=", ".join(f"{k} ({v})" for k, v in PARTS.items()))
    parser.add_argument("--runs", type=int, default=3, help="paired runs per case; the median is shown")
    arguments = parser.parse_args()
    unknown = [p for p in arguments.parts if p not in PARTS]
    if unknown:
        parser.error(f"unknown part {unknown[0]!r}; there are {', '.join(PARTS)}")
    for part in arguments.parts or PARTS:
        print(f"\n{part}: {PARTS[part]}", flush=True)
        importlib.import_module(f"bench.{part}").run(runs=arguments.runs)


if __name__ == "__main__":
    main()
