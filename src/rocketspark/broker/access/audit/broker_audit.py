"""The audit of a broker, as its settings ask for it."""

from __future__ import annotations

import logging
from pathlib import Path

from rocketspark.access.audit.audit_log import FILE_NAME, Audit
from rocketspark.broker.access.audit.audited_requests import CHANGES, what
from rocketspark.broker.settings import BrokerSettings

log = logging.getLogger("rocketspark.broker")


def audit_of(settings: BrokerSettings) -> Audit | None:
    """Return the audit that the settings ask for; by default there is one where there is access control.

    Raises StoreUnwritable if its file cannot be opened.
    """
    if settings.audit_path == "off":
        return None
    path = Path(settings.audit_path) if settings.audit_path else None
    if path is None and (settings.acl or settings.authentication or settings.authorization):
        path = Path(settings.store_root) / FILE_NAME
    if path is None:
        return None
    audit = Audit(
        {"broker": settings.broker_name},
        path,
        changes=CHANGES,
        what=what,
        bytes_max=settings.audit_file_bytes,
        files_max=settings.audit_file_count,
    )
    audit.check()
    log.info("the audit goes to %s", path)
    return audit
