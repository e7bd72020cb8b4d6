"""Bad days of an object store, on a real S3 server: away, slow, full, lying, other keys, signed addresses misused."""

from __future__ import annotations

import http.client
import os
import socket
import time
import traceback
from base64 import b64encode
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from switchyard.errors import Unavailable
from switchyard.model.files.files import SignedUpload
from switchyard.server.config.storage_section import open_store
from switchyard.storage.object_store import OBJECT_BYTES_MAX, ObjectDamaged, ObjectMissing, ObjectStore, StorageOptions
from tests.processes import PATIENCE_S, until
from tests.s3_service import S3Server, s3_running
from tests.storage.object_writer import an_object

NOWHERE = Path("/nonexistent")  # a bucket needs no folder
DIGEST, DATA = an_object(1, 300_000)
OTHER = an_object(2, 300_000)
VALID_S = 600
Request = tuple[str, str, dict[str, str], bytes]  # method, address, headers, body
ANSWER_HEAD = (
    f"HTTP/1.1 200 OK\r\nContent-Length: {len(DATA)}\r\nETag: x\r\nLast-Modified: Mon, 16 Nov 2026 10:00:00 GMT\r\n\r\n"
)


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_running() as server:
        yield server


@pytest.fixture
def options(s3: S3Server) -> StorageOptions:
    return s3.options(s3.create_bucket())


@pytest.fixture
def store(options: StorageOptions) -> ObjectStore:
    return open_store(options, data=NOWHERE)


def file_of(s3: S3Server, options: StorageOptions, digest: bytes) -> Path:
    return s3.buckets / options.bucket / options.prefix / digest.hex()


def send(method: str, url: str, headers: dict[str, str] | None = None, body: bytes = b"") -> tuple[int, bytes]:
    parts = urlsplit(url)
    line = http.client.HTTPConnection(parts.netloc, timeout=PATIENCE_S)
    try:
        line.request(method, f"{parts.path}?{parts.query}", body=body or None, headers=headers or {})
        answer = line.getresponse()
        return answer.status, answer.read()
    finally:
        line.close()


def calls_of(store: ObjectStore) -> list[Callable[[], object]]:
    return [
        store.check,
        lambda: store.put(DIGEST, DATA),
        lambda: store.put_many([(DIGEST, DATA), OTHER]),
        lambda: store.get(DIGEST),
        lambda: list(store.get_many([DIGEST, OTHER[0]])),
        lambda: store.has([DIGEST]),
        lambda: store.delete([DIGEST]),
        lambda: list(store.list()),
        lambda: store.accept("ann", [DIGEST]),
        lambda: store.drop_incoming("ann", [DIGEST]),
        lambda: store.drop_abandoned(before_us=0, limit=9),
    ]


def refusals(store: ObjectStore) -> Iterator[Unavailable]:
    """Each call of the store raises Unavailable."""
    for call in calls_of(store):
        with pytest.raises(Unavailable) as caught:
            call()
        yield caught.value


# --- the service ---


def test_a_service_that_is_away_and_comes_back(options: StorageOptions, s3: S3Server) -> None:
    store = open_store(options, data=NOWHERE)
    store.put(DIGEST, DATA)
    s3.kill()
    try:
        for problem in refusals(open_store(replace(options, timeout_s=0.3, retries=1), data=NOWHERE)):
            assert options.url in problem.inner
            assert "Connection refused" in problem.inner
            assert options.url not in problem.detail
    finally:
        s3.start()
    store.check()
    assert store.get(DIGEST) == DATA


def test_a_service_that_takes_connections_and_is_silent(options: StorageOptions, s3: S3Server) -> None:
    store = open_store(options, data=NOWHERE)
    store.put(DIGEST, DATA)
    with s3.hung():
        for call in calls_of(open_store(replace(options, timeout_s=0.3, retries=1), data=NOWHERE))[1:4]:
            began = time.monotonic()
            with pytest.raises(Unavailable, match="in time"):
                call()
            # Twice the time-out for each of two tries; a busy machine may need ten times that.
            assert time.monotonic() - began < 20
    assert store.get(DIGEST) == DATA


def test_a_service_that_ends_while_it_answers(s3: S3Server, options: StorageOptions) -> None:
    """A cut answer is no shorter object."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        url = f"http://127.0.0.1:{door.getsockname()[1]}"
        store = open_store(replace(options, endpoint=url, retries=0), data=NOWHERE)
        door.settimeout(PATIENCE_S)
        with ThreadPoolExecutor(1) as threads:
            reading = threads.submit(store.get, DIGEST)
            line, _ = door.accept()
            with line:
                line.recv(65536)
                line.sendall(ANSWER_HEAD.encode() + DATA[:1000])
            with pytest.raises(Unavailable):
                reading.result(PATIENCE_S)


def test_a_full_service_stores_nothing_by_halves() -> None:
    with s3_running(disk="1m") as small:
        store = open_store(replace(small.options(small.create_bucket()), retries=0), data=NOWHERE)
        large = [an_object(seed, 700_000) for seed in (1, 2)]
        store.put(*large[0])
        with pytest.raises(Unavailable):
            store.put(*large[1])
        upload = store.signed_put("ann", large[1][0], len(large[1][1]), valid_s=VALID_S)
        assert upload is not None
        assert send("PUT", upload.url, upload.headers, large[1][1])[0] >= 500
        assert [stored.digest for stored in store.list()] == [large[0][0]]
        assert store.get(large[0][0]) == large[0][1]
        store.delete([large[0][0]])
        store.put(*large[1])
        assert store.get(large[1][0]) == large[1][1]


@pytest.mark.parametrize("change", ["flipped", "cut", "longer", "huge"])
def test_a_service_that_lies_about_a_hash(
    s3: S3Server, options: StorageOptions, store: ObjectStore, change: str
) -> None:
    store.put(DIGEST, DATA)
    file = file_of(s3, options, DIGEST)
    changed = {"flipped": DATA[:-1] + bytes([DATA[-1] ^ 1]), "cut": DATA[:-1], "longer": DATA + b"x"}
    if change == "huge":
        os.truncate(file, OBJECT_BYTES_MAX * 1000)
    else:
        file.write_bytes(changed[change])
    with pytest.raises(ObjectDamaged, match=DIGEST.hex()):
        store.get(DIGEST)
    (answer,) = store.get_many([DIGEST])
    assert isinstance(answer, ObjectDamaged)
    store.put(DIGEST, DATA)
    assert store.get(DIGEST) == DATA


def test_keys_of_others_in_the_bucket_are_not_listed(s3: S3Server, options: StorageOptions, store: ObjectStore) -> None:
    store.put(DIGEST, DATA)
    for key in ("notes.txt", "F" * 64, "0" * 63):
        file_of(s3, options, DIGEST).with_name(key).write_bytes(b"")
    file_of(s3, options, DIGEST).parent.with_name("elsewhere").mkdir()
    assert [stored.digest for stored in store.list()] == [DIGEST]


# --- credentials ---


def test_other_credentials_are_refused_and_never_shown(options: StorageOptions, s3: S3Server) -> None:
    secret = "s3cr3t" * 7
    rows = [
        replace(options, credentials={**s3.credentials, "AWS_SECRET_ACCESS_KEY": secret}),
        replace(options, credentials={"AWS_ACCESS_KEY_ID": "AKNOBODY", "AWS_SECRET_ACCESS_KEY": secret}),
        replace(options, region="us-west-2"),
    ]
    open_store(options, data=NOWHERE).put(DIGEST, DATA)
    for changed in rows:
        assert secret not in repr(changed)
        for problem in refusals(open_store(changed, data=NOWHERE)):
            shown = "".join([problem.inner, *traceback.format_exception(problem), repr(problem)])
            for hidden in (secret, s3.secret_key, s3.access_key, "AKNOBODY", "Signature="):
                assert hidden not in shown
    with pytest.raises(Unavailable, match="credentials"):
        open_store(rows[0], data=NOWHERE).check()
    assert open_store(options, data=NOWHERE).get(DIGEST) == DATA


def test_a_bucket_that_does_not_exist(options: StorageOptions) -> None:
    for problem in refusals(open_store(replace(options, url="s3://no-such-bucket/files"), data=NOWHERE)):
        assert "no such bucket" in problem.detail


def test_plain_http_needs_a_word(options: StorageOptions) -> None:
    with pytest.raises(Unavailable):
        open_store(replace(options, allow_http=False), data=NOWHERE).check()


# --- signed addresses ---


def test_a_signed_address_reads_its_object_and_nothing_else(store: ObjectStore) -> None:
    store.put_many([(DIGEST, DATA), OTHER])
    url = store.signed_get(DIGEST, valid_s=VALID_S)
    assert url is not None
    assert send("GET", url) == (200, DATA)
    misuses: dict[str, Request] = {
        "another object": ("GET", url.replace(DIGEST.hex(), OTHER[0].hex()), {}, b""),
        "the whole bucket": ("GET", url.replace(f"/files/{DIGEST.hex()}", ""), {}, b""),
        "another method": ("PUT", url, {}, DATA),
        "a removal": ("DELETE", url, {}, b""),
        "more time": ("GET", url.replace(f"Expires={VALID_S}", "Expires=604000"), {}, b""),
        "another signature": ("GET", url[:-1] + ("0" if url[-1] != "0" else "1"), {}, b""),
        "no signature": ("GET", url.partition("?")[0], {}, b""),
    }
    for name, (method, address, headers, body) in misuses.items():
        assert send(method, address, headers, body)[0] in (400, 403), name
    assert store.get(DIGEST) == DATA
    assert store.get(OTHER[0]) == OTHER[1]


def test_a_signed_upload_takes_its_object_and_nothing_else(options: StorageOptions, store: ObjectStore) -> None:
    store.put(*OTHER)
    upload = store.signed_put("ann", DIGEST, len(DATA), valid_s=VALID_S)
    assert upload is not None
    url, headers = upload.url, upload.headers
    flipped = DATA[:-1] + bytes([DATA[-1] ^ 1])
    checksum = b64encode(OTHER[0]).decode()
    copied = {"x-amz-copy-source": f"/{options.bucket}/{options.prefix}/{OTHER[0].hex()}"}
    of_ben = store.signed_put("ben", DIGEST, len(DATA), valid_s=VALID_S)
    assert of_ben is not None
    senders = [urlsplit(address).path.split("-")[-2] for address in (url, of_ben.url)]
    misuses: dict[str, Request] = {
        "other bytes": ("PUT", url, headers, flipped),
        "fewer bytes": ("PUT", url, {**headers, "content-length": "1000"}, DATA[:1000]),
        "more bytes": ("PUT", url, {**headers, "content-length": str(len(DATA) + 1)}, DATA + b"x"),
        "other bytes with their checksum": ("PUT", url, {**headers, "x-amz-checksum-sha256": checksum}, OTHER[1]),
        "no checksum": ("PUT", url, {"content-length": headers["content-length"]}, flipped),
        "another object": ("PUT", url.replace(DIGEST.hex(), OTHER[0].hex()), headers, DATA),
        "a name of no object": ("PUT", url.replace(DIGEST.hex(), "evil"), headers, DATA),
        "the place of another user": ("PUT", url.replace(senders[0], senders[1]), headers, DATA),
        "not the incoming place": ("PUT", url.replace(f"incoming-{senders[0]}-", ""), headers, DATA),
        "a copy of an object of somebody else": ("PUT", url, {**headers, **copied}, flipped),
        "another method": ("GET", url, {}, b""),
        "a removal": ("DELETE", url, {"x-amz-checksum-sha256": headers["x-amz-checksum-sha256"]}, b""),
        "fewer signed headers": ("PUT", url.replace("%3Bx-amz-checksum-sha256", ""), headers, flipped),
        "more time": ("PUT", url.replace(f"Expires={VALID_S}", "Expires=604000"), headers, DATA),
    }
    for name, (method, address, sent, body) in misuses.items():
        assert send(method, address, sent, body)[0] in (400, 403), name
        assert [stored.digest for stored in store.list()] == [OTHER[0]], name
        assert store.accept("ann", [DIGEST, OTHER[0]]) == store.accept("ben", [DIGEST, OTHER[0]]) == {}, name
    assert send("PUT", url, headers, DATA)[0] == 200
    assert send("PUT", url, headers, DATA)[0] == 200, "a client that lost the answer sends it again"
    assert store.has([DIGEST]) == set(), "it is no object before it is accepted"
    assert store.accept("ben", [DIGEST]) == {}, "only its sender has uploaded it"
    assert store.accept("ann", [DIGEST]) == {DIGEST: len(DATA)}
    assert store.get(DIGEST) == DATA


def test_signed_addresses_end(store: ObjectStore) -> None:
    store.put(DIGEST, DATA)
    url, upload = store.signed_get(DIGEST, valid_s=1), store.signed_put("ann", OTHER[0], len(OTHER[1]), valid_s=1)
    assert url is not None
    assert upload is not None
    until(lambda: send("GET", url)[0] == 403, PATIENCE_S, "the signed address has ended")
    until(lambda: send("PUT", upload.url, upload.headers, OTHER[1])[0] == 403, PATIENCE_S, "the upload has ended")


def test_an_upload_that_is_cut_stores_nothing(store: ObjectStore) -> None:
    upload = store.signed_put("ann", DIGEST, len(DATA), valid_s=VALID_S)
    assert upload is not None
    for sent in (0, 1, 65_536, len(DATA) - 1):
        cut_upload(upload, DATA[:sent])
        assert store.accept("ann", [DIGEST]) == {}
        with pytest.raises(ObjectMissing):
            store.get(DIGEST)
    assert send("PUT", upload.url, upload.headers, DATA)[0] == 200
    assert store.accept("ann", [DIGEST]) == {DIGEST: len(DATA)}
    assert store.get(DIGEST) == DATA


def cut_upload(upload: SignedUpload, data: bytes) -> None:
    """Send the head and a part of the body, and wait until the service has let the connection go."""
    parts = urlsplit(upload.url)
    head = "".join(f"{name}: {value}\r\n" for name, value in {"host": parts.netloc, **upload.headers}.items())
    with socket.create_connection((str(parts.hostname), int(parts.port or 0)), timeout=PATIENCE_S) as line:
        line.sendall(f"PUT {parts.path}?{parts.query} HTTP/1.1\r\n{head}\r\n".encode() + data)
        line.shutdown(socket.SHUT_WR)
        while line.recv(65536):
            pass


def test_addresses_are_not_given_where_they_are_not_wanted(options: StorageOptions) -> None:
    store = open_store(replace(options, is_direct=False), data=NOWHERE)
    assert store.signed_get(DIGEST, valid_s=VALID_S) is None
    assert store.signed_put("ann", DIGEST, 1, valid_s=VALID_S) is None


def test_a_service_that_is_killed_while_it_stores(s3: S3Server, options: StorageOptions) -> None:
    """What was answered is there; what was not is there whole or not at all."""
    store = open_store(replace(options, timeout_s=60, retries=0), data=NOWHERE)
    objects = [an_object(seed, 200_000) for seed in range(40)]
    stored: list[bytes] = []

    def write() -> None:
        for digest, data in objects:
            store.put(digest, data)
            stored.append(digest)

    with ThreadPoolExecutor(1) as threads:
        writing = threads.submit(write)
        until(lambda: len(stored) > 3, PATIENCE_S, "some objects are stored")
        s3.kill()
        try:
            assert isinstance(writing.exception(PATIENCE_S), (Unavailable, type(None)))
        finally:
            s3.start()
    store = open_store(options, data=NOWHERE)
    assert store.has(stored) == set(stored)
    for entry in store.list():
        assert len(store.get(entry.digest)) == entry.size
    store.put_many(objects)
    assert store.has(digest for digest, _ in objects) == {digest for digest, _ in objects}
