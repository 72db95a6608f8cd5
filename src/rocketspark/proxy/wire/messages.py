"""Classes of the messages of apache.rocketmq.v2, in a descriptor pool of their own.

Rule: nothing is registered in protobuf's default pool, where the official Python client registers the same names.
`messages.SendMessageRequest(...)` and so on; type checkers know them as Any.
"""

from __future__ import annotations

import functools
from importlib import resources
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "apache.rocketmq.v2"
SERVICE = f"{PACKAGE}.MessagingService"


@functools.cache
def file_set() -> Any:
    """Return the FileDescriptorSet of messaging.proto and what it imports."""
    data = resources.files(__package__).joinpath("messaging.binpb").read_bytes()
    return descriptor_pb2.FileDescriptorSet.FromString(data)


@functools.cache
def pool() -> Any:
    """Return the pool that holds the protocol and nothing else."""
    made = descriptor_pool.DescriptorPool()
    for file in file_set().file:
        made.AddSerializedFile(file.SerializeToString())
    return made


def of_name(full_name: str) -> Any:
    """Return the class of a message by its full name, such as google.protobuf.Timestamp. Raises KeyError."""
    return message_factory.GetMessageClass(pool().FindMessageTypeByName(full_name))


def service() -> Any:
    """Return the descriptor of MessagingService: its methods, each with its request and response types."""
    return pool().FindServiceByName(SERVICE)


Timestamp: Any = of_name("google.protobuf.Timestamp")
Duration: Any = of_name("google.protobuf.Duration")


def __getattr__(name: str) -> Any:
    try:
        found = of_name(f"{PACKAGE}.{name}")
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    globals()[name] = found
    return found
