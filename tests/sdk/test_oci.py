"""What an image on disk says that it needs, and layouts that mean harm."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from switchyard.errors import Malformed, NotFound, YardError
from switchyard.model.job.image_compatibility import Compatibility
from switchyard.sdk.files.oci import BLOB_BYTES_MAX, BLOBS_MAX, read_image_compatibility
from tests.layouts import CONFIG, INDEX, MANIFEST, Descriptor, Layout

X86 = [Compatibility("architecture", equals="x86_64"), Compatibility("os", equals="linux")]
DRIVER = Compatibility("gpu-driver", min="535")


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "image")


def test_platform_comes_from_the_config(layout: Layout) -> None:
    assert read_image_compatibility(layout.write(layout.image())) == X86


def test_annotations_labels_and_artifacts_add_needs(layout: Layout) -> None:
    image = layout.image(
        labels={"io.switchyard.compatibility.libc": ">=2.28 <=3", "other": "x"},
        annotations={"io.switchyard.compatibility.mpi-implementation": "openmpi"},
    )
    artifact = layout.artifact(image, {"compatibility": [{"field": "gpu-driver", "min": "535"}]})
    assert read_image_compatibility(layout.write(image, artifact)) == [
        Compatibility("mpi-implementation", equals="openmpi"),
        *X86,
        Compatibility("libc", min="2.28", max="3"),
        DRIVER,
    ]


def test_artifact_about_another_image_is_not_ours(layout: Layout) -> None:
    one, other = layout.image(tag="one"), layout.image("arm64", tag="other")
    about_other = layout.artifact(other, [{"field": "cuda", "min": "12.2"}])
    foreign = layout.artifact(one, {"rules": []}, media_type="application/vnd.example.compatibility+yaml")
    name = layout.write(one, other, about_other, foreign)
    assert read_image_compatibility(f"{name}:one") == X86
    assert [need.field for need in read_image_compatibility(f"{name}:other")] == ["architecture", "os", "cuda"]


def test_several_platforms_need_none_of_them(layout: Layout) -> None:
    both = layout.blob(INDEX, {"manifests": [layout.image("amd64"), layout.image("arm64")]})
    artifact = layout.artifact(both, [{"field": "gpu-driver", "min": "535"}])
    assert read_image_compatibility(layout.write(both, artifact)) == [DRIVER]


def test_tag_is_asked_for_where_there_are_several(layout: Layout) -> None:
    name = layout.write(layout.image(tag="v1"), layout.image("arm64", tag="v2"))
    assert read_image_compatibility(f"{name}:v2")[0].equals == "aarch64"
    with pytest.raises(Malformed, match="several"):
        read_image_compatibility(name)
    with pytest.raises(NotFound, match="no tag 'v3'") as caught:
        read_image_compatibility(f"{name}:v3")
    assert "v1, v2" in caught.value.next_step


def _changed(layout: Layout, image: Descriptor) -> None:
    path = layout.path / "blobs/sha256" / image["digest"].partition(":")[2]
    path.write_bytes(path.read_bytes().replace(b"2", b"3", 1))


def _linked_out(layout: Layout, image: Descriptor) -> None:
    path = layout.path / "blobs/sha256" / image["digest"].partition(":")[2]
    path.rename(layout.path.parent / "outside")
    path.symlink_to(layout.path.parent / "outside")


def _pipe(layout: Layout, image: Descriptor) -> None:
    path = layout.path / "blobs/sha256" / image["digest"].partition(":")[2]
    path.unlink()
    os.mkfifo(path)


def _gone(layout: Layout, image: Descriptor) -> None:
    (layout.path / "blobs/sha256" / image["digest"].partition(":")[2]).unlink()


@pytest.mark.parametrize(
    ("harm", "why"),
    [(_changed, "changed"), (_linked_out, "out of the layout"), (_pipe, "no plain file"), (_gone, "cannot be read")],
)
def test_blob_that_is_not_what_it_should_be(
    layout: Layout, harm: Callable[[Layout, Descriptor], None], why: str
) -> None:
    image = layout.image()
    harm(layout, image)
    with pytest.raises(YardError, match=why):
        read_image_compatibility(layout.write(image))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"digest": "sha256:../../../../etc/passwd"}, "no digest"),
        ({"digest": "sha256:" + "A" * 64}, "no digest"),
        ({"digest": "md5:" + "a" * 32}, "no digest"),
        ({"digest": 7}, "digest"),
        ({"size": BLOB_BYTES_MAX + 1}, "metadata has few"),
        ({"size": -1}, "size"),
        ({"size": 1}, "changed"),
    ],
)
def test_descriptor_that_lies(layout: Layout, change: dict[str, object], why: str) -> None:
    with pytest.raises(Malformed, match=why):
        read_image_compatibility(layout.write({**layout.image(), **change}))


def test_index_within_index_has_an_end(layout: Layout) -> None:
    inner = layout.image()
    for _ in range(9):
        inner = layout.blob(INDEX, {"manifests": [inner]})
    with pytest.raises(Malformed, match="deep"):
        read_image_compatibility(layout.write(inner))


def test_thousands_of_manifests_are_refused(layout: Layout) -> None:
    many = [layout.blob(MANIFEST, {"config": None, "annotations": {"n": str(n)}}) for n in range(BLOBS_MAX + 1)]
    with pytest.raises(Malformed, match=f"over {BLOBS_MAX}"):
        read_image_compatibility(layout.write(*many))


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{", b"\xff", b"[" * 100_000, b'{"manifests": 7}', b'{"manifests": [], "manifests": []}']
)
def test_index_that_is_no_index(layout: Layout, content: bytes) -> None:
    (layout.path / "index.json").write_bytes(content)
    with pytest.raises(Malformed, match=r"index\.json"):
        read_image_compatibility(f"oci:{layout.path}")


@pytest.mark.parametrize(
    "document",
    [
        {"compatibility": [{"field": "kernel"}]},
        {"compatibility": [{"field": "kernel", "equals": "6", "min": "5"}]},
        {"compatibility": [{"field": "kernel", "min": ["5"]}]},
        {"compatibility": [{"field": "kernel", "min": 5.10}]},
        {"compatibility": [{"field": "k\n", "min": "5"}]},
        {"compatibility": [{"field": "kernel", "min": "5"}] * 65},
        {"other": []},
        7,
    ],
)
def test_artifact_with_needs_nobody_can_read(layout: Layout, document: object) -> None:
    image = layout.image()
    with pytest.raises(Malformed):
        read_image_compatibility(layout.write(image, layout.artifact(image, document)))


def test_folder_that_is_no_layout(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"no index\.json"):
        read_image_compatibility(f"oci:{tmp_path}")
    with pytest.raises(NotFound, match=r"no index\.json"):
        read_image_compatibility(f"oci:{tmp_path}/none:tag")


def test_config_that_is_huge_or_deep(layout: Layout) -> None:
    for body in (b" " * BLOB_BYTES_MAX + b"{}", b'{"config":' * 5000 + b"{}" + b"}" * 5000):
        config = layout.blob(CONFIG, body)
        image = layout.blob(MANIFEST, json.dumps({"config": config}).encode())
        with pytest.raises(Malformed):
            read_image_compatibility(layout.write(image))
