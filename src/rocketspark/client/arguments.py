"""Arguments that a call does not have. Rule: the error names the nearest one that it has."""

from __future__ import annotations

import asyncio
import functools
import inspect
import typing
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

from rocketspark.model.text import nearest

F = TypeVar("F", bound=Callable[..., Any])


def unknown_argument(called: str, name: str, known: Iterable[str]) -> TypeError:
    """Return the error for an argument that `called` does not have."""
    return TypeError(f"{called} has no argument {name!r}{nearest(name, known)}")


def arguments_of(function: Callable[..., Any]) -> list[str]:
    """Return the names of a function's arguments, those of an `Unpack[…]` at its end too."""
    found = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is not parameter.VAR_KEYWORD:
            found.append(parameter.name)
        elif given := typing.get_args(typing.get_type_hints(function, include_extras=True).get(parameter.name)):
            found += typing.get_type_hints(given[0])
    return found


def name_arguments(kind: type) -> None:
    """Have the constructor and the public methods of a class name the argument that was meant; not those that take any
    and look at them.
    """
    for name, method in list(vars(kind).items()):
        if (name == "__init__" or not name.startswith("_")) and inspect.isfunction(method):
            kinds = {p.kind for p in inspect.signature(method).parameters.values()}
            if inspect.Parameter.VAR_KEYWORD not in kinds:
                setattr(kind, name, names_arguments(method))


def names_arguments(function: F) -> F:
    """Return the function, which says what was meant where an argument is unknown. Python does from 3.13 on."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except TypeError:
            known = arguments_of(function) if kwargs else []
            for name in kwargs:
                if name not in known:
                    raise unknown_argument(f"{function.__qualname__}()", name, known) from None
            raise

    if inspect.iscoroutinefunction(function):
        # What looks at it, as mocks do, sees what it is.
        getattr(inspect, "markcoroutinefunction", lambda marked: None)(call)
        call._is_coroutine = getattr(asyncio.coroutines, "_is_coroutine", None)  # type: ignore[attr-defined]
    return cast(F, call)
