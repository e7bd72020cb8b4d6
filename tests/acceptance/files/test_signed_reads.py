"""Large files are read from the bucket by signed addresses, by users and agents, and not through the server."""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from switchyard.client import Client
from switchyard.errors import Unavailable
from switchyard.model.files.file_frames import FrameKind, decode_frames
from switchyard.model.files.file_tree import chunk_spans, hash_of
from switchyard.model.job.job import State
from tests.acceptance.files.job_files import outputs_of
from tests.acceptance.stage import Stage, staged
from tests.processes import PATIENCE_S
from tests.programs import call
from tests.s3_proxy import S3Proxy, s3_proxy, wait_for_expiry
from tests.s3_service import REGION, s3_running

SIGNED_S = 10  # the least that the config takes
SIGNED_FROM = 256 * 2**10
SIZES = {"middle": 300 * 2**10, "small": 1000, "below": SIGNED_FROM - 1, "large": 9 * 2**20 + 5}
# The output has other bytes than the input, so that no object is both.
SCRIPT = 'mkdir out; for name in in/*; do { echo out; cat "$name"; } > out/${name#in/}; done'


class Bed:
    """A server whose bucket is behind a proxy that sees every read."""

    def __init__(self, stage: Stage, proxy: S3Proxy, bucket: Path) -> None:
        self.stage, self.proxy, self.bucket = stage, proxy, bucket

    def large_keys(self) -> set[str]:
        return {path.name for path in self.bucket.iterdir() if path.stat().st_size >= SIGNED_FROM}

    def submit(self, name: str, seed: int, *, files: Collection[str] = SIZES) -> tuple[str, dict[str, bytes]]:
        """A job with new files; its id, and what its input files are."""
        folder = self.stage.folder / name
        folder.mkdir()
        chance = random.Random(seed)
        content = {file: chance.randbytes(size) for file, size in SIZES.items() if file in files}
        for file, data in content.items():
            (folder / file).write_bytes(data)
        words = ("submit", "--in", f"{folder}:in", "--out", "out", "-o", "name", "--", "sh", "-c", SCRIPT)
        job = self.stage.yard(*words, check=True).stdout.split()[-1]
        return job, content

    def finish(self, job: str) -> str:
        """Wait until its output files are there; the hash of their tree."""
        assert self.stage.ended(job, timeout_s=2 * PATIENCE_S)["state"] == State.SUCCEEDED
        [output] = outputs_of(self.stage, job)
        assert output["state"] == "ready", output
        return str(output["root"])

    def fetch(self, job: str, name: str) -> dict[str, bytes]:
        target = self.stage.folder / name
        self.stage.yard("fetch", job, "--to", str(target), check=True)
        return {path.name: path.read_bytes() for path in (target / "out").iterdir()}

    def frames(self, job: str, root: str, *digests: bytes) -> dict[bytes, tuple[FrameKind, bytes]]:
        query = {"root": root, "objects": [digest.hex() for digest in digests]}
        answer = self.stage.call("POST", f"/v1/jobs/{job}/files/objects", query)
        assert answer.status == 200, answer.body
        return {frame.digest: (frame.kind, frame.data) for frame in decode_frames([answer.body])}


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    with bucket_bed(tmp_path, signed_s=SIGNED_S) as running:
        yield running


@contextmanager
def bucket_bed(tmp_path: Path, *, signed_s: int) -> Iterator[Bed]:
    with s3_running() as store, s3_proxy(store.port) as proxy:
        bucket = store.create_bucket()
        section: dict[str, object] = {"url": f"s3://{bucket}/files", "endpoint": proxy.endpoint, "region": REGION}
        section |= {"allow_http": True, "signed_s": signed_s}
        config = tmp_path / "config.yaml"
        config.write_text(json.dumps({"storage": section}), encoding="utf-8")  # JSON is YAML
        with staged(tmp_path, extra=["--config", str(config)], env=store.credentials) as stage, stage.agent("local"):
            yield Bed(stage, proxy, store.buckets / bucket / "files")


def chunks_of(data: bytes) -> list[bytes]:
    return [hash_of(data[at : at + size]) for at, size in chunk_spans(len(data))]


def output_of(content: dict[str, bytes]) -> dict[str, bytes]:
    return {name: b"out\n" + data for name, data in content.items()}


def signed_keys(content: dict[str, bytes]) -> set[str]:
    """The objects of these files that have addresses. All chunks of the large file are large."""
    return {chunk.hex() for data in content.values() if len(data) >= SIGNED_FROM for chunk in chunks_of(data)}


@pytest.mark.timeout(600)
def test_large_files_are_read_from_the_bucket_by_signed_addresses(bed: Bed) -> None:
    job, content = bed.submit("first", seed=1)
    root = bed.finish(job)
    expected = output_of(content)
    assert bed.fetch(job, "got") == expected, "every byte comes back"

    assert bed.large_keys() == signed_keys(content) | signed_keys(expected)
    for keys, is_user in ((signed_keys(content), False), (signed_keys(expected), True)):
        for key in keys:
            [read] = bed.proxy.reads(key)
            assert read.is_signed_address, "the server itself reads no large object"
            assert (read.status, read.is_user) == (200, is_user)
    reads = [request for request in bed.proxy.requests if request.method == "GET"]
    assert not [read for read in reads if read.is_signed_address and read.size < SIGNED_FROM]

    address = check_one_address(bed, job, root, expected)
    check_expired_addresses(bed, job, expected)
    wait_for_expiry(address)
    assert call("GET", address).status == 403, "an address holds for its time only"
    check_refused_addresses(bed, job)


def check_one_address(bed: Bed, job: str, root: str, expected: dict[str, bytes]) -> str:
    """An address opens one object, for reading."""
    first, second = chunks_of(expected["large"])
    small = hash_of(expected["small"])
    frames = bed.frames(job, root, first, second, small)
    assert frames[small] == (FrameKind.CONTENT, expected["small"])
    assert [frames[digest][0] for digest in (first, second)] == [FrameKind.ADDRESS] * 2
    address = frames[first][1].decode()
    answer = call("GET", address)
    assert (answer.status, hash_of(answer.body)) == (200, first)
    assert call("GET", address.replace(first.hex(), second.hex())).status == 403
    assert call("GET", address.replace(f"files/{first.hex()}", "")).status == 403, "no listing"
    for method in ("PUT", "DELETE"):
        assert call(method, address, b"x" if method == "PUT" else None).status == 403
    assert f"Expires={SIGNED_S}&" in urlsplit(address).query
    return address


def check_expired_addresses(bed: Bed, job: str, expected: dict[str, bytes]) -> None:
    """A user and an agent come too late with an address each. They ask for a new one, and get every byte."""
    of_user = chunks_of(expected["large"])[1].hex()
    of_agent = chunks_of(random.Random(2).randbytes(SIZES["middle"]))[0].hex()
    bed.proxy.hold = {of_user, of_agent}
    second, content = bed.submit("second", seed=2, files=["middle", "small"])
    assert bed.fetch(job, "got-late") == expected
    bed.finish(second)
    assert bed.fetch(second, "got-second") == output_of(content)
    for key, is_user in ((of_user, True), (of_agent, False)):
        reads = [read for read in bed.proxy.reads(key) if read.is_user == is_user][-2:]
        assert [(read.status, read.is_signed_address) for read in reads] == [(403, True), (200, True)]


def check_refused_addresses(bed: Bed, job: str) -> None:
    """The clock of the server is wrong: no address works, and the error says where to look."""
    bed.proxy.spoils = True
    client = Client(bed.stage.url, retry_s=1.0)
    with client, pytest.raises(Unavailable, match="refuses the address that the server gave") as caught:
        client.fetch(job, to=bed.stage.folder / "refused")
    assert "clocks" in caught.value.next_step
    assert "X-Amz" not in f"{caught.value}"
