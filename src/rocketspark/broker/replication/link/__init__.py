"""The HA link: a master sends the bytes of its log, a slave appends them, in both protocols.

Start with ha_listener (the master's port) and ha_client (the slave's end); the links themselves know no sockets.
"""
