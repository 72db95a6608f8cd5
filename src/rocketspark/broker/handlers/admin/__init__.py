"""What operators and other brokers ask of a broker.

Start with admin_broker.
"""
