"""The server is killed while it takes an object that was uploaded by a signed address. On a real S3 server.

The store copies the object to its place, the database records who holds it, and the upload is dropped: killed between
any two of these steps, nothing is lost, nothing is counted twice, and what is left over is collected.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from switchyard.model.files.file_frames import MEDIA, FrameKind, encode_frame
from switchyard.model.files.file_tree import hash_of
from switchyard.server.config.storage_section import open_store
from switchyard.service.core.file_storage import SIGNED_FROM_BYTES, FileStorage
from switchyard.service.upkeep.collect_files import FileCollection
from switchyard.store.engine.clock import wall_us
from switchyard.store.files import file_objects
from tests.processes import PATIENCE_S
from tests.programs import Server, call, start_server
from tests.s3_proxy import S3Proxy, s3_proxy
from tests.s3_service import REGION, S3Server, s3_running
from tests.service.rig import ADMIN, Clock, running

DAYS_3_US = 3 * 86_400_000_000
MOMENTS = {"before COPY": False, "after COPY": False, "before DELETE": True}  # … and whether the object is recorded


@dataclass
class Bed:
    """A server whose bucket is behind a proxy. Each moment of the server's requests can be its last."""

    server: Server
    proxy: S3Proxy
    store: S3Server
    bucket: str

    def names(self) -> set[str]:
        """The objects in the bucket, and the uploads: those begin with `incoming`."""
        return {path.name for path in (self.store.buckets / self.bucket / "files").glob("*") if path.is_file()}

    def post(self, path: str, body: Any) -> Any:
        headers = {"Content-Type": MEDIA} if isinstance(body, bytes) else None
        answer = call("POST", self.server.url + path, body, headers=headers)
        assert answer.status == 200, answer.body
        return answer.json

    def upload(self) -> bytes:
        """Send an object to the address that the server gives for it. Returns its hash."""
        data = os.urandom(SIGNED_FROM_BYTES)
        digest = hash_of(data)
        asked = {"objects": [digest.hex()], "sizes": [len(data)]}
        address = self.post("/v1/files/missing", asked)["uploads"][digest.hex()]
        assert call("PUT", address["url"], data, headers=address["headers"]).status == 200
        return digest

    def confirm(self, digest: bytes) -> None:
        self.post("/v1/files/objects", encode_frame(FrameKind.UPLOADED, digest, b""))

    def confirm_and_be_killed(self, digest: bytes, moment: str) -> None:
        is_killed = threading.Event()

        def kill() -> None:
            self.server.kill()
            is_killed.set()

        self.proxy.traps = {moment: kill}
        with pytest.raises(OSError):
            self.confirm(digest)
        assert is_killed.wait(PATIENCE_S)

    def is_held(self, digest: bytes) -> bool:
        return self.post("/v1/files/missing", {"objects": [digest.hex()]})["missing"] == []

    def used_bytes(self) -> int:
        return int(call("GET", f"{self.server.url}/v1/files/usage").json["user"]["bytes"])


@contextmanager
def bed_running(folder: Path) -> Iterator[Bed]:
    with s3_running() as store, s3_proxy(store.port) as proxy:
        bucket = store.create_bucket()
        section = {"url": f"s3://{bucket}/files", "endpoint": proxy.endpoint, "region": REGION, "allow_http": True}
        config = folder / "config.yaml"
        config.write_text(json.dumps({"storage": section}), encoding="utf-8")  # JSON is YAML
        server = start_server(folder, extra=["--config", str(config)], env=store.credentials)
        try:
            yield Bed(server, proxy, store, bucket)
        finally:
            server.close()


@pytest.mark.timeout(600)
def test_an_upload_survives_a_kill_at_any_moment_and_what_is_left_is_collected(tmp_path: Path) -> None:
    with bed_running(tmp_path) as bed:
        digests: list[bytes] = []
        for moment, is_recorded in MOMENTS.items():
            digest = bed.upload()
            bed.confirm_and_be_killed(digest, moment)
            assert (digest.hex() in bed.names()) is (moment != "before COPY"), moment
            bed.server.start().wait_ready()
            assert bed.is_held(digest) is is_recorded, moment
            assert bed.used_bytes() == (len(digests) + is_recorded) * SIGNED_FROM_BYTES, moment
            digests.append(digest)
            for _ in range(2):
                bed.confirm(digest)
                assert (bed.is_held(digest), bed.used_bytes()) == (True, len(digests) * SIGNED_FROM_BYTES), moment
            content = (bed.store.buckets / bed.bucket / "files" / digest.hex()).read_bytes()
            assert hash_of(content) == digest, moment
        assert bed.names() == {digest.hex() for digest in digests}, "the uploads are dropped"

        copied = bed.upload()
        bed.confirm_and_be_killed(copied, "after COPY")
        assert copied.hex() in bed.names(), "a copy that no database knows, and its upload"
        assert any(name.startswith("incoming") for name in bed.names())
        check_collected(bed, tmp_path)


def check_collected(bed: Bed, folder: Path) -> None:
    """Days later the leader of another process removes all that no job needs, with what the kill left."""
    data = folder / "server-data"
    options = bed.store.options(bed.bucket)
    with running(f"sqlite:///{data / 'switchyard.db'}", data, clock=Clock(wall_us() + DAYS_3_US)) as rig:
        store = open_store(options, data=data)
        context = replace(rig.context, files=FileStorage(lambda: store))
        chore = FileCollection()
        removed: dict[str, int] = {}
        for _ in range(20):
            rig.leader.take(rig.context)
            chore.go(context, rig.leader)
            removed = {what: removed.get(what, 0) + chore.removed.get(what, 0) for what in removed | chore.removed}
            rig.clock.wait(86_400)
            if not bed.names():
                break
        assert bed.names() == set(), removed
        assert removed["unknown objects"] == 1, removed
        with rig.context.database.read() as tx:
            assert file_objects.usage_get(tx, ADMIN.id) == 0, "each object was counted once"
