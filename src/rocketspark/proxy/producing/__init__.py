"""What producers ask of the proxy: sends, ends of transactions, recalls. Start with send, then transactions."""
