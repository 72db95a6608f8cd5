"""Replication between the brokers of one name: who is what, who refuses what, what an answer waits for.

Start with role; link carries the log, tables what a slave takes beside it.
"""
