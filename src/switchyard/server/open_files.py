"""The limit of open files: each connection is one. Most systems start a service with 1,024 and allow it far more."""

from __future__ import annotations

import resource

import structlog

FILES_MAX = 1_000_000  # "unlimited" as a number
log = structlog.get_logger()


def raise_open_files() -> int:
    """Raise the soft limit to the hard one; return the limit that holds now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_MAX if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError) as exc:  # a sandbox may forbid it
            log.warning("the limit of open files stays as it is", limit=soft, hard=hard, error=str(exc))
    now = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    limit = FILES_MAX if now == resource.RLIM_INFINITY else min(now, FILES_MAX)
    log.info("open files", limit=limit, before=soft)
    return limit
