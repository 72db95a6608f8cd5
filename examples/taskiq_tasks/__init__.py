"""taskiq on RocketMQ with two workers."""
