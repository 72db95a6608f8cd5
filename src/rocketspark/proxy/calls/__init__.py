"""Calls of gRPC: what serves each, what a call is, how it ends, how long it takes.

Start with service.
"""
