"""Our definition of the protocol, field by field beside the one that the official Python client was made with."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest
from tests.v5.conftest import need
from tests.v5.drivers import PYTHON

from rocketspark.proxy.wire import messages

pytestmark = pytest.mark.shows("own definition of the gRPC protocol")

# Runs in the client's own environment, and in ours: all that is on the wire.
FACTS = """
def facts(files):
    found = {}
    def message(one):
        for field in one.fields:
            kind = field.message_type or field.enum_type
            found[f"{one.name}.{field.number}"] = [
                field.name, field.type, kind.name if kind else "", field.has_presence,
                field.containing_oneof.name if field.containing_oneof else "",
            ]
        for nested in one.nested_types:
            message(nested)
    for file in files:
        for one in file.message_types_by_name.values():
            message(one)
        for one in file.enum_types_by_name.values():
            found[one.name] = {value.name: value.number for value in one.values}
        for service in file.services_by_name.values():
            for method in service.methods:
                found[method.full_name] = [
                    method.input_type.name, method.output_type.name, method.client_streaming, method.server_streaming
                ]
    return found
"""
THEIRS = """
import json
from rocketmq.grpc_protocol import definition_pb2, service_pb2
print(json.dumps(facts([definition_pb2.DESCRIPTOR, service_pb2.DESCRIPTOR])))
"""


def test_every_field_of_the_official_client_s_definition_is_ours() -> None:
    need("python")
    told = subprocess.run([PYTHON, "-c", FACTS + THEIRS], check=True, capture_output=True, text=True, timeout=300)
    theirs = json.loads(told.stdout)
    made: dict[str, Any] = {}
    exec(FACTS, made)
    ours = json.loads(json.dumps(made["facts"]([messages.pool().FindFileByName("messaging.proto")])))
    assert len(theirs) > 200
    # It is older than 5.5.0: a field or a number may be missing there.
    for name, fact in theirs.items():
        if isinstance(fact, dict):
            assert fact.items() <= ours[name].items(), name
        else:
            assert ours[name] == fact, name
