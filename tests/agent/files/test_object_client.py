"""The agent's calls for objects, against answers that lie, are cut off, or lead to an object store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest

from switchyard.agent.files.inputs.staging_errors import ObjectLost
from switchyard.agent.files.object_client import AttemptRights, ObjectClient, ObjectMismatch
from switchyard.agent.server.client import Connection, ServerUnreachable, parse_server_url
from switchyard.agent.server.credential import AgentCredentials, Credential
from switchyard.errors import BadRequest, NotFound, Unavailable, YardError
from switchyard.model.files.file_frames import MEDIA, FrameKind, decode_frames, encode_frame
from switchyard.model.files.file_tree import hash_of
from switchyard.model.files.files import SignedUpload
from switchyard.model.wire.api import Problem

RIGHTS = AttemptRights("J" * 26, 7)
ONE, TWO = hash_of(b"one"), hash_of(b"two")
Answer = tuple[int, bytes]


class Peer:
    """Answers with what the test puts into `answers`, by path, and keeps what was asked."""

    def __init__(self) -> None:
        peer = self
        self.answers: dict[str, Answer | list[Answer]] = {}  # several: one after the other
        self.asked: list[tuple[str, str, dict[str, str], bytes]] = []
        self.cut = 0  # bytes left out at the end of each answer

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
                headers = {key.lower(): value for key, value in self.headers.items()}
                peer.asked.append((self.command, self.path, headers, body))
                answer = peer.answers[self.path.partition("?")[0]]
                status, data = answer.pop(0) if isinstance(answer, list) else answer
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data[: len(data) - peer.cut])
                self.close_connection = bool(peer.cut)

            do_GET = do_POST = do_PUT = answer  # noqa: N815

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def peer() -> Iterator[Peer]:
    made = Peer()
    yield made
    made.server.shutdown()
    made.server.server_close()


def client_of(peer: Peer) -> ObjectClient:
    return ObjectClient(Connection([parse_server_url(peer.url)], bearer="secret"))


def read(peer: Peer, *digests: bytes) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    client_of(peer).read(RIGHTS, hash_of(b"root"), digests, found.__setitem__)
    return found


def frames(*objects: tuple[FrameKind, bytes, bytes]) -> Answer:
    return 200, b"".join(encode_frame(*parts) for parts in objects)


def test_objects_come_in_frames_or_from_the_store(peer: Peer) -> None:
    peer.answers["/v1/agents/files/read"] = frames(
        (FrameKind.CONTENT, ONE, b"one"), (FrameKind.ADDRESS, TWO, f"{peer.url}/bucket/two?signature=x".encode())
    )
    peer.answers["/bucket/two"] = (200, b"two")
    assert read(peer, ONE, TWO) == {ONE: b"one", TWO: b"two"}
    (_, path, asked, _), (_, stored, to_store, _) = peer.asked
    assert path == f"/v1/agents/files/read?job={'J' * 26}&fence=7"
    assert asked["authorization"] == "Bearer secret"
    assert stored == "/bucket/two?signature=x"
    assert "authorization" not in to_store, "the store does not get the agent's credential"


BAD: list[tuple[str, Callable[[str], Answer], Answer, type[YardError], str]] = [
    ("another content", lambda _: frames((FrameKind.CONTENT, ONE, b"lie")), (200, b""), ObjectMismatch, "content"),
    ("left out", lambda _: frames(), (200, b""), ServerUnreachable, "left out 1 of 1"),
    ("not asked for", lambda _: frames((FrameKind.CONTENT, TWO, b"two")), (200, b""), ServerUnreachable, "not asked"),
    ("no frames", lambda _: (200, b"\xff" * 50), (200, b""), ServerUnreachable, "cannot be read"),
    ("absent", lambda _: frames((FrameKind.ABSENT, ONE, b"lost")), (200, b""), ObjectLost, "is missing from the store"),
    ("no such tree", lambda _: (404, b"proxy"), (200, b""), Unavailable, "404"),
    (
        "store lies",
        lambda url: frames((FrameKind.ADDRESS, ONE, f"{url}/store".encode())),
        (200, b"lie"),
        ObjectMismatch,
        "content",
    ),
    (
        "store expired",
        lambda url: frames((FrameKind.ADDRESS, ONE, f"{url}/store?secret".encode())),
        (403, b""),
        Unavailable,
        "answered 403",
    ),
    (
        "store lost",
        lambda url: frames((FrameKind.ADDRESS, ONE, f"{url}/store".encode())),
        (404, b""),
        NotFound,
        "does not have an object",
    ),
    ("strange store", lambda _: frames((FrameKind.ADDRESS, ONE, b"file:///etc/passwd")), (200, b""), Unavailable, "no"),
    (
        "store away",
        lambda _: frames((FrameKind.ADDRESS, ONE, b"http://127.0.0.1:9/x")),
        (200, b""),
        Unavailable,
        "did not answer",
    ),
]


@pytest.mark.parametrize(("answer", "store", "error", "words"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_bad_answers(
    peer: Peer, answer: Callable[[str], Answer], store: Answer, error: type[YardError], words: str
) -> None:
    peer.answers = {"/v1/agents/files/read": answer(peer.url), "/store": store}
    with pytest.raises(error, match=words) as caught:
        read(peer, ONE)
    assert "secret" not in caught.value.detail, "a signed address is a right: it is in no message"


@pytest.mark.parametrize("store", [(404, b""), (200, b"lie")])
def test_an_object_that_is_not_at_its_address_is_read_by_the_server(peer: Peer, store: Answer) -> None:
    """The server looks for itself: the object is there after all, or the store has lost it."""
    address = frames((FrameKind.ADDRESS, ONE, f"{peer.url}/store".encode()))
    for second in (frames((FrameKind.CONTENT, ONE, b"one")), frames((FrameKind.ABSENT, ONE, b"gone"))):
        peer.answers = {"/v1/agents/files/read": [address, second], "/store": store}
        if b"gone" in second[1]:
            with pytest.raises(ObjectLost, match="missing from the store; send the files again"):
                read(peer, ONE)
        else:
            assert read(peer, ONE) == {ONE: b"one"}
        *_, (_, _, _, body) = peer.asked
        assert msgspec.json.decode(body)["is_read_by_server"] is True


def test_a_server_of_an_older_version_that_gives_only_addresses(peer: Peer) -> None:
    address = frames((FrameKind.ADDRESS, ONE, f"{peer.url}/store".encode()))
    problem = b'{"type":"about:blank","code":"malformed","title":"","status":400,"detail":"unknown field"}'
    peer.answers = {"/v1/agents/files/read": [address, (400, problem)], "/store": (200, b"lie")}
    with pytest.raises(ObjectMismatch, match="content"):
        read(peer, ONE)


def test_an_answer_that_is_cut_off_is_no_answer(peer: Peer) -> None:
    """At every place of the last frame; what came before it is good."""
    whole = frames((FrameKind.CONTENT, ONE, b"one"), (FrameKind.CONTENT, TWO, b"two"))
    peer.answers["/v1/agents/files/read"] = whole
    for cut in range(1, 41, 3):
        peer.cut = cut
        with pytest.raises(ServerUnreachable):
            read(peer, ONE, TWO)


def test_objects_are_sent_in_frames_or_to_the_store(peer: Peer) -> None:
    peer.answers = {"/v1/agents/files/objects": (200, b'{"objects":1,"bytes":3}'), "/bucket/two": (200, b"")}
    signed = {TWO.hex(): SignedUpload(f"{peer.url}/bucket/two?signature=x", {"content-length": "3", "x-sum": "s"})}
    client_of(peer).send(RIGHTS, {ONE: b"one", TWO: b"two"}, signed)
    put, post = sorted(peer.asked, key=lambda asked: asked[0], reverse=True)
    assert (put[0], put[1], put[3]) == ("PUT", "/bucket/two?signature=x", b"two")
    assert (put[2]["content-length"], put[2]["x-sum"], put[2].get("authorization")) == ("3", "s", None)
    assert post[2]["content-type"] == MEDIA
    assert sent_frames(post[3]) == [(FrameKind.CONTENT, ONE, b"one"), (FrameKind.UPLOADED, TWO, b"")]


def sent_frames(body: bytes) -> list[tuple[FrameKind, bytes, bytes]]:
    return [tuple(frame) for frame in decode_frames([body])]


@pytest.mark.parametrize("status", [403, 400, 503, 0], ids=["expired", "refused", "busy", "away"])
def test_what_the_store_does_not_take_goes_through_the_server(peer: Peer, status: int) -> None:
    peer.answers = {"/v1/agents/files/objects": (200, b"{}"), "/bucket/two": (status, b"")}
    url = f"{peer.url}/bucket/two?signature=x" if status else "http://127.0.0.1:9/two?signature=x"
    client = client_of(peer)
    for _ in range(2):
        client.send(RIGHTS, {TWO: b"two"}, {TWO.hex(): SignedUpload(url)})
        assert sent_frames(peer.asked[-1][3]) == [(FrameKind.CONTENT, TWO, b"two")]
    puts = [asked for asked in peer.asked if asked[0] == "PUT"]
    assert len(puts) == (1 if status else 0), "the store is left alone for a while"


def test_what_the_store_lost_goes_through_the_server(peer: Peer) -> None:
    refusal = msgspec.json.encode(Problem("about:blank", "not there", 400, "malformed", "not there"))
    peer.answers = {"/v1/agents/files/objects": (400, refusal), "/bucket/two": (200, b"")}
    with pytest.raises(BadRequest):
        client_of(peer).send(RIGHTS, {TWO: b"two"}, {TWO.hex(): SignedUpload(f"{peer.url}/bucket/two")})
    bodies = [sent_frames(body) for method, _, _, body in peer.asked if method == "POST"]
    assert bodies == [[(FrameKind.UPLOADED, TWO, b"")], [(FrameKind.CONTENT, TWO, b"two")]]


def test_a_process_calls_for_files_once_the_server_has_accepted_it_and_names_itself(peer: Peer, tmp_path: Path) -> None:
    """The server would take an earlier call for that of a copy, and show it to operators."""
    credential = Credential(agent="a", cluster="c", name="n", credential="secret", server=peer.url, journal="j")
    keys = AgentCredentials(tmp_path, credential)
    client = ObjectClient(Connection([parse_server_url(peer.url)], keys=keys).within_session())
    peer.answers["/v1/agents/files/room"] = (200, b"{}")
    for incarnation in ("", "claim-1"):
        keys.name_process(incarnation, has_session=False)
        with pytest.raises(ServerUnreachable, match="not accepted"):
            client.room(RIGHTS)
    assert peer.asked == []
    keys.name_process("claim-1", has_session=True)
    client.room(RIGHTS)
    ((_, _, headers, _),) = peer.asked
    assert headers["yard-incarnation"] == "claim-1"
