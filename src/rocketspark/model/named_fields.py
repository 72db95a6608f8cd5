"""Values whose making with a field that they do not have names the nearest one that they have."""

from __future__ import annotations

from typing import Any

import msgspec

from rocketspark.model.text import nearest

# Makes a value of fields that are known: the call of its class costs half as much again.
make = msgspec.StructMeta.__call__


class NamedFields(msgspec.StructMeta):
    """The kind of such values' classes."""

    def __call__(cls, *args: Any, **fields: Any) -> Any:
        """Make a value. Raises TypeError."""
        try:
            return make(cls, *args, **fields)
        except TypeError:
            for name in fields.keys() - cls.__struct_fields__:
                text = f"{cls.__name__} has no argument {name!r}{nearest(name, cls.__struct_fields__)}"
                raise TypeError(text) from None
            raise
