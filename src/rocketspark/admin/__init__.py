"""An operator's work on a cluster, from Python.

Imports client. Start with operations.
"""
