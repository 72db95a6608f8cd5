"""The broker: a server over the store that speaks RocketMQ.

Imports store, transport, filters and protocol. Start with server, which builds the parts.
"""
