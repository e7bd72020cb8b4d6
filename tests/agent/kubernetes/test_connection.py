"""How the API is reached: kubeconfig, token file or service account; files that change, and what is refused."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from switchyard.errors import BadRequest, Malformed
from switchyard.features.kubernetes.agent.api import connection as connection_module
from switchyard.features.kubernetes.agent.api.connection import AccessSettings, ClusterConnection


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate and its key."""
    return make_pair(tmp_path_factory.mktemp("pair"))


def make_pair(folder: Path) -> tuple[Path, Path]:
    cert, key = folder / "cert.pem", folder / "key.pem"
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    words += ["-days", "1", "-subj", "/CN=127.0.0.1", "-out", str(cert), "-keyout", str(key)]
    subprocess.run(words, check=True, capture_output=True)
    return cert, key


def write_config(folder: Path, *, cluster: dict[str, Any] | None = None, user: dict[str, Any] | None = None) -> Path:
    path = folder / "kubeconfig"
    config = {
        "current-context": "here",
        "contexts": [
            {"name": "here", "context": {"cluster": "one", "user": "me", "namespace": "physics"}},
            {"name": "other", "context": {"cluster": "two", "user": "me"}},
        ],
        "clusters": [
            {"name": "one", "cluster": {"server": "https://127.0.0.1:6443", **(cluster or {})}},
            {"name": "two", "cluster": {"server": "https://127.0.0.1:7443/base"}},
        ],
        "users": [{"name": "me", "user": user or {"token": "secret"}}],
    }
    path.write_text(json.dumps(config))
    return path


def connect(path: Path, context: str = "") -> ClusterConnection:
    return ClusterConnection(AccessSettings(kubeconfig=str(path), context=context))


def test_a_kubeconfig_gives_address_token_and_namespace(tmp_path: Path) -> None:
    access = connect(write_config(tmp_path)).access()
    assert (access.address.host, access.address.port, access.bearer) == ("127.0.0.1", 6443, "secret")
    assert access.namespace == "physics"
    assert "secret" not in repr(access)


def test_another_context_can_be_named(tmp_path: Path) -> None:
    access = connect(write_config(tmp_path), "other").access()
    assert (access.address.port, access.address.path, access.namespace) == (7443, "/base", "")


def test_client_certificates_as_data_and_as_files_beside_the_kubeconfig(
    tmp_path: Path, pair: tuple[Path, Path]
) -> None:
    cert, key = pair
    as_data = {
        "client-certificate-data": base64.b64encode(cert.read_bytes()).decode(),
        "client-key-data": base64.b64encode(key.read_bytes()).decode(),
    }
    assert connect(write_config(tmp_path, user=as_data)).access().tls is not None
    (tmp_path / "c.pem").write_bytes(cert.read_bytes())
    (tmp_path / "k.pem").write_bytes(key.read_bytes())
    as_files = {"client-certificate": "c.pem", "client-key": "k.pem"}
    authority = {"certificate-authority": str(cert), "tls-server-name": "kubernetes"}
    access = connect(write_config(tmp_path, cluster=authority, user=as_files)).access()
    assert access.tls_name == "kubernetes"


@pytest.mark.parametrize(
    ("user", "words"),
    [
        ({"exec": {"command": "aws"}}, "credential plugin"),
        ({"auth-provider": {"name": "oidc"}}, "auth-provider"),
        ({"username": "a", "password": "b"}, "password"),
        ({"as": "root", "token": "x"}, "impersonation"),
        ({"token": "two\nlines"}, "token"),
        ({"tokenFile": "missing"}, "Cannot read"),
        ({"client-certificate-data": "%%%"}, "base64"),
        ({"client-certificate-data": base64.b64encode(b"nonsense").decode()}, "cannot be used"),
    ],
)
def test_what_the_agent_does_not_use_is_refused_with_the_reason(
    tmp_path: Path, user: dict[str, Any], words: str
) -> None:
    with pytest.raises(Malformed, match=words):
        connect(write_config(tmp_path, user=user)).access()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not a mapping"),
        ("- a", "not a mapping"),
        ("{}", "current-context"),
        ("current-context: a", "no context 'a'"),
        ("current-context: a\ncontexts: [{name: a, context: {cluster: b}}]", "no cluster 'b'"),
        ("current-context: a\ncontexts: [{name: a}]", "not a mapping"),
        ("current-context: [", "line"),
    ],
)
def test_a_file_that_is_no_kubeconfig(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    with pytest.raises(Malformed, match=words):
        connect(path).access()


def test_a_proxy_and_an_address_that_is_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Malformed, match="proxy-url"):
        connect(write_config(tmp_path, cluster={"proxy-url": "http://p"})).access()
    with pytest.raises(Malformed, match="URL"):
        connect(write_config(tmp_path, cluster={"server": "nonsense"})).access()


def test_a_token_never_goes_over_plain_http_to_another_machine(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="plain HTTP"):
        connect(write_config(tmp_path, cluster={"server": "http://192.0.2.1:8080"})).access()
    assert connect(write_config(tmp_path, cluster={"server": "http://127.0.0.1:8080"})).access().tls is None


def test_a_token_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    settings = AccessSettings(endpoint="https://127.0.0.1:6443", token_path=str(token))
    connection = ClusterConnection(settings)
    first = connection.access()
    assert connection.access() is first
    (tmp_path / "new").write_text("second")
    (tmp_path / "new").rename(token)
    second = connection.access()
    assert (first.bearer, second.bearer) == ("first", "second")
    assert first.generation == second.generation, "open connections may be used on"
    token.unlink()
    assert connection.access().bearer == "second", "the last one is used until there is another"
    token.write_text("")
    assert connection.access().bearer == "second"
    token.write_text("third")
    assert connection.access().bearer == "third"


def test_new_certificates_need_new_connections(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    authority = tmp_path / "ca.pem"
    authority.write_bytes(pair[0].read_bytes())
    connection = connect(write_config(tmp_path, cluster={"certificate-authority": "ca.pem"}))
    first = connection.access()
    authority.write_bytes(make_pair(tmp_path)[0].read_bytes())
    assert connection.access().generation == first.generation + 1


def test_after_a_refusal_the_files_are_read_again_although_they_look_the_same(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first")
    stat = token.stat()
    connection = ClusterConnection(AccessSettings(endpoint="https://127.0.0.1:6443", token_path=str(token)))
    assert connection.access().bearer == "first"
    token.write_text("other")
    os.utime(token, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    connection.forget()
    assert connection.access().bearer == "other"


def test_in_a_pod_the_service_account_counts(
    tmp_path: Path, pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "SERVICE_ACCOUNT_FOLDER", tmp_path)
    for name, text in (("token", "pods"), ("namespace", "yard"), ("ca.crt", pair[0].read_text())):
        (tmp_path / name).write_text(text)
    environment = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443", "HOME": str(tmp_path)}
    access = ClusterConnection(AccessSettings(), environment=environment).access()
    assert (access.address.host, access.bearer, access.namespace) == ("fd00::1", "pods", "yard")


def test_outside_of_a_pod_the_default_kubeconfig_counts(tmp_path: Path) -> None:
    path = write_config(tmp_path)
    for environment in ({"KUBECONFIG": f"{path}:/nowhere"}, {"HOME": str(tmp_path)}):
        if "HOME" in environment:
            (tmp_path / ".kube").mkdir()
            path.rename(tmp_path / ".kube" / "config")
        assert ClusterConnection(AccessSettings(), environment=environment).access().bearer == "secret"
    with pytest.raises(Malformed, match="Cannot read"):
        ClusterConnection(AccessSettings(), environment={"HOME": "/nowhere"}).access()
