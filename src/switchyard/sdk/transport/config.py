"""The user's file, and the client's environment variables: server, token, TLS. Only this module touches the file."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from msgspec import Struct

from switchyard.connection import PLAIN_HTTP_VARIABLE, is_plain_http_allowed
from switchyard.errors import BadRequest, Malformed, Unauthenticated, YardError
from switchyard.model.job.job import ClusterToken
from switchyard.model.wire.decode import convert, load_yaml

URL_DEFAULT = "http://127.0.0.1:8080"
FILE_BYTES_MAX = 1 << 20  # ten thousand cluster tokens fit; anything larger is not this file


@dataclass(frozen=True, slots=True)
class SavedSubmitToken:
    """A submit token of a cluster or a group. No `server`: that at the file's `url`."""

    name: str
    token: str
    server: str = ""


@dataclass(frozen=True, slots=True)
class UserFile:
    """The content of the user's file."""

    url: str = ""
    tokens: Mapping[str, str] = field(default_factory=dict)
    clusters: tuple[SavedSubmitToken, ...] = ()
    ca_file: str = ""

    @property
    def server(self) -> str:
        """The default server, whose submit tokens name no server."""
        return clean_url(self.url or URL_DEFAULT)

    def with_token(self, url: str, token: str) -> UserFile:
        """Return the file with this server as the default, and its token. Submit tokens stay with their servers."""
        fresh = replace(self, url=url, tokens={**self.tokens, url: token})
        entries = (replace(entry, server=self._server_of(entry)) for entry in self.clusters)
        return replace(fresh, clusters=tuple(fresh._without_own_server(entry) for entry in entries))

    def without_token(self, url: str) -> UserFile:
        return replace(self, tokens={key: token for key, token in self.tokens.items() if key != url})

    def with_submit_token(self, server: str, name: str, token: str) -> UserFile:
        """Return the file with this token in place of the server's earlier one of the same name."""
        others = (entry for entry in self.clusters if (entry.name, self._server_of(entry)) != (name, server))
        return replace(self, clusters=(*others, self._without_own_server(SavedSubmitToken(name, token, server))))

    def submit_tokens_of(self, server: str) -> tuple[ClusterToken, ...]:
        """The submit tokens of one server. They are its secrets, and never go to another."""
        own = (entry for entry in self.clusters if self._server_of(entry) == server)
        return tuple(ClusterToken(entry.name, entry.token) for entry in own)

    def _server_of(self, entry: SavedSubmitToken) -> str:
        return entry.server or self.server

    def _without_own_server(self, entry: SavedSubmitToken) -> SavedSubmitToken:
        return replace(entry, server="") if entry.server == self.server else entry


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Server URL, token, submit tokens and TLS settings that a client uses."""

    url: str
    token: str | None
    submit_tokens: tuple[ClusterToken, ...] = ()
    ca_file: str | None = None
    is_plain_allowed: bool = False  # to send the token over http:// to another machine


def resolve_settings(url: str | None = None, token: str | None = None, *, ca_file: str | None = None) -> ClientSettings:
    """Settle each value: an argument wins, then the environment, the user's file, and the default."""
    user_file = load_user_file(config_path())
    server_url = clean_url(url or os.environ.get("YARD_URL") or user_file.server)
    tokens = {clean_url(key): secret for key, secret in user_file.tokens.items()}
    return ClientSettings(
        url=server_url,
        token=clean_token(token or os.environ.get("YARD_TOKEN") or tokens.get(server_url)),
        submit_tokens=user_file.submit_tokens_of(server_url),
        ca_file=ca_file or user_file.ca_file or None,
        is_plain_allowed=is_plain_http_allowed(os.environ.get(PLAIN_HTTP_VARIABLE)),
    )


def config_path() -> Path:
    path = os.environ.get("YARD_CONFIG")
    if path:
        return Path(path).expanduser()
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "switchyard" / "config.yaml"


def file_cache_path() -> Path | None:
    """The folder for hashes of files that were sent, or None if there is no home to keep them in."""
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "switchyard" / "file-hashes"
    except RuntimeError:
        return None


def clean_url(url: str) -> str:
    """Normalise a server's URL, so that its token is found."""
    if not isinstance(url, str):
        raise BadRequest(f"The URL of a server is a text, not {type(url).__name__} {str(url)[:40]!r}.")
    text = url.strip().rstrip("/")
    match = re.match(r"(https?)://([^/?#@\s]+)(/[^?#@\s]*)?\Z", text, re.IGNORECASE)
    if not match:
        raise BadRequest(
            f"{text[:80]!r} is not the URL of a server.",
            next_step="Write it as http://HOST:PORT or https://HOST[:PORT].",
        )
    scheme, host, path = match.groups()
    return f"{scheme.lower()}://{host.lower()}{path or ''}"


def clean_token(token: str | None) -> str | None:
    if token is not None and not isinstance(token, str):
        raise BadRequest(f"A token is a text, not {type(token).__name__}.")
    text = (token or "").strip()
    if not text:
        return None
    if not re.match(r"[\x21-\x7e]+\Z", text):
        raise Unauthenticated("The token has characters that tokens cannot have.")
    return text


class _SavedTokenForm(ClusterToken, frozen=True, forbid_unknown_fields=True):
    server: str = ""


class _UserFileForm(Struct, frozen=True, forbid_unknown_fields=True):
    url: str | None = None
    tokens: dict[str, str] | None = None
    clusters: list[_SavedTokenForm] | None = None
    ca_file: str | None = None


def load_user_file(path: Path) -> UserFile:
    """Read the user's file. A missing file counts as an empty one."""
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
    return UserFile(form.url or "", form.tokens or {}, tuple(_saved_tokens(form, path)), form.ca_file or "")


def _saved_tokens(form: _UserFileForm, path: Path) -> Iterator[SavedSubmitToken]:
    for entry in form.clusters or ():
        try:
            yield SavedSubmitToken(entry.name, entry.token, clean_url(entry.server) if entry.server else "")
        except BadRequest as exc:
            raise Malformed(
                f"{path}: clusters: {entry.name}: server: {exc.detail}",
                next_step="Write it as http://HOST:PORT or https://HOST[:PORT], or leave it out for the one at `url`.",
            ) from exc


_STRING = r'("(?:[^"\\]|\\.)*")'
_TOP = re.compile(rf"(url|ca_file): {_STRING}\Z")
_TOKEN = re.compile(rf"  {_STRING}: {_STRING}\Z")
_CLUSTER = re.compile(rf"  - {{name: {_STRING}, token: {_STRING}(?:, server: {_STRING})?}}\Z")


def _parse_saved_form(text: bytes) -> dict[str, Any] | None:
    """Parse what `save_user_file` writes, without the YAML library (30 ms at start). Return None for other content."""
    form: dict[str, Any] = {}
    section = ""
    try:
        for line in text.decode().split("\n"):
            if not line or line.startswith("#"):
                continue
            if line in ("tokens:", "clusters:") and line[:-1] not in form:
                section = line[:-1]
                form[section] = {} if section == "tokens" else []
            elif (match := _TOP.match(line)) and match[1] not in form:
                form[match[1]], section = json.loads(match[2]), ""
            elif section == "tokens" and (match := _TOKEN.match(line)) and json.loads(match[1]) not in form[section]:
                form[section][json.loads(match[1])] = json.loads(match[2])
            elif section == "clusters" and (match := _CLUSTER.match(line)):
                words = zip(("name", "token", "server"), match.groups(), strict=True)
                form[section].append({word: json.loads(text) for word, text in words if text is not None})
            else:
                return None  # not in our form, or a duplicate key: the YAML reader reports it with its line
    except ValueError:
        return None
    return form


def save_user_file(path: Path, content: UserFile) -> None:
    """Write the user's file atomically, readable by the user only."""
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
            f"Cannot write {target}: {exc.strerror}.",
            next_step="Check the folder and its free space, or name another file in YARD_CONFIG.",
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
        for entry in content.clusters:
            server = f", server: {quote(entry.server)}" if entry.server else ""
            lines.append(f"  - {{name: {quote(entry.name)}, token: {quote(entry.token)}{server}}}")
    return "\n".join(lines) + "\n"
