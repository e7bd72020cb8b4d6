"""`yard agent doctor`: each thing that can be wrong, made wrong for real."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from switchyard.agent.files.folders import FilesFolders, files_folders
from switchyard.agent.server import credential as credentials
from switchyard.agent.server.credential import Credential
from switchyard.agent.site.site import AccountsSite, Site
from switchyard.features.doctor.agent.doctor import check_shared
from switchyard.features.slurm.agent.slurm_site import SlurmSite
from tests.processes import free_port
from tests.programs import isolated_env, off_clock, yard
from tests.sites import site_with


def examined(tmp: Path, *args: str, env: dict[str, str] | None = None) -> tuple[int, dict[str, Any]]:
    done = yard("agent", "doctor", *args, "-o", "json", env=isolated_env(tmp) | (env or {}))
    return done.returncode, {each["check"]: each for each in json.loads(done.stdout)}


@contextmanager
def served(answer: bytes | Callable[[], bytes], *, tls: tuple[Path, Path] | None = None) -> Iterator[str]:
    """An HTTP server that says the same to everybody, or what the function returns at that moment."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = answer if isinstance(answer, bytes) else answer()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    class Listener(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            pass

    with Listener(("127.0.0.1", 0), Handler) as server:
        if tls:
            import ssl

            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*tls)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"{'https' if tls else 'http'}://127.0.0.1:{server.server_port}"
        server.shutdown()


def version() -> bytes:
    import time

    return json.dumps({"version": "9.9", "now_us": time.time_ns() // 1000}).encode()


def certificate(folder: Path, *, days: int) -> tuple[Path, Path]:
    cert, key = folder / f"cert{days}.pem", folder / f"key{days}.pem"
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    words += ["-days", str(days), "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*words, "-out", str(cert), "-keyout", str(key)], check=True, capture_output=True)
    return cert, key


def test_a_name_that_does_not_exist(tmp_path: Path) -> None:
    code, found = examined(tmp_path, "--server", "http://no-such-host.invalid")
    assert code == 1
    assert (found["dns"]["is_ok"], "tcp" in found) == (False, False)
    assert "--server" in found["dns"]["advice"]


@pytest.mark.parametrize("url", ["ftp://x", "nonsense", "http://127.0.0.1:99999"])
def test_what_is_no_url(tmp_path: Path, url: str) -> None:
    code, found = examined(tmp_path, "--server", url)
    assert (code, found["url"]["is_ok"]) == (1, False)


def test_nobody_listens_and_a_proxy_would_not_be_used(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    code, found = examined(tmp_path, "--server", url, env={"HTTPS_PROXY": "http://proxy:3128"})
    assert code == 1
    assert (found["dns"]["is_ok"], found["tcp"]["is_ok"], found["proxy"]["is_ok"]) == (True, False, False)
    assert "HTTPS_PROXY" in found["proxy"]["detail"]
    assert "directly" in found["proxy"]["advice"]


def test_somebody_else_listens(tmp_path: Path) -> None:
    with served(b"<html>hello</html>") as url:
        code, found = examined(tmp_path, "--server", url)
    assert (code, found["server"]["is_ok"]) == (1, False)


def test_no_tls_where_https_was_said(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, served(version) as url:
        silent.close()
        code, found = examined(tmp_path, "--server", url.replace("http:", "https:"))
    assert (code, found["tls"]["is_ok"]) == (1, False)


def test_certificates(tmp_path: Path) -> None:
    good, short = certificate(tmp_path, days=90), certificate(tmp_path, days=3)
    with served(version, tls=good) as url:
        _, unknown = examined(tmp_path, "--server", url)
        _, known = examined(tmp_path, "--server", url, "--ca-file", str(good[0]), "--backend", "fake")
    assert unknown["tls"]["is_ok"] is False
    assert "--ca-file" in unknown["tls"]["advice"]
    assert (known["tls"]["is_ok"], known["server"]["is_ok"]) == (True, True)
    with served(version, tls=short) as url:
        code, found = examined(tmp_path, "--server", url, "--ca-file", str(short[0]))
    assert (code, found["tls"]["is_ok"], found["tls"]["advice"]) == (1, False, "Renew the certificate.")


def test_a_clock_that_is_off(tmp_path: Path) -> None:
    with served(version) as url:
        code, found = examined(tmp_path, "--server", url, env=off_clock("-1h"))
    assert (code, found["clock"]["is_ok"]) == (1, False)
    assert re.search(r"3[56]\d\d", found["clock"]["detail"])
    assert "behind" in found["clock"]["detail"]
    assert "NTP" in found["clock"]["advice"]


def test_before_the_first_join_all_may_be_well(tmp_path: Path) -> None:
    with served(version) as url:
        done = yard("agent", "doctor", "--server", url, "--backend", "local", env=isolated_env(tmp_path))
        assert done.returncode == 0, done.stdout
        assert "✔ server" in done.stdout
        assert "- credential" in done.stdout
        code, found = examined(tmp_path, "--server", url, "--data", str(tmp_path), "--backend", "nonsense")
    assert (code, found["backend"]["is_ok"]) == (1, False)
    assert "Installed are" in found["backend"]["advice"] + found["backend"]["detail"]
    assert found["credential"]["is_ok"] is None


def test_a_credential_that_others_may_read_and_a_damaged_journal(tmp_path: Path) -> None:
    folder = tmp_path / "agent"
    folder.mkdir()
    credentials.save_credential(folder, Credential("id", "alpha", "one", "agent_x", "http://127.0.0.1:1", "j"))
    (folder / credentials.CREDENTIAL_FILE).chmod(0o644)
    (folder / "journal.db").write_bytes(b"x" * 5000)
    code, found = examined(tmp_path, "--data", str(folder))
    assert code == 1
    assert (found["credential"]["is_ok"], found["journal"]["is_ok"], found["disk"]["is_ok"]) == (False, False, True)
    assert "chmod 600" in found["credential"]["advice"]
    assert found["tcp"]["is_ok"] is False, "it asks the server the agent joined"
    (folder / credentials.CREDENTIAL_FILE).write_text("{")
    _, found = examined(tmp_path, "--data", str(folder))
    assert found["credential"]["is_ok"] is False


@pytest.mark.parametrize(
    ("is_seen", "accounts", "is_ok"),
    [(True, None, True), (False, None, False), (None, None, None), (False, AccountsSite("/etc/map"), None)],
)
def test_whether_nodes_see_the_jobs_folder(
    tmp_path: Path, is_seen: bool | None, accounts: AccountsSite | None, is_ok: bool | None
) -> None:
    folders = files_folders(site_with(slurm=SlurmSite(folder="/shared")), "slurm", tmp_path, "alpha")
    assert folders == FilesFolders(tmp_path / "files" / "cache", Path("/shared/work"))
    finding = check_shared(Site(accounts=accounts), folders, is_seen=is_seen)
    assert (finding.is_ok, "/shared" in finding.detail) == (is_ok, True)


def test_the_files_section(tmp_path: Path) -> None:
    folder = tmp_path / "agent"
    folder.mkdir()
    _, found = examined(tmp_path, "--data", str(folder), "--backend", "local")
    assert (found["files"]["is_ok"], found["cache"]["is_ok"] is not False) == (True, True)
    assert f"below {folder}/work" in found["files"]["detail"]
    assert re.search("are (cloned|copied)", found["files"]["detail"])
    assert list(folder.iterdir()) == [], "nothing is left"
    site = tmp_path / "site.yaml"
    words = ("--data", str(folder), "--backend", "local", "--cluster", "alpha", "--config", str(site))
    site.write_text(f"files: {{folder: {tmp_path}/spool, cache: 1000000TiB}}\n")
    code, found = examined(tmp_path, *words)
    assert f"below {tmp_path}/spool/alpha/work" in found["files"]["detail"]
    assert (found["cache"]["is_ok"], "1000000TiB" in found["cache"]["detail"]) == (None, True)
    assert "files: {cache:" in found["cache"]["advice"]
    site.write_text("files: {folder: /proc/none}\n")
    code, found = examined(tmp_path, *words)
    assert (code, found["files"]["is_ok"], "cache" in found) == (1, False, False)
    assert "files: {folder: DIR}" in found["files"]["advice"]
    site.write_text(f"slurm: {{prefix: ssh login1, folder: {tmp_path}}}\n")
    _, found = examined(tmp_path, "--data", str(folder), "--backend", "slurm", "--config", str(site))
    assert (found["files"]["is_ok"], "over ssh" in found["files"]["detail"]) == (None, True)
    _, found = examined(tmp_path, "--backend", "local")
    assert found["files"]["is_ok"] is None
