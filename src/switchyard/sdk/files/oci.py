"""Reads what an image in an OCI layout on disk needs: bounded, verified by digest, never outside its folder.

    index.json → (index →)… manifest → config          architecture and os; labels
                             ▲ subject                  annotations
                             artifact of ARTIFACT_TYPES layers of DOCUMENT_TYPES: the needs

The layout is untrusted input.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct

from switchyard.errors import Malformed, NotFound
from switchyard.model.images.compatibility_forms import ARTIFACT_TYPES, DOCUMENT_TYPES, read_document
from switchyard.model.job.image_compatibility import (
    Compatibility,
    architecture_of,
    compatibility_from_annotations,
    merge_compatibility,
)
from switchyard.model.wire.decode import decode_json

IMAGE_SCHEME = "oci:"
INDEX_TYPES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
TAG_ANNOTATION = "org.opencontainers.image.ref.name"
BLOB_BYTES_MAX = 4 * 2**20  # registries refuse larger manifests; layers of an image are never read
BLOBS_MAX = 256  # of one image: platforms, their configs, artifacts
INDEX_DEPTH_MAX = 4  # indexes within indexes: more than one is rare
DIGEST_PATTERN = re.compile(r"(sha256|sha512):([0-9a-f]{64}|[0-9a-f]{128})\Z")
DIGEST_CHARS = {"sha256": 64, "sha512": 128}

Annotations = dict[str, str]


class _Descriptor(Struct, frozen=True):
    mediaType: str  # noqa: N815 - OCI's word
    digest: Annotated[str, Meta(max_length=256)]
    size: Annotated[int, Meta(ge=0)]
    annotations: Annotations = {}
    artifactType: str = ""  # noqa: N815 - OCI's word


class _Index(Struct, frozen=True):
    manifests: Annotated[list[_Descriptor], Meta(max_length=10_000)] = []
    annotations: Annotations = {}


class _Manifest(Struct, frozen=True):
    config: _Descriptor | None = None
    layers: Annotated[list[_Descriptor], Meta(max_length=10_000)] = []
    annotations: Annotations = {}
    subject: _Descriptor | None = None
    artifactType: str = ""  # noqa: N815 - OCI's word


class _RuntimeConfig(Struct, frozen=True):
    Labels: Annotations | None = None


class _Config(Struct, frozen=True):
    architecture: str = ""
    os: str = ""
    config: _RuntimeConfig | None = None


@dataclass(frozen=True, slots=True)
class _FoundManifest:
    """A manifest and its descriptor."""

    descriptor: _Descriptor
    manifest: _Manifest


def read_image_compatibility(image: str) -> list[Compatibility]:
    """Read what the image `oci:PATH[:TAG]` needs. An image of several platforms requires none of them."""
    path, tag = _split(image.removeprefix(IMAGE_SCHEME))
    layout = _Layout(path)
    index = layout.index()
    chosen = _choose_images(index, tag, where=str(path))
    manifests = list(layout.manifests(chosen))
    if not manifests:
        raise Malformed(f"{path}: there is no image in it.")
    needs: list[list[Compatibility]] = [
        compatibility_from_annotations(descriptor.annotations, where=str(path)) for descriptor in chosen
    ]
    subjects = {descriptor.digest for descriptor in chosen}
    if len(manifests) == 1:  # of several platforms a cluster takes one that it can run
        needs += _manifest_compatibility(layout, manifests[0].manifest, where=str(path))
        subjects.add(manifests[0].descriptor.digest)
    for artifact in layout.artifacts(index, of=subjects):
        needs += [layout.document(layer) for layer in artifact.layers if layer.mediaType in DOCUMENT_TYPES]
    return merge_compatibility(*needs, where=image)


def _manifest_compatibility(layout: _Layout, manifest: _Manifest, *, where: str) -> Iterator[list[Compatibility]]:
    yield compatibility_from_annotations(manifest.annotations, where=where)
    if manifest.config is None:
        return
    config = layout.read(manifest.config, _Config)
    platform = (("architecture", architecture_of(config.architecture)), ("os", config.os))
    yield [Compatibility(field, equals=value) for field, value in platform if value]
    yield compatibility_from_annotations((config.config.Labels if config.config else None) or {}, where=where)


def _split(text: str) -> tuple[Path, str | None]:
    """Split PATH[:TAG]. A colon belongs to the path if the whole text is an existing folder."""
    untagged = Path(text)
    path, colon, tag = text.rpartition(":")
    return (untagged, None) if not colon or untagged.is_dir() or "/" in tag else (Path(path), tag)


def _choose_images(index: _Index, tag: str | None, *, where: str) -> list[_Descriptor]:
    images = [image for image in index.manifests if image.artifactType not in ARTIFACT_TYPES]
    if tag is not None:
        tagged = [image for image in images if image.annotations.get(TAG_ANNOTATION) == tag]
        if not tagged:
            tags = filter(None, (image.annotations.get(TAG_ANNOTATION, "") for image in images))
            known = ", ".join(sorted(tags)) or "none"
            raise NotFound(f"{where}: there is no tag {tag[:80]!r}.", next_step=f"Its tags are: {known[:500]}.")
        return tagged[:1]
    if len({image.annotations.get(TAG_ANNOTATION) for image in images} - {None}) > 1:
        raise Malformed(f"{where}: it has several images.", next_step="Choose one by its tag: oci:PATH:TAG.")
    return images


class _Layout:
    """An OCI layout: a folder with an index and blobs."""

    def __init__(self, path: Path) -> None:
        if not (path / "index.json").is_file():
            raise NotFound(f"{path} is no OCI layout: there is no index.json.", next_step="Check the path after oci:.")
        self._path = path
        self._blobs: dict[str, bytes] = {}

    def index(self) -> _Index:
        index: _Index = _decode(self._bytes(self._path / "index.json", "index.json"), _Index, "index.json")
        return index

    def manifests(self, descriptors: list[_Descriptor], depth: int = 0) -> Iterator[_FoundManifest]:
        """Yield the image manifests below these descriptors. Indexes may nest up to INDEX_DEPTH_MAX."""
        if depth > INDEX_DEPTH_MAX:
            raise Malformed(f"{self._path}: indexes within indexes, more than {INDEX_DEPTH_MAX} deep.")
        for descriptor in descriptors:
            if descriptor.mediaType in INDEX_TYPES:
                yield from self.manifests(self.read(descriptor, _Index).manifests, depth + 1)
                continue
            manifest = self.read(descriptor, _Manifest)
            if not _is_artifact(descriptor, manifest) and manifest.subject is None:
                yield _FoundManifest(descriptor, manifest)

    def artifacts(self, index: _Index, *, of: set[str]) -> Iterator[_Manifest]:
        """Yield the compatibility artifacts whose subject is one of these digests."""
        for descriptor in index.manifests:
            if descriptor.mediaType in INDEX_TYPES:
                continue
            manifest = self.read(descriptor, _Manifest)
            is_about = manifest.subject is not None and manifest.subject.digest in of
            if is_about and _is_artifact(descriptor, manifest):
                yield manifest

    def document(self, layer: _Descriptor) -> list[Compatibility]:
        where = f"the compatibility {layer.digest[:19]}…"
        return read_document(layer.mediaType, self.blob(layer), where=where)

    def read(self, descriptor: _Descriptor, kind: Any) -> Any:
        return _decode(self.blob(descriptor), kind, f"the blob {descriptor.digest[:19]}…")

    def blob(self, descriptor: _Descriptor) -> bytes:
        """Read the blob of a descriptor, and verify its size and digest."""
        digest = DIGEST_PATTERN.match(descriptor.digest)
        if digest is None or len(digest[2]) != DIGEST_CHARS[digest[1]]:
            raise Malformed(f"{self._path}: {descriptor.digest[:80]!r} is no digest this version reads.")
        if descriptor.size > BLOB_BYTES_MAX:
            raise Malformed(f"{self._path}: {descriptor.digest[:19]}… has {descriptor.size} bytes; metadata has few.")
        cached = self._blobs.get(descriptor.digest)
        if cached is not None:
            return cached
        if len(self._blobs) >= BLOBS_MAX:
            raise Malformed(f"{self._path}: over {BLOBS_MAX} manifests and configs.")
        body = self._bytes(self._path / "blobs" / digest[1] / digest[2], descriptor.digest[:19] + "…")
        if len(body) != descriptor.size or hashlib.new(digest[1], body).hexdigest() != digest[2]:
            raise Malformed(f"{self._path}: {descriptor.digest[:19]}… is not what its digest says: it was changed.")
        self._blobs[descriptor.digest] = body
        return body

    def _bytes(self, path: Path, name: str) -> bytes:
        """Read a regular file inside the folder. Links that leave the folder and pipes are refused."""
        try:
            if not path.resolve(strict=True).is_relative_to(self._path.resolve()):
                raise Malformed(f"{self._path}: {name} leads out of the layout.")
            with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise Malformed(f"{self._path}: {name} is no plain file.")
                body = file.read(BLOB_BYTES_MAX + 1)
        except (OSError, RuntimeError) as exc:  # RuntimeError: a ring of links
            raise NotFound(f"{self._path}: {name} cannot be read: {exc}.") from exc
        if len(body) > BLOB_BYTES_MAX:
            raise Malformed(f"{self._path}: {name} is over {BLOB_BYTES_MAX} bytes; metadata has few.")
        return body


def _is_artifact(descriptor: _Descriptor, manifest: _Manifest) -> bool:
    return not ARTIFACT_TYPES.isdisjoint((descriptor.artifactType, manifest.artifactType))


def _decode(body: bytes, kind: Any, where: str) -> Any:
    try:
        return decode_json(body, kind)
    except Malformed as exc:
        raise Malformed(f"{where}: {exc.detail}") from exc
