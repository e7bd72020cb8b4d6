"""The limit of open files: each connection needs one. Most systems start a service with 1,024 and allow far more."""

from __future__ import annotations

import resource

import structlog

FILES_MAX = 1_000_000  # "unlimited" as a number
log = structlog.get_logger()


def raise_open_files() -> int:
    """Raise the soft limit to the hard limit. Returns the limit in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = FILES_MAX if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < limit:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        except (OSError, ValueError) as exc:  # a sandbox may forbid it
            log.warning("the limit of open files stays as it is", limit=soft, hard=hard, error=str(exc))
    now = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    limit = FILES_MAX if now == resource.RLIM_INFINITY else min(now, FILES_MAX)
    log.info("open files", limit=limit, before=soft)
    return limit
