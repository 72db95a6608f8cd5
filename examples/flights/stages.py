"""What the user sees while the demo runs: its stages, their times, a progress bar; and what Ctrl-C does."""

from __future__ import annotations

import logging
import os
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

console = Console()
# Without a terminal a bar would be a line for each step of it.
REFRESH_PER_SECOND = 5


class Stages:
    """Runs the stages one after another and keeps how long each took, in seconds."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """One stage: its name before, its time after."""
        console.print(f"[bold cyan]>[/] {name}")
        started_s = time.monotonic()
        yield
        self.seconds[name] = time.monotonic() - started_s
        console.print(f"  [green]done[/] in {self.seconds[name]:.1f} s")


class Rate(ProgressColumn):
    """Steps per second."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.finished_speed or task.speed or 0:,.0f}/s")


@contextmanager
def progress_bar(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on the screen; call what it gives with the number of steps done so far."""
    counts = TextColumn("  {task.completed:,.0f} of {task.total:,.0f} " + what)
    with Progress(
        counts, BarColumn(), Rate(), TimeElapsedColumn(), console=console, refresh_per_second=REFRESH_PER_SECOND
    ) as progress:
        task = progress.add_task("", total=total)
        yield lambda done: progress.update(task, completed=done)


class Interrupts:
    """Turns the first Ctrl-C or SIGTERM into KeyboardInterrupt and ignores the rest, so that tidying up is not cut.

    `happened`: there was one. A terminal sends Ctrl-C to the server too: errors that follow are no news then.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self) -> None:
        self.happened = False
        self._held = False
        self._install()

    def _install(self) -> None:
        for number in self.SIGNALS:
            signal.signal(number, self._interrupt)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        for other in self.SIGNALS:
            signal.signal(other, signal.SIG_IGN)
        self.happened = True
        # Libraries would log at length that they were cut short, and Python warns of coroutines that were.
        logging.disable()
        warnings.simplefilter("ignore")
        console.print("stopping …", style="yellow")
        if not self._held:
            raise KeyboardInterrupt

    @contextmanager
    def held(self) -> Iterator[None]:
        """An interrupt waits until the block is done: for what cannot be undone half way."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
            if self.happened:
                raise KeyboardInterrupt
        # PySpark puts a handler of its own in place of ours.
        self._install()


@contextmanager
def stderr_to(path: Path) -> Iterator[None]:
    """Sends what this process and those it starts write on stderr to a file; for those it starts, for good."""
    kept = os.dup(2)
    with path.open("ab") as log:
        os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
