"""The order of the console's pages: what the navigation shows, and the modules of `pages/` that serve them."""

from __future__ import annotations

from collections.abc import Callable

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
# Title, path, and the setting without which it is not shown.
OF_APPLICATIONS = (
    ("Spark streams", "/streams", "spark_streams"),
    ("Outbox", "/outboxes", "outbox"),
    ("Deduplication", "/deduplication", "dedupe"),
)
MODULES = (
    *("overview", "topics", "topic", "topic_changes"),
    *("messages", "message", "groups", "clients", "dead_letters"),
    *("waiting", "quarantine", "brokers", "users"),
    *("applications.streams", "applications.tables"),
)


def navigation_of(is_given: Callable[[str], object]) -> list[tuple[str, str]]:
    """Return title and path of each page that the navigation of a console shows. `is_given`: tells whether a setting
    is.
    """
    return [*NAVIGATION, *((title, path) for title, path, setting in OF_APPLICATIONS if is_given(setting))]
