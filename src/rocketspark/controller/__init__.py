"""A controller of one node: who is master of each set of replicas, kept on disk.

Imports store, transport and protocol. Start with replicas_info (what is decided and why), then journal (how it
becomes durable), then handlers.
"""
