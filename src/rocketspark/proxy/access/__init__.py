"""Access control 2.0 of calls: who signed, and what he may do. Start with control."""
