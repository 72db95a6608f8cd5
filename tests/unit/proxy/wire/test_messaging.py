"""The definition of the gRPC protocol: what is made of it, and what RocketMQ 5's official clients wrote by theirs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2
from tests.v5 import recorded

import rocketspark.proxy.wire
from rocketspark.proxy.wire import enumerations, messages

pytestmark = pytest.mark.shows("own definition of the gRPC protocol")

HERE = Path(rocketspark.proxy.wire.__file__).parent
RECORDED = recorded.load()


def test_the_descriptors_are_made_of_the_definition(tmp_path: Path) -> None:
    """After a change of messaging.proto: `make wire`."""
    made = tmp_path / "made"
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", str(HERE), "--include_imports"]
    subprocess.run([*command, f"--descriptor_set_out={made}", "messaging.proto"], check=True, timeout=300)
    files = {file.name: file for file in descriptor_pb2.FileDescriptorSet.FromString(made.read_bytes()).file}
    assert {file.name: file for file in messages.file_set().file} == files


def test_the_enumerations_are_the_definition_s() -> None:
    file = messages.pool().FindFileByName("messaging.proto")
    for name in ("Code", "ClientType", "MessageType", "Permission", "Encoding", "DigestType", "AddressScheme"):
        numbers = {value.name: value.number for value in file.enum_types_by_name[name].values}
        assert {one.name: one.value for one in getattr(enumerations, name)} == numbers


@pytest.mark.parametrize("client", RECORDED)
def test_what_official_clients_wrote_is_read_and_written_byte_for_byte(client: str) -> None:
    for kind, found in RECORDED[client].items():
        for data in found:
            message = getattr(messages, kind).FromString(data)
            message.DiscardUnknownFields()
            written = message.SerializeToString(deterministic=True)
            # Go's client writes what is one of several behind all others.
            assert written == data or (client == "go" and sorted(written) == sorted(data)), (kind, data.hex())


def test_they_show_what_clients_say() -> None:
    """So that the test above means something."""
    said: dict[str, set[str]] = {}
    for kinds in RECORDED.values():
        for kind, found in kinds.items():
            for data in found:
                said.setdefault(kind, set()).update(recorded.fields_of(getattr(messages, kind).FromString(data)))
    assert {kind: len(names) for kind, names in said.items()} == {
        "AckMessageRequest": 7,
        "ChangeInvisibleDurationRequest": 8,
        "EndTransactionRequest": 6,
        "HeartbeatRequest": 3,
        "QueryAssignmentRequest": 9,
        "QueryRouteRequest": 7,
        "RecallMessageRequest": 3,
        "ReceiveMessageRequest": 25,
        "SendMessageRequest": 19,
        "TelemetryCommand": 39,
    }
