"""Operation of the broker: metrics, settings that change while it runs, registration at the NameServers.

Imports the other parts of the broker, but no handlers. Start with metrics.
"""
