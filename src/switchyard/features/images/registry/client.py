"""The part of the OCI distribution API that reads: manifests, blobs and referrers of one registry, for one image.

Every host that is asked is the registry's own or one that its entry lists; redirects and token services, too. What a
digest names is compared with it. A client lives for one image: its deadline and its number of requests are bounds.
"""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Mapping
from hashlib import sha256
from typing import NamedTuple
from urllib.parse import quote, urlencode, urljoin

from msgspec import Struct

from switchyard.errors import Malformed, NotFound, PolicyRefused, Unavailable
from switchyard.features.images.model.manifests import (
    INDEX_TYPES,
    MANIFEST_TYPES,
    ImageDescriptor,
    ImageManifest,
    read_manifest,
)
from switchyard.features.images.registry.exchange import Address, RegistryAnswer, get
from switchyard.features.images.registry.listed import ListedRegistry
from switchyard.model.wire.decode import decode_json

MANIFEST_BYTES_MAX = 4 * 2**20  # registries refuse larger manifests
BLOB_BYTES_MAX = 2**20  # of configurations and artifacts; layers are never read
TOKEN_BYTES_MAX = 64 * 1024
REQUESTS_MAX = 60  # for one image, with redirects and tokens
REDIRECTS_MAX = 3
REDIRECTS = frozenset({301, 302, 303, 307, 308})
TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
ACCEPT = ", ".join((*INDEX_TYPES, *MANIFEST_TYPES))
_PARAMETER = re.compile(r'([a-zA-Z]+)="([^"]{0,2000})"')


class ReadManifest(NamedTuple):
    digest: str
    manifest: ImageManifest


class _TokenAnswer(Struct, frozen=True):
    token: str = ""
    access_token: str = ""


class RegistryClient:
    """Used by one thread."""

    def __init__(self, registry: ListedRegistry, repository: str, *, timeout_s: float) -> None:
        self._registry, self._repository = registry, repository
        self._deadline = time.monotonic() + timeout_s
        self._requests = 0
        self._authorization = f"Bearer {registry.token}" if registry.token else ""

    def manifest(self, reference: str) -> ReadManifest:
        """The manifest of a tag or a digest, and its digest. Raises NotFound if there is none."""
        path, shown = f"manifests/{reference}", f"{self._repository}:{reference}"
        answer = self._ask(path, bytes_max=MANIFEST_BYTES_MAX, accept=ACCEPT)
        if answer is None:
            raise NotFound(
                f"The registry {self._registry.host} has no image {shown[:200]!r}.",
                next_step="Check repository and tag; a private one needs credentials in images.registries.",
            )
        digest = f"sha256:{sha256(answer.body).hexdigest()}"
        told = reference if reference.startswith("sha256:") else answer.headers.get("docker-content-digest", digest)
        if told != digest:
            raise self._lie(told)
        return ReadManifest(digest, read_manifest(answer.body, where=f"the manifest of {shown[:200]}"))

    def blob(self, descriptor: ImageDescriptor) -> bytes:
        if descriptor.size > BLOB_BYTES_MAX:
            raise Malformed(f"{descriptor.digest[:19]}… has {descriptor.size:,} bytes; metadata has few.")
        answer = self._ask(f"blobs/{descriptor.digest}", bytes_max=BLOB_BYTES_MAX, accept="*/*")
        if answer is None:
            raise NotFound(
                f"The registry {self._registry.host} has no blob {descriptor.digest[:19]}…, which a manifest names."
            )
        if f"sha256:{sha256(answer.body).hexdigest()}" != descriptor.digest:
            raise self._lie(descriptor.digest)
        return answer.body

    def referrers(self, digest: str) -> list[ImageDescriptor]:
        """What refers to a manifest. Registries without that call have an index under a tag made of the digest."""
        answer = self._ask(f"referrers/{digest}", bytes_max=MANIFEST_BYTES_MAX, accept=INDEX_TYPES[0])
        if answer is None:
            tag = digest.replace(":", "-")
            answer = self._ask(f"manifests/{tag}", bytes_max=MANIFEST_BYTES_MAX, accept=INDEX_TYPES[0])
        if answer is None:
            return []
        return read_manifest(answer.body, where=f"the referrers of {digest[:19]}…").manifests or []

    def _ask(self, path: str, *, bytes_max: int, accept: str) -> RegistryAnswer | None:
        """Ask the API, with a token if it wants one; follow redirects to listed hosts. None: there is no such thing."""
        registry = self._registry
        address = Address(registry.address, f"/v2/{self._repository}/{quote(path, safe='/:')}")
        for _ in range(REDIRECTS_MAX + 2):
            headers = {"Accept": accept}
            if self._authorization and address.host == registry.address:
                headers["Authorization"] = self._authorization
            answer = self._get(address, headers, bytes_max=bytes_max)
            if answer.status == 200:
                return answer
            if answer.status == 404:
                return None
            if answer.status == 401 and not self._authorization and address.host == registry.address:
                self._authorization = self._authorize(answer.headers.get("www-authenticate", ""))
            elif answer.status in REDIRECTS:
                address = self._redirected(address, answer.headers.get("location", ""))
            else:
                raise self._failure(answer.status)
        raise PolicyRefused(f"The registry {registry.host} redirects more than {REDIRECTS_MAX} times.")

    def _get(self, address: Address, headers: Mapping[str, str], *, bytes_max: int) -> RegistryAnswer:
        self._requests += 1
        if self._requests > REQUESTS_MAX:
            raise Malformed(
                f"The image {self._repository} needs over {REQUESTS_MAX} requests: its metadata is too deep."
            )
        return get(self._registry, address, headers, bytes_max=bytes_max, deadline=self._deadline)

    def _redirected(self, before: Address, location: str) -> Address:
        scheme = "http" if self._registry.is_plain_http else "https"
        url = urljoin(f"{scheme}://{before.host}{before.target}", location)
        address = Address.read(url, is_plain_http=self._registry.is_plain_http)
        if address is None or address.host not in self._registry.blob_hosts:
            raise self._stranger("redirects to", url, "blobs")
        return address

    def _authorize(self, challenge: str) -> str:
        """The value of Authorization that the challenge asks for: a token of a listed service, or the password."""
        registry = self._registry
        scheme, _, rest = challenge.partition(" ")
        password = base64.b64encode(f"{registry.user}:{registry.password}".encode()).decode() if registry.user else ""
        if scheme.lower() == "basic" and password:
            return f"Basic {password}"
        parameters = dict(_PARAMETER.findall(rest))
        realm = parameters.get("realm", "")
        if scheme.lower() != "bearer" or not realm:
            raise PolicyRefused(
                f"The registry {registry.host} wants credentials and does not say which way (401 without a realm).",
                next_step="An administrator gives it `credentials_file` in images.registries.",
            )
        address = Address.read(realm, is_plain_http=registry.is_plain_http)
        if address is None or address.host not in registry.token_hosts:
            raise self._stranger("wants a token of", realm, "auth")
        query = {"service": parameters.get("service", ""), "scope": f"repository:{self._repository}:pull"}
        separator = "&" if "?" in address.target else "?"
        asked = Address(address.host, f"{address.target}{separator}{urlencode(query)}")
        headers = {"Authorization": f"Basic {password}"} if password else {}
        answer = self._get(asked, headers, bytes_max=TOKEN_BYTES_MAX)
        if answer.status != 200:
            raise self._failure(answer.status)
        told: _TokenAnswer = decode_json(answer.body, _TokenAnswer)
        token = told.token or told.access_token
        if not token or not token.isascii() or not token.isprintable():
            raise PolicyRefused(f"The token service {address.host} gives no token.")
        return f"Bearer {token}"

    def _stranger(self, what: str, url: str, field: str) -> PolicyRefused:
        return PolicyRefused(
            f"The registry {self._registry.host} {what} {url[:200]!r}, which is not listed (rule images.registries).",
            next_step=f"If that is right, an administrator adds the host to `{field}` of this registry.",
        )

    def _lie(self, digest: str) -> PolicyRefused:
        return PolicyRefused(
            f"What the registry {self._registry.host} sends is not what the digest {digest[:80]} names.",
            next_step="Somebody may have changed it on the way: ask the registry's operator.",
        )

    def _failure(self, status: int) -> PolicyRefused | Unavailable:
        host = self._registry.host
        if status in (401, 403):
            return PolicyRefused(
                f"The registry {host} does not let this server read {self._repository} ({status}).",
                next_step="An administrator checks `credentials_file` of this registry in images.registries.",
            )
        if status in TRANSIENT:
            return Unavailable(f"The registry {host} answers {status}.", next_step="Try again later.")
        return PolicyRefused(f"The registry {host} answers {status}.", next_step="Ask its operator what that means.")
