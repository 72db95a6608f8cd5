"""`make bench`, or `python -m bench [part ...]`: every peer in the same run, ratios printed."""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
import time

PARTS = {
    "raw": "raw sends to the broker, beside the Java broker 5.5.0",
    "pull": "raw pulls from the broker, beside the Java broker 5.5.0",
    "embedded": "time until the embedded server is ready, and its idle memory",
    "client": "our client and broker beside the Java client and broker",
    "spark": "Spark batch read of 2 M messages, and where the time goes",
}

MODULES = {"pull": "raw_pull"}


def main() -> None:
    """Run the parts asked for, all by default. However it ends, the servers it started have ended before."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        _run()
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        sys.exit(130)


def _run() -> None:
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
        started = time.monotonic()
        importlib.import_module(f"bench.{MODULES.get(part, part)}").run(runs=arguments.runs)
        load = f", load average {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
        print(f"  {time.monotonic() - started:.0f} s{load}", flush=True)


if __name__ == "__main__":
    main()
