"""Replication between the brokers of one name: what a slave takes from its master and refuses to clients.

Imports broker.consumers, broker.messages and broker.storage. Start with slave_synchronize,
for the link that carries the log with ha_listener (master) and ha_client (slave).
"""
