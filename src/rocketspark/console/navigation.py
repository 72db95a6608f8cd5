"""The order of the console's pages: what the navigation shows, and the modules of `pages/` that serve them."""

from __future__ import annotations

# Title and path.
NAVIGATION = (
    ("Overview", "/"),
    ("Topics", "/topics"),
    ("Messages", "/messages"),
    ("Groups", "/groups"),
    ("Clients", "/clients"),
    ("Dead letters", "/dead-letters"),
    ("Delayed and open", "/waiting"),
    ("Quarantine", "/quarantine"),
    ("Brokers", "/brokers"),
    ("Users and rules", "/users"),
)
MODULES = (
    *("overview", "topics", "topic", "topic_changes"),
    *("messages", "message", "groups", "clients", "dead_letters"),
    *("waiting", "quarantine", "brokers", "users"),
)
