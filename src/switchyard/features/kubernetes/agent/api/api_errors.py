"""Failures of the Kubernetes API.

- `ApiRefusal`: the API server answered and detail no (4xx). Asking again gives the same answer.
- `ApiUnavailable` (transient): no answer, an incomplete one, 429 or 5xx. A create may have been carried out all the
  same, unless `is_unsent`.
- `ApiUnavailable` with `http_status` 401: the credential is not accepted. The credential's files are read again, so
  this ends when they are renewed.
"""

from __future__ import annotations

import http.client
import re

from switchyard.errors import Unavailable, YardError

TRANSIENT_STATUSES = frozenset({http.client.REQUEST_TIMEOUT, http.client.TOO_MANY_REQUESTS})
RIGHT_MISSING = re.compile(r'cannot \w+ (resource|path) "')


def is_transient(status: int) -> bool:
    """Whether the same request may succeed later."""
    return status >= http.client.INTERNAL_SERVER_ERROR or status in TRANSIENT_STATUSES


class ApiRefusal(YardError):
    """The Kubernetes API refused the request."""

    default_next = "Correct what the message names, then try again."

    def __init__(self, status: int, reason: str, message: str, *, request: str = "") -> None:
        """`request`: the verb and the path, such as `create /apis/batch/v1/namespaces/x/jobs`."""
        self.http_status = status
        self.reason = reason
        self.message = message
        detail = message or reason or "no reason given"
        super().__init__(f"Kubernetes refused to {request or 'do this'} ({status} {reason}): {detail}")

    @property
    def is_right_missing(self) -> bool:
        """Whether the agent's account lacks a right. The message then names verb, resource and namespace."""
        return self.http_status == http.client.FORBIDDEN and bool(RIGHT_MISSING.search(self.message))

    @property
    def is_absent(self) -> bool:
        return self.http_status == http.client.NOT_FOUND

    @property
    def is_conflict(self) -> bool:
        return self.http_status == http.client.CONFLICT

    @property
    def is_expired(self) -> bool:
        """Whether a watch or a list must begin again with a full list."""
        return self.http_status == http.client.GONE


class ApiUnavailable(Unavailable):
    """The Kubernetes API did not answer, or not completely."""

    default_next = "Check the API server's address and that it runs (`kubectl get --raw /readyz`)."

    def __init__(self, detail: str, *, http_status: int = 0, is_unsent: bool = False, next_step: str = "") -> None:
        super().__init__(detail, next_step=next_step)
        self.http_status = http_status  # 0: there was no answer
        self.is_unsent = is_unsent  # surely nothing was carried out
