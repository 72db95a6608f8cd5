#!/usr/bin/env bash
# Makes src/rocketspark/proxy/wire/messaging.binpb from the .proto files beside it. Needs grpcio-tools:
#   pip install grpcio-tools && scripts/make_proxy_descriptors.sh
set -euo pipefail
cd "$(dirname "$0")/../src/rocketspark/proxy/wire"
"${PYTHON:-python3}" -m grpc_tools.protoc -I. --include_imports --descriptor_set_out=messaging.binpb \
  apache/rocketmq/v2/definition.proto apache/rocketmq/v2/service.proto apache/rocketmq/v2/admin.proto
