"""Container images for tests, made of this machine's own files. Knows no registry, no builder and no cluster.

An image is an archive in the OCI layout with one layer. The same files give the same bytes.

    python -m tests.kube_image python OUT.tar --add PATH    # this Python, and each PATH at the place where it is here
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import platform
import re
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.services import need_busybox

BUSYBOX_IMAGE = "localhost/busybox:1"  # sh and the usual tools
PAUSE_IMAGE = "localhost/pause:1"  # what containerd runs to hold a pod's namespaces
PYTHON_IMAGE = "localhost/python:3"  # the same tools and `python3`
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
PATH = "/usr/local/bin:/usr/bin:/bin"
# Every user may enter /root: the interpreter of this machine may lie in it.
FOLDERS = {"tmp": 0o1777, "root": 0o711, "proc": 0o555, "sys": 0o555, "dev": 0o755, "etc": 0o755, "bin": 0o755}
FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/tmp:/bin/sh\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
}
# Large parts of the standard library's folder that no program in an image needs.
UNUSED = frozenset({"test", "idlelib", "turtledemo", "site-packages", "dist-packages", "__pycache__"})


class Layer:
    """The files of an image. All belong to root, and none has a time."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[tarfile.TarInfo, bytes]] = {}

    def folder(self, name: str, mode: int = 0o755) -> None:
        self._add(name, tarfile.DIRTYPE, mode)

    def file(self, name: str, content: bytes, mode: int = 0o644) -> None:
        self._add(name, tarfile.REGTYPE, mode, content=content)

    def link(self, name: str, target: str) -> None:
        self._add(name, tarfile.SYMTYPE, 0o777, target=target)

    def copy(
        self, path: Path, *, place: Path | None = None, without: frozenset[str] = frozenset({"__pycache__"})
    ) -> None:
        """Copy a file, a link or a folder to `place`, or to where it is here. `without`: names that are left out."""
        place = place or path
        if path.is_symlink():
            self.link(str(place), str(path.readlink()))
        elif path.is_dir():
            self.folder(str(place))
            for entry in sorted(path.iterdir()):
                if entry.name not in without and not entry.name.startswith("config-3"):  # a static library of 20 MB
                    self.copy(entry, place=place / entry.name, without=without)
        elif path.is_file():
            self.file(str(place), path.read_bytes(), path.stat().st_mode & 0o755)

    def content(self) -> bytes:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for entry, content in self._entries.values():
                tar.addfile(entry, io.BytesIO(content))
        return buffer.getvalue()

    def _add(self, name: str, kind: bytes, mode: int, *, content: bytes = b"", target: str = "") -> None:
        name = name.strip("/")
        if not name or name in self._entries:
            return
        self.folder(str(Path(name).parent).strip("."))
        entry = tarfile.TarInfo(name)
        entry.type, entry.mode, entry.linkname, entry.size = kind, mode, target, len(content)
        self._entries[name] = (entry, content)


def save_image(out: Path, layer: Layer, commands: Mapping[str, Sequence[str]]) -> Path:
    """Write an archive with one image for each name in `commands`: the same layer, another default command."""
    blobs: dict[str, bytes] = {}

    def blob(content: bytes, kind: str) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = content
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{digest}", "size": len(content)}

    files = blob(layer.content(), "layer.v1.tar")
    images = []
    for name, command in commands.items():
        config = {
            "architecture": {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine()),
            "os": "linux",
            "config": {"Env": [f"PATH={PATH}"], "Cmd": list(command), "WorkingDir": "/"},
            "rootfs": {"type": "layers", "diff_ids": [files["digest"]]},
        }
        head = {"schemaVersion": 2, "mediaType": MANIFEST}
        manifest = {**head, "config": blob(_json(config), "config.v1+json"), "layers": [files]}
        # Two names for containerd, which must be whole, and for podman, which takes it as a tag.
        names = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}
        images.append({**blob(_json(manifest), "manifest.v1+json"), "annotations": names})
    blobs["index.json"] = _json({"schemaVersion": 2, "manifests": images})
    blobs["oci-layout"] = _json({"imageLayoutVersion": "1.0.0"})
    with tarfile.open(out, "w") as tar:
        for name, content in blobs.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return out


def busybox_layer() -> Layer:
    layer, busybox = Layer(), need_busybox()
    for name, mode in FOLDERS.items():
        layer.folder(name, mode)
    for name, text in FILES.items():
        layer.file(name, text.encode())
    layer.file("bin/busybox", busybox.read_bytes(), 0o755)
    applets = subprocess.run([str(busybox), "--list"], capture_output=True, text=True, check=True).stdout.split()
    for applet in applets:
        layer.link(f"bin/{applet}", "busybox")
    return layer


def save_base_images(out: Path) -> Path:
    """The images that every cluster of the tests has."""
    return save_image(out, busybox_layer(), {BUSYBOX_IMAGE: ["sh"], PAUSE_IMAGE: ["sleep", "infinity"]})


def save_python_image(
    out: Path,
    *add: Path,
    name: str = PYTHON_IMAGE,
    packages: Path | None = None,
    scripts: Mapping[str, str] | None = None,
) -> Path:
    """An image with the Python that runs this, and with the files or folders in `add`.

    `packages`: a folder whose content Python finds as installed packages. `scripts`: programs by name, in the PATH.
    """
    layer, python = busybox_layer(), Path(sys.executable).resolve()
    library, added = Path(sysconfig.get_path("stdlib")), [path.absolute() for path in add]
    layer.copy(python)
    layer.copy(library, without=UNUSED)
    for path in added:
        layer.copy(path)
    if packages is not None:
        layer.copy(packages, place=library / "site-packages")
        added.append(packages)
    for script, text in (scripts or {}).items():
        layer.file(f"usr/local/bin/{script}", text.encode(), 0o755)
    # Virtual environments lead to the interpreter by names such as python3.
    for other in python.parent.glob("python3*"):
        if other.resolve() == python:
            layer.copy(other)
    for link in ("python", "python3"):
        layer.link(f"usr/local/bin/{link}", str(python))
    binaries = [file for path in (library, *added) for file in path.rglob("*.so*") if file.is_file()]
    said = subprocess.run(["ldd", str(python), *map(str, binaries)], capture_output=True, text=True, check=False).stdout
    for linked in sorted(set(re.findall(r"(/\S+) \(0x", said))):
        layer.file(linked, Path(linked).read_bytes(), 0o755)
    return save_image(out, layer, {name: ["python3"]})


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.kube_image", description="Container images for tests.")
    parser.add_argument("kind", choices=["busybox", "python"])
    parser.add_argument("out", type=Path)
    parser.add_argument("--add", type=Path, action="append", default=[])
    given = parser.parse_args(words)
    print(save_base_images(given.out) if given.kind == "busybox" else save_python_image(given.out, *given.add))


if __name__ == "__main__":
    main(sys.argv[1:])
