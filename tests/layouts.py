"""Builds OCI layouts on disk, good and bad, as the tests need them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
ARTIFACT = "application/vnd.oci.image-compatibility.v1"
DOCUMENT = "application/vnd.switchyard.image-compatibility.v1+json"
Descriptor = dict[str, Any]


class Layout:
    """A folder that is filled blob by blob."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "blobs/sha256").mkdir(parents=True)
        (path / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')

    def blob(self, media_type: str, content: Any, **more: Any) -> Descriptor:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        name = hashlib.sha256(body).hexdigest()
        (self.path / "blobs/sha256" / name).write_bytes(body)
        return {"mediaType": media_type, "digest": f"sha256:{name}", "size": len(body), **more}

    def image(
        self, architecture: str = "amd64", *, labels: Any = None, annotations: Any = None, tag: str = ""
    ) -> Descriptor:
        config = self.blob(CONFIG, {"architecture": architecture, "os": "linux", "config": {"Labels": labels}})
        manifest: dict[str, Any] = {
            "schemaVersion": 2,
            "config": config,
            "layers": [],
            "annotations": annotations or {},
        }
        named = {"annotations": {"org.opencontainers.image.ref.name": tag}} if tag else {}
        return self.blob(MANIFEST, manifest, **named)

    def artifact(self, subject: Descriptor, document: Any, *, media_type: str = DOCUMENT) -> Descriptor:
        plain = {name: subject[name] for name in ("mediaType", "digest", "size")}
        layer = self.blob(media_type, document)
        empty = self.blob("application/vnd.oci.empty.v1+json", {})
        manifest = {"artifactType": ARTIFACT, "config": empty, "layers": [layer], "subject": plain}
        return self.blob(MANIFEST, {"schemaVersion": 2, **manifest}, artifactType=ARTIFACT)

    def write(self, *manifests: Descriptor) -> str:
        """The index; the answer is the image as a job names it."""
        (self.path / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": list(manifests)}))
        return f"oci:{self.path}"
