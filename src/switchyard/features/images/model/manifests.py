"""Manifests, indexes and configurations of images (OCI and Docker), as far as they tell what an image needs. Pure."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from switchyard.errors import Malformed
from switchyard.model.images.compatibility_forms import ARTIFACT_TYPES
from switchyard.model.job.image_compatibility import Compatibility, architecture_of, compatibility_from_annotations
from switchyard.model.wire.decode import decode_json

INDEX_TYPES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
MANIFEST_TYPES = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")
INDEX_ENTRIES_MAX = 100
LAYERS_MAX = 1000
ANNOTATIONS_MAX = 1000
TYPE_CHARS_MAX = 256
UNKNOWN = "unknown"  # the platform of an attestation among images

Annotations = Annotated[dict[str, str], Meta(max_length=ANNOTATIONS_MAX)]
MediaType = Annotated[str, Meta(max_length=TYPE_CHARS_MAX)]


class ImagePlatform(Struct, frozen=True):
    architecture: str = ""
    os: str = ""


class ImageDescriptor(Struct, frozen=True, rename="camel"):
    """What a manifest says of another blob."""

    digest: Annotated[str, Meta(pattern=r"^sha256:[0-9a-f]{64}(?!\n)$")]
    size: Annotated[int, Meta(ge=0)]
    media_type: MediaType = ""
    artifact_type: MediaType = ""
    platform: ImagePlatform | None = None


class ImageManifest(Struct, frozen=True, rename="camel"):
    """A manifest or an index: of an index `manifests` is there."""

    media_type: MediaType = ""
    artifact_type: MediaType = ""
    config: ImageDescriptor | None = None
    layers: Annotated[list[ImageDescriptor], Meta(max_length=LAYERS_MAX)] = []
    manifests: Annotated[list[ImageDescriptor], Meta(max_length=INDEX_ENTRIES_MAX)] | None = None
    subject: ImageDescriptor | None = None
    annotations: Annotations | None = None

    @property
    def images(self) -> list[ImageDescriptor]:
        """Of an index: its images, without attestations and other artifacts."""
        return [entry for entry in self.manifests or [] if not entry.artifact_type and not _is_attestation(entry)]

    @property
    def is_compatibility(self) -> bool:
        config_type = self.config.media_type if self.config is not None else ""
        return not ARTIFACT_TYPES.isdisjoint((self.artifact_type, config_type))

    def needs(self, *, where: str) -> list[Compatibility]:
        """The needs among its annotations."""
        return compatibility_from_annotations(self.annotations or {}, where=where)


class _RuntimeConfig(Struct, frozen=True, rename="pascal"):
    labels: Annotations | None = None


class _ImageConfig(Struct, frozen=True):
    architecture: str = ""
    os: str = ""
    config: _RuntimeConfig | None = None


def read_manifest(body: bytes, *, where: str) -> ImageManifest:
    manifest = _read(body, ImageManifest, where)
    assert isinstance(manifest, ImageManifest)
    return manifest


def config_needs(body: bytes, *, where: str) -> list[Compatibility]:
    """What the configuration of an image needs: its platform, and the labels of ours."""
    config = _read(body, _ImageConfig, where)
    assert isinstance(config, _ImageConfig)
    platform = (("architecture", architecture_of(config.architecture)), ("os", config.os))
    needs = [Compatibility(field, equals=value[:256]) for field, value in platform if value]
    labels = config.config.labels if config.config is not None else None
    return needs + compatibility_from_annotations(labels or {}, where=where)


def _is_attestation(entry: ImageDescriptor) -> bool:
    return entry.platform is not None and entry.platform.architecture == UNKNOWN


def _read(body: bytes, kind: type[Struct], where: str) -> Struct:
    try:
        return decode_json(body, kind)
    except Malformed as exc:
        raise Malformed(f"{where}: {exc.detail}") from exc
