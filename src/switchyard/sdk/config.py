"""The user's file and environment: which server, which token. The only place of SDK and CLI that reads either."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from msgspec import Struct

from switchyard.connection import PLAIN_HTTP_VARIABLE, is_plain_http_allowed
from switchyard.errors import BadRequest, Malformed, Unauthenticated, YardError
from switchyard.model.decode import convert, load_yaml
from switchyard.model.job import ClusterToken

URL_DEFAULT = "http://127.0.0.1:8080"
FILE_BYTES_MAX = 1 << 20  # ten thousand cluster tokens fit; anything larger is not this file


@dataclass(frozen=True, slots=True)
class UserFile:
    """What the user's file says. `clusters` are submit tokens, which belong to the server at `url`."""

    url: str = ""
    tokens: Mapping[str, str] = field(default_factory=dict)
    clusters: tuple[ClusterToken, ...] = ()
    ca_file: str = ""

    def with_token(self, url: str, token: str) -> UserFile:
        """The same with this server as the default one, and its token."""
        return replace(self, url=url, tokens={**self.tokens, url: token})

    def without_token(self, url: str) -> UserFile:
        return replace(self, tokens={key: token for key, token in self.tokens.items() if key != url})

    def with_cluster(self, cluster: ClusterToken) -> UserFile:
        others = (known for known in self.clusters if known.name != cluster.name)
        return replace(self, clusters=(*others, cluster))


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """The server to speak to, and who to be there."""

    url: str
    token: str | None
    clusters: tuple[ClusterToken, ...] = ()
    ca_file: str | None = None
    is_plain_allowed: bool = False  # to send the token over http:// to another machine


def resolve_settings(url: str | None = None, token: str | None = None, *, ca_file: str | None = None) -> ClientSettings:
    """What is given wins, then the environment, then the user's file, then the local default."""
    stored = load_user_file(config_path())
    home = clean_url(stored.url or URL_DEFAULT)
    where = clean_url(url or os.environ.get("YARD_URL") or home)
    tokens = {clean_url(key): secret for key, secret in stored.tokens.items()}
    return ClientSettings(
        url=where,
        token=clean_token(token or os.environ.get("YARD_TOKEN") or tokens.get(where)),
        # Submit tokens are secrets of one server: they never go to another.
        clusters=stored.clusters if where == home else (),
        ca_file=ca_file or stored.ca_file or None,
        is_plain_allowed=is_plain_http_allowed(os.environ.get(PLAIN_HTTP_VARIABLE)),
    )


def config_path() -> Path:
    given = os.environ.get("YARD_CONFIG")
    if given:
        return Path(given).expanduser()
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "switchyard" / "config.yaml"


def clean_url(url: str) -> str:
    """One spelling for one server, so that its token is found."""
    text = url.strip().rstrip("/")
    found = re.match(r"(https?)://([^/?#@\s]+)(/[^?#@\s]*)?\Z", text, re.IGNORECASE)
    if not found:
        raise BadRequest(
            f"{text[:80]!r} is not the URL of a server.",
            next_step="Write it as http://HOST:PORT or https://HOST[:PORT].",
        )
    scheme, host, path = found.groups()
    return f"{scheme.lower()}://{host.lower()}{path or ''}"


def clean_token(token: str | None) -> str | None:
    text = (token or "").strip()
    if not text:
        return None
    if not re.match(r"[\x21-\x7e]+\Z", text):
        raise Unauthenticated("The token has characters that no token has.")
    return text


class _UserFileForm(Struct, frozen=True, forbid_unknown_fields=True):
    url: str | None = None
    tokens: dict[str, str] | None = None
    clusters: list[ClusterToken] | None = None
    ca_file: str | None = None


def load_user_file(path: Path) -> UserFile:
    """Read the user's file; none is as good as an empty one."""
    try:
        with path.open("rb") as file:
            text = file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        return UserFile()
    except OSError as exc:
        raise YardError(f"Cannot read {path}: {exc.strerror}.", next_step="Correct its owner or mode.") from exc
    if len(text) > FILE_BYTES_MAX:
        raise Malformed(
            f"{path}: over {FILE_BYTES_MAX} bytes.", next_step="This is not a file that `yard login` wrote."
        )
    plain = _parse_saved_form(text)
    form = convert(load_yaml(text, where=str(path)) or {} if plain is None else plain, _UserFileForm, where=str(path))
    return UserFile(form.url or "", form.tokens or {}, tuple(form.clusters or ()), form.ca_file or "")


_STRING = r'("(?:[^"\\]|\\.)*")'
_TOP = re.compile(rf"(url|ca_file): {_STRING}\Z")
_TOKEN = re.compile(rf"  {_STRING}: {_STRING}\Z")
_CLUSTER = re.compile(rf"  - {{name: {_STRING}, token: {_STRING}}}\Z")


def _parse_saved_form(text: bytes) -> dict[str, Any] | None:
    """Read exactly what `save` writes, without the YAML library (30 ms at each start); anything else: None."""
    form: dict[str, Any] = {}
    section = ""
    try:
        for line in text.decode().split("\n"):
            if not line or line.startswith("#"):
                continue
            if line in ("tokens:", "clusters:") and line[:-1] not in form:
                section = line[:-1]
                form[section] = {} if section == "tokens" else []
            elif (found := _TOP.match(line)) and found[1] not in form:
                form[found[1]], section = json.loads(found[2]), ""
            elif section == "tokens" and (found := _TOKEN.match(line)) and json.loads(found[1]) not in form[section]:
                form[section][json.loads(found[1])] = json.loads(found[2])
            elif section == "clusters" and (found := _CLUSTER.match(line)):
                form[section].append({"name": json.loads(found[1]), "token": json.loads(found[2])})
            else:
                return None  # not ours, or given twice, which the YAML reader says with its line
    except ValueError:
        return None
    return form


def save_user_file(path: Path, content: UserFile) -> None:
    """Write the user's file whole or not at all, readable by the user alone."""
    import tempfile

    target = path.resolve()  # a link to a file elsewhere stays a link
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, fresh = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)  # its mode is 0600
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_format_user_file(content).encode())
                file.flush()
                os.fsync(file.fileno())
            Path(fresh).replace(target)
        finally:
            Path(fresh).unlink(missing_ok=True)
    except OSError as exc:
        raise YardError(
            f"Cannot write {target}: {exc.strerror}.", next_step="Free the place, or name another file in YARD_CONFIG."
        ) from exc


def _format_user_file(content: UserFile) -> str:
    quote = json.dumps  # a JSON string is a YAML string
    lines = ["# Written by `yard login`. It holds secrets: keep it to yourself."]
    lines += [f"url: {quote(content.url)}"] if content.url else []
    lines += [f"ca_file: {quote(content.ca_file)}"] if content.ca_file else []
    if content.tokens:
        lines += ["tokens:", *(f"  {quote(url)}: {quote(token)}" for url, token in content.tokens.items())]
    if content.clusters:
        lines += ["clusters:"]
        lines += [f"  - {{name: {quote(known.name)}, token: {quote(known.token)}}}" for known in content.clusters]
    return "\n".join(lines) + "\n"
