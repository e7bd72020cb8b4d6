"""Signed addresses to upload objects to S3. Length and SHA-256 of the object are signed headers, which S3 checks.

Not every service that speaks S3 checks them. So before the first address is given out, the service must show that it
refuses other bytes, and that it refuses to copy an object of somebody else in place of bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import http.client
import secrets
import ssl
import threading
import time
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import quote, urlsplit

import structlog

from switchyard.model.files.files import SignedUpload

# Objects that were uploaded, and that are not accepted yet. No folder: gateways to a file system remove a folder that
# becomes empty, also while another upload arrives there. Behind all hashes in the order of names.
INCOMING = "incoming-"
TRIAL_S = 10.0  # for one step of a request of the trial
TRIAL_VALID_S = 60
TRIAL_PAUSE_S = 60.0  # after a service that did not answer
TRIAL_BYTES = 32

log = structlog.get_logger()
ALGORITHM = "AWS4-HMAC-SHA256"
SERVICE = "s3"
VALID_S_MAX = 7 * 24 * 3600  # S3 refuses longer ones


class _TrialFailed(Exception):
    """The trial of a service came to no end; the text says why."""


def incoming_key(sender: str, digest: bytes) -> str:
    """Where an upload of this sender goes. No two senders share a key, so the key tells who had the content."""
    return f"{INCOMING}{hashlib.sha256(sender.encode()).hexdigest()[:32]}-{digest.hex()}"


@dataclass
class UploadSigner:
    """Signs uploads. `base`: the address of the bucket and the prefix, without a slash at the end."""

    base: str
    region: str
    keys: S3Keys
    _is_safe: bool | None = None  # None: not known yet
    _next_trial_s: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def sign(self, key: str, digest: bytes, size: int, *, valid_s: int) -> SignedUpload | None:
        """The address for one object. None: the service does not bind an upload to its content, or does not answer."""
        if self._is_safe is None:
            self._try_service()
        return self._signed(key, digest, size, valid_s=valid_s) if self._is_safe else None

    def _signed(self, key: str, digest: bytes, size: int, *, valid_s: int) -> SignedUpload:
        headers = {"content-length": str(size), "x-amz-checksum-sha256": b64encode(digest).decode()}
        return SignedUpload(self._address("PUT", key, headers, valid_s=valid_s), headers)

    def _address(self, method: str, key: str, headers: Mapping[str, str], *, valid_s: int) -> str:
        return signed_address(
            method,
            f"{self.base}/{key}",
            headers=headers,
            keys=self.keys,
            region=self.region,
            at=datetime.now(UTC),  # the service compares it with the time of the world
            valid_s=valid_s,
        )

    def _try_service(self) -> None:
        """Find out once whether the service is safe. Other threads do not wait for it: they get no address yet."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self._is_safe is not None or time.monotonic() < self._next_trial_s:
                return
            self._next_trial_s = time.monotonic() + TRIAL_PAUSE_S
            problem = self._problem()
            self._is_safe = not problem
            if problem:
                log.warning("large uploads pass through the server", reason=problem)
        except (OSError, http.client.HTTPException, _TrialFailed) as exc:
            reason = str(exc) if isinstance(exc, _TrialFailed) else getattr(exc, "strerror", None)
            log.warning("no signed addresses for uploads yet", reason=reason or type(exc).__name__)
        finally:
            self._lock.release()

    def _problem(self) -> str:
        """Why the service must not get uploads by signed addresses; empty: it may. Raises if that cannot be known."""
        good, bad = secrets.token_bytes(TRIAL_BYTES), secrets.token_bytes(TRIAL_BYTES)
        digest, absent = hashlib.sha256(good).digest(), hashlib.sha256(secrets.token_bytes(TRIAL_BYTES)).digest()
        sender = f"trial {secrets.token_hex(8)}"
        key, other_key = incoming_key(sender, digest), incoming_key(sender, absent)
        upload = self._signed(key, digest, TRIAL_BYTES, valid_s=TRIAL_VALID_S)
        other = self._signed(other_key, absent, TRIAL_BYTES, valid_s=TRIAL_VALID_S)
        source = {"x-amz-copy-source": f"{urlsplit(self.base).path}/{key}"}
        try:
            if not _is_taken(upload, good):
                raise _TrialFailed("the object store refuses the server's own upload")
            if _is_taken(other, bad):
                return "the object store does not check the SHA-256 of an upload"
            if _is_taken(other, bad, source):
                return "the object store takes a copy of another object where it should take bytes"
            return ""
        finally:
            for name in (key, other_key):
                with contextlib.suppress(OSError, http.client.HTTPException):  # the leader removes it later
                    _call("DELETE", self._address("DELETE", name, {}, valid_s=TRIAL_VALID_S), {}, None)


def _is_taken(upload: SignedUpload, data: bytes, more_headers: Mapping[str, str] | None = None) -> bool:
    status = _call("PUT", upload.url, {**upload.headers, **(more_headers or {})}, data)
    if status >= 500:
        raise _TrialFailed(f"the object store answered {status}")
    return 200 <= status < 300


def _call(method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> int:
    parts = urlsplit(url)
    if parts.scheme == "https":
        tls = ssl.create_default_context()
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(parts.netloc, timeout=TRIAL_S, context=tls)
    else:
        connection = http.client.HTTPConnection(parts.netloc, timeout=TRIAL_S)
    try:
        connection.request(method, f"{parts.path}?{parts.query}", body, dict(headers))
        return connection.getresponse().status
    finally:
        connection.close()


@dataclass(frozen=True)
class S3Keys:
    """The keys that signatures are made with. They are never shown."""

    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)
    session_token: str = field(default="", repr=False)


def signed_address(
    method: str, url: str, *, headers: Mapping[str, str], keys: S3Keys, region: str, at: datetime, valid_s: int
) -> str:
    """The URL with a signature for this method, these headers (lower-case names) and so many seconds.

    It is AWS Signature Version 4, in the query. obstore signs method, path and time only. An upload must also be bound
    to its bytes, so its length and SHA-256 are signed headers here:
    https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-query-string-auth.html
    """
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
