"""Observers of a client: message traces, OpenTelemetry, consume statistics.

Imports client.hooks. Start with message_trace.
"""
