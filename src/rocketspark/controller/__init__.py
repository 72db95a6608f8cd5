"""A controller: who is master of each set of replicas, kept on disk, by one node or by a group that agrees.

Imports store, transport and protocol. Start with replicas_info (what is decided and why), then journal (how it
becomes durable) and group (how several agree on it), then handlers.
"""
