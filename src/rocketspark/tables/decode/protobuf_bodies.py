"""Decodes Protobuf bodies to values. Rule: types come from descriptors, in a pool of their own; no code is generated.

Schemas that a registry gives as text are made into descriptors by the compiler of grpcio-tools. Such a text is not
trusted: it is compiled in a process of its own, in an empty folder, with bounds on time, memory and size.
"""

from __future__ import annotations

import base64
import binascii
import importlib.util
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from rocketspark.errors import ConfigError
from rocketspark.model.text import shown
from rocketspark.tables.decode import sql_types as t
from rocketspark.tables.decode.options import COLUMNS_MAX

Descriptor = Any
Convert = Callable[[Any], Any]

_WRAPPERS = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
_TIMESTAMP, _DURATION = "google.protobuf.Timestamp", "google.protobuf.Duration"
_AS_JSON = frozenset(f"google.protobuf.{name}" for name in ("Struct", "Value", "ListValue"))
# Years 1 to 9999, which Spark's times can be shown in.
_SECONDS_MIN, _SECONDS_MAX = -62_135_596_800, 253_402_300_799


class Messages:
    """The message types of a FileDescriptorSet. Raises ConfigError if the bytes are no such set, or one of its files
    imports a file that is not there.

    `name`: the option that the bytes came from, which the error names.
    """

    def __init__(self, descriptor: bytes, name: str = "decodeDescriptorFile") -> None:
        from google.protobuf import descriptor_pb2, descriptor_pool
        from google.protobuf.message import DecodeError

        try:
            files = descriptor_pb2.FileDescriptorSet.FromString(descriptor)
            if not files.file or not all(file.name for file in files.file):
                raise ValueError("it has no file")
        except (DecodeError, ValueError):
            raise ConfigError(
                f"option {name}: it is no descriptor file: make one by `protoc --include_imports -o FILE x.proto`"
            ) from None
        self._files = [file.name for file in files.file]
        self._pool = descriptor_pool.DescriptorPool()
        by_name = {file.name: file for file in files.file}
        added: set[str] = set()

        def add(file: Any, depth: int) -> None:
            if file.name in added:
                return
            if depth > len(by_name):
                raise TypeError(f"{file.name} imports itself")
            for other in file.dependency:
                if other in by_name:
                    add(by_name[other], depth + 1)
                elif (known := _well_known(other)) is not None:
                    add(known, depth)
            added.add(file.name)
            self._pool.AddSerializedFile(file.SerializeToString())

        try:
            for file in files.file:
                add(file, 0)
        except (TypeError, RecursionError) as e:
            raise ConfigError(
                f"option {name}: its files cannot be put together ({shown(' '.join(str(e).split()))[:200]}): make it by"
                " `protoc --include_imports`"
            ) from None

    def find(self, name: str) -> Descriptor:
        """Return a message type by its full name. Raises ConfigError, which names the types that there are."""
        try:
            return self._pool.FindMessageTypeByName(name.lstrip("."))
        except KeyError:
            names = [one.full_name for one in self.top_level()]
            there = ", ".join(names[:20]) + (" …" if len(names) > 20 else "")
            raise ConfigError(
                f"option decodeMessage: the descriptor has no message {shown(name)!r}; it has: {there or 'none'}"
            ) from None

    def top_level(self) -> Iterable[Descriptor]:
        """Return the message types that do not lie within another one, file by file."""
        for file in self._files:
            yield from self._pool.FindFileByName(file).message_types_by_name.values()

    def at(self, indexes: tuple[int, ...], file: str | None = None) -> Descriptor:
        """Return a message type of the file named, by default the last one. `indexes`: those that `place_of` returns
        for it. Raises ValueError.
        """
        messages = list(self._pool.FindFileByName(file or self._files[-1]).message_types_by_name.values())
        found = None
        for index in indexes:
            if index >= len(messages):
                raise ValueError(f"the schema has no message at {'.'.join(map(str, indexes))}")
            found = messages[index]
            messages = list(found.nested_types)
        return found


def place_of(message: Descriptor) -> tuple[int, ...]:
    """Return where a message type stands in its file: the index of each message type around it, the outermost first,
    then its own.
    """
    above = message.containing_type
    siblings = message.file.message_types_by_name.values() if above is None else above.nested_types
    index = [one.full_name for one in siblings].index(message.full_name)
    return (index,) if above is None else (*place_of(above), index)


def _well_known(name: str) -> Any:
    """Return a file of Google's own, which protoc leaves out without --include_imports."""
    from google.protobuf import descriptor_pb2, descriptor_pool

    if not name.startswith("google/protobuf/"):
        return None
    import google.protobuf.any_pb2
    import google.protobuf.duration_pb2
    import google.protobuf.empty_pb2
    import google.protobuf.field_mask_pb2
    import google.protobuf.struct_pb2
    import google.protobuf.timestamp_pb2
    import google.protobuf.wrappers_pb2  # noqa: F401

    try:
        found = descriptor_pool.Default().FindFileByName(name)
    except KeyError:
        return None
    return descriptor_pb2.FileDescriptorProto.FromString(found.serialized_pb)


def file_set(files: Iterable[tuple[str, str]]) -> bytes:
    """Return a FileDescriptorSet of files that a registry gave. Raises ValueError if the text of one is no descriptor
    in base64.

    `files`: the name that others import a file by, which may be empty for the last one, and the file's text.
    """
    from google.protobuf import descriptor_pb2
    from google.protobuf.message import DecodeError

    found = descriptor_pb2.FileDescriptorSet()
    for name, text in files:
        try:
            file = found.file.add()
            file.ParseFromString(base64.b64decode(text, validate=True))
        except (binascii.Error, ValueError, DecodeError):
            raise ValueError("a file that it refers to is no descriptor in base64") from None
        file.name = name or file.name or "schema.proto"
        if name == "" and file.name == "default":
            file.name = "schema.proto"
    return bytes(found.SerializeToString())


class ProtobufDecoder:
    """Decodes bodies that are messages of one Protobuf type."""

    def __init__(self, message: Descriptor, recursion_max: int) -> None:
        from google.protobuf import message_factory
        from google.protobuf.message import DecodeError

        self._parse = message_factory.GetMessageClass(message).FromString
        self._errors = DecodeError
        types = _Types(recursion_max)
        self.kind, self._convert = types.top(message)
        self._has_required = types.has_required

    def decode(self, body: bytes) -> Any:
        """Decode one body to a value that Arrow takes. Raises ValueError saying what is wrong with the body."""
        try:
            message = self._parse(body)
            if self._has_required and not type(message).IsInitialized(message):
                lacking = ", ".join(type(message).FindInitializationErrors(message))
                raise ValueError(f"the body is no message of the schema: it lacks what is required: {lacking}"[:300])
            return self._convert(message)
        except self._errors as e:
            raise ValueError(f"the body is no message of the schema: {' '.join(str(e).split())}"[:300]) from None
        except (RecursionError, OverflowError, UnicodeDecodeError) as e:
            raise ValueError(f"the body cannot be shown: {type(e).__name__} {e}"[:300]) from None


class _Types:
    """Spark's types for message types, each with the function that makes values of parsed messages."""

    def __init__(self, recursion_max: int) -> None:
        self._recursion_max = recursion_max
        self._count = 0
        self.has_required = False

    def top(self, message: Descriptor) -> tuple[t.DataType, Convert]:
        """Return the type and the function of the message type that bodies have. Raises ConfigError."""
        found = self._message(message, ())
        if found is None:
            raise ConfigError(f"option decodeMessage: {message.full_name} has no field, so there is nothing to decode")
        return found

    def _message(self, message: Descriptor, above: tuple[str, ...]) -> tuple[t.DataType, Convert] | None:
        """Return the type and the conversion; None for one without columns."""
        name = message.full_name
        if name in _WRAPPERS:
            kind, convert = _scalar(message.fields_by_name["value"])
            return kind, (lambda one: one.value) if convert is None else (lambda one: convert(one.value))
        if name == _TIMESTAMP:
            return t.TimestampType(), _micros
        if name == _DURATION:
            return t.DayTimeIntervalType(), lambda one: one.seconds * 1_000_000 + int(one.nanos / 1000)
        if name in _AS_JSON:
            return t.StringType(), _json
        depth = above.count(name)
        if depth and not self._recursion_max:
            raise ConfigError(
                f"option decodeMessage: {shown(name)} lies within itself, and Spark has no such type: option"
                " recursiveFieldMaxDepth says how deep its columns go (1 to 15)"
            )
        if depth > self._recursion_max:
            return None
        columns = []
        for field in message.fields:
            self._count += 1
            self.has_required |= _is_required(field)
            if self._count > COLUMNS_MAX:
                raise ConfigError(
                    f"option decodeMessage: the message has more than {COLUMNS_MAX} columns: give a lower"
                    " recursiveFieldMaxDepth, or a message with fewer fields"
                )
            if (found := self._field(field, (*above, name))) is not None:
                columns.append((field.name, *found))
        if not columns:
            return None
        getters = [(column, get) for column, _, get in columns]
        kind = t.StructType([t.StructField(column, kind) for column, kind, _ in columns])
        return kind, lambda one: {column: get(one) for column, get in getters}

    def _value(self, field: Descriptor, above: tuple[str, ...]) -> tuple[t.DataType, Convert | None] | None:
        return self._message(field.message_type, above) if field.message_type is not None else _scalar(field)

    def _field(self, field: Descriptor, above: tuple[str, ...]) -> tuple[t.DataType, Convert] | None:
        name = field.name
        entry = field.message_type
        if _is_repeated(field) and entry is not None and entry.GetOptions().map_entry:
            return self._map(name, entry, above)
        found = self._value(field, above)
        if found is None:
            return None
        kind, convert = found
        if _is_repeated(field):
            if convert is None:
                return t.ArrayType(kind), lambda one: list(getattr(one, name))
            return t.ArrayType(kind), lambda one: [convert(value) for value in getattr(one, name)]
        if field.has_presence:
            # Of the class: a field may be called that too.
            if convert is None:
                return kind, lambda one: getattr(one, name) if type(one).HasField(one, name) else None
            return kind, lambda one: convert(getattr(one, name)) if type(one).HasField(one, name) else None
        if convert is None:
            return kind, lambda one: getattr(one, name)
        return kind, lambda one: convert(getattr(one, name))

    def _map(self, name: str, entry: Descriptor, above: tuple[str, ...]) -> tuple[t.DataType, Convert] | None:
        key, key_of = _scalar(entry.fields_by_name["key"])
        found = self._value(entry.fields_by_name["value"], above)
        if found is None:
            return None
        value, value_of = found
        # A read of a key that is not there would add it: items only.
        return t.MapType(key, value), lambda one: [
            (k if key_of is None else key_of(k), v if value_of is None else value_of(v))
            for k, v in getattr(one, name).items()
        ]


def _is_repeated(field: Descriptor) -> bool:
    # Newer packages have `is_repeated`; they warn of `label`.
    found = getattr(field, "is_repeated", None)
    return bool(found) if found is not None else field.label == field.LABEL_REPEATED


def _is_required(field: Descriptor) -> bool:
    found = getattr(field, "is_required", None)
    return bool(found) if found is not None else field.label == field.LABEL_REQUIRED


def _scalar(field: Descriptor) -> tuple[t.DataType, Convert | None]:
    kinds = {
        field.CPPTYPE_INT32: t.IntegerType(),
        field.CPPTYPE_UINT32: t.LongType(),
        field.CPPTYPE_INT64: t.LongType(),
        field.CPPTYPE_UINT64: t.DecimalType(20, 0),
        field.CPPTYPE_DOUBLE: t.DoubleType(),
        field.CPPTYPE_FLOAT: t.FloatType(),
        field.CPPTYPE_BOOL: t.BooleanType(),
    }
    if field.cpp_type == field.CPPTYPE_ENUM:
        names = {value.number: value.name for value in reversed(field.enum_type.values)}
        return t.StringType(), lambda number: names.get(number) or str(number)
    if field.cpp_type == field.CPPTYPE_STRING:
        return (t.BinaryType() if field.type == field.TYPE_BYTES else t.StringType()), None
    return kinds[field.cpp_type], None


def _micros(one: Any) -> int:
    micros = int(one.seconds * 1_000_000 + one.nanos // 1000)
    if not _SECONDS_MIN <= micros // 1_000_000 <= _SECONDS_MAX:
        raise OverflowError("a Timestamp lies outside of the years 1 to 9999")
    return micros


def _json(one: Any) -> str:
    from google.protobuf import json_format

    return str(json_format.MessageToJson(one, indent=None))


TEXT_BYTES_MAX = 4 << 20
DESCRIPTOR_BYTES_MAX = 16 << 20
MEMORY_BYTES_MAX = 2 << 30
COMPILE_S = 20.0
# The name that a registry has for none.
MAIN = "registered_schema.proto"
# Google's own are with the compiler.
_OWN = "google/protobuf/"

_COMPILE = """
import sys
folder, own, *names = sys.argv[1:]
try:
    import resource
    for name, most in (("AS", {memory}), ("FSIZE", {size}), ("CPU", {seconds})):
        resource.setrlimit(getattr(resource, "RLIMIT_" + name), (most, most))
except (ImportError, AttributeError, ValueError, OSError):
    pass
from grpc_tools import protoc
sys.exit(protoc.main(["protoc", "-I" + folder, "-I" + own, "--include_imports", "-o", folder + "/out", *names]))
"""


def is_text(schema: str) -> bool:
    """Tell whether a registry gave a schema's text, and not its descriptor in base64."""
    try:
        return not base64.b64decode(schema, validate=True)
    except (binascii.Error, ValueError):
        return True


def compiled_texts(files: Sequence[tuple[str, str]]) -> bytes:
    """Compile .proto texts to a FileDescriptorSet. `files`: the name that others import a text by, and the text; the
    last one is the schema itself, without a name.

    Raises ValueError with the compiler's first complaint, or with what to do if there is no compiler.
    """
    found = importlib.util.find_spec("grpc_tools")
    if found is None or not found.submodule_search_locations:
        raise ValueError(
            "the registry gives Protobuf only as text: pip install 'rocketspark[protoc]', on executors too, or give"
            " decodeDescriptorFile and decodeMessage"
        )
    if sum(len(text) for _, text in files) > TEXT_BYTES_MAX:
        raise ValueError(f"its text is longer than {TEXT_BYTES_MAX >> 20} MiB with what it imports")
    own = Path(found.submodule_search_locations[0]) / "_proto"
    with tempfile.TemporaryDirectory(prefix="rocketspark-proto-") as folder:
        for name, text in files:
            if not name.startswith(_OWN):
                _write(Path(folder), name or MAIN, text)
        return _compile(Path(folder), own)


def _write(folder: Path, name: str, text: str) -> None:
    parts = name.split("/")
    if not name.endswith(".proto") or not all(re.fullmatch(r"[\w@+-][\w.@+-]{0,99}", part, re.ASCII) for part in parts):
        raise ValueError(f"it imports {shown(name)!r}, which is no name of a .proto file")
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8", errors="replace")


def _compile(folder: Path, own: Path) -> bytes:
    code = _COMPILE.format(memory=MEMORY_BYTES_MAX, size=DESCRIPTOR_BYTES_MAX, seconds=int(COMPILE_S))
    # Without -P, Python would import what lies in the working folder.
    command = [sys.executable, "-P", "-c", code, str(folder), str(own), MAIN]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=COMPILE_S
        )
    except subprocess.TimeoutExpired:
        raise ValueError(f"its text takes more than {COMPILE_S:g} s to compile") from None
    except OSError as e:
        raise ConfigError(f"the compiler of Protobuf cannot be started: {e.strerror or e}") from None
    out = folder / "out"
    if done.returncode != 0 or not out.is_file():
        lines = done.stderr.decode("utf-8", "replace").replace(f"{folder}/", "").strip().splitlines()
        why = next((line for line in lines if line.startswith(MAIN) or ".proto:" in line), lines[-1] if lines else "")
        raise ValueError(f"its text does not compile: {shown(why or f'exit code {done.returncode}')}")
    return out.read_bytes()
