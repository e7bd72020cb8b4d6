"""Images of a registry: their tags become digests, their needs are read, and a bad registry harms nobody."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from switchyard import State
from switchyard.errors import EXIT_REJECTED
from tests.acceptance.stage import SOON_S, Stage, staged
from tests.processes import until
from tests.programs import Answer, start_agent
from tests.registry_peer import ARTIFACT, INDEX, MANIFEST, RegistryPeer, write_certificate

pytestmark = pytest.mark.xdist_group("registry")
NFD = "application/vnd.nfd.image-compatibility.v1alpha1"
NFD_LAYER = "application/vnd.nfd.image-compatibility.spec.v1alpha1+yaml"
COMPSPEC = "application/org.supercontainers.compspec"
SITE = 'images: [{match: "*", run: host}]'
BASIC = "Basic " + base64.b64encode(b"yard:s3cret").decode()


class Yard:
    """A server, and three registries: by http, by https with an authority that it knows, and with another one."""

    def __init__(
        self, stage: Stage, plain: RegistryPeer, secure: RegistryPeer, strange: RegistryPeer, *, away: str
    ) -> None:
        self.stage, self.plain, self.secure, self.strange = stage, plain, secure, strange
        self.away = away  # where nobody listens

    def submit(self, image: str, key: str = "", **spec: Any) -> Answer:
        body = {"spec": {"command": ["true"], "image": image, **spec}}
        headers = {"Idempotency-Key": key} if key else {}
        return self.stage.call("POST", "/v1/jobs", body, headers=headers)

    def spec(self, image: str, **spec: Any) -> dict[str, Any]:
        answer = self.submit(image, **spec)
        assert answer.status == 201, answer.body
        found: dict[str, Any] = self.stage.job(answer.json["id"])["spec"]
        return found


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    folder = tmp_path_factory.mktemp("registries")
    own, unknown = write_certificate(folder), write_certificate(folder, "unknown")
    plain, secure, strange, away = RegistryPeer(), RegistryPeer(own), RegistryPeer(unknown), RegistryPeer()
    away.close()
    (folder / "credentials.yaml").write_text("user: yard\npassword: s3cret\n")
    (folder / "credentials.yaml").chmod(0o600)
    site = {"private": True}
    registries = [
        {
            "host": plain.host,
            "plain_http": True,
            "allow": ["lab/*", "bad/*"],
            "credentials_file": "credentials.yaml",
            **site,
        },
        {"host": secure.host, "ca": str(own[0]), **site},
        {"host": strange.host, **site},
        {"host": away.host, "plain_http": True, **site},
        {"host": f"localhost:{plain.port}"},  # its address is no public one, and its entry does not allow that
    ]
    config = folder / "yard.yaml"
    config.write_text(json.dumps({"images": {"registries": registries, "timeout": "2s"}}))
    with staged(folder, extra=["--config", str(config)]) as stage:
        graph = {"nodes": 1, "each": {"core": 8, "memory": "8GiB"}, "hosts": "n0"}
        with start_agent(folder, stage.url, "alpha", graph=graph, extra=stage.site("alpha", SITE)):
            system = {"attach": {"n0": [{"type": "system", "architecture": "x86_64", "os": "linux"}]}}
            assert stage.call("PUT", "/v1/clusters/alpha/subsystems/system", system).status == 200
            yield Yard(stage, plain, secure, strange, away=away.host)
    for peer in (plain, secure, strange):
        peer.close()


def test_a_tag_is_pinned_and_what_runs_is_the_digest(yard: Yard) -> None:
    first = yard.plain.image("lab/sim", tag="7")
    pinned = f"{yard.plain.host}/lab/sim@{first['digest']}"
    done = yard.stage.yard("submit", "--wait", "--image", f"{yard.plain.host}/lab/sim:7", "--", "true")
    assert done.returncode == 0, done
    [job] = [row for row in yard.stage.walk("/v1/jobs", limit=100) if row["state"] == State.SUCCEEDED]
    spec = yard.stage.job(job["id"])["spec"]
    assert spec["image"] == pinned
    assert {"field": "architecture", "equals": "x86_64"} in spec["compatibility"]
    # The tag moves on; a retry runs what the first one ran.
    yard.plain.image("lab/sim", tag="7", labels={"a": "b"})
    again = yard.stage.yard("retry", job["id"], "-o", "name").stdout.strip()
    assert yard.stage.job(again)["spec"]["image"] == pinned
    blobs = [path for path in yard.plain.asked if "/blobs/" in path]
    assert len(blobs) == 1, "the configuration alone: no layer is pulled"


def test_a_plan_reads_the_image_and_a_bulk_request_pins_each(yard: Yard) -> None:
    image = yard.plain.image("lab/bulk", tag="1", architecture="s390x")
    name = f"{yard.plain.host}/lab/bulk:1"
    plan = yard.stage.yard("submit", "--plan", "--image", name, "--", "true")
    assert (plan.returncode, "architecture" in plan.stdout) == (EXIT_REJECTED, True), plan
    yard.plain.image("lab/fits", tag="1")
    jobs = [
        {"spec": {"command": ["true"], "image": text}}
        for text in (f"{yard.plain.host}/lab/fits:1", name, f"{yard.plain.host}/other/x:1")
    ]
    answer = yard.stage.post("/v1/jobs/bulk", {"jobs": jobs, "each": True})
    items = answer["items"]
    assert yard.stage.job(items[0]["job"]["id"])["spec"]["image"].startswith(f"{yard.plain.host}/lab/fits@sha256:")
    assert yard.stage.job(items[1]["job"]["id"])["spec"]["image"] == f"{yard.plain.host}/lab/bulk@{image['digest']}"
    assert yard.stage.job(items[1]["job"]["id"])["state"] == State.REJECTED
    assert items[2]["problem"]["code"] == "policy-refused"


OURS = b'{"compatibility": [{"field": "gpu-driver", "min": "535"}]}'
NFD_YAML = b"""\
version: v1alpha1
compatibilities:
- rules:
  - name: driver
    matchFeatures:
    - feature: kernel.loadedmodule
      matchExpressions: {nvidia: {op: Exists}}
    - feature: kernel.version
      matchExpressions: {major: {op: Gt, value: ["4"]}}
"""
COMPSPEC_JSON = b"""\
{"version": "0.0.0", "kind": "CompatibilitySpec", "metadata": {"name": "x"}, "compatibilities": [
 {"name": "org.supercontainers", "version": "0.0.0", "attributes": {
  "mpi.implementation": "mpich", "mpi.version": "4.1.1", "os.name": "x"}}]}
"""


@pytest.mark.parametrize(
    ("kind", "layer", "body", "needs"),
    [
        (
            ARTIFACT,
            "application/vnd.switchyard.image-compatibility.v1+json",
            OURS,
            [{"field": "gpu-driver", "min": "535"}],
        ),
        (NFD, NFD_LAYER, NFD_YAML, [{"field": "gpu-vendor", "equals": "nvidia"}, {"field": "kernel", "min": "5"}]),
        (
            COMPSPEC,
            COMPSPEC,
            COMPSPEC_JSON,
            [{"field": "mpi-implementation", "equals": "mpich"}, {"field": "mpi", "min": "4.1.1"}],
        ),
        (ARTIFACT, "application/vnd.example+json", b"{", []),
    ],
    ids=["ours", "nfd", "compspec", "unknown"],
)
@pytest.mark.parametrize("has_referrers", [True, False])
def test_artifacts_say_what_the_image_needs(
    yard: Yard, kind: str, layer: str, body: bytes, needs: list[Any], has_referrers: bool
) -> None:
    repository = f"lab/{layer.rpartition('/')[2].replace('+', '-')}-{has_referrers}".lower()
    image = yard.plain.image(repository, tag="1")
    artifact = yard.plain.artifact(repository, image, body, layer=layer, kind=kind)
    if not has_referrers:
        index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [artifact]}
        yard.plain.push(repository, index, tag=image["digest"].replace(":", "-"))
    yard.plain.has_referrers = has_referrers
    try:
        found = yard.spec(f"{yard.plain.host}/{repository}:1")["compatibility"]
    finally:
        yard.plain.has_referrers = True
    platform = [{"field": "architecture", "equals": "x86_64"}, {"field": "os", "equals": "linux"}]
    assert found == platform + needs


def test_an_index_of_one_platform_needs_it_and_one_of_several_needs_none(yard: Yard) -> None:
    one, other = yard.plain.image("lab/multi"), yard.plain.image("lab/multi", architecture="arm64")
    proof = {**other, "platform": {"architecture": "unknown", "os": "unknown"}}
    for tag, entries, count in (("one", [one, proof], 2), ("two", [one, other], 0)):
        index = yard.plain.push("lab/multi", {"schemaVersion": 2, "mediaType": INDEX, "manifests": entries}, tag=tag)
        spec = yard.spec(f"{yard.plain.host}/lab/multi:{tag}")
        assert spec["image"].endswith(f"@{index['digest']}"), "the index, of which each cluster takes its platform"
        assert len(spec.get("compatibility", [])) == count


def test_tokens_and_passwords_open_a_private_registry(yard: Yard) -> None:
    peer, name = yard.plain, f"{yard.plain.host}/lab/private"
    for number, (wants, challenge) in enumerate(
        ((BASIC, 'Basic realm="x"'), ("Bearer t0ken", f'Bearer realm="http://{peer.host}/token",service="r"'))
    ):
        peer.image("lab/private", tag=str(number), labels={"n": str(number)})
        peer.wants, peer.challenge, peer.token_for = wants, challenge, BASIC
        try:
            assert yard.spec(f"{name}:{number}")["image"].startswith(f"{name}@sha256:")
        finally:
            peer.wants, peer.challenge, peer.token_for = None, "", ""


def test_https_with_an_authority_of_the_site(yard: Yard) -> None:
    image = yard.secure.image("any/thing", tag="v1")
    assert yard.spec(f"{yard.secure.host}/any/thing:v1")["image"] == f"{yard.secure.host}/any/thing@{image['digest']}"


def test_a_digest_that_was_read_needs_no_registry_and_a_key_keeps_its_job(yard: Yard) -> None:
    image = yard.plain.image("lab/kept", tag="1")
    by_tag, by_digest = f"{yard.plain.host}/lab/kept:1", f"{yard.plain.host}/lab/kept@{image['digest']}"
    first = yard.submit(by_tag, key="kept-key")
    assert first.status == 201, first.body
    with on_request(yard.plain, cut):
        assert yard.spec(by_digest)["image"] == by_digest
        other = yard.plain.image("lab/kept", tag="2", labels={"other": "one"})
        assert yard.submit(f"{yard.plain.host}/lab/kept@{other['digest']}").status == 503, "it was never read"
        until(lambda: yard.submit(by_tag).status == 503, SOON_S, "what the tag means is forgotten after a second")
        again = yard.submit(by_tag, key="kept-key")
        assert (again.status, again.json["id"]) == (200, first.json["id"])


def test_images_of_other_registries_are_taken_as_they_are(yard: Yard) -> None:
    for image in ("lab/sim:7", "registry.example.org/lab/sim:7", "ubuntu"):
        assert yard.spec(image)["image"] == image


# --- bad days: each is refused with words, within its bounds, and the next submit works


@contextmanager
def on_request(peer: RegistryPeer, act: Callable[[BaseHTTPRequestHandler], bool]) -> Iterator[None]:
    peer.on_request = act
    try:
        yield
    finally:
        peer.on_request = lambda _: False


def cut(request: BaseHTTPRequestHandler) -> bool:
    request.close_connection = True
    request.connection.close()
    return True


def drip(request: BaseHTTPRequestHandler) -> bool:
    """A line now and then, so that no single wait is long."""
    request.send_response(200)
    request.flush_headers()
    for _ in range(100):
        try:
            request.wfile.write(b"X-Slow: 1\r\n")
            request.wfile.flush()
        except OSError:
            break
        time.sleep(0.1)  # the pace of a slow registry
    return True


def huge(request: BaseHTTPRequestHandler) -> bool:
    """A gigabyte that says its size."""
    request.send_response(200)
    request.send_header("Content-Length", str(2**30))
    request.end_headers()
    return True


def endless(request: BaseHTTPRequestHandler) -> bool:
    """Pieces without an end."""
    request.send_response(200)
    request.end_headers()
    try:
        for _ in range(2**14):
            request.wfile.write(b"x" * 2**16)
    except OSError:
        pass
    request.close_connection = True
    return True


def with_headers(status: int, **headers: str) -> Callable[[BaseHTTPRequestHandler], bool]:
    def act(request: BaseHTTPRequestHandler) -> bool:
        RegistryPeer.send(request, status, b"{}", **{name.replace("_", "-"): value for name, value in headers.items()})
        return True

    return act


def lying(request: BaseHTTPRequestHandler) -> bool:
    digest = "sha256:" + "0" * 64
    RegistryPeer.send(request, 200, b'{"schemaVersion": 2}', **{"Docker-Content-Digest": digest})
    return True


def other_blobs(request: BaseHTTPRequestHandler) -> bool:
    if "/blobs/" not in request.path:
        return False
    RegistryPeer.send(request, 200, b'{"architecture": "forged"}')
    return True


def body(text: bytes) -> Callable[[BaseHTTPRequestHandler], bool]:
    def act(request: BaseHTTPRequestHandler) -> bool:
        RegistryPeer.send(request, 200, text)
        return True

    return act


LONG_INDEX = json.dumps(
    {"manifests": [{"mediaType": MANIFEST, "digest": "sha256:" + "a" * 64, "size": 1}] * 10_000, "mediaType": INDEX}
).encode()
BAD_DAYS: list[tuple[str, Callable[[BaseHTTPRequestHandler], bool], int, str]] = [
    ("hangs up", cut, 503, "does not answer"),
    ("drips", drip, 503, "took too long"),
    ("a gigabyte", huge, 413, "more than 4,194,304 bytes"),
    ("no end", endless, 413, "more than 4,194,304 bytes"),
    ("lies about a tag", lying, 422, "is not what the digest"),
    ("changed blobs", other_blobs, 422, "is not what the digest"),
    ("to loopback", with_headers(307, Location="http://127.0.0.1:22/"), 422, "which is not listed"),
    ("to metadata", with_headers(302, Location="http://169.254.169.254/latest"), 422, "which is not listed"),
    ("to a file", with_headers(302, Location="file:///etc/passwd"), 422, "which is not listed"),
    ("to itself for ever", with_headers(302, Location="/v2/again"), 422, "redirects more than"),
    ("to nowhere", with_headers(302), 422, "redirects more than"),
    ("no realm", with_headers(401, WWW_Authenticate="Bearer"), 422, "401 without a realm"),
    ("no challenge", with_headers(401), 422, "401 without a realm"),
    (
        "realm elsewhere",
        with_headers(401, WWW_Authenticate='Bearer realm="http://evil.example/token"'),
        422,
        "which is not listed",
    ),
    ("realm by https", with_headers(401, WWW_Authenticate='Bearer realm="ftp://x/token"'), 422, "which is not listed"),
    ("wrong password", with_headers(401, WWW_Authenticate='Basic realm="x"'), 422, "does not let this server read"),
    ("forbidden", with_headers(403), 422, "does not let this server read"),
    ("no such image", with_headers(404), 404, "has no image"),
    ("busy", with_headers(429), 503, "answers 429"),
    ("broken", with_headers(500), 503, "answers 500"),
    ("odd", with_headers(418), 422, "answers 418"),
    ("no JSON", body(b"<html>"), 400, "the manifest of"),
    ("another form", body(b'{"manifests": "none"}'), 400, "the manifest of"),
    ("deep", body(b'{"layers": ' + b"[" * 200 + b"]" * 200 + b"}"), 400, "the manifest of"),
    ("10,000 entries", body(LONG_INDEX), 400, "the manifest of"),
    ("a bad digest", body(b'{"config": {"digest": "sha256:../../etc", "size": 1}}'), 400, "the manifest of"),
    (
        "a large configuration",
        body(json.dumps({"config": {"digest": "sha256:" + "a" * 64, "size": 2**30}}).encode()),
        400,
        "metadata has few",
    ),
]


@pytest.mark.parametrize(("act", "status", "words"), [row[1:] for row in BAD_DAYS], ids=[row[0] for row in BAD_DAYS])
def test_a_registry_on_a_bad_day(
    yard: Yard, act: Callable[[BaseHTTPRequestHandler], bool], status: int, words: str, request: Any
) -> None:
    repository = "bad/" + request.node.callspec.id.lower().replace(" ", "-").replace(",", "")
    yard.plain.image(repository, tag="1")
    name, began = f"{yard.plain.host}/{repository}:1", time.monotonic()
    with on_request(yard.plain, act):
        answer = yard.submit(name)
    assert answer.status == status, answer.body
    assert words in answer.json["detail"]
    assert answer.json.get("next_step") or status in (400, 413, 404), answer.body
    assert time.monotonic() - began < 30
    until(lambda: yard.submit(name).status == 201, SOON_S, "the next one works, after a slow one a moment later")


MALFORMED = [
    (OURS[:-3], ARTIFACT, "application/vnd.switchyard.image-compatibility.v1+json"),
    (b'{"compatibility": [{"field": "x"}]}', ARTIFACT, "application/vnd.switchyard.image-compatibility.v1+json"),
    (b"compatibilities: [", NFD, NFD_LAYER),
    (b"version: v9\ncompatibilities: []\n", NFD, NFD_LAYER),
    (b"a: &a [x]\nb: *a\n", NFD, NFD_LAYER),
    (b"\xff\xfe\x00", NFD, NFD_LAYER),
    (b'{"compatibilities": {"name": 1}}', COMPSPEC, COMPSPEC),
]


@pytest.mark.parametrize(("content", "kind", "layer"), MALFORMED, ids=range(len(MALFORMED)))
def test_a_malformed_artifact_is_refused_by_its_digest(
    yard: Yard, content: bytes, kind: str, layer: str, request: Any
) -> None:
    repository = f"lab/malformed-{MALFORMED.index((content, kind, layer))}"
    image = yard.plain.image(repository, tag="1")
    yard.plain.artifact(repository, image, content, layer=layer, kind=kind)
    answer = yard.submit(f"{yard.plain.host}/{repository}:1")
    assert (answer.status, "the compatibility sha256:" in answer.json["detail"]) == (400, True), answer.body


def test_hosts_that_are_away_not_trusted_or_not_public(yard: Yard) -> None:
    answer = yard.submit(f"{yard.away}/lab/sim:7")
    assert (answer.status, "does not answer" in answer.json["detail"]) == (503, True)
    answer = yard.submit(f"{yard.strange.host}/lab/sim:7")
    assert (answer.status, "certificate" in answer.json["detail"]) == (422, True)
    answer = yard.submit(f"localhost:{yard.plain.port}/lab/sim:7")
    assert (answer.status, "not a public one" in answer.json["detail"]) == (422, True), answer.body


@pytest.mark.parametrize(
    "rest",
    [
        "lab/sim:a b",
        "lab/../../etc:1",
        "../x:1",
        "lab//sim:1",
        "Lab/sim:1",
        "lab/sim:" + "x" * 129,
        "lab/sim@sha256:12",
        "lab/sim@md5:" + "a" * 32,
        "lab/sim:1\n",
        "",
        "lab/" + "a" * 300,
        "lab/s%2e%2e:1",
        "lab/sim?x=1:2",
        "lab/sim#1",
    ],
)
def test_names_that_are_none_are_refused_before_anybody_is_asked(yard: Yard, rest: str) -> None:
    before = len(yard.plain.asked)
    assert yard.submit(f"{yard.plain.host}/{rest}").status == 400
    assert len(yard.plain.asked) == before


def test_repositories_that_are_not_allowed_are_not_asked_for(yard: Yard) -> None:
    before = len(yard.plain.asked)
    answer = yard.submit(f"{yard.plain.host}/other/x:1")
    assert (answer.status, "lab/*" in answer.json["next_step"]) == (422, True)
    assert len(yard.plain.asked) == before


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"host": "https://x"}, "host"),
        ({"host": "x y"}, "host"),
        ({"host": "x", "plain_http": True}, "private: true"),
        ({"host": "x", "allow": []}, "allow"),
        ({"host": "x", "ca": "/none.pem"}, "registries[0].ca"),
        ({"host": "x", "credentials_file": "/none"}, "registries[0].credentials_file"),
        ({"host": "x", "credentials_file": "open.yaml"}, "chmod 600"),
        ({"host": "x", "credentials_file": "bad.yaml"}, "give `user` and `password`, or `token`"),
        ({"host": "x", "unknown": 1}, "unknown"),
    ],
)
def test_mistakes_of_the_section_stop_the_start(
    stage: Stage, tmp_path: Path, entry: dict[str, Any], words: str
) -> None:
    (tmp_path / "open.yaml").write_text("token: x\n")
    (tmp_path / "bad.yaml").write_text("user: x\n")
    (tmp_path / "bad.yaml").chmod(0o600)
    (tmp_path / "yard.yaml").write_text(json.dumps({"images": {"registries": [entry]}}))
    done = stage.yard(
        "server",
        "--data",
        str(tmp_path / "data"),
        "--no-auth",
        "--config",
        str(tmp_path / "yard.yaml"),
        "--http",
        "127.0.0.1:1",
    )
    assert done.returncode != 0
    assert words in done.stderr, done.stderr
