"""A server whose bucket is behind a proxy, and files of all sizes for its jobs."""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from switchyard.model.files.file_frames import FrameKind, decode_frames
from switchyard.model.files.file_tree import chunk_spans, hash_of
from switchyard.model.job.job import State
from tests.acceptance.files.job_files import outputs_of
from tests.acceptance.stage import Stage, staged
from tests.processes import PATIENCE_S
from tests.s3_proxy import S3Proxy, s3_proxy
from tests.s3_service import REGION, s3_running

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
