"""`yard server`: read the settings, list every mistake at once, run."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path

import msgspec
import structlog

from switchyard.connection import PLAIN_HTTP_VARIABLE, is_loopback, is_plain_http_allowed
from switchyard.errors import EXIT_USAGE, Malformed, YardError
from switchyard.server.commands.database_option import add_database_options, data_folder, read_database_url, sqlite_url
from switchyard.server.config.clusters_section_checks import unlisted_members
from switchyard.server.config.config import Config, format_mistakes, list_mistakes, read_config, valid_parts
from switchyard.server.config.config_reading import config_reading
from switchyard.server.config.platform_config import read_platform
from switchyard.server.config.selection_section import read_selection
from switchyard.server.config.settings import Settings, parse_address
from switchyard.server.config.storage_section import read_storage
from switchyard.server.config.token_pools_section import token_mistakes
from switchyard.server.feature import server_features
from switchyard.server.private_files import set_private_umask
from switchyard.storage.object_store import StorageOptions

EXAMPLES = """\
examples:
  yard server --data ./yard --http 127.0.0.1:8080
      one server on an embedded SQLite file; the first start prints the administrator's token, on a terminal
  yard server new-admin-token --data ./yard
      another token of the administrator, while the server is stopped
  yard server --data ./yard --http 0.0.0.0:8443 --tls-cert cert.pem --tls-key key.pem
  yard server --data ./a --http 127.0.0.1:8080 --database-file /etc/switchyard/database
      one of several servers on one PostgreSQL; the file has its URL, with the password
  yard server --data ./try --http 127.0.0.1:8080 --no-auth
      for trying out: every local caller is an administrator
"""


def main(argv: list[str]) -> int:
    set_private_umask()
    if argv[:1] == ["new-admin-token"]:
        return _new_admin_token(argv[1:])
    options = _parser().parse_args(argv)
    try:
        settings = read_settings(options)
    except YardError as exc:
        _complain(exc)
        return EXIT_USAGE
    start_logging()
    try:
        from switchyard.server.app import run

        return run(settings)
    except YardError as exc:
        _complain(exc)
        return exc.exit_code
    except OSError as exc:
        # Some have no text: a time limit, for one.
        why = str(exc) or type(exc).__name__
        _complain(YardError(f"Cannot start: {why}", next_step="Check the folder, the address and the files named."))
        return 1


def _new_admin_token(argv: list[str]) -> int:
    from switchyard.server.commands import admin_token

    try:
        return admin_token.main(argv, os.environ)
    except YardError as exc:
        _complain(exc)
        return exc.exit_code
    except OSError as exc:
        _complain(YardError(f"No token was made: {exc}", next_step="Check the folder given with --data."))
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="yard server",
        description="Run a Switchyard server in the foreground; SIGTERM ends it. `yard server new-admin-token` makes a "
        "token of an administrator while no server runs.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data", metavar="DIR", help="folder for the server's files (default: in your home)")
    parser.add_argument("--http", metavar="HOST:PORT", default="127.0.0.1:8080", help="default: %(default)s")
    parser.add_argument("--grpc", metavar="HOST:PORT", help="no gRPC port without it")
    parser.add_argument("--config", metavar="FILE", help="YAML: clusters, queues, domains, …")
    add_database_options(parser, " (default: SQLite in DIR)")
    parser.add_argument("--tls-cert", metavar="FILE", help="serve TLS with this certificate (PEM)")
    parser.add_argument("--tls-key", metavar="FILE", help="and this key")
    parser.add_argument(
        "--tls-client-ca", metavar="FILE", help="gRPC: only clients with a certificate of this authority (PEM)"
    )
    parser.add_argument(
        "--insecure-http", action="store_true", help="allow --http and --grpc beyond loopback without TLS"
    )
    parser.add_argument("--no-auth", action="store_true", help="loopback only: every caller is the local admin")
    # For `make bench` alone: the same server with the commit left out, or with one commit per request.
    parser.add_argument("--bench", choices=["one-by-one"], default="", help=argparse.SUPPRESS)
    return parser


def read_settings(options: argparse.Namespace) -> Settings:
    """Return the settings, or raise one error that lists every mistake."""
    mistakes: list[str] = []
    http = _address(options.http, "--http", mistakes)
    grpc = _address(options.grpc, "--grpc", mistakes) if options.grpc else None
    for address, flag in ((http, "--http"), (grpc, "--grpc")):
        if options.no_auth and address is not None and not is_loopback(address[0]):
            mistakes.append(f"--no-auth is for loopback only, and {flag} is {address[0]}")
        if address is not None and not is_loopback(address[0]) and not options.tls_cert and not _is_plain(options):
            mistakes.append(
                f"{flag} {address[0]} is beyond this machine, and without TLS everybody on the way can read tokens: "
                "give --tls-cert and --tls-key, or listen on 127.0.0.1 behind a proxy that ends TLS, or allow it with "
                f"--insecure-http ({PLAIN_HTTP_VARIABLE}=1)"
            )
    cert, key = _file(options.tls_cert, "--tls-cert", mistakes), _file(options.tls_key, "--tls-key", mistakes)
    if bool(options.tls_cert) != bool(options.tls_key):
        mistakes.append("--tls-cert and --tls-key go together")
    client_ca = _file(options.tls_client_ca, "--tls-client-ca", mistakes)
    if options.tls_client_ca and not (options.tls_cert and options.grpc):
        mistakes.append("--tls-client-ca goes with --grpc, --tls-cert and --tls-key")
    config, unused = _config(options.config, mistakes)
    folder = _config_folder(options.config)
    mistakes += [mistake for feature in server_features() for mistake in feature.mistakes(config, folder=folder)]
    storage = _storage(config, folder, mistakes)
    data = data_folder(options.data)
    database = _database(options, mistakes) or sqlite_url(data)
    if mistakes:
        listed = "\n".join(f"  - {mistake}" for mistake in mistakes)
        raise Malformed(f"The server cannot start:\n{listed}", next_step="Correct them all and start again.")
    assert http is not None
    return Settings(
        data=data,
        http=http,
        database=database,
        grpc=grpc,
        tls_cert=cert,
        tls_key=key,
        tls_client_ca=client_ca,
        is_open=options.no_auth,
        bench=options.bench,
        config=config,
        unused_keys=unused,
        config_folder=folder,
        environment=dict(os.environ),
        storage=storage,
    )


def _is_plain(options: argparse.Namespace) -> bool:
    return bool(options.insecure_http) or is_plain_http_allowed(os.environ.get(PLAIN_HTTP_VARIABLE))


def _database(options: argparse.Namespace, mistakes: list[str]) -> str | None:
    try:
        url = read_database_url(options, os.environ)
    except Malformed as exc:
        mistakes.append(f"{exc.detail} {exc.next_step}")
        return None
    if url and url.partition("://")[0] not in ("sqlite", "postgresql", "postgres"):
        mistakes.append("--database starts with sqlite:/// or postgresql://")
    return url


def _address(text: str, flag: str, mistakes: list[str]) -> tuple[str, int] | None:
    try:
        return parse_address(text)
    except ValueError as exc:
        mistakes.append(f"{flag}: {exc}")
        return None


def _file(text: str | None, flag: str, mistakes: list[str]) -> Path | None:
    if text is None:
        return None
    path = Path(text).expanduser()
    if not os.access(path, os.R_OK) or not path.is_file():
        mistakes.append(f"{flag}: cannot read {path}")
    return path


def _config(file: str | None, mistakes: list[str]) -> tuple[Config, dict[str, str]]:
    """The config, and the keys of the file that the server does not use, with the reasons."""
    path = _file(file, "--config", mistakes)
    if path is None or not path.is_file():
        return Config(), {}
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as exc:
        mistakes.append(f"--config: {exc}")
        return Config(), {}
    try:
        wrong = list_mistakes(text, where=str(path))
    except YardError as exc:  # it is no YAML
        mistakes.append(exc.detail)
        return Config(), {}
    config = valid_parts(text) if wrong else read_config(text, where=str(path))
    references = [
        *read_platform(config)[1],
        *read_selection(config.selection)[1],
        *token_mistakes(config.resourcemanager),
    ]
    if references or wrong or mistakes:
        references += unlisted_members(msgspec.to_builtins(config.clusters))
    reading = config_reading(text)
    listed = "".join(wrong)
    wrong += [mistake for mistake in map(reading.in_file, references) if mistake not in listed]
    if wrong:
        mistakes.append(format_mistakes(wrong, text, where=str(path)))
    return config, reading.unused


def _storage(config: Config, folder: Path, mistakes: list[str]) -> StorageOptions:
    storage, wrong = read_storage(config.storage, environment=os.environ, folder=folder)
    mistakes += wrong
    return storage


def _config_folder(file: str | None) -> Path:
    return Path(file).expanduser().resolve().parent if file else Path.cwd()


def start_logging() -> None:
    """One event, one line, key=value, to stderr."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event"]),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


def _complain(error: YardError) -> None:
    sys.stderr.write(f"error: {error.inner}\n")
    if error.next_step:
        sys.stderr.write(f"next: {error.next_step}\n")
