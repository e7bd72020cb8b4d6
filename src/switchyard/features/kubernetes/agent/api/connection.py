"""How the API of a Kubernetes cluster is reached, and with which credential. Files are read again when they change.

Three ways, the first that is configured counts: an endpoint with a token file and a certificate file (as in Flyte's
`clusterConfigs`), a kubeconfig, or the service account of the pod in which the agent runs.
"""

from __future__ import annotations

import base64
import binascii
import logging
import os
import ssl
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from switchyard.agent.log import line
from switchyard.agent.private_files import file_version, read_bounded
from switchyard.agent.server.client import ServerAddress, parse_server_url
from switchyard.connection import refuse_plain_http
from switchyard.errors import Malformed
from switchyard.model.wire.decode import load_yaml

SERVICE_ACCOUNT_FOLDER = Path("/var/run/secrets/kubernetes.io/serviceaccount")
CREDENTIAL_FILE_BYTES_MAX = 1024 * 1024
ADVICE = "Name a readable file, or correct the section `kubernetes` of the site file."
# What a kubeconfig may say of a user and this client does not do.
UNSUPPORTED_USER_KEYS = {
    "exec": "a credential plugin (`exec`)",
    "auth-provider": "an `auth-provider`",
    "username": "a user name and password",
    "as": "impersonation (`as`)",
}

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessSettings:
    """Where the API is. All empty: the pod's service account, or else the default kubeconfig."""

    endpoint: str = ""
    token_path: str = ""
    cert_path: str = ""  # certificates of the authority that signed the API server's
    kubeconfig: str = ""
    context: str = ""  # of the kubeconfig; empty: its current-context


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiAccess:
    """Everything a connection needs. `generation` grows when an open connection must not be used any more."""

    address: ServerAddress
    tls: ssl.SSLContext | None
    tls_name: str
    bearer: str = field(repr=False)
    namespace: str  # of the kubeconfig's context or the service account; empty: not said
    source: str  # the file that says it, for error messages
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _TlsFiles:
    """`name`: of the server, if it is not that of its address."""

    ca: bytes = b""
    cert: bytes = b""
    key: bytes = field(default=b"", repr=False)
    name: str = ""
    is_unverified: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Credentials:
    """One reading of the files. `versions` are the files and their versions at that time."""

    server: str
    source: str
    namespace: str = ""
    tls: _TlsFiles
    token: str = field(default="", repr=False)
    versions: dict[Path, tuple[int, ...]]


class ClusterConnection:
    """Gives the present credential. Used by several threads."""

    def __init__(self, settings: AccessSettings, *, environment: Mapping[str, str] | None = None) -> None:
        """`environment` is for settings that name nothing: it tells of the service account or the kubeconfig."""
        self._read = _reader(settings, environment or {})
        self._lock = threading.Lock()
        self._credentials: _Credentials | None = None
        self._access: ApiAccess | None = None
        self._tls_parts: tuple[object, ...] = ()
        self._trouble = ""  # why the files could not be read at the last try

    def access(self) -> ApiAccess:
        """The present credential. Raises Malformed if the files cannot be used and never could."""
        with self._lock:
            known = self._credentials
            if known is None or any(file_version(path) != version for path, version in known.versions.items()):
                self._renew()
            assert self._access is not None
            return self._access

    def forget(self) -> None:
        """Read the files again at the next call: the API server did not accept the credential."""
        with self._lock:
            self._credentials = None

    def _renew(self) -> None:
        access = self._access
        try:
            new = self._read()
            is_same_tls = access is not None and self._tls_parts == _tls_parts(new)
            tls = access.tls if access is not None and is_same_tls else _tls_context(new)
            address = parse_server_url(new.server)
        except Malformed as exc:
            if access is None:
                raise
            # A file is being replaced, or is broken: the credential that worked so far is still used.
            if exc.detail != self._trouble:
                self._trouble = exc.detail
                log.warning(line("kubernetes-credential-unreadable", error=exc.detail))
            return
        self._trouble = ""
        if access is not None:
            log.info(line("kubernetes-credential-read", source=new.source))
        self._credentials, self._tls_parts = new, _tls_parts(new)
        self._access = ApiAccess(
            address=address,
            tls=tls,
            tls_name=new.tls.name or address.host,
            bearer=new.token,
            namespace=new.namespace,
            source=new.source,
            generation=0 if access is None else access.generation + (not is_same_tls),
        )


def _tls_parts(read: _Credentials) -> tuple[object, ...]:
    return (read.server, read.tls)


def _tls_context(read: _Credentials) -> ssl.SSLContext | None:
    if not parse_server_url(read.server).is_tls:
        if read.token or read.tls.cert:
            refuse_plain_http(read.server, is_plain_allowed=False)
        return None
    try:
        text = read.tls.ca.decode("ascii") if read.tls.ca else None
        context = ssl.create_default_context(cadata=text)
        if read.tls.is_unverified:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            log.warning(line("kubernetes-server-unverified", source=read.source))
        if read.tls.cert:
            # ssl reads a certificate and its key from a file only.
            with tempfile.NamedTemporaryFile() as file:
                file.write(read.tls.cert + b"\n" + read.tls.key)
                file.flush()
                context.load_cert_chain(file.name)
    except (ssl.SSLError, ValueError) as exc:
        raise Malformed(f"{read.source}: a certificate or key cannot be used: {exc}.", next_step=ADVICE) from exc
    return context


def _reader(settings: AccessSettings, environment: Mapping[str, str]) -> Callable[[], _Credentials]:
    if settings.endpoint:
        return lambda: _read_endpoint(settings)
    if settings.kubeconfig:
        return lambda: _read_kubeconfig(Path(settings.kubeconfig), settings.context)
    if environment.get("KUBERNETES_SERVICE_HOST"):
        return lambda: _read_service_account(environment)
    default = environment.get("KUBECONFIG", "").split(os.pathsep)[0]
    home = environment.get("HOME", "")
    path = Path(default) if default else Path(home) / ".kube" / "config"
    return lambda: _read_kubeconfig(path, settings.context)


class _FileReader:
    """Reads files and notes their versions. The version is taken first: a change while it is read is seen later."""

    def __init__(self) -> None:
        self.versions: dict[Path, tuple[int, ...]] = {}

    def bytes_of(self, path: Path) -> bytes:
        self.versions[path] = file_version(path)
        return read_bounded(path, CREDENTIAL_FILE_BYTES_MAX, advice=ADVICE)[0]

    def text_of(self, path: Path) -> str:
        try:
            text = self.bytes_of(path).decode("ascii").strip()
        except UnicodeDecodeError as exc:
            raise Malformed(f"{path} is no token: it has other characters than ASCII.", next_step=ADVICE) from exc
        if not text or not text.isprintable():
            raise Malformed(f"{path} is no token: it is {'empty' if not text else 'several lines'}.", next_step=ADVICE)
        return text


def _read_endpoint(settings: AccessSettings) -> _Credentials:
    files = _FileReader()
    return _Credentials(
        server=settings.endpoint,
        source=settings.token_path or settings.endpoint,
        tls=_TlsFiles(ca=files.bytes_of(Path(settings.cert_path)) if settings.cert_path else b""),
        token=files.text_of(Path(settings.token_path)) if settings.token_path else "",
        versions=files.versions,
    )


def _read_service_account(environment: Mapping[str, str]) -> _Credentials:
    files, folder = _FileReader(), SERVICE_ACCOUNT_FOLDER
    host, port = environment["KUBERNETES_SERVICE_HOST"], environment.get("KUBERNETES_SERVICE_PORT", "443")
    return _Credentials(
        server=f"https://{f'[{host}]' if ':' in host else host}:{port}",
        source=str(folder / "token"),
        namespace=files.text_of(folder / "namespace"),
        tls=_TlsFiles(ca=files.bytes_of(folder / "ca.crt")),
        token=files.text_of(folder / "token"),
        versions=files.versions,
    )


def _read_kubeconfig(path: Path, context_name: str) -> _Credentials:
    files = _FileReader()
    config = _mapping(load_yaml(files.bytes_of(path), where=str(path)), path, "the file")
    context_name = context_name or str(config.get("current-context") or "")
    if not context_name:
        raise Malformed(f"{path} names no current-context.", next_step="Name one: `kubectl config use-context NAME`.")
    context = _entry_of(config, "contexts", key="context", name=context_name, path=path)
    cluster = _entry_of(config, "clusters", key="cluster", name=str(context.get("cluster", "")), path=path)
    user = _entry_of(config, "users", key="user", name=str(context["user"]), path=path) if context.get("user") else {}
    for key, words in UNSUPPORTED_USER_KEYS.items():
        if user.get(key):
            raise Malformed(
                f"{path}: the user of the context {context_name!r} has {words}, which the agent does not use.",
                next_step="Give it a token file (`tokenFile`), a token or a client certificate; for an agent, the "
                "token of a service account.",
            )
    if cluster.get("proxy-url"):
        raise Malformed(f"{path}: the cluster has a `proxy-url`, which the agent does not use.")
    return _Credentials(
        server=str(cluster.get("server", "")),
        source=str(path),
        namespace=str(context.get("namespace") or ""),
        tls=_TlsFiles(
            ca=_data_of(cluster, "certificate-authority", path, files),
            cert=_data_of(user, "client-certificate", path, files),
            key=_data_of(user, "client-key", path, files),
            name=str(cluster.get("tls-server-name") or ""),
            is_unverified=bool(cluster.get("insecure-skip-tls-verify")),
        ),
        token=_token_of(user, path, files),
        versions=files.versions,
    )


def _token_of(user: Mapping[str, Any], path: Path, files: _FileReader) -> str:
    if user.get("tokenFile"):  # wins over `token`, as in client-go
        return files.text_of(path.parent / str(user["tokenFile"]))
    token = str(user.get("token") or "")
    if token and not (token.isascii() and token.isprintable()):
        raise Malformed(f"{path}: the user's token has characters that no token has.", next_step=ADVICE)
    return token


def _data_of(part: Mapping[str, Any], key: str, path: Path, files: _FileReader) -> bytes:
    """A certificate or key: `KEY-data` holds it in base64, `KEY` names a file beside the kubeconfig."""
    if text := part.get(f"{key}-data"):
        try:
            return base64.b64decode(str(text), validate=True)
        except binascii.Error as exc:
            raise Malformed(f"{path}: {key}-data is no base64: {exc}.", next_step=ADVICE) from exc
    return files.bytes_of(path.parent / str(part[key])) if part.get(key) else b""


def _entry_of(config: Mapping[str, Any], group: str, key: str, name: str, path: Path) -> Mapping[str, Any]:
    entries = config.get(group)
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and entry.get("name") == name:
            return _mapping(entry.get(key), path, f"{key} {name!r}")
    raise Malformed(f"{path}: there is no {key} {name!r}.", next_step="`kubectl config view` shows what there is.")


def _mapping(value: object, path: Path, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise Malformed(f"{path}: {what} is not a mapping.", next_step="`kubectl config view` shows what there is.")
    return value
