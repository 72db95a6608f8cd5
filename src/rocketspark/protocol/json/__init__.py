"""JSON bodies of requests and replies, and RocketMQ's dialect of JSON.

Start with bodies.
"""
