"""Who may do what: access control 2.0, for brokers and for proxies before them.

Start with access_control (the check of a request), then request_contexts (what each needs).
"""
