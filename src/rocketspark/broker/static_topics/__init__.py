"""Static topics: the table of their mappings, requests for logical queues, and the other brokers that hold parts.

Start with logical_queues.
"""
