"""The gRPC protocol's messages, made of messaging.proto, our own definition of them. Start with messages."""
