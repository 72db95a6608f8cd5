"""The gRPC protocol's messages, made from Apache's .proto files (see LICENSE and NOTICE). Start with messages."""
