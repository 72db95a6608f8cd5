"""The gRPC protocol's messages, made of messaging.proto, our own definition of them, and HTTP/2 below them.

Start with messages.
"""
