"""Signed addresses of S3 (AWS Signature Version 4, in the query). Pure: the caller gives the time.

obstore signs method, path and time only. An upload must also be bound to its bytes, so its length and SHA-256 are
signed headers here: https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-query-string-auth.html
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from urllib.parse import quote, urlsplit

ALGORITHM = "AWS4-HMAC-SHA256"
SERVICE = "s3"
VALID_S_MAX = 7 * 24 * 3600  # S3 refuses longer ones


@dataclass(frozen=True)
class S3Keys:
    """The keys that signatures are made with. They are never shown."""

    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)
    session_token: str = field(default="", repr=False)


def signed_address(
    method: str, url: str, *, headers: Mapping[str, str], keys: S3Keys, region: str, at: datetime, valid_s: int
) -> str:
    """The URL with a signature for this method, these headers (lower-case names) and so many seconds."""
    parts = urlsplit(url)
    signed_headers = {**headers, "host": parts.netloc}
    stamp, day = at.strftime("%Y%m%dT%H%M%SZ"), at.strftime("%Y%m%d")
    scope = f"{day}/{region}/{SERVICE}/aws4_request"
    query = {
        "X-Amz-Algorithm": ALGORITHM,
        "X-Amz-Credential": f"{keys.access_key}/{scope}",
        "X-Amz-Date": stamp,
        "X-Amz-Expires": str(min(valid_s, VALID_S_MAX)),
        "X-Amz-SignedHeaders": ";".join(sorted(signed_headers)),
    }
    if keys.session_token:
        query["X-Amz-Security-Token"] = keys.session_token
    canonical_query = "&".join(f"{_quoted(name)}={_quoted(query[name])}" for name in sorted(query))
    request = "\n".join(
        [
            method,
            parts.path,
            canonical_query,
            *(f"{name}:{signed_headers[name].strip()}" for name in sorted(signed_headers)),
            "",
            ";".join(sorted(signed_headers)),
            "UNSIGNED-PAYLOAD",
        ]
    )
    text = "\n".join([ALGORITHM, stamp, scope, hashlib.sha256(request.encode()).hexdigest()])
    signature = hmac.new(_signing_key(keys, day, region), text.encode(), hashlib.sha256).hexdigest()
    return f"{url}?{canonical_query}&X-Amz-Signature={signature}"


def _signing_key(keys: S3Keys, day: str, region: str) -> bytes:
    key = f"AWS4{keys.secret_key}".encode()
    for part in (day, region, SERVICE, "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key


def _quoted(text: str) -> str:
    return quote(text, safe="-_.~")
