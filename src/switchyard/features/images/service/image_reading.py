"""Reads what an image in a registry needs: its manifest, its configuration, and the artifacts that refer to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from switchyard.errors import Malformed
from switchyard.features.images.model.image_names import ImageName
from switchyard.features.images.model.manifests import config_needs
from switchyard.features.images.registry.client import ReadManifest, RegistryClient
from switchyard.model.images.compatibility_forms import ARTIFACT_TYPES, DOCUMENT_TYPES, read_document
from switchyard.model.job.image_compatibility import Compatibility, merge_compatibility

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
