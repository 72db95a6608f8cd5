"""The NameServer: a registry of live brokers and their topics.

Imports transport and protocol. Start with registry, then handlers.
"""
