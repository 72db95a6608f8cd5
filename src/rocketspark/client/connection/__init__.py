"""A client's way to NameServers and brokers: its instance, its routes, the calls on one broker.

Imports no producer and no consumer. Start with instance, then topic_routes (which NameServer is asked,
and the next one when it is down) and client_api.
"""
