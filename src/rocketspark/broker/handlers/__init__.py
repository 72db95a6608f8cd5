"""Request handlers, one file for each kind of request, named as RocketMQ's processors are.

Imports the other parts of the broker. Start with send_message and pull_message.
"""
