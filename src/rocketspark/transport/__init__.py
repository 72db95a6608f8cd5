"""Connections on which both sides may send requests: asyncio over frames.

Imports protocol. Start with peer.
"""
