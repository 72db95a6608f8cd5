"""The demo: a year of real flights through producer, broker, Spark and consumer group, checked to the last figure.

    make demo
    make demo NAMESRV=host:9876 SPARK_MASTER=spark://host:7077    on clusters that exist

Output goes to demo-out/. On a Spark cluster that folder must be one that driver and executors share (DEMO_OUT names
another), and the workers need rocketspark[spark] installed. DEMO_FLIGHTS=20000 takes only the first so many flights.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from examples.flights.stages import Interrupts, console


def main() -> int:
    """Run it; returns the exit code: 0 when every check passed, 1 if one failed, 130 after Ctrl-C."""
    interrupts = Interrupts()
    try:
        # Here, so that Ctrl-C is heeded while pandas and Spark are being imported.
        from examples.flights.run import run
        from rocketspark import RocketSparkError

        folder = Path(os.environ.get("DEMO_OUT", "demo-out")).resolve()
        try:
            return run(folder, interrupts, int(os.environ.get("DEMO_FLIGHTS", "0")) or None)
        except (RocketSparkError, OSError) as e:
            if interrupts.happened:
                raise KeyboardInterrupt from None
            console.print(f"error: {e}", style="red", soft_wrap=True, markup=False)
            return 1
    except KeyboardInterrupt:
        console.print("stopped; nothing is left running", style="yellow")
        return 130


if __name__ == "__main__":
    sys.exit(main())
