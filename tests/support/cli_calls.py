"""Commands called in this process: what they print, their exit code, and what they raised."""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass

from rocketspark.cli.tree import tree


@dataclass(frozen=True)
class Called:
    """One call: `exit_code` is 1 where something was raised, which is `exception` then."""

    exit_code: int
    stdout: str
    stderr: str
    exception: Exception | None

    @property
    def told(self) -> str:
        """All that was printed, and what was raised."""
        return f"{self.stdout}{self.stderr}{self.exception or ''}"


def call(*arguments: str) -> Called:
    """Run one command of `rocketspark`."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    code, raised = 0, None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            tree().main(args=list(arguments), prog_name="rocketspark")
        except SystemExit as e:
            code = e.code if isinstance(e.code, int) else int(e.code is not None)
        except Exception as e:
            code, raised = 1, e
    stdout, stderr = (stream.buffer.getvalue().decode() for stream in (out, err))  # type: ignore[attr-defined]
    return Called(code, stdout, stderr, raised)
