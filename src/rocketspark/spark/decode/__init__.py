"""Bodies in JSON, Avro and Protobuf as columns. Rule: `rocketspark.spark.decode` can be called as the function of this
name; the modules of the package are imported when they are first used.

Start with frame.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from rocketspark.lazy import attributes

if TYPE_CHECKING:
    from rocketspark.spark.decode.error_rows import bad_rows
    from rocketspark.spark.decode.frame import decode, infer_schema

__all__ = ["bad_rows", "decode", "infer_schema"]

__getattr__ = attributes(__name__, {"bad_rows": "error_rows", "decode": "frame", "infer_schema": "frame"})


class _Callable(ModuleType):
    """The package as a module that can be called: a call is one of the function `decode`."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        from rocketspark.spark.decode import frame

        return frame.decode(*arguments, **options)


# An import of the package sets the attribute `decode` of the package above it, where the function is looked for.
sys.modules[__name__].__class__ = _Callable
