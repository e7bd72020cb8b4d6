"""Pins the images of requests: a tag of a listed registry becomes a digest, and its image's needs become the job's.

What was read of a digest is remembered: a digest never means anything else. Artifacts may be added to an image later,
so it is read again after some minutes, and what is remembered serves while the registry is away.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic, NamedTuple, TypeVar

from msgspec.structs import replace

from switchyard.errors import Busy, Malformed, PolicyRefused, Unavailable
from switchyard.features.images.model.image_names import ImageName, host_of, read_image_name
from switchyard.features.images.model.manifests import config_needs
from switchyard.features.images.registry.client import ReadManifest, RegistryClient
from switchyard.features.images.registry.exchange import RegistrySlow
from switchyard.features.images.registry.listed import ListedRegistries, ListedRegistry
from switchyard.model.images.compatibility_forms import ARTIFACT_TYPES, DOCUMENT_TYPES, read_document
from switchyard.model.job.image_compatibility import Compatibility, merge_compatibility
from switchyard.model.job.job import JobRequest
from switchyard.service.submit.preparation import RequestPreparer

AT_ONCE = 4  # images that are read at the same time: each holds a thread while it waits for a registry
IMAGES_MAX = 1000  # that are remembered
FRESH_S = 600.0  # a digest is read again after this time
TAG_S = 1.0  # a tag is asked for again after this time: a bulk request asks for each job
SLOW_S = 2.0  # a registry that took too long is asked again after this time: many jobs may name it

Value = TypeVar("Value")


class ImagePinning(RequestPreparer):
    """Used by several threads."""

    def __init__(self, registries: ListedRegistries) -> None:
        self._registries = registries
        self._places = threading.BoundedSemaphore(AT_ONCE)
        self._images: _Memory[ReadImage] = _Memory()  # by registry, repository and digest
        self._tags: _Memory[str] = _Memory()  # digests by registry, repository and tag
        self._slow_until: dict[str, float] = {}  # by registry: it is asked again after this time

    def concerns(self, request: JobRequest) -> bool:
        image = request.spec.image
        return image is not None and bool(self._registries.by_host) and host_of(image) in self._registries.by_host

    def prepare(self, request: JobRequest) -> JobRequest:
        image = request.spec.image
        assert image is not None, "asked only for requests that it concerns"
        name = read_image_name(image)
        found = self._find(self._registries.by_host[name.host], name)
        needs = merge_compatibility(request.spec.compatibility, list(found.needs), where=image)
        spec = replace(request.spec, image=name.pinned(found.digest), compatibility=needs)
        return replace(request, spec=spec)

    def _find(self, registry: ListedRegistry, name: ImageName) -> ReadImage:
        if not registry.allows(name.repository):
            raise PolicyRefused(
                f"The server does not take images of {name.host}/{name.repository} (rule images.registries, `allow`).",
                next_step=f"Allowed there: {', '.join(registry.allow)[:300]}.",
            )
        digest = name.digest or self._tags.get((name.host, name.repository, name.reference), TAG_S) or ""
        key = (name.host, name.repository, digest)
        if digest and (known := self._images.get(key, FRESH_S)) is not None:
            return known
        try:
            found = self._read(registry, name)
        except (Unavailable, Busy):
            if name.digest and (known := self._images.get(key)) is not None:
                return known
            raise
        self._images.put((name.host, name.repository, found.digest), found)
        if not name.digest:
            self._tags.put((name.host, name.repository, name.reference), found.digest)
        return found

    def _read(self, registry: ListedRegistry, name: ImageName) -> ReadImage:
        if time.monotonic() < self._slow_until.get(registry.host, 0.0):
            raise Unavailable(f"The registry {registry.host} was too slow a moment ago.", next_step="Try again.")
        if not self._places.acquire(blocking=False):
            raise Busy(f"The server reads {AT_ONCE} other images just now.", next_step="Try again in a moment.")
        try:
            client = RegistryClient(registry, name.repository, timeout_s=self._registries.timeout_s)
            return read_image(client, name, has_needs=registry.has_needs)
        except RegistrySlow:
            self._slow_until[registry.host] = time.monotonic() + SLOW_S
            raise
        finally:
            self._places.release()


class _Memory(Generic[Value]):
    """The values that were used last, each with its time. From any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: OrderedDict[tuple[str, ...], tuple[float, Value]] = OrderedDict()

    def get(self, key: tuple[str, ...], age_s_max: float = float("inf")) -> Value | None:
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            at, value = self._values[key]
            return value if time.monotonic() - at <= age_s_max else None

    def put(self, key: tuple[str, ...], value: Value) -> None:
        with self._lock:
            self._values[key] = (time.monotonic(), value)
            self._values.move_to_end(key)
            if len(self._values) > IMAGES_MAX:
                self._values.popitem(last=False)


INDEX_DEPTH_MAX = 4  # indexes within indexes: more than one is rare
ARTIFACTS_MAX = 8  # of one image
LAYERS_READ_MAX = 8  # of one artifact


class ReadImage(NamedTuple):
    digest: str  # of what the name means: of an image, or of an index of images
    needs: tuple[Compatibility, ...]


def read_image(client: RegistryClient, name: ImageName, *, has_needs: bool) -> ReadImage:
    """An index of several platforms requires none of them: a cluster takes the one that it can run.

    `has_needs`: read what the image needs, and not its digest alone.
    """
    where = f"{name.host}/{name.repository}"
    top = client.manifest(name.reference)
    if not has_needs:
        return ReadImage(top.digest, ())
    found: list[ReadManifest] = [top]
    while (last := found[-1].manifest).manifests is not None and len(last.images) == 1:
        if len(found) > INDEX_DEPTH_MAX:
            raise Malformed(f"{where}: indexes within indexes, more than {INDEX_DEPTH_MAX} deep.")
        found.append(client.manifest(last.images[0].digest))
    needs = [part.manifest.needs(where=where) for part in found]
    if last.manifests is None and last.config is not None and not last.is_compatibility:
        needs.append(config_needs(client.blob(last.config), where=f"the configuration of {where}"))
    for part in found:
        needs += _needs_of_artifacts(client, part.digest, where=where)
    return ReadImage(top.digest, tuple(merge_compatibility(*needs, where=where)))


def _needs_of_artifacts(client: RegistryClient, digest: str, *, where: str) -> Iterator[list[Compatibility]]:
    told = [entry for entry in client.referrers(digest) if entry.artifact_type in ARTIFACT_TYPES]
    if len(told) > ARTIFACTS_MAX:
        raise Malformed(f"{where}: {len(told)} artifacts say what it needs; the most is {ARTIFACTS_MAX}.")
    for entry in told:
        artifact = client.manifest(entry.digest).manifest
        if artifact.subject is None or artifact.subject.digest != digest or not artifact.is_compatibility:
            continue  # the list of referrers may be a tag, which anybody with the right to push may have written
        layers = [layer for layer in artifact.layers if layer.media_type in DOCUMENT_TYPES][:LAYERS_READ_MAX]
        for layer in layers:
            yield read_document(layer.media_type, client.blob(layer), where=f"the compatibility {layer.digest[:19]}…")
