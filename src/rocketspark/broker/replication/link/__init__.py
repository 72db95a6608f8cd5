"""The link over which a master sends its log to a slave, in both of RocketMQ's protocols (classic and switching).

Start with links: the protocol of both ends, without a socket, and where a slave's log is cut to its master's.
ha_listener is the master's port, ha_client the slave's connection.
"""
