"""Orders as Avro and Protobuf: the schemas and bodies of the tests. Descriptors are made here, without protoc."""

from __future__ import annotations

import base64
import json
from io import BytesIO
from typing import Any

import fastavro
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

FIELDS = [{"name": "id", "type": "int"}, {"name": "fruit", "type": "string"}, {"name": "price", "type": "double"}]
V1 = json.dumps({"type": "record", "name": "Order", "namespace": "shop", "fields": FIELDS})
NOTE = {"name": "note", "type": ["null", "string"], "default": None}
V2 = json.dumps({"type": "record", "name": "Order", "namespace": "shop", "fields": [*FIELDS, NOTE]})
ORDERS = [{"id": i, "fruit": "apple" if i % 2 else "pear", "price": i / 4} for i in range(20)]

_F = descriptor_pb2.FieldDescriptorProto


def avro(value: Any, schema: str = V1) -> bytes:
    out = BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(schema)), value)
    return out.getvalue()


def field(message: Any, name: str, number: int, kind: int, type_name: str = "", repeated: bool = False) -> Any:
    label = _F.LABEL_REPEATED if repeated else _F.LABEL_OPTIONAL
    found = message.field.add(name=name, number=number, type=kind, label=label)
    if type_name:
        found.type_name = type_name
    return found


def order_file() -> descriptor_pb2.FileDescriptorProto:
    """shop.proto: Other at [0], Order at [1], Order.Item at [1, 0]."""
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    file.dependency.append("google/protobuf/wrappers.proto")
    other = file.message_type.add(name="Other")
    field(other, "x", 1, _F.TYPE_INT32)
    order = file.message_type.add(name="Order")
    item = order.nested_type.add(name="Item")
    field(item, "sku", 1, _F.TYPE_STRING)
    entry = order.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    field(entry, "key", 1, _F.TYPE_STRING)
    field(entry, "value", 2, _F.TYPE_INT64)
    kind = file.enum_type.add(name="Kind")
    kind.value.add(name="UNKNOWN", number=0)
    kind.value.add(name="PAID", number=1)
    field(order, "id", 1, _F.TYPE_INT64)
    field(order, "fruit", 2, _F.TYPE_STRING)
    field(order, "price", 3, _F.TYPE_DOUBLE)
    field(order, "big", 4, _F.TYPE_UINT64)
    field(order, "kind", 5, _F.TYPE_ENUM, ".shop.Kind")
    field(order, "counts", 6, _F.TYPE_MESSAGE, ".shop.Order.CountsEntry", repeated=True)
    field(order, "items", 7, _F.TYPE_MESSAGE, ".shop.Order.Item", repeated=True)
    field(order, "at", 8, _F.TYPE_MESSAGE, ".google.protobuf.Timestamp")
    field(order, "maybe", 9, _F.TYPE_MESSAGE, ".google.protobuf.Int32Value")
    order.oneof_decl.add(name="how")
    for name, number, type_ in (("card", 10, _F.TYPE_STRING), ("cash", 11, _F.TYPE_UINT32)):
        field(order, name, number, type_).oneof_index = 0
    return file


def order_set() -> bytes:
    """What protoc writes without --include_imports: Google's own files are known."""
    return descriptor_pb2.FileDescriptorSet(file=[order_file()]).SerializeToString()


def serialized(file: descriptor_pb2.FileDescriptorProto | None = None) -> str:
    """A file, that of the orders if none is given, as a registry gives it with format=serialized."""
    return base64.b64encode((file or order_file()).SerializeToString()).decode()


def order_class(name: str = "shop.Order") -> Any:
    from google.protobuf import timestamp_pb2, wrappers_pb2

    pool = descriptor_pool.DescriptorPool()
    for module in (timestamp_pb2, wrappers_pb2):
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(order_file().SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
