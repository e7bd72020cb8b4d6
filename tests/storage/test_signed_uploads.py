"""Services that speak S3 and do not bind an upload to its content get no uploads by signed addresses."""

from __future__ import annotations

import hashlib
import re
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from switchyard.features.buckets.signed_uploads import S3Keys, UploadSigner, incoming_key
from tests.storage.object_writer import an_object

DIGEST, DATA = an_object(1, 300_000)


class Service:
    """A service that takes what a real one refuses, as the test says. It checks no signature."""

    def __init__(self) -> None:
        self.checks_hash = self.refuses_copy = True
        self.status = 0  # of every answer; 0: as it should be
        self.asked: list[str] = []
        self.stored: set[str] = set()


@contextmanager
def serving(service: Service) -> Iterator[UploadSigner]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_PUT(self) -> None:
            service.asked.append("PUT")
            body = self.rfile.read(int(self.headers["Content-Length"]))
            is_copy = "x-amz-copy-source" in self.headers
            is_right = self.headers["x-amz-checksum-sha256"] == b64encode(hashlib.sha256(body).digest()).decode()
            is_taken = not service.refuses_copy if is_copy else is_right or not service.checks_hash
            if is_taken:
                service.stored.add(self.path.partition("?")[0])
            self._end(service.status or (200 if is_taken else 400))

        def do_DELETE(self) -> None:
            service.stored.discard(self.path.partition("?")[0])
            self._end(204)

        def _end(self, status: int) -> None:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield UploadSigner(f"http://127.0.0.1:{server.server_port}/bucket/files", "here", S3Keys("key", "secret"))
    finally:
        server.shutdown()
        server.server_close()


def is_signed(signer: UploadSigner) -> bool:
    return signer.sign(incoming_key("ann", DIGEST), DIGEST, len(DATA), valid_s=60) is not None


@pytest.mark.parametrize(
    ("checks_hash", "refuses_copy", "is_safe"),
    [(True, True, True), (False, True, False), (True, False, False)],
    ids=["safe", "takes other bytes", "takes a copy"],
)
def test_a_service_must_refuse_what_was_not_signed(checks_hash: bool, refuses_copy: bool, is_safe: bool) -> None:
    service = Service()
    service.checks_hash, service.refuses_copy = checks_hash, refuses_copy
    with serving(service) as signer:
        assert is_signed(signer) is is_safe
        asked = len(service.asked)
        assert is_signed(signer) is is_safe
        assert len(service.asked) == asked, "the trial is made once"
    assert service.stored == set(), "and leaves nothing"


def test_a_service_that_does_not_answer_is_tried_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service()
    for status in (503, 403):
        service.status = status
        with serving(service) as signer:
            assert not is_signed(signer)
            asked = len(service.asked)
            assert not is_signed(signer)
            assert len(service.asked) == asked, "not at every upload"
            service.status = 0
            monkeypatch.setattr(signer, "_next_trial_s", 0.0)
            assert is_signed(signer)
    away = UploadSigner(signer.base, "here", S3Keys("key", "secret"))
    assert not is_signed(away)


def test_two_senders_of_one_object_have_two_places() -> None:
    keys = {incoming_key(sender, DIGEST) for sender in ("ann", "ben", "../ann", "ann/..", "")}
    assert len(keys) == 5
    assert all(re.fullmatch("incoming-[0-9a-f]{32}-[0-9a-f]{64}", key) for key in keys)
