"""Passwords for commands: from a file, the environment or a prompt. Rule: one that stands in the command line is warned
of, since process lists and shell histories show it.
"""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path

import typer

from rocketspark.errors import ConfigError
from rocketspark.model.text import shown

VARIABLE = "ROCKETMQ_USER_PASSWORD"
FILE_BYTES_MAX = 4096
RANDOM_BYTES = 18


def random_password() -> str:
    """Return a new password of random letters, digits, - and _."""
    # A leading - would be taken for an option.
    while (made := secrets.token_urlsafe(RANDOM_BYTES)).startswith("-"):
        pass
    return made


def warn_of_flag(option: str, instead: str) -> None:
    """Say on stderr that a secret stands in the command line."""
    print(f"warning: process lists and the shell's history show {option}; {instead} does not", file=sys.stderr)


def read_password(path: Path) -> str:
    """Return the first line of a file, "-" for stdin. Raises ConfigError if there is none."""
    try:
        if str(path) == "-":
            text = sys.stdin.readline(FILE_BYTES_MAX)
        else:
            with path.open("rb") as file:
                text = file.read(FILE_BYTES_MAX).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError, ValueError) as e:
        raise ConfigError(f"{shown(path)} cannot be read: {getattr(e, 'strerror', None) or 'no UTF-8 text'}") from None
    lines = text.splitlines()
    if not lines or not lines[0].strip():
        raise ConfigError(f"{shown(path)} is empty: a password in its first line is needed")
    return lines[0]


def new_password(flag: str | None, file: Path | None, *, generate: bool) -> str:
    """Return a new user's password from where the options say, else from ROCKETMQ_USER_PASSWORD, else from a prompt."""
    if sum((flag is not None, file is not None, generate)) > 1:
        raise typer.BadParameter("--password, --password-file and --generate exclude each other")
    if generate:
        return random_password()
    if file is not None:
        return read_password(file)
    if flag is not None:
        warn_of_flag("--password", f"--password-file, {VARIABLE} or the prompt")
        return flag
    if found := os.environ.get(VARIABLE):
        return found
    if not sys.stdin.isatty():
        raise typer.BadParameter(f"no password: give --password-file or --generate, or set {VARIABLE}")
    answer: str = typer.prompt("Password", hide_input=True, confirmation_prompt=True)
    return answer


def secret_of(value: str, file: Path | None, option: str, variable: str) -> str:
    """Return a secret from an option, with a warning, or from a file or the environment; "" if none of them gives it.

    `value`, `file`: the option `option` and its sister `option`-file, from the command line, else from the environment;
    the command line wins. `variable`: the environment variable of the secret. Raises BadParameter if the command
    line gives both, ConfigError if the environment does.
    """
    from_line = bool(value) and value != os.environ.get(variable)
    file_from_line = file is not None and str(file) != os.environ.get(f"{variable}_FILE")
    if from_line and file_from_line:
        raise typer.BadParameter(f"{option} and {option}-file exclude each other")
    if from_line:
        warn_of_flag(option, variable)
        return value
    if value and file is not None and not file_from_line:
        raise ConfigError(f"{variable} and {variable}_FILE are both set: unset one")
    # A file of the name "-" is no stdin here: commands read that for other things.
    return read_password(file.absolute()) if file is not None else value


def secret_in_environment(variable: str, file: Path | None) -> str:
    """Return a secret from `file` if that is given, else from an environment variable; "" if neither gives it."""
    return read_password(file.absolute()) if file is not None else os.environ.get(variable, "")
