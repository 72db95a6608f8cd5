"""The file of what a server refused and what operators changed. Start with audit_log."""
