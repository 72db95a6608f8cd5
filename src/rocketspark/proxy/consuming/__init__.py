"""What consumers ask of the proxy: messages received for a time, and what became of each. Start with receive."""
