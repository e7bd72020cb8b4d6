"""Turns an HTTP error response into an exception, from our server, a proxy or a foreign server."""

from __future__ import annotations

import re

import msgspec

from switchyard import errors
from switchyard.decoder_warmup import warm_type
from switchyard.errors import YardError
from switchyard.model.wire.api import Problem

EXCERPT_CHARS_MAX = 200  # of a foreign response's body: enough to recognise its sender

# For responses without our error code. Gateways send 502 and 504 when the server behind them is away.
ERRORS_BY_STATUS: dict[int, type[YardError]] = {
    400: errors.BadRequest,
    401: errors.Unauthenticated,
    403: errors.Denied,
    404: errors.NotFound,
    409: errors.Conflict,
    410: errors.Gone,
    413: errors.TooLarge,
    415: errors.WrongMedia,
    422: errors.PolicyRefused,
    429: errors.Busy,
    502: errors.Unavailable,
    503: errors.Unavailable,
    504: errors.Unavailable,
}


def read_problem(status: int, body: bytes, *, url: str) -> YardError:
    """Return the exception of an HTTP error response."""
    warm_type(Problem)
    try:
        problem = msgspec.json.decode(body, type=Problem)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _foreign_answer_error(status, body, url=url)
    kind = errors.ERRORS_BY_CODE.get(problem.code) or _error_of_status(status)
    return kind(problem.detail or problem.title, next_step=problem.next_step)


def _foreign_answer_error(status: int, body: bytes, *, url: str) -> YardError:
    words = re.sub(r"<[^>]*>|[\x00-\x20\x7f]+", " ", body[: 16 * EXCERPT_CHARS_MAX].decode(errors="replace"))
    excerpt = " ".join(words.split())[:EXCERPT_CHARS_MAX]
    quoted = f": {excerpt}" if excerpt else ""
    kind = _error_of_status(status)
    check = f"Check that {url} is a Switchyard server (--server, YARD_URL), or look at the proxy before it."
    return kind(f"{url} answered {status}, and not as a Switchyard server does{quoted}", next_step=check)


def _error_of_status(status: int) -> type[YardError]:
    if status in ERRORS_BY_STATUS:
        return ERRORS_BY_STATUS[status]
    if 400 <= status < 500:
        return errors.BadRequest
    return errors.Internal if status >= 500 else YardError
