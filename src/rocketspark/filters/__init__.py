"""SQL92 filter expressions, as RocketMQ understands them.

Imports protocol. Start with sql92.
"""
