"""Large files are uploaded to the bucket by signed addresses, by users and agents, and not through the server."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from switchyard.client import Client
from switchyard.model.files.file_frames import MEDIA, FrameKind, encode_frame
from switchyard.model.files.file_tree import hash_of
from tests.acceptance.files.signed_bucket import SIGNED_FROM, SIZES, Bed, bucket_bed, chunks_of, output_of, signed_keys
from tests.processes import PATIENCE_S
from tests.programs import Answer, call

MISSING = "/v1/files/missing"
OBJECTS = "/v1/files/objects"


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    with bucket_bed(tmp_path, signed_s=3600) as running:
        yield running


@pytest.mark.timeout(600)
def test_large_files_are_uploaded_to_the_bucket_by_signed_addresses(bed: Bed) -> None:
    job, content = bed.submit("first", seed=1)
    bed.finish(job)
    expected = output_of(content)
    assert bed.fetch(job, "got") == expected, "every byte comes back"

    uploads = [write for write in bed.proxy.writes(signed=True) if write.sent >= SIGNED_FROM]
    for keys, is_user in ((signed_keys(content), True), (signed_keys(expected), False)):
        statuses = {write.key[-64:]: write.status for write in uploads if write.is_user is is_user}
        assert statuses == dict.fromkeys(keys, 200)
    assert max(write.sent for write in bed.proxy.writes(signed=False)) < SIGNED_FROM, "not through the server"
    assert not incoming(bed), "what was uploaded is moved to its place"

    check_refused_uploads(bed)
    check_bad_queries(bed)
    check_addresses_that_do_not_work(bed)


def incoming(bed: Bed) -> list[str]:
    return [path.name for path in bed.bucket.glob("incoming*")]


def address_of(bed: Bed, digest: bytes, size: int) -> tuple[str, dict[str, str]]:
    answer = bed.stage.post(MISSING, {"objects": [digest.hex()], "sizes": [size]})
    upload = answer["uploads"][digest.hex()]
    return upload["url"], upload["headers"]


def confirm(bed: Bed, digest: bytes, data: bytes = b"") -> Answer:
    frame = encode_frame(FrameKind.UPLOADED, digest, data)
    return bed.stage.call("POST", OBJECTS, frame, headers={"Content-Type": MEDIA})


def check_refused_uploads(bed: Bed) -> None:
    """A client that lies: the object store refuses the bytes, and the server what was not uploaded."""
    data, other = (random.Random(seed).randbytes(SIGNED_FROM) for seed in (7, 8))
    digest = hash_of(data)
    url, headers = address_of(bed, digest, len(data))
    refused = call("PUT", url, other, headers=headers)
    assert (refused.status, b"BadDigest" in refused.body) == (400, True)
    answer = confirm(bed, digest)
    assert (answer.status, answer.json["code"]) == (400, "malformed")
    assert "other bytes" in answer.json["detail"]
    longer = {**headers, "content-length": str(len(data) + 1)}
    assert call("PUT", url, data + b"x", headers=longer).status == 403
    assert call("GET", url).status == 403
    assert not incoming(bed)

    assert call("PUT", url, data, headers=headers).status == 200
    assert bed.stage.post(MISSING, {"objects": [digest.hex()]})["missing"] == [digest.hex()], "not confirmed yet"
    assert not (bed.bucket / digest.hex()).exists()
    for _ in range(2):
        assert confirm(bed, digest).status == 200
    assert bed.stage.post(MISSING, {"objects": [digest.hex()]})["missing"] == []
    assert (bed.bucket / digest.hex()).read_bytes() == data
    assert not incoming(bed)


def check_bad_queries(bed: Bed) -> None:
    digest = hash_of(b"nobody has it")
    name = digest.hex()
    rows = ([-1], [2**24 + 1], ["1"], [1.5], 7)
    for sizes in rows:
        answer = bed.stage.call("POST", MISSING, {"objects": [name], "sizes": sizes})
        assert answer.status == 400, sizes
    for sizes in ([], [0], [0, SIGNED_FROM], [SIGNED_FROM - 1]):
        answer = bed.stage.post(MISSING, {"objects": [name], "sizes": sizes})
        assert (answer["missing"], answer.get("uploads", {})) == ([name], {}), sizes
    answer = bed.stage.post(MISSING, {"objects": [name, name], "sizes": [SIGNED_FROM, SIGNED_FROM]})
    assert list(answer["uploads"]) == answer["missing"] == [name]
    assert confirm(bed, digest).status == 400
    assert confirm(bed, digest, b"nobody has it").status == 400, "a frame UPLOADED has no bytes"


def check_addresses_that_do_not_work(bed: Bed) -> None:
    """The store refuses every address, as with a wrong clock: the files go through the server."""
    bed.proxy.spoils = True
    folder = bed.stage.folder / "spoiled"
    folder.mkdir()
    data = random.Random(9).randbytes(SIZES["large"])
    (folder / "large").write_bytes(data)
    with Client(bed.stage.url, retry_s=PATIENCE_S) as client:
        client.upload(workdir=folder)
    for chunk in chunks_of(data):
        assert (bed.bucket / chunk.hex()).stat().st_size >= SIGNED_FROM
    own = {write.key for write in bed.proxy.writes(signed=False) if write.sent >= SIGNED_FROM}
    assert own == {chunk.hex() for chunk in chunks_of(data)}
