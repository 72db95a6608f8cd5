"""The `rocketspark` command. Rule: a user's mistake is one line on stderr and exit code 1 (2: wrong usage).

Little is imported before Ctrl-C is looked after. SIGTERM ends a command as Ctrl-C does: what was printed is committed,
what was sent is awaited.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
import time
from typing import Any

TEXT_CHARACTERS_MAX = 2000
# A signal whose exception nothing could be told of comes again so much later.
_AGAIN_S = 0.05
_terminated = False


def _terminate(number: int, frame: object) -> None:
    """Have what runs end as by Ctrl-C; servers and pipelines have handlers of their own."""
    global _terminated
    _terminated = True
    end = signal.getsignal(signal.SIGINT)
    # Shells have it ignored in what scripts run in the background.
    (end if callable(end) else signal.default_int_handler)(signal.SIGINT, None)


def _unraisable(told: Any) -> None:
    """Have a Ctrl-C come again that came where Python lets nothing be raised, as in an import that frees its lock."""
    if isinstance(told.exc_value, KeyboardInterrupt):
        _thread.start_new_thread(_again, (_thread.get_ident(), signal.SIGTERM if _terminated else signal.SIGINT))
    else:
        sys.__unraisablehook__(told)


def _again(main_thread: int, number: int) -> None:
    time.sleep(_AGAIN_S)
    # To the thread that it came to, which may sleep.
    signal.pthread_kill(main_thread, number)


def main(arguments: list[str] | None = None) -> None:
    """Run the command and exit with its code."""
    sys.unraisablehook = _unraisable
    try:
        from rocketspark.cli import streams

        streams.guard()
        _on_sigterm(_terminate)
        code = run(arguments)
    except KeyboardInterrupt:
        code = 130
    try:
        # While Python ends, no code catches Ctrl-C any more.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    except ValueError:
        pass  # Only a program's main thread may.
    _on_sigterm(signal.SIG_DFL)
    if _terminated and code == 130:
        # Whoever sent it sees that it was heeded.
        signal.raise_signal(signal.SIGTERM)
    sys.exit(code)


def _on_sigterm(act: Any) -> None:
    try:
        signal.signal(signal.SIGTERM, act)
    except ValueError:
        pass


def run(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit code: 0, 1 for an error, 2 for wrong usage, 130 for Ctrl-C."""
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        return 130


def _run(arguments: list[str] | None) -> int:
    import typer

    from rocketspark.cli.streams import ReaderLeft
    from rocketspark.cli.tree import tree
    from rocketspark.errors import RocketSparkError

    try:
        result: Any = tree().main(args=arguments, prog_name="rocketspark", standalone_mode=False)
        sys.stdout.flush()
    except ReaderLeft:
        return 0
    except typer.Abort:
        return 130
    except _wrong_usage() as e:
        return _usage_error(e)
    except RocketSparkError as e:
        return _error(str(e))
    except OSError as e:
        where = f"{e.filename}: " if e.filename else ""
        return _error(f"{where}{e.strerror or e}")
    except Exception as e:
        if os.environ.get("ROCKETSPARK_TRACEBACK"):
            raise
        return _error(f"{type(e).__name__}: {e}; a defect of rocketspark: with ROCKETSPARK_TRACEBACK=1 it says where")
    return result if isinstance(result, int) else 0


def _wrong_usage() -> type[Exception]:
    """Return the class of all that typer raises for a wrong command line, which has a name since typer 0.28 only."""
    import typer

    return next(each for each in typer.BadParameter.__mro__ if each.__base__ is Exception)


def _error(text: str, code: int = 1) -> int:
    from rocketspark.model.text import shown

    print("error: " + shown(" ".join(text.split()), characters_max=TEXT_CHARACTERS_MAX), file=sys.stderr)
    return code


def _usage_error(error: Any) -> int:
    context = getattr(error, "ctx", None)
    text = error.format_message() if hasattr(error, "format_message") else str(error)
    if type(error).__name__ == "NoArgsIsHelpError":
        if text:  # Else typer has printed it.
            print(text, file=sys.stderr)
        return 2
    hint = f" (see `{context.command_path} --help`)" if context else ""
    return _error(f"{_short(text)}{hint}", 2)


def _short(text: str) -> str:
    """Shorten a message that repeats the user's input, which may be of any length."""
    return text if len(text) <= 600 else f"{text[:300]}…{text[-300:]}"


if __name__ == "__main__":
    main()
