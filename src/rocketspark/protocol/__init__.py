"""RocketMQ's wire and disk formats: bytes to values and back, no I/O.

Imports model. Start with frames, then headers and message.record.
"""
