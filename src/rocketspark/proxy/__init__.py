"""RocketMQ 5's gRPC protocol before any cluster: a process of its own, which talks to brokers by remoting requests.

Start with server: the parts, and which of them serves which call.
"""
