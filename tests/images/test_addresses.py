"""Which addresses the server connects to for a registry."""

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest

from switchyard.errors import PolicyRefused, Unavailable
from switchyard.features.images.registry.exchange import Address, is_public, resolve_once

HIDDEN = """
127.0.0.1 10.1.2.3 172.16.0.1 192.168.0.1 169.254.169.254 100.64.0.1 0.0.0.0 224.0.0.1 255.255.255.255
::1 :: fe80::1%eth0 fd00::1 ::ffff:127.0.0.1 ::ffff:10.0.0.1 64:ff9b::7f00:1 2002:7f00:1:: ff02::1
"""


@pytest.mark.parametrize("address", HIDDEN.split())
def test_addresses_that_are_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "2001:4860:4860::8888", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_public_addresses(address: str) -> None:
    assert is_public(address)


def rows(*addresses: str) -> Any:
    return lambda host, port, **_: [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (each, port)) for each in addresses]


def test_one_address_that_is_not_public_refuses_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name server may give a public address first and a private one for the connection."""
    monkeypatch.setattr(socket, "getaddrinfo", rows("8.8.8.8", "10.0.0.1"))
    with pytest.raises(PolicyRefused, match=r"10\.0\.0\.1"):
        resolve_once("registry.example", 443, is_private=False, timeout_s=5)
    assert resolve_once("registry.example", 443, is_private=True, timeout_s=5) == ("8.8.8.8", 443)


def test_a_name_server_that_hangs_or_knows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **named: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    with pytest.raises(Unavailable, match="not known"):
        resolve_once("registry.example", 443, is_private=True, timeout_s=5)
    answer = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answer.wait())
    with pytest.raises(Unavailable, match="was not resolved"):
        resolve_once("registry.example", 443, is_private=True, timeout_s=0.01)
    answer.set()


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://r.example/v2/", "r.example"),
        ("https://R.Example:443/v2/", "r.example"),
        ("https://r.example:5000/", "r.example:5000"),
        ("https://[2001:db8::1]:5000/", "[2001:db8::1]:5000"),
        ("http://r.example/", None),  # the registry is asked by https
        ("https://user@r.example/", None),
        ("https://r.example:x/", None),
        ("https:///v2", None),
        ("file:///etc/passwd", None),
        ("//r.example/", None),
        ("https://r.example/" + "a" * 9000, None),
    ],
)
def test_addresses_of_redirects(url: str, host: str | None) -> None:
    found = Address.read(url, is_plain_http=False)
    assert (None if found is None else found.host) == host
