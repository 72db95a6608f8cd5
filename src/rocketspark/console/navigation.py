"""The order of the console's pages: what the navigation shows, and the modules of `pages/` that serve them."""

from __future__ import annotations

# Title and path.
NAVIGATION = (
    ("Overview", "/"),
    ("Topics", "/topics"),
)
MODULES = ("overview", "topics", "topic", "topic_changes")
