"""The doctor's comparison of this machine's clock with the API server's.

This clock decides whether the API server's certificate is valid. Tokens and client certificates are judged by the API
server's own clock, and the agent goes by it for the times of jobs.
"""

from __future__ import annotations

import email.utils
import http.client
import ssl
import time
from contextlib import closing
from typing import Any

import msgspec

from switchyard.agent.feature import Finding
from switchyard.features.kubernetes.agent.api.connection import ApiAccess

CALL_S_MAX = 10.0  # for one call
SKEW_S_MAX = 5.0  # a larger skew is told: machines with an NTP service differ by far less
NOT_YET_VALID, EXPIRED = 9, 10  # X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED of OpenSSL
SET_CLOCKS = "Set the clocks: run an NTP service on both machines."
VERSION_BYTES_MAX = 1024 * 1024


def ask_version(access: ApiAccess) -> tuple[dict[str, Any], float | None]:
    """The answer of /version, and the server's time from its header Date."""
    return _ask_version(access, access.tls, bearer=access.bearer)


def clock_finding(date: float, begun: float, ended: float) -> Finding:
    """`date`: the API server's time in an answer to a request that lasted from `begun` to `ended` by this clock."""
    skew_s, is_right = _skew(date, begun, ended)
    means = (
        "By this clock, a new certificate of the API server is not valid yet."
        if skew_s > 0
        else "By this clock, the API server's certificate expires before its time."
    )
    advice = "" if is_right else f"{SET_CLOCKS} {means} Tokens go by the API server's clock."
    return Finding("kubernetes-clock", is_right, f"this clock is {_skew_words(skew_s)}", advice)


def certificate_finding(access: ApiAccess, exc: ssl.SSLCertVerificationError) -> Finding:
    """Why the API server's certificate is not accepted: this clock, or the certificate itself."""
    url = access.address.url
    if exc.verify_code not in (NOT_YET_VALID, EXPIRED):
        advice = "Check the address, the certificate and the firewall between this machine and the API server."
        return Finding("kubernetes", False, f"{url}: {exc}", advice)
    what = "is not valid yet" if exc.verify_code == NOT_YET_VALID else "has expired"
    begun = time.time()
    date = _unverified_date(access)
    skew_s, is_right = _skew(date, begun, time.time()) if date is not None else (0.0, True)
    if is_right or (skew_s > 0) != (exc.verify_code == NOT_YET_VALID):
        return Finding("kubernetes", False, f"{url}: its certificate {what}", "Renew the API server's certificate.")
    detail = f"{url}: this clock is {_skew_words(skew_s)}, and by this clock the server's certificate {what}"
    return Finding("kubernetes-clock", False, detail, f"{SET_CLOCKS} Until then the agent cannot reach the cluster.")


def _skew(date: float, begun: float, ended: float) -> tuple[float, bool]:
    """How far this clock is behind, and whether that is little. The header Date has whole seconds."""
    skew_s = date - (begun + ended) / 2
    return skew_s, abs(skew_s) - (ended - begun) / 2 - 1 <= SKEW_S_MAX


def _skew_words(skew_s: float) -> str:
    return f"{abs(skew_s):.0f} s {'behind' if skew_s > 0 else 'ahead of'} the API server's"


def _unverified_date(access: ApiAccess) -> float | None:
    """The time of a server whose certificate is not accepted. It gets no credential, and decides only some words."""
    tls = ssl.create_default_context()
    tls.check_hostname = False
    tls.verify_mode = ssl.CERT_NONE
    try:
        return _ask_version(access, tls, bearer="")[1]
    except (OSError, http.client.HTTPException):
        return None


def _ask_version(access: ApiAccess, tls: ssl.SSLContext | None, *, bearer: str) -> tuple[dict[str, Any], float | None]:
    address = access.address
    with closing(http.client.HTTPConnection(address.host, address.port, timeout=CALL_S_MAX)) as line:
        line.connect()
        assert line.sock is not None
        if tls is not None:
            line.sock = tls.wrap_socket(line.sock, server_hostname=access.tls_name)
        headers = {"Authorization": f"Bearer {bearer}"} if bearer else {}
        line.request("GET", f"{address.path}/version", headers=headers)
        answer = line.getresponse()
        body, date = answer.read(VERSION_BYTES_MAX), answer.headers.get("Date")
    try:
        version = msgspec.json.decode(body, type=dict[str, Any]) if answer.status == http.client.OK else {}
    except (msgspec.DecodeError, UnicodeDecodeError):
        version = {}
    return version, _timestamp(date)


def _timestamp(date: str | None) -> float | None:
    try:
        return email.utils.parsedate_to_datetime(date).timestamp() if date else None
    except ValueError:
        return None
