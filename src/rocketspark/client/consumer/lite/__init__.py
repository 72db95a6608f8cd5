"""Consumers of lite topics, the small topics below one parent topic (RocketMQ 5.5). Start with lite_simple_consumer."""
