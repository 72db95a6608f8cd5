"""Receive and acknowledge messages one by one, with more workers than queues."""
